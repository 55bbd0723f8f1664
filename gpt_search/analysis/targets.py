"""Runtimes to targets: empirical distribution functions (ECDF), expected running time (ERT) and success rates.

A target is a share of the best gain of its task: log-ratio <= share * best. What was not reached is no missing value:
a runtime is then known to exceed the budget that was spent.

Sources: N. Hansen, A. Auger, D. Brockhoff and T. Tusar, "Anytime performance assessment in blackbox optimization
benchmarking", IEEE Trans. Evol. Comput. 26 (2022) 1293-1305 (ECDF of runtimes to targets); A. Auger and N. Hansen,
"Performance evaluation of an advanced local search evolutionary algorithm", CEC 2005 (ERT and success rates).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpt_search.analysis.bootstrap import weights
from gpt_search.analysis.cells import Cell
from gpt_search.analysis.regret import TOLERANCE, pooled_best
from gpt_search.analysis.tidy import checked, kept
from gpt_search.domain.errors import InputError, did_you_mean, listing

SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)
COLUMNS = ("tried", "recommended", "minimum")


def improvements(cells: Iterable[Cell], axis: str = "builds") -> pd.DataFrame:
    """What every study had tried, at each budget where that became better: exact runtimes, whatever the checkpoints.

    Columns as in `cells.frame`, without minimum, timed and failures: one row for the reference (budget 0), one for
    each improvement, and a last one with all that was spent. recommended is NaN: it is worked out at declared budgets
    only, so `runtimes(..., column="tried")` is what this table is for.
    """
    parts: dict[str, list[NDArray[np.float64]]] = {"budget": [], "tried": []}
    cells = list(cells)
    if axis not in ("trials", "builds", "seconds"):
        raise InputError(f"a budget is counted in trials, builds or seconds, not in {axis!r}")
    for cell in cells:
        spent = (np.arange(len(cell)) if axis == "trials" else getattr(cell, axis)).astype(np.float64)
        best = np.fmin.accumulate(np.where(cell.feasible, cell.truth, np.nan))
        best = np.fmin(best, 0.0)
        new = np.r_[True, best[1:] < best[:-1]]
        # Several rows of one budget count as what the last of them left.
        rows = np.flatnonzero(new)
        rows = np.append(rows, len(spent) - 1)
        rows = rows[np.r_[spent[rows][1:] > spent[rows][:-1], True]]
        parts["budget"].append(spent[rows])
        parts["tried"].append(best[rows])
    counts = [len(b) for b in parts["budget"]]

    def fact(name: str) -> NDArray[np.float64]:
        known = [
            cell.facts.get(name) if name != "best" or cell.facts.get("best_known", True) else None for cell in cells
        ]
        return np.array([np.nan if value is None else value for value in known], np.float64)

    table = {
        "task": pd.Categorical(np.repeat(np.array([c.task for c in cells], object), counts)),
        "strategy": pd.Categorical(np.repeat(np.array([c.strategy for c in cells], object), counts)),
        "seed": np.repeat(np.array([c.seed for c in cells], np.int64), counts),
        "budget": np.concatenate([*parts["budget"], np.empty(0)]),
        "recommended": np.full(sum(counts), np.nan),
        "tried": np.concatenate([*parts["tried"], np.empty(0)]),
    }
    return pd.DataFrame(table | {name: np.repeat(fact(name), counts) for name in ("best", "floor", "reference_ms")})


def runtimes(
    frame: pd.DataFrame, shares: Sequence[float] = SHARES, column: str = "tried", best: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The first budget of the table at which each study had reached each target.

    frame: see `cells.frame`, or `improvements`; a runtime is as fine as the budgets of the table. shares: parts of the
    best gain, in (0, 1]. column: "tried" (found), "recommended" (would be shipped; may be lost again, the first time
    counts) or "minimum". best: see `regret.pooled_best`.

    Columns: task, strategy, seed, share, target (log-ratio), runtime (inf where not reached), spent (all that the
    study spent), reached. Tasks whose best gain does not clear the noise floor are left out: there is nothing to find.
    Raises InputError for shares or a column that are not allowed.
    """
    if column not in COLUMNS:
        raise InputError(f"no runtimes of {column!r}; allowed: {listing(COLUMNS)}{did_you_mean(column, COLUMNS)}")
    wanted = np.asarray(shares, np.float64)
    if not wanted.size or not ((wanted > 0) & (wanted <= 1)).all() or len(np.unique(wanted)) != wanted.size:
        raise InputError(f"targets are different shares of the best gain, above 0 and up to 1; got {list(shares)}")
    checked(frame, (column, "best", "floor"))
    tasks = (pooled_best(frame) if best is None else best).set_index("task")["best"]
    values = np.fmin(kept(frame) if column == "recommended" else frame[column].astype(np.float64), 0.0)
    rows = pd.DataFrame(
        {
            "task": frame["task"].astype(str).to_numpy(),
            "strategy": frame["strategy"].astype(str).to_numpy(),
            "seed": frame["seed"].to_numpy(),
            "budget": frame["budget"].to_numpy(np.float64),
            "value": np.asarray(values, np.float64),
        }
    )
    base = rows["task"].map(tasks).to_numpy(np.float64)
    rows = rows.assign(best=base)[-base > frame["floor"].to_numpy(np.float64)]
    parts: list[pd.DataFrame] = []
    keys = ["task", "strategy", "seed"]
    for part in wanted:
        target = part * rows["best"]
        reached = rows["value"] <= target + TOLERANCE
        runtime = rows["budget"].where(reached, np.inf)
        one = rows.assign(target=target, runtime=runtime).groupby(keys, sort=True)
        table = one.agg(target=("target", "first"), runtime=("runtime", "min"), spent=("budget", "max")).reset_index()
        table.insert(3, "share", part)
        parts.append(table)
    out = pd.concat(parts, ignore_index=True)
    out["reached"] = np.isfinite(out["runtime"])
    return out.sort_values([*keys, "share"], ignore_index=True)


