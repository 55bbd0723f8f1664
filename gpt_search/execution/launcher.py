"""One worker process, seen from its parent: start, ask, pause, kill.

Whatever becomes of the process becomes a `WorkerFailed` with the outcome of the route that was asked
about. Memory is limited twice: in the worker by RLIMIT_DATA (see `worker`), and from here by a
watchdog that adds up the whole process tree while an answer is awaited: resident memory, and where
that is over the limit the proportional share (PSS), so that shared pages count once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.workload import Array, Workload
from gpt_search.execution.environment import import_paths, worker_environment
from gpt_search.execution.memory import oom_kills, says_no_memory, tree_memory
from gpt_search.execution.messages import Channel, ChannelClosed, GarbageError, Message
from gpt_search.execution.supervisor import state_of
from gpt_search.execution.worker_log import WorkerLog

START_TIMEOUT_S = 180.0
_EXIT_WAIT_S = 15.0
_STOP_WAIT_S = 0.2
_WATCH_S = 0.1
_TREE_WATCH_S = 0.5
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gpt_search.execution.supervisor import main; main(sys.argv[2:])"
)
_ANSWERS = {
    "hello": "ready",
    "describe": "described",
    "build": "built",
    "load": "built",
    "gate": "losses",
    "infer": "outputs",
    "time": "samples",
    "save": "bytes",
    "release": "done",
}

BuildProgress = Callable[[str, int, int], None]
"""Takes a phase of a build, how many of its steps are done, and how many there are."""


class WorkerFailed(Exception):
    """The worker did not do what it was asked.

    outcome: what that makes of the route. message: why. alive: True when the worker can be asked again.
    """

    def __init__(self, outcome: Outcome, message: str, alive: bool = False) -> None:
        super().__init__(message)
        self.outcome, self.message, self.alive = outcome, message, alive


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker works on.

    backend: name for `load_backend`. golden: file of golden pairs. options: for every build.
    memory_limit_bytes: for the worker and everything that it starts, interpreter and libraries
    included. log_dir: where the log files go; None keeps the log in an unnamed temporary file.
    """

    backend: str
    workload: Workload | None = None
    golden: Path | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    log_dir: Path | None = None


