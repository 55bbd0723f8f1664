"""Minimising: from a confirmed winner, every knob change is removed that does not contribute.

1. Changes without which the compiler gives the very same engine go without timing, where the
   backend's fingerprints are exact.
2. Of the others, groups are removed that a test of non-inferiority lets go: on fresh pairs of builds,
   the route without them against the whole confirmed route, so that losses cannot add up step by step.
3. These tests only nominate. A test on twice as many fresh builds decides whether the shortest route
   is at most the margin slower than the winner; where it does not show that, the route before the last
   removal gets a test of its own, and the one before that. Where none shows it, the route of step 1 stays.
4. On fresh builds again: the route's speed-up over the reference, and what each kept change is worth.

What is controlled: a route that is slower than the winner by the margin or more is shipped with
probability at most 2.5 %, however many groups were tried, because only the tests of step 3 ship, and
they share that level (a half, a quarter, a quarter). The speed-up has its own 95 % interval; those of the
kept changes hold together at 95 % (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any, NamedTuple

from gpt_search.accuracy.gate import worst
from gpt_search.backends.base import Fingerprints
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.measure.equivalence import (
    ALPHA,
    Equivalence,
    NonInferiority,
    builds_needed,
    detectable,
    non_inferiority,
)
from gpt_search.measure.intervals import MIN_BUILDS, Interval, Verdict, ratio_interval, verdict
from gpt_search.measure.variance import Components
from gpt_search.run.kept import Keeper, kept_names
from gpt_search.run.noise import floor_key
from gpt_search.run.rebuild import every_round, log_ratio, median_ms, rebuild_pair
from gpt_search.run.reduction import reduce_items
from gpt_search.run.result import accuracy_json
from gpt_search.run.setup import Prepared
from gpt_search.run.tune import prepared_for
from gpt_search.store.floors import find_floor
from gpt_search.store.study import StudyStore

MOST_REBUILDS = 40
"""Pairs of builds of one test that are made without being asked for."""
HEADLINE_REBUILDS = 7
_FEWEST_TO_STOP = 3
_SHARES = (0.5, 0.25, 0.25)
"""What each test that may ship a route has of the level."""

Removed = frozenset[str]
Step = Callable[[int, str], None]


@dataclass(frozen=True)
class Plan:
    """How a route is minimised.

    margin: largest log-ratio that is given away in all. rule: where it comes from, in words. spread: standard
    deviation of one pair's log-ratio, from the confirmation. rebuilds: pairs of builds of one test; None
    where more than `MOST_REBUILDS` would be needed: then only changes that leave the engine as it is are removed.
    needed: how many would be, None where even 500 are too few. headline: pairs of builds of each interval.
    """

    margin: float
    rule: str
    spread: float
    rebuilds: int | None
    needed: int | None
    headline: int


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


def minimise(
    study: str,
    storage: str,
    margin: float | None = None,
    rebuilds: int | None = None,
    step: Step | None = None,
) -> Minimised:
    """Removes from a study's confirmed winner what does not contribute, confirms the rest, and stores the result.

    margin: relative latency that may be lost in all; by default the smaller of the noise floor and a
    tenth of the gain. rebuilds: pairs of builds of one test; by default as many as show with 90 %
    probability that an equally fast route is not slower by the margin. step(done, what): before each build.

    Raises InputError when the study is unknown, not confirmed, or something it rests on has changed.
    """
    if margin is not None and not 0 < margin < 1:
        raise InputError(
            f"--margin {margin:g}: it is a share of the latency, more than 0 and less than 1 (0.01 is 1 %)"
        )
    if rebuilds is not None and rebuilds < 2:
        raise InputError(f"--rebuilds {rebuilds}: a test needs 2 builds or more")
    with StudyStore.open(storage, study) as store:
        confirmations = store.confirmations()
        if not confirmations:
            raise InputError(f"study {study!r} has no confirmed winner yet; run `gpt-search confirm` first")
        confirmed = confirmations[-1]
        if confirmed["winner"] is None or confirmed["verdict"] != Verdict.FASTER.name:
            reason = f"nothing to minimise: {confirmed['reason']}"
            data = {"winner": confirmed["winner"], "route": None, "verdict": confirmed["verdict"], "reason": reason}
            return Minimised(None, None, Verdict[confirmed["verdict"]], reason, "", data)
        prepared = prepared_for(store)
        plan = _plan(confirmed, margin, rebuilds, _stored_spread(store, prepared))
        run = _Run(prepared, confirmed, plan, len(store.minimisations()), step, Keeper(store.engines))
        result = run.minimised()
        store.append_minimisation(result.data)
        store.engines.keep_only(kept_names(confirmed, result.data))
        return result


def shipped_minimisation(
    minimisations: Sequence[Mapping[str, Any]], confirmation: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The latest minimisation of this confirmation's winner, where it removed something and is faster too."""
    for data in reversed(minimisations):
        if data["confirmation"] == confirmation["number"]:
            return data if data["removed"] and data["verdict"] == Verdict.FASTER.name else None
    return None


