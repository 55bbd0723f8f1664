"""The table that statistics work on: what is checked, and how it is turned.

A table is what `gpt_search.analysis.cells.frame` gives: one row per task, strategy, seed and budget. Everything here
is true log(latency / reference), below 0 where faster.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from gpt_search.domain.errors import InputError, did_you_mean, listing

KEYS = ("task", "strategy", "seed", "budget")


def checked(frame: pd.DataFrame, columns: Iterable[str] = ()) -> pd.DataFrame:
    """The table, when it has `KEYS` and `columns`, rows, and each study once per budget. Raises InputError if not."""
    lacking = [name for name in (*KEYS, *columns) if name not in frame.columns]
    if lacking:
        raise InputError(f"the table of results has no column {listing(lacking)}; it has {listing(frame.columns)}")
    if frame.empty:
        raise InputError("the table of results has no rows; run some cells of the experiment first")
    twice = frame.duplicated(list(KEYS))
    if twice.any():
        row = frame[twice].iloc[0]
        raise InputError(
            f"task {row['task']}, strategy {row['strategy']}, seed {row['seed']} stands twice in the table at budget "
            f"{row['budget']:g}; give each study once"
        )
    return frame


def budgets_of(frame: pd.DataFrame, budgets: Iterable[float] | None = None) -> list[float]:
    """The budgets asked for, ascending, or all of the table. Raises InputError for one that it does not have."""
    there = sorted(float(b) for b in frame["budget"].unique())
    if budgets is None:
        return there
    wanted = sorted({float(b) for b in budgets})
    lacking = [b for b in wanted if b not in there]
    if lacking or not wanted:
        raise InputError(
            f"the table has no results at budget {listing(f'{b:g}' for b in lacking) or '(none named)'}; "
            f"it has {listing(f'{b:g}' for b in there)}"
        )
    return wanted


def strategies_of(frame: pd.DataFrame) -> list[str]:
    """Names of the strategies that have rows, sorted."""
    return sorted(str(s) for s in frame["strategy"].unique())


def known_strategy(frame: pd.DataFrame, name: str) -> str:
    """`name`, when the table has it. Raises InputError with the nearest name if not."""
    there = strategies_of(frame)
    if name not in there:
        raise InputError(f"the control {name!r} has no results; there are {listing(there)}{did_you_mean(name, there)}")
    return name


def kept(frame: pd.DataFrame) -> pd.Series:
    """The log-ratio of what a user would run in the end: the recommended route, or the reference (0) where none is."""
    return frame["recommended"].astype(np.float64).fillna(0.0)


def panel(frame: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """`values` with a column per strategy and a row per budget, task and seed that any strategy has, sorted.

    NaN: that strategy has no such study.
    """
    long = pd.DataFrame(
        {
            "budget": frame["budget"].astype(np.float64),
            "task": frame["task"].astype(str),
            "seed": frame["seed"],
            "strategy": frame["strategy"].astype(str),
            "values": values,
        }
    )
    return long.pivot(index=["budget", "task", "seed"], columns="strategy", values="values").sort_index()