def ecdf(times: pd.DataFrame) -> pd.DataFrame:
    """The share of targets reached by each budget. times: from `runtimes`.

    Columns: strategy, task ("" is the mean over tasks, each with the same weight, however many seeds it has), budget,
    share. One row per budget where a curve rises, after one at budget 0; it holds from there on. It never comes down,
    and ends at the share that was reached at all.
    """
    parts: list[pd.DataFrame] = []
    per_task = times.groupby(["strategy", "task"])["runtime"].transform("size").to_numpy(np.float64)
    n_tasks = times.groupby("strategy")["task"].transform("nunique").to_numpy(np.float64)
    for task_weight, weight in ((True, 1 / per_task), (False, 1 / (per_task * n_tasks))):
        one = times[["strategy", "task", "runtime"]].assign(weight=weight)
        if not task_weight:
            one["task"] = ""
        keys = ["strategy", "task"]
        zero = one[keys].drop_duplicates().assign(runtime=0.0, weight=0.0)
        one = pd.concat([zero, one[np.isfinite(one["runtime"])]], ignore_index=True)
        steps = one.groupby([*keys, "runtime"], sort=True)["weight"].sum()
        share = steps.groupby(level=keys).cumsum().clip(upper=1.0)
        parts.append(share.rename("share").rename_axis([*keys, "budget"]).reset_index())
    return pd.concat(parts, ignore_index=True)


