"""The phases of one route, each in a worker process: build, gate, timing beside the reference, saving."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpt_search.accuracy.gate import judge
from gpt_search.accuracy.losses import ATOL, RTOL
from gpt_search.backends.base import Placement
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.limits import excess_text
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.execution.devices import build_lock_shared
from gpt_search.execution.launcher import Worker, WorkerFailed
from gpt_search.execution.pool import EvaluatorClosed, WorkerPool
from gpt_search.execution.rounds import CANDIDATE, REFERENCE, Comparison, ReferenceFailed, Side, Timing
from gpt_search.execution.route_run import FreshBuilds, RouteRun
from gpt_search.execution.settings import EvaluatorSettings
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Best


class Phases:
    """What is done with a route, phase by phase: each charges its time to the run, and adds to its facts."""

    def __init__(self, settings: EvaluatorSettings, reference: Route, pool: WorkerPool) -> None:
        """reference: the route that candidates are timed beside."""
        self.settings, self.reference, self.pool = settings, reference, pool
        self._began = time.monotonic()

    def build(self, run: RouteRun, route: Route, seed: int) -> None:
        """Builds the candidate, or loads it, and takes its fingerprint, memory and size."""
        with self._building(run):
            worker = self._check_out(run)
            with run.phase("build"):
                if run.pair is not None and run.pair.load is not None:
                    built = self._ask_load(worker, CANDIDATE, run.pair.load)
                else:
                    built = self._ask_build(worker, CANDIDATE, route, seed)
        run.facts["fingerprint"] = built["fingerprint"]
        run.facts["memory_bytes"] = built["memory_bytes"]
        run.facts["build"] = built["facts"]
        run.facts["engine_bytes"] = built["engine_bytes"]
        if built["engine_bytes"] is None and self.settings.limits.size_mb is not None:
            with run.phase("save"):
                saved = worker.ask("save", {"slot": CANDIDATE}, timeout_s=self.settings.timeout_build_s, phase="save")
            run.facts["engine_bytes"] = saved.arrays["data"].nbytes

    def above_limit(self, run: RouteRun, *, last: bool) -> Evaluation | None:
        """The evaluation of an engine above a limit, as soon as that is known. last: what is still unknown stays so."""
        excess = self.settings.limits.excess(run.facts["engine_bytes"], run.facts["memory_bytes"])
        if not last:
            excess = {name: x for name, x in excess.items() if math.isfinite(x)}
        if excess:
            run.facts["excess"] = excess
        if all(x <= 0 for x in excess.values()):
            return None
        return run.evaluation(Outcome.LIMIT, message=excess_text(excess))

    @contextmanager
    def _building(self, run: RouteRun) -> Iterator[None]:
        ready = self.pool.facts()
        if not ready["build_uses_device"]:
            yield
            return
        with self._device(run, shared=build_lock_shared(ready["device_id"])):
            yield

    def _ask_build(self, worker: Worker, slot: str, route: Route, seed: int) -> Mapping[str, Any]:
        fields = {"slot": slot, "route": [list(i) for i in route.items_in_order], "seed": seed}
        return worker.ask("build", fields, timeout_s=self.settings.timeout_build_s, phase="build").fields

    def _ask_load(self, worker: Worker, slot: str, data: bytes) -> Mapping[str, Any]:
        arrays = {"data": np.frombuffer(data, np.uint8)}
        timeout_s = self.settings.timeout_build_s
        return worker.ask("load", {"slot": slot}, arrays, timeout_s=timeout_s, phase="load").fields

    def keep(self, run: RouteRun, pair: FreshBuilds) -> None:
        """Takes the candidate's bytes. One that cannot be saved was timed all the same; it just cannot be shipped."""
        assert run.worker is not None
        timeout_s = self.settings.timeout_build_s
        try:
            with run.phase("save"):
                saved = run.worker.ask("save", {"slot": CANDIDATE}, timeout_s=timeout_s, phase="save")
        except WorkerFailed as failed:
            pair.unsaved = " ".join(failed.message.split())
        else:
            pair.engine = saved.arrays["data"].tobytes()

    def gate(self, run: RouteRun) -> Outcome:
        """Runs the golden inputs: the losses, and whether they are within tolerance."""
        assert run.worker is not None
        # Running an engine disturbs a timing beside it, whatever building does.
        with self._device(run, shared=build_lock_shared(self.pool.facts()["device_id"])), run.phase("gate"):
            fields = {"slot": CANDIDATE, "atol": ATOL, "rtol": RTOL}
            answer = run.worker.ask("gate", fields, timeout_s=self.settings.timeout_run_s, phase="gate").fields
        losses = tuple(
            {str(o): {str(k): float(v) for k, v in by.items()} for o, by in pair.items()} for pair in answer["losses"]
        )
        violation = judge(losses, self.settings.tolerances)
        run.facts |= {"losses": losses, "violation": violation}
        if answer["memory_bytes"] is not None:
            run.facts["memory_bytes"] = answer["memory_bytes"]
        return Outcome.OK if violation < 0 else Outcome.ACCURACY

    def time(
        self,
        run: RouteRun,
        best: Best | None,
        seed: int,
        trial: int,
        protocol: Protocol,
        earlier: Sequence[float] = (),
        *,
        afresh: bool = True,
    ) -> Timing:
        """Rounds beside the reference, after `earlier` ones. Raises ReferenceFailed. Others: see `Comparison.run`."""
        worker = run.worker
        assert worker is not None
        settings = self.settings
        with self._device(run, shared=False):
            restart_s = 0.0

            def reference() -> Side:
                nonlocal restart_s
                began = time.perf_counter()
                try:
                    return self._reference_side(worker, seed if run.pair is not None else 0)
                finally:
                    restart_s += time.perf_counter() - began

            comparison = Comparison(
                Side(worker, CANDIDATE),
                reference,
                protocol,
                seed,
                settings.timeout_run_s,
                self._clock,
                self.pool.warm,
                settings.workload.weights,
            )
            began = time.perf_counter()
            run.reached.append("time")
            try:
                return comparison.run(best, trial, earlier, afresh=afresh)
            finally:
                run.add("time", time.perf_counter() - began - restart_s)
                run.add("wait", restart_s)

    def _clock(self) -> float:
        return time.monotonic() - self._began

    def _check_out(self, run: RouteRun) -> Worker:
        if run.worker is not None:
            return run.worker  # it holds the reference of this pair already
        worker = self.pool.idle()
        if worker is None:
            with run.phase("start"):
                worker = self.pool.start()
        run.worker = worker
        return worker

    @contextmanager
    def _device(self, run: RouteRun, *, shared: bool) -> Iterator[None]:
        with self.pool.device(shared=shared) as waited:
            run.add("wait", waited)
            yield

    # -- the reference engine ------------------------------------------------------------------
    def _reference_side(self, candidate: Worker, seed: int = 0) -> Side:
        """The reference, built and in a living worker. Called by whoever holds the device. seed: of its build."""
        if self.pool.capabilities.placement is Placement.SAME_WORKER:
            worker: Worker | None = candidate
        else:
            worker = self.pool.reference
            if worker is None or not worker.alive:
                candidate.pause()
                if worker is not None:
                    self.pool.put_back(worker)
                worker = self.pool.reference = self.pool.start()
        assert worker is not None
        if worker not in self.pool.holders:
            self._ask_build(worker, REFERENCE, self.reference, seed)
            self.pool.holders.add(worker)
        return Side(worker, REFERENCE)

    def build_reference(self, run: RouteRun, seed: int) -> None:
        """The reference of a pair, built now; a second time where that fails. Raises ReferenceFailed."""
        for last in (False, True):
            with self._building(run):
                worker = self._check_out(run)
                note = worker.note
                try:
                    with run.phase("reference"):
                        side = self._reference_side(worker, seed)
                except WorkerFailed as failed:
                    if self.pool.closed:
                        raise EvaluatorClosed from None
                    ours = worker.alive or not run.facts  # else the candidate, in the same worker, took it along
                    if not ours:
                        raise
                    if last:
                        raise ReferenceFailed(failed.outcome, failed.message) from None
                    if not worker.alive:
                        self.pool.put_back(worker)
                        run.worker = None
                    continue
                if side.worker is worker:
                    worker.note = note  # what a simulated clock says is of the candidate
                else:
                    side.worker.pause()
                return
