from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from store_cases import (
    KILLED,
    SETTINGS,
    SPACE,
    full_disk,
    in_child,
    kill_at_append,
    memory_path,
    no_fsync,
    script,
    timed,
)

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.store import journal, records
from gpt_search.store.files import StorageError
from gpt_search.store.journal import quiet
from gpt_search.store.records import Record, RecordFile, read_records
from gpt_search.store.settings import StudySettings
from gpt_search.store.study import StudyStore, study_names

__all__ = ["memory_path", "no_fsync"]  # fixtures

NAME = "net/random seed 7"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch, no_fsync: None) -> None:
    monkeypatch.setattr("gpt_search.store.journal._SETTLE_SECONDS", 0)


def create(url: str | Path, name: str = NAME, settings: StudySettings = SETTINGS) -> StudyStore:
    return StudyStore.create_or_resume(url, name, settings, SPACE)


def run(store: StudyStore) -> None:
    """Runs the script from where the study stands, as a live run does: adopted trials first."""
    restored = store.restore()
    done = {row.trial for row in restored.rows}
    adopted = [a.trial for a in restored.adopted]
    for trial in adopted + [t for t in range(len(script())) if t not in done and t not in adopted]:
        codes, until, evaluation = script()[trial]
        store.start(trial, np.asarray(codes, np.int16), until)
        store.finish(trial, evaluation, 10.0 * (trial + 1))


