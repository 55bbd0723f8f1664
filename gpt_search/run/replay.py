"""Replay: a table stands in for the compiler, by the rules of a live study.

Each trial draws rounds from the recorded ones, is raced as a live trial would be, shares samples with trials of the
same engine as a live trial would, fails as the record failed, and is charged what the record cost. Truth and replay
rest on disjoint halves of the rounds (`store.tables.Table`): a route that looks fast in the replayed half by luck is
not fast in the truth.

What a replay cannot know: rounds that were not recorded. A sequence of rounds is drawn without replacement, and ends
where the recorded ones end; the halves share the build that they were recorded on. A round is a section here
(`measure.paired`): what gives one log-ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes
from gpt_search.execution.evaluator import Earlier, Reuse
from gpt_search.measure.paired import log_ratio_of
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Decision, decide_on
from gpt_search.run.engines import Engines
from gpt_search.run.restrict import Restricted
from gpt_search.search.simulate import SimulationResult, simulate
from gpt_search.search.strategy import Strategy
from gpt_search.store.table_file import protocol_of
from gpt_search.store.tables import Table

if TYPE_CHECKING:
    from gpt_search.run.surrogate import Surrogate

Floats = NDArray[np.float64]

RESTRICT, REFUSE, SURROGATE = "restrict", "refuse", "surrogate"
POLICIES = {
    RESTRICT: "strategies search the recorded routes alone: a proposal outside becomes the nearest untried one",
    REFUSE: "a route that was not recorded counts as refused by the compiler: for spaces with constraints",
    SURROGATE: "a model that is fitted to the records answers for every route",
}
"""What may stand for the routes that a table does not hold, by name."""

_KILLS = (Outcome.CRASH, Outcome.TIMEOUT, Outcome.MEMORY)


class Replay:
    """A table as a task: what strategies are compared on.

    space: the table's. best: true log-ratio of the best feasible route. reference_ms: latency of the reference route.
    between: standard deviation of a route's log-ratio from build to build that trials are given. label: what every
    output must say about where the values come from.
    """

    def __init__(self, table: Table, policy: str | None = None, rounds: int | None = None) -> None:
        """policy: one of `POLICIES`, needed where the table does not hold every route of its space.

        rounds: how many each timing draws; None for as many as the racing rule of the recorded protocol asks for.
        Raises InputError for an incomplete table without a policy, one without a usable reference, an unknown policy.
        """
        if policy is not None and policy not in POLICIES:
            raise InputError(
                f"unknown policy {policy!r}{did_you_mean(policy, POLICIES)}; there are {', '.join(POLICIES)}"
            )
        missing = table.space.size - len(table)
        if missing and policy is None:
            raise InputError(
                f"{table.path} lacks {missing:,} of {table.space.size:,} routes of its space; declare what stands for "
                "them: " + "; ".join(f"{name} ({text})" for name, text in POLICIES.items())
            )
        if policy == SURROGATE and not missing:
            raise InputError(f"{table.path} holds every route of its space: leave the policy {SURROGATE!r} out")
        if rounds is not None and rounds < 2:
            raise InputError(f"a replay draws 2 rounds or more of each timing, not {rounds}")
        table.reference  # noqa: B018  raises where there is none
        self.table, self.policy, self.fixed_rounds = table, policy if missing else None, rounds
        self.space = table.space
        self.reference_ms = table.reference_ms
        self.protocol = protocol_of(table.settings)
        effect = table.between_builds
        self.between = 0.0 if effect is None else effect.deviation
        self.kind = table.fingerprints
        self.time_infeasible = bool(table.settings.get("time_infeasible"))
        self._pools: dict[tuple[int, ...], Floats] = {}
        self._times: dict[int, tuple[float, float]] = {}
        self._costs = {name: column for name, column in table.columns.cost.items() if name != "wait"}
        started = self._costs.get("start", np.zeros(0))
        self.start_s = float(np.median(started[started > 0])) if (started > 0).any() else 0.0
        self.surrogate: Surrogate | None = None
        if self.policy == SURROGATE:
            from gpt_search.run.surrogate import Surrogate as Fitted

            self.surrogate = Fitted(table, self.timing_cost)

    # -- what is true --------------------------------------------------------------------------
    def true_log_ratio(self, codes: Codes) -> Floats:
        """log(latency / reference latency) of routes, float64 (n,), NaN where infeasible or unknown.

        codes: int16 (n, d).
        """
        if self.surrogate is not None:
            return self.surrogate.true_log_ratio(codes)
        rows = [self.table.find(one) for one in codes]
        truth = self.table.truth
        return np.array([math.nan if row is None else truth[row] for row in rows], np.float64)

    @property
    def best(self) -> float:
        """The true log-ratio of the best feasible route: of the table, or of the surrogate where `best_known`."""
        if self.surrogate is not None:
            return self.surrogate.best
        return float(self.table.truth[self.table.best])

    @property
    def best_known(self) -> bool:
        """True when no route that a strategy may be told of is better than `best`."""
        return self.surrogate is None or self.surrogate.enumerated

    @property
    def floor(self) -> float:
        """Half the width of the 95 % interval of a route's true log-ratio, by rounds and builds: median over routes."""
        error = self.table.truth_error
        error = error[np.isfinite(error) & (error > 0)]
        return 1.96 * math.hypot(float(np.median(error)) if error.size else 0.0, self.between)

    @property
    def noise(self) -> float:
        """Relative standard deviation of one value: what a strategy is told as `history.noise`."""
        rounds = self.table.all_rounds(int(self.table.first[self.table.reference]))
        found = self.table.estimate(rounds)
        return math.hypot(found.error * math.sqrt(found.rounds / self.protocol.min_rounds), self.between)

    @property
    def builds_behind(self) -> int:
        """How many independent builds lie behind the values: those that were timed themselves."""
        start = self.table.columns.start
        return int((np.diff(start) > 0).sum())

    @property
    def label(self) -> str:
        """One line on where the values come from."""
        table = self.table
        what = f"{len(table):,} of {table.space.size:,} routes, {self.builds_behind:,} timed builds"
        if self.policy is not None:
            what += f"; {self.policy}: {POLICIES[self.policy]}"
        if self.surrogate is not None:
            what += f" ({self.surrogate.quality})"
        if table.between_builds is None:
            what += "; no route was built twice, so builds do not differ"
        if not table.paired:
            what += "; imported: samples without a paired reference, one process each"
        return f"replay of {table.name} ({what})"

    # -- running -------------------------------------------------------------------------------
    def study(self, seed: int = 0) -> ReplayStudy:
        """One study's `measure`, for `simulate`: it remembers which engines the study has seen. seed: of the study."""
        return ReplayStudy(self, seed)

    def strategy(self, strategy: Strategy) -> Strategy:
        """The strategy as it searches this table: itself, or where the policy is `restrict` confined to its routes."""
        return Restricted(strategy, self.table.codes) if self.policy == RESTRICT else strategy

    def simulate(
        self,
        strategy: Strategy | str,
        trials: int | None = 200,
        seed: int = 0,
        *,
        builds: int | None = None,
        seconds: float | None = None,
    ) -> SimulationResult:
        """Runs a strategy on the table. Arguments as `simulate` takes them. Raises as that does."""
        if isinstance(strategy, str):
            from gpt_search.search.discovery import load_strategy

            strategy = load_strategy(strategy)
        chosen, measure = self.strategy(strategy), self.study(seed).measure
        return simulate(self.space, chosen, measure, trials, seed, builds=builds, seconds=seconds, noise=self.noise)

    # -- inside --------------------------------------------------------------------------------
    def pool(self, row: int) -> Floats:
        """The rounds that a trial of a route draws from: of all its builds, each moved to their common centre.

        What builds differ by comes back as the build effect of a trial; it would count twice otherwise.
        """
        records = tuple(self.table.timed(row))
        found = self._pools.get(records)
        if found is None:
            halves = [self.table.replay_rounds(r) for r in records]
            centres = [self.table.estimate(h).log_ratio for h in halves]
            centre = float(np.mean(centres)) if centres else 0.0
            moved = [h - c + centre for h, c in zip(halves, centres, strict=True)]
            found = self._pools[records] = np.concatenate(moved) if moved else np.empty(0)
        return found

    def cost(self, record: int, phase: str) -> float:
        """Seconds of a phase of a record, or of the one that it was taken from."""
        column = self._costs.get(phase)
        if column is None:
            return 0.0
        own = float(column[record])
        own = float(column[self.table.columns.source[record]]) if math.isnan(own) else own
        return 0.0 if math.isnan(own) else own

    def timing_cost(self, record: int, rounds: int) -> float:
        """Seconds of timing that many rounds: warm-up, and each round as long as the recorded ones were apart."""
        source = int(self.table.columns.source[record])
        if source not in self._times:
            total, data = self.cost(source, "time"), self.table.columns.bodies[source].get("rounds", {})
            n, started = len(data.get("log_ratio", ())), data.get("started_s", ())
            each = total / n if n else 0.0
            if len(started) > 1:
                each = min(each, (started[-1] - started[0]) / (n - 1))
            self._times[source] = total - n * each, each
        base, each = self._times[source]
        return base + rounds * each


