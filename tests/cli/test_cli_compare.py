from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from gpt_search.cli.main import cli

TEXT = """
[experiment]
name = "one"
seeds = 2
budget = { builds = 8 }
budgets = [4, 8]
[[task]]
kind = "planted"
family = "sparse"
seed = 1
knobs = 12
[[strategy]]
spec = "random"
[[strategy]]
spec = "fast"
[statistics]
control = "random"
"""


def invoke(*args: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, args)], prog_name="gpt-search")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "one.toml"
    path.write_text(TEXT)
    return path


def test_results_are_written_and_shown(file: Path, tmp_path: Path) -> None:
    done = invoke(file, "--out", tmp_path / "out", "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert "one at 8 builds" in done.output and "4 of 4 cells are finished" in done.output
    assert "simulated, the truth is known" in done.output
    assert "no difference can be shown: 2 pairs" in " ".join(done.output.split())
    assert (tmp_path / "out" / "statistics" / "verdicts.md").is_file()
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert len(table) == 8 and sorted(table["budget"].unique()) == [4, 8]
    as_json = invoke(file, "--out", tmp_path / "out", "--json")
    form = json.loads(as_json.stdout)
    assert form["cells"] == {"total": 4, "earlier": 4, "ran": 0, "left": 0}
    assert {row["strategy"] for row in form["table"]} == {"fast", "random"} and form["failures"] == []
    assert any("fast is not distinguishable from random" in sentence for sentence in form["verdicts"])


def test_a_dry_run_lists_cells_and_cost(file: Path, tmp_path: Path) -> None:
    shown = invoke(file, "--dry-run")
    assert shown.exit_code == 0 and "4 cells = 1 tasks x 2 strategies x 2 seeds" in shown.output
    form = json.loads(invoke(file, "--dry-run", "--json").stdout)
    assert len(form["cells"]) == 4 and form["tasks"][0]["builds"] == 32 and form["finished"] == 0
    assert list(tmp_path.iterdir()) == [file]


def test_failing_cells_are_named_and_the_exit_code_says_so(file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("class Bad:\n    def propose(self, *_):\n        return 1 / 0\n")
    file.write_text(TEXT.replace('"fast"', '"bad.py:Bad"'))
    done = invoke(file, "--out", tmp_path / "out", "--jobs", 1)
    assert done.exit_code == 1 and "2 cells failed" in done.stderr and "division by zero" in done.stderr
    assert "2 of 4 cells are finished" in done.output


def test_bad_input_is_one_line(file: Path, tmp_path: Path) -> None:
    for args, words in (
        ((file,), "--out DIR"),
        ((), "name the experiment's file"),
        ((tmp_path / "no.toml", "--out", tmp_path / "out"), "No such file"),
    ):
        done = invoke(*args)
        assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_the_schema_is_json() -> None:
    assert "experiment" in json.loads(invoke("--schema").stdout)["properties"]


def test_the_tensorrt_experiment_is_planned_without_tensorrt() -> None:
    file = Path(__file__).resolve().parents[2] / "experiments" / "tensorrt_speedup.toml"
    form = json.loads(invoke(file, "--dry-run", "--json").stdout)
    assert {"fast", "mixed", "live"} <= {cell["strategy"] for cell in form["cells"]}
    assert len(form["cells"]) == len(form["tasks"]) * 25 and all(task["live"] for task in form["tasks"])
    assert all(task["builds"] == 25 * 400 and task["seconds"] > 0 for task in form["tasks"])
    shown = invoke(file, "--dry-run")
    assert shown.exit_code == 0 and "100 cells = 4 tasks x 5 strategies x 5 seeds" in shown.output
    assert "bert-base-1x128" in {task["task"] for task in form["tasks"]}
