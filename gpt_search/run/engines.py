"""Which routes give one engine: what is timed, what is taken over, what is checked, and how often fingerprints err.

Equal fingerprints that prove one engine (`Fingerprints.equal_is_same`): its routes share one sequence of rounds. A
later route extends it where the racing rule wants more rounds, and a route that is proposed again always does.
Failures are shared too; only the same route, proposed again, is given another chance.

Equal fingerprints that only suggest one (`equal_may_differ`): samples are taken over, never mixed, and every route
goes through the gate itself. A random tenth of these merges is timed all the same, as a spot check; where the two
differ (`measure.merging`), the fingerprint is not trusted any more: from then on its routes are timed by themselves.

Everything follows from the finished trials in their order, so a continued study goes on as it would have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from gpt_search.backends.base import Fingerprints
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.space import Codes
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.execution.evaluator import Earlier, Known, Reuse
from gpt_search.measure.intervals import Share, share
from gpt_search.measure.merging import Difference, difference
from gpt_search.measure.paired import section_log_ratios
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Field
from gpt_search.store.study import Row

CHECKED_SHARE = 0.1
"""Share of the merges that are timed all the same."""


class SpotCheck(NamedTuple):
    """A merge that was timed all the same. trial: that did; against: that began the samples it was compared with."""

    trial: int
    against: int
    fingerprint: str
    difference: Difference


class Engines:
    """What the finished trials of a study teach later ones. `learn` is called by one thread, `known` by any.

    race: what routes are raced against. between: relative standard deviation between two builds of one engine, to
    be set when trial 0 has told it. checks: the spot checks so far, in completion order.
    """

    def __init__(self, protocol: Protocol, kind: Fingerprints, seed: int, weights: tuple[float, ...] = (1.0,)) -> None:
        """kind: what the backend's fingerprints mean. seed: of the study. weights: of the workload's shape points."""
        self.race = Field(protocol, weights)
        self._statistic = protocol.statistic(weights)
        self._protocol = protocol
        self.between = 0.0
        self.checks: list[SpotCheck] = []
        self.kind = kind
        self._draws = Streams(seed_from(seed, "spot check"))
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, Evaluation]] = {}
        self._own: dict[tuple[str, bytes], tuple[int, Evaluation]] = {}  # of routes that were timed themselves
        self._settled: set[bytes] = set()
        self._distrusted: set[str] = set()
        self._extending: dict[int, int] = {}  # which trial adds to whose samples

    @property
    def distrusted(self) -> frozenset[str]:
        """Fingerprints that were found to stand for different engines."""
        return frozenset(self._distrusted)

    # -- asking --------------------------------------------------------------------------------
    def known(self, trial: int, codes: Codes) -> Known:
        """What the evaluator asks when the build of this trial's route has given a fingerprint."""
        key = codes.tobytes()

        def known(fingerprint: str) -> Earlier | None:
            with self._lock:
                if self.kind.equal_is_same:
                    return self._proven(trial, key, fingerprint)
                return self._suggested(trial, key, fingerprint) if self.kind.equal_may_differ else None

        return known

    def _proven(self, trial: int, key: bytes, fingerprint: str) -> Earlier | None:
        if fingerprint not in self._known:
            return None
        began, found = self._known[fingerprint]
        again = key in self._settled
        if found.failed:
            return None if again else Earlier(began, found, Reuse.TAKE)
        if not found.rounds or not self._may_extend(trial, began):
            return Earlier(began, found, Reuse.NOTHING if again else Reuse.TAKE)
        return Earlier(began, found, Reuse.ADD if again else Reuse.EXTEND)

    def _suggested(self, trial: int, key: bytes, fingerprint: str) -> Earlier | None:
        if key in self._settled:
            own = self._own.get((fingerprint, key))
            return Earlier(*own, Reuse.ADD) if own is not None and self._may_extend(trial, own[0]) else None
        if fingerprint not in self._known or fingerprint in self._distrusted:
            return None
        began, found = self._known[fingerprint]
        if not found.rounds or found.outcome is not Outcome.OK:
            return None
        checked = self._draws.trial(trial).random() < CHECKED_SHARE
        return Earlier(began, found, Reuse.CHECK if checked else Reuse.TAKE)

    def _may_extend(self, trial: int, began: int) -> bool:
        """Claims a sequence for this trial: two that add to one at a time would make two sequences of it.

        The reference's own has the log-ratio 0 by definition, and nothing to learn.
        """
        return began != 0 and self._extending.setdefault(began, trial) == trial

    # -- learning ------------------------------------------------------------------------------
    def learn(self, trial: int, codes: Codes, found: Evaluation) -> None:
        """Takes in a finished trial: of each engine, the evaluation that went furthest, and all of its samples."""
        key, fingerprint = codes.tobytes(), found.fingerprint
        with self._lock:
            self._extending = {began: by for began, by in self._extending.items() if by != trial}
            if found.latency_ms is not None or found.failed:
                self._settled.add(key)
            began = trial if found.timed_as is None else found.timed_as
            if found.own_rounds:
                self.race.learn(began, found.rounds, feasible=found.outcome is Outcome.OK)
            elif found.timed_as is not None:
                return
            if fingerprint is None:
                return
            if found.own_rounds:
                self._own[fingerprint, key] = began, found
            if found.checks is not None:
                self._compare(trial, fingerprint, found)
            before = self._known.get(fingerprint)
            longer = before is not None and found.own_rounds and before[0] == began
            if (longer and not found.failed) or _went(found) > (0 if before is None else _went(before[1])):
                self._known[fingerprint] = began, found

    def _compare(self, trial: int, fingerprint: str, found: Evaluation) -> None:
        against, other = self._known[fingerprint]
        assert against == found.checks
        first, second = (section_log_ratios(e.rounds, self._statistic) for e in (other, found))
        fixed = second[: max(self._protocol.min_rounds, self._protocol.build_rounds)]
        found_difference = difference(first, fixed, self.between, len(self.checks) + 1)
        check = SpotCheck(trial, against, fingerprint, found_difference)
        self.checks.append(check)
        if check.difference.significant:
            self._distrusted.add(fingerprint)


