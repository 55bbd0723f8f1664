"""`report` and `importance`: of a study, of an experiment, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser_pages import seen_by_browser
from click.testing import CliRunner

from gpt_search.analysis import importance_set
from gpt_search.analysis.cells import Cell, cell_from_json, cell_to_json
from gpt_search.analysis.report_study import _engines
from gpt_search.backends.synthetic import synthetic_workload
from gpt_search.cli.main import cli
from gpt_search.domain.landscape import planted
from gpt_search.run.planted_table import planted_table
from gpt_search.store.experiment import FORMAT

SPEC = {"family": "sparse", "seed": 1, "knobs": 6, "noise": 0.01}
NAME = "<script>x</script>"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reports")
    model = synthetic_workload(folder, SPEC).model
    backend = "synthetic:" + json.dumps({**SPEC, "simulate_clock": True, "gentle": True})
    command = ["tune", str(model), "--backend", backend, "--strategy", "random", "--trials", "45", "--metric", "lInf"]
    command += ["--tolerance", "0.01", "--storage", str(folder / "s.journal"), "--study", NAME, "--no-confirm"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return str(folder / "s.journal")


def run(*args: object) -> str:
    done = CliRunner().invoke(cli, [str(a) for a in args])
    assert done.exit_code == 0, done.output
    return done.output


def experiment(folder: Path, tasks: int = 2, name: str = "exp") -> Path:
    """The folder of an experiment as `compare` leaves it: three strategies, three seeds."""
    (folder / "cells").mkdir(parents=True)
    strategies = ["random", "<b>tpe</b>", "fast"]
    budgets = [2, 5, 10]
    about = {
        "format": FORMAT,
        "digest": "d" * 64,
        "name": name,
        "axis": "builds",
        "gpt_search": "0",
        "statistics": {"control": "random", "alpha": 0.05, "family": "budget"},
        "tested": budgets,
        "strategies": strategies,
        "tasks": [f"task-{t}" for t in range(tasks)],
        "facts": {"seeds": [0, 1, 2]},
    }
    (folder / "experiment.json").write_text(json.dumps(about))
    rng = np.random.default_rng(0)
    for t in range(tasks):
        for k, strategy in enumerate(strategies):
            for seed in range(3):
                n = 11
                truth = np.r_[0.0, -np.sort(rng.uniform(0, 0.02 * (k + 1), n - 1))]
                rows = np.arange(n)
                cell = Cell(
                    task=f"task-{t}",
                    strategy=strategy,
                    seed=seed,
                    trial=rows,
                    builds=rows,
                    seconds=rows * 2.0,
                    outcome=np.zeros(n),
                    until=np.full(n, 3),
                    value=np.exp(truth),
                    truth=truth,
                    route=rows,
                    recommended=rows,
                    facts={
                        "best": -0.07,
                        "best_known": True,
                        "floor": 0.001,
                        "reference_ms": 1.0,
                        "n_routes": 64,
                        "builds_behind": None,
                        "checkpoints": {"builds": budgets},
                        "label": "planted",
                    },
                )
                (folder / "cells" / f"{t}-{k}-{seed}.json").write_text(json.dumps(cell_to_json(cell)))
    return folder


def test_a_study_becomes_one_page_with_everything(storage: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert run("report", NAME, "--storage", storage, "--out", out) == f"wrote {out}\n"
    page = out.read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        *("Result", "What was tuned", "Search", "Knob importance", "Accuracy against latency"),
        *("Drift of the machine", "Cost", "Trials", "Environment and settings"),
    ]
    assert NAME not in page and "&lt;script&gt;x&lt;/script&gt;" in page
    figures = set(re.findall(r'<figure id="figure-(\w+)"', page))
    assert figures >= {"best", "importance_sparse", "interactions", "accuracy", "drift", "cost", "timeline"}
    assert page.count("<svg") == len(figures)
    assert "Not confirmed" in page and "synthetic" in page
    assert re.search(r"\d+ distinct for \d+ routes tried and the reference; \d+ timed, \d+ took over", page)
    again = tmp_path / "again.html"
    run("report", NAME, "--storage", storage, "--out", again)
    assert again.read_text() == page


def test_a_study_becomes_markdown_and_csv(storage: str, tmp_path: Path) -> None:
    out = tmp_path / "folder"
    found = json.loads(run("report", NAME, "--storage", storage, "--out", out, "--json"))
    assert found["form"] == "markdown" and {Path(p).suffix for p in found["files"]} == {".md", ".csv", ".svg", ".png"}
    text = (out / "report.md").read_text()
    for name in re.findall(r"\]\((\S+?)\)", text):
        assert (out / name).is_file(), name
    rows = list(csv.DictReader((out / "trials.csv").open()))
    assert len(rows) == 46 and rows[0]["outcome"] == "OK" and float(rows[0]["speedup"]) == 1.0


@pytest.mark.parametrize("kind", ["study", "experiment", "table"])
def test_real_reports_work_in_a_browser(kind: str, storage: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    if kind == "study":
        run("report", NAME, "--storage", storage, "--out", out)
    elif kind == "experiment":
        run("report", experiment(tmp_path / "exp", 13, NAME), "--out", out)
    else:
        planted_table(tmp_path / "a<b>.jsonl", planted("dense", 0, 7))
        run("report", tmp_path / "a<b>.jsonl", "--out", out)
    page = out.read_text()
    names = re.findall(r'<figure id="figure-(\w+)"', page)
    assert len(names) >= {"study": 5, "experiment": 4, "table": 3}[kind]
    seen = seen_by_browser(page, tmp_path)
    assert seen["errors"] == [] and seen["requests"] == []
    assert len(seen["figures"]) == len(names)
    for name, figure in zip(names, seen["figures"], strict=True):
        assert figure["width"] > 300 and figure["height"] > 80 and figure["marks"] > 10, name


@pytest.mark.parametrize("tasks", [2, 13])
def test_an_experiment_becomes_a_page(tasks: int, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "exp", tasks, "e<xp")
    out = tmp_path / "page.html"
    run("report", folder, "--out", out)
    page = out.read_text()
    assert "Experiment e&lt;xp" in page and "<b>" not in page
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "What the tests say",
        "Experiment",
        "At 10 builds",
        "Anytime curves",
        "Targets",
        "Ranks",
        "Tables",
    ]
    figures = re.findall(r'<figure id="figure-(\w+)"', page)
    # From 13 tasks on one figure a family; from 10 on ranks are tested.
    assert sum(f.startswith("anytime") for f in figures) == (2 if tasks == 2 else 1)
    assert ("critical_difference" in figures) == (tasks == 13)
    assert {"ecdf", "ranks"} <= set(figures)
    assert 'id="table-running_time"' in page and 'id="table-comparisons"' in page


BERT = Path(__file__).parents[2] / "paper" / "data" / "bert.jsonl.zst"


def test_a_table_becomes_a_page(tmp_path: Path) -> None:
    run("report", BERT, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        *("Result", "Fastest engines", "Knob importance", "Accuracy against latency", "Routes"),
        "Environment and settings",
    ]
    assert "1.888x over the reference" in page and "every route of the space: 1,024 routes" in page
    figures = set(re.findall(r'<figure id="figure-(\w+)"', page))
    assert figures >= {"speedups", "importance_sparse", "importance_fanova", "interactions", "accuracy"}
    assert "chosen by earlier results" not in page  # no strategy chose these routes


def test_a_table_of_which_nothing_is_faster_says_so(tmp_path: Path) -> None:
    landscape = planted("null", "report", 6)
    planted_table(tmp_path / "flat.jsonl", landscape, builds=1)
    run("report", tmp_path / "flat.jsonl", "--out", tmp_path / "folder")
    text = (tmp_path / "folder" / "report.md").read_text()
    best = re.search(r"\*\*(.*)\*\*", text)
    assert best is not None and ("No engine is faster" in best[1] or float(best[1].partition("x")[0]) < 1.01)
    assert "none was repeated" in text


def test_importance_of_a_table_is_not_that_of_a_strategy(tmp_path: Path) -> None:
    found = json.loads(run("importance", BERT, "--method", "sparse", "--json"))
    assert found["routes"] == 1024 and found["warning"] is None
    first = found["knobs"][0]
    assert (first["knob"], first["rank"]) == ("model:quantize_dynamic", 1)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    done = CliRunner().invoke(cli, ["importance", str(broken)])
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_an_unfinished_experiment_says_so(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "exp")
    next((folder / "cells").iterdir()).unlink()
    run("report", folder, "--out", tmp_path / "folder")
    assert "1 cells are not finished" in (tmp_path / "folder" / "report.md").read_text()


def test_importance_as_text_json_and_csv(storage: str) -> None:
    text = run("importance", NAME, "--storage", storage, "--method", "sparse", "--method", "mdi")
    assert "distinct feasible routes" in text and "random forest" in text
    found = json.loads(run("importance", NAME, "--storage", storage, "--method", "single", "--json"))
    assert found["adaptive"] is False and found["warning"] is None
    assert {"knobs", "effects", "pairs", "stability", "singles"} <= set(found)
    rows = list(csv.DictReader(io.StringIO(run("importance", NAME, "--storage", storage, "--method", "mdi", "--csv"))))
    assert rows and sum(float(r["importance"]) for r in rows) == pytest.approx(1.0)


def test_importance_keeps_pairs_of_long_knobs_within_the_terminal(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = importance_set.measure_importance
    row = {
        "first": "session:" + "a" * 30,
        "first_value": "parallel",
        "second": "opt:" + "b" * 30,
        "second_value": "off",
    }
    pairs = pd.DataFrame([row | {"ratio": 30.3, "low": 3.2876, "high": 280.0640, "p": 0.0, "holm": 0.0}])
    monkeypatch.setattr(importance_set, "measure_importance", lambda *a, **k: measured(*a, **k)._replace(pairs=pairs))
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("importance", NAME, "--storage", storage, "--method", "single").splitlines()
    assert max(map(len, lines)) <= 80 and any(line.endswith(f"{'b' * 30}=off") for line in lines)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["report", "s", "--out", "x.pdf"], "ends in '.pdf'"),
        (["report", "s", "--out", "x", "--as", "word"], "not one of html, markdown"),
        (["report", ".", "--out", "x.html"], "without experiment.json"),
        (["report", "nobody", "--out", "x.html"], "no study 'nobody'"),
        (["report", NAME, "--out", "/proc/no/x.html"], "cannot be written"),
        (["report", NAME, "--out", "/proc/no/x"], "cannot be written"),
        (["importance", NAME, "--method", "fanov"], "did you mean 'fanova'"),
        (["importance", NAME, "--csv", "--json"], "one of them"),
        (["importance", NAME, "--resamples", "-1"], "too small"),
    ],
)
def test_what_is_refused(
    args: list[str], message: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, [*args, "--storage", storage])
    assert done.exit_code == 2, done.output
    assert message in done.output and "Traceback" not in done.output
    assert not list(tmp_path.iterdir())


def test_an_experiment_on_another_axis(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "exp", 2, "exp")
    for path in (folder / "cells").iterdir():
        cell = cell_from_json(json.loads(path.read_text()))
        checkpoints = {"checkpoints": {"builds": [10], "seconds": [4.0, 20.0]}}
        path.write_text(json.dumps(cell_to_json(dataclasses.replace(cell, facts={**cell.facts, **checkpoints}))))
    out = tmp_path / "page.html"
    run("report", folder, "--out", out, "--axis", "seconds")
    page = out.read_text()
    assert "At 20 seconds" in page and "at 20 seconds" in page and "builds" not in page.split("<h2>")[1]
    for arguments, message in (
        (("report", folder, "--axis", "trials"), "no budgets in trials were declared"),
        (("report", folder, "--axis", "bilds"), "builds"),
        (("report", folder / "experiment.json", "--axis", "builds"), "--axis is for the folder of an experiment"),
    ):
        found = CliRunner().invoke(cli, [*map(str, arguments), "--out", str(tmp_path / "no.html")])
        assert found.exit_code == 2 and message in found.stderr
    assert not (tmp_path / "no.html").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"truth": [0.0', '"truth": [-0.3', "its checksum does not fit"),
        ('"task": "task-1"', '"task": "task-7"', "its checksum does not fit"),
        ('"recommended": [0, 1', '"recommended": [999, 1', "its checksum does not fit"),
        ('"check": "', '"chekc": "', "is no cell of an experiment"),
    ],
)
def test_a_changed_cell_is_named(old: str, new: str, message: str, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "exp", 2, "exp")
    path = folder / "cells" / "1-0-0.json"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    found = CliRunner().invoke(cli, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert found.exit_code == 2 and message in found.stderr and "1-0-0.json" in found.stderr


def test_a_cell_of_another_experiment_is_refused(tmp_path: Path) -> None:
    folder, other = experiment(tmp_path / "exp", 2, "exp"), experiment(tmp_path / "other", 3, "other")
    (folder / "cells" / "2-0-0.json").write_bytes((other / "cells" / "2-0-0.json").read_bytes())
    found = CliRunner().invoke(cli, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert found.exit_code == 2 and "task-2" in found.stderr and "not declare" in found.stderr


def test_an_experiments_own_folder_is_no_place_for_its_report(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "exp", 2, "exp")
    found = CliRunner().invoke(cli, ["report", str(folder), "--out", str(folder)])
    assert found.exit_code == 2 and "whose files it would replace" in found.stderr
    assert {p.name for p in folder.iterdir()} == {"cells", "experiment.json"}


@pytest.mark.parametrize("out", ["page.html", "folder"])
def test_a_report_that_cannot_be_written_leaves_the_earlier_one(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = experiment(tmp_path / "exp", 2, "exp")
    target = tmp_path / out
    run("report", folder, "--out", target)
    files = [target] if target.is_file() else sorted(target.iterdir())
    before = {path: path.read_bytes() for path in files}

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    found = CliRunner().invoke(cli, ["report", str(folder), "--out", str(target)])
    assert found.exit_code == 2 and "No space left on device" in found.stderr
    assert {path: path.read_bytes() for path in files} == before
    assert not list(tmp_path.rglob(".*"))


def test_engines_against_routes_in_a_report() -> None:
    """Merges that were checked and builds that were repeated are told, with what they found."""
    identity = {"fingerprints": "MAY_BOTH", "routes": 9, "engines": 4, "timed": 5, "merged": 4}
    identity |= {"checked": {"events": 1, "tried": 2}, "rebuilt": {"events": 0, "tried": 3}}
    text = _engines(identity)
    assert text.startswith("4 distinct for 9 routes tried and the reference; 5 timed, 4 took over")
    assert "2 of those timed all the same, 1 differ" in text and "0 of 3 pairs of builds" in text
    assert _engines(identity | {"fingerprints": "NONE"}).endswith("the backend does not tell engines apart")
