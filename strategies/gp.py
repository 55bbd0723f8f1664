"""Gaussian process on a screened subset of the knobs: additive over all values, free-form over the few that matter.

The covariance of two routes is a sum: a linear kernel over all values, which is Bayesian linear regression
with one variance for every effect, and over the screened values one that falls exponentially with the
Hamming distance, which follows interactions of any order. Screening is by the linear part alone: the
`active` values whose posterior effect is largest in standard deviations. A process over
195 free-form knobs learns nothing from some hundred routes; this one searches a space of few.

The next route maximises expected improvement over the best posterior mean of a tried route, times the
chance that it works (`FailureCauses`), by climbing over changes of screened values and as many drawn ones. Every
third trial screens on: the best route with a group of values that were in no working route yet
or, when there is none, with a random half of the values that are safe and not screened. Scales come from the
marginal likelihood on a small grid, by the errors of the rows.

Good at: interactions of several knobs, few trials; few knobs, and hundreds of which few matter. Bad at: speed,
thousands of trials (cost grows with the cube of the working rows; the best and latest `rows` are used), spaces in which
many routes fail.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006: prediction (eqs.
2.25 and 2.26), marginal likelihood (eq. 2.30), constant (section 2.7), linear kernel (section 4.2.2). Hamming kernel
over categories: Hutter, "Automated Configuration of Algorithms for Solving Hard Computational Problems", PhD thesis,
UBC 2009. Additive and free parts: Duvenaud, Nickisch and Rasmussen, "Additive Gaussian Processes", NeurIPS 2011.
Screening before the fit: Fan and Lv, "Sure independence screening for ultrahigh dimensional feature space",
JRSS B 70, 2008, by marginal correlations there, by the joint linear part here. Expected improvement: Jones, Schonlau
and Welch, JGO 13, 1998, eq. 15.
"""

from __future__ import annotations

import math
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import ndtr

