"""Tables of one study for figures and reports: accuracy against latency, cost by phase, what ran when, all trials."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome

Rows = Sequence[tuple[int, Evaluation, float]]
"""(trial, evaluation, clock_s) in completion order, trial 0 first; clock_s: see `store.study.Row`."""


def accuracy_table(rows: Rows, losses: Iterable[float]) -> pd.DataFrame:
    """One row per trial with a loss: trial, speedup (NaN where not timed), loss, feasible, front.

    losses: of each row, the largest loss over its tolerance (1 is the limit), NaN where not measured. front: feasible,
    and no feasible trial is faster with a loss as small.
    """
    base = rows[0][1].latency_ms if rows else None
    found = [
        (t, math.nan if e.latency_ms is None or not base else base / e.latency_ms, loss, e.outcome is Outcome.OK)
        for (t, e, _), loss in zip(rows, losses, strict=True)
        if not math.isnan(loss)
    ]
    return with_front(pd.DataFrame(found, columns=["trial", "speedup", "loss", "feasible"]))


def with_front(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `accuracy_table` with its column front, from the others."""
    front = np.zeros(len(table), bool)
    ok = table[table["feasible"] & table["speedup"].notna()].sort_values(["speedup", "loss"], ascending=[False, True])
    least = math.inf
    for i, loss in zip(ok.index, ok["loss"], strict=True):
        if loss < least:
            front[i], least = True, loss
    return table.assign(front=front)


def cost_table(rows: Rows) -> pd.DataFrame:
    """Seconds by phase for the trials of each outcome, without the reference: group, phase, seconds, trials (in it)."""
    order = [o.name for o in Outcome]
    seconds: dict[tuple[str, str], float] = {}
    trials: dict[str, int] = {}
    for trial, evaluation, _ in rows:
        if trial == 0:
            continue
        group = evaluation.outcome.name
        trials[group] = trials.get(group, 0) + 1
        for phase, spent in evaluation.cost_s.items():
            seconds[group, phase] = seconds.get((group, phase), 0.0) + spent
    phases = _phase_order({p for _, p in seconds})
    found = [
        (group.lower().replace("_", " "), phase, seconds.get((group, phase), 0.0), trials[group])
        for group in sorted(trials, key=order.index)
        for phase in phases
    ]
    return pd.DataFrame(found, columns=["group", "phase", "seconds", "trials"])


def timeline_table(rows: Rows) -> pd.DataFrame:
    """What ran when: lane, trial, phase, start_s, end_s (seconds that the study had run), failed.

    Records hold when a trial finished and what each phase took, not when it started or which worker ran it: phases are
    placed one after the other up to the end of the trial, and trials that overlap get different lanes, as few as there
    can be. Waiting between the phases of one trial is therefore shown before its start.
    """
    spans = []
    for trial, evaluation, clock_s in rows:
        total = sum(evaluation.cost_s.values())
        if total > 0:
            spans.append((max(0.0, clock_s - total), clock_s, trial, evaluation))
    spans.sort(key=lambda s: (s[0], s[2]))
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    found: list[tuple[int, int, str, float, float, bool]] = []
    lanes = 0
    for start, end, trial, evaluation in spans:
        # Clocks of records are whole milliseconds in places: touching trials do not overlap.
        while busy and busy[0][0] <= start + 0.02 * max(end - start, 0.05):
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heapq.heappush(busy, (end, lane))
        at = end - sum(evaluation.cost_s.values())
        failed = evaluation.outcome is not Outcome.OK
        for phase in _phase_order(evaluation.cost_s):
            length = evaluation.cost_s[phase]
            found.append((lane, trial, phase, max(0.0, at), at + length, failed))
            at += length
    return pd.DataFrame(found, columns=["lane", "trial", "phase", "start_s", "end_s", "failed"])


def trials_table(rows: Rows, changes: Iterable[str], losses: Iterable[float]) -> pd.DataFrame:
    """Every trial.

    Columns: trial, outcome, latency_ms, error_ms, speedup, loss (over its tolerance), engine, seconds, changes,
    message. changes: of each row, the route without what is at its default. engine: the fingerprint.
    """
    base = rows[0][1].latency_ms if rows else None
    found = [
        (
            trial,
            e.outcome.name,
            _number(e.latency_ms),
            _number(e.error_ms),
            math.nan if e.latency_ms is None or not base else base / e.latency_ms,
            loss,
            e.fingerprint or "",
            sum(e.cost_s.values()),
            change,
            " ".join((e.message or "").split()),
        )
        for (trial, e, _), change, loss in zip(rows, changes, losses, strict=True)
    ]
    columns = (
        "trial",
        "outcome",
        "latency_ms",
        "error_ms",
        "speedup",
        "loss",
        "engine",
        "seconds",
        "changes",
        "message",
    )
    return pd.DataFrame(found, columns=list(columns))


def _phase_order(phases: Iterable[str] | Mapping[str, float]) -> list[str]:
    known = ("start", "build", "gate", "time")
    return sorted(phases, key=lambda p: (known.index(p) if p in known else len(known), p))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