def _went(found: Evaluation) -> int:
    """How far an evaluation with a fingerprint went."""
    if found.failed:
        return 1
    return 3 if found.rounds else 2 if found.violation is not None else 0


# -- reporting -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class EngineCounts:
    """Engines against routes, without the reference's own trial.

    fingerprints: what equal ones mean, a name of `Fingerprints`. routes: distinct routes tried. engines: distinct
    fingerprints, the reference's included. timed: trials with a timing of their own. merged: trials that took over
    another trial's samples, or some of them. extended: those of them that added rounds. checked: merges that were
    timed all the same, and how many of those differ. doubtful: trials that hold another trial's samples by a
    fingerprint that was found to stand for different engines.
    least: median over the checks of the relative difference from which on it would have been seen, None without
    checks. rebuilt: pairs of builds of one route, and how many have different fingerprints.
    """

    fingerprints: str
    routes: int
    engines: int
    timed: int
    merged: int
    extended: int
    checked: Share
    doubtful: int
    least: float | None
    rebuilt: Share

    def to_json(self) -> dict[str, Any]:
        """A JSON-like form."""
        return {**self.__dict__, "checked": self.checked.to_json(), "rebuilt": self.rebuilt.to_json()}


def count_engines(
    rows: Iterable[Row], engines: Engines, rebuilds: Mapping[bytes, Sequence[str]], reference: Share | None
) -> EngineCounts:
    """Counts a study's finished trials, which `engines` has learnt.

    rebuilds: codes of a route, as bytes -> fingerprints of more builds of it, from confirmations. reference: what was
    found by building the reference again for its noise floor.
    """
    rows = list(rows)
    built: dict[bytes, list[str]] = {}
    for row in rows:
        if row.evaluation.fingerprint is not None:
            built.setdefault(row.codes.tobytes(), []).append(row.evaluation.fingerprint)
    engines_seen = {f for prints in built.values() for f in prints}
    pairs = different = 0
    for key in dict.fromkeys([*built, *rebuilds]):
        prints = [*built.get(key, []), *rebuilds.get(key, [])]
        # Pairs that share no build are independent of each other.
        for one, other in zip(prints[::2], prints[1::2], strict=False):
            pairs, different = pairs + 1, different + (one != other)
    if reference is not None:
        pairs, different = pairs + reference.tried, different + reference.events
    tried = [row.evaluation for row in rows if row.trial != 0]
    merged = [e for e in tried if e.timed_as is not None]
    false = sum(check.difference.significant for check in engines.checks)
    return EngineCounts(
        fingerprints=engines.kind.name,
        routes=len({row.codes.tobytes() for row in rows if row.trial != 0}),
        engines=len(engines_seen),
        timed=sum(bool(e.own_rounds) or (e.latency_ms is not None and e.timed_as is None) for e in tried),
        merged=len(merged),
        extended=sum(bool(e.own_rounds) for e in merged),
        checked=share(false, len(engines.checks)),
        doubtful=sum(e.fingerprint in engines.distrusted and not e.own_rounds for e in merged),
        least=median(c.difference.least for c in engines.checks) if engines.checks else None,
        rebuilt=share(different, pairs),
    )
