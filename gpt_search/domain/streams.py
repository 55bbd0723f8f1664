"""Randomness that is addressed, not consumed: trial t of purpose p always gets the same numbers."""

from __future__ import annotations

import hashlib
from numbers import Integral

import numpy as np


class Streams:
    """Random streams of one study, addressed by (purpose, trial).

    One Philox per purpose, keyed by SHA-256 of (seed, purpose); its counter is set from the trial
    and reset in place, an order of magnitude faster than making a Generator. Streams of two trials
    are 2^192 blocks apart. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """

    def __init__(self, seed: int | str) -> None:
        """seed: any int or text; equal seeds give equal streams on every machine."""
        self.seed = seed
        self._by_purpose: dict[str, tuple[np.random.Generator, np.random.Philox, dict[str, object], object]] = {}

    def trial(self, t: int, purpose: str = "") -> np.random.Generator:
        """The generator of trial `t` (0 or more) for `purpose`, at its first number.

        It is valid until the next call with the same purpose. Raises ValueError for a negative t.
        """
        if t < 0:
            raise ValueError(f"trial numbers start at 0, got {t}")
        found = self._by_purpose.get(purpose)
        if found is None:
            found = self._by_purpose[purpose] = self._make(purpose)
        generator, bits, state, counter = found
        counter[3] = t  # type: ignore[index]
        bits.state = state  # type: ignore[assignment]
        return generator

    def _make(self, purpose: str) -> tuple[np.random.Generator, np.random.Philox, dict[str, object], object]:
        digest = hashlib.sha256(f"{_coordinate(self.seed)}\0{purpose}".encode()).digest()
        bits = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))
        state: dict[str, object] = dict(bits.state)
        return np.random.Generator(bits), bits, state, state["state"]["counter"]  # type: ignore[index]


def seed_from(*coordinates: int | str) -> int:
    """A 63-bit seed from coordinates such as (experiment, task, strategy, repeat): never from order."""
    text = "\0".join(map(_coordinate, coordinates))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def _coordinate(value: int | str) -> str:
    """Text that tells 1 from "1", and is the same for Python's and numpy's integers."""
    return f"int:{int(value)}" if isinstance(value, Integral) else f"str:{value}"
