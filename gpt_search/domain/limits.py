"""Limits on what an engine may take: its size in bytes and its device memory. Constraints beside accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

UNITS = 1e6
"""Limits are given in units of 10^6 bytes."""

_NAMES = {"size": "the engine's size", "memory": "the engine's memory"}


@dataclass(frozen=True)
class Limits:
    """Upper limits in units of 10^6 bytes, None for none. size_mb: of the saved engine; memory_mb: what it needs."""

    size_mb: float | None = None
    memory_mb: float | None = None

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return self.size_mb is not None or self.memory_mb is not None

    def excess(self, size_bytes: int | None, memory_bytes: int | None) -> dict[str, float]:
        """By limit ("size", "memory"): used over allowed, less 1: kept when <= 0. Infinite where it is not known."""
        found = {}
        for name, limit, used in (("size", self.size_mb, size_bytes), ("memory", self.memory_mb, memory_bytes)):
            if limit is not None:
                found[name] = math.inf if used is None else used / (UNITS * limit) - 1
        return found

    def to_json(self) -> dict[str, float | None]:
        """A JSON-like form."""
        return {"size_mb": self.size_mb, "memory_mb": self.memory_mb}


def excess_text(excess: Mapping[str, float]) -> str:
    """What is above its limit, and by how much; empty where nothing is."""
    return "; ".join(
        f"{_NAMES[name]} is not known to the backend, so that its limit cannot be checked"
        if math.isinf(x)
        else f"{_NAMES[name]} is {100 * x:.3g} % above its limit"
        for name, x in excess.items()
        if x > 0
    )
