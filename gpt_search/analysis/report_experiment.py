"""The report of an experiment: verdicts first, then figures and tables."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpt_search.analysis import figures_compare as compare
from gpt_search.analysis.anytime import anytime_curves
from gpt_search.analysis.figures import new_figure
from gpt_search.analysis.regret import pooled_best
from gpt_search.analysis.report import Block, Document, Facts, Picture, Section, Sentences, Table, Text
from gpt_search.analysis.results import Results, plain_table, random_search, tasks_table
from gpt_search.analysis.summary import TABLES, ComparisonSummary, summarise_comparison
from gpt_search.analysis.targets import improvements

MOST_TASKS = 12
"""Tasks whose anytime curves are drawn each by itself; with more, one for each family."""


def experiment_report(results: Results) -> Document:
    """The report of an experiment's finished cells; of an unfinished one it says how much is there."""
    about, table = results.about, results.table
    axis = str(about["axis"])
    tasks = sorted({str(t) for t in table["task"]})
    strategies = sorted({str(s) for s in table["strategy"]})
    seeds = table.groupby(["task", "strategy"], observed=True)["seed"].nunique()
    sections = []
    plan = about["statistics"]
    summary = results.summary if results.summary is not None else _statistics_of(results)
    family = "all budgets" if plan.get("family", "budget") == "all" else "one budget"
    facts = [
        ("tasks", str(len(tasks))),
        ("strategies", ", ".join(strategies)),
        ("seeds", f"{seeds.min()} to {seeds.max()}" if seeds.min() != seeds.max() else str(seeds.max())),
        ("budget", f"{table['budget'].max():g} {axis}"),
        ("control", str(plan["control"] or "none")),
        ("level", f"{plan['alpha']:g}, Holm over the tests of {family}"),
        ("made with", f"gpt_search {about['gpt_search']}; digest {about['digest'][:16]}"),
    ]
    blocks: list[Block] = [Facts(facts)]
    missing = len(about["tasks"]) * len(about["strategies"]) * len(about["facts"]["seeds"]) - len(results.cells)
    if missing > 0:
        blocks.append(Text(f"{missing} cells are not finished; what is here may change.", "warning"))
    labels = tasks_table(results)
    if len(labels):
        blocks.append(Table("tasks", "Where the values of each task come from", labels))
    if summary is not None:
        sections.append(Section("What the tests say", [Sentences(summary.sentences)]))
    sections.append(Section("Experiment", blocks))
    sections.append(
        Section(
            f"At {table['budget'].max():g} {axis}",
            [
                Table(
                    "final",
                    "Median true gain (%) and regret (%, quartiles) of what is recommended; means of timed and failed",
                    plain_table(table),
                )
            ],
        )
    )
    sections.append(Section("Anytime curves", _anytime(results, axis, len(strategies))))
    if summary is not None:
        sections += _statistics(summary, table, axis, len(strategies))
    return Document(
        f"Experiment {about['name']}",
        f"{len(results.cells)} studies: {len(tasks)} tasks, {len(strategies)} strategies",
        sections,
    )


def _statistics_of(results: Results) -> ComparisonSummary | None:
    """The statistics where the results come without: of an experiment that names no control."""
    about, plan = results.about, results.about["statistics"]
    there = {cell.strategy for cell in results.cells}
    if len(there) < 2:
        return None
    return summarise_comparison(
        results.table,
        plan["control"],
        plan["alpha"],
        about.get("tested"),
        axis=about["axis"],
        family=plan.get("family", "budget"),
        strategies=about["strategies"],
        tasks=about["tasks"],
        runs=improvements(results.cells, about["axis"]),
    )


def families(tasks: list[str]) -> dict[str, list[str]]:
    """Tasks by family: names that differ in a last number only, as "sparse-1" and "sparse-2"."""
    out: dict[str, list[str]] = {}
    for task in tasks:
        out.setdefault(re.sub(r"[-_ ]?\d+$", "", task) or task, []).append(task)
    return out


