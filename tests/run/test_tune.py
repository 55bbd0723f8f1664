from __future__ import annotations

import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from run_forks import LIMIT_S, fork_workers
from run_studies import (
    FAILING,
    NAME,
    PROTOCOL,
    SPEC,
    Stopped,
    assert_equal,
    backend_name,
    config,
    contents,
    landscape_of,
    own_locks,
    quick_workers,
    stop_after,
)

from gpt_search.backends import synthetic
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.execution.devices import RUNTIME_VARIABLE
from gpt_search.measure.protocol import Protocol
from gpt_search.run.noise import calibrated_noise
from gpt_search.run.result import Status
from gpt_search.run.show import history_of, show
from gpt_search.run.tune import resume, tune
from gpt_search.search.strategy import pooled
from gpt_search.store.study import StudyStore, study_names

__all__ = ["own_locks", "quick_workers"]  # fixtures


# -- what others see -----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with every kind of outcome."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        patch.setenv(RUNTIME_VARIABLE, str(folder / "locks"))
        tune(config(folder, "sparse_random", FAILING))
    return folder


def plain_storage(folder: Path) -> JournalStorage:
    """The storage as any program opens it that knows nothing of gpt_search."""
    return JournalStorage(JournalFileBackend(str(folder / "study.journal")))


def test_optuna_opens_the_same_file(finished: Path) -> None:
    study = optuna.load_study(study_name=NAME, storage=plain_storage(finished))
    with StudyStore.read(finished / "study.journal", NAME) as store:
        rows, space = store.restore().rows, store.space
    trials = study.get_trials()
    assert [t.number for t in trials] == list(range(51)) and study.direction.name == "MINIMIZE"
    states = {
        Outcome.OK: TrialState.COMPLETE,
        Outcome.ACCURACY: TrialState.PRUNED,
        Outcome.BUILD_ERROR: TrialState.FAIL,
        Outcome.CRASH: TrialState.FAIL,
        Outcome.TIMEOUT: TrialState.FAIL,
    }
    assert {row.evaluation.outcome for row in rows} == set(states)
    for trial, row in zip(trials, rows, strict=True):
        found = row.evaluation
        assert trial.state is states[found.outcome]
        assert trial.value == found.latency_ms
        assert trial.params == {n: v[c] for n, v, c in zip(space.names, space.values, row.codes.tolist(), strict=True)}
        assert trial.constraints.keys() == {"built", "accuracy"}
        assert trial.constraints["built"] == float(found.outcome not in (Outcome.OK, Outcome.ACCURACY))
        assert trial.constraints["accuracy"] == (0.0 if found.violation is None else found.violation)
        assert trial.user_attrs["gpt_search"]["outcome"] == found.outcome.name
    assert trials[0].params == {d.name: d.values[d.default] for d in space.dimensions}
    feasible = {r.trial: r.evaluation.latency_ms for r in rows if r.evaluation.outcome is Outcome.OK}
    assert study.best_trial.number == min(feasible, key=lambda t: feasible[t] or math.inf) != 0
    assert study.best_value < trials[0].value


def test_optuna_dashboard_opens_the_same_file(finished: Path) -> None:
    dashboard = importlib.import_module("optuna_dashboard")
    app = dashboard.wsgi(plain_storage(finished))

    def get(path: str, query: str = "") -> Any:
        started: list[str] = []
        environment = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(),
            "wsgi.errors": sys.stderr,
        }
        body = b"".join(app(environment, lambda status, headers, info=None: started.append(status)))
        assert started == ["200 OK"], body
        return json.loads(body)

    (listed,) = get("/api/studies")["study_summaries"]
    assert listed["study_name"] == NAME and listed["directions"] == ["minimize"]
    shown = get(f"/api/studies/{listed['study_id']}", "after=0")
    assert len(shown["trials"]) == 51
    expected = optuna.load_study(study_name=NAME, storage=plain_storage(finished)).best_trial
    complete = [t for t in shown["trials"] if t["state"] == "Complete"]
    assert min(complete, key=lambda t: t["values"][0])["number"] == expected.number
    assert get("/api/studies")["study_summaries"] == [listed]