from gpt_search import (
    FailureCauses,
    History,
    InputError,
    Outcome,
    Proposal,
    SearchSpace,
    Streams,
    uniform_untried,
    untried_routes,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_DRAWS = 12
_NOISE = 0.01
_CLIMBS, _STEPS = 4, 6
_PAIR_RISK = 0.25
_LINEAR = (0.003, 0.01, 0.03)  # standard deviation of one effect
_FREE = (0.0, 0.01, 0.04)  # standard deviation of the free-form part
_LENGTH = (2.0, 6.0)  # changes over which the free-form part forgets


class _Process(NamedTuple):
    """The fitted process: its data, scales, and what predictions need. held: bool (n, m)."""

    held: Floats
    screened: NDArray[np.intp]
    linear: float
    free: float
    length: float
    factor: tuple[Floats, bool]
    solved: Floats
    centre: float

    def predict(self, held: Bools) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log-latency without noise, (k,) each: eqs. 2.25 and 2.26."""
        x = held.astype(np.float64)
        cross = _kernel(x, self.held, self.screened, self.linear, self.free, self.length)
        mean = self.centre + cross @ self.solved
        prior = self.linear**2 * (1 + x.sum(1)) + self.free**2
        half = solve_triangular(self.factor[0], cross.T, lower=True, check_finite=False)
        return mean, np.sqrt(np.maximum(prior - (half**2).sum(0), 1e-12))


class Gp:
    """Gaussian process on the values that a linear screening keeps, expected improvement, local search.

    active: values kept by the screening. startup: trials before the model is used. works: chance that a group
    of untried values is meant to work with. rows: working rows that are used, at most.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, active: int = 16, startup: int = 12, works: float = 0.6, rows: int = 500) -> None:
        """Raises InputError unless active >= 1, startup >= 1, 0 < works < 1 and rows >= 10."""
        if active < 1:
            raise InputError(f"active is {active}; the screening must keep at least 1 value")
        if startup < 1:
            raise InputError(f"startup is {startup}; at least 1 trial comes before the model")
        if not 0 < works < 1:
            raise InputError(f"works is {works}; the chance that a group works must be above 0 and below 1")
        if rows < 10:
            raise InputError(f"rows is {rows}; the model needs 10 working rows or more")
        self.active, self.startup, self.works, self.rows = active, startup, works, rows

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The candidate with the largest expected improvement that will work; None when every route was tried."""
        if not untried_routes(space, history):
            return None
        trial = history.next_trial
        rng = streams.trial(trial)
        causes = FailureCauses(space, history)
        process = self._fitted(causes, history) if trial > self.startup else None
        base = np.zeros(len(causes.knob), bool)
        if process is not None:
            means, _ = process.predict(process.held > 0)
            base = process.held[int(np.argmin(means))] > 0
            if trial % 3:
                codes = self._climb(causes, history, process, means, rng)
                if codes is not None:
                    return Proposal(codes)
        for attempt in range(_DRAWS):
            codes = causes.codes_of(self._screen_on(causes, history, process, base, attempt, rng))
            if not history.contains(codes):
                return Proposal(codes)
        return Proposal(uniform_untried(space, history, rng))

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """Rows of the k routes that never failed with the smallest posterior mean, best first."""
        bad = np.bincount(history.route, history.outcome != Outcome.OK, history.n_routes) > 0
        rows = np.flatnonzero(history.feasible & ~bad[history.route])
        rows = rows[np.unique(history.route[rows], return_index=True)[1]]
        causes = FailureCauses(history.space, history)
        process = self._fitted(causes, history)
        expected = history.value[rows]
        if process is not None and len(rows):
            expected = process.predict(causes.indicators(history.codes[rows]))[0]
        return [int(row) for row in rows[np.lexsort((rows, np.round(expected, 9)))[:k]]]

    # -- the model ------------------------------------------------------------------------------
    def _fitted(self, causes: FailureCauses, history: History) -> _Process | None:
        """Screening by the linear part, then the scales with the largest marginal likelihood; None without data."""
        rows = np.flatnonzero(history.feasible)
        if len(rows) > self.rows:
            # The fastest half of the budget, and the latest of the others.
            ranked = rows[np.argsort(history.value[rows], kind="stable")]
            rows = np.union1d(ranked[: self.rows // 2], np.sort(ranked[self.rows // 2 :])[-(self.rows // 2) :])
        if len(rows) < 4 or not len(causes.knob):
            return None
        held = causes.indicators(history.codes[rows]).astype(np.float64)
        value = history.value[rows]
        noise = _NOISE if history.noise is None else history.noise
        error = np.where(np.isnan(history.error[rows]), noise, history.error[rows] / value)
        variance = np.maximum(error, 1e-4) ** 2
        y = np.log(value)
        none = np.empty(0, np.intp)
        fits = [_fit(held, y, variance, none, scale, 0.0, 1.0) for scale in _LINEAR]
        process = max(fits, key=lambda fit: fit[0])[1]
        # Posterior of each effect by the linear part: mean s^2 X'a, variance s^2 - s^4 X'K^-1 X.
        pull = held.T @ process.solved
        push = (held * cho_solve(process.factor, held, check_finite=False)).sum(0)
        s2 = process.linear**2
        strength = np.abs(s2 * pull) / np.sqrt(np.maximum(s2 - s2 * s2 * push, 1e-12))
        strength[held.sum(0) == 0] = -1.0
        screened = np.sort(np.argsort(-strength, kind="stable")[: self.active])
        screened = screened[strength[screened] > 0]
        for free, length in product(_FREE[1:], _LENGTH):
            fit = _fit(held, y, variance, screened, process.linear, free, length)
            fits.append(fit)
        return max(fits, key=lambda fit: fit[0])[1]._replace(screened=screened)

    # -- candidates -----------------------------------------------------------------------------
    def _climb(
        self, causes: FailureCauses, history: History, process: _Process, means: Floats, rng: np.random.Generator
    ) -> NDArray[np.int16] | None:
        """Local search for the expected improvement, one change at a time; the best untried route that was met."""
        here = process.held[np.argsort(means, kind="stable")[:_CLIMBS]] > 0
        safe = causes.alone < 0.01
        others = np.setdiff1d(np.flatnonzero(safe), process.screened)
        # As many others, drawn: where the screened values are settled, what is left to try lies beside them.
        moves = np.union1d(process.screened[safe[process.screened]], rng.permutation(others)[: self.active])
        if not moves.size:
            return None
        found: NDArray[np.int16] | None = None
        most, best = -math.inf, float(means.min())
        for _ in range(_STEPS):
            around = np.repeat(here, moves.size, axis=0)
            moved = np.tile(moves, len(here))
            line = np.arange(len(around))
            on = ~around[line, moved]
            # A knob has one value: switching one on switches its others off.
            around &= causes.knob[None, :] != causes.knob[moved][:, None]
            around[line, moved] = on
            mean, sd = process.predict(around)
            z = (best - mean) / sd
            gain = sd * (z * ndtr(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))
            score = gain * np.asarray([causes.works(route) for route in around]) * (1 + 1e-6 * rng.random(len(around)))
            for i in np.argsort(-score, kind="stable").tolist():
                if score[i] <= most:
                    break
                codes = causes.codes_of(around[i])
                if not history.contains(codes):
                    found, most = codes, float(score[i])
                    break
            here = around[score.reshape(len(here), -1).argmax(1) + moves.size * np.arange(len(here))]
        return found

    def _screen_on(
        self,
        causes: FailureCauses,
        history: History,
        process: _Process | None,
        base: Bools,
        attempt: int,
        rng: np.random.Generator,
    ) -> Bools:
        """The base with a group of untried values and, of the safe ones that are not screened, a random half.

        Where that is nothing new, from the second attempt on, the base with a few random safe changes.
        """
        m = len(causes.knob)
        waiting = np.any(causes.indicators(history.pending), axis=0)
        group = causes.group(self.works, rng.random(m), waiting)
        open_ = (causes.alone < 0.01) & ~base & (rng.random(m) < 0.5)
        open_[np.arange(m) if process is None else process.screened] = False
        if attempt or not (len(group) or open_.any()):
            flips = rng.permutation(np.flatnonzero(causes.alone < 0.5))[: 1 + attempt]
            group = np.append(group, flips[~base[flips]])
            base = base & ~np.isin(np.arange(m), flips)
        places = np.concatenate([group, np.flatnonzero(base), rng.permutation(np.flatnonzero(open_))])
        chosen = np.zeros(m, bool)
        chosen[places[np.unique(causes.knob[places], return_index=True)[1]]] = True
        return causes.without_risky_pairs(chosen, np.where(base, 0.03, 0.001), _PAIR_RISK)


def _kernel(a: Floats, b: Floats, screened: NDArray[np.intp], linear: float, free: float, length: float) -> Floats:
    """Covariance of routes a (k, m) and b (n, m): linear over all values, exponential in the screened distance."""
    out = linear**2 * (1 + a @ b.T)
    if free:
        p, q = a[:, screened], b[:, screened]
        # Of values held: a changed knob counts once or, from one value to another, twice.
        distance = p.sum(1)[:, None] + q.sum(1)[None, :] - 2 * (p @ q.T)
        out = out + free**2 * np.exp(-distance / length)
    result: Floats = out
    return result


def _fit(
    held: Floats,
    y: Floats,
    variance: Floats,
    screened: NDArray[np.intp],
    linear: float,
    free: float,
    length: float,
) -> tuple[float, _Process]:
    """Log marginal likelihood (eq. 2.30, less n/2 log 2 pi), with its process.

    The constant is that of generalised least squares (section 2.7), taken for certain.
    """
    covariance = _kernel(held, held, screened, linear, free, length)
    covariance[np.diag_indices(len(y))] += variance
    factor = cho_factor(covariance, lower=True, check_finite=False)
    ones = cho_solve(factor, np.ones(len(y)), check_finite=False)
    centre = float(ones @ y / ones.sum())
    solved = cho_solve(factor, y - centre, check_finite=False)
    evidence = -0.5 * float((y - centre) @ solved) - float(np.log(factor[0].diagonal()).sum())
    return evidence, _Process(held, screened, linear, free, length, factor, solved, centre)
