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
from gpt_search.analysis.report import rough_count
from gpt_search.analysis.summary import ComparisonSummary, summarise_comparison
from gpt_search.analysis.targets import improvements
from gpt_search.domain.errors import InputError
from gpt_search.store.experiment import experiment_facts
from gpt_search.store.files import replace_file


@dataclass(frozen=True)
class Results:
    """cells: the finished ones. table: see `cells.frame`, at every declared budget of the axis. about: what
    `experiment.json` says. summary: the statistics; None without a control, or with one strategy."""

    cells: Sequence[Cell]
    table: pd.DataFrame
    about: Mapping[str, Any]
    summary: ComparisonSummary | None


def load_results(folder: str | Path, axis: str | None = None) -> Results:
    """The results of an experiment's folder, finished or not.

    axis: what budgets count, "trials", "builds" or "seconds"; by default the first that the experiment's budget gives.
    On another one, the largest of its budgets is tested.
    Raises InputError where there are no results, or the experiment declares no budgets on that axis.
    """
    about = experiment_facts(folder)
    axis = about["axis"] if axis is None else axis
    if axis != about["axis"]:
        about = {**about, "axis": axis, "tested": None}
    cells = _of_the_experiment(folder, about)
    table = frame(cells, axis)
    plan = about["statistics"]
    summary = None
    if plan["control"] is not None and len(about["strategies"]) > 1:
        summary = summarise_comparison(
            table,
            plan["control"],
            plan["alpha"],
            about["tested"],
            axis=axis,
            family=plan["family"],
            strategies=about["strategies"],
            tasks=about["tasks"],
            runs=improvements(cells, axis),
        )
    return Results(cells, table, about, summary)


def _of_the_experiment(folder: str | Path, about: Mapping[str, Any]) -> list[Cell]:
    """The cells; one that the experiment does not declare comes from another folder."""
    cells, seeds = load_cells(folder), set(about["facts"]["seeds"])
    for cell in cells:
        if cell.task not in about["tasks"] or cell.strategy not in about["strategies"] or cell.seed not in seeds:
            raise InputError(
                f"{folder} has a cell of task {cell.task!r}, strategy {cell.strategy!r}, seed {cell.seed}, which its "
                "experiment does not declare; remove that file from its folder cells"
            )
    return cells


def tasks_table(results: Results) -> pd.DataFrame:
    """Where the values of each task come from, by task.

    Columns: task, source (the label: what is simulated, and under which policy), optimum, routes, independent_builds
    (as text: "simulated" for planted tasks; of a live one those that any study had asked for).
    """
    found: dict[str, tuple[str, str, str, str]] = {}
    behind: dict[str, int] = {}
    for cell in results.cells:
        facts = cell.facts
        if facts.get("builds_behind") is not None:
            behind[cell.task] = max(behind.get(cell.task, 0), int(facts["builds_behind"]))
        optimum = "known" if facts.get("best_known") else "best of what was seen"
        routes = rough_count(int(facts.get("n_routes", 0)))
        found[cell.task] = (str(facts.get("label", "")), optimum, routes, str(behind.get(cell.task, "simulated")))
    rows = [(task, *about) for task, about in sorted(found.items())]
    return pd.DataFrame(rows, columns=["task", "source", "optimum", "routes", "independent_builds"])


def random_search(results: Results) -> pd.DataFrame:
    """The exact curve of random search without replacement, for each task that replays a full table.

    Columns: task, budget (draws: builds, or trials); expected, q25, median, q75: the true log(latency / reference)
    of the best route that so many draws have met; over all orders of drawing.
    """
    curves = {cell.task: cell.facts["random_search"] for cell in results.cells if "random_search" in cell.facts}
    names = ("expected", "q25", "median", "q75")
    parts = [
        pd.DataFrame({"task": task, "budget": curve["draws"]} | {name: curve[name] for name in names})
        for task, curve in sorted(curves.items())
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["task", "budget", *names])


def write_results(results: Results, folder: str | Path) -> None:
    """Writes results.csv, tasks.csv, statistics/ where there is a control, random_search.csv where a table is full.

    Raises InputError where one cannot be written.
    """
    out = Path(folder)
    tables = {"results": results.table, "tasks": tasks_table(results), "random_search": random_search(results)}
    for name, table in tables.items():
        file = out / f"{name}.csv"
        if not len(table):
            continue
        try:
            replace_file(file, table.to_csv(index=False).encode())
        except OSError as error:
            raise InputError(f"cannot write {file}: {error.strerror or error}") from None
    if results.summary is not None:
        results.summary.to_csv(out / "statistics", tables["tasks"])


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
