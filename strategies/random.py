"""Random search: uniform over the space, without repeats.

Every trial draws from its own stream of random numbers until it meets a route that was not tried.
Once draws keep failing, the space is nearly exhausted, and the route is drawn uniformly from the
untried ones by their numbers. So the last untried route is always found.

`keep` is the chance that a knob stays at its default in a draw, whatever the others do: 0 is uniform,
0.9 changes about a twentieth of the knobs that have two values.

Good at: a yardstick that no structure of the space can fool. Bad at: many knobs of which few
matter, with defaults that are already good: a uniform route changes half of all knobs at once,
and one bad change hides every good one (see `keep`, and `sparse_random`).

Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from gpt_search import History, InputError, Proposal, SearchSpace, Streams, uniform_untried, untried_routes

_DRAWS = 64


class Random:
    """Uniform over the space, without repeats.

    keep: probability that a knob keeps its default, before a value is drawn for it.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, keep: float = 0.0) -> None:
        """Raises InputError unless 0 <= keep < 1."""
        if not 0 <= keep < 1:
            raise InputError(f"keep is {keep}; it is a probability, at least 0 and below 1")
        self.keep = keep

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A route drawn uniformly from those that were not tried; None when there is none."""
        rng = streams.trial(history.next_trial)
        for _ in range(_DRAWS):
            codes = space.sample(rng)
            if self.keep:
                codes = np.where(rng.random(len(space)) < self.keep, space.default, codes)
            if not history.contains(codes):
                return Proposal(codes)
        return Proposal(uniform_untried(space, history, rng)) if untried_routes(space, history) else None
