"""Random search: uniform over the space, without repeats.

Every trial draws from its own stream of random numbers until it meets a route that was not tried.
Once draws keep failing, the space is nearly exhausted: where it is small the route is drawn
uniformly from the list of untried ones; where it is large the order of the space is walked from a
random start. So the last untried route is always found.

Good at: a yardstick that no structure of the space can fool. Bad at: many knobs of which few
matter, with defaults that are already good: a uniform route changes half of all knobs at once,
and one bad change hides every good one (see `sparse_random`).

Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, Proposal, SearchSpace, Streams

_DRAWS = 64
_SMALL = 2**16


class Random:
    """Uniform over the space, without repeats."""

    exhaustive: ClassVar[bool] = True

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A route drawn uniformly from those that were not tried; None when there is none."""
        rng = streams.trial(history.next_trial)
        for _ in range(_DRAWS):
            codes = space.sample(rng)
            if not history.contains(codes):
                return Proposal(codes)
        if space.size <= _SMALL:
            return _drawn_from_untried(space, history, rng)
        return _walked_to(codes, space, history)


def _drawn_from_untried(space: SearchSpace, history: History, rng: np.random.Generator) -> Proposal | None:
    """Uniform over the untried routes of a small space, by listing them."""
    radix = np.append(np.cumprod(space.cardinalities[:0:-1], dtype=np.int64)[::-1], 1)[: len(space)]
    untried = np.ones(space.size, bool)
    untried[history.codes @ radix] = False
    untried[history.pending @ radix] = False
    left = np.flatnonzero(untried)
    return Proposal(space.codes_at(int(rng.choice(left)))) if left.size else None


def _walked_to(codes: NDArray[np.int16], space: SearchSpace, history: History) -> Proposal | None:
    """The first untried route after `codes` in the order of the space, which is seen as a ring."""
    codes = codes.copy()
    # One more step than there are tried routes cannot meet tried routes only, unless all are tried.
    for _ in range(min(len(history) + history.n_pending + 1, space.size)):
        if not history.contains(codes):
            return Proposal(codes)
        for knob in reversed(range(len(space))):
            codes[knob] = (codes[knob] + 1) % space.cardinalities[knob]
            if codes[knob]:
                break
    return None
