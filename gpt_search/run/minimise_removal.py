"""Minimising, the building part: what can be removed, what may be shipped, and what is left confirmed again.

The steps are those that `run.minimise` names. A route is named by the knobs that are taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gpt_search.backends.base import Fingerprints
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.measure.equivalence import ALPHA, Equivalence, NonInferiority, non_inferiority
from gpt_search.run.kept import Keeper
from gpt_search.run.minimise_plan import FEWEST_TO_STOP, BudgetSpent, Cap, Plan
from gpt_search.run.rebuild import EngineBuilds, every_round, log_ratio, rebuild_pair
from gpt_search.run.reduction import reduce_items, same_engine
from gpt_search.run.setup import Prepared

SHARES = (0.5, 0.25, 0.25)
"""What each test that may ship a route has of the level."""

Removed = frozenset[str]
Step = Callable[[int, int, str], None]


class Final(NamedTuple):
    """A test that may ship a route. refused: why it did not, None where it did."""

    removed: Removed
    builds: list[Evaluation]
    found: NonInferiority | None
    refused: str | None

    def to_json(self, changes: Sequence[str]) -> dict[str, Any]:
        """As stored. changes: the winner's, in their order."""
        return {
            "without": [n for n in changes if n in self.removed],
            "ratio": None if self.found is None else self.found.interval.to_json(),
            "refused": self.refused,
            "builds": [e.to_json() for e in self.builds],
        }