def contents(url: str | Path, name: str = NAME) -> dict[str, Any]:
    """Everything that must be equal after an uninterrupted and an interrupted run."""
    with StudyStore.read(url, name) as store:
        restored = store.restore()
        trials = store.study.get_trials()
        lines = [line.to_json() for line in read_records(store.record_path) if isinstance(line, Record)]
        for line in lines:
            del line["finished_at"], line["study_id"]
        summaries = [t.user_attrs["gpt_search"] for t in trials]
        for summary in summaries:
            del summary["finished_at"]
        return {
            "rows": [(r.trial, r.codes.tolist(), r.until, r.evaluation.to_json(), r.clock_s) for r in restored.rows],
            "adopted": restored.adopted,
            "clock_s": restored.clock_s,
            "trials": [(t.number, t.state, t.values, t.params, t.constraints, t.user_attrs["until"]) for t in trials],
            "summaries": summaries,
            "records": lines,
            "settings": store.settings.sections,
        }


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A study that ran through."""
    path = tmp_path / "whole" / "study.journal"
    path.parent.mkdir()
    with create(path) as store:
        run(store)
    return path


def test_a_study_from_its_start_to_its_end(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        assert store.created and store.writable and store.restore().rows == []
        run(store)
        assert store.space == SPACE and store.study.best_trial.number == 2
    found = contents(url)
    assert [row[0] for row in found["rows"]] == list(range(7)) and found["clock_s"] == 70.0
    assert [json.dumps(row[3]) for row in found["rows"]] == [json.dumps(e.to_json()) for _, _, e in script()]
    assert [row[1] for row in found["rows"]] == [list(codes) for codes, _, _ in script()]
    assert found["trials"][2][1:3] == (TrialState.COMPLETE, [0.5])
    assert [s["sequence"] for s in found["summaries"]] == list(range(7))
    with StudyStore.open(url, NAME) as store:
        assert not store.created and store.settings == SETTINGS.with_space(SPACE) and store.space == SPACE
        assert store.restore().rows[2].evaluation == timed(0.5)
    with create(url) as store:
        assert not store.created and len(store.restore().rows) == 7


def test_the_key_of_a_record(whole: Path) -> None:
    with StudyStore.read(whole, NAME) as store:
        line = next(iter(read_records(store.record_path)))
        assert isinstance(line, Record)
        assert line.route == "-fuse=0 -tile:k=32 -mode=a -fp16=on"
        # Of the route's meaning: another space that spells it otherwise gives the same digest.
        assert line.key["route"] == Route.parse("-fp16=on").digest(SETTINGS["database"]["defaults"])
        assert line.key["workload"] == "w" * 64 and line.key["database"] == "d" * 64
        assert set(line.key) == {"workload", "database", "route", "environment", "protocol"}
        assert store.study.trials[0].user_attrs["gpt_search"]["key"] == line.key


def test_trials_finish_in_any_order(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        for trial in range(4):
            store.start(trial, SPACE.codes_at(trial), Phase.TIME)
        for trial in (2, 0, 3):
            store.finish(trial, timed(1.0 + trial), float(trial))
    with StudyStore.open(url, NAME) as store:
        restored = store.restore()
        assert [row.trial for row in restored.rows] == [2, 0, 3]
        (adopted,) = restored.adopted
        assert adopted.trial == 1 and adopted.codes.tolist() == SPACE.codes_at(1).tolist()
        assert store.study.trials[1].state is TrialState.RUNNING
        store.start(1, SPACE.codes_at(1), Phase.TIME)
        store.finish(1, timed(9.0), 5.0)
        assert store.study.trials[1].value == 9.0 and len(store.study.trials) == 4


def appends(url: Path) -> int:
    """How many appends a whole study makes."""
    with StudyStore.read(url, NAME) as store:
        return len(url.read_text().splitlines()) + len(store.record_path.read_text().splitlines())


@pytest.mark.parametrize("part", [0.0, 0.5], ids=["before", "torn"])
def test_killed_at_every_write(whole: Path, tmp_path: Path, part: float) -> None:
    """Dies at each append in turn: making the study, start, record, built, accuracy, attribute, tell.

    Dying before one is dying after the one before it.
    """
    expected = contents(whole)
    total = appends(whole)
    assert total > 6 * len(script())
    for number in range(1, total + 1):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        url = folder / "study.journal"

        def work(url: Path = url, number: int = number) -> None:
            kill_at_append([journal, records], number, part)
            with create(url) as store:
                run(store)

        assert in_child(work) == KILLED, number
        with create(url) as store:
            run(store)
        assert contents(url) == expected, f"killed at append {number}"
        if number % 9 == 0:
            best = plain_study(url, NAME).best_trial
            assert (best.number, best.value) == (2, 0.5)


def test_killed_again_and_again_while_restoring(tmp_path: Path, whole: Path) -> None:
    """Each run gets two appends further: restoring must not depend on being left alone either."""
    url = tmp_path / "study.journal"
    create(url).close()

    def work() -> None:
        kill_at_append([journal, records], 3, 0.5)
        with create(url) as store:
            run(store)

    runs = 1
    while (status := in_child(work)) == KILLED and runs < 100:
        runs += 1
    assert status == 0 and runs > 10
    assert contents(url) == contents(whole)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["before", "torn", "after"])
@pytest.mark.parametrize("sqlite", [False, True], ids=["journal", "sqlite"])
def test_killed_while_being_discarded(memory_path: Path, sqlite: bool, part: float) -> None:
    """Dies at each of the writes: the name is free for other settings, or the study as it was before."""
    other = SETTINGS.with_section("seed", 8)
    steps = ["mark", "clear", "delete"]
    for step in steps:
        folder = memory_path / step
        folder.mkdir()
        url = f"sqlite:///{folder}/study.db" if sqlite else str(folder / "study.journal")

        def work(url: str = url, step: str = step) -> None:
            store = create(url)
            store.restore()
            store.start(0, SPACE.default, Phase.TIME)
            store.finish(0, Evaluation(Outcome.BUILD_ERROR, Phase.TIME), 0.0)
            name = {"mark": "set_study_user_attr", "delete": "delete_study"}.get(step)
            holder: Any = RecordFile if name is None else type(store._storage)
            real = getattr(holder, name or "clear")

            def dying(*arguments: Any) -> None:
                if part == 0.5 and not sqlite and name is not None:
                    kill_at_append([journal], 1, part)
                if part >= 0.5:
                    real(*arguments)
                os._exit(KILLED)

            setattr(holder, name or "clear", dying)
            store.discard()

        assert in_child(work) == KILLED
        if step == "mark" and part < 1.0 and not (sqlite and part):
            with create(url) as store:  # nothing was decided yet
                assert len(store.restore().rows) == 1 and not store.created
                store.discard()
        else:
            with pytest.raises(InputError):
                StudyStore.open(url, NAME)
            with pytest.raises(InputError):
                StudyStore.read(url, NAME)
        with create(url, settings=other) as store:
            assert store.created and store.restore().rows == []
            store.discard()
        assert study_names(url) == [] and not list((folder / "study.records").iterdir())


def test_restoring_twice_changes_nothing(whole: Path) -> None:
    before = whole.read_bytes()
    with StudyStore.open(whole, NAME) as store:
        store.restore()
        store.restore()
    assert whole.read_bytes() == before


def test_a_recorded_but_untold_trial_is_a_row_for_readers_too(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"

    def work() -> None:
        store = create(url)
        store.start(0, SPACE.default, Phase.TIME)
        kill_at_append([journal, records], 2, 0.0)
        store.finish(0, timed(1.0), 1.0)

    assert in_child(work) == KILLED
    before = url.read_bytes()
    with StudyStore.read(url, NAME) as store:
        restored = store.restore()
        assert [row.trial for row in restored.rows] == [0] and restored.adopted == []
    assert url.read_bytes() == before, "a reader writes nothing"


def test_lines_torn_at_any_byte(tmp_path: Path, whole: Path) -> None:
    """Cuts the journal within its last entry, the tell: the trial is finished from its record."""
    expected, content = contents(whole), whole.read_bytes()
    for size in range(content[:-1].rfind(b"\n") + 1, len(content)):
        whole.write_bytes(content[:size])
        with StudyStore.open(whole, NAME) as store:
            assert store.restore().adopted == []
            assert store.study.get_trials(deepcopy=False)[-1].state is TrialState.FAIL
        if size % 10 == 0:
            assert contents(whole) == expected


@pytest.mark.parametrize("what", ["journal", "records"])
@pytest.mark.parametrize("room", [0, 150])
def test_a_full_disk(tmp_path: Path, whole: Path, what: str, room: int) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        store.finish(0, timed(1.0), 10.0)
        full = {"journal": url, "records": store.record_path}[what]
        if what == "records":
            # Records outgrow the journal only with their samples: fill up until they are the larger file.
            store.append_confirmation({"x": "y" * (url.stat().st_size + 4096)})
        before = url.read_bytes(), store.record_path.read_bytes()
        hint = r"Nothing that was finished is lost.*gpt-search resume"
        with full_disk(full, room), pytest.raises(StorageError, match=hint) as caught:
            store.start(1, np.asarray(script()[1][0], np.int16), Phase.TIME)
            store.finish(1, script()[1][2], 20.0)
        assert "\n" not in str(caught.value) and str(full) in str(caught.value)
        if what == "journal":
            assert (url.read_bytes(), store.record_path.read_bytes()) == before
        else:
            assert store.record_path.read_bytes() == before[1]
    with create(url) as store:
        run(store)
    found, expected = contents(url), contents(whole)
    for key in ("rows", "trials", "summaries", "adopted"):
        assert found[key] == expected[key]


def test_a_failed_start_can_be_repeated(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        with full_disk(url, 10), pytest.raises(StorageError):
            store.start(0, SPACE.default, Phase.TIME)
        store.start(0, SPACE.default, Phase.TIME)
        store.finish(0, timed(1.0), 1.0)
        assert [t.state for t in store.study.trials] == [TrialState.COMPLETE]


def test_a_finish_that_failed_after_the_record_is_not_recorded_twice(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        store.append_confirmation({})
        with full_disk(url, 10), pytest.raises(StorageError, match="study database"):
            store.finish(0, timed(1.0), 1.0)  # the record file is smaller: it may still grow
        with pytest.raises(ValueError, match="not running"):
            store.finish(0, timed(1.0), 1.0)
        assert [row.trial for row in store.restore().rows] == [0]
        assert store.study.trials[0].state is TrialState.COMPLETE


# -- other programs ---------------------------------------------------------------------------------


def plain_study(url: Path, name: str) -> optuna.Study:
    with quiet():
        return optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(url))))


def test_plain_optuna_reads_the_study_while_it_runs(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        run(store)
        study = plain_study(url, NAME)
        assert study.best_trial.number == 2 and study.best_value == 0.5
        assert study.trials == store.study.trials
        store.start(7, SPACE.codes_at(0), Phase.TIME)
        assert study.trials[7].state is TrialState.RUNNING
        store.finish(7, timed(0.25), 80.0)
        assert study.best_trial.number == 7
        assert [t.number for t in study.trials] == list(range(8)), "numbers are in sequence"
        frame = study.trials_dataframe()
        assert len(frame) == 8


def test_plain_optuna_in_its_own_process_and_nothing_on_stderr(whole: Path) -> None:
    code = (
        "import sys; from gpt_search.store.study import StudyStore, study_names\n"
        "assert 'optuna' not in sys.modules\n"
        "path, name = sys.argv[1:]\n"
        "with StudyStore.open(path, name) as s: s.restore(); print(s.study.best_trial.number)\n"
        "import optuna; assert optuna.logging.get_verbosity() == optuna.logging.INFO"
    )
    done = subprocess.run([sys.executable, "-c", code, str(whole), NAME], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)


def test_creating_a_study_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with create(tmp_path / "study.journal") as store:
        run(store)
    with create(f"sqlite:///{tmp_path}/other.db") as store:
        store.restore()
    assert capfd.readouterr() == ("", "")


def test_a_note_of_another_program_does_no_harm(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        study = plain_study(url, NAME)
        study.set_user_attr("note", "from a dashboard")
        store.finish(0, timed(1.0), 1.0)
    with create(url) as store:
        assert len(store.restore().rows) == 1


def test_trials_of_another_program_are_refused(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        store.finish(0, timed(1.0), 1.0)
        plain_study(url, NAME).enqueue_trial({"fuse": "1"})
        with pytest.raises(StorageError, match="another program added trials"):
            store.start(1, SPACE.codes_at(0), Phase.TIME)
    with StudyStore.read(url, NAME) as store, pytest.raises(StorageError, match=r"trial 1 .*added by another program"):
        store.restore()


def test_a_running_trial_finished_by_another_program(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        plain_study(url, NAME).tell(0, state=TrialState.FAIL)
        with pytest.raises(StorageError, match="another program finished a running trial"):
            store.finish(0, timed(1.0), 1.0)


def test_a_study_of_another_program_is_left_alone(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with quiet():
        study = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(url))), study_name="theirs")
        study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=1)
    before = url.read_bytes()
    with pytest.raises(InputError, match="made by another program"):
        create(url, "theirs")
    with pytest.raises(InputError, match="made by another program"):
        StudyStore.read(url, "theirs")
    assert url.read_bytes() == before
    assert list((tmp_path / "study.records").iterdir()) == []


# -- refusals ---------------------------------------------------------------------------------------


def test_other_settings_are_refused_with_the_differences(whole: Path) -> None:
    wanted = SETTINGS.with_section("tolerance", {"metric": "lInf", "default": 0.02, "by_output": {}}).with_section(
        "seed", 8
    )
    before = whole.read_bytes()
    with pytest.raises(
        InputError, match=r"tolerance.default: stored 0.01, now 0.02; seed: stored 7, now 8\."
    ) as caught:
        create(whole, settings=wanted)
    assert f"gpt-search resume '{NAME}' --storage {whole}" in str(caught.value) and "\n" not in str(caught.value)
    assert whole.read_bytes() == before
    space = SearchSpace([*SPACE.dimensions, Dimension("extra", ("0", "1"), 0)], SPACE.pinned)
    with pytest.raises(InputError, match=r"space.extra: stored nothing, now 0\|1"):
        StudyStore.create_or_resume(whole, NAME, SETTINGS, space)
    many = StudySettings({**SETTINGS.sections, **{f"s{i}": i for i in range(20)}})
    with pytest.raises(InputError, match=r"s7: stored nothing, now 7; and 12 more\."):
        create(whole, settings=many)


def test_a_moved_model_is_no_difference(whole: Path) -> None:
    moved = SETTINGS.with_section("workload", {**SETTINGS["workload"], "model": "/elsewhere/n.onnx", "name": "n"})
    with create(whole, settings=moved) as store:
        assert len(store.restore().rows) == 7


def test_one_process_at_a_time_and_readers_at_any_time(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        for again in (lambda: create(url), lambda: StudyStore.open(url, NAME)):
            with pytest.raises(StorageError, match=f"'{NAME}' is being run by (process {os.getpid()}|another process)"):
                again()
        with create(url, "another study") as other:
            run(other)
        run(store)
        assert len(contents(url)["rows"]) == 7
    assert sorted(study_names(url)) == sorted([NAME, "another study"])


def test_a_killed_study_can_be_resumed_at_once(tmp_path: Path) -> None:
    url, ready = tmp_path / "study.journal", tmp_path / "ready"
    pid = os.fork()
    if pid == 0:
        store = create(url)
        store.start(0, SPACE.default, Phase.TIME)
        ready.touch()
        time.sleep(60)
        os._exit(1)
    while not ready.exists():
        time.sleep(0.005)
    with pytest.raises(StorageError, match="is being run"):
        create(url)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with create(url) as store:
        assert [a.trial for a in store.restore().adopted] == [0]


def test_an_unknown_study(whole: Path, tmp_path: Path) -> None:
    for opening in (StudyStore.open, StudyStore.read):
        with pytest.raises(InputError, match=f"no study 'net/random seed' .*did you mean '{NAME}'.*it has: {NAME}"):
            opening(whole, "net/random seed")
        with pytest.raises(InputError, match="there is no study database"):
            opening(tmp_path / "missing.journal", NAME)
        with pytest.raises(InputError, match="empty"):
            opening(whole, "")
    assert len(list((whole.parent / "study.records").iterdir())) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole"]


def test_a_file_that_is_no_study(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    for opening in (
        create,
        lambda url: StudyStore.open(url, NAME),
        lambda url: StudyStore.read(url, NAME),
        study_names,
    ):
        with pytest.raises(InputError, match="not a study database"):
            opening(path)
    assert path.read_bytes() == b"\x08\x08\x12\x07pytorch"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_deleted_records_are_noticed(whole: Path) -> None:
    with StudyStore.read(whole, NAME) as store:
        path = store.record_path
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3] + lines[5:]))
    for opening in (StudyStore.open, StudyStore.read):
        with opening(whole, NAME) as store, pytest.raises(StorageError, match=r"lacks the records .*\(3, 4\)"):
            store.restore()
    path.unlink()
    with StudyStore.read(whole, NAME) as store, pytest.raises(StorageError, match="lacks the records"):
        store.restore()


def test_records_and_database_that_do_not_belong_together(whole: Path, tmp_path: Path) -> None:
    with StudyStore.read(whole, NAME) as store:
        path = store.record_path
    content = path.read_text()
    lines = content.splitlines(keepends=True)
    for damaged, message in (
        (content + lines[0], "two records of trial 0"),
        (content + lines[0].replace('"trial":0', '"trial":7'), "record of the unknown trial 7"),
        (content.replace("-fuse=1 -tile:k=64", "-fuse=0 -tile:k=64"), "record of trial 3 is of another route"),
        (re.sub('"study_id":"[0-9a-f]*"', '"study_id":"x"', content), "records of another study named"),
    ):
        path.write_text(damaged)
        with StudyStore.open(whole, NAME) as store, pytest.raises(StorageError, match=message):
            store.restore()
    # The journal was deleted, the records were not: nothing is mixed, nothing is overwritten.
    path.write_text(content)
    whole.unlink()
    with pytest.raises(StorageError, match="move that file away"):
        create(whole)
    assert path.read_text() == content


def test_changed_settings_in_the_database_are_noticed(whole: Path) -> None:
    plain_study(whole, NAME).set_user_attr("gpt_search:tolerance", {"default": 99})
    with pytest.raises(StorageError, match=r"changed by another program \(tolerance\)"):
        StudyStore.read(whole, NAME)


def test_a_newer_format_is_refused(whole: Path) -> None:
    study = plain_study(whole, NAME)
    study.set_user_attr("gpt_search", {**study.user_attrs["gpt_search"], "format": 2})
    with pytest.raises(StorageError, match="format 2"):
        StudyStore.open(whole, NAME)


def test_wrong_calls(tmp_path: Path) -> None:
    url = tmp_path / "study.journal"
    with create(url) as store:
        with pytest.raises(ValueError, match="the next one is 0"):
            store.start(1, SPACE.default, Phase.TIME)
        store.start(0, SPACE.default, Phase.TIME)
        store.start(0, SPACE.default, Phase.TIME)
        with pytest.raises(ValueError, match="another route"):
            store.start(0, SPACE.codes_at(0), Phase.TIME)
        with pytest.raises(ValueError, match="finite"):
            store.finish(0, Evaluation(Outcome.OK, Phase.TIME), 1.0)
        with pytest.raises(ValueError, match="not running"):
            store.finish(1, timed(1.0), 1.0)
        assert not list(store.restore().rows)
    with pytest.raises(ValueError, match="closed"):
        store.set_attr("x", 1)
    with StudyStore.read(url, NAME) as store:
        for call in (
            lambda: store.start(1, SPACE.default, Phase.TIME),
            lambda: store.finish(0, timed(1.0), 1.0),
            lambda: store.append_confirmation({}),
        ):
            with pytest.raises(ValueError, match="reading only"):
                call()


# -- the rest ---------------------------------------------------------------------------------------


def test_facts_and_confirmations(whole: Path) -> None:
    with StudyStore.open(whole, NAME) as store:
        assert store.attr("reference_ms") is None and store.attr("reference_ms", 1.0) == 1.0
        store.set_attr("reference_ms", 2.5)
        store.append_confirmation({"stage": 1, "speedup": 1.25})
        store.append_confirmation({"stage": 2})
    with StudyStore.read(whole, NAME) as store:
        assert store.attr("reference_ms") == 2.5
        assert store.confirmations() == [{"stage": 1, "speedup": 1.25}, {"stage": 2}]
        assert len(store.restore().rows) == 7, "confirmations are no trials"
    with create(whole) as store:
        assert len(store.restore().rows) == 7, "facts are no settings"


@pytest.mark.parametrize("name", ["a/b", "a b", "../up", ".", "ünï©ode ✓", "x" * 300, "a%2Fb", "q'uote"])
def test_any_name(tmp_path: Path, name: str) -> None:
    url = tmp_path / "deep" / "study.journal"
    url.parent.mkdir()
    for each in (name, "a/b", "a_b"):
        with create(url, each) as store:
            run(store)
    assert set(study_names(url)) == {name, "a/b", "a_b"}
    assert len(contents(url, name)["rows"]) == 7
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep"]
    assert sorted(p.name for p in url.parent.iterdir()) == ["study.journal", "study.records"]
    assert len(list((url.parent / "study.records").iterdir())) == len({name, "a/b", "a_b"})


@pytest.mark.parametrize(
    ("name", "why"), [("-rf", "starts with '-'"), ("a\nb", "a line break"), ("a\x1b[2J", "control")]
)
def test_a_name_that_no_command_could_give_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        create(tmp_path / "study.journal", name)
    assert list(tmp_path.iterdir()) == []


def test_a_space_with_nothing_to_vary(tmp_path: Path) -> None:
    url, space = tmp_path / "study.journal", SearchSpace([], {"fp16": "on"})
    with StudyStore.create_or_resume(url, "s", SETTINGS, space) as store:
        store.start(0, space.default, Phase.TIME)
        store.finish(0, timed(1.0), 1.0)
    with StudyStore.open(url, "s") as store:
        assert store.restore().rows[0].codes.shape == (0,)


def test_sqlite(memory_path: Path, whole: Path) -> None:
    url = f"sqlite:///{memory_path}/study.db"
    with create(url) as store:
        assert store.created
        codes, until, evaluation = script()[0]
        store.start(0, np.asarray(codes, np.int16), until)
        store.finish(0, evaluation, 10.0)
        store.start(1, np.asarray(script()[1][0], np.int16), script()[1][1])
        with pytest.raises(StorageError, match="is being run"):
            create(url)
    with pytest.raises(InputError, match="seed: stored 7, now 8"):
        create(url, settings=SETTINGS.with_section("seed", 8))
    with create(url) as store:
        run(store)
        store.set_attr("reference_ms", 2.5)
    with StudyStore.open(url, NAME) as store:
        assert store.attr("reference_ms") == 2.5 and store.restore().adopted == []
    assert contents(url) == contents(whole)
    with quiet():
        study = optuna.load_study(study_name=NAME, storage=url)
    assert study.best_trial.number == 2
    assert study_names(url) == [NAME]
    assert (memory_path / "study.records").is_dir()
    with pytest.raises(InputError, match="did you mean"):
        StudyStore.open(url, NAME + "x")


@pytest.mark.parametrize("step", ["set_trial_system_attr", "set_trial_user_attr", "set_trial_state_values"])
@pytest.mark.parametrize("after", [False, True])
def test_sqlite_stopped_between_record_and_tell(memory_path: Path, step: str, after: bool) -> None:
    url = f"sqlite:///{memory_path}/study.db"

    class Stop(BaseException):
        pass

    with create(url) as store, pytest.MonkeyPatch.context() as patch:
        real = getattr(store._storage, step)

        def stop(*arguments: Any, **more: Any) -> None:
            if after:
                real(*arguments, **more)
            raise Stop

        store.start(0, SPACE.default, Phase.TIME)
        patch.setattr(store._storage, step, stop)
        with pytest.raises(Stop):
            store.finish(0, script()[0][2], 10.0)
    with create(url) as store:
        assert [row.evaluation for row in store.restore().rows] == [timed(1.0)]
        (trial,) = store.study.trials
        assert trial.state is TrialState.COMPLETE and trial.value == 1.0
        assert (
            trial.constraints == {"built": 0.0, "accuracy": -0.005} and trial.user_attrs["gpt_search"]["sequence"] == 0
        )


@pytest.mark.parametrize("room", [0, 200, 600])
def test_a_disk_that_is_full_while_a_study_is_made(tmp_path: Path, room: int) -> None:
    url = tmp_path / "study.journal"
    create(url, "earlier").close()
    with full_disk(url, room), pytest.raises(StorageError, match="then run the same command again") as caught:
        create(url)
    assert "\n" not in str(caught.value) and "resume" not in str(caught.value)
    create(url).close()  # as the message says


def test_a_full_sqlite_database(memory_path: Path) -> None:
    url = f"sqlite:///{memory_path}/study.db"
    with create(url) as store:
        store.start(0, SPACE.default, Phase.TIME)
        with full_disk(memory_path / "study.db", 0), pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.sleep", lambda seconds: None)  # Optuna waits between its tries
            with pytest.raises(StorageError, match=r"study\.db cannot be used: .*Nothing that was finished is lost"):
                for trial in range(1, 200):
                    store.start(trial, SPACE.codes_at(0), Phase.TIME)
    with create(url) as store:
        adopted = store.restore().adopted
        assert [a.trial for a in adopted] == list(range(len(adopted))) and adopted


def test_a_copied_study_is_still_whole(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole.parent, tmp_path / "copy")
    assert contents(tmp_path / "copy" / "study.journal") == contents(whole)
