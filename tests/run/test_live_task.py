"""Live tasks of an experiment: one pool of builds for all studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from run_experiments import write
from run_studies import SPEC, backend_name, config, own_locks, quick_workers  # noqa: F401

from gpt_search import InputError
from gpt_search.domain.landscape import planted_from_spec
from gpt_search.run.compare import compare
from gpt_search.run.compare_plan import plan
from gpt_search.run.experiment import load_experiment
from gpt_search.store.cells import load_cells
from gpt_search.store.tables import load_table

pytestmark = pytest.mark.usefixtures("quick_workers")

PLANTED = 'kind = "planted"\nfamily = "sparse"\nseeds = [1, 2]\nknobs = 12'


def experiment(folder: Path, *changes: tuple[str, str], **more: str) -> Path:
    """Two strategies and two seeds on the synthetic backend, whose clock is simulated."""
    config(folder)  # writes the model
    section = {
        "kind": '"live"',
        "name": '"model"',
        "model": '"model.json"',
        "backend": json.dumps(backend_name()),
        "metric": '"lInf"',
        "tolerance": "0.5",
        "pool_rounds": "20",
        "seconds_per_build": "3.0",
        "protocol": "{ round_seconds = 0.01, warmup_seconds = 0.0, warmup_limit_seconds = 0.01 }",
    } | more
    text = "\n".join(f"{key} = {value}" for key, value in section.items())
    return write(folder, (PLANTED, text), *changes)


def results(folder: Path) -> dict[tuple[str, int], str]:
    """What was measured, as text: NaN is not equal to itself."""
    return {
        (c.strategy, c.seed): repr([a.tolist() for a in (c.value, c.seconds, c.truth, c.recommended)])
        for c in load_cells(folder)
    }


def test_studies_share_builds_and_draw_their_own_rounds(tmp_path: Path) -> None:
    loaded, told = load_experiment(experiment(tmp_path)), list[str]()
    done = compare(loaded, tmp_path / "out", building=told.append)
    assert (done.ran, done.failures) == (4, ())
    pool = load_table(tmp_path / "out" / "pools" / "model.jsonl.part", unfinished=True)
    cells = load_cells(tmp_path / "out")
    landscape = planted_from_spec(SPEC)
    routes = {c.tobytes() for c in pool.codes}
    assert len(routes) == len(pool) == len(told) < sum(len(cell) for cell in cells)  # no route twice
    assert told[0] == "model: reference"
    mixed = [cell for cell in cells if cell.strategy.startswith("mixed")]
    assert np.array_equal(mixed[0].truth, mixed[1].truth, equal_nan=True)  # the same routes, the same builds
    assert not np.array_equal(mixed[0].value, mixed[1].value, equal_nan=True)  # and rounds of their own
    for cell in cells:
        assert cell.facts["best"] is None and cell.facts["n_routes"] == landscape.space.size
        assert cell.builds[-1] == 12 and 0 < cell.facts["builds_behind"] <= len(pool)
        assert "studies share builds" in cell.facts["label"]


def test_what_is_timed_is_a_setting_of_the_protocol(tmp_path: Path) -> None:
    path = experiment(tmp_path, protocol='{ timing = "mean", round_seconds = 0.01, warmup_seconds = 0.0 }')
    done = compare(load_experiment(path), tmp_path / "out")
    assert (done.ran, done.failures) == (4, ())
    pool = load_table(tmp_path / "out" / "pools" / "model.jsonl.part", unfinished=True)
    assert pool.settings["protocol"]["timing"] == "mean"


def test_an_interrupted_experiment_goes_on_with_its_pool(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    path = experiment(tmp_path)
    compare(load_experiment(path), whole)

    def stop(what: str) -> None:
        nonlocal builds
        builds += 1
        if builds == 9:
            raise KeyboardInterrupt

    builds = 0
    with pytest.raises(KeyboardInterrupt):
        compare(load_experiment(path), parts, building=stop)
    built = len(load_table(parts / "pools" / "model.jsonl.part", unfinished=True))
    again: list[str] = []
    compare(load_experiment(path), parts, building=again.append)
    assert built == 8 and "model: reference" not in again
    assert results(parts) == results(whole)


def test_a_missing_backend_or_reference_is_said_before_a_cell_runs(tmp_path: Path) -> None:
    path = experiment(tmp_path, backend='"xla"')
    with pytest.raises(InputError, match=r"task 'model': the backend 'xla' cannot be used here"):
        compare(load_experiment(path), tmp_path / "out")
    failing = json.dumps(backend_name(fail={"": "build_error"}))
    with pytest.raises(InputError, match=r"reference route cannot be measured \(BUILD_ERROR\)"):
        compare(load_experiment(experiment(tmp_path, backend=failing)), tmp_path / "failing")
    assert not list((tmp_path / "failing" / "cells").glob("*.json"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("knobs", '"-nosuch=[*]"', "unknown knob 'nosuch'"),
        ("backend", "'synthetic:{\"size\": 3}'", "'size'"),
        ("shapes", "{ x = [1] }", "--shape has no meaning"),
    ],
)
def test_what_is_wrong_with_a_live_task_is_said_before_simulated_cells_run(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    path = experiment(tmp_path, **{key: value})
    path.write_text(path.read_text().replace("[[task]]", f"[[task]]\n{PLANTED}\n\n[[task]]", 1))
    loaded, out = load_experiment(path), tmp_path / "out"
    with pytest.raises(InputError, match=rf"^task 'model': .*{words}"):
        compare(loaded, out)
    assert not out.exists()
    try:
        (_, _, task) = plan(loaded).tasks
    except InputError as error:
        assert words in str(error) and str(error).startswith("task 'model': ")
    else:  # what the backend itself refuses may be a matter of the machine, of which a plan only tells
        assert key == "backend" and words in task.label


def test_a_reference_that_fails_is_said_before_simulated_cells_run(tmp_path: Path) -> None:
    path = experiment(tmp_path, backend=json.dumps(backend_name(fail={"": "build_error"})))
    path.write_text(path.read_text().replace("[[task]]", f"[[task]]\n{PLANTED}\n\n[[task]]", 1))
    with pytest.raises(InputError, match=r"^task 'model': .*cannot be measured \(BUILD_ERROR\)"):
        compare(load_experiment(path), tmp_path / "out")
    assert not list((tmp_path / "out" / "cells").glob("*.json"))


def test_a_pool_must_have_more_rounds_than_a_study_draws(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pool_rounds is 12; it must be 20 or more"):
        load_experiment(experiment(tmp_path, pool_rounds="12"))


def test_a_plan_needs_no_backend(tmp_path: Path) -> None:
    found = plan(load_experiment(experiment(tmp_path, backend='"xla"')))
    (task,) = found.tasks
    assert task.live and task.builds == 48 and task.seconds == 144
    assert "the backend 'xla' cannot be used here" in task.label
