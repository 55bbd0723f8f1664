"""What the store's tests share: a small space, evaluations of every kind, a full disk, a killed process."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.store.settings import StudySettings

KILLED = 77
SPACE = SearchSpace(
    [Dimension("fuse", ("0", "1"), 0), Dimension("tile:k", ("16", "32", "64"), 1), Dimension("mode", ("a", "b"), 0)],
    pinned={"fp16": "on"},
)
SETTINGS = StudySettings(
    {
        "workload": {"digest": "w" * 64, "model": "/models/net.onnx", "name": "net"},
        "database": {"digest": "d" * 64, "defaults": {"fuse": "0", "tile:k": "32", "mode": "a", "fp16": "off"}},
        "environment": {"runtime": "1.2.3", "device": "cpu"},
        "protocol": {"round_seconds": 0.02},
        "tolerance": {"metric": "lInf", "default": 0.01, "by_output": {}},
        "strategy": {"spec": "random", "digest": "s" * 64},
        "seed": 7,
    }
)


def timed(latency_ms: float, violation: float = -0.005) -> Evaluation:
    """An OK evaluation with raw samples."""
    return Evaluation(
        Outcome.OK,
        Phase.TIME,
        losses=({"y": {"lInf": 0.005, "cos": 0.0}},),
        violation=violation,
        latency_ms=latency_ms,
        error_ms=0.01,
        log_ratio=-0.1,
        log_ratio_error=0.01,
        rounds=(Round((latency_ms, latency_ms * 1.01), (1.0, 1.02), 0.5, True, {"clock": 1.0}),),
        fingerprint=f"{latency_ms}",
        cost_s={"build": 0.5, "time": 0.25},
    )


def script() -> list[tuple[tuple[int, int, int], Phase, Evaluation]]:
    """The trials of a study in order, trial 0 first: every outcome, every phase."""
    nan_losses = ({"y": {"lInf": float("inf"), "cos": float("nan")}},)
    return [
        ((0, 1, 0), Phase.TIME, timed(1.0)),
        ((1, 1, 0), Phase.TIME, Evaluation(Outcome.BUILD_ERROR, Phase.TIME, message="no kernel\nfor é")),
        ((0, 2, 0), Phase.TIME, timed(0.5)),
        (
            (1, 2, 1),
            Phase.TIME,
            Evaluation(Outcome.ACCURACY, Phase.TIME, violation=float("inf"), losses=nan_losses, latency_ms=0.1),
        ),
        ((1, 0, 0), Phase.BUILD, Evaluation(Outcome.OK, Phase.BUILD, fingerprint="f")),
        ((0, 0, 1), Phase.GATE, Evaluation(Outcome.OK, Phase.GATE, violation=-0.001)),
        ((1, 0, 1), Phase.TIME, Evaluation(Outcome.CRASH, Phase.TIME, cost_s={"build": 1.0})),
    ]


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does not wait for the disk: a killed process loses nothing that the kernel has. For loops over many writes."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: SQLite waits for the disk in C, where `no_fsync` does not reach."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@contextmanager
def full_disk(file: Path, room: int) -> Iterator[None]:
    """The kernel refuses every write of this process past `room` bytes more than `file` has (EFBIG, after a part)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = file.stat().st_size if file.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))  # Python ignores SIGXFSZ
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked process and returns its exit status; 0 when it came to its end."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at_append(monkeypatch_targets: list[object], number: int, part: float | None) -> None:
    """From now on the process dies at its `number`-th append (from 1), having written that part of it.

    part: 0 dies before it, 1 after it. To be called in a child only. Without `number` of them nothing happens.
    """
    from gpt_search.store import files

    real = files.append
    left = [number]

    def append(fd: int, data: bytes, sync: bool = True) -> None:
        left[0] -= 1
        if left[0] == 0:
            assert part is not None
            os.write(fd, data[: int(len(data) * part)])
            os._exit(KILLED)
        real(fd, data, sync)

    for module in monkeypatch_targets:
        module.append = append  # type: ignore[attr-defined]
