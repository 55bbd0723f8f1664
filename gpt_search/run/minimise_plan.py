"""How a route is minimised: the margin, the builds of a test, how many that makes, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.measure.equivalence import builds_needed, detectable
from gpt_search.measure.intervals import MIN_BUILDS
from gpt_search.measure.variance import Components
from gpt_search.run.noise import floor_key
from gpt_search.run.rebuild import log_ratio
from gpt_search.run.reduction import reduce_items, same_engine
from gpt_search.run.setup import Prepared
from gpt_search.store.floors import find_floor
from gpt_search.store.study import StudyStore

MOST_REBUILDS = 40
"""Pairs of builds of one test that are made without being asked for."""
HEADLINE_REBUILDS = 7
FEWEST_TO_STOP = 3
"""Pairs of builds after which a test may end for being slower."""
FINALS = 3
"""Routes that may get a test that ships them."""


@dataclass(frozen=True)
class Cap:
    """The most that may be spent. builds: a pair of builds counts as one; seconds: of wall time. None: no limit."""

    builds: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        given = [f"{self.builds} builds"] if self.builds is not None else []
        given += [f"{self.seconds:g} seconds"] if self.seconds is not None else []
        return " and ".join(given)


class BudgetSpent(Exception):
    """The next test does not fit any more, beside what is needed to confirm what was found so far."""


@dataclass(frozen=True)
class Plan:
    """How a route is minimised.

    margin: largest log-ratio that is given away in all. rule: where it comes from, in words. spread: standard
    deviation of one pair's log-ratio, from the confirmation. rebuilds: pairs of builds of one test; None
    where more than `MOST_REBUILDS` would be needed: then only changes that leave the engine as it is are removed.
    needed: how many would be, None where even 500 are too few. headline: pairs of builds of each interval, where the
    budget allows; `least` in any case.
    """

    margin: float
    rule: str
    spread: float
    rebuilds: int | None
    needed: int | None
    headline: int

    @property
    def least(self) -> int:
        """Pairs of builds of the headline where the budget is short."""
        return min(self.headline, HEADLINE_REBUILDS)

    @property
    def reserve(self) -> int:
        """Builds that no test may use up: the one that ships what was found, and the headline."""
        return 2 * (self.rebuilds or 0) + self.least

    def builds(self, changes: int, exact: bool) -> tuple[int, int]:
        """About the fewest and the most builds that this takes. exact: whether equal engines are known as such.

        A pair counts as one build. The fewest: where the engines of all but one change are the winner's own, or all
        tests but those of one change end early; the most: whatever number of changes counts, spread evenly.
        """
        few, many = planned_tests(changes)
        same = planned_engines(changes) if exact else (0, 0)
        rebuilds = self.rebuilds or 0
        low = same[0] if exact else few * min(FEWEST_TO_STOP, rebuilds)
        high = same[1] + many * (rebuilds + exact) * bool(rebuilds)
        return low + self.headline, high + 2 * FINALS * rebuilds + self.headline * (1 + changes * (changes > 1))


def planned_tests(changes: int) -> tuple[int, int]:
    """The fewest and the most sets of changes that are tried, over how many of them count."""
    return _planned(changes, lambda items, fixed, ask: reduce_items(items, lambda removed: not ask(removed) & fixed))


def planned_engines(changes: int) -> tuple[int, int]:
    """The fewest and the most builds that tell which changes leave the engine as it is, over how many do not."""
    return _planned(changes, lambda items, fixed, ask: same_engine(items, lambda removed: ask(removed) & fixed))


_Set = frozenset[int]


def _planned(changes: int, run: Callable[[list[int], set[int], Callable[[_Set], _Set]], object]) -> tuple[int, int]:
    """The fewest and the most sets that `run` asks for, each counted once."""
    items = list(range(changes))
    counts = []
    for needed in sorted({1, 2, changes // 4, changes // 2, changes}):
        if not 1 <= needed <= changes:
            continue
        asked: set[_Set] = set()

        def ask(removed: _Set, asked: set[_Set] = asked) -> _Set:
            asked.add(removed)
            return removed

        run(items, {i * changes // needed for i in range(needed)}, ask)
        counts.append(len(asked))
    return min(counts, default=0), max(counts, default=0)


def stored_spread(store: StudyStore, prepared: Prepared) -> float | None:
    """Standard deviation of one pair's log-ratio, from the floor that `gpt-search noise` stored; None without one."""
    floor = find_floor(store.location, floor_key(prepared))
    if floor is None:
        return None
    samples = prepared.protocol.build_rounds / int(floor["min_rounds"])
    return math.sqrt(Components.from_json(floor["components"]).of_mean(1, 1, samples))


def plan_for(
    confirmed: Mapping[str, Any], margin: float | None, rebuilds: int | None, stored: float | None = None
) -> Plan:
    """The plan for a confirmed winner. margin, rebuilds: as given, None for the default. stored: `stored_spread`.

    Raises InputError where the confirmation has too few builds to know how much they differ.
    """
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
