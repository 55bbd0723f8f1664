"""From a route to an evaluation: build, fingerprint, gate, and paired timing, each in a worker process."""

from __future__ import annotations

import enum
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpt_search.accuracy.gate import Tolerances, judge
from gpt_search.accuracy.losses import ATOL, RTOL
from gpt_search.backends.base import BuildOptions, Capabilities, Fingerprints, Placement
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.limits import Limits, excess_text
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.devices import DeviceLock, build_lock_shared
from gpt_search.execution.environment import environment
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec
from gpt_search.execution.rounds import CANDIDATE, REFERENCE, Comparison, ReferenceFailed, Side, Timing
from gpt_search.measure.paired import latency_of, paired_estimate, point_log_ratios, section_log_ratios
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Best, Decision, decide_on
from gpt_search.measure.statistic import Statistic


class Reuse(enum.Enum):
    """What becomes of an engine's earlier samples when a route's build gives its fingerprint again."""

    TAKE = "they stand for the route too"
    EXTEND = "they stand for the route too; where the racing rule wants more of them, more are added"
    ADD = "more are added, and all of them stand for the route"
    CHECK = "the route is timed by itself, to be compared with them"
    NOTHING = "the route is timed by itself"


class Earlier(NamedTuple):
    """What a study knows of an engine. trial: that began its samples. found: of it, with all samples so far."""

    trial: int
    found: Evaluation
    reuse: Reuse


Known = Callable[[str], Earlier | None]


def nothing_known(fingerprint: str) -> Earlier | None:
    """The `known` of a study that times every engine itself."""
    return None


class EvaluatorClosed(Exception):
    """The evaluator was closed while a route was being evaluated; nothing is known about the route."""


@dataclass(frozen=True)
class EvaluatorSettings:
    """What every evaluation of a study has in common.

    backend: name for `load_backend`. golden: file of golden pairs. defaults: knob defaults, for routes
    in messages and records. timeout_build_s: for a build. timeout_run_s: for the gate, and for one
    turn of timing. memory_limit_gb: in units of 10^9 bytes, for a worker and all that it starts,
    interpreter and libraries included (see `worker` and `launcher`); None for no limit.
    limits: on what an engine may take. time_infeasible: routes that miss a tolerance are timed too. log_dir: for the
    workers' logs.
    """

    backend: str
    workload: Workload
    golden: Path
    tolerances: Tolerances
    protocol: Protocol = field(default_factory=Protocol)
    options: BuildOptions = field(default_factory=BuildOptions)
    defaults: Mapping[str, str] = field(default_factory=dict)
    timeout_build_s: float = 600.0
    timeout_run_s: float = 60.0
    memory_limit_gb: float | None = None
    limits: Limits = field(default_factory=Limits)
    time_infeasible: bool = False
    log_dir: Path | None = None

    @property
    def statistic(self) -> Statistic:
        """What sums up the samples, over the workload's shape points."""
        return self.protocol.statistic(self.workload.weights)

    def worker_spec(self) -> WorkerSpec:
        """What the workers are told."""
        limit = None if self.memory_limit_gb is None else int(self.memory_limit_gb * 1e9)
        return WorkerSpec(self.backend, self.workload, self.golden, self.options.values, limit, self.log_dir)


class FreshPair(NamedTuple):
    """What `Evaluator.evaluate_pair` found. engine: the candidate's bytes after its timing, where they were kept.

    unsaved: why there are none, where they were to be kept.
    """

    evaluation: Evaluation
    engine: bytes | None = None
    unsaved: str | None = None