def _stored_spread(store: StudyStore, prepared: Prepared) -> float | None:
    """Standard deviation of one pair's log-ratio, from the floor that `gpt-search noise` stored; None without one."""
    floor = find_floor(store.location, floor_key(prepared))
    if floor is None:
        return None
    samples = prepared.protocol.build_rounds / int(floor["min_rounds"])
    return math.sqrt(Components.from_json(floor["components"]).of_mean(1, 1, samples))


def _plan(
    confirmed: Mapping[str, Any], margin: float | None, rebuilds: int | None, stored: float | None = None
) -> Plan:
    builds = [log_ratio(Evaluation.from_json(e)) for e in confirmed["stage_2"]]
    if rebuilds is None and len(builds) < MIN_BUILDS:
        raise InputError(
            f"the confirmation rests on {len(builds)} builds, too few to know how much builds differ; run "
            f"`gpt-search confirm` with --rebuilds {MIN_BUILDS} or more, or say how many builds a test is to have"
        )
    spread = stdev(builds)
    gain = math.log(confirmed["speedup"]["estimate"])
    if margin is not None:
        allowed, rule = math.log1p(margin), "as given"
    else:
        floor, tenth = detectable(spread if stored is None else stored, len(builds)), gain / 10
        if 0 < floor < tenth:
            allowed = floor
            which = "the" if stored is None else "the stored"
            rule = f"{which} noise floor: what {len(builds)} builds detect with 80 % probability"
        else:
            allowed, rule = tenth, "a tenth of the gain"
    needed = builds_needed(allowed, spread) if spread > 0 else MIN_BUILDS
    if rebuilds is None and needed is not None and needed <= MOST_REBUILDS:
        rebuilds = needed
        return Plan(allowed, rule, spread, rebuilds, needed, max(rebuilds, HEADLINE_REBUILDS))
    return Plan(allowed, rule, spread, rebuilds, needed, rebuilds or HEADLINE_REBUILDS)


class _Final(NamedTuple):
    """A test that may ship a route. refused: why it did not, None where it did."""

    removed: Removed
    builds: list[Evaluation]
    found: NonInferiority | None
    refused: str | None

    def to_json(self, changes: Sequence[str]) -> dict[str, Any]:
        return {
            "without": [n for n in changes if n in self.removed],
            "ratio": None if self.found is None else self.found.interval.to_json(),
            "refused": self.refused,
            "builds": [e.to_json() for e in self.builds],
        }