# -- what a run tells ----------------------------------------------------------------------------
def test_progress_and_summary(tmp_path: Path, quick_workers: None) -> None:
    seen: list[Status] = []
    settings = config(tmp_path, "sparse_random", FAILING, budget=Budget(trials=20))
    summary = tune(settings, seen.append, started=lambda store: store.attr("budget"), note=lambda text: None)
    assert [s.trial for s in seen] == [s.finished for s in seen] == list(range(21))
    assert seen[0].best_trial == 0 and seen[0].best_ratio == 1.0 and seen[0].used == 0.0
    assert [s.used for s in seen] == [pytest.approx(n / 20) for n in range(21)]
    ratios = [s.best_ratio for s in seen]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] < 1.0
    assert [s.clock_s for s in seen] == sorted(s.clock_s for s in seen)
    assert seen[-1].left_s == 0.0 and all(s.left_s is not None and s.left_s >= 0 for s in seen)
    assert seen[-1].feasible == summary.outcomes["OK"] < 20 == sum(summary.outcomes.values())
    assert summary.trials == 20 and summary.unfinished == 0 and summary.end == "the budget of trials is spent"
    best = summary.nominees[0]
    evaluations = {s.trial: s.evaluation for s in seen}
    assert (
        evaluations[best.trial].latency_ms == best.latency_ms and best.ratio == best.latency_ms / seen[0].reference_ms
    )
    assert len({n.fingerprint for n in summary.nominees}) == len(summary.nominees) == 3
    assert json.loads(json.dumps(summary.to_json()))["routes"] == landscape_of(FAILING).space.size
    assert show(NAME, settings.storage).to_json() == summary.to_json()


def test_a_study_is_charged_its_recorded_cost_and_never_the_reference(tmp_path: Path, quick_workers: None) -> None:
    settings = config(tmp_path, "random", budget=Budget(builds=7))
    assert tune(settings).trials == 7
    costs = [json.loads(line)["evaluation"]["cost_s"] for line in contents(tmp_path)["records"]]
    landscape = landscape_of()
    for cost in costs:
        assert set(cost) <= {"start", "build", "gate", "time"} and cost["build"] > 0.1 * landscape.costs.build
    # An engine known already costs its build only.
    with StudyStore.read(settings.storage, NAME) as store:
        rows = store.restore().rows
        assert rows[0].clock_s == 0.0 < rows[1].clock_s  # the clock starts when the reference has finished
        for row in rows:
            assert ("time" in row.evaluation.cost_s) == (
                bool(row.evaluation.rounds) and row.evaluation.timed_as is None
            )


SCRIPTED = """
import numpy as np

from gpt_search import Phase, Proposal

SCRIPT = {script!r}


class Scripted:
    def propose(self, space, history, streams):
        at = history.next_trial - 1
        if at >= len(SCRIPT):
            return None
        codes = space.default.copy()
        knob, code, until = SCRIPT[at]
        codes[knob] = code
        return Proposal(codes, Phase[until])
"""


def engines_by_change() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Single changes (knob, code) that leave the reference's engine as it is, and those that make a feasible other."""
    landscape = landscape_of()
    same, other = [], []
    for codes in landscape.space.neighbours(landscape.space.default):
        knob = int((codes != landscape.space.default).argmax())
        if landscape.fingerprint(codes) == landscape.fingerprint(landscape.space.default):
            same.append((knob, int(codes[knob])))
        elif not math.isnan(landscape.true_log_ratio(codes)):
            other.append((knob, int(codes[knob])))
    return same, other


def test_probes_and_routes_that_are_timed_again(tmp_path: Path, quick_workers: None) -> None:
    """A probed route may turn out to be a known engine; a timed one that is proposed again is timed again."""
    same, other = engines_by_change()
    inert, live = same[0], min(other, key=lambda c: landscape_of().true_log_ratio(changed(c)))
    script = [(*inert, "BUILD"), (*inert, "TIME"), (*inert, "TIME"), (*live, "GATE"), (*live, "TIME"), (*live, "TIME")]
    (tmp_path / "scripted.py").write_text(SCRIPTED.format(script=script))
    summary = tune(config(tmp_path, f"{tmp_path / 'scripted.py'}:Scripted"))
    assert summary.trials == 6 and summary.end == "the strategy has nothing left to propose"
    with StudyStore.read(tmp_path / "study.journal", NAME) as store:
        restored = store.restore()
        history = history_of(store, restored)
    rows = [row.evaluation for row in restored.rows]
    assert rows[1].latency_ms is None and rows[1].violation is None
    assert rows[2].timed_as == 0 and rows[2].latency_ms == rows[0].latency_ms and "time" not in rows[2].cost_s
    assert rows[3].timed_as is None and rows[3].rounds and rows[3].rounds != rows[0].rounds
    assert rows[4].latency_ms is None and rows[4].violation is not None
    assert rows[5].rounds and rows[6].rounds and rows[5].rounds != rows[6].rounds
    # What is nominated rests on all samples of a route; the reference's engine under another name is not nominated.
    assert history.noise is not None and history.noise == calibrated_noise(rows[0].rounds, PROTOCOL)
    firsts, value, error = pooled(history)
    best = summary.nominees[0]
    assert [n.trial for n in summary.nominees] == [5, 0]
    at = firsts.tolist().index(5)
    assert best.latency_ms == value[at] != rows[5].latency_ms and best.ratio_error == error[at] / value[at]


