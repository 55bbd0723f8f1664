"""The worker process: loads one backend and does what it is asked, phase by phase.

It may be killed by what the backend does; that is what it is for. It runs under a supervisor (see
`supervisor`), which starts it by `serve`.

Memory limit. RLIMIT_DATA is set before the backend is loaded: Linux (4.7 and later) counts private
writable mappings under it, so heap and allocator arenas count, file maps and mere reservations of
address space (CUDA's) do not. An allocation beyond it fails at once, before any page is touched:
Python gets MemoryError, C++ gets std::bad_alloc, ONNX Runtime's arena says "Failed to allocate
memory". What interpreter and libraries use already counts (about 0.1 GB with ONNX Runtime). The
limit holds for each process alone; the parent's watchdog adds up the worker's whole tree.

Optional extras of a backend that simulates: `backend.simulate_trial(route, seed)` is called before
each build and may return a cost in seconds by phase, which then stands for the real one;
`engine.simulate_round(seed, round, slot)` before each round of timing; `engine.simulated` is True when its
samples are not wall time. Any backend may have `device_id` (text, names the physical device for
the lock; default "cpu") and `device_state()` (numbers such as clocks and temperature, by name);
`on_progress`, which is set before each build to what takes a phase's name, its steps done and its steps;
`check_options(values)`, which gives build options in the form that records keep, or raises InputError;
`cannot_run()`, one line on why it can build here but not run, or None; `frozen_cache`, True where builds
start from a cache that the study's first build wrote (see `run.timing_cache`). Any engine may have `facts`,
JSON-like, which are recorded with its build.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpt_search.accuracy.losses import losses_of_pair
from gpt_search.backends.base import (
    Backend,
    BuildError,
    BuildOptions,
    Engine,
    MemoryLimitError,
    TimingRequest,
    timing_refusal,
)
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.workload import GoldenPair, Workload
from gpt_search.execution.memory import says_no_memory
from gpt_search.execution.messages import Channel, ChannelClosed, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

CHANNEL_VARIABLE = "GPT_SEARCH_CHANNEL"
"""Environment variable that holds the channel's descriptor inside a worker; for backends that test it."""

INPUT = "INPUT"
"""The outcome that an error answer names when the error is the user's to fix (InputError)."""

_MESSAGE_LIMIT = 100_000
_PHASE_LENGTH = 200
_TELL_EVERY_S = 1.0


def outcome_of(error: BaseException) -> str:
    """The outcome that an exception inside the worker stands for: a member name of Outcome, or INPUT."""
    declared = getattr(error, "outcome", None)  # an exception may say itself what it stands for
    if isinstance(declared, Outcome):
        return declared.name
    if isinstance(error, MemoryError | MemoryLimitError) or says_no_memory(str(error)):
        return Outcome.MEMORY.name
    if isinstance(error, BuildError):
        return Outcome.BUILD_ERROR.name
    if isinstance(error, InputError):
        return INPUT
    return Outcome.CRASH.name


class _Telling:
    """Passes on what a backend tells of its build, about once a second: more would disturb what it is about.

    A backend may call it from threads of its own.
    """

    def __init__(self, channel: Channel, request: int) -> None:
        self._channel, self._request = channel, request
        self._lock, self._last = threading.Lock(), -math.inf

    def __call__(self, phase: str, done: int, steps: int) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._last < _TELL_EVERY_S:
                return
            self._last = now
            fields = {"phase": str(phase)[:_PHASE_LENGTH], "done": int(done), "steps": int(steps)}
            with contextlib.suppress(OSError, ChannelClosed):  # nobody listens any more: the main thread will see it
                self._channel.send(Message("progress", self._request, fields))


