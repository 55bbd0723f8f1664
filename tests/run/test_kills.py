from __future__ import annotations

import json
import resource
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_forks import LIMIT_S, Attempt, Fuse, fork_workers
from run_studies import (
    FAILING,
    NAME,
    SPEC,
    Stopped,
    assert_equal,
    config,
    contents,
    hungry,
    own_locks,
    quick_workers,
    records_path,
    stop_after,
)

from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.execution.devices import RUNTIME_VARIABLE
from gpt_search.measure.protocol import Protocol
from gpt_search.run.config import TuneConfig
from gpt_search.run.result import Status
from gpt_search.run.show import show
from gpt_search.run.tune import resume, tune
from gpt_search.store.files import StorageError

__all__ = ["own_locks", "quick_workers"]  # fixtures

KILLS = 200
TRIALS = 40
KILLED = -signal.SIGKILL


class Study:
    """One study that is run again and again until it is finished, and looked at after every attempt."""

    def __init__(self, settings: TuneConfig) -> None:
        self.settings = settings
        self.folder = settings.model.parent
        self._lines: list[bytes] = []

    def attempt(self) -> None:
        """What a user does: the same command again, or `resume` where the study exists."""
        if len(self._lines) % 2:
            resume(NAME, self.settings.storage)
        else:
            tune(self.settings)

    def check(self) -> None:
        """No finished trial is lost, changed, or there twice."""
        path = records_path(self.folder)
        data = path.read_bytes() if path.exists() else b""
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        assert lines[: len(self._lines)] == self._lines
        self._lines = lines
        numbers = [json.loads(line)["trial"] for line in lines]
        if self.settings.builders == 1:
            assert numbers == list(range(len(numbers)))
        assert len(set(numbers)) == len(numbers)


def uninterrupted(settings: TuneConfig, folder: Path) -> tuple[dict[str, Any], float]:
    """The contents of the same study without kills, and the seconds that a trial of it took."""
    folder.mkdir()
    began = time.monotonic()
    tune(replace(settings, storage=str(folder / "study.journal")))
    return contents(folder), (time.monotonic() - began) / TRIALS


def attempt(study: Study, fuse: Fuse | None, delay_s: float | None) -> int:
    """One attempt, killed by its fuse or after a while; returns its exit status."""
    process = Attempt(study.attempt, fuse)
    if delay_s is not None:
        time.sleep(delay_s)
        process.kill()
    status = process.wait()
    assert status in (0, KILLED)
    study.check()
    return status


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_random_kills(tmp_path: Path, quick_workers: None) -> None:
    """Half of them at a random step of the program, half at a random time."""
    rng = np.random.default_rng(1)
    report = tmp_path / "report"
    kinds = [("sparse_random", FAILING), ("mixed", SPEC), ("tpe", SPEC), (hungry(tmp_path), FAILING)]
    kills = by_clock = number = 0
    while kills < KILLS:
        strategy, spec = kinds[number % len(kinds)]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        settings = config(folder, strategy, spec, seed=number, budget=Budget(trials=TRIALS))
        whole, trial_s = uninterrupted(settings, tmp_path / f"{number} whole")
        study, status = Study(settings), KILLED
        while status == KILLED and kills < KILLS:
            fuse, delay_s = None, None
            if rng.random() < 0.5:
                fuse = Fuse.random(rng, report)
            else:
                delay_s = rng.random() * 6 * trial_s
            status = attempt(study, fuse, delay_s)
            kills += status == KILLED
            by_clock += status == KILLED and fuse is None
        if status == KILLED:
            status = attempt(study, None, None)
        assert status == 0
        assert_equal(contents(folder), whole, f"{strategy} {number}")
        number += 1
    died_at = Counter(report.read_text().splitlines())
    assert kills == KILLS and by_clock + died_at.total() == KILLS
    # The kinds of moments that must have been among them.
    wanted = {"record before", "record torn", "journal before", "journal torn", "journal after"}
    wanted |= {"build build before", "ask time before", "start worker before"}
    assert not wanted - set(died_at), dict(died_at)


