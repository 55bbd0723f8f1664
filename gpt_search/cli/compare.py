"""`gpt-search compare`: strategies on the tasks of an experiment, on equal budgets."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import (
    WholeNumber,
    json_option,
    output_width,
    print_json,
    print_table,
    print_wrapped,
    wrapped,
)
from gpt_search.cli.errors import UNEXPECTED
from gpt_search.cli.live import LiveProgress, clock_text, stoppable
from gpt_search.domain.errors import InputError

if TYPE_CHECKING:
    from gpt_search.analysis.results import Results
    from gpt_search.run.compare import CompareResult, CompareStatus
    from gpt_search.run.compare_plan import Plan
    from gpt_search.run.experiment import Experiment

_EVERY_S = 5.0
_SHOWN_FAILURES = 5


class CompareProgress(LiveProgress):
    """One line that renews itself on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        """No study has a budget here."""
        super().__init__(None)
        self._last = 0.0

    def begin(self, total: int, earlier: int) -> None:
        """Once, before the first cell."""
        there = f", {earlier} finished before" if earlier else ""
        self._line(f"{total} cells{there}")

    def building_route(self, what: str) -> None:
        """Before every build of a live task."""
        if self._live is not None:
            self._line(what)

    def cell(self, status: CompareStatus) -> None:
        """After every cell."""
        where = status.last.cell
        if status.last.error is not None:
            self.note(f"{where.task}, {where.strategy}, seed {where.seed} failed: {status.last.error}")
        now = time.monotonic()
        if self._live is None and now - self._last < _EVERY_S and status.done < status.total:
            return
        self._last = now
        left = "" if status.left_s is None else f"  {clock_text(status.left_s)} left"
        failed = f"  {status.failed} failed" if status.failed else ""
        self._line(
            f"cell {status.done}/{status.total}{failed}{left}  {where.task}, {where.strategy}, seed {where.seed}"
        )


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the cells and results.")
@click.option(
    "--jobs", type=WholeNumber(1), metavar="N", help="Processes for simulated tasks.  [default: number of cores]"
)
@click.option("--dry-run", is_flag=True, help="List the cells and what they cost; nothing is run.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of FILE.")
@json_option
def compare(
    file: Path | None, out: Path | None, jobs: int | None, dry_run: bool, schema: bool, as_json: bool
) -> int | None:
    """Run the experiment in FILE: strategies on tasks, with seeds, on equal budgets.

    Finished cells stay in DIR; the same command again runs those that are missing.
    """
    from gpt_search.run.experiment import json_schema, load_experiment

    if schema:
        print_json(json_schema())
        return None
    if file is None:
        raise InputError("name the experiment's file, as in gpt-search compare experiments/smoke.toml --out smoke")
    experiment = load_experiment(file)
    if dry_run:
        from gpt_search.run.compare_plan import plan

        _print_plan(experiment, plan(experiment, out, jobs), as_json)
        return None
    if out is None:
        raise InputError("say where the results go: --out DIR (or see what would run: --dry-run)")
    from gpt_search.run.compare import compare as run

    live = CompareProgress()
    live.continue_command = shlex.join(["gpt-search", "compare", str(file), "--out", str(out)])
    with stoppable(live):
        done = run(experiment, out, jobs, live.cell, live.begin, live.building_route)
    results = None
    if done.earlier + done.ran:
        from gpt_search.analysis.results import load_results, write_results

        results = load_results(out)
        write_results(results, out)
    _print_result(experiment, done, results, as_json)
    return UNEXPECTED if done.failures else None


