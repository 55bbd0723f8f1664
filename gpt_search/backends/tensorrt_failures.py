"""What TensorRT's log says when an engine cannot be run here, in one line for a user."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CUDA_ERROR = re.compile(r"cudaError (\d+)|CUDA (?:initialization )?(?:failure|error)[^\d]{0,40}(\d+)", re.IGNORECASE)
_NO_DRIVER, _NO_DEVICE = 35, 100
_CAPABILITY = re.compile(r"compute capabilit(?:y|ies)|\bSM ?\d+\.?\d*\b.*not supported|unsupported SM", re.IGNORECASE)
_CAPABILITY_NUMBER = re.compile(r"\b(?:compute capability|SM) ?(?:of )?(\d+\.\d+|\d{2,3})\b", re.IGNORECASE)
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
        if _CAPABILITY.search(line):
            number_text = _CAPABILITY_NUMBER.search(line)
            which = f" (compute capability {number_text[1]})" if number_text else ""
            return f"{library} does not support the GPU of this machine{which}: {' '.join(line.split())}"
    return None
