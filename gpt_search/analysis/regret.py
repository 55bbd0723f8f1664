"""Regret: how far what a study recommends is from the best, and why.

The primary measure is the log-latency regret, log(latency of the recommended route / latency of the best), at least 0.
It adds up, does not depend on the reference, and in per cent it is the latency given away. The simple regret of a
search splits exactly in two: exploration (the best was never tried) and selection (better was tried, and not chosen).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpt_search.analysis.tidy import checked, kept
from gpt_search.domain.errors import InputError

MEASURES = (
    *("log_ratio", "speedup", "regret", "regret_percent", "regret_ms"),
    *("exploration", "selection", "share"),
)
TOLERANCE = 1e-9
"""Log-ratios that differ by less are one: what rounding in files can do."""


def pooled_best(frame: pd.DataFrame) -> pd.DataFrame:
    """The best log-ratio of every task, and where it comes from.

    Columns, one row per task: task, best, known (the table states it, and nothing that was tried is better), stated
    (NaN where unknown), pooled (the best that any strategy tried or recommended with any seed, at most 0: the
    reference), found_by (the strategies that have it at some budget, joined by commas).
    """
    checked(frame, ("recommended", "tried", "best"))
    tried = np.fmin(frame["tried"].to_numpy(np.float64), kept(frame).to_numpy())
    seen = pd.DataFrame(
        {
            "task": frame["task"].astype(str).to_numpy(),
            "strategy": frame["strategy"].astype(str).to_numpy(),
            "pooled": np.fmin(tried, 0.0),
            "stated": frame["best"].to_numpy(np.float64),
        }
    )
    tasks = seen.groupby("task")[["pooled", "stated"]].min()
    tasks["known"] = tasks["stated"] <= tasks["pooled"] + TOLERANCE  # False for NaN
    tasks["best"] = np.fmin(tasks["stated"], tasks["pooled"])
    leaders = seen.groupby(["task", "strategy"])["pooled"].min().reset_index()
    at_best = leaders[leaders["pooled"] <= leaders["task"].map(tasks["pooled"]) + TOLERANCE]
    tasks["found_by"] = at_best.groupby("task")["strategy"].agg(", ".join)
    return tasks.reset_index()[["task", "best", "known", "stated", "pooled", "found_by"]]


def regret_table(frame: pd.DataFrame, best: pd.DataFrame | None = None) -> pd.DataFrame:
    """Regret of every study at every budget. frame: see `cells.frame`. best: by default `pooled_best(frame)`.

    A study that recommends nothing leaves its user with the reference: log-ratio 0.

    Columns: task, strategy, seed, budget; log_ratio (of what the user would run); speedup (reference / that);
    best; best_known (False: pooled from what was seen, so regret is too small by what nobody found); regret (log
    units, >= 0); regret_percent (100 (exp(regret) - 1)); regret_ms; exploration and selection (log units, >= 0, their
    sum is the regret); share (log_ratio / best: the part of the best gain, 1 at best, below 0 where slower than the
    reference; NaN where the best gain does not clear the noise floor or the floor is unknown); recommends (False:
    nothing was recommended).

    Raises InputError for a table with columns missing, and for a `best` that something in the table is better than.
    """
    checked(frame, ("recommended", "tried", "best", "floor", "reference_ms"))
    tasks = (pooled_best(frame) if best is None else best).set_index("task")
    names = frame["task"].astype(str)
    base = names.map(tasks["best"]).to_numpy(np.float64)
    chosen = kept(frame).to_numpy()
    # The reference is always there to be chosen, and so is what was recommended.
    tried = np.fmin(np.fmin(frame["tried"].to_numpy(np.float64), chosen), 0.0)
    better = tried < base - TOLERANCE
    if better.any():
        i = int(np.argmax(better))
        raise InputError(
            f"the best of task {names.iloc[i]} is given as {base[i]:g} (log-ratio), but {tried[i]:g} was tried; "
            f"leave the best out to have it pooled"
        )
    exploration = np.maximum(tried - base, 0.0)
    selection = chosen - tried
    regret = exploration + selection
    reference = frame["reference_ms"].to_numpy(np.float64)
    # NaN floors compare False: no share where it is not known that there is anything to find.
    clears = -base > frame["floor"].to_numpy(np.float64)
    share = np.divide(chosen, base, out=np.full(len(frame), np.nan), where=clears & (base < 0)) + 0.0  # no -0
    return pd.DataFrame(
        {
            "task": frame["task"].to_numpy(),
            "strategy": frame["strategy"].to_numpy(),
            "seed": frame["seed"].to_numpy(),
            "budget": frame["budget"].to_numpy(),
            "log_ratio": chosen,
            "speedup": np.exp(-chosen),
            "best": base,
            "best_known": names.map(tasks["known"]).to_numpy(bool),
            "regret": regret,
            "regret_percent": 100 * np.expm1(regret),
            "regret_ms": reference * np.exp(base) * np.expm1(regret),
            "exploration": exploration,
            "selection": selection,
            "share": share,
            "recommends": frame["recommended"].notna().to_numpy(),
        },
        index=frame.index,
    )