class Server:
    """Answers requests; one per worker process."""

    def __init__(self, channel: Channel) -> None:
        """Waits for `hello` before anything else."""
        self._channel = channel
        self._backend: Backend | None = None
        self._workload: Workload | None = None
        self._golden: Path | None = None
        self._pairs: list[GoldenPair] | None = None
        self._options = BuildOptions()
        self._engines: dict[str, Engine] = {}
        self._handlers: dict[str, Callable[[Message], Message]] = {
            name: getattr(self, f"_{name}")
            for name in ("hello", "describe", "build", "gate", "infer", "time", "save", "load", "release")
        }

    def run(self) -> None:
        """Answers until the parent closes the channel."""
        while True:
            try:
                request = self._channel.receive()
            except ChannelClosed:
                return
            try:
                answer = self._handlers[request.kind](request)
            except Exception as error:
                # To the log; the answer carries the message only. Cut: a message may be a dump of many megabytes.
                sys.stderr.write(traceback.format_exc()[-_MESSAGE_LIMIT:])
                text = str(error) if isinstance(error, BuildError | InputError) else f"{type(error).__name__}: {error}"
                if len(text) > _MESSAGE_LIMIT:
                    text = f"{text[:_MESSAGE_LIMIT]}... ({len(text)} characters in all)"
                outcome = outcome_of(error)
                # What the compiler refused in good order leaves a healthy process; of the rest nobody knows.
                healthy = outcome in (Outcome.BUILD_ERROR.name, INPUT) or hasattr(error, "outcome")
                fields = {"outcome": outcome, "message": text.strip(), "healthy": healthy}
                answer = Message("error", request.id, fields)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self._channel.send(answer)

    # -- phases --------------------------------------------------------------------------------
    def _hello(self, request: Message) -> Message:
        from gpt_search.backends.registry import load_backend

        limit = request.fields["memory_limit"]
        if limit is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
        backend = load_backend(request.fields["backend"])
        self._backend = backend
        workload = request.fields["workload"]
        self._workload = Workload.from_json(workload) if workload is not None else None
        self._golden = Path(request.fields["golden"]) if request.fields["golden"] is not None else None
        self._options = BuildOptions(dict(request.fields["options"]))
        can = backend.capabilities
        return Message(
            "ready",
            request.id,
            {
                "fingerprint": can.fingerprint.name,
                "build_uses_device": can.build_uses_device,
                "placement": can.placement.name,
                "metrics": list(can.metrics),
                "environment": {str(k): str(v) for k, v in backend.environment().items()},
                "device_id": str(getattr(backend, "device_id", "cpu")),
                "own_workload": hasattr(backend, "own_workload"),
            },
        )

    def _describe(self, request: Message) -> Message:
        if self._backend is None:
            raise RuntimeError("the worker was asked to work before it was told the backend")
        backend, options = self._backend, dict(self._options.values)
        check: Callable[[Mapping[str, object]], dict[str, object]] | None = getattr(backend, "check_options", None)
        return Message(
            "described",
            request.id,
            {
                "options": options if check is None else check(options),
                "database": backend.knob_database().to_json(),
                "cannot_run": getattr(backend, "cannot_run", lambda: None)(),
                "frozen_cache": bool(getattr(backend, "frozen_cache", False)),
            },
        )

    def _build(self, request: Message) -> Message:
        backend, workload = self._ready()
        slot, seed = request.fields["slot"], request.fields["seed"]
        self._drop(slot)  # first, so that two candidates never share the memory limit
        route = Route(tuple((str(n), str(v)) for n, v in request.fields["route"]))
        simulate = getattr(backend, "simulate_trial", None)
        if simulate is not None:
            cost = simulate(route, seed)
            if cost is not None:
                # Before the build, because the build may be simulated to kill this process.
                note = {str(k): float(v) for k, v in cost.items()}
                self._channel.send(Message("note", request.id, {"cost_s": note}))
        began = time.perf_counter()
        if hasattr(backend, "on_progress"):
            backend.on_progress = _Telling(self._channel, request.id)
        engine = backend.build(workload, route, self._options)
        return self._keep(slot, engine, request, time.perf_counter() - began)

    def _load(self, request: Message) -> Message:
        backend, workload = self._ready()
        slot = request.fields["slot"]
        self._drop(slot)
        began = time.perf_counter()
        engine = backend.load(request.arrays["data"].tobytes(), workload)
        return self._keep(slot, engine, request, time.perf_counter() - began)

    def _keep(self, slot: str, engine: Engine, request: Message, seconds: float) -> Message:
        self._engines[slot] = engine
        memory, size = engine.memory_bytes, getattr(engine, "size_bytes", None)
        return Message(
            "built",
            request.id,
            {
                "fingerprint": engine.fingerprint,
                "memory_bytes": None if memory is None else int(memory),
                "engine_bytes": None if size is None else int(size),
                "seconds": seconds,
                "facts": dict(getattr(engine, "facts", {})),
            },
        )

    def _gate(self, request: Message) -> Message:
        engine = self._engine(request)
        atol, rtol = float(request.fields["atol"]), float(request.fields["rtol"])
        losses: list[dict[str, dict[str, float]]] = []
        for pair in self._golden_pairs():
            losses.append(losses_of_pair(engine.infer(pair.inputs), pair.outputs, atol, rtol))
        memory = engine.memory_bytes
        return Message(
            "losses", request.id, {"losses": losses, "memory_bytes": None if memory is None else int(memory)}
        )

    def _infer(self, request: Message) -> Message:
        return Message("outputs", request.id, arrays=self._engine(request).infer(request.arrays))

    def _time(self, request: Message) -> Message:
        backend, workload = self._ready()
        engine, fields = self._engine(request), request.fields
        streams, host_copies = fields["streams"], fields["host_copies"]
        refusal = timing_refusal(backend.capabilities.metrics, streams, host_copies)
        if refusal is not None:
            raise InputError(refusal)
        addressed = getattr(engine, "simulate_round", None)
        if addressed is not None:
            addressed(fields["seed"], fields["round"], fields["slot"])
        result = engine.time(
            TimingRequest(
                workload.pair_at(fields["point"], self._golden_pairs()).inputs,
                float(fields["seconds"]),
                fields["min_calls"],
                fields["max_calls"],
                fields["warmup_calls"],
                streams,
                host_copies,
                launch=fields["launch"],
            )
        )
        if (result.streams, result.host_copies) != (streams, host_copies):
            raise RuntimeError(
                f"the backend timed {result.streams} streams, host copies {result.host_copies}; "
                f"asked for were {streams} and {host_copies}"
            )
        state: Mapping[str, float] = getattr(backend, "device_state", dict)() | dict(result.device)
        samples = np.asarray(result.samples_ms, np.float64)
        return Message(
            "samples",
            request.id,
            {
                "launch": str(result.launch),
                "launch_note": str(result.launch_note),
                "again": str(result.again),
                "simulated": bool(getattr(engine, "simulated", False)),
                "device": {str(k): float(v) for k, v in state.items()},
            },
            {"samples_ms": samples},
        )

    def _save(self, request: Message) -> Message:
        data = np.frombuffer(self._engine(request).save(), np.uint8)
        return Message("bytes", request.id, arrays={"data": data})

    def _release(self, request: Message) -> Message:
        self._drop(request.fields["slot"])
        return Message("done", request.id)

    # -- helpers -------------------------------------------------------------------------------
    def _ready(self) -> tuple[Backend, Workload]:
        if self._backend is None or self._workload is None:
            raise RuntimeError("the worker was asked to work before it was told the backend and the workload")
        return self._backend, self._workload

    def _engine(self, request: Message) -> Engine:
        slot = request.fields["slot"]
        if slot not in self._engines:
            raise RuntimeError(f"nothing is built in slot {slot!r}")
        return self._engines[slot]

    def _drop(self, slot: str) -> None:
        engine = self._engines.pop(slot, None)
        if engine is not None:
            engine.close()

    def _golden_pairs(self) -> list[GoldenPair]:
        if self._pairs is None:
            if self._golden is None:
                raise RuntimeError("the worker was asked for golden data and has none")
            from gpt_search.accuracy.golden import load_golden

            self._pairs = load_golden(self._golden)[0]
        return self._pairs


def serve(descriptor: int) -> None:
    """Runs the worker on an inherited socket until its other end closes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()  # a C-level crash leaves its Python stack in the log
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # writing a core file would take longer than the trial
    os.set_inheritable(descriptor, False)
    os.environ[CHANNEL_VARIABLE] = str(descriptor)
    Server(Channel(socket.socket(fileno=descriptor))).run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
