"""A table that is still being recorded: lines are appended, and on the disk before the next route is built.

The file lies beside the table as `NAME.part`; it becomes the table in one step when it is whole. Its lock ends with the
process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from gpt_search.domain.errors import InputError
from gpt_search.store.files import (
    StorageError,
    append,
    lock_holder,
    reason,
    sync_directory,
    trim_torn_tail,
    write_new_file,
)
from gpt_search.store.sealed import Sealer, compressed, require_compressor
from gpt_search.store.settings import StudySettings, differences
from gpt_search.store.table_file import environment_digest, header, statistic_of
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import Table, load_table

_MOST_DIFFERENCES = 8


def part_path(out: Path) -> Path:
    """Where the lines of a table lie until it is whole."""
    return out.with_name(out.name + ".part")


def refuse_other(path: Path, stored: StudySettings, wanted: StudySettings) -> None:
    """Raises InputError with the list of differences when a file holds another recording."""
    found = differences(stored, wanted)
    if found:
        more = len(found) - _MOST_DIFFERENCES
        text = "; ".join(found[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        raise InputError(
            f"{path} was recorded with other settings: {text}. Give --out another name, repeat the first command, "
            "or remove the file to begin anew"
        )


class TablePart:
    """The partial file of one recording, open for appending under an exclusive lock; a context manager.

    table: what was there when it was opened. records: how many there are now.
    """

    def __init__(self, out: Path, settings: StudySettings) -> None:
        """Makes the file, or goes on with the one that is there.

        Raises InputError listing the differences where that is of another recording, and where the table cannot be
        compressed as its name asks for; StorageError where another process records it, or it cannot be used.
        """
        require_compressor(out)
        self.out, self.path = out, part_path(out)
        self._environment, self._statistic = environment_digest(settings), statistic_of(settings)
        self._fd = self._opened()
        try:
            trim_torn_tail(self._fd)
            if os.fstat(self._fd).st_size == 0:
                append(self._fd, Sealer().seal(header(settings)))
            self.table: Table = load_table(self.path, unfinished=True)
            refuse_other(self.path, self.table.settings, settings)
            self._sealer = Sealer(self.table.digest)
            self.records = len(self.table.row)
        except OSError as error:
            self.close()
            raise StorageError(f"cannot use {self.path}: {reason(error)}") from None
        except BaseException:
            self.close()
            raise

    def _opened(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {reason(error)}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = lock_holder(fd)
            os.close(fd)
            who = f"process {holder}" if holder is not None else "another process"
            raise StorageError(f"{self.out} is being recorded by {who}; wait until it ends, or stop it") from None
        sync_directory(self.path.parent)
        return fd

    def append(self, record: TableRecord) -> int:
        """Appends a record, waits until it is on the disk, and returns its number. Raises StorageError."""
        before = self._sealer.check
        try:
            append(self._fd, self._sealer.seal(record.to_json(self._environment, self._statistic)))
        except OSError as error:
            self._sealer.check = before
            raise StorageError(
                f"cannot write {self.path}: {reason(error)}; nothing is lost: remove the cause, and repeat the command"
            ) from None
        self.records += 1
        return self.records - 1

    def finish(self) -> Table:
        """Makes the table from the lines, and takes the partial file away. Raises StorageError."""
        data = self.path.read_bytes() + self._sealer.end(self.records + 1)
        write_new_file(self.out, compressed(self.out, data))
        self.remove()
        return load_table(self.out)

    def remove(self) -> None:
        """Takes the partial file away and closes it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Gives the lock back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            fcntl.flock(fd, fcntl.LOCK_UN)  # explicitly: a worker that is just being forked would hold it longer
            os.close(fd)

    def __enter__(self) -> TablePart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