class Builder:
    """Makes the builds of one minimisation, counts them, and knows what is left of the budget."""

    def __init__(
        self,
        prepared: Prepared,
        confirmed: Mapping[str, Any],
        plan: Plan,
        number: int,
        step: Step | None = None,
        cap: Cap | None = None,
        keeper: Keeper | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InputError where not even the headline fits into the cap."""
        self.prepared, self.confirmed, self.plan, self.number, self.step = prepared, confirmed, plan, number, step
        self.cap, self.keeper, self.clock = cap or Cap(), keeper, clock
        self.protocol = every_round(prepared.protocol)
        self.winner = Route.parse(confirmed["winner"]["route"])
        self.changes = self.winner.changes(prepared.space.reference)
        self.exact = prepared.description.fingerprint is Fingerprints.EXACT
        self.planned = plan.builds(len(self.changes), self.exact)
        self.builds = 0
        self.engine_builds = 0
        self._engines = EngineBuilds(prepared)
        self._began = clock()
        self._pair_s = [sum(e["cost_s"].values()) for e in confirmed["stage_2"]]
        self._engine_s = [e["cost_s"].get("build", 0.0) for e in confirmed["stage_2"]]
        least = plan.least + self.exact
        if self.cap.builds is not None and self.cap.builds < least:
            raise InputError(f"--builds {self.cap.builds}: to confirm what is left takes {least} builds; give it more")

    def route(self, removed: Removed) -> Route:
        """The winner with these knobs at their defaults."""
        reference = self.prepared.space.reference
        return Route(tuple((n, reference[n] if n in removed else v) for n, v in self.winner.items_in_order))

    def room(self) -> float:
        """Pairs of builds that the budget still allows; by seconds, at the mean time of a pair so far."""
        left = float("inf") if self.cap.builds is None else float(self.cap.builds - self.builds)
        if self.cap.seconds is not None and (pair_s := fmean(self._pair_s)) > 0:
            left = min(left, (self.cap.seconds - (self.clock() - self._began)) / pair_s)
        return left

    def afford(self, pairs: int, reserve: int) -> None:
        """Raises BudgetSpent where so many pairs would eat into the reserve."""
        if self.room() < pairs + reserve:
            raise BudgetSpent

    def affords_engine(self, reserve: int, *, free: bool = False) -> bool:
        """Whether one more build for its fingerprint, and another one after it, leave the reserve of pairs alone.

        free: it costs no timing to use what it tells, so half of the seconds are for such builds in any case.
        """
        if self.cap.builds is not None and self.cap.builds - self.builds < 2 + reserve:
            return False
        if self.cap.seconds is None:
            return True
        spent = self.clock() - self._began + 2 * fmean(self._engine_s)
        most = self.cap.seconds - reserve * fmean(self._pair_s)
        return spent <= (max(most, self.cap.seconds / 2) if free else most)

    def afford_engine(self, reserve: int) -> None:
        """Raises BudgetSpent where one more build for its fingerprint would eat into the reserve."""
        if not self.affords_engine(reserve):
            raise BudgetSpent

    def engine(self, removed: Removed) -> Evaluation:
        """One build for its fingerprint."""
        self._tell(without(removed))
        self.engine_builds += 1
        began = self.clock()
        found = self._engines.build(self.route(removed), self._seed("engine", removed, 0))
        self._engine_s.append(self.clock() - began)
        return found

    def close(self) -> None:
        """Ends the process that makes the builds which are not timed."""
        self._engines.close()

    def _tell(self, what: str) -> None:
        if self.step is not None:
            most = self.planned[1] if self.cap.builds is None else min(self.planned[1], self.cap.builds)
            self.step(self.builds, max(most, self.builds + 1), what)
        self.builds += 1

    def _seed(self, stage: str, removed: Removed, i: int) -> int:
        return seed_from(self.prepared.seed, "minimise", self.number, stage, *sorted(removed), i)

    def build(
        self,
        removed: Removed,
        stage: str,
        i: int,
        what: str,
        *,
        against: Removed = frozenset(),
        reference: bool = False,
    ) -> Evaluation:
        """One pair of builds, against another route or the reference."""
        self._engines.close()
        self._tell(what)
        other = None if reference else self.route(against)
        latency_ms = self.confirmed["reference_ms" if reference else "latency_ms"]
        seed = self._seed(stage, removed, i)
        keep = self.keeper.keep if self.keeper is not None and reference else None  # only the headline's are shipped
        began = self.clock()
        found = rebuild_pair(
            self.prepared, self.protocol, self.route(removed), latency_ms, seed, against=other, keep=keep
        )
        self._pair_s.append(self.clock() - began)
        return found


class Removal:
    """Steps 1 to 3. After `run`: same, removed, shortest (what the tests of step 2 let go), finals, steps.

    not_examined: kept changes whose removal alone was not tried, because the budget was spent.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder, self.plan = builder, builder.plan
        self.same: Removed = frozenset()
        self.removed: Removed = frozenset()
        self.shortest: Removed = frozenset()
        self.finals: list[Final] = []
        self.steps: list[dict[str, Any]] = []
        self.stopped = False
        self._tried: set[Removed] = set()
        self._engines: dict[Removed, Evaluation] = {}
        self._results: dict[str, bool] = {}
        self._nominated: list[Removed] = []

    def run(self) -> None:
        """All three steps. Raises InputError where the winner itself fails when built again."""
        builder, plan = self.builder, self.plan
        try:
            if builder.exact:
                self._same_engine()
            self.shortest = self.same
            if plan.rebuilds is not None and not self.stopped:
                names = [n for n in builder.changes if n not in self.same]
                if builder.exact:
                    self._results[self._engine(self.same).fingerprint or ""] = True
                base = self.same
                reduce_items(names, lambda removed: self._not_slower(base | removed, names))
        except BudgetSpent:
            self.stopped = True
        if self._nominated:
            self.shortest = self._nominated[-1]
        self.removed = self.same
        for removed, share in zip(reversed(self._nominated), SHARES, strict=False):
            if self.finals and builder.room() < plan.reserve:
                self.stopped = True
                break
            self.finals.append(self._final(removed, share * ALPHA))
            if self.finals[-1].refused is None:
                self.removed = removed
                break

    @property
    def not_examined(self) -> list[str]:
        """Kept changes that nobody tried to remove alone; empty unless the budget was spent."""
        if not self.stopped:
            return []
        kept = [n for n in self.builder.changes if n not in self.removed]
        alone = {next(iter(left)) for tried in self._tried if len(left := tried - self.removed) == 1}
        return [n for n in kept if n not in alone and len(kept) > 1]

    # -- 1. the same engine -----------------------------------------------------------------------
    def _same_engine(self) -> None:
        whole = self._engine(frozenset())
        if whole.outcome is not Outcome.OK or whole.fingerprint is None:
            words = " ".join((whole.message or whole.outcome.explanation).split())
            raise InputError(f"the confirmed route failed when built again ({whole.outcome.name}): {words}")

        def built(removed: Removed) -> str | None:
            found = self._engine(removed)
            return found.fingerprint if found.outcome is Outcome.OK else None

        def engine(removed: Removed) -> str | None:
            if removed not in self._engines and not self.builder.affords_engine(self.plan.least, free=True):
                self.stopped = True
                return None
            return built(removed)

        last = True

        def checked(removed: Removed) -> str | None:
            # Where the budget ends the search, one more build says whether all that seemed to do nothing can go.
            nonlocal last
            one = self.stopped and last and len(self._engines) > 1
            last = last and not self.stopped
            return built(removed) if one else engine(removed)

        self.same = same_engine(list(self.builder.changes), engine, checked)

    def _engine(self, removed: Removed) -> Evaluation:
        """The route built once, for its fingerprint."""
        if removed not in self._engines:
            self._engines[removed] = self.builder.engine(removed)
        return self._engines[removed]

    # -- 2. not slower ----------------------------------------------------------------------------
    def _not_slower(self, removed: Removed, tried: Sequence[str]) -> bool:
        """Whether the route without these is shown to be at most the margin slower than the winner."""
        assert self.plan.rebuilds is not None
        taken = {"without": [n for n in tried if n in removed]}
        fingerprint = None
        if self.builder.exact:
            if removed not in self._engines:
                self.builder.afford_engine(self.plan.reserve if self._nominated else self.plan.least)
            engine = self._engine(removed)
            fingerprint = engine.fingerprint
            if engine.outcome is not Outcome.OK or fingerprint is None:
                self._tried.add(removed)
                self.steps.append(taken | {"result": engine.outcome.name, "builds": []})
                return False
            if fingerprint in self._results:
                self._tried.add(removed)
                self.steps.append(taken | {"result": "SAME_ENGINE_AS_BEFORE", "builds": []})
                if self._results[fingerprint]:
                    self._nominated.append(removed)
                return self._results[fingerprint]
        self.builder.afford(self.plan.rebuilds, self.plan.reserve)
        self._tried.add(removed)
        builds, found = self._compared(removed, "test", self.plan.rebuilds, ALPHA, without(removed))
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
        self, removed: Removed, stage: str, count: int, alpha: float, what: str
    ) -> tuple[list[Evaluation], NonInferiority | None]:
        """Fresh pairs of the route and the winner's engine, and the test on them.

        It ends early where it cannot succeed any more: for being slower, which never calls a slower route fast
        enough, so it costs no level.
        """
        builds: list[Evaluation] = []
        found: NonInferiority | None = None
        for i in range(count):
            builds.append(self.builder.build(removed, stage, i, what, against=self.same))
            if builds[-1].outcome is not Outcome.OK:
                break
            found = non_inferiority([log_ratio(e) for e in builds], self.plan.margin, alpha)
            if len(builds) >= FEWEST_TO_STOP and found.result is Equivalence.SLOWER:
                break
        return builds, found

    # -- 3. the tests that ship -------------------------------------------------------------------
    def _final(self, removed: Removed, alpha: float) -> Final:
        assert self.plan.rebuilds is not None
        builds, found = self._compared(removed, "final", 2 * self.plan.rebuilds, alpha, "the minimised route")
        if builds[-1].outcome is not Outcome.OK or found is None:
            words = " ".join((builds[-1].message or builds[-1].outcome.explanation).split())
            return Final(removed, builds, found, f"failed when built again ({builds[-1].outcome.name}): {words}")
        if found.result is Equivalence.NOT_SLOWER:
            return Final(removed, builds, found, None)
        return Final(removed, builds, found, f"was, on fresh builds, {found.result.explanation}")