def changed(change: tuple[int, int]) -> Any:
    codes = landscape_of().space.default.copy()
    codes[change[0]] = change[1]
    return codes


def test_a_reference_that_misses_its_own_tolerance_leaves_no_study(tmp_path: Path, quick_workers: None) -> None:
    """The message says which output, by how much, and which flag; the name is free for a corrected command."""
    wrong = config(tmp_path, backend=backend_name(fail={"": "nan@gate"}))
    with pytest.raises(InputError, match="'y'"):
        tune(wrong)
    assert study_names(wrong.storage) == [] and not list((tmp_path / "study.records").glob("*.jsonl"))
    tight = config(tmp_path, tolerances=("1e-12",))
    with pytest.raises(InputError, match=r"y.*--tolerance"):
        tune(tight)
    assert study_names(wrong.storage) == []
    assert tune(config(tmp_path, budget=Budget(trials=2))).trials == 2


@pytest.mark.parametrize(
    ("kind", "outcome"), [("segv", "CRASH"), ("build_error", "BUILD_ERROR"), ("segv@time", "CRASH")]
)
def test_a_reference_that_cannot_be_measured(kind: str, outcome: str, tmp_path: Path, quick_workers: None) -> None:
    with pytest.raises(InputError, match=rf"the reference route cannot be measured \({outcome}\)") as refused:
        tune(config(tmp_path, backend=backend_name(fail={"": kind})))
    assert "\n" not in str(refused.value)
    assert study_names(tmp_path / "study.journal") == []


@pytest.mark.parametrize(("knobs", "expected"), [(20, "tpe"), (21, "live")])
def test_without_a_strategy_the_number_of_knobs_decides(
    knobs: int, expected: str, tmp_path: Path, quick_workers: None
) -> None:
    chosen = config(
        tmp_path,
        "auto",
        SPEC | {"knobs": knobs},
        budget=Budget(trials=2),
        study=None,
        knobs="-*=[*]",
    )
    summary = tune(chosen)
    assert summary.strategy == expected and f"-{expected}-" in summary.study
    assert tune(replace(chosen, budget=Budget(trials=3))).study == summary.study  # the same command goes on with it


def test_who_tunes_hears_of_builds_on_their_way(tmp_path: Path, quick_workers: None) -> None:
    (tmp_path / "tells.py").write_text(
        "from gpt_search.backends.synthetic import SyntheticBackend\n"
        "class Tells(SyntheticBackend):\n"
        "    on_progress = None\n"
        "    def build(self, workload, route, options):\n"
        "        self.on_progress('tactics', 3, 8)\n"
        "        return super().build(workload, route, options)\n"
    )
    told: list[tuple[str, int, int]] = []
    name = f"{tmp_path / 'tells.py'}:Tells:{backend_name().partition(':')[2]}"
    told_config = config(tmp_path, backend=name, budget=Budget(trials=2))
    tune(told_config, building=lambda *step: told.append(step))
    assert len(told) == 4 and set(told) == {("tactics", 3, 8)}  # the reference on both sides, and two routes
    resume(NAME, told_config.storage, Budget(trials=3), building=lambda *step: told.append(step))
    assert len(told) > 4


def test_two_studies_in_one_file(tmp_path: Path, quick_workers: None) -> None:
    """Each has its own records; the name is made from model, strategy and seed where none is given."""
    few = Budget(trials=4)
    names = [tune(config(tmp_path, "random", budget=few, seed=seed, study=None)).study for seed in (1, 2)]
    assert names == ["model-random-1", "model-random-2"] == study_names(tmp_path / "study.journal")
    one, two = (contents(tmp_path, name)["records"] for name in names)
    assert len(one) == len(two) == 5 and one[1:] != two[1:]


# -- several builders ----------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["sparse_random", "mixed", "tpe"])
def test_three_builders(strategy: str, tmp_path: Path, quick_workers: None) -> None:
    settings, before = config(tmp_path, strategy, FAILING, builders=3, budget=Budget(trials=25)), children()
    summary = tune(settings)
    assert summary.trials == 25 and summary.unfinished == 0
    found = contents(tmp_path)
    assert sorted(found["order"]) == list(range(26)) and found["order"][0] == 0
    routes = [json.loads(line)["route"] for line in found["records"]]
    assert len(set(routes)) == 26
    with StudyStore.read(settings.storage, NAME) as store:
        assert store.attr("builders") == 3
    assert children() == before