def expected_running_time(
    times: pd.DataFrame, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> pd.DataFrame:
    """ERT = (budget spent by all studies, each up to its target or its end) / (studies that reached the target).

    That is the expected cost of restarting until the target is reached: mean runtime of successes + (1 - p) / p times
    mean cost of failures, with p the success rate (Auger and Hansen 2005). times: from `runtimes`.

    Columns: task, strategy, share, target, n, successes, success_rate, ert (inf without a success), low, high
    (percentile bootstrap over seeds; inf where resamples without a success reach that far). Sorted.
    """
    keys = ["task", "strategy", "share"]
    times = times.sort_values([*keys, "seed"], ignore_index=True)
    spent = np.where(times["reached"], times["runtime"], times["spent"]).astype(np.float64)
    reached = times["reached"].to_numpy(np.float64)
    groups = times.groupby(keys, sort=True)
    out = groups.agg(target=("target", "first"), n=("reached", "size"), successes=("reached", "sum")).reset_index()
    n = out["n"].to_numpy(np.int64)
    start = np.cumsum(n) - n
    ert, low, high = (np.full(len(out), np.inf) for _ in range(3))
    cut = (1 - confidence) / 2
    for size in np.unique(n):
        which = np.flatnonzero(n == size)
        index = start[which, None] + np.arange(size)
        cost, hits = spent[index], reached[index]
        with np.errstate(divide="ignore", invalid="ignore"):
            ert[which] = np.where(hits.sum(axis=1) > 0, cost.sum(axis=1) / hits.sum(axis=1), np.inf)
            drawn = weights(int(size), resamples, seed).T
            for at in range(0, len(which), 512):
                some = slice(at, at + 512)
                found = hits[some] @ drawn
                ratios = np.where(found > 0, (cost[some] @ drawn) / found, np.inf)
                # An order statistic, not interpolated: between a number and infinity there is nothing.
                low[which[some]], high[which[some]] = np.quantile(ratios, [cut, 1 - cut], axis=1, method="inverted_cdf")
    out["success_rate"] = out["successes"] / out["n"]
    return out.assign(ert=ert, low=low, high=high)


def target_sensitivity(frame: pd.DataFrame, shares: Sequence[float] = SHARES, column: str = "tried") -> pd.DataFrame:
    """How far results depend on what is taken for the best, where no optimum is known.

    Success rates are worked out again with the best of each such task changed in three ways: "without the finder" (the
    best that the other strategies have seen, for each strategy that alone found the pooled one), "one floor better"
    and "twice the gain" (as if nobody had come near).

    Columns: variant ("pooled" first), strategy, share_reached (mean over targets and seeds per task, then over
    tasks), rank (1 is best, ties share), tasks (with an unknown optimum; the others are not part of this table), and
    order_kept (the variant ranks all strategies as "pooled" does). No rows when every optimum is known.
    """
    names = ["variant", "strategy", "share_reached", "rank", "tasks", "order_kept"]
    pooled = pooled_best(frame)
    unknown = pooled.loc[~pooled["known"], "task"]
    rows = frame[frame["task"].astype(str).isin(unknown)]
    if rows.empty:
        return pd.DataFrame(columns=names)
    base = pooled_best(rows)
    floor = base["task"].map(rows.groupby(rows["task"].astype(str))["floor"].first()).fillna(0.0)
    variants = {"pooled": base, "one floor better": base.assign(best=base["best"] - floor)}
    variants["twice the gain"] = base.assign(best=2 * base["best"])
    for finder in sorted({f for f in base["found_by"] if ", " not in f}):
        rest = rows[rows["strategy"].astype(str) != finder]
        if rest.empty:
            continue
        others = pooled_best(rest).set_index("task")["pooled"]
        mine = base["found_by"] == finder
        changed = base["task"].map(others).where(mine, base["best"]).fillna(base["best"])
        variants[f"without the finder {finder}"] = base.assign(best=changed)
    parts: list[pd.DataFrame] = []
    order: pd.Series | None = None
    for variant, best in variants.items():
        times = runtimes(rows, shares, column, best)
        per_task = times.groupby(["strategy", "task"])["reached"].mean()
        means = per_task.groupby(level="strategy").mean()
        rank = means.round(12).rank(ascending=False)
        order = rank if order is None else order
        table = pd.DataFrame({"strategy": means.index, "share_reached": means.to_numpy(), "rank": rank.to_numpy()})
        parts.append(table.assign(variant=variant, tasks=len(unknown), order_kept=bool(rank.equals(order))))
    return pd.concat(parts, ignore_index=True)[names]