def _print_plan(experiment: Experiment, plan: Plan, as_json: bool) -> None:
    budget = ", ".join(f"{value:g} {name}" for name, value in experiment.facts["budget"].items())
    if as_json:
        tasks = [vars(task) for task in plan.tasks]
        listed = [{"task": c.task, "strategy": c.strategy, "seed": c.seed} for c in experiment.cells()]
        facts = {"experiment": experiment.name, "budget": experiment.facts["budget"], "tasks": tasks, "cells": listed}
        print_json(facts | {"finished": plan.finished, "wall_s": plan.wall_s})
        return
    seeds, strategies = len(experiment.seeds), len(experiment.strategies)
    click.echo(
        f"{experiment.name}: {plan.cells} cells = {len(plan.tasks)} tasks x {strategies} strategies x {seeds} seeds; "
        f"each study {budget}"
    )
    print_wrapped(", ".join(s.name for s in experiment.strategies), first="strategies: ", indent="  ")
    rows = []
    for task in plan.tasks:
        builds = "-" if task.builds is None else f"{task.builds:,}"
        cost = "-" if task.seconds is None else f"{task.seconds / 3600:,.1f} h"
        kind = "" if task.seconds is None else ("here" if task.live else "simulated")
        rows.append((task.task, str(task.cells), str(task.finished), builds, cost, kind, task.label))
    headers = ("task", "cells", "finished", "builds, at most", "charged", "", "what")
    print_table(headers, rows, right=(1, 2, 3, 4), remarks=True)
    if experiment.wall_clock_s is not None:
        click.echo(f"no cell is started after {clock_text(experiment.wall_clock_s)} of one run")
    if plan.cells == plan.finished:
        click.echo("all cells are finished")
    elif plan.wall_s is not None:
        click.echo(
            f"time for the {plan.cells - plan.finished} cells left, as long as the finished ones took: "
            f"{clock_text(plan.wall_s)}"
        )
    else:
        click.echo("how long that takes here is known once a cell has finished")


def _print_result(experiment: Experiment, done: CompareResult, results: Results | None, as_json: bool) -> None:
    failures = [
        {"task": f.cell.task, "strategy": f.cell.strategy, "seed": f.cell.seed, "error": f.error} for f in done.failures
    ]
    if as_json:
        form: dict[str, Any] = {
            "experiment": experiment.name,
            "out": str(done.folder),
            "cells": {"total": done.total, "earlier": done.earlier, "ran": done.ran, "left": done.left},
            "failures": failures,
            "wall_s": done.wall_s,
        }
        if results is not None:
            from gpt_search.analysis.results import plain_table, tasks_table

            form["tasks"] = tasks_table(results).to_dict("records")
            form["table"] = plain_table(results.table).to_dict("records")
            form["verdicts"] = [] if results.summary is None else list(results.summary.sentences)
        print_json(form)
        return
    if results is not None:
        _print_tables(experiment, results)
    missing = done.total - done.earlier - done.ran
    click.echo(
        f"\n{done.earlier + done.ran} of {done.total} cells are finished ({done.ran} in this run, "
        f"{clock_text(done.wall_s)}); results: {done.folder / 'results.csv'}"
    )
    if done.left:
        click.echo(f"{done.left} cells were not started: wall_clock_s is used up. The same command again goes on")
    if failures:
        click.echo(f"{len(failures)} cells failed, and are tried again by the same command:", err=True)
        for failure in failures[:_SHOWN_FAILURES]:
            text = f"{failure['task']}, {failure['strategy']}, seed {failure['seed']}: {failure['error']}"
            click.echo(wrapped(text, output_width(), indent="    ", first="  "), err=True)
        if len(failures) > _SHOWN_FAILURES:
            click.echo(f"  and {len(failures) - _SHOWN_FAILURES} more in {done.folder / 'failed'}", err=True)
    elif missing and not done.left:
        click.echo(f"{missing} cells are missing", err=True)


def _print_tables(experiment: Experiment, results: Results) -> None:
    from gpt_search.analysis.results import plain_table, tasks_table

    table = plain_table(results.table)
    rows = [
        (
            str(row.task),
            str(row.strategy),
            str(row.n),
            f"{row.gain:.2f}",
            f"{row.regret:.2f}",
            f"{row.low:.2f} to {row.high:.2f}",
            f"{row.timed:.0f}",
            f"{row.failures:.0f}",
        )
        for row in table.itertuples(index=False)
    ]
    at = f"at {results.table['budget'].max():g} {experiment.axis}"
    print_wrapped(f"{experiment.name} {at}: medians over seeds of the true gain and of the regret, in per cent")
    headers = ("task", "strategy", "n", "gain %", "regret %", "quartiles", "timed", "failed")
    print_table(headers, rows, right=(2, 3, 4, 6, 7))
    click.echo("")
    for row in tasks_table(results).itertuples(index=False):
        live = any(cell.task == row.task and cell.facts.get("live") for cell in results.cells)
        shared = f"; {row.independent_builds} independent builds behind it" if live else ""
        print_wrapped(f"{row.task}: {row.source}{shared}", indent="  ")
    if results.summary is not None:
        click.echo("")
        for sentence in results.summary.sentences:
            print_wrapped(sentence, first="- ", indent="  ")
