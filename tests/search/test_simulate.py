"""simulate: the shape of its result, randomness addressed by trial, budgets, and what is recommended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt_search
from gpt_search import (
    History,
    InputError,
    Observation,
    Outcome,
    Phase,
    Proposal,
    SearchSpace,
    StrategyError,
    Streams,
    simulate,
)
from gpt_search.domain.space import Dimension
from gpt_search.search.loop import End
from gpt_search.search.strategy import pooled, recommend, recommended_rows


def space_of(*counts: int) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(c))), 0) for i, c in enumerate(counts))


def mixed_bag(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
    total = int(codes.sum())
    cost = {"build": 1.0, "time": 0.5}
    if total % 4 == 3:
        return Observation(Outcome.CRASH, cost_s={"build": 0.25})
    if total % 4 == 2:
        return Observation(Outcome.ACCURACY, None, 0.125, f"e{total}", cost)
    return Observation(Outcome.OK, 10.0 - total, -0.5, f"e{total}", cost)


class Scripted:
    def __init__(self, *script: tuple[list[int], Phase]) -> None:
        self.script = list(script)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        if not self.script:
            return None
        codes, until = self.script.pop(0)
        return Proposal(np.array(codes, np.int16), until)


# -- the result ------------------------------------------------------------------------------------
def test_shapes_types_and_values() -> None:
    space = space_of(3, 2, 4)
    result = simulate(space, "random", mixed_bag, trials=12, seed=3)
    n = 13
    assert len(result) == n and result.end is End.TRIALS
    assert result.codes.shape == (n, 3) and result.codes.dtype == np.int16
    for column in (result.latency_ms, result.violation, result.cost_s, result.proposal_seconds):
        assert column.shape == (n,) and column.dtype == np.float64
    assert result.outcome.shape == result.until.shape == (n,)
    assert all(type(o) is Outcome for o in result.outcome) and set(result.until) == {Phase.TIME}
    assert np.array_equal(result.codes[0], space.default)
    rng = np.random.default_rng(0)
    for i in range(n):
        expected = mixed_bag(result.codes[i], rng, Phase.TIME)
        assert result.outcome[i] is expected.outcome
        for value, wanted in ((result.latency_ms[i], expected.latency_ms), (result.violation[i], expected.violation)):
            assert math.isnan(value) if wanted is None else value == wanted
        assert result.cost_s[i] == sum(expected.cost_s.values())
    assert {Outcome.OK, Outcome.ACCURACY, Outcome.CRASH} == set(result.outcome)
    feasible = [i for i in range(n) if result.outcome[i] is Outcome.OK]
    assert result.recommended == min(feasible, key=lambda i: result.latency_ms[i])
    assert result.proposal_seconds[0] == 0.0 and (result.proposal_seconds[1:] > 0).all()


def test_probes_are_marked_and_carry_no_latency() -> None:
    seen: list[Phase] = []

    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        seen.append(until)
        return Observation(Outcome.OK, 1.0 if until is Phase.TIME else None, cost_s={"build": 1.0})

    result = simulate(space_of(2, 2), Scripted(([0, 1], Phase.BUILD), ([1, 1], Phase.GATE)), measure)
    assert list(result.until) == seen == [Phase.TIME, Phase.BUILD, Phase.GATE]
    assert np.isnan(result.latency_ms[1:]).all() and result.recommended == 0


def test_it_is_public_and_takes_objects_and_specs() -> None:
    assert gpt_search.simulate is simulate
    space = space_of(2, 3, 2)
    by_spec = simulate(space, "random", mixed_bag, 8, seed="x")
    by_object = simulate(space, gpt_search.load_strategy("random"), mixed_bag, 8, seed="x")
    assert np.array_equal(by_spec.codes, by_object.codes)
    with pytest.raises(InputError, match="did you mean 'random'"):
        simulate(space, "randomm", mixed_bag)
    with pytest.raises(InputError, match="budget in trials"):
        simulate(space, "random", mixed_bag, trials=-1)


def test_a_reference_that_fails() -> None:
    result = simulate(space_of(2, 3), "random", lambda codes, rng, until: Observation(Outcome.TIMEOUT))
    assert result.end is End.REFERENCE and len(result) == 1 and result.recommended is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_a_latency_that_none_can_have_is_refused(value: float) -> None:
    values = iter([1.0, value])
    with pytest.raises(ValueError, match=f"trial 1 the latency {value} ms"):
        simulate(space_of(2, 3), "random", lambda codes, rng, until: Observation(Outcome.OK, next(values)))
    # Of a failure it is no claim of speed, and no row is recommended for it.
    values = iter([1.0, value])
    failed = simulate(
        space_of(2),
        "random",
        lambda codes, rng, until: Observation(Outcome.OK if not codes.any() else Outcome.ACCURACY, next(values)),
    )
    assert failed.recommended == 0


def test_what_measure_raises_comes_out() -> None:
    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        raise LookupError("no such row")

    with pytest.raises(LookupError, match="no such row"):
        simulate(space_of(2), "random", measure)


# -- randomness ------------------------------------------------------------------------------------
@pytest.mark.parametrize("purpose", ["", "measure"])
def test_the_noise_shares_no_stream_with_the_strategy(purpose: str) -> None:
    drawn: list[float] = []

    class Curious:
        def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal:
            rng = streams.trial(history.next_trial, purpose)
            drawn.append(float(rng.random()))
            return Proposal(space.sample(rng))

    result = simulate(space_of(9, 9, 9), Curious(), noisy, trials=50)
    assert not set(drawn) & set(result.latency_ms.tolist())


def noisy(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
    return Observation(Outcome.OK, float(rng.random()))


def test_noise_is_addressed_by_trial_whatever_the_strategy_did() -> None:
    space = space_of(2, 3, 4, 2)
    runs = [simulate(space, spec, noisy, 7, seed=5) for spec in ("random", "full", "fast", "sparse_random:mean=2")]
    for other in runs[1:]:
        assert np.array_equal(runs[0].latency_ms, other.latency_ms)
        assert not np.array_equal(runs[0].codes, other.codes)
    assert len(set(runs[0].latency_ms)) == 8
    assert not np.array_equal(runs[0].latency_ms, simulate(space, "random", noisy, 7, seed=6).latency_ms)


def test_a_greedy_measure_disturbs_neither_later_trials_nor_the_strategy() -> None:
    def greedy(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        first = float(rng.random())
        rng.random(1000)
        return Observation(Outcome.OK, first)

    space = space_of(2, 3, 4, 2)
    one, other = (simulate(space, "random", measure, 9, seed=5) for measure in (noisy, greedy))
    assert np.array_equal(one.latency_ms, other.latency_ms) and np.array_equal(one.codes, other.codes)


# -- budgets ---------------------------------------------------------------------------------------
def test_a_budget_of_seconds_is_charged_with_reported_cost() -> None:
    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        return Observation(Outcome.OK, 1.0, cost_s={"build": 3.0, "time": 1.0})

    result = simulate(space_of(4, 4, 4), "random", measure, None, seconds=10)
    assert result.end is End.SECONDS and len(result) == 4  # at 0, 4 and 8 s; the reference is free
    assert result.cost_s.sum() == 16.0


def test_a_budget_of_builds() -> None:
    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        return Observation(Outcome.OK, 1.0, cost_s={"build": 3.0} if codes[0] else {"time": 1.0})

    result = simulate(space_of(2, 8), "full", measure, None, builds=3)
    assert result.end is End.BUILDS and result.codes[:, 0].sum() == 3 and len(result) == 11
    assert simulate(space_of(2, 8), "full", measure, 4, builds=3).end is End.TRIALS


def test_the_space_ends_a_study() -> None:
    assert simulate(space_of(2, 2), "random", mixed_bag, 200).end is End.SPACE


# -- what is recommended ---------------------------------------------------------------------------
def history_of(*rows: tuple[int, Observation], noise: float | None = None) -> History:
    """Rows of (code of the only knob, observation)."""
    history = History(space_of(64), noise)
    for number, (code, observation) in enumerate(rows):
        history.append(number, np.array([code], np.int16), observation)
    return history


def ok(value: float, error: float | None = None) -> Observation:
    return Observation(Outcome.OK, value, error_ms=error)


def test_pooled_weighs_rows_by_their_errors() -> None:
    history = history_of((0, ok(2.0, 0.1)), (1, ok(1.0, 0.1)), (1, ok(1.4, 0.2)), (0, ok(2.2, 0.1)))
    rows, value, error = pooled(history)
    assert rows.tolist() == [0, 1]
    assert value == pytest.approx([2.1, (1.0 * 100 + 1.4 * 25) / 125])
    assert error == pytest.approx([0.1 / math.sqrt(2), 125**-0.5])


def test_pooled_takes_the_noise_of_the_history_where_a_row_has_no_error() -> None:
    _, value, error = pooled(history_of((0, ok(2.0)), (1, ok(1.0)), (1, ok(3.0)), noise=0.1))
    weights = np.array([0.1**-2, 0.3**-2])
    assert value == pytest.approx([2.0, (weights @ [1.0, 3.0]) / weights.sum()])
    assert error == pytest.approx([0.2, weights.sum() ** -0.5])
    _, value, error = pooled(history_of((0, ok(2.0)), (1, ok(1.0)), (1, ok(3.0, 0.5))))
    assert value.tolist() == [2.0, 2.0] and error.tolist() == [0.0, 0.0]


def test_pooled_counts_samples_once_and_equal_engines_have_one_estimate() -> None:
    """Trial 3 added to the samples of trial 1, so both routes have its value; trial 5 times route 3 by itself."""
    longer, copied = (
        Observation(Outcome.OK, 1.2, None, "e", {}, 0.05, 1, 20),
        Observation(Outcome.OK, 1.0, None, "e", {}, 0.1, 1, 8),
    )
    first = Observation(Outcome.OK, 1.0, None, "e", {}, 0.1, None, 8)
    rows = [(0, ok(2.0, 0.1)), (1, first), (2, ok(1.5, 0.1)), (3, longer), (4, copied), (3, ok(1.8, 0.1))]
    firsts, value, error = pooled(history_of(*rows))
    assert firsts.tolist() == [0, 1, 2, 3, 4]
    assert value.tolist()[:3] == [2.0, 1.2, 1.5] and value[4] == 1.2
    assert value[3] == pytest.approx((1.2 * 400 + 1.8 * 100) / 500)
    assert error == pytest.approx([0.1, 0.05, 0.1, 500**-0.5, 0.05])
    # The samples of a route stay good when the route that added to them failed in another trial.
    assert pooled(history_of(*rows, (3, Observation(Outcome.CRASH))))[1].tolist() == [2.0, 1.2, 1.5, 1.2]


@pytest.mark.parametrize("failed_first", [True, False])
@pytest.mark.parametrize("failure", [o for o in Outcome if o is not Outcome.OK])
def test_a_route_that_failed_once_is_left_out_however_fast_it_was(failure: Outcome, failed_first: bool) -> None:
    rows = [(1, ok(0.1)), (1, Observation(failure))]
    history = history_of((0, ok(2.0)), *(rows[::-1] if failed_first else rows), (2, ok(1.0)))
    assert pooled(history)[0].tolist() == [0, 3] and recommend(history, 5) == [3, 0]


def test_infeasible_rows_with_a_latency_and_probes_are_left_out() -> None:
    history = history_of((0, ok(2.0)), (1, Observation(Outcome.ACCURACY, 0.1, 0.5)), (2, Observation(Outcome.OK)))
    assert recommend(history, 5) == [0]
    assert recommend(history_of((0, Observation(Outcome.ACCURACY, 2.0, 0.5)))) == []


def test_without_noise_the_smallest_latency_wins() -> None:
    history = history_of((0, ok(2.0)), (1, ok(1.5)), (2, ok(1.2)), (3, ok(1.9)))
    assert recommend(history, 3) == [2, 1, 3] and recommend(history) == [2]


def test_a_lucky_noisy_row_does_not_beat_a_certain_one() -> None:
    certain = [(i, ok(2.0 + 0.1 * (i % 3), 0.01)) for i in range(8)]
    history = history_of(*certain, (20, ok(1.0, 0.9)), (21, ok(1.1, 0.01)))
    assert int(np.nanargmin(history.value)) == 8
    assert recommend(history, 2)[0] == 9


def test_an_error_too_small_to_be_real_counts_as_none() -> None:
    rows, value, error = pooled(history_of((0, ok(2.0)), (1, ok(1.0, 1e-200)), (1, ok(3.0, 0.5))))
    assert rows.tolist() == [0, 1] and value.tolist() == [2.0, 2.0] and error.tolist() == [0.0, 0.0]


def test_when_the_spread_is_all_noise_nothing_is_lost() -> None:
    history = history_of((0, ok(2.0, 0.5)), (1, ok(1.9, 0.5)), (2, ok(2.1, 0.5)))
    assert recommend(history, 9) == [1, 0, 2]


def test_one_route() -> None:
    assert recommend(history_of((0, ok(2.0, 0.5))), 9) == recommend(history_of((0, ok(2.0))), 9) == [0]


def test_equal_values_keep_the_order_of_appearance() -> None:
    assert recommend(history_of(*((i, ok(1.0, 0.1)) for i in range(5))), 9) == [0, 1, 2, 3, 4]


def test_a_strategys_own_recommendation_counts() -> None:
    class Stubborn(Scripted):
        def recommend(self, history: History, k: int = 1) -> list[Any]:
            return [np.int64(0)]

    result = simulate(space_of(2, 3), Stubborn(([0, 1], Phase.TIME)), mixed_bag)
    assert result.recommended == 0 and type(result.recommended) is int
    assert recommended_rows(Scripted(), result.history) == [1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([99], "recommended 99, expected a row of the history, 0 to 3"),
        ([-1], "recommended -1, expected a row"),
        (["a"], "recommended 'a', expected a row"),
        ([True], "recommended True, expected a row"),
        ([1.0], r"recommended 1\.0, expected a row"),
        ([0, 0], "recommended row 0 twice"),
        ([3], "recommended row 3, which history.feasible says may not win"),
        (None, "failed in recommend: TypeError"),
    ],
)
def test_a_recommendation_outside_the_contract_is_refused(rows: Any, message: str) -> None:
    class Wrong(Scripted):
        def recommend(self, history: History, k: int = 1) -> Any:
            return rows

    history = history_of((0, ok(2.0)), (1, ok(1.5)), (2, ok(1.2)), (3, Observation(Outcome.CRASH)))
    with pytest.raises(StrategyError, match=message):
        recommended_rows(Wrong(), history, 3)


def test_no_more_rows_are_taken_than_were_asked_for() -> None:
    class Eager(Scripted):
        def recommend(self, history: History, k: int = 1) -> list[int]:
            return [2, 1, 0]

    history = history_of((0, ok(2.0)), (1, ok(1.5)), (2, ok(1.2)))
    assert recommended_rows(Eager(), history, 2) == [2, 1]


def test_a_failing_recommendation_is_the_strategys_fault() -> None:
    class Fails(Scripted):
        def recommend(self, history: History, k: int = 1) -> list[int]:
            raise ValueError("nothing here")

    with pytest.raises(
        StrategyError, match=r"strategy Fails failed in recommend \(.*, line \d+\): ValueError: nothing"
    ):
        recommended_rows(Fails(), history_of((0, ok(2.0))))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 10), st.floats(0, 1e6) | st.none(), st.booleans()), min_size=1)
)
def test_recommendations_are_feasible_first_rows_without_repeats(
    rows: list[tuple[int, float, float | None, bool]],
) -> None:
    history = history_of(
        *((code, ok(value, error) if good else Observation(Outcome.CRASH)) for code, value, error, good in rows)
    )
    failed = {code for code, _, _, good in rows if not good}
    feasible = {code for code, *_ in rows} - failed
    chosen = recommend(history, 99)
    assert sorted(int(history.codes[row][0]) for row in chosen) == sorted(feasible)
    assert all(history.rows_of(history.codes[row])[0] == row for row in chosen)
    assert recommend(history, 2) == chosen[:2]
