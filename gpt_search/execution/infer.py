"""Building one route in a worker and running it, for golden data and for exported engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Array, Workload
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec


class BuiltEngine(NamedTuple):
    """An engine as bytes, its fingerprint, and its losses on the golden pairs after it was loaded again."""

    data: bytes
    fingerprint: str | None
    losses: tuple[Mapping[str, Mapping[str, float]], ...]


def worker_spec(
    backend: str,
    workload: Workload,
    options: Mapping[str, object],
    memory_limit_gb: float | None,
    golden: Path | None = None,
) -> WorkerSpec:
    """The spec of a worker for one workload; the limit is in 10^9 bytes."""
    limit = None if memory_limit_gb is None else int(memory_limit_gb * 1e9)
    return WorkerSpec(backend, workload, golden, options, limit)


def run_route(
    spec: WorkerSpec, route: Route, inputs: Sequence[Mapping[str, Array]], timeout_build_s: float, timeout_run_s: float
) -> list[dict[str, Array]]:
    """The outputs of a route for each set of inputs. Raises InputError when it cannot be built or run."""
    try:
        with Worker(spec) as worker:
            _build(worker, route, timeout_build_s)
            return [
                dict(worker.ask("infer", {"slot": "only"}, each, timeout_s=timeout_run_s, phase="infer").arrays)
                for each in inputs
            ]
    except WorkerFailed as error:
        raise InputError(f"the route '{route}' cannot be run: {' '.join(error.message.split())}") from None


def build_engine(spec: WorkerSpec, route: Route, timeout_build_s: float, timeout_run_s: float) -> BuiltEngine:
    """Builds a route, saves it, loads the bytes into a fresh worker, and takes the losses of that.

    What is shipped is what was checked. Raises InputError when any step fails.
    """
    try:
        with Worker(spec) as worker:
            _build(worker, route, timeout_build_s)
            answer = worker.ask("save", {"slot": "only"}, timeout_s=timeout_build_s, phase="save")
        data = answer.arrays["data"]
        with Worker(spec) as worker:
            loaded = worker.ask(
                "load", {"slot": "only"}, {"data": data}, timeout_s=timeout_build_s, phase="load"
            )
            gate = worker.ask(
                "gate", {"slot": "only", "atol": 1e-5, "rtol": 1e-5}, timeout_s=timeout_run_s, phase="gate"
            )
    except WorkerFailed as error:
        raise InputError(f"the engine cannot be exported: {' '.join(error.message.split())}") from None
    return BuiltEngine(data.tobytes(), loaded.fields["fingerprint"], tuple(gate.fields["losses"]))


def _build(worker: Worker, route: Route, timeout_s: float) -> None:
    fields = {"slot": "only", "route": [list(item) for item in route.items_in_order], "seed": 0}
    worker.ask("build", fields, timeout_s=timeout_s, phase="build")
