"""Sparse random search: a few random changes to the reference, without repeats.

The number of changes is geometric (1, 2, 3, ... with the given mean, cut at the number of knobs
that can change); the knobs are drawn uniformly without replacement, and each takes one of its
other values uniformly. Once draws keep failing, the nearest neighbourhood of the reference is
used up: in a small space the route is then drawn from the untried ones with the fewest changes, in
a large one uniformly from all untried ones. Every route is found in the end.

Good at: compilers whose defaults are good already, so that most changes harm and a few help; and
as the yardstick that a cleverer strategy has to beat. Bad at: optima far from the reference.

Source: random search (Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR
13, 2012) with the uniform distribution replaced by one that is centred on the reference.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Proposal, SearchSpace, Streams, uniform_untried, untried_routes

_DRAWS = 64
_SMALL = 2**16


class SparseRandom:
    """A few random changes to the reference, without repeats.

    mean: the mean number of changes.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, mean: float = 3.0) -> None:
        """Raises InputError unless 1 <= mean < infinity."""
        if not 1 <= mean < float("inf"):
            raise InputError(f"mean is {mean}; the mean number of changes must be at least 1 and finite")
        self.mean = mean

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """An untried route with few changes; None when every route was tried."""
        knobs = (space.cardinalities > 1).nonzero()[0]
        if not knobs.size:
            return None  # the reference is the only route, and it was tried
        rng = streams.trial(history.next_trial)
        for _ in range(_DRAWS):
            codes = _draw(space, knobs, self.mean, rng)
            if not history.contains(codes):
                return Proposal(codes)
        if not untried_routes(space, history):
            return None
        if space.size <= _SMALL:
            return Proposal(_with_fewest_changes(space, history, rng))
        return Proposal(uniform_untried(space, history, rng))


def _draw(space: SearchSpace, knobs: NDArray[np.intp], mean: float, rng: np.random.Generator) -> NDArray[np.int16]:
    """The reference with a geometric number of changes; never the reference itself."""
    changes = min(int(rng.geometric(1.0 / mean)), knobs.size)
    # The places of the smallest of uniform numbers are a uniform subset: 5 x faster than rng.choice.
    chosen = knobs[rng.random(knobs.size).argpartition(changes - 1)[:changes]]
    counts = space.cardinalities[chosen].astype(np.int32)  # int16 could overflow in the sum below
    shift = 1 + (rng.random(changes) * (counts - 1)).astype(np.int32)
    codes = space.default.copy()
    codes[chosen] = (codes[chosen] + shift) % counts
    return codes


def _with_fewest_changes(space: SearchSpace, history: History, rng: np.random.Generator) -> NDArray[np.int16]:
    """Uniform over the untried routes with the fewest changes, by listing a small space."""
    radix = np.append(np.cumprod(space.cardinalities[:0:-1], dtype=np.int64)[::-1], 1)[: len(space)]
    untried = np.ones(space.size, bool)
    untried[history.codes @ radix] = False
    untried[history.pending @ radix] = False
    codes = (np.flatnonzero(untried)[:, None] // radix % space.cardinalities).astype(np.int16)
    changes = (codes != space.default).sum(axis=1)
    found: NDArray[np.int16] = codes[rng.choice(np.flatnonzero(changes == changes.min()))]
    return found
