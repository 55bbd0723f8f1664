"""A recorded table as the history of a study that tried every recorded route: what knob importance and reports read."""

from __future__ import annotations

import math

import numpy as np

from gpt_search.accuracy.gate import Tolerances, worst
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome
from gpt_search.store.tables import Table


def recorded_order(table: Table) -> list[int]:
    """The rows of a table, the reference first, the others as they were recorded.

    Raises InputError where the table lacks the reference, or that failed.
    """
    first = table.reference
    return [first, *(row for row in range(len(table)) if row != first)]


def table_history(table: Table) -> History:
    """One trial per recorded route, in the order of `recorded_order`.

    A value rests on all rounds of all builds of its engine; that of the reference, and of routes which are proved to
    be the same engine, is the reference latency itself. A route that failed once is a failed one, as for
    `Table.truth`. Raises InputError as `recorded_order`.
    """
    history = History(table.space)
    order = recorded_order(table)
    known = {tuple(table.timed(order[0])): 0}
    for trial, row in enumerate(order):
        history.append(trial, table.codes[row], _observation(table, row, trial, known))
    return history


def _observation(table: Table, row: int, trial: int, known: dict[tuple[int, ...], int]) -> Observation:
    """known: for the records of an engine, the trial that has its value first."""
    columns, records = table.columns, list(table.records(row))
    number = int(columns.fingerprint[records[0]])
    fingerprint = columns.fingerprints[number] if number >= 0 else None
    losses = columns.violation[records]
    violation = None if np.isnan(losses).all() else float(np.nanmax(losses))
    failed = next((table.outcome(r) for r in records if table.outcome(r) is not Outcome.OK), None)
    timed = tuple(table.timed(row))
    if failed is not None or not timed:
        return Observation(failed or Outcome.OK, violation=violation, fingerprint=fingerprint)
    began = known.setdefault(timed, trial)
    found = [table.estimate(table.all_rounds(r)) for r in timed]
    log_ratio = 0.0 if began == 0 else sum(f.log_ratio for f in found) / len(found)
    latency = table.reference_ms * math.exp(log_ratio)
    return Observation(
        Outcome.OK,
        latency,
        violation,
        fingerprint,
        error_ms=latency * math.sqrt(sum(f.error**2 for f in found)) / len(found),
        timed_as=None if began == trial else began,
        rounds=sum(len(table.all_rounds(r)) for r in timed),
    )


def table_losses(table: Table) -> list[float]:
    """The largest loss over its tolerance of each route's first build, in the order of `recorded_order`.

    1 is the limit, infinity where no loss can be given, NaN where none was measured; an import has none.
    """
    if not table.paired:
        return [math.nan] * len(table)
    tolerances = Tolerances.from_json(table.settings["tolerance"])
    found = [table.evaluation(table.records(row)[0]).losses for row in recorded_order(table)]
    return [worst(losses, tolerances).share if losses else math.nan for losses in found]
