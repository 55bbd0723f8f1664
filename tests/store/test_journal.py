from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stderr
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial
from store_cases import full_disk, no_fsync

from gpt_search.store.files import StorageError
from gpt_search.store.journal import JournalFile, open_journal, quiet

__all__ = ["no_fsync"]  # a fixture

CHOICES = optuna.distributions.CategoricalDistribution(("a", "b"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal that plain Optuna wrote: two studies, one deleted, trials of every state and kind of parameter."""
    path = tmp_path / "x.journal"
    with quiet():
        storage = JournalStorage(JournalFileBackend(str(path)))
        for name in ("one", "two"):
            study = optuna.create_study(storage=storage, study_name=name)
            study.optimize(
                lambda t: (
                    t.suggest_float("x", 0, 1) + len(t.suggest_categorical("c", ["a", "bc"])) + t.suggest_int("i", 1, 3)
                ),
                n_trials=3,
            )
            study.add_trial(
                create_trial(
                    state=TrialState.RUNNING, params={"c": "b"}, distributions={"c": CHOICES}, user_attrs={"u": 1}
                )
            )
            study.add_trial(
                create_trial(value=2.0, params={"c": "a"}, distributions={"c": CHOICES}, constraints={"built": 1.0})
            )
            study.enqueue_trial({"c": "a"})
        optuna.delete_study(study_name="one", storage=storage)
    return path


def test_the_faster_replay_reads_what_optuna_reads(path: Path) -> None:
    plain = JournalStorage(JournalFileBackend(str(path)))
    ours = open_journal(path, writable=False)
    assert [s.study_name for s in ours.get_all_studies()] == ["two"]
    study_id = plain.get_study_id_from_name("two")
    assert ours.get_study_id_from_name("two") == study_id
    expected = plain.get_all_trials(study_id)
    assert len(expected) == 6 and ours.get_all_trials(study_id) == expected


def test_optuna_reads_what_we_write(path: Path) -> None:
    ours = open_journal(path, writable=True)
    study_id = ours.get_study_id_from_name("two")
    template = create_trial(state=TrialState.RUNNING, params={"c": "b"}, distributions={"c": CHOICES})
    trial_id = ours.create_new_trial(study_id, template)
    with ours.file.unsynced():
        ours.set_trial_user_attr(trial_id, "é", {"x": [1.5]})
    ours.set_trial_state_values(trial_id, TrialState.COMPLETE, [0.25])
    plain = JournalStorage(JournalFileBackend(str(path)))
    assert plain.get_all_trials(study_id) == ours.get_all_trials(study_id)
    assert plain.get_trial(trial_id).user_attrs == {"é": {"x": [1.5]}}


def test_a_plain_writer_in_between(path: Path) -> None:
    ours, plain = open_journal(path, writable=True), JournalStorage(JournalFileBackend(str(path)))
    study_id = plain.get_study_id_from_name("two")
    for i in range(5):
        plain.set_study_user_attr(study_id, f"plain {i}", i)
        ours.set_study_user_attr(study_id, f"ours {i}", i)
    assert len(ours.get_study_user_attrs(study_id)) == 10
    assert ours.get_study_user_attrs(study_id) == plain.get_study_user_attrs(study_id)
    assert not list(path.parent.glob("*.lock")), "and no lock is left"


def test_a_stale_lock_of_plain_optuna_does_not_stall_us(path: Path) -> None:
    (path.parent / "x.journal.lock").symlink_to(path)
    ours = open_journal(path, writable=True)
    ours.set_study_user_attr(ours.get_study_id_from_name("two"), "a", 1)


def test_an_entry_torn_at_any_byte_is_trimmed(path: Path, monkeypatch: pytest.MonkeyPatch, no_fsync: None) -> None:
    monkeypatch.setattr("gpt_search.store.journal._SETTLE_SECONDS", 0)
    content = path.read_bytes()
    whole = content[:-1].rfind(b"\n") + 1
    for size in range(whole, len(content)):
        path.write_bytes(content[:size])
        assert len(open_journal(path, writable=False).get_all_studies()) == 2, "a reader leaves it out"
        assert path.stat().st_size == size, "and in place"
        ours = open_journal(path, writable=True)
        assert ours.file.trimmed == size - whole
        ours.set_study_user_attr(ours.get_study_id_from_name("two"), "after", size)
        assert JournalStorage(JournalFileBackend(str(path))).get_study_user_attrs(1) == {"after": size}


@pytest.mark.parametrize(
    "damage",
    [
        b"hello\n",
        b"{}\n",
        b'{"op_code":4,"wor{"op_code":4}\n',
        b"\0\0\n",
        b'{"op_code":"x"}\n',
        b'{"op_code":99}\n',
        b'{"op_code":2,"worker_id":"x","study_id":0,"user_atr":{}}\n',
    ],
)
def test_a_broken_entry_is_named(path: Path, damage: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], damage, *lines[3:]]))
    content = path.read_bytes()
    for writable in (False, True):
        with pytest.raises(StorageError, match=r"x\.journal, line 4 is not a journal entry; restore"):
            open_journal(path, writable)
    assert path.read_bytes() == content


@pytest.mark.parametrize("room", [0, 1, 60])
def test_a_full_disk_loses_nothing(path: Path, room: int) -> None:
    ours = open_journal(path, writable=True)
    study_id = ours.get_study_id_from_name("two")
    before = path.read_bytes()
    with (
        full_disk(path, room),
        pytest.raises(StorageError, match=r"cannot write the study database .*as it was before"),
    ):
        ours.set_study_user_attr(study_id, "x" * 100, 1)
    assert path.read_bytes() == before
    assert ours.get_study_user_attrs(study_id) == {}
    ours.set_study_user_attr(study_id, "y", 2)
    assert JournalStorage(JournalFileBackend(str(path))).get_study_user_attrs(study_id) == {"y": 2}


def test_a_removed_journal_does_not_start_again_empty(path: Path) -> None:
    ours = open_journal(path, writable=True)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        ours.set_study_user_attr(1, "x", 1)
    assert not path.exists()


def test_a_journal_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open the study database"):
        open_journal(tmp_path / "no" / "x.journal", writable=True)


def test_several_entries_are_one_append(path: Path) -> None:
    file = JournalFile(path, writable=True)
    before = path.read_bytes()
    with full_disk(path, 100), pytest.raises(StorageError):
        file.append_logs([{"op_code": 2, "x": "y" * 40}, {"op_code": 2, "x": "y" * 400}])
    assert path.read_bytes() == before
    file.append_logs([{"op_code": 2}, {"op_code": 3}])
    assert [json.loads(line)["op_code"] for line in path.read_text().splitlines()[-2:]] == [2, 3]


def test_quiet_puts_the_level_back() -> None:
    before = optuna.logging.get_verbosity()
    try:
        for level, inside in ((optuna.logging.DEBUG, logging.WARNING), (optuna.logging.ERROR, logging.ERROR)):
            optuna.logging.set_verbosity(level)
            with redirect_stderr(io.StringIO()), quiet():
                assert optuna.logging.get_verbosity() == inside
            assert optuna.logging.get_verbosity() == level
    finally:
        optuna.logging.set_verbosity(before)
