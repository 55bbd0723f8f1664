"""From a route to an evaluation: build, fingerprint, gate, and paired timing, each in a worker process.

`settings`: what evaluations have in common; `pool`: the workers; `phases`: what is done in them; `reuse`: engines that
are known already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpt_search.backends.base import Capabilities
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.execution.environment import environment
from gpt_search.execution.launcher import WorkerFailed
from gpt_search.execution.phases import Phases
from gpt_search.execution.pool import EvaluatorClosed as EvaluatorClosed
from gpt_search.execution.pool import WorkerPool
from gpt_search.execution.reuse import Earlier as Earlier
from gpt_search.execution.reuse import Known as Known
from gpt_search.execution.reuse import Reuse as Reuse
from gpt_search.execution.reuse import nothing_known as nothing_known
from gpt_search.execution.rounds import ReferenceFailed as ReferenceFailed
from gpt_search.execution.route_run import FreshBuilds, RouteRun
from gpt_search.execution.settings import EvaluatorSettings as EvaluatorSettings
from gpt_search.measure.paired import latency_of, paired_estimate, point_log_ratios, section_log_ratios
from gpt_search.measure.sequential import Best, Decision, decide_on


class FreshPair(NamedTuple):
    """What `Evaluator.evaluate_pair` found. engine: the candidate's bytes after its timing, where they were kept.

    unsaved: why there are none, where they were to be kept.
    """

    evaluation: Evaluation
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
        self.pool = WorkerPool(settings.worker_spec())
        self._phases = Phases(settings, reference, self.pool)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills all workers; evaluations that are running in other threads raise EvaluatorClosed."""
        self.pool.close()

    # -- what the backend is -------------------------------------------------------------------
    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do. Starts a worker to ask. Raises WorkerFailed, InputError."""
        return self.pool.capabilities

    def environment(self) -> dict[str, str]:
        """What must be equal for records to be comparable. Raises as `capabilities` does."""
        return environment(self.pool.facts()["environment"])

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
        pair = FreshBuilds(reference_first, keep, load)
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
        pair: FreshBuilds | None = None,
    ) -> Evaluation:
        run = RouteRun(until, pair)
        try:
            if not self.pool.asked:
                with run.phase("start"):
                    self.pool.facts()
            return self._route(run, route, best, known, seed, trial, first=first)
        except WorkerFailed as failed:
            if self.pool.closed:
                raise EvaluatorClosed from None
            return run.evaluation(failed.outcome, message=failed.message)
        finally:
            if run.worker is not None:
                self.pool.put_back(run.worker)

    def _route(
        self, run: RouteRun, route: Route, best: Best | None, known: Known, seed: int, trial: int, *, first: bool
    ) -> Evaluation:
        both = run.pair is not None and run.until is Phase.TIME
        if run.pair is not None and both and run.pair.reference_first:
            self._phases.build_reference(run, seed)
        self._phases.build(run, route, seed)
        if run.pair is not None and both and not run.pair.reference_first:
            self._phases.build_reference(run, seed)
        if (above := self._phases.above_limit(run, last=False)) is not None:
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
            outcome = self._phases.gate(run)
        if (above := self._phases.above_limit(run, last=True)) is not None:
            return above
        if run.until is Phase.GATE or (outcome is Outcome.ACCURACY and not self.settings.time_infeasible):
            return run.evaluation(outcome)
        if same is not None and same.failed:
            return self._failed_before(run, earlier)
        samples = self._samples(run, best, seed, trial, earlier, first=first)
        if run.pair is not None and run.pair.keep:
            self._phases.keep(run, run.pair)
        return run.evaluation(outcome, **samples)

    def _failed_before(self, run: RouteRun, earlier: Earlier | None) -> Evaluation:
        """The engine's failure in an earlier trial, for this route."""
        assert earlier is not None
        found = earlier.found
        words = found.message or found.outcome.explanation
        if found.excess:
            run.facts["excess"] = found.excess
        return run.evaluation(found.outcome, message=f"the same engine as in trial {earlier.trial}, where: {words}")

    def _samples(
        self, run: RouteRun, best: Best | None, seed: int, trial: int, earlier: Earlier | None, *, first: bool
    ) -> dict[str, Any]:
        """The rounds that stand for the route, earlier ones first, whose they are, and what they say."""
        protocol = self.settings.protocol
        if earlier is None or not earlier.found.rounds or earlier.reuse is Reuse.NOTHING:
            timing = self._phases.time(run, best, seed, trial, protocol)
            if first:
                self.reference_latency_ms = latency_of(timing.rounds, "reference", self.settings.statistic)
            return self._value(timing.rounds, first=first) | {"raced": timing.raced, "notes": timing.notes}
        if earlier.reuse is Reuse.CHECK:
            # As many rounds at least as builds are compared by: few would tell no difference.
            fewest = max(protocol.min_rounds, protocol.build_rounds)
            longer = replace(protocol, min_rounds=fewest, max_rounds=max(fewest, protocol.max_rounds))
            timing = self._phases.time(run, best, seed, trial, longer)
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
        timing = self._phases.time(run, best, seed, earlier.trial, protocol, log_ratios, afresh=afresh)
        if {r.launch for r in timing.rounds} != {r.launch for r in found.rounds}:
            # Another way of launching is another quantity: the new rounds stand alone, and no race was lost by them.
            note = f"the samples of trial {earlier.trial} were launched in another way, and are not pooled with these"
            return self._value(timing.rounds, first=False) | {"notes": (*timing.notes, note)}
        facts = {"raced": timing.raced, "notes": tuple(dict.fromkeys((*found.notes, *timing.notes)))}
        return self._value(found.rounds + timing.rounds, first=False) | shared | facts

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
