"""The smoke experiment as a user runs it, from the shipped file to its verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from e2e_runs import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_smoke_experiment_runs_and_finds_what_it_must(tmp_path: Path) -> None:
    file = str(ROOT / "experiments" / "smoke.toml")
    planned = run("compare", file, "--dry-run", cwd=tmp_path)
    assert "160 cells" in planned.stdout and not list(tmp_path.iterdir())
    done = run("compare", file, "--out", "smoke", "--jobs", "2", cwd=tmp_path)
    assert "160 of 160 cells are finished" in done.stdout
    table = pd.read_csv(tmp_path / "smoke" / "results.csv")
    assert len(table) == 160 * 3
    last = table[table["budget"] == 60].groupby(["task", "strategy"])["recommended"].median()
    for task in ("sparse-1", "sparse-2"):  # single changes find something on a sparse landscape, uniform routes hardly
        assert last[task, "fast"] < last[task, "random"] <= 0.001
    assert last["null-1"].abs().max() < 1e-9
    again = json.loads(run("compare", file, "--out", "smoke", "--json", cwd=tmp_path).stdout)
    assert again["cells"] == {"total": 160, "earlier": 160, "ran": 0, "left": 0} and again["verdicts"]
    (tmp_path / "changed.toml").write_text(
        Path(file).read_text().replace("builds = 60", "builds = 50").replace(", 60]", ", 50]")
    )
    refused = run("compare", "changed.toml", "--out", "smoke", cwd=tmp_path, code=2)
    assert "budget.builds was 60, is 50" in refused.stderr and refused.stderr.count("\n") == 1
