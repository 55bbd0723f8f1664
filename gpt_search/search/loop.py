"""The loop that every study runs, live or simulated: propose, evaluate, record, until the budget is spent."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import perf_counter
from typing import NamedTuple

import numpy as np

from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError, StrategyError
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.strategy import Proposal, Strategy, blamed
from gpt_search.search.threads import OneBlasThread


class Trial(NamedTuple):
    """One trial on its way: its number (0 is the reference), route, how far to go, seconds the proposal took."""

    number: int
    codes: Codes
    until: Phase
    proposal_s: float


class End(enum.Enum):
    """Why a study ended."""

    TRIALS = "the budget of trials is spent"
    BUILDS = "the budget of builds is spent"
    SECONDS = "the budget of seconds is spent"
    STRATEGY = "the strategy has nothing left to propose"
    SPACE = "every route of the space was tried"
    REFERENCE = "the reference route could not be measured"


_BY_LIMIT = {"trials": End.TRIALS, "builds": End.BUILDS, "seconds": End.SECONDS}


def run_loop(
    space: SearchSpace,
    strategy: Strategy,
    history: History,
    streams: Streams,
    budget: Budget,
    evaluate: Callable[[Trial], Observation],
    *,
    on_start: Callable[[Trial], None] | None = None,
    on_finish: Callable[[Trial, Observation], None] | None = None,
    on_learnt: Callable[[Trial, Observation], None] | None = None,
    clock: Callable[[], float] | None = None,
    builders: int = 1,
    adopted: Iterable[Trial] = (),
) -> End:
    """Runs a study until it ends, and returns why.

    history: empty, or what an earlier run left; it is continued. adopted: trials that an earlier
    run started and did not finish; they are evaluated first, under their own numbers.
    evaluate: called from up to `builders` threads. on_start: called before the history learns that a
    trial is pending; on_finish and on_learnt: before and after it learns the result; all three from
    the calling thread, in order. clock: seconds charged so far; by default the recorded cost of the
    finished trials.

    Raises StrategyError when the strategy fails, or a proposal is not a route of the space or is pending, and
    whatever `evaluate` or the callbacks raise. KeyboardInterrupt passes through at once, without waiting for
    running evaluations; their trials stay pending, and it is the caller's to stop them.
    """
    seconds = clock if clock is not None else lambda: history.total_cost_s
    waiting = list(adopted)
    ended: End | None = None
    measured = False  # whether the reference has a value; looked up once

    def next_trial() -> Trial | None:
        """The next trial to start; None when there is none now (`ended` tells why)."""
        nonlocal ended, measured
        if waiting:
            return waiting.pop(0)
        number = history.next_trial
        if number == 0:
            return Trial(0, space.default, Phase.TIME, 0.0)
        if not measured:
            if len(history) == 0:
                return None  # nothing is proposed before the reference has finished
            if np.isnan(history.value[0]):
                ended = End.REFERENCE
                return None
            measured = True
        limit = budget.spent(number - 1, history.builds + history.n_pending, seconds())
        if limit is not None:
            ended = _BY_LIMIT[limit]
            return None
        if history.settled >= space.size:
            ended = End.SPACE
            return None
        threads.cover()
        began = perf_counter()
        with blamed(strategy, "propose"):
            proposal = strategy.propose(space, history, streams)
        took = perf_counter() - began
        if proposal is None:
            ended = End.STRATEGY
            return None
        codes = checked_codes(proposal, space, history, strategy)
        return Trial(number, codes, proposal.until, took)

    def start(trial: Trial) -> None:
        if on_start is not None:
            on_start(trial)
        if not history.has_pending(trial.number):
            history.start(trial.number, trial.codes, trial.until)

    def finish(trial: Trial, observation: Observation) -> None:
        if on_finish is not None:
            on_finish(trial, observation)
        history.finish(trial.number, observation)
        if on_learnt is not None:
            on_learnt(trial, observation)

    for trial in waiting:
        history.start(trial.number, trial.codes, trial.until)
    with OneBlasThread() as threads:
        if builders <= 1:
            while (trial_now := next_trial()) is not None:
                start(trial_now)
                finish(trial_now, evaluate(trial_now))
            assert ended is not None
            return ended

        pool = ThreadPoolExecutor(builders, thread_name_prefix="builder")
        running: dict[Future[Observation], Trial] = {}
        try:
            while True:
                ended = None
                while len(running) < builders and (trial_next := next_trial()) is not None:
                    start(trial_next)
                    running[pool.submit(evaluate, trial_next)] = trial_next
                if not running:
                    assert ended is not None
                    return ended
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=lambda f: running[f].number):
                    finish(running.pop(future), future.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def checked_codes(proposal: object, space: SearchSpace, history: History, strategy: Strategy) -> Codes:
    """The codes of a proposal, int16 (d,), copied: the strategy may go on writing into its array.

    Raises StrategyError when it is no Proposal, no route of the space, goes to no phase, or is pending.
    """
    who = type(strategy).__name__
    if not isinstance(proposal, Proposal):  # a third party's strategy may be untyped
        raise StrategyError(f"strategy {who} proposed {type(proposal).__name__}, expected a Proposal or None")
    if not isinstance(proposal.until, Phase):
        allowed = ", ".join(f"Phase.{phase.name}" for phase in Phase)
        raise StrategyError(f"strategy {who} proposed to go until {proposal.until!r}, expected one of {allowed}")
    codes = proposal.codes
    if not space.holds(codes):
        try:
            codes = space.check(codes)
        except InputError as error:
            raise StrategyError(f"strategy {who}: {error}") from None
    if history.n_pending and history.is_pending(codes):
        raise StrategyError(f"strategy {who} proposed a route that is pending; skip routes that history.contains()")
    return codes.copy()