# -- 4. what is left ------------------------------------------------------------------------------
def confirmed_again(
    builder: Builder, removed: Removed, *, stopped: bool
) -> tuple[list[Evaluation], dict[str, list[Evaluation]]]:
    """Fresh pairs against the reference, and of the route without each kept change, in random order.

    The headline is made in any case; of the kept changes, as many as the budget allows, in their order. stopped: by the
    budget: then each interval rests on as few pairs as is usual.
    """
    count = builder.plan.least if stopped or builder.room() < builder.plan.headline else builder.plan.headline
    kept = [n for n in builder.changes if n not in removed]
    if len(kept) == 1:
        kept = []  # without it, it is the reference
    room = builder.room() - count
    measured = [n for i, n in enumerate(kept) if (i + 1) * count <= room]
    headline: list[Evaluation] = []
    worths: dict[str, list[Evaluation]] = {n: [] for n in measured}
    order = [name for name in (None, *measured) for _ in range(count)]
    failed: set[str | None] = set()
    streams = Streams(builder.prepared.seed)
    for i in streams.trial(builder.number, "minimise").permutation(len(order)).tolist():
        name = order[i]
        if name in failed:
            continue
        if name is None:
            what = "the minimised route against the reference"
            found = builder.build(removed, "headline", i, what, reference=True)
            headline.append(found)
            if builder.keeper is not None:
                builder.keeper.shrink(headline)
        else:
            found = builder.build(removed | {name}, "worth", i, f"without {name}", against=removed)
            worths[name].append(found)
        if found.outcome is not Outcome.OK:
            failed.add(name)
    return headline, worths


def knobs(names: Removed | Sequence[str]) -> str:
    """One or two knobs by name, or how many they are."""
    return " and ".join(sorted(names)) if len(names) <= 2 else f"{len(names)} changes"


def without(removed: Removed) -> str:
    """What is being built."""
    return f"without {knobs(removed)}" if removed else "the confirmed winner"