class _Run:
    """One minimisation: counts its builds and keeps the evaluations. A route is named by the knobs taken back."""

    def __init__(
        self,
        prepared: Prepared,
        confirmed: Mapping[str, Any],
        plan: Plan,
        number: int,
        step: Step | None,
        keeper: Keeper | None = None,
    ) -> None:
        self.keeper = keeper
        self.prepared, self.confirmed, self.plan, self.number, self.step = prepared, confirmed, plan, number, step
        self.protocol = every_round(prepared.protocol)
        self.winner = Route.parse(confirmed["winner"]["route"])
        self.changes = self.winner.changes(prepared.space.reference)
        self.exact = prepared.description.fingerprint is Fingerprints.EXACT
        self.builds = 0
        self.steps: list[dict[str, Any]] = []
        self._engines: dict[Removed, Evaluation] = {}
        self._results: dict[str, bool] = {}
        self._base: Removed = frozenset()
        self._nominated: list[Removed] = []

    # -- the whole ------------------------------------------------------------------------------
    def minimised(self) -> Minimised:
        """All four steps."""
        same = self._same_engine() if self.exact else frozenset()
        shortest = same
        if self.plan.rebuilds is not None:
            names = [n for n in self.changes if n not in same]
            self._base = same
            if self.exact:
                self._results[self._engine(same).fingerprint or ""] = True
            kept = reduce_items(names, lambda removed: self._not_slower(same | removed, names))
            shortest = same | (frozenset(names) - frozenset(kept))
        finals: list[_Final] = []
        for removed, share in zip(reversed(self._nominated), _SHARES, strict=False):
            finals.append(self._final(removed, same, share * ALPHA))
            if finals[-1].refused is None:
                break
        else:
            removed = same
        headline, without = self._confirmed(removed)
        return self._result(same, removed, shortest, finals, headline, without)

    def _route(self, removed: Removed) -> Route:
        reference = self.prepared.space.reference
        return Route(tuple((n, reference[n] if n in removed else v) for n, v in self.winner.items_in_order))

    # -- 1. the same engine -----------------------------------------------------------------------
    def _same_engine(self) -> Removed:
        whole = self._engine(frozenset())
        if whole.outcome is not Outcome.OK or whole.fingerprint is None:
            words = " ".join((whole.message or whole.outcome.explanation).split())
            raise InputError(f"the confirmed route failed when built again ({whole.outcome.name}): {words}")

        def equal(removed: Removed) -> bool:
            engine = self._engine(removed)
            return engine.outcome is Outcome.OK and engine.fingerprint == whole.fingerprint

        kept = reduce_items(list(self.changes), equal)
        return frozenset(self.changes) - frozenset(kept)

    def _engine(self, removed: Removed) -> Evaluation:
        """The route built once, for its fingerprint."""
        if removed not in self._engines:
            self._engines[removed] = self._build(removed, "engine", 0, _without(removed), until=Phase.BUILD)
        return self._engines[removed]

    # -- 2. not slower ----------------------------------------------------------------------------
    def _not_slower(self, removed: Removed, tried: Sequence[str]) -> bool:
        """Whether the route without these is shown to be at most the margin slower than the winner."""
        assert self.plan.rebuilds is not None
        taken = {"without": [n for n in tried if n in removed]}
        fingerprint = None
        if self.exact:
            engine = self._engine(removed)
            fingerprint = engine.fingerprint
            if engine.outcome is not Outcome.OK or fingerprint is None:
                self.steps.append(taken | {"result": engine.outcome.name, "builds": []})
                return False
            if fingerprint in self._results:
                self.steps.append(taken | {"result": "SAME_ENGINE_AS_BEFORE", "builds": []})
                if self._results[fingerprint]:
                    self._nominated.append(removed)
                return self._results[fingerprint]
        builds, found = self._compared(removed, self._base, "test", self.plan.rebuilds, ALPHA, _without(removed))
        failed = builds[-1].outcome is not Outcome.OK
        result = found is not None and not failed and found.result is Equivalence.NOT_SLOWER
        told = builds[-1].outcome.name if failed or found is None else found.result.name
        interval = None if found is None else found.interval.to_json()
        self.steps.append(taken | {"result": told, "ratio": interval, "builds": [e.to_json() for e in builds]})
        if fingerprint is not None:
            self._results[fingerprint] = result
        if result:
            self._nominated.append(removed)
        return result

    def _compared(
        self, removed: Removed, base: Removed, stage: str, count: int, alpha: float, what: str
    ) -> tuple[list[Evaluation], NonInferiority | None]:
        """Fresh pairs of the two routes, and the test on them; it ends early where it cannot succeed any more.

        Ending early for being slower never calls a slower route fast enough, so it costs no level.
        """
        builds: list[Evaluation] = []
        found: NonInferiority | None = None
        for i in range(count):
            builds.append(self._build(removed, stage, i, what, against=base))
            if builds[-1].outcome is not Outcome.OK:
                break
            found = non_inferiority([log_ratio(e) for e in builds], self.plan.margin, alpha)
            if len(builds) >= _FEWEST_TO_STOP and found.result is Equivalence.SLOWER:
                break
        return builds, found

    # -- 3. the tests that ship -------------------------------------------------------------------
    def _final(self, removed: Removed, base: Removed, alpha: float) -> _Final:
        assert self.plan.rebuilds is not None
        builds, found = self._compared(removed, base, "final", 2 * self.plan.rebuilds, alpha, "the minimised route")
        if builds[-1].outcome is not Outcome.OK or found is None:
            words = " ".join((builds[-1].message or builds[-1].outcome.explanation).split())
            return _Final(removed, builds, found, f"failed when built again ({builds[-1].outcome.name}): {words}")
        if found.result is Equivalence.NOT_SLOWER:
            return _Final(removed, builds, found, None)
        return _Final(removed, builds, found, f"was, on fresh builds, {found.result.explanation}")

    # -- 4. what is left --------------------------------------------------------------------------
    def _confirmed(self, removed: Removed) -> tuple[list[Evaluation], dict[str, list[Evaluation]]]:
        """Fresh pairs against the reference, and of the route without each kept change, in random order."""
        kept = [n for n in self.changes if n not in removed]
        without: dict[str, list[Evaluation]] = {n: [] for n in kept} if len(kept) > 1 else {}
        headline: list[Evaluation] = []
        order = [name for name in (None, *without) for _ in range(self.plan.headline)]
        failed: set[str | None] = set()
        for i in Streams(self.prepared.seed).trial(self.number, "minimise").permutation(len(order)).tolist():
            name = order[i]
            if name in failed:
                continue
            if name is None:
                found = self._build(removed, "headline", i, "the minimised route against the reference", reference=True)
                headline.append(found)
                if self.keeper is not None:
                    self.keeper.shrink(headline)
            else:
                found = self._build(removed | {name}, "worth", i, f"without {name}", against=removed)
                without[name].append(found)
            if found.outcome is not Outcome.OK:
                failed.add(name)
        return headline, without

    def _build(
        self,
        removed: Removed,
        stage: str,
        i: int,
        what: str,
        *,
        against: Removed = frozenset(),
        reference: bool = False,
        until: Phase = Phase.TIME,
    ) -> Evaluation:
        if self.step is not None:
            self.step(self.builds, what)
        self.builds += 1
        other = None if reference else self._route(against)
        latency_ms = self.confirmed["reference_ms" if reference else "latency_ms"]
        seed = seed_from(self.prepared.seed, "minimise", self.number, stage, *sorted(removed), i)
        keep = self.keeper.keep if self.keeper is not None and reference else None  # only the headline's are shipped
        return rebuild_pair(
            self.prepared, self.protocol, self._route(removed), latency_ms, seed, against=other, until=until, keep=keep
        )

    # -- the result -------------------------------------------------------------------------------
    def _result(
        self,
        same: Removed,
        removed: Removed,
        shortest: Removed,
        finals: Sequence[_Final],
        headline: Sequence[Evaluation],
        without: Mapping[str, Sequence[Evaluation]],
    ) -> Minimised:
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
        plan, route = self.plan, self._route(removed)
        defaults = self.prepared.description.database.defaults
        kept = [n for n in self.changes if n not in removed]
        losses = [pair for e in headline for pair in e.losses]
        notes = [
            f"a route without {_knobs(final.removed - removed)} as well was not shipped: it {final.refused}"
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
        data = {
            "number": self.number,
            "confirmation": self.confirmed["number"],
            "trials": self.confirmed["trials"],
            "winner": self.confirmed["winner"],
            "route": str(route),
            "changes": str(route.changes(defaults)),
            "removed": [
                {"knob": n, "value": self.changes[n], "why": "SAME_ENGINE" if n in same else "NOT_SLOWER"}
                for n in self.changes
                if n in removed
            ],
            "kept": [{"knob": n, "value": self.changes[n]} | self._worth(n, kept, without, interval) for n in kept],
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
            "shortest": removed == shortest,
            "notes": notes,
            "builds": self.builds,
            "accuracy": accuracy_json(worst(losses, self.prepared.tolerances)) if losses else None,
            "reference_ms": median_ms(headline, "reference_ms"),
            "latency_ms": median_ms(headline, "candidate_ms"),
            "steps": self.steps,
            "finals": [f.to_json(list(self.changes)) for f in finals],
            "headline": [e.to_json() for e in headline],
            "without": {n: [e.to_json() for e in es] for n, es in without.items()},
        }
        return Minimised(route, interval, found, reason, self.prepared.tolerances.metric, data)

    def _worth(
        self,
        name: str,
        kept: Sequence[str],
        without: Mapping[str, Sequence[Evaluation]],
        headline: Interval | None,
    ) -> dict[str, Any]:
        """How much slower the route is without one change; the intervals of all kept ones hold together at 95 %."""
        if len(kept) == 1:  # without it, it is the reference
            return {"worth": None if headline is None else headline.to_json(), "why": "SLOWER_WITHOUT"}
        builds = without[name]
        if builds[-1].outcome is not Outcome.OK:
            return {"worth": None, "why": builds[-1].outcome.name}
        interval = ratio_interval([log_ratio(e) for e in builds], 1 - 2 * ALPHA / len(kept))
        return {"worth": interval.to_json(), "why": "SLOWER_WITHOUT" if interval.low > 1 else "NOT_SHOWN_REMOVABLE"}


def _knobs(names: Removed) -> str:
    """One or two knobs by name, or how many they are."""
    return " and ".join(sorted(names)) if len(names) <= 2 else f"{len(names)} changes"


def _without(removed: Removed) -> str:
    return f"without {_knobs(removed)}" if removed else "the confirmed winner"
