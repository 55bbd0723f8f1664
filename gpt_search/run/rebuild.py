"""Pairs of fresh builds in fresh processes: the unit of everything that is claimed after a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Phase
from gpt_search.domain.route import Route
from gpt_search.domain.streams import Streams
from gpt_search.domain.workload import Workload
from gpt_search.execution.evaluator import Evaluator
from gpt_search.execution.rounds import ReferenceFailed
from gpt_search.measure.paired import latency_of
from gpt_search.measure.protocol import FRESH_WARMUP, Protocol
from gpt_search.measure.statistic import Statistic
from gpt_search.run.setup import Prepared


def every_round(protocol: Protocol) -> Protocol:
    """The protocol for fresh builds, without stopping early: racing would leave the slow builds with fewer rounds."""
    warmup_seconds = min(FRESH_WARMUP * protocol.warmup_seconds, protocol.warmup_limit_seconds)
    rounds = protocol.build_rounds
    return replace(protocol, min_rounds=rounds, max_rounds=rounds, warmup_seconds=warmup_seconds)


@dataclass(frozen=True)
class Rebuilt(Evaluation):
    """The evaluation of one pair of fresh builds.

    reference_built_first: which of the two was built first, drawn at random. None where no reference was built.
    engine: the name under which the candidate's bytes are kept; unsaved: why there are none, where there should be.
    """

    reference_built_first: bool | None = None
    engine: str | None = None
    unsaved: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As of an evaluation, and what it adds."""
        more = {"reference_built_first": self.reference_built_first, "engine": self.engine, "unsaved": self.unsaved}
        return super().to_json() | more


def rebuild_pair(
    prepared: Prepared,
    protocol: Protocol,
    route: Route,
    latency_ms: float,
    seed: int,
    *,
    against: Route | None = None,
    until: Phase = Phase.TIME,
    keep: Callable[[bytes], str] | None = None,
    load: bytes | None = None,
) -> Rebuilt:
    """One pair of fresh builds, `route` and `against`, in fresh processes, timed in alternating rounds.

    Which of the two is built first is a coin toss that `seed` addresses: a machine that is warmer, or a cache that
    is fuller, at the second build must not favour one side. against: by default the reference route. latency_ms: of
    `against`, which latencies are scaled with. until: an earlier phase builds `route` alone.
    keep: stores the bytes of a `route` that was timed, and gives their name. load: the engine of `route`, loaded in
    place of being built.

    A failure of `route` is an Evaluation. Raises InputError where `against` fails.
    """
    reference_first = bool(Streams(seed).trial(0, "build order").integers(2))
    with Evaluator(prepared.evaluator_settings(protocol), against or prepared.space.reference) as evaluator:
        evaluator.reference_latency_ms = latency_ms
        try:
            pair = evaluator.evaluate_pair(
                route, until, seed, reference_first=reference_first, keep=keep is not None, load=load
            )
        except ReferenceFailed as failed:
            words = " ".join(failed.message.split())
            which = "the reference route" if against is None else "the route that others are compared with"
            raise InputError(
                f"{which} failed when built again ({failed.outcome.name}): {words}; nothing can be confirmed against it"
            ) from None
    return Rebuilt(
        **{f.name: getattr(pair.evaluation, f.name) for f in fields(Evaluation)},
        reference_built_first=reference_first if until is Phase.TIME else None,
        engine=keep(pair.engine) if keep is not None and pair.engine is not None else None,
        unsaved=pair.unsaved,
    )


class EngineBuilds:
    """Builds of single routes for their fingerprints: one worker makes them all, and nothing is run.

    The worker lives until `close`; it must not be there while something is timed.
    """

    def __init__(self, prepared: Prepared) -> None:
        """Starts nothing yet."""
        self._prepared = prepared
        self._evaluator: Evaluator | None = None

    def build(self, route: Route, seed: int) -> Evaluation:
        """The route, built. A failure is an Evaluation."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self._prepared.evaluator_settings(), self._prepared.space.reference)
        return self._evaluator.evaluate(route, Phase.BUILD, seed=seed)

    def close(self) -> None:
        """Ends the worker; another one is started for the next build."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None


def log_ratio(evaluation: Evaluation) -> float:
    """log(candidate / the other side) of a pair that was timed."""
    if evaluation.log_ratio is None:
        raise ValueError("an evaluation that went through every phase has a log-ratio")
    return evaluation.log_ratio


def median_ms(evaluations: Sequence[Evaluation], side: str, statistic: Statistic) -> float | None:
    """Median over builds of one side's latency, in ms; None without rounds.

    side: "candidate" or "reference". statistic: what is timed.
    """
    builds = [latency_of(e.rounds, side, statistic) for e in evaluations if e.rounds]
    return float(np.median(builds)) if builds else None


def points_json(evaluations: Sequence[Evaluation], workload: Workload) -> dict[str, Any]:
    """The speed-up at each shape point, the geometric mean over builds, as a JSON-like form; empty for one point."""
    rows = [e.point_log_ratios for e in evaluations if e.point_log_ratios]
    if not rows or not workload.points:
        return {}
    means = np.mean(rows, axis=0).tolist()
    return {
        "points": [
            {"name": p.name, "weight": p.weight, "speedup": float(np.exp(-x))}
            for p, x in zip(workload.points, means, strict=True)
        ]
    }
