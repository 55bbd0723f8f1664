"""Minimising, the report: what went and why, what is left, what each kept change is worth, and what was not done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt_search.accuracy.gate import worst
from gpt_search.domain.evaluation import Evaluation, note_counts
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.measure.equivalence import ALPHA
from gpt_search.measure.intervals import Interval, Verdict, ratio_interval, verdict
from gpt_search.run.minimise_removal import Builder, Removal, knobs
from gpt_search.run.rebuild import log_ratio, median_ms, points_json
from gpt_search.run.result import accuracy_json, timing_json


@dataclass(frozen=True)
class Minimised:
    """The result. route: what is left of the winner, None where there was none to begin with: keep the default.

    speedup: reference / route, from fresh builds. data: everything, raw samples included, as stored.
    """

    route: Route | None
    speedup: Interval | None
    verdict: Verdict
    reason: str
    metric: str
    data: Mapping[str, Any]


def report(
    builder: Builder,
    removal: Removal,
    headline: Sequence[Evaluation],
    worths: Mapping[str, Sequence[Evaluation]],
) -> Minimised:
    """The result of a minimisation. headline, worths: as `confirmed_again` gives them."""
    same, removed, finals = removal.same, removal.removed, removal.finals
    interval: Interval | None = None
    found = Verdict.NOT_DISTINGUISHABLE
    failed = [e for e in headline if e.outcome is not Outcome.OK]
    if failed:
        words = " ".join((failed[0].message or failed[0].outcome.explanation).split())
        reason = f"the minimised route failed when built again ({failed[0].outcome.name}): {words}"
    else:
        interval = ratio_interval([-log_ratio(e) for e in headline])
        found = verdict(interval)
        reason = found.explanation
    plan, route = builder.plan, builder.route(removed)
    defaults = builder.prepared.description.database.defaults
    kept = [n for n in builder.changes if n not in removed]
    losses = [pair for e in headline for pair in e.losses]
    notes = [
        f"a route without {knobs(final.removed - removed)} as well was not shipped: it {final.refused}"
        for final in finals
        if final.refused is not None
    ]
    shipped = finals[-1].found if finals and finals[-1].refused is None else None
    if plan.rebuilds is None:
        many = "more than 500" if plan.needed is None else str(plan.needed)
        notes.append(
            f"changes of the engine were not tested: to show that they are worth less than "
            f"{100 * math.expm1(plan.margin):.2g} % takes {many} pairs of builds a test, as builds differ by "
            f"{100 * plan.spread:.2g} %; give a larger --margin, or --rebuilds"
        )
    missed = removal.not_examined
    unmeasured = [n for n in kept if len(kept) > 1 and n not in worths]
    notes += [f"{n} of {len(headline)} builds: {text}" for text, n in note_counts(e.notes for e in headline).items()]
    if removal.stopped or unmeasured:
        notes.append(f"stopped by the budget ({builder.cap}): {_left_open(kept, missed, unmeasured)}")
    data = {
        "number": builder.number,
        "confirmation": builder.confirmed["number"],
        "trials": builder.confirmed["trials"],
        "winner": builder.confirmed["winner"],
        "route": str(route),
        "changes": str(route.changes(defaults)),
        "removed": [
            {"knob": n, "value": builder.changes[n], "why": "SAME_ENGINE" if n in same else "NOT_SLOWER"}
            for n in builder.changes
            if n in removed
        ],
        "kept": [{"knob": n, "value": builder.changes[n]} | _worth(n, kept, worths, interval) for n in kept],
        "speedup": None if interval is None else interval.to_json(),
        "preliminary": None if interval is None else interval.preliminary,
        "verdict": found.name,
        "reason": reason,
        "margin": math.expm1(plan.margin),
        "margin_rule": plan.rule,
        "spread": plan.spread,
        "rebuilds": plan.rebuilds,
        "rebuilds_needed": plan.needed,
        "loss": None if shipped is None else shipped.interval.to_json(),
        "level": None if shipped is None else 1 - shipped.alpha,
        "shortest": removed == removal.shortest,
        "notes": notes,
        "builds": builder.builds,
        "engine_builds": builder.engine_builds,
        "planned": list(builder.planned),
        "budget": {"builds": builder.cap.builds, "seconds": builder.cap.seconds},
        "stopped": removal.stopped or bool(unmeasured),
        "not_examined": missed,
        "accuracy": accuracy_json(worst(losses, builder.prepared.tolerances)) if losses else None,
        **points_json(headline, builder.prepared.workload),
        "timing": timing_json(builder.prepared.protocol),
        "reference_ms": median_ms(headline, "reference", builder.prepared.statistic),
        "latency_ms": median_ms(headline, "candidate", builder.prepared.statistic),
        "steps": removal.steps,
        "finals": [f.to_json(list(builder.changes)) for f in finals],
        "headline": [e.to_json() for e in headline],
        "without": {n: [e.to_json() for e in es] for n, es in worths.items()},
    }
    return Minimised(route, interval, found, reason, builder.prepared.tolerances.metric, data)


def _left_open(kept: Sequence[str], missed: Sequence[str], unmeasured: Sequence[str]) -> str:
    """What the budget did not allow, by numbers; the names are told with what is kept."""
    if not missed and not unmeasured:
        return "every kept change was tried, not every set of them"
    said = [f"{len(missed)} of {len(kept)} kept changes not tried to remove alone"] if missed else []
    said += [f"{len(unmeasured)} of {len(kept)} not measured, what they are worth"] if unmeasured else []
    return ", ".join(said)


def _worth(
    name: str,
    kept: Sequence[str],
    worths: Mapping[str, Sequence[Evaluation]],
    headline: Interval | None,
) -> dict[str, Any]:
    """How much slower the route is without one change; the intervals of all measured ones hold together at 95 %."""
    if len(kept) == 1:  # without it, it is the reference
        if headline is None:
            return {"worth": None, "why": "NOT_MEASURED"}
        return {"worth": headline.to_json(), "why": "SLOWER_WITHOUT" if headline.low > 1 else "NOT_SHOWN_REMOVABLE"}
    if name not in worths:
        return {"worth": None, "why": "NOT_MEASURED"}
    builds = worths[name]
    if builds[-1].outcome is not Outcome.OK:
        return {"worth": None, "why": builds[-1].outcome.name}
    interval = ratio_interval([log_ratio(e) for e in builds], 1 - 2 * ALPHA / len(worths))
    return {"worth": interval.to_json(), "why": "SLOWER_WITHOUT" if interval.low > 1 else "NOT_SHOWN_REMOVABLE"}