@dataclass
class _Sequence:
    """The rounds that a trial began to draw. order: of the pool. used: how many were drawn."""

    pool: Floats
    order: NDArray[np.intp]
    used: int = 0

    @property
    def left(self) -> int:
        return len(self.order) - self.used


class ReplayStudy:
    """One simulated study on a table. `measure` is called once for each trial, in order, the reference first."""

    def __init__(self, replay: Replay, seed: int) -> None:
        """seed: of the study: which merges are checked follows from it."""
        self.replay = replay
        # A drawn section is written as one round of one sample a side: its median is its log-ratio.
        plain = replace(replay.protocol, timing="median", streams=1)
        self._engines = Engines(plain, replay.kind, seed)
        self._engines.between = replay.between
        self._sequences: dict[int, _Sequence] = {}
        self._trial = 0
        self._cold = True  # whether the next trial has to start a worker

    def measure(self, codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        """What a live study would have been told, as `simulate` wants it.

        Raises InputError for a route that was not recorded, where no policy says what stands for it.
        """
        trial = self._trial
        self._trial += 1
        cost: dict[str, float] = {"start": self.replay.start_s if self._cold else 0.0}
        self._cold = False
        if self.replay.surrogate is None:
            found = self._recorded(trial, codes, rng, until, cost)
        else:
            found = self._modelled(trial, codes, rng, until, cost)
        found = replace(found, cost_s=cost)
        self._engines.learn(trial, codes, found)
        return found.observation()

    def _failed(self, outcome: Outcome, until: Phase, **facts: Any) -> Evaluation:
        """A failure that happened in this trial itself."""
        self._cold = outcome in _KILLS
        return Evaluation(outcome, until, **facts)

    def _recorded(
        self, trial: int, codes: Codes, rng: np.random.Generator, until: Phase, cost: dict[str, float]
    ) -> Evaluation:
        """What the table says of a route. cost: is filled in."""
        replay = self.replay
        row = replay.table.find(codes)
        if row is None:
            if replay.policy != REFUSE:
                raise InputError(f"{replay.table.path} does not hold {replay.space.route(codes)}")
            cost["build"] = 0.0
            return Evaluation(Outcome.BUILD_ERROR, until, message="not in the table")
        records = replay.table.records(row)
        record = records[int(rng.integers(len(records)))] if len(records) > 1 else records[0]
        columns = replay.table.columns
        outcome = replay.table.outcome(record)
        failed_in = replay.table.failed_in(record) if outcome not in (Outcome.OK, Outcome.ACCURACY) else None
        body = columns.bodies[record]
        number = int(columns.fingerprint[record])
        fingerprint = columns.fingerprints[number] if number >= 0 else None
        cost["build"] = replay.cost(record, "build")
        facts: dict[str, Any] = {"fingerprint": fingerprint}
        if outcome is Outcome.LIMIT:
            facts["excess"] = {str(k): float(v) for k, v in body.get("excess", {}).items()}
        if failed_in is Phase.BUILD:
            return self._failed(outcome, until, **facts)
        if until is Phase.BUILD:
            return Evaluation(Outcome.OK, until, **facts)
        known = self._engines.known(trial, codes) if trial else None
        earlier = known(fingerprint) if known is not None and fingerprint is not None else None
        same = earlier.found if earlier is not None and replay.kind.equal_is_same else None
        if same is not None and same.failed:
            return Evaluation(outcome, until, **facts)
        if same is None or same.violation is None:
            cost["gate"] = replay.cost(record, "gate")
            if failed_in is Phase.GATE:
                return self._failed(outcome, until, **facts)
        violation = float(columns.violation[record])
        facts["violation"] = None if math.isnan(violation) else violation
        pool = replay.pool(row)
        if until is Phase.GATE:
            return Evaluation(Outcome.OK if failed_in is not None else outcome, until, **facts)
        if failed_in is Phase.TIME:
            cost["time"] = replay.cost(record, "time")
            return self._failed(outcome, until, **facts)
        if not pool.size or (outcome is Outcome.ACCURACY and not replay.time_infeasible):
            return Evaluation(outcome, until, **facts)
        samples, drawn = self._samples(trial, rng, pool, earlier)
        if drawn:
            cost["time"] = replay.timing_cost(record, drawn)
        return Evaluation(outcome, until, **facts, **samples)

    def _modelled(
        self, trial: int, codes: Codes, rng: np.random.Generator, until: Phase, cost: dict[str, float]
    ) -> Evaluation:
        """What the surrogate says of a route. cost: is filled in."""
        model = self.replay.surrogate
        assert model is not None
        guess = model.predict(codes)
        cost["build"] = guess.build_s
        if guess.failed_in is Phase.BUILD:
            return self._failed(guess.outcome, until)
        if until is Phase.BUILD:
            return Evaluation(Outcome.OK, until)
        cost["gate"] = guess.gate_s
        if guess.outcome is Outcome.ACCURACY:
            return Evaluation(guess.outcome, until, violation=guess.violation)
        if guess.failed_in is Phase.GATE:
            return self._failed(guess.outcome, until)
        if until is Phase.GATE:
            return Evaluation(Outcome.OK, until, violation=guess.violation)
        if guess.failed_in is Phase.TIME:
            cost["time"] = guess.round_s
            return self._failed(guess.outcome, until, violation=guess.violation)
        samples, drawn = self._samples(trial, rng, guess.log_ratio + model.residuals, None)
        cost["time"] = guess.round_s * drawn
        return Evaluation(Outcome.OK, until, violation=guess.violation, **samples)

    # -- timing --------------------------------------------------------------------------------
    def _samples(
        self, trial: int, rng: np.random.Generator, pool: Floats, earlier: Earlier | None
    ) -> tuple[dict[str, Any], int]:
        """The rounds that stand for the trial, whose they are and what they say; how many it took itself.

        The rules are those of `Evaluator._samples`.
        """
        protocol = self.replay.protocol
        if earlier is None or not earlier.found.rounds or earlier.reuse in (Reuse.NOTHING, Reuse.CHECK):
            self._sequences[trial] = _Sequence(pool, rng.permutation(len(pool)))
            if earlier is not None and earlier.reuse is Reuse.CHECK:
                fewest = max(protocol.min_rounds, protocol.build_rounds)
                longer = replace(protocol, min_rounds=fewest, max_rounds=max(fewest, protocol.max_rounds))
                rounds, raced = self._draw(trial, trial, rng, longer, ())
                return self._value(rounds, trial) | {"raced": raced, "checks": earlier.trial}, len(rounds)
            rounds, raced = self._draw(trial, trial, rng, protocol, ())
            return self._value(rounds, trial) | {"raced": raced}, len(rounds)
        found, began = earlier.found, earlier.trial
        shared: dict[str, Any] = {"timed_as": began, "borrowed": len(found.rounds)}
        log_ratios = [log_ratio_of(r) for r in found.rounds]
        sequence = self._sequences.get(began)
        enough = (
            sequence is None
            or not sequence.left
            or earlier.reuse is Reuse.TAKE
            or (
                earlier.reuse is Reuse.EXTEND
                and (
                    self.replay.fixed_rounds is not None
                    or decide_on(log_ratios, self._engines.race.best, protocol, began) is not Decision.CONTINUE
                )
            )
        )
        if not enough:
            afresh = earlier.reuse is Reuse.ADD
            more, raced = self._draw(trial, began, rng, protocol, log_ratios, afresh=afresh)
            return self._value(found.rounds + more, trial) | shared | {"raced": raced}, len(more)
        names = ("rounds", "latency_ms", "error_ms", "log_ratio", "log_ratio_error", "raced")
        return shared | {name: getattr(found, name) for name in names}, 0

    def _draw(
        self,
        trial: int,
        began: int,
        rng: np.random.Generator,
        protocol: Protocol,
        earlier: Sequence[float],
        *,
        afresh: bool = True,
    ) -> tuple[tuple[Round, ...], bool]:
        """New rounds of a sequence, each off by what this trial's build is off; and whether the race was lost."""
        sequence = self._sequences[began]
        effect = self.replay.between * float(rng.standard_normal())
        log_ratios, uncounted = list(earlier), len(earlier) if afresh else 0
        drawn: list[Round] = []
        best = self._engines.race.best if trial else None
        side = self.replay.reference_ms
        decision = Decision.CONTINUE
        while sequence.left and decision is Decision.CONTINUE:
            log_ratio = float(sequence.pool[sequence.order[sequence.used]]) + effect
            sequence.used += 1
            drawn.append(Round((side * math.exp(log_ratio),), (side,)))
            log_ratios.append(log_ratio)
            if self.replay.fixed_rounds is None:
                decision = decide_on(log_ratios, best, protocol, max(1, began), uncounted)
            elif len(drawn) >= self.replay.fixed_rounds:
                break
        return tuple(drawn), decision is Decision.CLEARLY_WORSE

    def _value(self, rounds: Sequence[Round], trial: int) -> dict[str, Any]:
        estimate = self.replay.table.estimate(np.array([log_ratio_of(r) for r in rounds]))
        log_ratio = estimate.log_ratio if trial else 0.0
        latency = math.exp(log_ratio) * self.replay.reference_ms
        return {
            "rounds": tuple(rounds),
            "log_ratio": log_ratio,
            "log_ratio_error": estimate.error,
            "latency_ms": latency,
            "error_ms": latency * estimate.error,
        }
