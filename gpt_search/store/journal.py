"""The journal file of Optuna studies, with a lock that dies with its holder.

The file is an ordinary Optuna journal: `optuna.load_study` and optuna-dashboard open it with
Optuna's own `JournalFileBackend`, also while a study runs (Optuna's readers take no lock). Writers
of ours exclude each other with flock on the journal itself. Plain Optuna's writers use a symbolic
link `<journal>.lock` instead, which a kill leaves behind; they do not see our lock, nor we theirs.
Both append whole lines through O_APPEND in one write, which a local file system does not mix, so a
plain writer (a dashboard's note, another study in the same file) is safe there. Over a network file
system it is not, and a plain writer must leave the trials of a gpt_search study alone in any case.

Imports Optuna: import this module only where a study is opened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._storage import JournalStorageReplayResult

from gpt_search.store.files import StorageError, append, locked, reason, sync_directory, torn_tail, trim_torn_tail

_SETTLE_SECONDS = 0.2


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Optuna's INFO messages off stderr for a while; warnings stay, and the level is put back."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


class JournalFile(JournalFileBackend):
    """Optuna's journal file backend with all-or-nothing appends under a flock on the file itself."""

    def __init__(self, path: Path, writable: bool) -> None:
        """Opens a journal; a writable one is created when missing, and a torn last line trimmed.

        Raises OSError.
        """
        self.path = path
        self.trimmed = 0
        self._sync = True
        if writable:
            self._prepare()
        super().__init__(str(path))  # the symbolic-link lock that it makes is never acquired

    def _prepare(self) -> None:
        new = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if new:
                sync_directory(self.path.parent)
            with locked(fd):
                if torn_tail(fd):
                    # Only plain Optuna, which does not take our lock, could still be writing it: let it end.
                    time.sleep(_SETTLE_SECONDS)
                    self.trimmed = trim_torn_tail(fd)
        finally:
            os.close(fd)

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Entries appended inside do not wait for the disk: for what can be made again from a record.

        A killed process loses none of them, a power cut may lose the last ones, in order.
        """
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Appends whole entries or nothing. Raises StorageError (a full disk, a removed file)."""
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            # Never O_CREAT: a journal that was removed under a running study must not start again empty.
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            try:
                with locked(fd):
                    append(fd, data, self._sync)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageError(
                f"cannot write the study database {self.path}: {reason(error)}; the file is as it was before"
            ) from None


@lru_cache(maxsize=65536)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


class _Replay(JournalStorageReplayResult):
    """Optuna's replay, reading each distribution once instead of once per trial: 195 of 1000 trials are 195 objects."""

    def _apply_create_trial(self, log: dict[str, Any]) -> None:
        distributions = {k: _distribution(v) for k, v in log.pop("distributions", {}).items()}
        internal = log.pop("params", {})
        trial_id = len(self._trials)
        super()._apply_create_trial(log)
        trial = self._trials.get(trial_id)
        if trial is not None:  # None: the study was deleted
            trial.distributions = distributions
            trial.params = {k: distributions[k].to_external_repr(v) for k, v in internal.items()}


class FastJournalStorage(JournalStorage):
    """Optuna's journal storage with the faster replay."""

    def __init__(self, file: JournalFile) -> None:
        """Replays the whole file."""
        self.file = file
        super().__init__(file)

    def _sync_with_backend(self) -> None:
        if not isinstance(self._replay_result, _Replay):
            self._replay_result = _Replay(self._worker_id_prefix)
        super()._sync_with_backend()


def open_journal(path: Path, writable: bool) -> FastJournalStorage:
    """The storage of a journal file. Raises StorageError naming the line that is not a journal entry."""
    try:
        return FastJournalStorage(JournalFile(path, writable))
    except OSError as error:
        raise StorageError(f"cannot open the study database {path}: {reason(error)}") from None
    except (ValueError, KeyError, TypeError, AssertionError, AttributeError) as error:
        if isinstance(error, StorageError):
            raise
        line = _broken_line(path)
        raise StorageError(
            f"{path}, line {line} is not a journal entry; restore the file from a copy, or remove that line"
            if line is not None
            else f"{path} is not a readable Optuna journal ({type(error).__name__}: {error}); restore it from a copy"
        ) from None


def _broken_line(path: Path) -> int | None:
    replay = _Replay("")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                if not isinstance(entry["op_code"], int):
                    return number
                replay.apply_logs([entry])  # it may be an entry by its form and still lack what Optuna reads of it
            except Exception:
                return number
    return None
