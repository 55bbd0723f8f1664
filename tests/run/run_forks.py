"""Processes that are forked instead of started: a study that is to be killed, and its workers.

Starting Python, numpy and Optuna takes a second, and a study's three workers another; a fork of the
test process, which has imported all of that, takes 20 ms. What runs in it is the real thing: the
supervisor, its lifeline, the worker. That real processes start is what tests/execution tests.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

from gpt_search.execution import launcher, supervisor
from gpt_search.execution.messages import Channel, Message

LIMIT_S = 60.0
"""For what should take a moment: a limit for a broken test, not an assertion on speed."""

_guard: int | None = None
"""In a forked study: the descriptor that everything it starts keeps open."""
_fuse: Fuse | None = None


class ForkedPopen:
    """Stands for `subprocess.Popen` where the launcher starts a worker: forks, and calls the supervisor's `main`."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        assert "supervisor" in args[2] and stdin == subprocess.DEVNULL and stderr == subprocess.STDOUT
        assert start_new_session
        fuse = _fuse
        if fuse is not None:
            fuse.burn("start", "worker", before=True)
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become_supervisor(stdout.fileno(), [str(fd) for fd in pass_fds], env)
        if fuse is not None:
            fuse.burn("start", "worker", before=False)

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            time.sleep(0.001)
        return status

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """From now on this process forks its workers."""
    own = {"DEVNULL": subprocess.DEVNULL, "STDOUT": subprocess.STDOUT, "TimeoutExpired": subprocess.TimeoutExpired}
    patch.setattr(launcher, "subprocess", SimpleNamespace(Popen=ForkedPopen, **own))


def _become_supervisor(log: int, descriptors: list[str], env: Mapping[str, str]) -> None:
    """Never returns. What `exec` and close-on-exec do for a real worker is done here by hand."""
    global _fuse
    try:
        _fuse = None
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        kept = {0, 1, 2, *map(int, descriptors)} | ({_guard} if _guard is not None else set())
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        os.environ.clear()
        os.environ.update(env)
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        supervisor.main(descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Attempt:
    """A forked process that does `work`, and is told from everything that it started by a pipe they all hold open."""

    def __init__(self, work: Callable[[], object], fuse: Fuse | None = None) -> None:
        """fuse: kills the process at one of its steps."""
        self._ended, held = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_study(work, held, fuse)
        os.close(held)

    def kill(self) -> None:
        """kill -9; the process may have ended already."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, minus the signal where one killed it; afterwards nothing that it started lives any more."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        left = not poll.poll(1000 * LIMIT_S)
        os.close(self._ended)
        assert not left, f"processes that {self.pid} started live on {LIMIT_S:g} s after it"
        return status


def _become_study(work: Callable[[], object], held: int, fuse: Fuse | None) -> None:
    """Never returns."""
    global _guard
    status = 1
    try:
        _guard = held
        if fuse is not None:
            fuse.light()
        work()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


class Fuse:
    """Kills the process it is lit in with SIGKILL at one of its steps.

    event: "record" and "journal" (a write to that file), "ask" (a request to a worker), "build" (a request to build),
    "start" (of a worker), "replace" (of a file). number: the how-manieth of them, from 1. part: 0 dies before the step,
    1 after it; of a write it leaves that part of the line. report: a file where it says what it died at: "event what".
    """

    def __init__(self, event: str, number: int, part: float, report: Path | None = None) -> None:
        self.event, self.number, self.part, self.report = event, number, part, report

    def light(self) -> None:
        """Wraps the system calls of this process."""
        global _fuse
        _fuse = self
        write, replace, send = os.write, os.replace, Channel.send

        def write_or_die(fd: int, data: Any) -> int:
            kind = {".journal": "journal", ".jsonl": "record"}.get(Path(f"/proc/self/fd/{fd}").readlink().suffix)
            if kind is not None and self._hit(kind):
                write(fd, bytes(data)[: int(len(data) * self.part)])
                self._die("before" if self.part == 0 else "after" if self.part == 1 else "torn")
            return write(fd, data)

        def send_or_die(channel: Channel, message: Message, wait: Any = None) -> None:
            events = ("ask", "build") if message.kind == "build" else ("ask",)
            for event in events:
                self.burn(event, message.kind, before=True)
            send(channel, message, wait)
            for event in events:
                self.burn(event, message.kind, before=False)

        def replace_or_die(source: Any, target: Any, **more: Any) -> None:
            self.burn("replace", "file", before=True)
            replace(source, target, **more)
            self.burn("replace", "file", before=False)

        os.write, os.replace = write_or_die, replace_or_die
        Channel.send = send_or_die  # type: ignore[method-assign]

    def burn(self, event: str, what: str, *, before: bool) -> None:
        """One step has come: dies where it is the one."""
        if before == (self.part < 0.5) and self._hit(event):
            self._die(f"{what} {'before' if before else 'after'}")

    def _hit(self, event: str) -> bool:
        if _fuse is not self or event != self.event:
            return False
        self.number -= 1
        return self.number == 0

    def _die(self, what: str) -> None:
        if self.report is not None:
            with self.report.open("a") as file:
                file.write(f"{self.event} {what}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    @classmethod
    def random(cls, rng: np.random.Generator, report: Path) -> Fuse:
        """A step of the first two trials or so after a start, of any kind."""
        most = {"record": 2, "journal": 12, "ask": 25, "build": 3, "start": 3}
        event = str(rng.choice(list(most), p=[0.2, 0.35, 0.2, 0.15, 0.1]))
        return cls(event, int(rng.integers(1, most[event] + 1)), float(rng.choice([0.0, 0.4, 1.0])), report)
