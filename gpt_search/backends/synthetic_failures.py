"""Failures on demand for the synthetic backend: every way in which a compiler can take its process down."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping

import numpy as np

from gpt_search.backends.base import BuildError, MemoryLimitError
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.outcome import Outcome


class SimulatedFailure(Exception):
    """A planted failure that is answered instead of acted out; `outcome` says which."""

    def __init__(self, outcome: Outcome, phase: str) -> None:
        super().__init__(f"simulated {outcome.name} in phase {phase}")
        self.outcome = outcome


# -- failures on demand ------------------------------------------------------------------------
def _channel() -> int:
    """The worker's channel; outside a worker there is none to spoil."""
    try:
        return int(os.environ["GPT_SEARCH_CHANNEL"])
    except KeyError:
        raise RuntimeError("this failure spoils the worker's channel, and this process is no worker") from None


def _exception() -> None:
    raise RuntimeError("on demand: an exception")


def _build_error() -> None:
    raise BuildError("on demand: the compiler refuses this route")


def _hang() -> None:
    while True:
        time.sleep(3600)


def _limit() -> int:
    """The memory limit; without one a test of it would take the whole machine's memory."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        raise MemoryLimitError("on demand: memory overrun, answered because no memory limit is set")
    return limit


def _memory() -> None:
    blocks = [np.ones(1 << 20) for _ in range(0, _limit(), 8 << 20)]  # as much as the limit, the libraries on top
    raise RuntimeError(f"the memory limit let {len(blocks)} blocks of 8 MiB through")


def _memory_tree() -> None:
    """Three children that each stay below the limit: only their sum is over it."""
    each = _limit() * 6 // 10
    for _ in range(3):
        if os.fork() == 0:
            held = bytearray(each)
            while held:
                time.sleep(3600)
    _hang()


def _garbage() -> None:
    os.write(_channel(), b"I am not a frame\n" * 8)


def _close() -> None:
    os.close(_channel())
    _hang()


def _grandchild() -> None:
    """Leaves a process behind that has daemonised itself: its own session, its parent gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", os.environ.get("GPT_SEARCH_TEST_SLEEP", "3600")])
        os._exit(0)
    os.wait()


def _chatter() -> None:
    for _ in range(200):
        os.write(1, b"warning: this compiler prints to stdout\n" * 50)
        os.write(2, b"GPTSRCH1 and to stderr\n")
    print("chatter ends", flush=True)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _slow() -> None:
    time.sleep(0.3)


KINDS: Mapping[str, Callable[[], object]] = {
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "exit0": lambda: os._exit(0),
    "exception": _exception,
    "hang": _hang,
    "memory": _memory,
    "memory_tree": _memory_tree,
    "garbage": _garbage,
    "close": _close,
    "stop": _stop,
    "grandchild": _grandchild,
    "chatter": _chatter,
    "build_error": _build_error,
    "slow_build": _slow,
    "slow": _slow,
    "nan": lambda: None,
    "shape": lambda: None,
    "missing": lambda: None,
}
"""Failures on demand. nan, shape and missing spoil the outputs: they act in the gate."""

SPOILS = frozenset({"nan", "shape", "missing"})
PLANTED = {
    Outcome.CRASH: "segv",
    Outcome.TIMEOUT: "hang",
    Outcome.MEMORY: "memory",
    Outcome.BUILD_ERROR: "build_error",
}


def parse_failure(text: object) -> dict[str, list[str]]:
    """Kinds by phase name, from "kind", "kind@phase" or "a+b@phase"."""
    kinds, _, phase = str(text).partition("@")
    if phase not in ("", "build", "gate", "time"):
        raise InputError(f"synthetic backend: failure {text!r} names phase {phase!r}; phases are build, gate, time")
    for kind in kinds.split("+"):
        if kind not in KINDS:
            raise InputError(f"synthetic backend: unknown failure {kind!r}{did_you_mean(kind, KINDS)}")
    return {phase or "build": kinds.split("+")}
