"""Durable append-only files: what records and the journal have in common.

Locks are flock(2) locks: the kernel drops them when the holder dies, however it dies, so a kill
never leaves a lock behind. Descriptors are close-on-exec: a worker process does not inherit them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpt_search.domain.errors import InputError

_BLOCK = 1 << 16


class StorageError(InputError):
    """A file or database of a study cannot be used or written: one clear line, nothing lost."""


def reason(error: OSError) -> str:
    """The system's words for an error, without Python's numbering."""
    return error.strerror or str(error)


def sync_directory(directory: Path) -> None:
    """Makes a new name in `directory` survive a power cut. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def locked(fd: int) -> Iterator[None]:
    """Holds the exclusive lock of an open file, waiting for it: for the length of one append."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def append(fd: int, data: bytes, sync: bool = True) -> None:
    """Appends `data` to a file opened with O_APPEND and, with `sync`, waits until it is on the disk.

    All or nothing: when the disk is full or fails, the file gets back the size it had, and the
    OSError is raised. The caller holds the file's lock.
    """
    start = os.fstat(fd).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
        if sync:
            os.fsync(fd)
    except BaseException as error:
        # An interrupted append that is complete stays: a reader may have seen it already.
        if left or isinstance(error, OSError):
            _undo(fd, start, len(data) - len(left))
        raise


def _undo(fd: int, start: int, written: int) -> None:
    # Only our own bytes are taken back: a writer without our lock (plain Optuna) may have appended after them.
    if os.fstat(fd).st_size <= start + written:
        os.ftruncate(fd, start)


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all: where that fails, what was there before is still there. Raises OSError."""
    if path.exists() and not path.is_file():  # a device or a pipe, as /dev/stdout: nothing to keep
        path.write_bytes(data)
        return
    path = path.resolve()  # of a link, what it points to
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_new_file(path: Path, data: bytes) -> None:
    """Writes a file that must not exist, whole or not at all. Raises StorageError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # unlike a rename it never replaces what is there
            sync_directory(path.parent)
        finally:
            partial.unlink(missing_ok=True)  # fails where the folder is none, or became read-only
    except OSError as error:
        why = reason(error)
        if isinstance(error, FileExistsError) and path.is_dir():
            why = "it is a folder; give the name of the file to write"
        elif isinstance(error, FileExistsError) and path.exists():
            why = "it exists already; choose another name, or remove it"
        raise StorageError(f"cannot write {path}: {why}") from None


def torn_tail(fd: int) -> int:
    """How many bytes follow the last line end: the part of a line that a killed writer left."""
    size = os.fstat(fd).st_size
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return size - (begin + found + 1)
        end = begin
    return size


def trim_torn_tail(fd: int) -> int:
    """Cuts off what follows the last line end, and returns how many bytes that was. The caller holds the lock."""
    torn = torn_tail(fd)
    if torn:
        os.ftruncate(fd, os.fstat(fd).st_size - torn)
        os.fsync(fd)
    return torn


def lock_holder(fd: int) -> int | None:
    """The process that holds the flock of an open file; None where the system does not tell (no /proc/locks)."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == wanted and int(fields[4]) > 0:
            return int(fields[4])
    return None