def test_builders_may_change_from_run_to_run(tmp_path: Path, quick_workers: None) -> None:
    settings, before = config(tmp_path, "sparse_random", builders=3, budget=Budget(trials=12)), children()
    with pytest.raises(Stopped):
        tune(settings, stop_after(5))
    assert children() == before
    assert resume(NAME, settings.storage, builders=1).trials == 12
    found = contents(tmp_path)
    assert sorted(found["order"]) == list(range(13)) and found["adopted"] == []


# -- real processes ------------------------------------------------------------------------------
class Command:
    """A `gpt-search tune` of its own, whose trials take as long as they say they do."""

    def __init__(self, folder: Path, *more: str) -> None:
        settings = config(folder)
        self.mark = f"{MARK}-{folder}"
        self.storage = settings.storage
        command = ["tune", str(settings.model), "--backend", backend_name(sleep=True), "--strategy", "sparse_random"]
        command += ["--metric", "lInf", "--tolerance", settings.tolerances[0], "--seed", "3", "--trials", "12"]
        command += ["--storage", settings.storage, "--study", NAME, "--no-confirm", *more]
        environment = {**os.environ, RUNTIME_VARIABLE: str(folder / "locks"), MARK: self.mark}
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpt_search.cli.main", *command],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )

    def wait_for_trial(self, number: int) -> None:
        """Until that trial has finished, by what the command shows."""
        assert eventually(
            lambda: re.search(rf"trial +{number}/", self.log.read_text()) or self.process.poll() is not None
        )
        assert self.process.poll() is None, self.log.read_text()

    def stop(self, number: int) -> tuple[int, str, str]:
        """Exit status, standard output, standard error after that signal; nothing that was started may live on."""
        assert len(marked(self.mark)) > 2
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert eventually(lambda: not marked(self.mark)), "processes live on"
        return self.process.returncode, output, self.log.read_text()


MARK = "GPT_SEARCH_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Living processes that were started with the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def children() -> list[int]:
    from gpt_search.execution.supervisor import descendants

    return descendants(os.getpid())


def eventually(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def without_interruption(tmp_path: Path, quick_workers: None) -> dict[str, Any]:
    """The study of `Command`, run through at once, without sleeping."""
    folder = tmp_path / "whole"
    folder.mkdir()
    tune(config(folder, "sparse_random", budget=Budget(trials=12), protocol=Protocol()))
    return contents(folder)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
    ids=["ctrl-c", "sigterm", "sighup", "kill"],
)
def test_a_command_that_is_stopped(
    number: int, status: int, tmp_path: Path, without_interruption: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stopped"
    folder.mkdir()
    command = Command(folder)
    command.wait_for_trial(2)
    code, output, log = command.stop(number)
    assert code == status and output == ""
    if number != signal.SIGKILL:
        assert "Traceback" not in log
        assert f"Continue with:\n  gpt-search resume {NAME} --storage {command.storage}\n" in log
    left = contents(folder)
    assert len(left["order"]) >= 3 and len(left["adopted"]) <= 1
    # Not sleeping from here on: the same numbers, sooner.
    monkeypatch.setattr(synthetic, "time", SimpleNamespace(sleep=lambda seconds: None))
    resume(NAME, command.storage)
    assert_equal(contents(folder), without_interruption, "after the command was stopped")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["ctrl-c", "kill"])
def test_a_command_with_three_builders_that_is_stopped(
    number: int, status: int, tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tmp_path, "--builders", "3", "--trials", "40", "--json")  # long enough to be stopped within
    command.wait_for_trial(2)
    code, output, log = command.stop(number)
    assert code == status and "Traceback" not in log
    if number == signal.SIGINT:
        answer = json.loads(output)
        assert answer["error"] == "interrupted" and f"gpt-search resume {NAME}" in answer["continue"]
    left = contents(tmp_path)
    assert 3 <= len(left["order"]) < 41 and 1 <= len(left["adopted"]) <= 3
    monkeypatch.setattr(synthetic, "time", SimpleNamespace(sleep=lambda seconds: None))
    assert resume(NAME, command.storage).trials == 40
    found = contents(tmp_path)
    assert sorted(found["order"]) == list(range(41)) and found["records"][: len(left["records"])] == left["records"]
