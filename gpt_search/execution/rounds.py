"""The two sides of a comparison and the rounds between them: who runs when, and who is stopped meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from gpt_search.domain.evaluation import Round
from gpt_search.domain.outcome import Outcome
from gpt_search.execution.launcher import Worker, WorkerFailed
from gpt_search.measure.paired import Sections
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sampling import MIN_SAMPLES, is_steady
from gpt_search.measure.sequential import Best, Decision, decide_on

CANDIDATE, REFERENCE = "candidate", "reference"
AGAIN_LIMIT = 20
AGAIN_PAUSE_S = 0.5
_TAKEN_AGAIN = "a round was left out and taken again: "
_T = TypeVar("_T")


class Block(NamedTuple):
    """What one side did in one round: samples in ms, whether they are simulated, how calls were launched.

    launch_note, again: see `backends.base.TimingResult`.
    """

    samples_ms: tuple[float, ...]
    simulated: bool
    launch: str
    device: dict[str, float]
    launch_note: str = ""
    again: str = ""


class Timing(NamedTuple):
    """All rounds of one comparison, in order; raced: stopped early, being clearly worse than the best.

    notes: what a reader must know about how they were taken, a line each.
    """

    rounds: tuple[Round, ...]
    raced: bool
    notes: tuple[str, ...] = ()


@dataclass
class Side:
    """One engine: the worker that holds it, and its slot there."""

    worker: Worker
    slot: str

    def time(
        self,
        number: int,
        protocol: Protocol,
        seed: int,
        timeout_s: float | None,
        launch: str | None = None,
        point: int = 0,
    ) -> Block:
        """One round on this side. number: of the round, below 0 for warm-up. launch: as `TimingRequest.launch`.

        point: of the workload's shape points.

        Raises WorkerFailed, also for samples that are not positive, finite numbers.
        """
        answer = self.worker.ask(
            "time",
            {
                "slot": self.slot,
                "seconds": protocol.round_seconds,
                "min_calls": fewest_calls(protocol),
                "max_calls": 100_000,
                "streams": protocol.streams,
                "host_copies": protocol.host_copies,
                "point": point,
                # One call unmeasured: caches and threads have to wake up after the other side's turn.
                "warmup_calls": 1 if number >= 0 else 0,
                "seed": seed,
                "round": number,
                "launch": launch,
            },
            timeout_s=timeout_s,
            phase="time",
        )
        array = answer.arrays.get("samples_ms")
        samples = () if array is None or array.ndim != 1 else tuple(float(x) for x in array)
        if not samples or not all(math.isfinite(x) and x > 0 for x in samples):
            self.worker.kill()
            raise WorkerFailed(Outcome.CRASH, "the worker answered with garbage in phase time: no usable samples")
        fields = answer.fields
        device = {str(k): float(v) for k, v in fields["device"].items()}
        return Block(samples, fields["simulated"], fields["launch"], device, fields["launch_note"], fields["again"])


def fewest_calls(protocol: Protocol) -> int:
    """Calls of one turn at least: a section of a tail quantile of a slow engine is cut into 50 turns at most.

    With streams, so many that each of them is at work a few times.
    """
    return max(1, protocol.statistic().samples // 50, 4 * protocol.streams if protocol.streams > 1 else 1)


def warm_up(side: Side, protocol: Protocol, seed: int, timeout_s: float | None, points: int = 1) -> None:
    """Runs one side until its samples are steady at each point, within the protocol's limits. Raises WorkerFailed.

    Time is counted in samples, so that a simulated engine warms up by the same rule.
    """
    for point in range(points):
        _warm_up(side, protocol, seed, timeout_s, point)


def _warm_up(side: Side, protocol: Protocol, seed: int, timeout_s: float | None, point: int) -> None:
    samples: list[float] = []
    seconds, number = 0.0, -1_000_000
    while seconds < protocol.warmup_limit_seconds:
        block = side.time(number, protocol, seed, timeout_s, point=point)
        samples.extend(block.samples_ms)
        seconds += sum(block.samples_ms) / 1000
        number += 1
        if seconds >= protocol.warmup_seconds and len(samples) >= MIN_SAMPLES and is_steady(samples):
            return


class ReferenceFailed(Exception):
    """The reference engine failed twice in a row: nothing can be measured.

    outcome and message: of the second failure.
    """

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(f"the reference engine failed: {message}")
        self.outcome, self.message = outcome, message


class _ReferenceDied(Exception):
    def __init__(self, failed: WorkerFailed) -> None:
        self.failed = failed


@dataclass
class Comparison:
    """A candidate against the reference: warm-up, alternating rounds, racing.

    candidate: its side. reference: gives the reference's side, started and built again where it had
    died; asked before each of its turns. Where the two sides are different workers, the idle one is
    stopped. timeout_s: for one turn. clock: seconds since the session began, for `Round.started_s`;
    simulated engines count their samples instead. warm: workers whose reference engine has been warmed
    up in full before; they get one unmeasured round to wake up again. weights: of the workload's shape
    points, which rounds take in turn.
    """

    candidate: Side
    reference: Callable[[], Side]
    protocol: Protocol
    seed: int
    timeout_s: float | None
    clock: Callable[[], float]
    warm: set[Worker] = field(default_factory=set)
    weights: tuple[float, ...] = (1.0,)
    _awake: Worker | None = None
    _apart: bool = True
    _launch: str | None = None
    _notes: dict[str, int] = field(default_factory=dict)

    def run(self, best: Best | None, trial: int = 1, earlier: Sequence[float] = (), *, afresh: bool = True) -> Timing:
        """Times until the racing rule ends it. best, trial: as `measure.sequential.decide` takes them.

        earlier: log-ratios of sections that this engine was timed in before, whose sequence is continued; the
        new rounds are returned. afresh: the fewest and the most rounds count the new ones alone.

        A round in which the reference dies is repeated with a new one, once: its other half is no
        longer of the same window. Both sides are launched alike: where one of them cannot be launched as
        the other, both go the way that it can. A round that a backend asks to have again is taken again,
        after a pause, `AGAIN_LIMIT` times in a comparison at most; later ones stand. Both are noted.

        Raises WorkerFailed for the candidate, ReferenceFailed.
        """
        self._repeated(self._reference_ready)
        warm_up(self.candidate, self.protocol, self.seed, self.timeout_s, len(self.weights))
        rounds: list[Round] = []
        sections = Sections(self.protocol.statistic(self.weights), earlier)
        uncounted = len(earlier) if afresh else 0
        simulated_s = 0.0
        decision = Decision.CONTINUE
        while decision is Decision.CONTINUE:
            number = len(rounds)
            round_, simulated, again = self._repeated(lambda n=number: self._round(n))  # type: ignore[misc]
            if again and self._may_repeat(again):
                continue
            if simulated:
                round_ = replace(round_, started_s=simulated_s)
                simulated_s += (sum(round_.candidate_ms) + sum(round_.reference_ms)) / 1000
            rounds.append(round_)
            if sections.add(round_):
                decision = decide_on(sections.log_ratios, best, self.protocol, trial, uncounted)
        notes = tuple(f"{text} ({n} times)" if n > 1 else text for text, n in self._notes.items())
        return Timing(tuple(rounds), decision is Decision.CLEARLY_WORSE, notes)

    def _may_repeat(self, why: str) -> bool:
        """Notes that a round is left out and waits a little; False where too many were left out already."""
        if sum(n for text, n in self._notes.items() if text.startswith(_TAKEN_AGAIN)) >= AGAIN_LIMIT:
            self._note(f"a round was kept although the limit for taking rounds again was reached: {why}")
            return False
        self._note(f"{_TAKEN_AGAIN}{why}")
        time.sleep(AGAIN_PAUSE_S)
        return True

    def _note(self, text: str) -> None:
        self._notes[text] = self._notes.get(text, 0) + 1

    def _round(self, number: int) -> tuple[Round, bool, str]:
        """One round, whether it is simulated, and why it should be taken again, if so."""
        point = number % len(self.weights)
        mine, theirs, started, reference_first = self._turns(number)
        if mine.launch != theirs.launch and self._launch is None and (mine.launch_note or theirs.launch_note):
            # The first round of an engine that cannot be launched as the other: it is no pair.
            name, side = ("candidate", mine) if mine.launch_note else ("reference", theirs)
            self._launch = side.launch
            self._note(f"both sides were launched as {side.launch!r}: for the {name}, {side.launch_note}")
            mine, theirs, started, reference_first = self._turns(number)
        if mine.launch != theirs.launch:
            raise RuntimeError(f"the two sides of a pair were launched differently: {mine.launch}, {theirs.launch}")
        device = mine.device | {f"reference_{k}": v for k, v in theirs.device.items()}
        round_ = Round(mine.samples_ms, theirs.samples_ms, started, reference_first, device, mine.launch, point)
        again = mine.again or theirs.again
        if not again and max(mine.device.get("throttled", 0.0), theirs.device.get("throttled", 0.0)) > 0:
            self._note("a round was throttled and kept")
        return round_, mine.simulated, again

    def _turns(self, number: int) -> tuple[Block, Block, float, bool]:
        turn, point = divmod(number, len(self.weights))
        reference_first = (turn + point + self.seed) % 2 == 1  # alternates at each point
        started = self.clock()
        if reference_first:
            theirs = self._reference_turn(number, point)
            mine = self._candidate_turn(number, point)
        else:
            mine = self._candidate_turn(number, point)
            theirs = self._reference_turn(number, point)
        return mine, theirs, started, reference_first

    def _candidate_turn(self, number: int, point: int) -> Block:
        block = self.candidate.time(number, self.protocol, self.seed, self.timeout_s, self._launch, point)
        if self._apart:
            self.candidate.worker.pause()
        return block

    def _reference_turn(self, number: int, point: int) -> Block:
        side = self._reference_ready()
        with self._blaming_reference():
            block = side.time(number, self.protocol, self.seed, self.timeout_s, self._launch, point)
        if self._apart:
            side.worker.pause()
        return block

    def _reference_ready(self) -> Side:
        """The reference's side, built and warm; the candidate is stopped meanwhile, the reference afterwards."""
        with self._blaming_reference():
            side = self.reference()
            self._apart = side.worker is not self.candidate.worker
            if self._awake is not side.worker:
                if self._apart:
                    self.candidate.worker.pause()
                if side.worker in self.warm:
                    side.time(-1, self.protocol, self.seed, self.timeout_s)
                else:
                    warm_up(side, self.protocol, self.seed, self.timeout_s, len(self.weights))
                    self.warm.add(side.worker)
                self._awake = side.worker
                if self._apart:
                    side.worker.pause()
        return side

    @contextmanager
    def _blaming_reference(self) -> Iterator[None]:
        try:
            yield
        except WorkerFailed as failed:
            if not self.candidate.worker.alive:  # one worker for both: the new route is what made the difference
                raise
            raise _ReferenceDied(failed) from None

    def _repeated(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except _ReferenceDied:
            pass
        try:
            return work()
        except _ReferenceDied as again:
            raise ReferenceFailed(again.failed.outcome, again.failed.message) from None
