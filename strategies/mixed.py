"""Single changes first, then every combination of the knobs that gained, in trtexec's order.

Phase 1 is trtexec's `fast`: the reference, then one change at a time, knobs from last to first,
values in listed order. Phase 2 is the full product, the last knob fastest, over the knobs with at
least one change that was faster than the reference: all their listed values, every other knob at
its default. Phase 2 takes place only if more than one change gained.

What differs from trtexec, on purpose:
- A failed route (an accuracy failure included) is never a gain, however fast it was.
- trtexec measures routes of phase 1 again when it meets them in phase 2. Here a route that was
  tried is skipped, so a study takes fewer trials than `count` says; the order of the rest is kept.
- Which knobs gained is worked out from the first trial of each single change, so a study that is
  resumed inside phase 2 goes on where it stopped. trtexec, resumed, knows neither the gains of before nor
  the reference's time, and makes no phase 2.

Good at: few, strong, roughly additive gains. Bad at: many knobs with noise, where chance alone
makes half of the neutral knobs "gain" and phase 2 explodes; `margin` is the counter-measure, and
`margin=auto` sets it by the measured noise.

Source: trtexec's tuner, searching algorithm `mixed` (TensorRT 11.1, Global Performance Tuner); phase 2 is
`buildMixedPhase2Context` in its samples/common/sampleTuning.cpp, over all knobs that gained: the limit of ten in
sampleTuning.h is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Outcome, Proposal, SearchSpace, Streams

AUTO_DEVIATIONS = 3.0
"""`margin=auto`, in standard deviations of one value: a neutral change then gains with a chance of 0.13 %."""


class Mixed:
    """Single changes, then the full product over the knobs that gained (trtexec's `mixed`).

    margin: a change counts as a gain only if its latency is below (1 - margin) times that of the
    reference; 0 is trtexec's rule. "auto" is `AUTO_DEVIATIONS` times `history.noise`, the relative standard
    deviation of one value, which every live study knows; `propose` raises InputError without it.
    """

    def __init__(self, margin: float | Literal["auto"] = 0.0) -> None:
        """Raises InputError unless 0 <= margin < 1 or margin is "auto"."""
        if margin != "auto" and not (isinstance(margin, int | float) and 0 <= margin < 1):
            raise InputError(
                f"margin is {margin}; it must be at least 0 and below 1, as in margin=0.02 for 2 %, or auto"
            )
        self.margin = margin
        # A cache: how far the order was walked for one history. All routes before `_next` are in it.
        self._history: History | None = None
        self._in_phase_2 = False
        self._ahead: Iterator[NDArray[np.int16]] = iter(())
        self._next: NDArray[np.int16] | None = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The next untried route of phase 1, then of phase 2. `streams` is not used.

        None while phase 2 waits for pending trials of phase 1, and after the last route.
        """
        self.margin_for(history)  # an error comes at once, not after phase 1
        if history is not self._history:
            self._history, self._in_phase_2 = history, False
            self._ahead = self.routes(space)
            self._next = next(self._ahead, None)
        while True:
            while self._next is not None and history.contains(self._next):
                self._next = next(self._ahead, None)
            if self._next is not None:
                return Proposal(self._next)
            if self._in_phase_2:
                return None
            gains = self.gains(space, history)
            if gains is None:
                return None
            self._in_phase_2 = True
            self._ahead = _combinations(space, gains)
            self._next = next(self._ahead, None)

    def margin_for(self, history: History) -> float:
        """The margin as a number; with margin=auto 1, which no change reaches, is the most."""
        if self.margin != "auto":
            return self.margin
        if history.noise is None:
            raise InputError(
                "margin=auto needs the noise of a value, and none was measured here; give a number, as in margin=0.02, "
                "or tell the noise: simulate(..., noise=0.01)"
            )
        return min(1.0, AUTO_DEVIATIONS * history.noise)

    def gains(self, space: SearchSpace, history: History) -> list[tuple[int, int]] | None:
        """The changes (knob, code) that were faster than the reference; None before phase 1 has finished."""
        if not len(history):
            return None
        found = []
        limit = history.value[history.reference] * (1.0 - self.margin_for(history))
        for codes in self.routes(space):
            rows = history.rows_of(codes)
            if not rows:
                return None
            # The first trial of the route decides: whatever came later must not change phase 2.
            row = min(rows, key=lambda r: int(history.trial[r]))
            changed = np.flatnonzero(codes != space.default)
            if changed.size and history.outcome[row] == Outcome.OK and history.value[row] < limit:
                found.append((int(changed[0]), int(codes[changed[0]])))
        return found

    def routes(self, space: SearchSpace) -> Iterator[NDArray[np.int16]]:
        """Code vectors of phase 1, int16 (d,), lazily and in trtexec's exact order, the reference first."""
        yield space.default.copy()
        default, listed = space.default.tolist(), space.listed.tolist()
        for knob in reversed(range(len(space))):
            for code in range(listed[knob]):
                if code != default[knob]:
                    codes = space.default.copy()
                    codes[knob] = code
                    yield codes

    def count(self, space: SearchSpace, history: History | None = None) -> int | None:
        """The number of routes of both phases as trtexec counts them; None before phase 1 has finished."""
        gains = None if history is None else self.gains(space, history)
        if gains is None:
            return None
        second = prod(int(space.listed[knob]) for knob in _knobs(gains)) if len(gains) > 1 else 0
        return self.count_phase_1(space) + second

    def count_phase_1(self, space: SearchSpace) -> int:
        """The number of routes of phase 1 as trtexec counts it, the reference included."""
        return 1 + sum(
            listed - (default < listed)  # under strict trtexec grammar the default may not be listed
            for listed, default in zip(map(int, space.listed), map(int, space.default), strict=True)
        )


def _knobs(gains: list[tuple[int, int]]) -> list[int]:
    """The knobs that gained, in the order of the space."""
    return sorted({knob for knob, _ in gains})


def _combinations(space: SearchSpace, gains: list[tuple[int, int]]) -> Iterator[NDArray[np.int16]]:
    """Code vectors of phase 2, lazily: the product over the knobs that gained, the last one fastest."""
    if len(gains) < 2:
        return
    knobs = _knobs(gains)
    for values in product(*(range(int(space.listed[knob])) for knob in knobs)):
        codes = space.default.copy()
        codes[knobs] = values
        yield codes
