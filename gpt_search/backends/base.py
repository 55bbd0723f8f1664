"""The contract of a backend: a compiler whose build routes can be searched.

A backend lives inside a worker process. It may crash or hang the process: that becomes the outcome
of one route. What it must never do is answer wrongly.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Array, Workload


class BuildError(Exception):
    """The compiler refused the route: its own message, in one or more lines."""


class MemoryLimitError(Exception):
    """An allocation failed under the worker's memory limit; becomes `Outcome.MEMORY`."""


class Fingerprints(enum.Enum):
    """What equal and different engine fingerprints mean."""

    EXACT = (
        "equal fingerprints mean the same program with the same run-time settings, different ones a different program"
    )
    MAY_MERGE = "different programs may get equal fingerprints"
    MAY_SPLIT = "one program may get different fingerprints in two builds"
    MAY_BOTH = "different programs may get equal fingerprints, and one program different ones"
    NONE = "the backend gives no fingerprints"

    @property
    def equal_is_same(self) -> bool:
        """True when equal fingerprints prove that the engines are the same."""
        return self in (Fingerprints.EXACT, Fingerprints.MAY_SPLIT)

    @property
    def equal_may_differ(self) -> bool:
        """True when equal fingerprints suggest that the engines are the same, and do not prove it."""
        return self in (Fingerprints.MAY_MERGE, Fingerprints.MAY_BOTH)


class Placement(enum.Enum):
    """Where the reference engine lives while a candidate is timed against it."""

    PAUSED_WORKER = "in a second worker process; the idle one of the two is stopped (SIGSTOP) while the other is timed"
    SAME_WORKER = "in the candidate's worker process, both engines loaded"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    fingerprint: what equal fingerprints mean. build_uses_device: True when building disturbs timing
    on the same device (TensorRT times tactics there). placement: where the reference lives.
    metrics: what can be timed: "latency"; "throughput" (`TimingRequest.streams` above 1); "host_copies"
    (`TimingRequest.host_copies`).
    """

    fingerprint: Fingerprints
    build_uses_device: bool
    placement: Placement
    metrics: tuple[str, ...] = ("latency",)


def timing_refusal(metrics: Collection[str], streams: int, host_copies: bool) -> str | None:
    """Why a backend with these `Capabilities.metrics` cannot time so; None where it can."""
    if streams > 1 and "throughput" not in metrics:
        return f"--streams {streams}: this backend times one call after the other only; leave it out"
    if host_copies and "host_copies" not in metrics:
        return (
            "--host-copies: this backend has no copies between host and device to be timed (its device is the host, "
            "or it does not tell); leave it out"
        )
    return None


@dataclass(frozen=True)
class BuildOptions:
    """What the user fixed for every build of a study; part of the record's key.

    values: backend-specific, JSON-like.
    """

    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TimingRequest:
    """One round of timing.

    inputs: by input name, the tensors to run on. seconds: keep calling for at least that long.
    min_calls, max_calls: bounds on the number of calls, over all streams. warmup_calls: untimed calls first.
    streams: calls in flight at any time, each on its own copy of the inputs; 1 for calls one after the
        other. More than one only where the backend's metrics name "throughput". All of them stay busy
        until the last timed call has ended, so that every timed call runs under the full load.
    host_copies: the calls take their inputs from host memory and leave their outputs there, copies between
        host and device included; False for both already on the device. A backend whose device is the
        host refuses True with an InputError.
    launch: how to launch the calls, as `TimingResult.launch` names it; None for the engine's own choice. An
        engine that cannot do it launches as it can and says so.
    """

    inputs: Mapping[str, Array]
    seconds: float = 0.010
    min_calls: int = 1
    max_calls: int = 100_000
    warmup_calls: int = 0
    streams: int = 1
    host_copies: bool = False
    launch: str | None = None


@dataclass(frozen=True)
class TimingResult:
    """One round's samples, and how they were launched.

    samples_ms: float64 (calls,), ms, in the order of completion, none dropped: each call's latency
    over `streams`. With several streams their mean is the time per inference, one over the throughput
    (Little's law: calls in flight = throughput x mean latency). launch: how calls were made ("call",
    "graph"). streams, host_copies: as was done; must be what was asked for. launch_note: why this engine's
    calls could not be launched in the better way, else empty: the other side of a pair is then asked for
    this side's way, so that both are timed alike. device: clocks, temperature and the like during this
    turn, by name; `throttled` above 0 where the device slowed down. again: why the round should be taken
    again (a device that throttled, where the user asked for that), else empty.
    """

    samples_ms: NDArray[np.float64]
    launch: str = "call"
    streams: int = 1
    host_copies: bool = False
    launch_note: str = ""
    device: Mapping[str, float] = field(default_factory=dict)
    again: str = ""


class Engine(Protocol):
    """A built engine, ready to run. Use it from one thread.

    An engine may also have `size_bytes`, the length of `save()` where that is known without saving; it is recorded,
    and spares a save where a study limits the size.
    """

    fingerprint: str | None
    memory_bytes: int | None

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs."""
        ...

    def time(self, request: TimingRequest) -> TimingResult:
        """Times calls back to back, in ms."""
        ...

    def save(self) -> bytes:
        """The engine as bytes for `Backend.load`."""
        ...

    def close(self) -> None:
        """Frees the engine."""
        ...


class Backend(Protocol):
    """A compiler with knobs."""

    capabilities: Capabilities

    def knob_database(self) -> KnobDatabase:
        """All knobs of the installed compiler version."""
        ...

    def environment(self) -> dict[str, str]:
        """Versions, device, driver: what must be equal for records to be comparable."""
        ...

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> Engine:
        """Builds the route. Raises BuildError with the compiler's message."""
        ...

    def load(self, data: bytes, workload: Workload) -> Engine:
        """The engine that `Engine.save` wrote. Raises BuildError when it cannot be read."""
        ...