def chance(results: Results) -> dict[str, pd.DataFrame]:
    """For the figures, by task. Columns: budget, median: regret (%) of the best route that so many draws have met."""
    curves = random_search(results)
    if not len(curves) or results.about["axis"] not in ("builds", "trials"):
        return {}
    best = pooled_best(results.table).set_index("task")["best"]
    return {
        str(task): pd.DataFrame(
            {
                "budget": rows["budget"].to_numpy(np.float64),
                "median": 100 * np.expm1(np.maximum(rows["median"].to_numpy() - best[task], 0.0)),
            }
        )
        for task, rows in curves.groupby("task")
    }


def _anytime(results: Results, axis: str, strategies: int) -> list[Block]:
    curves, lucky = anytime_curves(results.table, "regret_percent"), chance(results)
    tasks = sorted(curves["task"].unique())
    groups = {t: [t] for t in tasks} if len(tasks) <= MOST_TASKS else families(tasks)
    blocks: list[Block] = []
    for number, (name, members) in enumerate(groups.items()):
        rows = curves[curves["task"].isin(members)]
        text = f"{name}: median regret over seeds, with its pointwise 95 % bootstrap band"
        if len(members) > 1:
            # Tasks are blocks: seeds are not pooled, the tasks' own medians are averaged.
            rows = rows.groupby(["strategy", "budget"], as_index=False)[["median", "low", "high"]].mean()
            text = (
                f"{name}: mean over {len(members)} tasks of the median regret over seeds; the band is the mean of the "
                "tasks' bootstrap bands"
            )
        alone = lucky.get(members[0]) if len(members) == 1 else None
        if alone is not None:
            text += "; grey: the best that random draws without replacement have met, the exact median"
        figure, ax = new_figure(2.7 + compare.legend_height(strategies + (alone is not None)))
        compare.anytime(rows, ax, unit=axis, chance=alone)
        ax.set_title(name, loc="left")
        blocks.append(Picture(f"anytime_{number}", text, figure))
    return blocks


def _statistics(summary: ComparisonSummary, table: pd.DataFrame, axis: str, strategies: int) -> list[Section]:
    sections = []
    tables = summary.tables
    height = 2.7 + compare.legend_height(strategies)
    mean = tables["ecdf"][tables["ecdf"]["task"] == ""]
    if len(mean):
        figure, ax = new_figure(height)
        compare.ecdf(mean, ax, unit=axis, until=float(table["budget"].max()))
        caption = "Share of targets (parts of each task's best gain) tried by each budget; mean over tasks"
        blocks: list[Block] = [Picture("ecdf", caption, figure)]
        if len(tables["running_time"]):
            caption = f"{TABLES['running_time']}: ERT in {axis}, success rates, bootstrap intervals"
            blocks.append(Table("running_time", caption, tables["running_time"]))
        sections.append(Section("Targets", blocks))
    blocks = []
    if len(tables["ranks"]):
        figure, ax = new_figure(height)
        compare.ranks(tables["ranks"], ax, unit=axis)
        blocks.append(Picture("ranks", "Average rank over tasks by the recommended route; 1 is best", figure))
    if summary.friedman:
        budget, test = max(summary.friedman.items())
        rows = pd.DataFrame({"strategy": test.ranks.index.astype(str), "rank": test.ranks.to_numpy()})
        figure, ax = new_figure(compare.critical_difference_height(len(rows), len(test.groups)))
        compare.critical_difference(rows, ax, difference=test.critical_difference, groups=test.groups)
        caption = (
            f"Critical differences at {budget:g} {axis} over {len(test.tasks)} tasks: bars join strategies that "
            "Nemenyi's test does not tell apart"
        )
        blocks.append(Picture("critical_difference", caption, figure))
    if blocks:
        sections.append(Section("Ranks", blocks))
    last = summary.budgets[-1]
    blocks = []
    for name in ("comparisons", "results", "ranks", "friedman", "best", "sensitivity", "area"):
        rows = tables[name]
        caption = TABLES[name]
        if name in ("comparisons", "results", "ranks") and len(rows) and len(summary.budgets) > 1:
            rows, caption = rows[rows["budget"] == last], f"{caption}, at {last:g} {axis}"
        if len(rows) and len(rows.columns):
            blocks.append(Table(name, caption, rows.reset_index(drop=True)))
    return [*sections, Section("Tables", blocks)]
