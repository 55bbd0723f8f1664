"""One lock per physical device, across the processes of one user.

A lock is an advisory file lock (flock), so the kernel frees it when its holder dies. Timing takes it
exclusively. Building takes it too where it would disturb timing: exclusively on an accelerator,
whose compiler times its candidates there, and shared on the CPU, where builds may run beside each
other but not beside a timing.

Waiting is fair: whoever wants the lock queues at a second file, so a stream of builds cannot keep a
timing waiting for ever.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from gpt_search.domain.errors import InputError

RUNTIME_VARIABLE = "GPT_SEARCH_RUNTIME_DIR"
CPU = "cpu"
_POLL_S = (0.0005, 0.02)


def runtime_folder() -> Path:
    """The folder of the lock files, made if need be: private to the user, on a local file system.

    It does not depend on TMPDIR or on the kind of login, so that all processes of a user agree;
    $GPT_SEARCH_RUNTIME_DIR overrides it. Raises InputError when it belongs to somebody else.
    """
    user = os.getuid()
    given = os.environ.get(RUNTIME_VARIABLE)
    system = Path(f"/run/user/{user}")
    if given:
        folder = Path(given)
    elif system.is_dir() and os.access(system, os.W_OK):
        folder = system / "gpt_search"
    else:
        folder = Path(f"/tmp/gpt_search-{user}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user:
        raise InputError(f"{folder} belongs to somebody else; set {RUNTIME_VARIABLE} to a folder of your own")
    return folder


class DeviceLock:
    """The lock of one device. Any number of objects, threads and processes may use it at a time."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        """device: "cpu", or a GPU's UUID. folder: by default `runtime_folder()`."""
        self.device = device
        plain = re.sub(r"[^A-Za-z0-9-]+", "_", device)[:60]
        name = plain if plain == device else f"{plain}-{sha256(device.encode()).hexdigest()[:12]}"
        base = (runtime_folder() if folder is None else folder) / name
        self._main, self._queue = base.with_name(f"{name}.lock"), base.with_name(f"{name}.queue")

    @contextmanager
    def hold(self, *, shared: bool = False, check: Callable[[], None] | None = None) -> Iterator[float]:
        """Holds the lock; gives the seconds that it took to get it.

        shared: beside other shared holders. check: called while waiting; what it raises ends the waiting.
        """
        began = time.perf_counter()
        main = os.open(self._main, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            queue = os.open(self._queue, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _take(queue, fcntl.LOCK_EX, check)
                _take(main, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, check)
            finally:
                os.close(queue)
            yield time.perf_counter() - began
        finally:
            os.close(main)  # frees the lock


def build_lock_shared(device: str) -> bool:
    """How a build that uses the device takes its lock: shared on the CPU, exclusively elsewhere."""
    return device == CPU


def _take(descriptor: int, how: int, check: Callable[[], None] | None) -> None:
    # Polled, because a thread that is blocked in flock cannot be told to give up.
    pause, longest = _POLL_S
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if check is not None:
                check()
        time.sleep(pause)
        pause = min(2 * pause, longest)
