"""What TensorRT's log says when an engine cannot be run here, in one line for a user."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CUDA_ERROR = re.compile(r"cudaError (\d+)|CUDA (?:initialization )?(?:failure|error)[^\d]{0,40}(\d+)", re.IGNORECASE)
_NO_DRIVER, _NO_DEVICE = 35, 100
_CAPABILITY = re.compile(r"cannot run on this GPU, which has compute capability (\d+\.\d+)")
_SUPPORTED = re.compile(r"Supported compute capabilities: ([^.]*(?:\.\d[^.]*)*)\.")
_HARMLESS = ("skipping the engine compute capability check",)


def why_not_run(messages: Iterable[str], library: str) -> str | None:
    """Why nothing can be run on this machine, or None where the messages blame the engine alone.

    messages: TensorRT's log while an engine was deserialised or a builder was made.
    """
    lines = [m for m in messages if not m.lower().startswith(_HARMLESS)]
    for line in lines:
        found = _CUDA_ERROR.search(line)
        number = int(found[1] or found[2]) if found else None
        if number == _NO_DRIVER:
            return (
                f"{library} cannot run here: there is no NVIDIA driver, or one older than this {library} needs "
                "(CUDA error 35); run on a machine with an NVIDIA GPU and a current driver"
            )
        if number == _NO_DEVICE:
            return f"{library} cannot run here: the driver finds no GPU (CUDA error 100); see CUDA_VISIBLE_DEVICES"
    for line in lines:
        if (here := _CAPABILITY.search(line)) is not None:
            supported = _SUPPORTED.search(line)
            built_for = f"; the engine was built for {', '.join(supported[1].split())}" if supported else ""
            never = "does not support this compute capability" in line
            verb = "does not support" if never else "has no engine for"
            return f"{library} cannot run here: it {verb} compute capability {here[1]}, which this GPU has{built_for}"
    return None
