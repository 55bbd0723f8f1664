"""TensorRT's knobs: what `IBuilderConfig.all_build_routes` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase

if TYPE_CHECKING:
    import tensorrt as trt

NO_ROUTES = (
    "{name} {version} lists no build routes (IBuilderConfig.all_build_routes is empty), so there is nothing to tune. "
    "Build routes exist since TensorRT 11.1, on Linux, not in TensorRT-RTX; install it with: "
    "pip install 'tensorrt-cu13>=11.1'. To plan without it: gpt-search plan --database FILE"
)


def route_database(config: trt.IBuilderConfig, name: str, version: str) -> KnobDatabase:
    """The compiler's own list. Raises InputError, with what to install, where it is empty."""
    text = config.all_build_routes
    if not text.strip():
        raise InputError(NO_ROUTES.format(name=name, version=version))
    return KnobDatabase.from_json(text)
