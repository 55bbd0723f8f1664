"""Anytime curves: how good a strategy is at each budget, over seeds; and the exact curve of random search.

The budget is whatever axis the table was made over: trials, builds or seconds. Bands are pointwise: each holds at its
own budget, not all of them together.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gpt_search.analysis.bootstrap import median_ranks
from gpt_search.analysis.regret import MEASURES, regret_table
from gpt_search.analysis.tidy import budgets_of, checked
from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.search.chance import best_of_draws


def anytime_curves(frame: pd.DataFrame, measure: str = "regret", confidence: float = 0.95) -> pd.DataFrame:
    """Median, quartiles and bootstrap band over seeds, per task, strategy and budget.

    frame: see `cells.frame`. measure: one of `regret.MEASURES`, or a numeric column of the table (such as "tried").
    Columns: task, strategy, budget, n (seeds with a value), median, q25, q75 (linear interpolation), mean, low, high
    (bootstrap interval of the median, see `bootstrap.median_ranks`). Sorted by task, strategy, budget. Studies
    without a value (a share where there is no gain to find) are left out. Raises InputError for an unknown measure.
    """
    checked(frame)
    if measure in MEASURES:
        values = regret_table(frame)[measure].to_numpy(np.float64)
    elif measure in frame.columns and pd.api.types.is_numeric_dtype(frame[measure]):
        values = frame[measure].to_numpy(np.float64)
    else:
        allowed = [*MEASURES, *(c for c in frame.columns if c not in ("task", "strategy", "seed", "budget"))]
        raise InputError(f"unknown measure {measure!r}; allowed: {listing(allowed)}{did_you_mean(measure, allowed)}")
    long = pd.DataFrame(
        {
            "task": frame["task"].astype(str).to_numpy(),
            "strategy": frame["strategy"].astype(str).to_numpy(),
            "budget": frame["budget"].to_numpy(),
            "value": values,
        }
    ).dropna()
    keys = ["task", "strategy", "budget"]
    # Sorted, groups are slices, and any quantile of all groups at once is a gather.
    long = long.sort_values([*keys, "value"], ignore_index=True)
    groups = long.groupby(keys, sort=True)["value"]
    out = groups.agg(n="size", mean="mean").reset_index()
    n = out["n"].to_numpy(np.int64)
    start = np.cumsum(n) - n
    ordered = long["value"].to_numpy(np.float64)
    for name, q in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
        place = q * (n - 1)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, n - 1)
        first, second = ordered[start + below], ordered[start + above]
        out[name] = first + (place - below) * (second - first)
    ranks = np.array([median_ranks(int(k), confidence) for k in n], np.int64).reshape(-1, 2)
    out["low"], out["high"] = ordered[start + ranks[:, 0]], ordered[start + ranks[:, 1]]
    return out[[*keys, "n", "median", "q25", "q75", "mean", "low", "high"]]


def area_under_curve(frame: pd.DataFrame, measure: str = "regret") -> pd.DataFrame:
    """The mean of a measure over the budget, from 0 to the largest: one number per study.

    What a study has reached holds until the next budget of the table; before the first it is the reference. So the
    area is exact for a table that has every budget, and too large (for a regret) for a coarse one. All strategies are
    cut at the same budgets. measure: regret, log_ratio, exploration or selection (log units).
    Columns: task, strategy, seed, area. Raises InputError for another measure, or a study that lacks a budget.
    """
    allowed = ("regret", "log_ratio", "exploration", "selection")
    if measure not in allowed:
        raise InputError(f"no area under {measure!r}; allowed: {listing(allowed)}{did_you_mean(measure, allowed)}")
    table = regret_table(frame)
    ends = budgets_of(table)
    if ends[-1] <= 0:
        raise InputError(f"an area needs a budget above 0; the largest is {ends[-1]:g}")
    widths = dict(zip(ends, np.diff([*ends, ends[-1]]), strict=True))
    width = table["budget"].astype(np.float64).map(widths).to_numpy(np.float64)
    keys = ["task", "strategy", "seed"]
    parts = table[keys].astype({"task": str, "strategy": str})
    at_reference = {"regret": -table["best"], "exploration": -table["best"]}
    parts["area"] = table[measure].to_numpy(np.float64) * width
    parts["before"] = at_reference[measure].to_numpy(np.float64) if measure in at_reference else 0.0
    sums = parts.groupby(keys, sort=True).agg(area=("area", "sum"), before=("before", "first"), n=("area", "size"))
    partial = sums[sums["n"] != len(ends)].reset_index()
    if len(partial):
        task, strategy, seed = partial.loc[0, keys]
        raise InputError(
            f"task {task}, strategy {strategy}, seed {seed} lacks some of the budgets "
            f"{listing(f'{b:g}' for b in ends)}; an area needs all studies at the same budgets"
        )
    sums["area"] = (sums["area"] + sums["before"] * ends[0]) / ends[-1]
    return sums[["area"]].reset_index()


def random_search_curve(log_ratios: ArrayLike, draws: ArrayLike | None = None, start: float = 0.0) -> pd.DataFrame:
    """The exact distribution of the best of k routes drawn without replacement from a full table.

    log_ratios, draws, start: as `search.chance.best_of_draws` takes them; draws by default 0 to N.
    Columns: draws, expected, q25, median, q75. Raises InputError as that does.
    """
    total = np.asarray(log_ratios).size
    ks = np.arange(total + 1) if draws is None else np.asarray(draws, np.int64).ravel()
    table = pd.DataFrame(best_of_draws(log_ratios, ks, start), columns=["expected", "q25", "median", "q75"])
    table.insert(0, "draws", ks)
    return table
