"""The small process between gpt_search and a worker: it makes sure that nothing outlives the worker.

It forks the worker and does nothing but wait: for the worker to end, or for its lifeline (a socket
to the parent) to close, which happens too when the parent dies by `kill -9`. Then it kills the
worker and every descendant. It is a child subreaper (prctl, Linux 3.4), so processes that daemonised
themselves out of the worker's session still become its children and are found. The worker in turn
asks the kernel for SIGKILL when the supervisor dies (PR_SET_PDEATHSIG): that signal is tied to the
forking *thread*, and the supervisor has only one, while the parent starts workers from many.

This module must stay cheap to import and free of threads: it forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies; ends it at once when `parent` is dead already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def state_of(pid: int) -> str:
    """The state letter of a process as ps(1) shows it ("T" is stopped), or the empty string where there is none."""
    try:
        # The command name may hold spaces and brackets: the fields start after the last bracket.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def descendants(root: int) -> list[int]:
    """Process ids of all living descendants of `root`, zombies left out, found by scanning /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may end while being read
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def kill_descendants(limit_s: float = 10.0) -> None:
    """Kills and reaps every descendant of this process, until none is left or `limit_s` have passed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def supervise(lifeline: int, worker: int) -> int:
    """Waits until the worker ends or the lifeline closes, cleans up, and returns the worker's wait status."""
    handle = os.pidfd_open(worker)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    status: int | None = None
    while status is None:
        ready = dict(poll.poll())
        if handle in ready:
            status = os.waitpid(worker, 0)[1]
        elif lifeline in ready:
            with contextlib.suppress(OSError):
                os.kill(worker, signal.SIGKILL)
            status = os.waitpid(worker, 0)[1]
    kill_descendants()
    return status


def main(arguments: list[str]) -> None:
    """Forks the worker, tells its process id and later its wait status on the lifeline, and exits.

    arguments: descriptors of the channel (for the worker) and of the lifeline.
    """
    channel, lifeline = int(arguments[0]), int(arguments[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the lifeline
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    me = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(lifeline)
        die_with_parent(me)
        os.setsid()
        from gpt_search.execution.worker import serve

        serve(channel)
        os._exit(0)
    os.close(channel)
    with contextlib.suppress(OSError):
        os.write(lifeline, f"pid {worker}\n".encode())
    status = supervise(lifeline, worker)
    with contextlib.suppress(OSError):
        os.write(lifeline, f"status {status}\n".encode())
    sys.stdout.flush()
    os._exit(0)
