from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_experiments import write

from gpt_search import InputError, load_strategy, planted, simulate
from gpt_search.run import cell_workers
from gpt_search.run.arena import open_task
from gpt_search.run.compare import CompareStatus, compare
from gpt_search.run.compare_plan import plan
from gpt_search.run.experiment import Coordinates, load_experiment
from gpt_search.store.cells import Cell, load_cells

BAD = """
import os

from gpt_search import Proposal, uniform_untried


class Bad:
    def __init__(self, how: str = "raise") -> None:
        self.how = how

    def propose(self, space, history, streams):
        if len(history) == 3:
            if self.how == "raise":
                raise ValueError("no more ideas")
            os.kill(os.getpid(), 9)
        return Proposal(uniform_untried(space, history, streams.trial(history.next_trial)))
"""


def results(folder: Path) -> dict[str, dict[str, object]]:
    """Every cell's file but for what is not part of the result: wall times."""
    found = {}
    for path in (folder / "cells").glob("*.json"):
        found[path.name] = {k: v for k, v in json.loads(path.read_text()).items() if k != "run"}
    return found


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial")
    done = compare(load_experiment(write(folder)), folder / "out", jobs=1)
    assert (done.total, done.ran, done.left, done.failures) == (8, 8, 0, ())
    return folder / "out"


def test_parallel_processes_give_what_one_gives_to_the_last_bit(tmp_path: Path, serial: Path) -> None:
    compare(load_experiment(write(tmp_path)), tmp_path / "out", jobs=2)
    assert len(results(serial)) == 8 and results(tmp_path / "out") == results(serial)


def test_a_cell_is_the_study_that_simulate_runs(tmp_path: Path, serial: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    cells: dict[tuple[str, str, int], Cell] = {(c.task, c.strategy, c.seed): c for c in load_cells(serial)}
    where = Coordinates("sparse-2", "mixed:margin=0.02", 1)
    cell, landscape = cells["sparse-2", "mixed:margin=0.02", 1], planted("sparse", 2, 12)
    for budget, place in ((4, 0), (12, 1)):
        measure = open_task(experiment.task("sparse-2")).study(experiment.seed_of(where))
        done = simulate(
            landscape.space,
            load_strategy("mixed:margin=0.02"),
            measure,
            None,
            experiment.seed_of(where),
            builds=budget,
            noise=landscape.noise,
        )
        row = int(cell.row_at("builds", [4, 12])[place])
        assert row == len(done) - 1 and cell.recommended[row] == done.recommended
        assert np.array_equal(cell.value[: row + 1], done.latency_ms, equal_nan=True)
    assert np.array_equal(cell.truth, landscape.true_log_ratio(done.codes), equal_nan=True)
    assert cell.facts["best"] == landscape.best_log_ratio and cell.facts["n_routes"] == landscape.space.size
    assert set(np.flatnonzero(cell.recommended != -2)) == set(cell.row_at("builds", [4, 12]).tolist())


def test_finished_cells_are_not_run_again_and_missing_ones_are(tmp_path: Path, serial: Path) -> None:
    experiment, out = load_experiment(write(tmp_path)), tmp_path / "out"
    compare(experiment, out, jobs=1)
    kept = {p: p.stat().st_mtime_ns for p in sorted((out / "cells").glob("*.json"))}
    lost = list(kept)[2:4]
    for path in lost:
        path.unlink()
    (out / "cells" / ".half.json.123").write_text("{")  # what a killed process leaves
    told: list[tuple[int, int]] = []
    seen: list[CompareStatus] = []
    done = compare(experiment, out, jobs=2, progress=seen.append, started=lambda *n: told.append(n))
    assert (done.earlier, done.ran) == (6, 2) and told == [(8, 6)]
    assert [s.done for s in seen] == [7, 8] and seen[-1].left_s == 0
    assert results(out) == results(serial) and not (out / "cells" / ".half.json.123").exists()
    assert all(p.stat().st_mtime_ns == kept[p] for p in kept if p not in lost)
    again = compare(experiment, out)
    assert (again.earlier, again.ran) == (8, 0)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (("seeds = 2", "seeds = 3"), r"seeds was \[0, 1\], is \[0, 1, 2\]"),
        (("{ builds = 12 }", "{ builds = 20 }"), "budget.builds was 12, is 20"),
        (("knobs = 12", "knobs = 13"), "tasks.sparse-1.knobs was 12, is 13"),
        (
            ("margin = 0.02", "margin = 0.03"),
            "margin=0.02 is gone, strategies.mixed:margin=0.03 is new",
        ),
        (('"small"', '"other"'), 'name was "small", is "other"'),
    ],
)
def test_a_changed_experiment_is_not_mixed_with_old_cells(
    tmp_path: Path, serial: Path, change: tuple[str, str], differs: str
) -> None:
    before = results(serial)
    for look in (compare, plan):
        with pytest.raises(InputError, match=differs):
            look(load_experiment(write(tmp_path, change)), serial)
    assert results(serial) == before


