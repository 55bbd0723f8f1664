"""What a backend remarks on a timing is kept with every trial, build and process, and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_studies import NAME, SPEC, backend_name, config, own_locks, quick_workers

from gpt_search.cli.main import cli
from gpt_search.domain.budget import Budget
from gpt_search.execution.rounds import Comparison, Timing
from gpt_search.run.confirm import confirm
from gpt_search.run.minimise import minimise
from gpt_search.run.noise import measure_noise
from gpt_search.run.show import show
from gpt_search.run.tune import tune

__all__ = ["own_locks", "quick_workers"]  # fixtures

STREAMS = "timed on streams: it could not be captured"
AGAIN = "a round was left out and taken again: throttled"


def remark(patch: pytest.MonkeyPatch, text: Callable[[int], tuple[str, ...]]) -> None:
    """From now on timing number n, from 0, has these notes."""
    real, done = Comparison.run, iter(range(1000))

    def run(self: Comparison, *args: Any, **more: Any) -> Timing:
        return real(self, *args, **more)._replace(notes=text(next(done)))

    patch.setattr(Comparison, "run", run)


def words(*args: str) -> str:
    done = CliRunner().invoke(cli, list(args))
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_of_trials_of_the_best_route_and_of_a_confirmation(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(tmp_path, "sparse_random", budget=Budget(trials=12))
    with monkeypatch.context() as patch:
        remark(patch, lambda n: (STREAMS, f"{AGAIN} ({n + 2} times)") if n % 2 else (STREAMS,))
        found = tune(given)
    timed = found.engines.timed + 1  # the reference's trial is one of them
    assert found.noted >= timed > 3 and found.notes[STREAMS] == found.noted
    # However often a trial says it, it is one trial.
    assert set(found.notes) == {STREAMS, AGAIN} and 1 <= found.notes[AGAIN] < found.noted
    best = found.nominees[0]
    assert best.trial != 0 and STREAMS in best.notes
    shown = words("show", NAME, "--storage", given.storage)
    assert f"notes {found.noted} of 13 trials: {STREAMS} ({found.noted}); {AGAIN} ({found.notes[AGAIN]})" in shown
    assert f"note trial {best.trial}: {STREAMS}" in shown
    with monkeypatch.context() as patch:
        remark(patch, lambda n: (STREAMS,) if n in (0, 2) else ())
        data = confirm(NAME, given.storage, top=1, rebuilds=5).data
    assert data["notes"] == {STREAMS: 2}
    assert f"notes of 5 builds: {STREAMS} (2)" in words("show", NAME, "--storage", given.storage)
    stored = json.loads(CliRunner().invoke(cli, ["show", NAME, "--storage", given.storage, "--json"]).stdout)
    assert (stored["noted"], stored["notes"]) == (found.noted, dict(found.notes))
    assert stored["nominees"][0]["notes"] == list(best.notes)
    (confirmed,) = stored["confirmations"]
    assert confirmed["notes"] == {STREAMS: 2}
    assert sum(e.get("notes") == [STREAMS] for e in confirmed["stage_2"]) == 2
    with monkeypatch.context() as patch:
        remark(patch, lambda n: (STREAMS,))
        result = minimise(NAME, given.storage, margin=0.2, rebuilds=2)
    if result.route is not None:
        assert f"2 of 2 builds: {STREAMS}" in result.data["notes"]


def test_nothing_is_said_where_there_is_nothing_to_say(tmp_path: Path, quick_workers: None) -> None:
    given = config(tmp_path, budget=Budget(trials=2))
    assert tune(given).notes == {} and show(NAME, given.storage).noted == 0
    assert " note" not in words("show", NAME, "--storage", given.storage)


def test_of_the_processes_of_a_noise_floor(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    remark(monkeypatch, lambda n: (f"{AGAIN} (3 times)",) if n % 4 == 0 else ())
    floor, path = measure_noise(config(tmp_path, backend=backend_name(SPEC)), 2, 2, 10)
    assert floor.notes == {AGAIN: 1} and json.loads(path.read_text())["floor"]["notes"] == {AGAIN: 1}
    args = ("--backend", backend_name(SPEC), "--rebuilds", "2", "--rounds", "10")
    told = words("noise", str(tmp_path / "model.json"), *args, "--storage", str(tmp_path / "study.journal"))
    assert f"note 1 of 4 processes: {AGAIN}" in told
