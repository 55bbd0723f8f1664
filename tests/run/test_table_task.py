"""Recorded tables as tasks of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_experiments import write

from gpt_search import InputError, Outcome, Phase, planted
from gpt_search.domain.evaluation import Evaluation
from gpt_search.run.compare import compare
from gpt_search.run.compare_plan import plan
from gpt_search.run.experiment import load_experiment
from gpt_search.run.planted_table import planted_table
from gpt_search.store.cells import load_cells
from gpt_search.store.table_file import write_table
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import load_table

PLANTED = 'kind = "planted"\nfamily = "sparse"\nseeds = [1, 2]\nknobs = 12'


def table(folder: Path, routes: int | None = None) -> Path:
    planted_table(folder / "dense.jsonl", planted("dense", 0, 7), routes)
    return folder / "dense.jsonl"


def test_cells_on_a_table_are_replays_with_a_truth_of_their_own(tmp_path: Path) -> None:
    recorded = load_table(table(tmp_path))
    experiment = load_experiment(write(tmp_path, (PLANTED, 'kind = "table"\nfile = "dense.jsonl"')))
    assert compare(experiment, tmp_path / "out", jobs=2).ran == 4
    cells = load_cells(tmp_path / "out")
    for cell in cells:
        assert cell.task == "dense" and 10 < cell.builds[-1] <= 12
        assert cell.facts["best"] == pytest.approx(recorded.truth[recorded.best]) and cell.facts["best_known"]
        assert cell.facts["n_routes"] == len(recorded) and cell.facts["builds_behind"] > 0
        assert cell.truth[0] == pytest.approx(0, abs=0.02)
        assert np.isin(cell.truth[~np.isnan(cell.truth)], recorded.truth).all()
        assert np.nanmin(cell.truth) >= cell.facts["best"]
    values = [cell.value[0] for cell in cells]
    assert len(set(values)) == 1  # the reference latency is the table's


@pytest.mark.parametrize("look", [compare, plan])
def test_missing_routes_need_a_policy_before_anything_runs(tmp_path: Path, look: object) -> None:
    table(tmp_path, 40)
    text = 'kind = "table"\nfile = "dense.jsonl"'
    path = write(tmp_path, (PLANTED, text))
    with pytest.raises(InputError, match=r"task 'dense': .* lacks .* routes of its space; declare"):
        look(load_experiment(path), tmp_path / "out")  # type: ignore[operator]
    assert not (tmp_path / "out").exists()
    declared = load_experiment(write(tmp_path, (PLANTED, text + '\npolicy = "restrict"')))
    compare(declared, tmp_path / "out", jobs=1)
    assert all("restrict" in cell.facts["label"] for cell in load_cells(tmp_path / "out"))


@pytest.mark.parametrize("policy", ["restrict", "surrogate"])
def test_every_output_names_the_policy(tmp_path: Path, policy: str) -> None:
    from click.testing import CliRunner

    from gpt_search.cli.main import cli

    table(tmp_path, 40)
    task = f'kind = "table"\nfile = "dense.jsonl"\npolicy = "{policy}"'
    path = write(tmp_path, (PLANTED, task), ("seeds = 2", "seeds = 7"))
    out = tmp_path / "out"
    said = CliRunner().invoke(cli, ["compare", str(path), "--out", str(out), "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["tasks"][0]["source"].count(policy)
    assert CliRunner().invoke(cli, ["report", str(out), "--out", str(tmp_path / "report")]).exit_code == 0
    assert CliRunner().invoke(cli, ["report", str(out), "--out", str(tmp_path / "report.html")]).exit_code == 0
    written = [p for p in (*out.rglob("*"), *(tmp_path / "report").rglob("*"), tmp_path / "report.html") if p.is_file()]
    tables = [p for p in written if p.suffix in (".csv", ".md", ".html", ".json")]
    assert len(tables) > 15
    for file in tables:
        rows = file.read_text().splitlines()
        over_tasks = file.suffix == ".csv" and "task" not in rows[0].split(",")
        assert over_tasks or len(rows) == 1 or policy in file.read_text(), file.name


def test_a_table_in_which_nothing_is_feasible_is_refused_before_anything_runs(tmp_path: Path) -> None:
    recorded = load_table(table(tmp_path))
    crash = Evaluation(Outcome.CRASH, Phase.TIME, cost_s={"build": 1.0})
    reference = recorded.reference
    good = recorded.evaluation(int(recorded.first[reference]))
    routes = [tuple(codes) for codes in recorded.columns.codes.tolist()]
    # The reference ran once, and crashed when it was built again: none of its builds counts.
    records = [TableRecord(routes[recorded.first[reference]], 0, good)]
    records += [TableRecord(codes, 1 if codes == records[0].codes else 0, crash) for codes in dict.fromkeys(routes)]
    (tmp_path / "dense.jsonl").unlink()
    write_table(tmp_path / "dense.jsonl", recorded.settings, records)
    experiment = load_experiment(write(tmp_path, (PLANTED, 'kind = "table"\nfile = "dense.jsonl"')))
    with pytest.raises(InputError, match="no route of the table is feasible"):
        plan(experiment, tmp_path / "out")
    with pytest.raises(InputError, match="no route of the table is feasible"):
        compare(experiment, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    path = table(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], *lines[6:]]))
    experiment = load_experiment(write(tmp_path, (PLANTED, 'kind = "table"\nfile = "dense.jsonl"')))
    with pytest.raises(InputError, match=r"task 'dense': .*dense\.jsonl, line"):
        compare(experiment, tmp_path / "out")


def test_a_new_table_is_another_experiment(tmp_path: Path) -> None:
    table(tmp_path)
    path = write(tmp_path, (PLANTED, 'kind = "table"\nfile = "dense.jsonl"'))
    compare(load_experiment(path), tmp_path / "out", jobs=1)
    (tmp_path / "dense.jsonl").unlink()
    planted_table(tmp_path / "dense.jsonl", planted("dense", 1, 7))
    with pytest.raises(InputError, match=r"tasks\.dense\.file_digest was"):
        compare(load_experiment(path), tmp_path / "out")


def test_a_full_table_tells_what_chance_finds_and_the_report_draws_it(tmp_path: Path) -> None:
    from gpt_search.analysis.report_experiment import chance, experiment_report
    from gpt_search.analysis.results import load_results, write_results
    from gpt_search.run.replay import Replay

    path = table(tmp_path)
    compare(
        load_experiment(write(tmp_path, (PLANTED, 'kind = "table"\nfile = "dense.jsonl"'))), tmp_path / "out", jobs=1
    )
    results = load_results(tmp_path / "out")
    curve = chance(results)["dense"]
    write_results(results, tmp_path / "out")
    exact = pd.read_csv(tmp_path / "out" / "random_search.csv")
    assert set(exact["task"]) == {"dense"} and exact["budget"].tolist() == curve["budget"].tolist()
    assert exact["expected"].iloc[0] == pytest.approx(
        float(np.fmin(np.delete(load_table(path).truth, load_table(path).reference), 0.0).mean()), abs=1e-6
    )
    replay = Replay(load_table(path))
    truth = np.delete(replay.table.truth, replay.table.reference)
    assert curve["budget"].is_monotonic_increasing and curve["budget"].iloc[-1] == len(truth)
    assert curve["median"].iloc[-1] == pytest.approx(0.0, abs=1e-6) and curve["median"].is_monotonic_decreasing
    rng = np.random.default_rng(0)
    for budget, median in curve[curve["budget"].isin([1, 5, 20])].itertuples(index=False):
        met = [np.fmin(np.nanmin(np.append(rng.permutation(truth)[: int(budget)], 0.0)), 0.0) for _ in range(4000)]
        below, above = np.quantile(met, [0.47, 0.53])
        assert 100 * np.expm1(below - replay.best) - 1e-6 <= median <= 100 * np.expm1(above - replay.best) + 1e-6
    section = next(s for s in experiment_report(results).sections if s.title == "Anytime curves")
    (picture,) = section.blocks
    assert "random draws without replacement" in picture.caption
    assert "chance (exact)" in [t.get_text() for t in picture.figure.axes[0].get_legend().get_texts()]
