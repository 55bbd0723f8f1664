"""The reference against itself: fresh builds of both sides, each timed in fresh processes that load their bytes.

An engine leaves its build as bytes, so that processes of one build differ in nothing but the
process: that is what makes the three levels - rebuilds, processes, samples - nested ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from gpt_search.backends.base import Placement
from gpt_search.domain.evaluation import Round
from gpt_search.domain.route import Route
from gpt_search.execution.devices import DeviceLock, build_lock_shared
from gpt_search.execution.launcher import Worker
from gpt_search.execution.rounds import CANDIDATE, REFERENCE, Comparison, Side
from gpt_search.execution.settings import EvaluatorSettings


class BuiltPair(NamedTuple):
    """Two builds of one route as bytes, the seconds both took (worker, build and save), and their fingerprints."""

    candidate: bytes
    reference: bytes
    seconds: float
    fingerprints: tuple[str | None, str | None]


class TimedPair(NamedTuple):
    """rounds: all of one process. process_s: seconds beside the rounds (start, load, warm-up), round_s: of one round.

    Waiting for the device is in neither. notes: what a reader must know about how the rounds were taken.
    """

    rounds: tuple[Round, ...]
    process_s: float
    round_s: float
    notes: tuple[str, ...] = ()


def build_pair(settings: EvaluatorSettings, route: Route, seeds: tuple[int, int]) -> BuiltPair:
    """Builds the route twice, each time in a fresh worker. seeds: for backends that simulate.

    Raises WorkerFailed, InputError.
    """
    built, prints, seconds = [], [], 0.0
    for slot, seed in zip((CANDIDATE, REFERENCE), seeds, strict=True):
        began = time.perf_counter()
        with Worker(settings.worker_spec()) as worker, _building(worker.ready) as waited:
            route_items = [list(item) for item in route.items_in_order]
            fields = {"slot": slot, "route": route_items, "seed": seed}
            made = worker.ask("build", fields, timeout_s=settings.timeout_build_s, phase="build")
            prints.append(made.fields["fingerprint"])
            saved = worker.ask("save", {"slot": slot}, timeout_s=settings.timeout_build_s, phase="save")
            built.append(saved.arrays["data"].tobytes())
        seconds += time.perf_counter() - began - waited
    return BuiltPair(built[0], built[1], seconds, (prints[0], prints[1]))


def time_pair(settings: EvaluatorSettings, pair: BuiltPair, seed: int, clock: Callable[[], float]) -> TimedPair:
    """Loads a built pair into fresh workers and times one side against the other, as a study would.

    Rounds: `settings.protocol.max_rounds`, or fewer where its target error is reached earlier.
    Raises WorkerFailed (of either side), ReferenceFailed, InputError.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        spec = settings.worker_spec()
        candidate = stack.enter_context(Worker(spec))
        alone = Placement[candidate.ready["placement"]] is Placement.SAME_WORKER
        reference = candidate if alone else stack.enter_context(Worker(spec))
        lock = DeviceLock(candidate.ready["device_id"])
        waited = stack.enter_context(lock.hold(shared=False))
        for worker, slot, data in ((candidate, CANDIDATE, pair.candidate), (reference, REFERENCE, pair.reference)):
            arrays = {"data": np.frombuffer(data, np.uint8)}
            worker.ask("load", {"slot": slot}, arrays, timeout_s=settings.timeout_build_s, phase="load")
        comparison = Comparison(
            Side(candidate, CANDIDATE),
            lambda: Side(reference, REFERENCE),
            settings.protocol,
            seed,
            settings.timeout_run_s,
            clock,
            weights=settings.workload.weights,
        )
        timing = comparison.run(None)
        rounds = timing.rounds
        seconds = time.perf_counter() - began - waited
    side = settings.protocol.round_seconds
    round_s = 2 * side if len(rounds) < 2 else _spacing(rounds, 2 * side)
    return TimedPair(rounds, max(0.0, seconds - round_s * len(rounds)), round_s, timing.notes)


def _spacing(rounds: tuple[Round, ...], least: float) -> float:
    """Seconds from round to round. Simulated rounds take none, and count as long as they say they are."""
    return max(least, (rounds[-1].started_s - rounds[0].started_s) / (len(rounds) - 1))


@contextmanager
def _building(ready: Mapping[str, Any]) -> Iterator[float]:
    if not ready["build_uses_device"]:
        yield 0.0
        return
    with DeviceLock(ready["device_id"]).hold(shared=build_lock_shared(ready["device_id"])) as waited:
        yield waited
