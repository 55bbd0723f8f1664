"""Curves over a study: the speed-up of the best route found so far, and the machine's drift meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.history import History

CONFIDENCE_Z = 1.959963984540054
"""Standard errors on each side of a 95 % interval under the normal distribution."""


def best_so_far_table(
    latency_ms: ArrayLike,
    feasible: ArrayLike | None = None,
    *,
    error_ms: ArrayLike | None = None,
    reference_ms: float | None = None,
) -> pd.DataFrame:
    """The best speed-up over the reference after every trial.

    latency_ms: (n,), ms in completion order, row 0 the reference, NaN where a trial has none.
    feasible: (n,), bool; by default every row with a latency. error_ms: (n,), standard errors in ms,
    NaN where unknown. reference_ms: what speed-ups are relative to; by default `latency_ms[0]`.

    Columns, one row per trial: trial (0 is the reference), latency_ms, feasible, speedup (reference
    / latency, NaN without a latency), best (largest speed-up of a feasible trial so far, never
    below 1: the reference itself is always there to be kept), best_trial, low and high (95 %
    interval of the best, from its own standard error alone; NaN where that is unknown).

    The best of many noisy values is too good on average, more so than low and high can tell: a
    speed-up is claimed by a confirmation, not by this curve. Raises InputError for arrays of
    different lengths, no rows, or a reference without a positive latency.
    """
    latency = np.asarray(latency_ms, np.float64)
    if latency.ndim != 1 or not latency.size:
        raise InputError(f"a curve needs one latency per trial and at least the reference; got shape {latency.shape}")
    n = len(latency)
    ok = np.ones(n, bool) if feasible is None else np.asarray(feasible, bool)
    error = np.full(n, np.nan) if error_ms is None else np.asarray(error_ms, np.float64)
    if ok.shape != (n,) or error.shape != (n,):
        raise InputError(f"a curve of {n} trials got {ok.size} feasibility flags and {error.size} errors")
    ok = ok & ~np.isnan(latency)
    base = float(latency[0]) if reference_ms is None else float(reference_ms)
    if not base > 0:
        raise InputError(f"the reference latency is {base} ms; a speed-up needs a positive one")
    speedup = base / latency
    best = np.ones(n)
    best_trial = np.zeros(n, np.int64)
    low, high = np.full(n, np.nan), np.full(n, np.nan)
    # The reference against itself is 1 by definition: its own error shifts every speed-up alike.
    leader, leader_low, leader_high, leader_trial = 1.0, 1.0, 1.0, 0
    for i in range(n):
        if i and ok[i] and speedup[i] > leader:
            leader, leader_trial = float(speedup[i]), i
            relative = CONFIDENCE_Z * error[i] / latency[i]
            leader_low, leader_high = leader * np.exp(-relative), leader * np.exp(relative)
        best[i], best_trial[i], low[i], high[i] = leader, leader_trial, leader_low, leader_high
    return pd.DataFrame(
        {
            "trial": np.arange(n),
            "latency_ms": latency,
            "feasible": ok,
            "speedup": speedup,
            "best": best,
            "best_trial": best_trial,
            "low": low,
            "high": high,
        }
    )


def history_curve(history: History) -> pd.DataFrame:
    """The best-so-far table of a study's history, with what it had cost by then.

    Columns: those of `best_so_far_table`, and builds and seconds, charged up to and including the
    trial (the reference is not charged). Trials count in completion order. Raises InputError for an
    empty history or one whose reference was not timed.
    """
    table = best_so_far_table(history.value, history.feasible, error_ms=history.error)
    cost = sum((history.cost(phase) for phase in history.phases_of_cost), np.zeros(len(history)))
    built = history.cost("build") > 0 if history.phases_of_cost else np.ones(len(history), bool)
    cost[0], built[0] = 0.0, False
    return table.assign(builds=np.cumsum(built), seconds=np.cumsum(cost))


def drift_table(rows: Iterable[tuple[int, Evaluation, float]]) -> pd.DataFrame:
    """Every round of a study in time, and what pairing made of the values.

    rows: (trial, evaluation, clock_s) in completion order, trial 0 first; clock_s: seconds that the
    study had run when the trial finished (`store.study.Row`).

    Columns, one row per round that was timed: trial, round, at_s (seconds that the study had run),
    reference_ms and candidate_ms (medians of the round's samples; of several shape points each scaled
    so that trial 0's rounds of that point have the median base_ms), and of the trial: uncorrected_ms
    (median over its rounds of candidate_ms), corrected_ms (its value: median ratio to the reference of
    its own rounds, times the reference of trial 0) and base_ms (that reference).

    Rounds are placed by the end of their trial, because their own clock starts anew with each session.
    A trial that took over another's samples has no rounds of its own and is left out. Trial 0 is the
    reference on both sides: it has one value, base_ms. Raises InputError when trial 0 is not the
    first, or was not timed.
    """
    found: list[tuple[int, int, float, float, float, float, float, float]] = []
    base = float("nan")
    scales: dict[int, float] = {}
    for trial, evaluation, clock_s in rows:
        if not found and (trial != 0 or evaluation.latency_ms is None or not evaluation.rounds):
            raise InputError(f"drift is told against the reference; the first trial is {trial}, or was not timed")
        rounds = evaluation.own_rounds
        if not rounds or evaluation.latency_ms is None:
            continue
        if trial == 0:
            base = evaluation.latency_ms
            points = {r.point for r in rounds}
            for point in points if len(points) > 1 else ():
                scales[point] = base / median(median(r.reference_ms) for r in rounds if r.point == point)
        theirs = [scales.get(r.point, 1.0) * median(r.reference_ms) for r in rounds]
        mine = [scales.get(r.point, 1.0) * median(r.candidate_ms) for r in rounds]
        uncorrected, corrected = base if trial == 0 else median(mine), evaluation.latency_ms
        if evaluation.borrowed:  # its value rests on rounds of other times too
            corrected = base * math.exp(median(math.log(m / t) for m, t in zip(mine, theirs, strict=True)))
        for n, r in enumerate(rounds):
            at = clock_s - (rounds[-1].started_s - r.started_s)
            found.append((trial, n, at, theirs[n], mine[n], uncorrected, corrected, base))
    if not found:
        raise InputError("drift is told against the reference; the study has no finished trial")
    names = ("trial", "round", "at_s", "reference_ms", "candidate_ms", "uncorrected_ms", "corrected_ms", "base_ms")
    return pd.DataFrame(found, columns=list(names))
