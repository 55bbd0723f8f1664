"""Random-forest surrogate with expected improvement and local search over candidates: SMAC's way.

A forest of ten trees is fitted to the logarithm of the latency. Each leaf has a mean and a variance;
over the trees they give a mean and a variance for every route. The next route is the one with the
largest expected improvement over the best mean of a tried route, times the chance that it works
(`FailureCauses`), found by climbing from the best tried routes, one change at a time. Every fourth
trial is exploration instead: the best route with a group of values that were in no working route yet,
as large as will work with the chance `works`; the first `startup` trials carry such groups too.

The forest is fitted anew after every eighth working row, on the rows that there were then: that is
the same in a resumed study. Pending routes are not proposed again, and count as routes of their
predicted mean do: they raise nothing.

Good at: effects of several knobs together, knobs with many values, numbers of trials in the hundreds.
Bad at: many small additive effects, of which a tree of few leaves sees only the largest.

Source: Hutter, Hoos and Leyton-Brown, "Sequential Model-Based Optimization for General Algorithm
Configuration" (SMAC), LION 5, 2011, section 4: forest of ten trees over categorical knobs, log
responses, expected improvement, multi-start local search, other routes in between (SMAC's are random). The
improvement is that of the log-latency: Jones, Schonlau and Welch, JGO 13, 1998, eq. 15; SMAC's, in section 4.3, is
that of the latency itself. Mean and variance over trees: Hutter, Xu, Hoos and Leyton-Brown, "Algorithm runtime
prediction: Methods & evaluation", AIJ 206, 2014, section 4.3.2; SMAC leaves the variance within the leaves out. The
trees are scikit-learn's.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.tree import DecisionTreeRegressor

from gpt_search import FailureCauses, History, InputError, Proposal, SearchSpace, Streams, uniform_untried
from gpt_search import untried_routes as untried

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_REFIT = 8
_CLIMBS = 4  # tried routes that candidates climb from
_STEPS = 4
_FLOOR = 1e-5  # of a leaf's standard deviation, in log-latency
_PAIR_RISK = 0.25


class Forest:
    """Random forest on log-latency, expected improvement, local search; failures lower the improvement.

    trees: of the forest. startup: trials before the model is used. works: chance that a group of
    untried values is meant to work with. explore: every so many trials go to such a group.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, trees: int = 10, startup: int = 16, works: float = 0.6, explore: int = 4) -> None:
        """Raises InputError unless trees >= 2, startup >= 1, 0 < works < 1 and explore >= 1."""
        if trees < 2:
            raise InputError(f"trees is {trees}; a variance over trees needs at least 2")
        if startup < 1:
            raise InputError(f"startup is {startup}; at least 1 trial comes before the model")
        if not 0 < works < 1:
            raise InputError(f"works is {works}; the chance that a group works must be above 0 and below 1")
        if explore < 1:
            raise InputError(f"explore is {explore}; every 1 or more trials are spent on groups of untried values")
        self.trees, self.startup, self.works, self.explore = trees, startup, works, explore
        # A cache: the forest that belongs to so many working rows of one history.
        self._history: History | None = None
        self._seed: int | str | None = None
        self._fitted = 0
        self._forest: list[tuple[Any, Floats, Floats]] = []

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The candidate with the largest expected improvement that will work; None when every route was tried."""
        if not untried(space, history):
            return None
        trial = history.next_trial
        rng = streams.trial(trial)
        causes = FailureCauses(space, history)
        rows = np.flatnonzero(history.feasible)
        if trial > self.startup and trial % self.explore and len(rows) >= 2:
            found = self._climb(causes, history, rows, streams, rng)
            if found is not None:
                return Proposal(found)
        best = self._best_rows(causes, history, rows, streams, 1) if trial > self.startup else rows[:1]
        base = causes.indicators(history.codes[best])[0] if len(best) else np.zeros(len(causes.knob), bool)
        for _ in range(8):
            codes = causes.codes_of(self._with_group(causes, base, history, rng))
            if not history.contains(codes):
                return Proposal(codes)
        return Proposal(uniform_untried(space, history, rng))

    # -- the model ------------------------------------------------------------------------------
    def _fit(self, causes: FailureCauses, history: History, rows: NDArray[np.intp], streams: Streams) -> None:
        """Brings the forest up to the last multiple of `_REFIT` working rows."""
        wanted = max(min(len(rows), 2), len(rows) - len(rows) % _REFIT)
        if self._history is history and self._seed == streams.seed and self._fitted == wanted:
            return
        self._history, self._seed, self._fitted = history, streams.seed, wanted
        rows = rows[:wanted]
        held = causes.indicators(history.codes[rows]).astype(np.float32)
        y = np.log(history.value[rows])
        rng = streams.trial(wanted, "forest")
        self._forest = []
        for _ in range(self.trees):
            picked = rng.integers(wanted, size=wanted)  # the bootstrap: Breiman, Machine Learning 45, 2001
            tree = DecisionTreeRegressor(
                min_samples_split=6,
                max_features=5 / 6,  # of the columns at each split: SMAC's choice
                random_state=int(rng.integers(2**31)),
            )
            tree.fit(held[picked], y[picked])
            self._forest.append(
                (tree.tree_, tree.tree_.value[:, 0, 0].copy(), np.maximum(tree.tree_.impurity, _FLOOR**2))
            )

    def _predict(self, held: Bools) -> tuple[Floats, Floats]:
        """Mean and standard deviation of log-latency, (n,) each: the law of total variance over the trees."""
        x = held.astype(np.float32)
        means, variances = np.empty((2, len(self._forest), len(x)))
        for i, (tree, mean, variance) in enumerate(self._forest):
            leaf = tree.apply(x)
            means[i], variances[i] = mean[leaf], variance[leaf]
        sd: Floats = np.sqrt(means.var(0) + variances.mean(0))
        return means.mean(0), sd

    def _best_rows(
        self, causes: FailureCauses, history: History, rows: NDArray[np.intp], streams: Streams, k: int
    ) -> NDArray[np.intp]:
        """The k working rows with the smallest predicted mean: less noisy than their values."""
        if len(rows) < 2:
            return rows[:k]
        self._fit(causes, history, rows, streams)
        mean, _ = self._predict(causes.indicators(history.codes[rows]))
        return rows[np.lexsort((rows, mean))[:k]]

    # -- candidates -----------------------------------------------------------------------------
    def _climb(
        self,
        causes: FailureCauses,
        history: History,
        rows: NDArray[np.intp],
        streams: Streams,
        rng: np.random.Generator,
    ) -> NDArray[np.int16] | None:
        """Local search for the expected improvement from the best tried routes; the best untried one that was met."""
        starts = self._best_rows(causes, history, rows, streams, _CLIMBS)
        here = causes.indicators(history.codes[starts])
        best = float(self._predict(here)[0].min())
        safe = np.flatnonzero(causes.alone < 0.5)
        if not safe.size:
            return None
        found: NDArray[np.int16] | None = None
        most = -math.inf
        for _ in range(_STEPS):
            around = np.repeat(here, safe.size, axis=0)
            moved = np.tile(safe, len(here))
            line = np.arange(len(around))
            on = ~around[line, moved]
            # A knob has one value: switching one on switches its others off.
            around &= ~(causes.knob[None, :] == causes.knob[moved][:, None])
            around[line, moved] = on
            score = self._improvement(causes, around, best) * (1 + 1e-6 * rng.random(len(around)))
            for i in np.argsort(-score, kind="stable")[:64].tolist():
                if score[i] <= most:
                    break
                codes = causes.codes_of(around[i])
                if not history.contains(codes):
                    found, most = codes, float(score[i])
                    break
            here = around[score.reshape(len(here), -1).argmax(1) + safe.size * np.arange(len(here))]
        return found

    def _improvement(self, causes: FailureCauses, held: Bools, best: float) -> Floats:
        """Expected improvement in log-latency times the chance to work (n,)."""
        mean, sd = self._predict(held)
        z = (best - mean) / sd
        gain = sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))
        x = held.astype(np.float32)
        alone = np.log1p(-np.minimum(causes.alone, 0.999)).astype(np.float32)
        pair = np.log1p(-np.minimum(causes.pair, 0.999)).astype(np.float32)
        works: Floats = np.exp(x @ alone + 0.5 * ((x @ pair) * x).sum(1)).astype(np.float64)
        score: Floats = gain * works
        return score

    def _with_group(self, causes: FailureCauses, base: Bools, history: History, rng: np.random.Generator) -> Bools:
        """The base with a group of untried values; with a few random safe changes when there is none."""
        m = len(causes.knob)
        waiting = np.any(causes.indicators(history.pending), axis=0)
        group = causes.group(self.works, rng.random(m), waiting)
        if not len(group):
            safe = np.flatnonzero(causes.alone < 0.5)
            group = rng.permutation(safe)[: min(len(safe), int(rng.geometric(1 / 3)))]
            group = group[np.unique(causes.knob[group], return_index=True)[1]]
            base = base.copy()
            off = group[base[group]]
            group = group[~base[group]]
            base[off] = False
        chosen = base & ~np.isin(causes.knob, causes.knob[group])
        chosen[group] = True
        worth = np.full(m, 0.01)
        worth[base] = 0.03
        return causes.without_risky_pairs(chosen, worth, _PAIR_RISK)
