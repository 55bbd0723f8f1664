"""What an experiment's finished cells say: the table of results, its summary, and the sentences the tests allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpt_search.analysis.cells import Cell, frame, load_cells
from gpt_search.analysis.regret import regret_table
from gpt_search.analysis.summary import ComparisonSummary, summarise_comparison
from gpt_search.analysis.targets import improvements
from gpt_search.store.experiment import experiment_facts


@dataclass(frozen=True)
class Results:
    """cells: the finished ones. table: see `cells.frame`, at every declared budget of the axis. about: what
    `experiment.json` says. summary: the statistics; None without a control, or before two strategies have cells."""

    cells: Sequence[Cell]
    table: pd.DataFrame
    about: Mapping[str, Any]
    summary: ComparisonSummary | None


def load_results(folder: str | Path) -> Results:
    """The results of an experiment's folder, finished or not. Raises InputError where there are none."""
    about = experiment_facts(folder)
    cells, axis = load_cells(folder), about["axis"]
    table = frame(cells, axis)
    plan = about["statistics"]
    there = {cell.strategy for cell in cells}
    summary = None
    if plan["control"] in there and len(there) > 1:
        summary = summarise_comparison(
            table,
            plan["control"],
            plan["alpha"],
            about["tested"],
            axis=axis,
            family=plan["family"],
            runs=improvements(cells, axis),
        )
    return Results(cells, table, about, summary)


def plain_table(table: pd.DataFrame) -> pd.DataFrame:
    """The largest budget, one row per task and strategy, in the order of the median regret.

    Columns: task, strategy, n (studies), gain (median true gain of what is recommended, %), regret, low, high (median
    and quartiles, %; of the best that is known or was seen), timed and failures (means).
    """
    last = table[table["budget"] == table["budget"].max()]
    regret = regret_table(last).reset_index(drop=True)
    kept = pd.DataFrame(
        {
            "task": regret["task"].astype(str),
            "strategy": regret["strategy"].astype(str),
            "gain": 0.0 - 100 * np.expm1(regret["log_ratio"]),
            "regret": regret["regret_percent"],
        }
    )
    groups = kept.groupby(["task", "strategy"], sort=True)
    out = groups.agg(n=("gain", "size"), gain=("gain", "median"), regret=("regret", "median"))
    out["low"], out["high"] = groups["regret"].quantile(0.25), groups["regret"].quantile(0.75)
    keyed = last.astype({"task": str, "strategy": str}).groupby(["task", "strategy"], sort=True)
    out["timed"], out["failures"] = keyed["timed"].mean(), keyed["failures"].mean()
    return out.reset_index().sort_values(["task", "regret", "strategy"], kind="stable").reset_index(drop=True)
