"""The log of one worker: what its process prints, bounded, and the lines that explain a failure."""

from __future__ import annotations

import fcntl
import os
import tempfile
from itertools import count
from pathlib import Path
from typing import BinaryIO

LIMIT = 16 << 20
"""Bytes; a compiler may print without end."""
_TAIL = 8192
_numbers = count(1)


class WorkerLog:
    """A file that a process appends its output to.

    path: of the file; None where it is an unnamed temporary one. file: what the process is given as its output.
    """

    def __init__(self, folder: Path | None) -> None:
        """folder: where the file goes, made when it is missing; None for an unnamed temporary one.

        Raises OSError when it cannot be made.
        """
        self.path: Path | None = None
        if folder is None:
            self.file: BinaryIO = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115  (`close` closes it)
            # Its mode does not make it an appending file, and a truncated log would begin with a hole.
            fcntl.fcntl(self.file, fcntl.F_SETFL, fcntl.fcntl(self.file, fcntl.F_GETFL) | os.O_APPEND)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"worker-{os.getpid()}-{next(_numbers)}.log"
            self.file = self.path.open("a+b", buffering=0)
        self._start, self._kept = 0, ""

    def mark(self) -> None:
        """What was printed up to here belongs to earlier requests."""
        self.bound()
        self._start = self._size()

    def bound(self) -> None:
        """Empties a log over its limit, also in the middle of a request."""
        if self._size() > LIMIT:
            os.ftruncate(self.file.fileno(), 0)  # both sides append, so nothing is left with a hole
            self._start = 0

    def tail(self) -> str:
        """The last lines printed since `mark`, also of a closed log, without Python's own reports.

        Those hold addresses and paths, which would make records of equal failures differ.
        """
        text = self._kept if self.file.closed else self._read()
        lines = []
        for line in text.splitlines():
            if line.startswith(("Fatal Python error", "Current thread", "Thread 0x")):
                break
            if line.strip() and not line.startswith(("Traceback (most recent", " ")):
                lines.append(line.strip()[:300])
        return "\n".join(lines[-3:])

    def close(self) -> None:
        """Keeps the tail and closes the file; one that nothing was printed to is removed."""
        self._kept = self._read()
        if self.path is not None and self._size() == 0:
            self.path.unlink(missing_ok=True)
        self.file.close()

    def _read(self) -> str:
        start = max(self._start, self._size() - _TAIL)
        return os.pread(self.file.fileno(), _TAIL, start).decode(errors="replace")

    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size
