"""What only TensorRT-RTX has: the GPUs that an engine is built for, without one of them being here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.tensorrt_options import TensorRTOptions
from gpt_search.domain.errors import InputError

if TYPE_CHECKING:
    import tensorrt_rtx as trt


def set_targets(trt: Any, config: trt.IBuilderConfig, options: TensorRTOptions) -> None:
    """Sets the compute capabilities to build for. Raises InputError for one that this version cannot build for."""
    wanted = options.compute_capability
    if wanted is None:
        return
    known = {str(name): member for name, member in trt.ComputeCapability.__members__.items() if name != "NONE"}
    config.num_compute_capabilities = len(wanted)
    for index, text in enumerate(wanted):
        name = "CURRENT" if text == "current" else "SM" + text.replace(".", "")
        if name not in known:
            there = ", ".join(_shown(n) for n in known)
            raise InputError(
                f"TensorRT-RTX {trt.__version__} cannot build for compute capability {text}; it builds for {there}"
            )
        member = known[name]
        if not config.set_compute_capability(member, index) or config.get_compute_capability(index) != member:
            raise BuildError(f"TensorRT-RTX did not take compute capability {text}")


def _shown(name: str) -> str:
    return "current" if name == "CURRENT" else f"{name[2:-1]}.{name[-1]}"
