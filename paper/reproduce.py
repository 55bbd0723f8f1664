"""Rebuilds every figure and number of the paper from the recorded tables in paper/data.

Run: python paper/reproduce.py --out paper/out [--jobs N] [--experiment FILE]

Six minutes on two cores; the same command again goes on where it was stopped. In the folder: paper.md, which is
paper.md.j2 with its numbers; a report of each table and of the experiment, with the figures and CSV files that the
text refers to; the experiment's cells.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from gpt_search.analysis.importance_data import trials_of
from gpt_search.analysis.importance_sparse import sparse_effects
from gpt_search.analysis.report import to_folder
from gpt_search.analysis.report_experiment import experiment_report
from gpt_search.analysis.report_table import engines_table, table_report
from gpt_search.analysis.results import Results, load_results
from gpt_search.analysis.table_history import recorded_order, table_history
from gpt_search.cli.table import table_json
from gpt_search.domain.errors import InputError
from gpt_search.run.compare import compare
from gpt_search.run.experiment import load_experiment
from gpt_search.store.tables import Table, load_table

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"


def check_data(folder: Path = DATA) -> list[Path]:
    """The tables, in the order of SHA256SUMS. Raises InputError for one that is missing or another."""
    tables = []
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise InputError(f"{path} is missing, or not the table of SHA256SUMS; take it from the repository again")
        tables.append(path)
    return tables


def table_numbers(table: Table) -> dict[str, Any]:
    """What the text says of one table."""
    history, effect = table_history(table), table.between_builds
    assert effect is not None, "the paper's tables repeat builds"
    changes = [str(table.route(r).changes(table.settings["database"]["defaults"])) for r in recorded_order(table)]
    engines = engines_table(table, history, changes)
    effects = sparse_effects(trials_of(history)).effects
    return {
        "about": table_json(table),
        "deviation": effect.deviation,
        "best": engines.iloc[int(engines["chosen"].to_numpy().argmax())].to_dict(),
        "effects": effects[(effects["low"] > 1) | (effects["high"] < 1)].head(8).to_dict("records"),
    }


def experiment_numbers(results: Results) -> dict[str, Any]:
    """What the text says of the experiment: the medians by task and budget, and the sentences that the tests allow."""
    assert results.summary is not None, "the paper's experiment names a control"
    found = results.summary.tables["results"]
    return {
        "control": results.summary.control,
        "cells": len(results.cells),
        "seeds": int(results.table["seed"].nunique()),
        "budgets": [f"{b:g}" for b in results.summary.budgets],
        "tasks": {
            task: regrets(found[(found["task"] == task) & found["budget"].isin(results.summary.budgets)])
            for task in sorted(set(found["task"]))
        },
        "sentences": results.summary.sentences,
    }


def regrets(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One row per strategy, the best at the last budget first: strategy, and its median regrets (%) by budget."""
    table = rows.pivot(index="strategy", columns="budget", values="regret_percent")
    table = table.sort_values([*table.columns[::-1]], kind="stable")
    return [{"strategy": name, "regrets": row.tolist()} for name, row in table.iterrows()]


def reproduce(out: Path, experiment: Path, jobs: int | None) -> Path:
    """Makes the folder; returns the text. Raises InputError."""
    numbers = {}
    for path in check_data():
        table = load_table(path)
        to_folder(table_report(table, table_json(table)), out / table.name)
        numbers[table.name] = table_numbers(table)
    # What is in a cell depends on the table's content alone, so that the folder may be moved.
    compare(load_experiment(experiment), out / "cells", jobs)
    results = load_results(out / "cells")
    to_folder(experiment_report(results), out / "experiment")
    loader = jinja2.FileSystemLoader(HERE)
    text = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)
    page = text.get_template("paper.md.j2").render(tables=numbers, experiment=experiment_numbers(results))
    (out / "paper.md").write_text(page, encoding="utf-8")
    return out / "paper.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument(
        "--experiment", type=Path, default=HERE.parent / "experiments" / "cpu.toml", help="on the tables"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    given = parser.parse_args(arguments)
    try:
        print(f"wrote {reproduce(given.out, given.experiment, given.jobs)}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
