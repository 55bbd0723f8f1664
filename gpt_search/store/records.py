"""Records: the truth about every evaluation, one JSON line each, one file per study.

A line is appended in one write and fsynced before the study's database learns of the result. The
open file carries an exclusive flock as long as the study runs; readers need none.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.outcome import Phase
from gpt_search.store.files import StorageError, append, lock_holder, reason, sync_directory, trim_torn_tail

_LONGEST_NAME = 200
_SAFE = re.compile(r"[^A-Za-z0-9._~-]")


def safe_name(study: str) -> str:
    """A file name (without suffix) for a study name: no two studies share one, no path can be smuggled in.

    Everything but letters, digits and `._~-` is percent-encoded; long names are cut and get a
    digest. Raises InputError for an empty name and for one that is not Unicode text.
    """
    if not study:
        raise InputError("the study name is empty; give it at least one character")
    try:
        name = _SAFE.sub(lambda match: quote(match[0], safe=""), study)
    except UnicodeEncodeError:
        raise InputError(f"the study name {study!r} is not valid Unicode text; choose another") from None
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{sha256(study.encode()).hexdigest()[:16]}"
    return name


def check_new_name(study: str) -> None:
    """Raises InputError for the name of a new study that no command line could name, or no line could show."""
    if study.startswith("-"):
        raise InputError(f"the study name {study!r} starts with '-', as an option does; choose another")
    if not study.isprintable():
        raise InputError(f"the study name {study!r} has a line break or a control character in it; choose another")


@dataclass(frozen=True)
class Record:
    """One stored evaluation.

    study, study_id: the study's name and the random id of this very study. trial: its number.
    key: digests of workload, database, route, environment and protocol; equal keys mean that the
    evaluations stand for the same thing. route: as text. finished_at: ISO 8601, UTC. clock_s:
    seconds that the study had run when the trial finished.
    """

    study: str
    study_id: str
    trial: int
    key: Mapping[str, str]
    route: str
    until: Phase
    evaluation: Evaluation
    finished_at: str
    clock_s: float

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the line; `from_json` reads it back."""
        return {
            "kind": "evaluation",
            "study": self.study,
            "study_id": self.study_id,
            "trial": self.trial,
            "key": dict(self.key),
            "route": self.route,
            "until": self.until.name,
            "evaluation": self.evaluation.to_json(),
            "finished_at": self.finished_at,
            "clock_s": self.clock_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """The record that `to_json` described. Raises KeyError, TypeError or ValueError for another form."""
        return cls(
            study=str(data["study"]),
            study_id=str(data["study_id"]),
            trial=int(data["trial"]),
            key=dict(data["key"]),
            route=str(data["route"]),
            until=Phase[data["until"]],
            evaluation=Evaluation.from_json(data["evaluation"]),
            finished_at=str(data["finished_at"]),
            clock_s=float(data["clock_s"]),
        )


@dataclass(frozen=True)
class Confirmation:
    """One stored confirmation result: `data` is whatever the confirmation wrote, JSON-like."""

    study: str
    study_id: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the line; `from_json` reads it back."""
        return {
            "kind": "confirmation",
            "study": self.study,
            "study_id": self.study_id,
            "confirmation": dict(self.data),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Confirmation:
        """The confirmation that `to_json` described. Raises KeyError, TypeError or ValueError."""
        return cls(str(data["study"]), str(data["study_id"]), dict(data["confirmation"]))


@dataclass(frozen=True)
class Minimisation:
    """One stored minimisation result: `data` is whatever the minimisation wrote, JSON-like."""

    study: str
    study_id: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the line; `from_json` reads it back."""
        return {
            "kind": "minimisation",
            "study": self.study,
            "study_id": self.study_id,
            "minimisation": dict(self.data),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Minimisation:
        """The minimisation that `to_json` described. Raises KeyError, TypeError or ValueError."""
        return cls(str(data["study"]), str(data["study_id"]), dict(data["minimisation"]))


Line = Record | Confirmation | Minimisation
"""What a line of a record file holds."""

_KINDS: dict[str, type[Record] | type[Confirmation] | type[Minimisation]] = {
    "evaluation": Record,
    "confirmation": Confirmation,
    "minimisation": Minimisation,
}


def read_records(path: str | Path) -> Iterator[Line]:
    """The lines of a record file, in writing order; needs no lock, and may be called while the study runs.

    A last line without its end is left out: its writer is at work or was killed. Raises
    StorageError naming file and line for any other line that is not a record, and when the file
    cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    data = parse_json(line)
                    yield _KINDS[data["kind"]].from_json(data)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise StorageError(
                        f"{path}, line {number} is not a record ({type(error).__name__}: {error}); "
                        "restore the file from a copy, or remove that line and run its trial again in a new study"
                    ) from None
    except OSError as error:
        raise StorageError(f"cannot read the records {path}: {reason(error)}") from None


class RecordFile:
    """The record file of one running study, open for appending under an exclusive lock.

    The lock is a flock: it ends with the process, however that ends. A context manager.
    """

    def __init__(self, path: str | Path, study: str) -> None:
        """Opens (and creates) the file of `study` and trims a torn last line.

        Raises StorageError when another process runs the study, and when the file cannot be opened.
        """
        self.path = Path(path)
        self.study = study
        self.trimmed = 0
        self._fd: int | None = None
        try:
            self._fd = self._open()
            self.trimmed = trim_torn_tail(self._fd)
        except OSError as error:
            self.close()
            raise StorageError(f"cannot open the records {self.path}: {reason(error)}") from None

    def _open(self) -> int:
        while True:
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                sync_directory(self.path.parent.parent)
            new = not self.path.exists()
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if new:
                    sync_directory(self.path.parent)
                # A file that was removed between open and lock would be locked, and written, in vain.
                if self.path.exists() and os.path.samestat(os.fstat(fd), self.path.stat()):
                    return fd
            except BlockingIOError:
                holder = lock_holder(fd)
                os.close(fd)
                who = f"process {holder}" if holder is not None else "another process"
                raise StorageError(
                    f"study {self.study!r} is being run by {who}; wait until it ends, stop it, or choose another study"
                ) from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def append(self, record: Line) -> None:
        """Appends one line and waits until it is on the disk.

        Raises StorageError when it cannot be written (a full disk); the file then is as it was.
        """
        if self._fd is None:
            raise ValueError("the record file is closed")
        text = json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False)
        try:
            append(self._fd, text.encode() + b"\n")
        except OSError as error:
            raise StorageError(
                f"cannot write the records {self.path}: {reason(error)}; the file is as it was before"
            ) from None

    def read(self) -> Iterator[Line]:
        """The lines so far, in writing order; raises as `read_records`."""
        return read_records(self.path)

    def clear(self) -> None:
        """Takes all lines away. Raises StorageError."""
        if self._fd is None:
            raise ValueError("the record file is closed")
        try:
            os.ftruncate(self._fd, 0)
        except OSError as error:
            raise StorageError(f"cannot empty the records {self.path}: {reason(error)}") from None

    def close(self) -> None:
        """Gives the lock back; an empty file is removed, so that a refused study leaves nothing behind."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if os.fstat(fd).st_size == 0:
                self.path.unlink(missing_ok=True)
        finally:
            # Explicitly: a worker that is just being forked would hold it a moment longer.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