class _Run:
    """What is known so far about the route that is being evaluated, and what it has cost."""

    def __init__(self, until: Phase) -> None:
        self.until = until
        self.pair: _Pair | None = None
        self.worker: Worker | None = None
        self.cost: dict[str, float] = {"start": 0.0}
        self.facts: dict[str, Any] = {}
        self.reached = ["start"]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charges the wall time of a phase, also when it fails."""
        began = time.perf_counter()
        self.reached.append(name)
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        self.cost[name] = self.cost.get(name, 0.0) + seconds

    def evaluation(self, outcome: Outcome, **more: Any) -> Evaluation:
        note = self.worker.note if self.worker is not None else None
        cost = self.cost if note is None else {name: note.get(name, 0.0) for name in dict.fromkeys(self.reached)}
        return Evaluation(outcome, self.until, cost_s=cost, **(self.facts | more))


@dataclass
class _Pair:
    """How a pair of fresh builds is made. load: the candidate is loaded from these bytes in place of being built."""

    reference_first: bool
    keep: bool
    load: bytes | None
    engine: bytes | None = None
    unsaved: str | None = None


class Evaluator:
    """Evaluates routes of one workload against one reference route. Use it as a context manager.

    Any number of threads may call `evaluate`: each gets a worker of its own, one at a time is timed.

    reference_latency_ms: the reference's latency from trial 0, which every latency is scaled with; set by
    `evaluate_reference`, or from the record when a study is resumed. It is never estimated again.
    """

    def __init__(self, settings: EvaluatorSettings, reference: Route) -> None:
        """Starts nothing yet."""
        self.settings = settings
        self.reference = reference
        self.reference_latency_ms: float | None = None
        self._spec = settings.worker_spec()
        self._began = time.monotonic()
        self._mutex = threading.Lock()
        self._first_start = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._closed = False
        self._ready: Mapping[str, Any] | None = None
        self._lock: DeviceLock | None = None
        # The reference: its own worker where it has one, and the workers that hold it in their second slot.
        self._reference_worker: Worker | None = None
        self._holders: set[Worker] = set()
        self._warm: set[Worker] = set()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the backend is -------------------------------------------------------------------
    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do. Starts a worker to ask. Raises WorkerFailed, InputError."""
        ready = self._facts()
        return Capabilities(
            Fingerprints[ready["fingerprint"]],
            ready["build_uses_device"],
            Placement[ready["placement"]],
            tuple(ready["metrics"]),
        )

    def environment(self) -> dict[str, str]:
        """What must be equal for records to be comparable. Raises as `capabilities` does."""
        return environment(self._facts()["environment"])

    def _facts(self) -> Mapping[str, Any]:
        with self._first_start:
            if self._ready is None:
                worker = self._start()
                self._put_back(worker)
                self._ready = worker.ready
                self._lock = DeviceLock(worker.ready["device_id"])
        return self._ready

    # -- workers -------------------------------------------------------------------------------
    def _start(self) -> Worker:
        self._check_open()
        worker = Worker(self._spec)
        with self._mutex:
            self._all.add(worker)
        if self._closed:
            worker.kill()
            raise EvaluatorClosed
        return worker

    def _check_out(self, run: _Run) -> Worker:
        if run.worker is not None:
            return run.worker  # it holds the reference of this pair already
        with self._mutex:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            with run.phase("start"):
                worker = self._start()
        run.worker = worker
        return worker

    def _put_back(self, worker: Worker) -> None:
        with self._mutex:
            if worker.alive and not self._closed:
                self._idle.append(worker)
                return
            self._all.discard(worker)
            self._holders.discard(worker)
            self._warm.discard(worker)
        worker.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise EvaluatorClosed

    @contextmanager
    def _device(self, run: _Run, *, shared: bool) -> Iterator[None]:
        assert self._lock is not None
        with self._lock.hold(shared=shared, check=self._check_open) as waited:
            run.add("wait", waited)
            yield

    # -- evaluating ----------------------------------------------------------------------------
    def evaluate_reference(self, seed: int = 0) -> Evaluation:
        """Trial 0: builds the reference twice, gates it, times one against the other, and sets `reference_latency_ms`.

        The rounds hold the A/A noise. By definition its log_ratio is 0 and its latency the median of
        the reference side. A reference that misses its own tolerance comes back with
        Outcome.ACCURACY and its losses, one that cannot be built or run with that outcome.
        """
        try:
            return self._evaluate(self.reference, Phase.TIME, None, nothing_known, seed, 1, first=True)
        except ReferenceFailed as failed:
            return Evaluation(failed.outcome, Phase.TIME, message=failed.message)

    def evaluate(
        self,
        route: Route,
        until: Phase = Phase.TIME,
        best: Best | None = None,
        known: Known = nothing_known,
        seed: int = 0,
        trial: int = 1,
    ) -> Evaluation:
        """Everything that can be learned about a route, up to and including the phase `until`.

        best: what the route is raced against, None for no race; trial: its number, from 1, which says what
        error the race may spend on it (`measure.sequential`). known(fingerprint): what is known of an
        engine that was evaluated already, and what to do with its samples, or None; asked once, after the
        build. Samples are taken over and extended as that says (`Evaluation.timed_as`, `borrowed`, `checks`);
        losses and failures where equal fingerprints prove that the engine is the same.
        seed: addressed by trial; a simulated backend takes its noise from it, and it decides which
        side runs first.

        A failing route is an Evaluation, not an exception. Costs in seconds: start, build, gate,
        time; "wait" is the time spent waiting for the device, or for a reference that had to be
        started again. A backend with a simulated clock reports its own instead.

        Raises ReferenceFailed, InputError, EvaluatorClosed; RuntimeError when a route is to be timed before
        the reference latency is known.
        """
        if until is Phase.TIME and self.reference_latency_ms is None:
            raise RuntimeError("the reference latency is not known: call evaluate_reference() or set it")
        return self._evaluate(route, until, best, known, seed, trial, first=False)

    def evaluate_pair(
        self,
        route: Route,
        until: Phase = Phase.TIME,
        seed: int = 0,
        *,
        reference_first: bool = False,
        keep: bool = False,
        load: bytes | None = None,
    ) -> FreshPair:
        """As `evaluate`, and the reference is built before the candidate is gated, in the order that is asked for.

        For an evaluator that has evaluated nothing, so that both builds are fresh. reference_first: it is built
        before the candidate; where `until` is an earlier phase than TIME no reference is built. keep: the candidate's
        bytes are returned, taken after its timing. load: the candidate's bytes, in place of a build.

        Raises as `evaluate` does.
        """
        if until is Phase.TIME and self.reference_latency_ms is None:
            raise RuntimeError("the reference latency is not known: call evaluate_reference() or set it")
        pair = _Pair(reference_first, keep, load)
        found = self._evaluate(route, until, None, nothing_known, seed, 1, first=False, pair=pair)
        return FreshPair(found, pair.engine, pair.unsaved)

    def _evaluate(
        self,
        route: Route,
        until: Phase,
        best: Best | None,
        known: Known,
        seed: int,
        trial: int,
        *,
        first: bool,
        pair: _Pair | None = None,
    ) -> Evaluation:
        run = _Run(until)
        run.pair = pair
        try:
            if self._ready is None:
                with run.phase("start"):
                    self._facts()
            return self._phases(run, route, best, known, seed, trial, first=first)
        except WorkerFailed as failed:
            if self._closed:
                raise EvaluatorClosed from None
            return run.evaluation(failed.outcome, message=failed.message)
        finally:
            if run.worker is not None:
                self._put_back(run.worker)

    def _phases(
        self, run: _Run, route: Route, best: Best | None, known: Known, seed: int, trial: int, *, first: bool
    ) -> Evaluation:
        both = run.pair is not None and run.until is Phase.TIME
        if run.pair is not None and both and run.pair.reference_first:
            self._build_reference(run, seed)
        self._build(run, route, seed)
        if run.pair is not None and both and not run.pair.reference_first:
            self._build_reference(run, seed)
        if (above := self._above_limit(run, last=False)) is not None:
            return above
        if run.until is Phase.BUILD:
            return run.evaluation(Outcome.OK)
        fingerprint = run.facts["fingerprint"]
        earlier = known(fingerprint) if fingerprint is not None else None
        same = earlier.found if earlier is not None and self.capabilities.fingerprint.equal_is_same else None
        if same is not None and same.violation is not None:
            run.facts |= {"losses": same.losses, "violation": same.violation}
            if run.facts["memory_bytes"] is None:
                run.facts["memory_bytes"] = same.memory_bytes  # some backends tell it after the gate
            outcome = Outcome.OK if same.violation < 0 else Outcome.ACCURACY
        elif same is not None and same.failed:
            return self._failed_before(run, earlier)
        else:
            outcome = self._gate(run)
        if (above := self._above_limit(run, last=True)) is not None:
            return above
        if run.until is Phase.GATE or (outcome is Outcome.ACCURACY and not self.settings.time_infeasible):
            return run.evaluation(outcome)
        if same is not None and same.failed:
            return self._failed_before(run, earlier)
        samples = self._samples(run, best, seed, trial, earlier, first=first)
        if run.pair is not None and run.pair.keep:
            self._keep(run, run.pair)
        return run.evaluation(outcome, **samples)

    def _failed_before(self, run: _Run, earlier: Earlier | None) -> Evaluation:
        """The engine's failure in an earlier trial, for this route."""
        assert earlier is not None
        found = earlier.found
        words = found.message or found.outcome.explanation
        if found.excess:
            run.facts["excess"] = found.excess
        return run.evaluation(found.outcome, message=f"the same engine as in trial {earlier.trial}, where: {words}")

    def _samples(
        self, run: _Run, best: Best | None, seed: int, trial: int, earlier: Earlier | None, *, first: bool
    ) -> dict[str, Any]:
        """The rounds that stand for the route, earlier ones first, whose they are, and what they say."""
        protocol = self.settings.protocol
        if earlier is None or not earlier.found.rounds or earlier.reuse is Reuse.NOTHING:
            timing = self._time(run, best, seed, trial, protocol)
            if first:
                self.reference_latency_ms = latency_of(timing.rounds, "reference", self.settings.statistic)
            return self._value(timing.rounds, first=first) | {"raced": timing.raced, "notes": timing.notes}
        if earlier.reuse is Reuse.CHECK:
            # As many rounds at least as builds are compared by: few would tell no difference.
            fewest = max(protocol.min_rounds, protocol.build_rounds)
            longer = replace(protocol, min_rounds=fewest, max_rounds=max(fewest, protocol.max_rounds))
            timing = self._time(run, best, seed, trial, longer)
            facts = {"raced": timing.raced, "notes": timing.notes, "checks": earlier.trial}
            return self._value(timing.rounds, first=False) | facts
        found = earlier.found
        shared: dict[str, Any] = {"timed_as": earlier.trial, "borrowed": len(found.rounds)}
        log_ratios = section_log_ratios(found.rounds, self.settings.statistic)
        if earlier.reuse is Reuse.TAKE or (
            earlier.reuse is Reuse.EXTEND
            and decide_on(log_ratios, best, protocol, earlier.trial) is not Decision.CONTINUE
        ):
            names = (
                "rounds",
                "latency_ms",
                "error_ms",
                "log_ratio",
                "log_ratio_error",
                "point_log_ratios",
                "raced",
                "notes",
            )
            return shared | {name: getattr(found, name) for name in names}
        afresh = earlier.reuse is Reuse.ADD
        timing = self._time(run, best, seed, earlier.trial, protocol, log_ratios, afresh=afresh)
        if {r.launch for r in timing.rounds} != {r.launch for r in found.rounds}:
            # Another way of launching is another quantity: the new rounds stand alone, and no race was lost by them.
            note = f"the samples of trial {earlier.trial} were launched in another way, and are not pooled with these"
            return self._value(timing.rounds, first=False) | {"notes": (*timing.notes, note)}
        facts = {"raced": timing.raced, "notes": tuple(dict.fromkeys((*found.notes, *timing.notes)))}
        return self._value(found.rounds + timing.rounds, first=False) | shared | facts

    def _build(self, run: _Run, route: Route, seed: int) -> None:
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

    def _above_limit(self, run: _Run, *, last: bool) -> Evaluation | None:
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
    def _building(self, run: _Run) -> Iterator[None]:
        ready = self._facts()
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

    def _keep(self, run: _Run, pair: _Pair) -> None:
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

    def _gate(self, run: _Run) -> Outcome:
        assert run.worker is not None
        # Running an engine disturbs a timing beside it, whatever building does.
        with self._device(run, shared=build_lock_shared(self._facts()["device_id"])), run.phase("gate"):
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

    def _time(
        self,
        run: _Run,
        best: Best | None,
        seed: int,
        trial: int,
        protocol: Protocol,
        earlier: Sequence[float] = (),
        *,
        afresh: bool = True,
    ) -> Timing:
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
                self._warm,
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

    def _value(self, rounds: Sequence[Round], *, first: bool) -> dict[str, Any]:
        statistic = self.settings.statistic
        estimate = paired_estimate(rounds, statistic)
        assert self.reference_latency_ms is not None
        log_ratio = 0.0 if first else estimate.log_ratio
        latency = math.exp(log_ratio) * self.reference_latency_ms
        points: tuple[float, ...] = ()
        if statistic.points > 1:
            points = (0.0,) * statistic.points if first else point_log_ratios(rounds, statistic)
        return {
            "rounds": tuple(rounds),
            "log_ratio": log_ratio,
            "log_ratio_error": estimate.error,
            "point_log_ratios": points,
            "latency_ms": latency,
            "error_ms": latency * estimate.error,
        }

    # -- the reference engine ------------------------------------------------------------------
    def _reference_side(self, candidate: Worker, seed: int = 0) -> Side:
        """The reference, built and in a living worker. Called by whoever holds the device. seed: of its build."""
        if self.capabilities.placement is Placement.SAME_WORKER:
            worker: Worker | None = candidate
        else:
            worker = self._reference_worker
            if worker is None or not worker.alive:
                candidate.pause()
                if worker is not None:
                    self._put_back(worker)
                worker = self._reference_worker = self._start()
        assert worker is not None
        if worker not in self._holders:
            self._ask_build(worker, REFERENCE, self.reference, seed)
            self._holders.add(worker)
        return Side(worker, REFERENCE)

    def _build_reference(self, run: _Run, seed: int) -> None:
        """The reference of a pair, built now; a second time where that fails. Raises ReferenceFailed."""
        for last in (False, True):
            with self._building(run):
                worker = self._check_out(run)
                note = worker.note
                try:
                    with run.phase("reference"):
                        side = self._reference_side(worker, seed)
                except WorkerFailed as failed:
                    if self._closed:
                        raise EvaluatorClosed from None
                    ours = worker.alive or not run.facts  # else the candidate, in the same worker, took it along
                    if not ours:
                        raise
                    if last:
                        raise ReferenceFailed(failed.outcome, failed.message) from None
                    if not worker.alive:
                        self._put_back(worker)
                        run.worker = None
                    continue
                if side.worker is worker:
                    worker.note = note  # what a simulated clock says is of the candidate
                else:
                    side.worker.pause()
                return

    # -- ending --------------------------------------------------------------------------------
    def close(self) -> None:
        """Kills all workers; evaluations that are running in other threads raise EvaluatorClosed."""
        with self._mutex:
            self._closed = True
            workers = list(self._all)
            self._all.clear()
            self._idle.clear()
            self._holders.clear()
        for worker in workers:
            worker.kill()