def test_an_edited_strategy_is_another_experiment(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BAD)
    change = ('"random"\n\n[[', '"mine.py:Bad"\nname = "mine"\n\n[[')
    path = write(tmp_path, change, ('control = "random"', 'control = "mine"'), ("seeds = 2", "seeds = 1"))
    compare(load_experiment(path), tmp_path / "out", jobs=1)
    (tmp_path / "mine.py").write_text(BAD + "\n# edited\n")
    with pytest.raises(InputError, match=r"strategies\.mine\.file was"):
        compare(load_experiment(path), tmp_path / "out", jobs=1)


def test_the_statistical_plan_and_the_cap_may_change(tmp_path: Path, serial: Path) -> None:
    changed = write(tmp_path, ('control = "random"', "alpha = 0.1"), ("seeds = 2", "seeds = 2\nwall_clock_s = 5.0"))
    assert compare(load_experiment(changed), serial, jobs=1).earlier == 8
    assert json.loads((serial / "experiment.json").read_text())["statistics"]["alpha"] == 0.1


@pytest.mark.parametrize(("how", "words"), [("raise", "no more ideas"), ("kill", "SIGKILL")])
def test_a_failing_strategy_is_named_and_the_others_finish(tmp_path: Path, how: str, words: str) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    path = write(
        tmp_path, ('spec = "mixed"\noptions = { margin = 0.02 }', f'spec = "bad.py:Bad:how={how}"\nname = "bad"')
    )
    done = compare(load_experiment(path), tmp_path / "out", jobs=2)
    assert done.ran == 4 and len(done.failures) == 4
    assert {f.cell.strategy for f in done.failures} == {"bad"} and all(words in (f.error or "") for f in done.failures)
    written = [json.loads(p.read_text()) for p in (tmp_path / "out" / "failed").glob("*.json")]
    assert len(written) == 4 and {w["strategy"] for w in written} == {"bad"}
    assert {c.strategy for c in load_cells(tmp_path / "out")} == {"random"}
    again = compare(load_experiment(path), tmp_path / "out", jobs=2)  # failed cells are tried again
    assert (again.earlier, again.ran, len(again.failures)) == (4, 0, 4)


def test_a_wall_clock_cap_leaves_whole_repeats(tmp_path: Path) -> None:
    path = write(tmp_path, ("seeds = 2", "seeds = 2\nwall_clock_s = 1e-9"))
    done = compare(load_experiment(path), tmp_path / "out", jobs=1)
    assert (done.ran, done.left) == (0, 8)


def test_a_folder_of_a_process_that_was_killed_at_once_is_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "cells").mkdir(parents=True)
    (out / "failed").mkdir()
    (out / ".experiment.json.123").write_text("{")
    assert compare(load_experiment(write(tmp_path)), out, jobs=1).ran == 8
    assert not list(out.glob(".*"))


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    with pytest.raises(InputError, match="holds other files"):
        compare(experiment, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot use the folder"):
        compare(experiment, tmp_path / "file")


def test_a_plan_tells_what_is_left_and_runs_nothing(tmp_path: Path, serial: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    fresh = plan(experiment, tmp_path / "none")
    assert (fresh.cells, fresh.finished, fresh.wall_s) == (8, 0, None) and not (tmp_path / "none").exists()
    assert [t.builds for t in fresh.tasks] == [48, 48] and all((t.seconds or 0) > 0 for t in fresh.tasks)
    whole = plan(experiment, serial)
    assert whole.finished == 8 and whole.wall_s == 0


SCRIPT = """
import sys
from gpt_search.cli.main import main
if __name__ == "__main__":
    main()
"""


def test_a_process_that_is_still_starting_does_not_hear_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would end with a traceback among the parent's messages, and take its cell along."""
    started = cell_workers._Worker.__init__

    def interrupted(self: cell_workers._Worker, *rest: Any) -> None:
        started(self, *rest)
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGINT)

    monkeypatch.setattr(cell_workers._Worker, "__init__", interrupted)
    done = compare(load_experiment(write(tmp_path)), tmp_path / "out", jobs=2)
    assert (done.ran, done.failures) == (8, ()) and "Traceback" not in capfd.readouterr().err
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_keeps_finished_cells_and_the_rest_follows(tmp_path: Path) -> None:
    path = write(tmp_path, ("seeds = 2", "seeds = 40"), ("{ builds = 12 }", "{ builds = 60 }"), ("[4, 12]", "[60]"))
    script, out = tmp_path / "run.py", tmp_path / "out"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "compare", str(path), "--out", str(out), "--jobs", "2"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until = time.monotonic() + 120
    while len(list((out / "cells").glob("*.json"))) < 4 and time.monotonic() < until and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the whole group
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130 and "Continue with:" in errors and "Traceback" not in errors, errors
    cells = load_cells(out)
    assert 4 <= len(cells) < 160
    done = compare(load_experiment(path), out, jobs=2)
    assert done.earlier == len(cells) and done.earlier + done.ran == 160
