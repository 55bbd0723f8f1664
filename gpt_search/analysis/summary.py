"""The whole statistical summary of an experiment, from its table of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from gpt_search.analysis.anytime import anytime_curves, area_under_curve
from gpt_search.analysis.comparisons import COMPARISON_COLUMNS, paired_comparisons
from gpt_search.analysis.ranks import Friedman, average_ranks, friedman
from gpt_search.analysis.regret import pooled_best, regret_table
from gpt_search.analysis.targets import SHARES, ecdf, expected_running_time, runtimes, target_sensitivity
from gpt_search.analysis.tidy import budgets_of, strategies_of
from gpt_search.analysis.verdicts import Finding, findings, none_recommended, power_sentences, rank_sentence
from gpt_search.domain.errors import InputError, listing
from gpt_search.store.files import replace_file

TABLES: Mapping[str, str] = {
    "results": "Log-latency regret by task and strategy, and what it is made of",
    "comparisons": "Paired comparisons with the control on each task",
    "ranks": "Average rank over tasks",
    "friedman": "Ranks tested over tasks",
    "running_time": "Expected running time to targets",
    "ecdf": "Share of targets reached by each budget",
    "anytime": "Anytime curves of the regret in per cent",
    "area": "Mean regret over the budget, by study",
    "best": "The best of each task, and who found it",
    "sensitivity": "Success rates when the unknown best is changed",
}
NO_CONTROL = "No control is named, so no strategy was tested against another one; name one in the plan."
IN_MARKDOWN = ("results", "comparisons", "ranks", "friedman", "running_time", "best", "sensitivity")


@dataclass(frozen=True)
class ComparisonSummary:
    """What an experiment allows to say, and the tables it rests on.

    sentences: in order: warnings, findings by budget, the test over tasks, what was left out. tables: by name, see
    `TABLES`; one without rows says nothing (no unknown optimum, fewer than 10 tasks). findings: the same as the
    sentences about single strategies, for programs. friedman: by budget, where it was allowed.
    """

    control: str | None
    alpha: float
    axis: str
    budgets: tuple[float, ...]
    sentences: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame]
    findings: tuple[Finding, ...]
    friedman: Mapping[float, Friedman] = field(default_factory=dict)

    def to_markdown(self, tasks: pd.DataFrame | None = None) -> str:
        """Sentences, then the main tables; results and comparisons at the largest declared budget only.

        tasks: a table that says where the values of each task come from, shown after the sentences.
        """
        lines = [f"- {_escaped(sentence)}" for sentence in self.sentences]
        if tasks is not None and len(tasks):
            lines += ["", "### Where the values of each task come from", "", *_markdown(tasks)]
        for name in IN_MARKDOWN:
            table = self.tables[name]
            if name in ("results", "comparisons"):
                table = table[table["budget"] == self.budgets[-1]]
            if len(table):
                lines += ["", f"### {TABLES[name]}", "", *_markdown(table)]
        return "\n".join(lines) + "\n"

    def to_csv(self, folder: str | Path, tasks: pd.DataFrame | None = None) -> list[Path]:
        """Writes every table to folder/NAME.csv (numbers in full) and sentences to folder/verdicts.md; the paths.

        tasks: see `to_markdown`.
        Files of those names are replaced. Raises InputError when the folder cannot be written.
        """
        where = Path(folder)
        written = []
        try:
            where.mkdir(parents=True, exist_ok=True)
            for name, table in self.tables.items():
                written.append(where / f"{name}.csv")
                replace_file(written[-1], table.to_csv(index=False).encode())
            written.append(where / "verdicts.md")
            replace_file(written[-1], self.to_markdown(tasks).encode())
        except OSError as error:
            raise InputError(f"cannot write the tables to {where}: {error.strerror or error}") from None
        return written


def summarise_comparison(
    frame: pd.DataFrame,
    control: str | None,
    alpha: float = 0.05,
    budgets: Iterable[float] | None = None,
    *,
    axis: str = "builds",
    family: str = "budget",
    strategies: Sequence[str] = (),
    tasks: Sequence[str] = (),
    runs: pd.DataFrame | None = None,
    shares: tuple[float, ...] = SHARES,
) -> ComparisonSummary:
    """All tables and sentences of a comparison. How to call it, with the finished cells of an experiment::

        cells = load_cells(folder)
        frame = analysis.cells.frame(cells, axis=plan.axis)
        summary = summarise_comparison(
            frame, plan.control, plan.alpha, plan.budgets,
            axis=plan.axis, family=plan.family, runs=targets.improvements(cells, plan.axis),
        )
        for sentence in summary.sentences: print(sentence)
        summary.to_csv(folder / "statistics")

    frame: see `cells.frame`; it may have more budgets than are tested, for curves and ranks over time. control: the
    name of a strategy, as in the table; None: no strategy is tested against another one by itself. alpha: family-wise.
    budgets: those of the plan at which tests are done, by default all of the table. axis: the unit of budgets, for the
    sentences. family: what Holm's adjustment is over, see `paired_comparisons`. strategies, tasks: those that were
    declared, for some may have no study at all; that is said, and counts against claims. runs: what runtimes are read
    from; by default the frame, and then a runtime is as coarse as its budgets. shares: targets, as parts of the best
    gain.

    Deterministic. An unfinished experiment is fine: missing studies are counted, and count against every claim.
    Raises InputError for an unknown control or budget, a table with columns missing, or no other strategy.
    """
    tested = budgets_of(frame, budgets)
    present = strategies_of(frame)
    if control is None:
        comparisons, warnings = pd.DataFrame(columns=COMPARISON_COLUMNS), [NO_CONTROL]
    elif control in strategies and control not in present:
        comparisons = pd.DataFrame(columns=COMPARISON_COLUMNS)
        warnings = [f"The control {control} has no finished study, so no strategy was tested against it."]
    else:
        comparisons = paired_comparisons(
            frame, control, alpha, tested, family=family, strategies=strategies, tasks=tasks
        )
        warnings = power_sentences(comparisons, alpha, axis, family)
    for name in strategies:
        if name not in present and name != control:
            warnings.append(f"{name} has no finished study: nothing is said of its ranks, targets and regret.")
    best = pooled_best(frame)
    regret = regret_table(frame, best)
    found = findings(comparisons, axis)
    sentences = warnings + [finding.sentence for finding in found]
    tests: dict[float, Friedman] = {}
    refusals: list[str] = []
    for budget in tested:
        try:
            tests[budget] = friedman(frame, budget, alpha)
        except InputError as refusal:
            refusals.append(f"{str(refusal)[0].upper()}{str(refusal)[1:]}.")
    sentences += [rank_sentence(test, axis) for test in tests.values()] + list(dict.fromkeys(refusals))
    try:
        ranks = average_ranks(frame, 1 - alpha)
    except InputError as refusal:
        ranks = pd.DataFrame(columns=["strategy", "budget", "rank", "low", "high", "tasks", "left_out"])
        sentences.append(f"There are no average ranks: {refusal}.")
    source = frame if runs is None else runs
    # The pool of runs may be better than that of the frame: a study tries more than it has tried at a checkpoint.
    times = runtimes(source, shares, best=_joined(best, pooled_best(source)))
    sensitivity = target_sensitivity(source, shares)
    tables = {
        "results": _results(regret, tested),
        "comparisons": comparisons,
        "ranks": ranks,
        "friedman": _friedman_table(tests),
        "running_time": expected_running_time(times, 1 - alpha),
        "ecdf": ecdf(times),
        "anytime": anytime_curves(frame, "regret_percent", 1 - alpha),
        "area": _area(frame),
        "best": best,
        "sensitivity": sensitivity,
    }
    sentences += none_recommended(regret[regret["budget"].isin(tested)], axis)
    sentences += _about_the_best(best, frame, times, sensitivity)
    return ComparisonSummary(control, alpha, axis, tuple(tested), tuple(sentences), tables, tuple(found), tests)


def _joined(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    other = first["task"].map(second.set_index("task")["best"])
    return first.assign(best=np.fmin(first["best"], other))


def _results(regret: pd.DataFrame, budgets: list[float]) -> pd.DataFrame:
    """Medians over seeds with the quartiles of the regret."""
    rows = regret[regret["budget"].isin(budgets)]
    keys = ["budget", "task", "strategy"]
    groups = rows.astype({"task": str, "strategy": str}).groupby(keys, sort=True)
    table = groups.agg(
        n=("seed", "size"),
        recommends=("recommends", "mean"),
        speedup=("speedup", "median"),
        regret_percent=("regret_percent", "median"),
        regret_ms=("regret_ms", "median"),
        mean_regret=("regret", "mean"),
        exploration=("exploration", "mean"),
        selection=("selection", "mean"),
        share=("share", "median"),
        best_known=("best_known", "first"),
    )
    for name, q in (("q25", 0.25), ("q75", 0.75)):
        table[name] = groups["regret_percent"].quantile(q)
    order = [*table.columns[:4], "q25", "q75", *table.columns[4:-2]]
    return table[order].reset_index()


def _area(frame: pd.DataFrame) -> pd.DataFrame:
    """Areas of the studies that have every budget, which is all of them unless the table was put together by hand."""
    full = frame.groupby(["task", "strategy", "seed"], observed=True)["budget"].transform("size")
    rows = frame[full == frame["budget"].nunique()]
    if rows.empty or rows["budget"].max() <= 0:
        return pd.DataFrame(columns=["task", "strategy", "seed", "area"])
    return area_under_curve(rows)


def _friedman_table(tests: Mapping[float, Friedman]) -> pd.DataFrame:
    columns = ["budget", "strategy", "rank", "tasks", "f", "p", "critical_difference"]
    rows = [
        (budget, name, rank, len(test.tasks), test.f, test.p, test.critical_difference)
        for budget, test in tests.items()
        for name, rank in test.ranks.items()
    ]
    return pd.DataFrame(rows, columns=columns)


def _about_the_best(
    best: pd.DataFrame, frame: pd.DataFrame, times: pd.DataFrame, sensitivity: pd.DataFrame
) -> list[str]:
    out = []
    flat = sorted(set(best["task"]) - set(times["task"]))
    if flat:
        out.append(
            f"On {len(flat)} of {len(best)} tasks ({listing(flat, 4)}) the best gain does not clear the noise floor, "
            f"or the floor is unknown: no share of it is given, and no targets are set."
        )
    if len(sensitivity):
        changed = sensitivity[~sensitivity["order_kept"].astype(bool)]["variant"].unique()
        count = int(sensitivity["tasks"].iloc[0])
        effect = f"changes under: {listing(changed, 4)}" if len(changed) else "is the same under every variant tried"
        out.append(
            f"On {count} of {len(best)} tasks the optimum is unknown, and the best that was seen stands for it; the "
            f"order of the {len(strategies_of(frame))} strategies by targets reached {effect}."
        )
    return out


def _markdown(table: pd.DataFrame) -> list[str]:
    """Lines of a Markdown table, four digits a number."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    return lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in table.itertuples(index=False)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4g}"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    """Names of strategies and tasks are shown as they are, whatever characters they have."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, "\\" + mark)
    return text
