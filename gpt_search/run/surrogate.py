"""A model of a table that lacks routes: random forests, which answer for every route of the space.

The forests' mean is the truth of the surrogate's landscape; noise is drawn from the recorded rounds' residuals. So what
strategies are compared on is known exactly, and is not the compiler: the out-of-bag errors say how far off it is.

Sources: Eggensperger et al., "Efficient benchmarking of hyperparameter optimizers via surrogates", AAAI 2015; Breiman,
"Random forests", Machine Learning 45 (2001) 5-32 (out-of-bag estimates).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes
from gpt_search.store.tables import Table

Floats = NDArray[np.float64]

TREES = 100
FEWEST = 30
"""Feasible routes that a surrogate is fitted to at least."""
ENUMERATED = 1 << 16
"""Routes of a space up to which all are asked, so that its best is known."""
_POOL = 400


class Guess(NamedTuple):
    """What the model says of a route. failed_in: the phase, None where it is OK. round_s: seconds of one round."""

    outcome: Outcome
    failed_in: Phase | None
    log_ratio: float
    violation: float | None
    build_s: float
    gate_s: float
    round_s: float


class Surrogate:
    """Forests fitted to a table.

    residuals: recorded sections around their record's centre, float64, what a trial's rounds are drawn from.
    quality: how well it predicts routes that it was not fitted to, in words. best: the smallest log-ratio that it
    gives, of all routes where `enumerated`, else of the recorded ones.
    """

    def __init__(self, table: Table, timing_cost: Callable[[int, int], float]) -> None:
        """timing_cost(record, rounds): seconds. Raises InputError for a table with too few feasible routes."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        self.space, self._table = table.space, table
        truth = np.array([self._all(table, row) for row in range(len(table))])
        known = np.isfinite(truth)
        if known.sum() < FEWEST:
            raise InputError(
                f"{table.path} has {int(known.sum())} feasible routes; a surrogate is fitted to {FEWEST} or more: "
                "record more routes, or declare another policy"
            )
        x, state = self._features(table.codes), {"n_estimators": TREES, "random_state": 0}
        self._ratio = RandomForestRegressor(oob_score=True, min_samples_leaf=2, **state).fit(x[known], truth[known])
        guessed = self._ratio.oob_prediction_
        spread = float(truth[known].var())
        error = float(np.sqrt(np.mean((guessed - truth[known]) ** 2)))
        explained = 1 - error**2 / spread if spread > 0 else math.nan
        # The default is the reference by definition; the forest is moved to agree with that.
        self._shift = float(_mean(self._ratio, self._features(table.space.default[None]))[0, 0])
        first = table.first
        kind = [self._class(table, int(r)) for r in first]
        self._kinds = sorted(set(kind))
        labels = np.array([self._kinds.index(k) for k in kind])
        self._outcome, wrong = None, 0.0
        if len(self._kinds) > 1:
            self._outcome = RandomForestClassifier(oob_score=True, **state).fit(x, labels)
            wrong = 1 - float(self._outcome.oob_score_)
        self.quality = (
            f"out of bag: {100 * error:.2g} % error of a log-ratio, R2 {explained:.2f}, "
            f"{100 * wrong:.2g} % of the outcomes wrong"
        )
        builds = np.array([table.columns.cost.get("build", np.zeros(len(table.row)))[r] for r in first])
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(np.maximum(builds, 1e-6))
        built = np.isfinite(logs)
        self._build = RandomForestRegressor(**state).fit(x[built], logs[built])
        gate = table.columns.cost.get("gate", np.zeros(1))
        self._gate_s = float(np.nanmedian(gate)) if np.isfinite(gate).any() else 0.0
        timed = [int(r) for r in np.flatnonzero(np.diff(table.columns.start) > 0)]
        counts = [len(table.all_rounds(r)) for r in timed]
        self._round_s = float(np.median([timing_cost(r, n) / n for r, n in zip(timed, counts, strict=True)]))
        self.residuals = self._residuals(timed)
        violation = table.columns.violation
        inside, outside = violation[violation < 0], violation[(violation >= 0) & np.isfinite(violation)]
        self._inside = float(np.median(inside)) if inside.size else None
        self._outside = float(np.median(outside)) if outside.size else math.inf
        self._seen: dict[bytes, Guess] = {}
        self.enumerated = self.space.size <= ENUMERATED
        if self.enumerated:
            grid = np.unravel_index(np.arange(self.space.size), self.space.cardinalities.astype(int))
            candidates = np.stack(grid, axis=1).astype(np.int16)
        else:
            candidates = table.codes
        found = self.true_log_ratio(candidates)
        self.best = float(np.nanmin(found)) if np.isfinite(found).any() else 0.0

    @staticmethod
    def _all(table: Table, row: int) -> float:
        """The log-ratio of a route by all of its rounds: no half is kept back, for the model is the truth."""
        if any(table.outcome(r) is not Outcome.OK for r in table.records(row)):
            return math.nan
        return float(np.mean([table.estimate(table.all_rounds(r)).log_ratio for r in table.timed(row)]))

    @staticmethod
    def _class(table: Table, record: int) -> tuple[int, int]:
        """Outcome and phase, as numbers; the phase 0 where nothing failed."""
        outcome = table.outcome(record)
        if outcome in (Outcome.OK, Outcome.ACCURACY):
            return int(outcome), 0
        return int(outcome), int(table.failed_in(record))

    def _features(self, codes: Codes) -> Floats:
        """One column per value of a knob with more than two: its values have no order."""
        columns = []
        for i, values in enumerate(self.space.values):
            if len(values) == 2:
                columns.append(codes[:, i] == 1)
            else:
                columns += [codes[:, i] == code for code in range(len(values))]
        return np.stack(columns, axis=1).astype(np.float64)

    def _residuals(self, timed: list[int]) -> Floats:
        """Residuals of as many records as fill the pool, thinned evenly over it."""
        found = []
        for record in timed:
            rounds = self._table.all_rounds(record)
            found.append(rounds - self._table.estimate(rounds).log_ratio)
        pool = np.concatenate(found)
        thinned: Floats = pool[np.linspace(0, len(pool) - 1, min(_POOL, len(pool))).astype(int)]
        return thinned

    def _kinds_of(self, codes: Codes) -> list[tuple[int, int]]:
        if self._outcome is None:
            return [self._kinds[0]] * len(codes)
        kinds = [self._kinds[int(k)] for k in _mean(self._outcome, self._features(codes)).argmax(1)]
        default = (codes == self.space.default).all(1)
        return [(int(Outcome.OK), 0) if d else k for k, d in zip(kinds, default, strict=True)]

    def true_log_ratio(self, codes: Codes) -> Floats:
        """The model's log-ratio of routes, float64 (n,), NaN where it says infeasible. codes: int16 (n, d)."""
        if not len(codes):
            return np.empty(0)
        found: Floats = _mean(self._ratio, self._features(codes))[:, 0] - self._shift
        found[[kind != (int(Outcome.OK), 0) for kind in self._kinds_of(codes)]] = np.nan
        return found

    def predict(self, codes: Codes) -> Guess:
        """What the model says of one route. codes: int16 (d,)."""
        key = codes.tobytes()
        if key not in self._seen:
            number, phase = self._kinds_of(codes[None])[0]
            outcome = list(Outcome)[number]
            x = self._features(codes[None])
            self._seen[key] = Guess(
                outcome,
                list(Phase)[phase - 1] if phase else None,
                float(_mean(self._ratio, x)[0, 0]) - self._shift,
                self._outside if outcome is Outcome.ACCURACY else self._inside,
                math.exp(float(_mean(self._build, x)[0, 0])),
                self._gate_s,
                self._round_s,
            )
        return self._seen[key]


def _mean(forest: Any, x: Floats) -> Floats:
    """The mean over the trees of what they say of each row: (n, 1), or (n, classes).

    What `forest.predict` does, without the checks and threads that take most of its time for one row.
    """
    rows = np.ascontiguousarray(x, np.float32)
    total = sum(tree.tree_.predict(rows).reshape(len(rows), -1) for tree in forest.estimators_)
    found: Floats = np.asarray(total, np.float64) / len(forest.estimators_)
    return found
