"""Optuna's multivariate TPE from a start near the reference.

The first `startup` trials are the reference with a few random changes, geometric with mean `changes`: where
hundreds of knobs hold some that fail, uniform routes fail nearly all, and teach TPE nothing. Then the
history is split into the best tenth (25 routes at most) and the rest, failures last. A kernel density over all knobs
at once is fitted to each; `candidates` routes are drawn from the density of the good ones, l, and the one with
the largest l/g is proposed. Pending routes count as bad ones, so that parallel builders spread out. Failures are shown
to it as broken constraints.

`tpe:startup=10,changes=0` is plain Optuna, whose start is uniform.

Good at: a yardstick that every user of Optuna knows; dozens of knobs, a few hundred trials. Bad at: hundreds of
knobs with few trials, where most of the good routes' values are there by chance; spaces in which many routes fail.

Source: Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter Optimization", NeurIPS
2011, section 4 (the idea); Falkner, Klein and Hutter, "BOHB", ICML 2018 (the joint density);
Watanabe, "Tree-Structured Parzen Estimator: Understanding Its Algorithm Components and Their Roles
for Better Empirical Performance", arXiv:2304.11127, 2023 (what each part contributes); "Optuna
Constrained Tree-Structured Parzen Estimator Is a Joint Density Generalization of c-TPE",
arXiv:2606.09889 (Optuna's constraints, by its documentation); the implementation is Optuna's
`TPESampler` (Akiba et al., "Optuna", KDD 2019).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, OptunaStrategy, Proposal, SearchSpace, Streams


class Tpe:
    """Optuna's multivariate TPE from a start near the reference, told of failures by a constraint.

    startup: trials before the model is used. changes: mean number of changes of each of them; 0 draws uniform
    routes. candidates: routes compared per proposal.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, startup: int = 20, changes: float = 6.0, candidates: int = 24) -> None:
        """Raises InputError unless startup >= 0, changes is 0 or at least 1, and candidates >= 1."""
        if startup < 0:
            raise InputError(f"startup is {startup}; the number of first trials must be 0 or more")
        if changes != 0 and not 1 <= changes < float("inf"):
            raise InputError(f"changes is {changes}; it must be 0 (uniform routes), or at least 1 and finite")
        if candidates < 1:
            raise InputError(f"candidates is {candidates}; at least 1 route must be drawn per proposal")
        self.startup, self.changes, self.candidates = startup, changes, candidates
        random = 0 if changes else startup  # Optuna's own start
        self._optuna = OptunaStrategy("TPESampler", n_startup_trials=random, n_ei_candidates=candidates)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A first trial near the reference, then the sampler's suggestion, or the nearest untried route.

        None when every route was tried.
        """
        if self.changes and history.next_trial <= self.startup:
            rng = streams.trial(history.next_trial)
            for _ in range(16):
                codes = self._near(space, rng)
                if not history.contains(codes):
                    return Proposal(codes)
        return self._optuna.propose(space, history, streams)

    def _near(self, space: SearchSpace, rng: np.random.Generator) -> NDArray[np.int16]:
        """The reference with a geometric number of changes."""
        knobs = rng.permutation((space.cardinalities > 1).nonzero()[0])[: rng.geometric(1.0 / self.changes)]
        counts = space.cardinalities[knobs].astype(np.int32)
        codes = space.default.copy()
        codes[knobs] = (codes[knobs] + 1 + (rng.random(len(knobs)) * (counts - 1)).astype(np.int32)) % counts
        return codes