class Worker:
    """One worker process. Methods may be called from any thread; one `ask` runs at a time.

    pid: of the worker itself, also its process group and session. ready: what the backend told at
    the start, the fields of a "ready" message. start_seconds: how long the start took. log: what it prints.
    note: cost in seconds by phase that a simulating backend announced for the latest build, or None.
    on_progress: called with what a backend tells of a build on its way: phase, steps done, steps. By whoever asks.
    """

    on_progress: BuildProgress | None = None

    def __init__(self, spec: WorkerSpec, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the process and loads the backend.

        Raises WorkerFailed when it does not come up, InputError when the backend says that the input is wrong.
        """
        began = time.perf_counter()
        self._spec = spec
        self._lock = threading.Lock()
        self._requests = count(1)
        self._dead: str | None = None
        self._status: int | None = None
        self._life_text = b""
        self._paused = False
        self._oom_kills = 0
        self.note: dict[str, float] | None = None
        self.log = WorkerLog(spec.log_dir)
        mine, theirs = socket.socketpair()
        life, their_life = socket.socketpair()
        self._life = life
        self._channel = Channel(mine)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(import_paths())]
                + [str(s.fileno()) for s in (theirs, their_life)],
                stdin=subprocess.DEVNULL,
                stdout=self.log.file,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), their_life.fileno()),
                env=worker_environment(),
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            theirs.close()
            their_life.close()
        try:
            self.pid = self._await_pid(began + timeout_s)
            answer = self.ask(
                "hello",
                {
                    "backend": spec.backend,
                    "workload": spec.workload.to_json() if spec.workload is not None else None,
                    "golden": str(spec.golden.absolute()) if spec.golden is not None else None,
                    "options": dict(spec.options),
                    "memory_limit": spec.memory_limit_bytes,
                },
                timeout_s=timeout_s,
                phase="start",
            )
        except BaseException:
            self.kill()
            raise
        self.ready: Mapping[str, Any] = answer.fields
        self.start_seconds = time.perf_counter() - began

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """True while the worker can be asked."""
        return self._dead is None

    @property
    def running(self) -> bool:
        """False once the process has ended, even if nobody has asked it since."""
        return self.alive and state_of(self.pid) not in ("Z", "X", "")

    # -- asking --------------------------------------------------------------------------------
    def ask(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Array] | None = None,
        *,
        timeout_s: float | None,
        phase: str,
    ) -> Message:
        """Asks, waits for the answer, and returns it; a paused worker is resumed first.

        kind: a request of `messages.SCHEMA`. phase: what to call this in messages.
        timeout_s: after that long the worker is killed; None waits for ever.

        Raises WorkerFailed (the worker is dead unless `alive` says otherwise), InputError.
        """
        with self._lock:
            if self._dead is not None:
                raise WorkerFailed(Outcome.CRASH, self._dead)
            self.resume()
            if kind == "build":
                self.note = None
            self.log.mark()
            self._oom_kills = oom_kills()
            request = Message(kind, next(self._requests), fields or {}, arrays or {})
            watch = _Watch(self, timeout_s, phase)
            try:
                self._channel.send(request, watch)
                answer = self._receive(request, watch)
            except WorkerFailed as failed:
                self._end(failed.message)
                raise
            except GarbageError as error:
                message = f"the worker answered with garbage in phase {phase}: {error}"
                self._end(message)
                raise WorkerFailed(Outcome.CRASH, message) from None
            except ChannelClosed:
                raise self._died(phase) from None
            except BaseException:
                # Ctrl-C and the like: the answer to this request must not be taken for that to the next.
                self._end(f"interrupted in phase {phase}")
                raise
            if answer.kind == "error":
                return self._refused(answer)
            return answer

    def _receive(self, request: Message, watch: _Watch) -> Message:
        while True:
            answer = self._channel.receive(watch)
            if answer.id != request.id or answer.kind not in (_ANSWERS[request.kind], "note", "progress", "error"):
                raise GarbageError(f"request {request.id} ({request.kind}) got answer {answer.id} ({answer.kind})")
            if answer.kind == "progress":
                if self.on_progress is not None:
                    told = answer.fields
                    self.on_progress(told["phase"], told["done"], told["steps"])
                continue
            if answer.kind != "note":
                return answer
            self.note = {str(k): float(v) for k, v in answer.fields["cost_s"].items()}

    def _refused(self, answer: Message) -> Message:
        outcome, message = answer.fields["outcome"], answer.fields["message"]
        if outcome == "INPUT":
            raise InputError(message)
        if outcome not in Outcome.__members__ or outcome in ("OK", "ACCURACY"):
            message = f"the worker answered with garbage: outcome {outcome[:40]!r}"
            self._end(message)
            raise WorkerFailed(Outcome.CRASH, message)
        if not answer.fields["healthy"]:
            self._end(message)
        raise WorkerFailed(Outcome[outcome], message, alive=answer.fields["healthy"])

    def _died(self, phase: str) -> WorkerFailed:
        """What a closed channel means: the outcome and message for it. The worker is dead afterwards."""
        if self._read_life(1.0) is None:
            how = "closed its channel"
            self._end("the worker closed its channel")
        else:
            how = _explain(self._status)
            self._end("the worker died")
        outcome = Outcome.CRASH
        log = self.log.tail()
        if oom_kills() > self._oom_kills and self._status == signal.SIGKILL:
            how, outcome = "was killed by the kernel, which is out of memory", Outcome.MEMORY
        elif self._status != 0 and says_no_memory(log):
            outcome = Outcome.MEMORY
        message = f"the worker {how} in phase {phase}"
        if log:
            message += f"\n{log}"
        self._dead = message
        return WorkerFailed(outcome, message)

    # -- pausing -------------------------------------------------------------------------------
    def pause(self) -> None:
        """Stops the worker's process group (SIGSTOP), so that its idle threads disturb nobody.

        Returns when the process has stopped: on a busy machine it may still have to be scheduled for that.
        """
        if self._dead is None and not self._paused:
            self._paused = True
            self._signal(signal.SIGSTOP)
            end = time.monotonic() + _STOP_WAIT_S
            while state_of(self.pid) not in ("T", "t", "Z", "X", "") and time.monotonic() < end:
                time.sleep(0.0002)

    def resume(self) -> None:
        """Lets a paused worker go on (SIGCONT)."""
        if self._paused:
            self._paused = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    # -- ending --------------------------------------------------------------------------------
    def kill(self) -> None:
        """Kills the worker and everything that it started; does nothing when it is dead. From any thread."""
        if self._dead is None:
            self._dead = "the worker was killed"
        if hasattr(self, "pid") and self._status is None:
            self._signal(signal.SIGKILL)
        with contextlib.suppress(OSError):  # the supervisor sees the lifeline close and cleans up
            self._life.shutdown(socket.SHUT_WR)
        if self._lock.acquire(blocking=False):  # else the asking thread sees the channel close, and ends it
            try:
                self._end(self._dead)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the worker; there is nothing to save, so it is killed."""
        self.kill()

    def _end(self, why: str) -> None:
        """Kills, reaps, closes: called by whoever holds the lock."""
        if self._dead is None:
            self._dead = why
        if self._life.fileno() < 0:
            return
        if hasattr(self, "pid"):
            self._signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._life.shutdown(socket.SHUT_WR)
        self._read_life(_EXIT_WAIT_S)
        try:
            self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its worker then dies by PR_SET_PDEATHSIG; what hangs in the kernel stays
            self._process.wait()
        self._close_files()

    def _close_files(self) -> None:
        self._channel.close()
        self._life.close()
        self.log.close()

    # -- the lifeline --------------------------------------------------------------------------
    def _await_pid(self, end: float) -> int:
        self._life.setblocking(False)
        while b"\n" not in self._life_text:
            if not self._poll_life(max(0.0, end - time.perf_counter())):
                self._end("the worker process did not come up")
                raise WorkerFailed(Outcome.CRASH, f"the worker process did not come up\n{self.log.tail()}".strip())
        word, _, number = self._life_text.split(b"\n")[0].partition(b" ")
        assert word == b"pid", self._life_text
        return int(number)

    def _poll_life(self, seconds: float) -> bool:
        """Reads what the supervisor says; False when it said nothing more in time or is gone."""
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        if not poll.poll(1000 * seconds):
            return False
        try:
            text = self._life.recv(4096)
        except OSError:
            return False
        self._life_text += text
        return bool(text)

    def _read_life(self, seconds: float) -> int | None:
        """The worker's wait status when the supervisor tells it within that time."""
        end = time.perf_counter() + seconds
        while self._status is None:
            for line in self._life_text.split(b"\n")[:-1]:
                if line.startswith(b"status "):
                    self._status = int(line[7:])
            if self._status is None and not self._poll_life(max(0.0, end - time.perf_counter())):
                break
        return self._status


class _Watch:
    """Called while an answer is awaited: deadline, memory of the tree, size of the log, unnoticed death."""

    def __init__(self, worker: Worker, timeout_s: float | None, phase: str) -> None:
        self._worker, self._timeout_s, self._phase = worker, timeout_s, phase
        self._began = self._next = self._next_tree = time.monotonic()

    def __call__(self) -> None:
        worker, now = self._worker, time.monotonic()
        if self._timeout_s is not None and now - self._began >= self._timeout_s:
            message = f"phase {self._phase} took longer than its limit of {self._timeout_s:g} s"
            raise WorkerFailed(Outcome.TIMEOUT, message)
        if now < self._next:
            return
        self._next = now + _WATCH_S
        worker.log.bound()
        # A process that the worker forked may hold the channel open beyond the worker's death.
        if worker._read_life(0) is not None or worker._dead is not None:
            raise ChannelClosed
        limit = worker._spec.memory_limit_bytes
        if limit is not None and now >= self._next_tree and hasattr(worker, "pid"):
            self._next_tree = now + _TREE_WATCH_S
            used = tree_memory(worker._process.pid, limit)
            if used > limit:
                message = (
                    f"phase {self._phase}: the worker and what it started use {used / 1e9:.2f} GB, "
                    f"the limit is {limit / 1e9:.2f} GB"
                )
                raise WorkerFailed(Outcome.MEMORY, message)


def _explain(status: int | None) -> str:
    if status is None:
        return "ended, nobody knows how,"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"died by {signal.Signals(number).name}"
        return f"died by signal {number}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
