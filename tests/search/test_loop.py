"""The loop of every study: sequential and threaded, budgets, ends, adopted trials, broken strategies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpt_search import (
    Budget,
    History,
    InputError,
    Observation,
    Outcome,
    Phase,
    Proposal,
    SearchSpace,
    StrategyError,
    Streams,
    load_strategy,
)
from gpt_search.domain.space import Dimension
from gpt_search.search.loop import End, Trial, run_loop

OK = Observation(Outcome.OK, 1.0, cost_s={"build": 2.0, "time": 1.0})


def space_of(*counts: int) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(c))), 0) for i, c in enumerate(counts))


def ok(trial: Trial) -> Observation:
    return OK


class Scripted:
    """Proposes what it was told to."""

    def __init__(self, *script: object) -> None:
        self.script = list(script)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        proposal = self.script.pop(0) if self.script else None
        return proposal(history) if callable(proposal) else proposal  # type: ignore[return-value]


def codes(*values: int) -> np.ndarray:
    return np.array(values, np.int16)


def run(
    space: SearchSpace,
    strategy: object,
    evaluate: Callable[[Trial], Observation] = ok,
    budget: Budget | None = None,
    history: History | None = None,
    **more: object,
) -> tuple[End, History]:
    history = History(space) if history is None else history
    chosen = load_strategy(strategy) if isinstance(strategy, str) else strategy
    end = run_loop(space, chosen, history, Streams(0), budget or Budget(), evaluate, **more)  # type: ignore[arg-type]
    return end, history


# -- the order of things ---------------------------------------------------------------------------
def test_the_reference_comes_first_and_is_not_charged() -> None:
    space = space_of(2, 3, 4)
    seen: list[tuple[str, int]] = []
    history = History(space)

    def evaluate(trial: Trial) -> Observation:
        assert history.pending_trials == (trial.number,)
        seen.append(("evaluate", trial.number))
        return OK

    def on_start(trial: Trial) -> None:
        assert history.n_pending == 0 and trial.proposal_s >= 0
        seen.append(("start", trial.number))

    def on_finish(trial: Trial, observation: Observation) -> None:
        assert len(history) == trial.number and observation is OK  # told before the history learns of it
        seen.append(("finish", trial.number))

    def on_learnt(trial: Trial, observation: Observation) -> None:
        assert len(history) == trial.number + 1 and observation is OK
        seen.append(("learnt", trial.number))

    end, _ = run(
        space, "random", evaluate, Budget(trials=3), history,
        on_start=on_start, on_finish=on_finish, on_learnt=on_learnt,
    )  # fmt: skip
    assert end is End.TRIALS and history.trial.tolist() == [0, 1, 2, 3]
    assert seen == [(what, number) for number in range(4) for what in ("start", "evaluate", "finish", "learnt")]
    assert np.array_equal(history.codes[0], space.default)
    assert history.builds == 3 and history.total_cost_s == 9.0


@pytest.mark.parametrize(
    ("budget", "end", "trials"),
    [
        (Budget(trials=0), End.TRIALS, 0),
        (Budget(trials=5, builds=9), End.TRIALS, 5),
        (Budget(builds=4), End.BUILDS, 4),
        (Budget(seconds=7.5), End.SECONDS, 3),  # 3 s each: the third starts at 6 s and is finished
        (Budget(seconds=0.0), End.SECONDS, 0),
    ],
)
def test_budgets(budget: Budget, end: End, trials: int) -> None:
    found, history = run(space_of(2, 3, 4), "random", ok, budget)
    assert found is end and len(history) == trials + 1


def test_trials_that_build_nothing_do_not_count_as_builds() -> None:
    def evaluate(trial: Trial) -> Observation:
        return Observation(Outcome.OK, 1.0, cost_s={"time": 1.0} if trial.number % 2 else {"build": 1.0})

    end, history = run(space_of(2, 3, 4), "random", evaluate, Budget(builds=3))
    assert end is End.BUILDS and len(history) == 7 and history.builds == 3


def test_a_clock_of_ones_own() -> None:
    times = iter(range(100))
    end, history = run(space_of(2, 3, 4), "random", ok, Budget(seconds=5), clock=lambda: float(next(times)))
    assert end is End.SECONDS and len(history) == 6


def test_the_ends_without_a_budget() -> None:
    end, history = run(space_of(2, 3), "random")
    assert end is End.SPACE and len(history) == 6
    end, history = run(space_of(2, 3), "fast")
    assert end is End.STRATEGY and len(history) == 4
    end, history = run(space_of(), "random")
    assert end is End.SPACE and len(history) == 1
    assert all(e.value for e in End)


def test_probes_do_not_settle_a_route() -> None:
    """A route that was only built counts as untried for the end of the space."""
    space = space_of(2)
    end, history = run(space, Scripted(Proposal(codes(1), Phase.BUILD), Proposal(codes(1), Phase.TIME)))
    assert end is End.SPACE and history.until.tolist() == [Phase.TIME, Phase.BUILD, Phase.TIME]
    end, history = run(space, Scripted(Proposal(codes(1), Phase.BUILD)))
    assert end is End.STRATEGY and history.settled == 1


@pytest.mark.parametrize("builders", [1, 3])
def test_a_reference_that_fails_ends_the_study(builders: int) -> None:
    end, history = run(space_of(2, 3), "random", lambda t: Observation(Outcome.BUILD_ERROR), builders=builders)
    assert end is End.REFERENCE and len(history) == 1
    end, history = run(space_of(2, 3), "random", ok, history=history)  # resumed: nothing has changed
    assert end is End.REFERENCE and len(history) == 1


@pytest.mark.parametrize("builders", [1, 3])
def test_failures_are_data(builders: int) -> None:
    def evaluate(trial: Trial) -> Observation:
        return OK if trial.number == 0 else Observation(Outcome(1 + trial.number % 5))

    end, history = run(space_of(2, 3, 2), "random", evaluate, builders=builders)
    assert end is End.SPACE and len(history) == 12 and np.isnan(history.value[1:]).all()


# -- several builders ------------------------------------------------------------------------------
def test_builders_run_at_the_same_time_and_finish_out_of_order() -> None:
    space = space_of(3, 3, 3)
    main = threading.get_ident()
    together = threading.Barrier(3, timeout=20)
    second_done = threading.Event()
    running: set[int] = set()
    calls: list[tuple[str, int]] = []

    def evaluate(trial: Trial) -> Observation:
        assert threading.get_ident() != main
        if trial.number == 0:
            assert running == {0}, "nothing starts before the reference has finished"
        if 1 <= trial.number <= 3:
            together.wait()  # breaks unless three are on their way at once
            if trial.number == 1:
                assert second_done.wait(20)
        return OK

    def on_start(trial: Trial) -> None:
        assert threading.get_ident() == main
        running.add(trial.number)
        assert len(running) <= 3
        calls.append(("start", trial.number))

    def on_finish(trial: Trial, observation: Observation) -> None:
        assert threading.get_ident() == main
        running.remove(trial.number)
        calls.append(("finish", trial.number))
        if trial.number == 2:
            second_done.set()

    end, history = run(space, "random", evaluate, Budget(trials=12), builders=3, on_start=on_start, on_finish=on_finish)
    assert end is End.TRIALS and len(history) == 13 and history.n_pending == 0
    assert history.n_routes == 13
    assert sorted(history.trial.tolist()) == list(range(13))
    order = history.trial.tolist()
    assert order.index(2) < order.index(1)
    assert [n for what, n in calls if what == "start"] == list(range(13))
    assert [n for what, n in calls if what == "finish"] == order


def test_none_with_pending_trials_is_temporary() -> None:
    """mixed waits for phase 1: with more builders than single changes its phase 2 still happens."""
    latency = {(1, 0, 0): 0.5, (0, 1, 0): 0.5}

    def evaluate(trial: Trial) -> Observation:
        return Observation(Outcome.OK, latency.get(tuple(trial.codes.tolist()), 1.0))

    end, history = run(space_of(2, 2, 2), "mixed", evaluate, builders=8)
    assert end is End.STRATEGY
    assert sorted(history.codes.tolist()) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    assert history.codes.tolist()[-1] == [1, 1, 0]


@pytest.mark.parametrize("builders", [1, 4])
def test_builders_never_overshoot_a_budget(builders: int) -> None:
    for budget, end in ((Budget(trials=7), End.TRIALS), (Budget(builds=7), End.BUILDS)):
        found, history = run(space_of(4, 4, 4), "random", ok, budget, builders=builders)
        assert found is end and len(history) == 8


@pytest.mark.parametrize("builders", [1, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_evaluate_raises_comes_out_and_the_trial_stays_pending(builders: int, error: type[BaseException]) -> None:
    def evaluate(trial: Trial) -> Observation:
        if trial.number == 3:
            raise error("stop")
        return OK

    history = History(space_of(3, 3, 3))
    with pytest.raises(error, match="stop"):
        run(history.space, "random", evaluate, Budget(trials=12), history, builders=builders)
    assert history.has_pending(3) and 3 not in history.trial.tolist()


def test_an_error_does_not_wait_for_the_other_builders() -> None:
    released, running = threading.Event(), threading.Event()

    def evaluate(trial: Trial) -> Observation:
        if trial.number == 1:
            running.set()
            assert released.wait(20)
        elif trial.number == 2:
            assert running.wait(20)
            raise RuntimeError("stop")
        return OK

    try:
        with pytest.raises(RuntimeError, match="stop"):
            run(space_of(3, 3, 3), "random", evaluate, Budget(trials=5), builders=2)
        assert not released.is_set()  # it came back while trial 1 was still on its way
    finally:
        released.set()


# -- resuming --------------------------------------------------------------------------------------
@pytest.mark.parametrize("builders", [1, 3])
def test_adopted_trials_come_first_under_their_own_numbers(builders: int) -> None:
    space = space_of(3, 3, 3)
    _, whole = run(space, "random", ok, Budget(trials=10))
    history = History(space)
    for row in (0, 1, 3):
        history.append(row, whole.codes[row].copy(), OK)
    started: list[int] = []
    lost = [Trial(2, whole.codes[2].copy(), Phase.TIME, 0.0), Trial(4, whole.codes[4].copy(), Phase.TIME, 0.0)]
    end, _ = run(
        space, "random", ok, Budget(trials=10), history,
        adopted=lost, builders=builders, on_start=lambda t: started.append(t.number),
    )  # fmt: skip
    assert end is End.TRIALS and started == [2, 4, 5, 6, 7, 8, 9, 10]
    by_trial = np.argsort(history.trial)
    if builders == 1:
        assert history.trial.tolist() == [0, 1, 3, 2, 4, 5, 6, 7, 8, 9, 10]
        # random looks at nothing but which routes were tried: the rest is as if nothing had happened.
        assert np.array_equal(history.codes[by_trial], whole.codes)
    assert history.n_routes == 11 and history.builds == 10


def test_an_adopted_reference() -> None:
    space = space_of(2, 2)
    end, history = run(space, "random", ok, adopted=[Trial(0, space.default, Phase.TIME, 0.0)])
    assert end is End.SPACE and history.trial.tolist() == [0, 1, 2, 3]


def test_an_adopted_trial_is_evaluated_although_the_budget_is_spent() -> None:
    space = space_of(3, 3)
    history = History(space)
    history.append(0, space.default, OK)
    end, _ = run(space, "random", ok, Budget(trials=1), history, adopted=[Trial(1, codes(1, 1), Phase.GATE, 0.0)])
    assert end is End.TRIALS and history.trial.tolist() == [0, 1] and history.until.tolist() == [3, 2]


def test_a_finished_study_stays_finished() -> None:
    space = space_of(3, 3, 3)
    _, history = run(space, "random", ok, Budget(trials=4))
    end, _ = run(space, "random", lambda t: pytest.fail("evaluated"), Budget(trials=4), history)
    assert end is End.TRIALS and len(history) == 5
    end, _ = run(space, "random", ok, Budget(trials=6), history)
    assert len(history) == 7


# -- strategies that break the contract ------------------------------------------------------------
@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        ("codes", "strategy Scripted proposed str, expected a Proposal or None"),
        (codes(0, 1), "strategy Scripted proposed ndarray"),
        (Proposal(codes(0, 3)), r"code 3 for knob 'k1' is outside 0\.\.2"),
        (Proposal(codes(-1, 0)), r"code -1 for knob 'k0' is outside 0\.\.1"),
        (Proposal(codes(0, 0, 0)), r"int16 of shape \(2,\); got int16 of shape \(3,\)"),
        (Proposal(np.array([0.0, 1.0])), "got float64"),  # type: ignore[arg-type]
        (Proposal([0, 1, 2]), r"of shape \(3,\)"),  # type: ignore[arg-type]
        (Proposal(None), "got object"),  # type: ignore[arg-type]
        (Proposal(codes(0, 1), "build"), r"until 'build', expected one of Phase\.BUILD, "),  # type: ignore[arg-type]
        (Proposal(codes(0, 1), 1), "until 1, expected one of"),  # type: ignore[arg-type]
    ],
)
def test_proposals_outside_the_contract(proposal: object, message: str) -> None:
    history = History(space_of(2, 3))
    with pytest.raises(StrategyError, match=message):
        run(history.space, Scripted(proposal), history=history)
    assert len(history) == 1 and history.n_pending == 0


@pytest.mark.parametrize("error", [KeyError("no such\nknob"), SystemExit(3), StopIteration(), AssertionError()])
def test_a_strategy_that_fails_is_named_with_the_line(error: BaseException) -> None:
    def fails(history: History) -> object:
        raise error

    with pytest.raises(StrategyError) as caught:
        run(space_of(2, 3), Scripted(fails))
    line = fails.__code__.co_firstlineno + 1
    assert f"strategy Scripted failed in propose ({__file__}, line {line}): {type(error).__name__}: " in str(
        caught.value
    )
    assert "\n" not in str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InputError("the space is too large"), StrategyError("mine")])
def test_what_a_strategy_means_to_raise_passes_through(error: BaseException) -> None:
    def fails(history: History) -> object:
        raise error

    with pytest.raises(type(error)) as caught:
        run(space_of(2, 3), Scripted(fails))
    assert caught.value is error


def test_a_pending_route_may_not_be_proposed() -> None:
    released = threading.Event()

    def evaluate(trial: Trial) -> Observation:
        if trial.number == 1:
            released.wait(0.2)
        return OK

    with pytest.raises(StrategyError, match="proposed a route that is pending"):
        run(space_of(2, 3), Scripted(Proposal(codes(1, 1)), Proposal(codes(1, 1))), evaluate, builders=2)


def test_a_tried_route_may_be_proposed_again() -> None:
    end, history = run(space_of(2, 3), Scripted(Proposal(codes(1, 1)), Proposal(codes(1, 1))))
    assert end is End.STRATEGY and history.rows_of(codes(1, 1)) == (1, 2)


def test_other_integer_types_are_taken_and_the_array_is_copied() -> None:
    mine = np.array([1, 2])

    def again(history: History) -> Proposal:
        mine[:] = 0, 1
        return Proposal(mine)  # type: ignore[arg-type]

    _, history = run(space_of(2, 3), Scripted(Proposal(mine), again))  # type: ignore[arg-type]
    assert history.codes.tolist() == [[0, 0], [1, 2], [0, 1]] and history.contains(codes(1, 2))
