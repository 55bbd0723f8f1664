"""Screening designs: Plackett-Burman runs with fold-over, stepwise selection, then search on the active knobs.

Each run sets about half of the values that are known to work, by a row of a Hadamard matrix; the next
one is its mirror image, so that the two together tell main effects free of interactions of pairs. The
rows come in random order. Before as many runs as knobs have been made the design is
supersaturated: it has fewer runs than effects, and rests on few of them mattering. A run also carries a
group of values that were in no working route yet; groups that fail are split (`FailureCauses`).

After `runs` working runs the active values are selected, forward, one at a time, then pairs of active ones
too. From then on every other trial is search: the best route over the active values by the fitted
model, all else at its default, and where that was tried, the same with some active values flipped, the
least certain ones first. The other trials go on screening, with the active values held at their best.

A knob with several values has a column for each; in a run that asks for two of them, chance decides.

Good at: many knobs, few of which matter, mostly additively; a method that engineers know and trust.
Bad at: effects that only show in the company of others, groups that fail by many pairs.

Source: Plackett and Burman, "The Design of Optimum Multifactorial Experiments", Biometrika 33, 1946 (the
cyclic designs of order q + 1, q prime; Paley, "On Orthogonal Matrices", J. Math. Phys. 12, 1933); Box and
Wilson, "On the Experimental Attainment of Optimum Conditions", JRSS B 13, 1951 (fold-over); Booth and
Cox, "Some Systematic Supersaturated Designs", Technometrics 4, 1962, and Lin, "A New Class of
Supersaturated Designs", Technometrics 35, 1993 (part of the rows of a Hadamard matrix, half of them by a
branching column there, drawn here; analysed by stepwise selection). Pairs of active values: Hamada and Wu,
"Analysis of Designed Experiments with Complex Aliasing", J. Quality Technology 24, 1992 (heredity). When to
stop: the risk inflation criterion, Foster and George, "The Risk Inflation Criterion for Multiple
Regression", Annals of Statistics 22, 1994, t^2 > 2 log m. Fit: the sweep operator, Goodnight, "A Tutorial
on the SWEEP Operator", American Statistician 33, 1979.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
_NOISE = 0.01  # the standard deviation of a value, where none is known
_PAIR_RISK = 0.25
_PAIRED = 16  # values, in order of selection, whose pairs are looked at
_FEW, _NOTHING = 2.0, 0.3  # values that a group clears on average: below it is tried every other trial; never


class _Fit(NamedTuple):
    """The selected model. table: float64 (m, m), effects of values on the diagonal, of pairs off it (symmetric);
    sure: |t| of each value, 0 where it is not active."""

    table: Floats
    sure: Floats

    def of(self, held: Bools) -> Floats:
        """Expected log-latency over a constant, (n,), of routes with the values `held` (n, m)."""
        x = held.astype(np.float64)
        alone = self.table.diagonal()
        out: Floats = x @ alone + 0.5 * ((x @ (self.table - np.diag(alone))) * x).sum(1)
        return out


class Screening:
    """Plackett-Burman screening with fold-over, forward selection, and search on the active values.

    runs: working runs before anything is selected. works: chance that a group of untried values is meant
    to work with. pairs: whether pairs of active values are looked at.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, runs: int = 24, works: float = 0.55, pairs: bool = True) -> None:
        """Raises InputError unless runs >= 2 and 0 < works < 1."""
        if runs < 2:
            raise InputError(f"runs is {runs}; at least 2 runs come before the selection")
        if not 0 < works < 1:
            raise InputError(f"works is {works}; the chance that a group works must be above 0 and below 1")
        self.runs, self.works, self.pairs = runs, works, pairs

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The next run of the design, or the best route over the active values; None when every route was tried."""
        if not untried_routes(space, history):
            return None
        trial = history.next_trial
        causes = FailureCauses(space, history)
        m = len(causes.knob)
        fit = _Fit(np.zeros((m, m)), np.zeros(m))
        searching = int(history.feasible.sum()) > self.runs
        if searching:
            fit = self._fit(causes, history)
        # One design per study: which column of the matrix is whose, and the order of its rows.
        design = streams.trial(0, "design")
        order = _prime(m) + 1
        column, row = design.permutation(order - 1)[:m], design.permutation(order)
        rng = streams.trial(trial)
        best = _best(causes, fit)
        for attempt in range(_DRAWS):
            if searching and trial % 2:
                chosen = self._flipped(causes, fit, best, attempt, rng)
            else:
                step = trial // 2 if searching else trial - 1  # every other trial is a run of the design then
                signs = _hadamard_row(int(row[(step // 2) % order]), column, order)
                signs = signs != bool(step % 2)  # the fold-over
                if attempt:
                    signs ^= rng.random(m) < 0.1  # the run was made already
                chosen = self._run(causes, fit, best, signs, history, rng)
            codes = causes.codes_of(chosen)
            if not history.contains(codes):
                return Proposal(codes)
        return Proposal(uniform_untried(space, history, rng))

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """Rows of the k routes that never failed that the selected model says are the fastest, best first."""
        bad = np.bincount(history.route, history.outcome != Outcome.OK, history.n_routes) > 0
        rows = np.flatnonzero(history.feasible & ~bad[history.route])
        rows = rows[np.unique(history.route[rows], return_index=True)[1]]
        causes = FailureCauses(history.space, history)
        expected = np.round(self._fit(causes, history).of(causes.indicators(history.codes[rows])), 9)
        # Among equals by the model the measured value decides.
        return [int(row) for row in rows[np.lexsort((rows, history.value[rows], expected))[:k]]]

    # -- routes ---------------------------------------------------------------------------------
    def _run(
        self, causes: FailureCauses, fit: _Fit, best: Bools, signs: Bools, history: History, rng: np.random.Generator
    ) -> Bools:
        """A run: the active values at their best, the others by the signs, and a group of untried ones."""
        m = len(causes.knob)
        waiting = np.any(causes.indicators(history.pending), axis=0)
        least = _NOTHING if history.next_trial % 4 < 2 else _FEW
        group = causes.group(self.works, rng.random(m), waiting, least)
        active = np.isin(causes.knob, causes.knob[fit.sure > 0])
        taken = np.isin(causes.knob, causes.knob[group])
        wanted = np.where(active, best, signs & (causes.alone < 0.01)) & ~taken
        # One value of a knob: the first in a random order.
        places = rng.permutation(m)
        places = places[wanted[places]]
        chosen = np.zeros(m, bool)
        chosen[places[np.unique(causes.knob[places], return_index=True)[1]]] = True
        chosen[group] = True
        worth = np.where(best, 0.03, 0.001)
        worth[group] = 0.03
        return causes.without_risky_pairs(chosen, worth, _PAIR_RISK)

    def _flipped(self, causes: FailureCauses, fit: _Fit, best: Bools, attempt: int, rng: np.random.Generator) -> Bools:
        """The best route; from the second attempt on with 1, 2, ... active values flipped, uncertain ones first."""
        chosen = best.copy()
        active = np.flatnonzero((fit.sure > 0) & (causes.alone < 0.01))
        if attempt and active.size:
            # Smallest exponential times, with rates that fall with |t|: a weighted draw without replacement
            # (Efraimidis and Spirakis, Inf. Process. Lett. 97, 2006).
            times = rng.standard_exponential(active.size) * fit.sure[active] ** 2
            for value in active[np.argsort(times)[: 1 + attempt // 3]].tolist():
                on = not chosen[value]
                chosen[causes.knob == causes.knob[value]] = False
                chosen[value] = on
        return causes.without_risky_pairs(chosen, np.full(len(chosen), 0.01), _PAIR_RISK)

    # -- analysis -------------------------------------------------------------------------------
    def _fit(self, causes: FailureCauses, history: History) -> _Fit:
        """Forward selection of values, then of values and pairs of the selected ones."""
        rows = np.flatnonzero(history.feasible)
        held = causes.indicators(history.codes[rows])
        value = history.value[rows]
        noise = _NOISE if history.noise is None else history.noise
        error = np.maximum(np.where(np.isnan(history.error[rows]), noise, history.error[rows] / value), 1e-4)
        m = held.shape[1]
        fit = _Fit(np.zeros((m, m)), np.zeros(m))
        if len(rows) < 3 or not m:
            return fit
        y = np.log(value)
        picked, effect, sure = _forward(held.astype(np.float64), y, error**-2.0)
        if self.pairs and len(picked) > 1:
            top = picked[:_PAIRED]
            first, second = (top[i] for i in np.triu_indices(len(top), 1))
            both = held[:, first] & held[:, second]
            apart = np.minimum(held[:, first].sum(0), held[:, second].sum(0)) - both.sum(0)
            told = (causes.knob[first] != causes.knob[second]) & (both.sum(0) >= 2) & (apart >= 1)
            first, second = first[told], second[told]
            picked, effect, sure = _forward(np.hstack([held, both[:, told]]).astype(np.float64), y, error**-2.0)
            pairs = picked >= m
            a, b = first[picked[pairs] - m], second[picked[pairs] - m]
            fit.table[a, b] = fit.table[b, a] = effect[pairs]
            fit.sure[a], fit.sure[b] = np.maximum(fit.sure[a], 1e-3), np.maximum(fit.sure[b], 1e-3)
            picked, effect, sure = picked[~pairs], effect[~pairs], sure[~pairs]
        fit.table[picked, picked] = effect
        fit.sure[picked] = sure
        return fit


def _best(causes: FailureCauses, fit: _Fit) -> Bools:
    """The cleared active values that the model likes best, one of a knob at most, by coordinate descent."""
    usable = (fit.sure > 0) & (causes.alone < 0.01)
    alone, chosen = fit.table.diagonal(), np.zeros(len(usable), bool)
    for _ in range(6):
        before = chosen.copy()
        for knob in np.unique(causes.knob[usable]).tolist():
            here = np.flatnonzero((causes.knob == knob) & usable)
            chosen[here] = False
            sums = alone[here] + fit.table[here] @ chosen
            chosen[here[np.argmin(sums)]] = sums.min() < 0
        if (chosen == before).all():
            break
    return causes.without_risky_pairs(chosen, np.maximum(-alone, 1e-3), _PAIR_RISK)


def _forward(design: Floats, y: Floats, weight: Floats) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Weighted least squares with columns added one at a time: which, their effects and |t|, in order of choice."""
    n, m = design.shape
    augmented = np.empty((n, m + 1))
    augmented[:, :m], augmented[:, m] = design, y - weight @ y / weight.sum()
    sums = weight @ augmented
    a = (augmented.T * weight) @ augmented - np.outer(sums, sums / weight.sum())
    size = a.diagonal()[:m].copy()
    picked: list[int] = []
    enough = 2 * math.log(max(m, 2))
    while len(picked) < n // 2:
        pivot = a.diagonal()[:m]
        free = pivot > 1e-6 * size + 1e-12
        free[picked] = False
        if not free.any():
            break
        drop = np.where(free, a[:m, m] ** 2 / np.where(free, pivot, 1.0), 0.0)  # of the weighted squares
        j = int(np.argmax(drop))
        spread = max((a[m, m] - drop[j]) / max(n - len(picked) - 2, 1), 1.0)  # 1: the errors explain it all
        if drop[j] <= enough * spread:
            break
        _sweep(a, j)
        picked.append(j)
    chosen = np.asarray(picked, np.intp)
    spread = max(a[m, m] / max(n - len(picked) - 1, 1), 1.0)
    effect = a[chosen, m]
    return chosen, effect, np.abs(effect) / np.sqrt(np.maximum(a[chosen, chosen], 1e-300) * spread)


def _sweep(a: Floats, j: int) -> None:
    """Goodnight's operator in place: column j enters the regression; swept diagonals hold the inverse."""
    pivot = a[j, j]
    row, column = a[j] / pivot, a[:, j].copy()
    a -= column[:, None] * row
    a[j], a[:, j] = row, -column / pivot
    a[j, j] = 1 / pivot


def _prime(least: int) -> int:
    """The smallest prime q >= `least` with q = 3 modulo 4: a Hadamard matrix of order q + 1 follows from it."""
    q = max(least, 3)
    while q % 4 != 3 or any(q % d == 0 for d in range(3, math.isqrt(q) + 1, 2)):
        q += 1
    return q


def _hadamard_row(row: int, column: NDArray[np.intp], order: int) -> Bools:
    """Row `row` of the Plackett-Burman design of `order` runs: whether its sign in each of the columns is plus.

    The rows are shifts of the quadratic residues modulo q = order - 1; the last one has minus everywhere.
    """
    q = order - 1
    if row == q:
        return np.zeros(len(column), bool)
    residue = np.zeros(q, bool)
    residue[np.arange(q) ** 2 % q] = True  # 0 counts as one, which makes the columns balanced
    plus: Bools = residue[(column + row) % q]
    return plus
