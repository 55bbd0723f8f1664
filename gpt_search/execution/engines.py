"""Engines outside of a study: built in a worker of their own, for golden data or to be shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpt_search.accuracy.losses import ATOL, RTOL
from gpt_search.backends.base import BuildOptions
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Array, Workload
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec
from gpt_search.execution.settings import EvaluatorSettings

_SLOT = "only"


class ShippedEngine(NamedTuple):
    """An engine as bytes, and its fingerprint and losses after it was loaded from them in another process."""

    data: bytes
    fingerprint: str | None
    losses: tuple[Mapping[str, Mapping[str, float]], ...]


def ship_engine(settings: EvaluatorSettings, route: Route) -> ShippedEngine:
    """Builds a route, saves it, loads the bytes into a fresh worker, and takes the losses of that.

    Raises InputError when any step fails, with the reason.
    """
    spec = settings.worker_spec()
    slot = {"slot": _SLOT}
    try:
        with Worker(spec) as worker:
            build = slot | {"route": [list(item) for item in route.items_in_order], "seed": 0}
            worker.ask("build", build, timeout_s=settings.timeout_build_s, phase="build")
            data = worker.ask("save", slot, timeout_s=settings.timeout_build_s, phase="save").arrays["data"]
        with Worker(spec) as worker:
            loaded = worker.ask("load", slot, {"data": data}, timeout_s=settings.timeout_build_s, phase="load")
            gate = worker.ask(
                "gate", slot | {"atol": ATOL, "rtol": RTOL}, timeout_s=settings.timeout_run_s, phase="gate"
            )
    except WorkerFailed as error:
        raise InputError(f"the engine cannot be exported: {' '.join(error.message.split())}") from None
    return ShippedEngine(data.tobytes(), loaded.fields["fingerprint"], tuple(gate.fields["losses"]))


def infer_with(
    backend: str,
    workload: Workload,
    route: Route,
    inputs: Sequence[Mapping[str, Array]],
    options: BuildOptions | None = None,
    *,
    timeout_build_s: float | None = 600.0,
    timeout_run_s: float | None = 60.0,
) -> list[dict[str, Array]]:
    """The outputs of a route's engine for each set of inputs, from a worker of its own: what golden data is made of.

    Raises WorkerFailed when the engine cannot be built or run, InputError.
    """
    spec = WorkerSpec(backend, workload, options=(options or BuildOptions()).values)
    with Worker(spec) as worker:
        fields = {"slot": _SLOT, "route": [list(i) for i in route.items_in_order], "seed": 0}
        worker.ask("build", fields, timeout_s=timeout_build_s, phase="build")
        return [
            dict(worker.ask("infer", {"slot": _SLOT}, one, timeout_s=timeout_run_s, phase="infer").arrays)
            for one in inputs
        ]
