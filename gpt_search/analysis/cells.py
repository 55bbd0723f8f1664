"""Cells of an experiment as a table: what each study had reached at each budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.store.cells import NOT_COMPUTED, Cell, cell_from_json, cell_to_json, load_cells

__all__ = ["COLUMNS", "Cell", "cell_from_json", "cell_to_json", "frame", "load_cells"]

COLUMNS = (
    *("task", "strategy", "seed", "budget", "recommended", "tried", "minimum"),
    *("best", "floor", "reference_ms", "timed", "failures"),
)


def frame(cells: Iterable[Cell], axis: str = "builds", budgets: Sequence[float] | None = None) -> pd.DataFrame:
    """One row per cell and budget, in the order of the cells, then of the budgets.

    axis: what budgets count, "trials", "builds" or "seconds". budgets: ascending; by default the cells' own
    checkpoints on that axis, all of them together.

    Columns: task and strategy (categories), seed, budget; as true log(latency / reference), below 0 where faster:
    recommended (of the route that the strategy recommends then, NaN where none), tried (the smallest of the
    feasible routes with a value by then), minimum (of the route with the smallest raw value), best (the task's
    best, NaN where unknown); floor (relative noise floor), reference_ms, timed (engines timed by then), failures
    (trials that failed by then).

    Raises InputError for an unknown axis, no budgets, or a budget at which a cell's recommendation was not worked out.
    """
    cells = list(cells)
    if budgets is None:
        budgets = sorted({b for cell in cells for b in cell.facts.get("checkpoints", {}).get(axis, ())})
        if not budgets:
            raise InputError(f"no budgets in {axis} were declared for these cells; name some")
    wanted = np.asarray(budgets, np.float64)
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMNS[4:]}
    for cell in cells:
        for name, column in _reached(cell, axis, wanted).items():
            columns[name].append(column)
    count = len(wanted)
    table: dict[str, Any] = {
        "task": pd.Categorical(np.repeat(np.asarray([c.task for c in cells], object), count)),
        "strategy": pd.Categorical(np.repeat(np.asarray([c.strategy for c in cells], object), count)),
        "seed": np.repeat(np.asarray([c.seed for c in cells], np.int64), count),
        "budget": np.tile(np.asarray(budgets), len(cells)),
    }
    table |= {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in columns.items()}
    return pd.DataFrame(table)


def _reached(cell: Cell, axis: str, budgets: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """The columns of one cell that differ from budget to budget, and those of its task."""
    rows = cell.row_at(axis, budgets)
    chosen = cell.recommended[rows]
    if (chosen == NOT_COMPUTED).any():
        missing = budgets[chosen == NOT_COMPUTED]
        declared = cell.facts.get("checkpoints", {}).get(axis) or "none"
        raise InputError(
            f"what {cell.strategy} recommends on {cell.task} was not worked out at {missing[0]:g} {axis} (worked out "
            f"at: {declared}); declare that budget in the experiment's file"
        )
    feasible = cell.feasible
    truth = np.where(feasible, cell.truth, np.nan)
    value = np.where(feasible, cell.value, np.inf)
    # The row of the smallest value so far: where a new minimum appears, else the row before's.
    lowest = np.minimum.accumulate(value)
    fresh = np.r_[True, lowest[1:] < lowest[:-1]]
    leader = np.maximum.accumulate(np.where(fresh, np.arange(len(value)), 0))
    failed = (cell.outcome != Outcome.OK).astype(np.int64)
    timed = cell.timed.astype(np.int64)
    failed[0] = timed[0] = 0  # the reference is not the strategy's
    # What is only the best that was seen is not the best: then it is pooled from what all strategies tried.
    best = cell.facts.get("best") if cell.facts.get("best_known", True) else None
    floor = cell.facts.get("floor")
    count = len(budgets)
    return {
        "recommended": np.where(chosen >= 0, cell.truth[chosen], np.nan),
        "tried": np.fmin.accumulate(truth)[rows],
        "minimum": np.where(np.isinf(lowest), np.nan, cell.truth[leader])[rows],
        "best": np.full(count, math.nan if best is None else best),
        "floor": np.full(count, math.nan if floor is None else floor),
        "reference_ms": np.full(count, cell.facts.get("reference_ms", math.nan)),
        "timed": np.cumsum(timed)[rows],
        "failures": np.cumsum(failed)[rows],
    }
