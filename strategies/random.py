"""Random search: uniform over the space, without repeats.

Every trial draws from its own stream of random numbers until it meets a route that was not tried.
Once draws keep failing, the space is nearly exhausted, and the route is drawn uniformly from the
untried ones by their numbers. So the last untried route is always found.

Good at: a yardstick that no structure of the space can fool. Bad at: many knobs of which few
matter, with defaults that are already good: a uniform route changes half of all knobs at once,
and one bad change hides every good one (see `sparse_random`).

Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012.
"""

from __future__ import annotations

from typing import ClassVar

from gpt_search import History, Proposal, SearchSpace, Streams, uniform_untried, untried_routes

_DRAWS = 64


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
        return Proposal(uniform_untried(space, history, rng)) if untried_routes(space, history) else None
