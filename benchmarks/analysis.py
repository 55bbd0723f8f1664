"""Time and peak memory of the whole statistical analysis of a large experiment, on a made-up table of results.

12 strategies x 28 tasks x 30 seeds is 10,080 cells; each is looked at at 4 budgets, and tried 8 improvements. A third
of the tasks has no known optimum. Prints the time of each part and of the summary with its files.
Usage: python benchmarks/analysis.py [STRATEGIES TASKS SEEDS BUDGETS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from gpt_search.analysis.anytime import anytime_curves, area_under_curve, random_search_curve
from gpt_search.analysis.comparisons import paired_comparisons
from gpt_search.analysis.ranks import average_ranks, friedman
from gpt_search.analysis.regret import regret_table
from gpt_search.analysis.summary import summarise_comparison
from gpt_search.analysis.targets import ecdf, expected_running_time, runtimes, target_sensitivity

IMPROVEMENTS = 8


def results(strategies: int, tasks: int, seeds: int, budgets: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of results at the budgets, and that of improvements."""
    rng = np.random.default_rng(seed)
    names = [f"strategy{i:02d}" for i in range(strategies)]
    tables = [f"task{i:02d}" for i in range(tasks)]
    keys = pd.DataFrame(product(tables, names, range(seeds)), columns=["task", "strategy", "seed"])
    gain = rng.uniform(0.05, 0.6, tasks)
    skill = rng.uniform(0.5, 4, strategies)
    of = keys["task"].str[4:].astype(int).to_numpy()
    by = keys["strategy"].str[8:].astype(int).to_numpy()
    best = np.where(np.arange(tasks) % 3 == 0, np.nan, -gain)

    def at(count: int, ends: np.ndarray) -> pd.DataFrame:
        # Shares of the gain that only grow, in steps of 1/40: routes of a table, many ties.
        steps = rng.beta(skill[by][:, None], 1.5 * count, (len(keys), count))
        share = np.round(40 * np.minimum(np.cumsum(steps, axis=1), 1)) / 40
        tried = -share * gain[of][:, None]
        worse = np.where(rng.random(tried.shape) < 0.2, 0.01, 0.0)
        rows = keys.loc[keys.index.repeat(count)].reset_index(drop=True)
        return rows.assign(
            budget=ends.ravel(),
            recommended=(tried + worse).ravel(),
            tried=tried.ravel(),
            minimum=tried.ravel(),
            best=np.repeat(best[of], count),
            floor=0.01,
            reference_ms=5.0,
            timed=10,
            failures=1,
        ).astype({"task": "category", "strategy": "category"})

    ends = np.tile(100.0 * np.arange(1, budgets + 1), (len(keys), 1))
    finer = np.cumsum(rng.integers(1, 40, (len(keys), IMPROVEMENTS)), axis=1).astype(np.float64)
    return at(budgets, ends), at(IMPROVEMENTS, finer)


def timed(name: str, function: Callable[..., Any], *args: Any) -> Any:
    began = time.perf_counter()
    out = function(*args)
    print(f"{name}: {time.perf_counter() - began:.2f} s", flush=True)
    return out


def main(strategies: int = 12, tasks: int = 28, seeds: int = 30, budgets: int = 4) -> None:
    frame, runs = results(strategies, tasks, seeds, budgets)
    print(
        f"{strategies} strategies x {tasks} tasks x {seeds} seeds: {strategies * tasks * seeds} cells, "
        f"{budgets} budgets"
    )
    control = "strategy00"
    timed("regret", regret_table, frame)
    timed("anytime curves", anytime_curves, frame)
    timed("area under the curve", area_under_curve, frame)
    timed("paired comparisons", paired_comparisons, frame, control)
    timed("average ranks", average_ranks, frame)
    timed("Friedman and Nemenyi", friedman, frame, 100.0 * budgets)
    times = timed("runtimes to targets", runtimes, runs)
    timed("ECDF", ecdf, times)
    timed("expected running time", expected_running_time, times)
    timed("sensitivity to the best", target_sensitivity, runs)
    timed("random search on 4,096 routes", random_search_curve, np.random.default_rng(0).normal(0, 0.1, 4096))
    began, cpu = time.perf_counter(), time.process_time()
    summary = summarise_comparison(frame, control, runs=runs)
    with tempfile.TemporaryDirectory() as folder:
        summary.to_csv(folder)
    took, busy = time.perf_counter() - began, time.process_time() - cpu
    print(f"whole summary, with its files: {took:.1f} s ({busy:.1f} s of CPU time); at most 60 s is wanted")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
