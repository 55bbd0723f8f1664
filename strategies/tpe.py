"""Optuna's multivariate TPE: two densities, of the good routes and of the rest, and the route where they differ most.

After `startup` random trials the history is split into the best tenth (25 routes at most) and the
rest, failures last. A kernel density over all knobs at once is fitted to each; `candidates` routes
are drawn from the density of the good ones, l, and the one with the largest l/g is proposed.
Pending routes count as bad ones, so that parallel builders spread out.

Good at: a yardstick that every user of Optuna knows; dozens of knobs, a few hundred trials. Bad at:
hundreds of knobs with few trials, where most of the good routes' values are there by chance.

Source: Bergstra, Bardenet, Bengio and Kegl, "Algorithms for Hyper-Parameter Optimization", NeurIPS
2011, section 4 (the idea); Falkner, Klein and Hutter, "BOHB", ICML 2018 (the joint density);
Watanabe, "Tree-Structured Parzen Estimator: Understanding Its Algorithm Components and Their Roles
for Better Empirical Performance", arXiv:2304.11127, 2023 (what each part contributes); the
implementation is Optuna's `TPESampler` (Akiba et al., "Optuna", KDD 2019).
"""

from __future__ import annotations

from typing import ClassVar

from gpt_search import History, InputError, OptunaStrategy, Proposal, SearchSpace, Streams


class Tpe:
    """Optuna's multivariate TPE, told of failures by a constraint.

    startup: random trials before the model is used. candidates: routes compared per proposal.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, startup: int = 10, candidates: int = 24) -> None:
        """Raises InputError unless startup >= 0 and candidates >= 1."""
        if startup < 0:
            raise InputError(f"startup is {startup}; the number of random trials must be 0 or more")
        if candidates < 1:
            raise InputError(f"candidates is {candidates}; at least 1 route must be drawn per proposal")
        self.startup = startup
        self.candidates = candidates
        self._optuna = OptunaStrategy("TPESampler", n_startup_trials=startup, n_ei_candidates=candidates)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The sampler's suggestion, or the nearest untried route; None when every route was tried."""
        return self._optuna.propose(space, history, streams)
