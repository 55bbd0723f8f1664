"""Shipping an engine: one of the builds that were confirmed, not a new one.

A new build of the confirmed route is another engine, which nobody has timed. The build that is shipped is
loaded from its kept bytes in several fresh processes, and in each of them gated and timed again beside a
fresh build of the reference.

Two intervals, which answer two questions. The route's is over builds, from the confirmation: what this route
gives when it is built. The file's is over processes: what this very build gives when it is loaded,
against the default as it is built. The file's holds for the route only as far as builds do not differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpt_search.accuracy.gate import worst
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.streams import seed_from
from gpt_search.measure.intervals import Interval, Verdict, prediction_interval, ratio_interval, verdict
from gpt_search.run.kept import RULE, nearest_to_median
from gpt_search.run.rebuild import every_round, log_ratio, rebuild_pair
from gpt_search.run.result import accuracy_json
from gpt_search.run.setup import Prepared
from gpt_search.store.files import StorageError
from gpt_search.store.study import StudyStore

DEFAULT_PROCESSES = 5

Step = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Confirmed:
    """A route whose speed-up was confirmed, with the builds it was confirmed on.

    builds: as stored, "stage_2" of a confirmation or "headline" of a minimisation.
    """

    trial: int
    route: str
    number: int
    speedup: Mapping[str, Any]
    builds: list[Mapping[str, Any]]
    note: str


@dataclass(frozen=True)
class Shipped:
    """data: the engine. facts: what is told about it, JSON-like. warnings: what its user should know first."""

    data: bytes
    facts: Mapping[str, Any]
    warnings: tuple[str, ...]


def ship_build(
    store: StudyStore, prepared: Prepared, source: Confirmed, processes: int, step: Step | None = None
) -> Shipped:
    """Picks one of the confirmed builds, loads it in fresh processes, and gates and times it there.

    processes: 2 or more, the unit of the file's interval. step(done, total, what): called before each.

    Raises InputError when no build is kept, when it cannot be loaded, misses a tolerance or gives another engine
    than was confirmed, and when it is slower than the default.
    """
    again = f"run `{store.command('confirm')}` again"
    chosen = _chosen(store, source, again)
    build = source.builds[chosen]
    try:
        data = store.engines.get(build["engine"])
    except StorageError as error:
        raise StorageError(f"{error}; {again}") from None
    reference_ms = store.restore().rows[0].evaluation.latency_ms
    assert reference_ms is not None
    protocol = every_round(prepared.protocol)
    found: list[Evaluation] = []
    for i in range(processes):
        if step is not None:
            step(i, processes, f"build {chosen + 1} of {len(source.builds)}")
        seed = seed_from(prepared.seed, "export", source.number, build["engine"], i)
        found.append(rebuild_pair(prepared, protocol, Route.parse(source.route), reference_ms, seed, load=data))
        _check(found[-1], build, again)
    interval = ratio_interval([-log_ratio(e) for e in found])
    outcome = verdict(interval)
    if outcome is Verdict.SLOWER:
        raise InputError(
            f"the confirmed build is slower than the default now: {_words(interval)} over {processes} processes; "
            f"nothing was written. Either this machine or the build is not what it was when it was confirmed: {again}"
        )
    expected = prediction_interval([-log_ratio(Evaluation.from_json(e)) for e in source.builds])
    consistent = expected.low <= interval.estimate <= expected.high
    warnings = []
    if outcome is not Verdict.FASTER:
        warnings.append(
            f"this file is not shown to be faster than the default by its own timing over {processes} processes; take "
            "more of them with --processes, or confirm again"
        )
    if not consistent:
        warnings.append(
            f"this file's own timing is not what the confirmation lets expect of a build, [{expected.low:.3f}, "
            f"{expected.high:.3f}] with 95 %: something has changed since; {again}"
        )
    losses = [pair for e in found for pair in e.losses]
    facts = {
        "trial": source.trial,
        "route": source.route,
        "note": source.note,
        "build": chosen + 1,
        "builds": len(source.builds),
        "rule": RULE,
        "sha256": build["engine"],
        "bytes": len(data),
        "fingerprint": found[0].fingerprint,
        "route_speedup": dict(source.speedup),
        "build_speedup": math.exp(-build["log_ratio"]),
        "file_speedup": interval.to_json(),
        "file_unit": "processes: the interval is of this very build, loaded again, against fresh builds of the default",
        "file_verdict": outcome.name,
        "expected": None if expected.n == 1 else expected.to_json(),
        "consistent": consistent,
        "warnings": warnings,
        "accuracy": accuracy_json(worst(losses, prepared.tolerances)) if losses else None,
        "metric": prepared.tolerances.metric,
        "environment": dict(prepared.description.environment),
        "processes": [_without_rounds(e) for e in found],
    }
    return Shipped(data, facts, tuple(warnings))


def _chosen(store: StudyStore, source: Confirmed, again: str) -> int:
    """The number of the build that is shipped."""
    order = nearest_to_median([log_ratio(Evaluation.from_json(e)) for e in source.builds])
    for i in order:
        if source.builds[i].get("engine") in store.engines:
            return i
    reasons = [str(e["unsaved"]) for e in source.builds if e.get("unsaved")]
    why = f"could not be saved ({reasons[0]})" if reasons else "are not kept any more"
    raise InputError(f"the builds that confirmed trial {source.trial} {why}, so none can be shipped; {again}")


def _check(found: Evaluation, build: Mapping[str, Any], again: str) -> None:
    """Raises InputError unless the file, loaded again, is the engine that was confirmed and within tolerance."""
    if found.outcome is Outcome.ACCURACY:
        violation = found.violation
        finite = violation is not None and math.isfinite(violation)
        beyond = f"by {violation:.3g}" if finite else "with outputs that are not finite"
        raise InputError(f"the reloaded engine misses the tolerance {beyond}; nothing was written; {again}")
    if found.outcome is not Outcome.OK:
        words = " ".join((found.message or found.outcome.explanation).split())
        raise InputError(
            f"the engine cannot be exported: loaded again it failed ({found.outcome.name}: {words}); nothing was "
            f"written; {again}"
        )
    if build["fingerprint"] is not None and found.fingerprint != build["fingerprint"]:
        raise InputError(
            f"the engine cannot be exported: loaded again its fingerprint is {found.fingerprint}, confirmed was "
            f"{build['fingerprint']}; nothing was written; {again}"
        )


def _words(interval: Interval) -> str:
    return f"{interval.estimate:.3f}x [{interval.low:.3f}, {interval.high:.3f}]"


def _without_rounds(evaluation: Evaluation) -> dict[str, Any]:
    return {k: v for k, v in evaluation.to_json().items() if k not in ("rounds", "engine", "unsaved")}
