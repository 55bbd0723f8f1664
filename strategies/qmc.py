"""Low-discrepancy search: Sobol' points over the knobs, so that every knob and every pair is covered evenly.

Point i of a scrambled Sobol' sequence has a number u in [0, 1) for each knob; the knob's code is floor(u * number
of values). Among any 2^m consecutive points (from a multiple of 2^m) every value of a two-valued knob occurs
equally often. How pairs fare depends on the direction numbers: with those of Joe and Kuo, any two of 195 two-valued
knobs take each of their four combinations 128 times within the first 512 points (the tests check it). Among
fewer points some pairs always change together: 2^m points have room for 2^(m - 1) different balanced columns only.

With `mean`, the numbers are mapped to a few changes of the reference: each knob changes with the same
small probability, and, unlike in `sparse_random`, all knobs change almost equally often.

A point whose route was tried is passed over; when there are more than 64 such points per trial, the
route is drawn uniformly from the untried ones.

Good at: even coverage of single knobs and of pairs. Bad at: everything that needs learning; uniform points
change half of all knobs at once (see `random`).

Source: Sobol', "On the distribution of points in a cube and the approximate evaluation of integrals", USSR Comput.
Math. Math. Phys. 7, 1967; Joe and Kuo, "Constructing Sobol' sequences with better two-dimensional projections",
SIAM J. Sci. Comput. 30, 2008; Matousek, "On the L2-discrepancy for anchored boxes", J. Complexity 14, 1998 (linear
scrambling and digital shift); the implementation is `scipy.stats.qmc.Sobol`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Proposal, SearchSpace, Streams, uniform_untried, untried_routes

_BITS = 30  # 2^30 points before the sequence ends
_BLOCK = 256
_PASSED = 64


class Qmc:
    """Scrambled Sobol' points over the knobs, without repeats.

    mean: the mean number of changes to the reference; none for uniform points.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, mean: float | None = None) -> None:
        """Raises InputError unless mean is none or 1 <= mean < infinity."""
        if mean is not None and not 1 <= mean < float("inf"):
            raise InputError(f"mean is {mean}; the mean number of changes must be at least 1 and finite, or none")
        self.mean = mean
        # A cache: how far the points were walked for one history. All before `_next` are in it.
        self._history: History | None = None
        self._seed: object = None
        self._next = 0
        self._sobol: Any = None
        self._block: NDArray[np.int16] = np.empty((0, 0), np.int16)
        self._end = 0  # the number of points made; the block holds the last of them

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The first point whose route was not tried; None when every route was."""
        if not untried_routes(space, history):
            return None
        if history is not self._history or (type(streams.seed), streams.seed) != self._seed:
            from scipy.stats.qmc import Sobol  # takes a second to import: not when strategies are listed

            self._history, self._seed = history, (type(streams.seed), streams.seed)
            self._next = self._end = 0
            self._sobol = Sobol(len(space), scramble=True, bits=_BITS, rng=_copied(streams.trial(0, "scramble")))
        # A space that is nearly used up would be walked for ever: the limit depends on the history alone.
        limit = min(2**_BITS, _PASSED * history.next_trial)
        while self._next < limit:
            while self._next >= self._end:
                self._block = self._codes(space, self._sobol.random(_BLOCK))
                self._end += _BLOCK
            codes = self._block[self._next - self._end]
            if not history.contains(codes):
                return Proposal(codes)
            self._next += 1
        return Proposal(uniform_untried(space, history, streams.trial(history.next_trial)))

    def _codes(self, space: SearchSpace, u: NDArray[np.float64]) -> NDArray[np.int16]:
        """The routes of points in the unit cube, (n, d)."""
        counts = space.cardinalities.astype(np.int64)
        if self.mean is None:
            return (u * counts).astype(np.int16)
        share = min(1.0, self.mean / int((counts > 1).sum()))
        # Below `share` the knob changes, and where below says to which of its other values.
        other = 1 + np.minimum((u / share * (counts - 1)).astype(np.int64), np.maximum(counts - 2, 0))
        changed = (u < share) & (counts > 1)
        return np.where(changed, (space.default + other) % counts, space.default).astype(np.int16)


def _copied(rng: np.random.Generator) -> np.random.Generator:
    """A generator of its own: a stream's is valid until the next call only."""
    return np.random.default_rng(rng.integers(2**63, size=4))