FEW = Budget(trials=6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short study that ran through."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        patch.setenv(RUNTIME_VARIABLE, str(folder / "locks"))
        tune(config(folder, "sparse_random", budget=FEW))
    return folder


def steps_of_trial(folder: Path, trial: int) -> list[int]:
    """Which of the journal's lines, from 1, belong to the end of a trial: everything after its start."""
    lines = [json.loads(line) for line in (folder / "study.journal").read_text().splitlines()]
    return [i for i, line in enumerate(lines, 1) if line.get("trial_id") == trial]


def test_killed_between_record_and_tell(whole: Path, tmp_path: Path, quick_workers: None) -> None:
    """Dies before each of the writes that follow the record of trial 3, and after the last of them, the tell."""
    steps = steps_of_trial(whole, 3)
    assert len(steps) == 4  # built, accuracy, attribute, tell
    fuses = [Fuse("record", 4, 1.0), *(Fuse("journal", n, 0.0) for n in steps), Fuse("journal", steps[-1], 1.0)]
    for number, fuse in enumerate(fuses):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        study = Study(config(folder, "sparse_random", budget=FEW))
        assert attempt(study, fuse, None) == KILLED
        found = contents(folder)
        assert found["order"] == [0, 1, 2, 3] and found["adopted"] == []
        assert found["trials"][3][1] == ("COMPLETE" if number == len(fuses) - 1 else "RUNNING")
        fresh: list[int] = []
        resume(NAME, study.settings.storage, progress=lambda s, fresh=fresh: fresh.append(s.trial))
        assert fresh == [4, 5, 6]  # trial 3 is neither run nor charged again
        assert_equal(contents(folder), contents(whole), f"killed at {fuse.event} {number}")


def test_killed_while_the_study_is_being_made(whole: Path, tmp_path: Path, quick_workers: None) -> None:
    lines = (whole / "study.journal").read_text().splitlines()
    mark = next(i for i, line in enumerate(lines, 1) if '"gpt_search":' in line and '"format"' in line)
    budget = next(i for i, line in enumerate(lines, 1) if "gpt_search_fact:budget" in line)
    first = next(i for i, line in enumerate(lines, 1) if '"distributions"' in line)
    assert mark < budget < first
    moments = [
        (Fuse("replace", 1, 0.0), "there is no study database"),
        (Fuse("replace", 1, 1.0), "there is no study database"),
        (Fuse("journal", 1, 0.0), "it has no studies"),
        (Fuse("journal", 1, 0.4), "it has no studies"),
        (Fuse("journal", mark, 0.4), "killed while being made .then run the same `gpt-search tune` again"),
        (Fuse("journal", budget, 0.0), "give one .--trials.*, or run the same `gpt-search tune` again"),
        (Fuse("journal", budget, 1.0), None),
        (Fuse("journal", first, 0.4), None),
        (Fuse("journal", first, 1.0), None),
    ]
    for number, (fuse, refused) in enumerate(moments):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        study = Study(config(folder, "sparse_random", budget=FEW))
        assert attempt(study, fuse, None) == KILLED
        if refused is not None:
            with pytest.raises(InputError, match=refused):
                resume(NAME, study.settings.storage)
            tune(study.settings)
        else:
            resume(NAME, study.settings.storage)
        assert_equal(contents(folder), contents(whole), f"killed at {fuse.event} {fuse.number}, {fuse.part}")


def test_a_torn_last_line(whole: Path, tmp_path: Path, quick_workers: None) -> None:
    for number, (torn_record, torn_entry) in enumerate([(0.5, 0.0), (0.0, 0.5), (0.9, 0.9), (0.01, 0.01)]):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        settings = config(folder, "sparse_random", budget=FEW)
        with pytest.raises(Stopped):
            tune(settings, stop_after(3))
        for path, part in ((records_path(folder), torn_record), (folder / "study.journal", torn_entry)):
            last = path.read_bytes().splitlines()[-1]
            with path.open("ab") as file:
                file.write(last[: int(part * len(last))])
        assert show(NAME, settings.storage).trials == 3
        resume(NAME, settings.storage)
        assert_equal(contents(folder), contents(whole), f"torn: {torn_record}, {torn_entry}")


@pytest.mark.parametrize("room", [0, 1000, 5000])
@pytest.mark.parametrize("file", ["records", "journal"])
def test_a_full_disk(file: str, room: int, tmp_path: Path, quick_workers: None) -> None:
    """No file may grow past the larger of the two and a little more; what is full first is a matter of the samples."""
    many = Protocol(round_seconds=0.05 if file == "records" else 0.01, warmup_seconds=0.0, warmup_limit_seconds=0.01)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    folders = [tmp_path / "whole", tmp_path / "full"]
    for folder in folders:
        folder.mkdir()
    path = records_path(folders[1]) if file == "records" else folders[1] / "study.journal"

    def fill(status: Status) -> None:
        if status.trial == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, limits[1]))

    tune(config(folders[0], "sparse_random", budget=FEW, protocol=many))
    settings = config(folders[1], "sparse_random", budget=FEW, protocol=many)
    try:
        with pytest.raises(StorageError, match=r"cannot write .* Nothing that was finished is lost") as refused:
            tune(settings, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(path) in str(refused.value) and f"gpt-search resume {NAME}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(contents(folders[1])["order"]) >= 4
    resume(NAME, settings.storage)
    assert_equal(contents(folders[1]), contents(folders[0]), f"{file} full")


def test_two_processes_on_one_study(whole: Path, tmp_path: Path, quick_workers: None) -> None:
    settings = config(tmp_path, "sparse_random", budget=FEW)
    reached = tmp_path / "reached"

    def wait_at_3(status: Status) -> None:
        if status.trial == 3:
            reached.touch()
            time.sleep(LIMIT_S)

    process = Attempt(lambda: tune(settings, wait_at_3))
    end = time.monotonic() + LIMIT_S
    while not reached.exists() and time.monotonic() < end:
        time.sleep(0.01)
    for again in (lambda: tune(settings), lambda: resume(NAME, settings.storage)):
        with pytest.raises(StorageError, match=f"is being run by process {process.pid};"):
            again()
    assert show(NAME, settings.storage).trials == 3
    tune(replace(settings, study="beside it"))  # another study in the same file
    process.kill()
    assert process.wait() == KILLED
    resume(NAME, settings.storage)
    assert_equal(contents(tmp_path), contents(whole), "after the other process was killed")
    assert_equal(contents(tmp_path, "beside it"), contents(whole), "beside it")


def test_killed_with_three_builders(tmp_path: Path, quick_workers: None) -> None:
    """What finishes when is a matter of time then; what must hold: nothing lost, nothing twice, the budget kept."""
    rng = np.random.default_rng(2)
    settings = config(tmp_path, "sparse_random", FAILING, builders=3, budget=Budget(trials=30))
    study = Study(settings)
    fuses = [
        Fuse("record", 4, 1.0),
        Fuse("journal", 30, 0.4),
        *(Fuse.random(rng, tmp_path / "died at") for _ in range(6)),
    ]
    kills = sum(attempt(study, fuse, None) == KILLED for fuse in fuses)
    assert kills >= 5
    assert attempt(study, None, None) == 0
    found = contents(tmp_path)
    assert sorted(found["order"]) == list(range(31)) and found["order"][0] == 0 and found["adopted"] == []
    routes = [json.loads(line)["route"] for line in found["records"]]
    assert len(set(routes)) == len(routes)
