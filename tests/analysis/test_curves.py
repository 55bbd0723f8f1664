import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import History, InputError, Observation, Outcome, Phase, planted, simulate
from gpt_search.analysis.curves import best_so_far_table, history_curve
from gpt_search.domain.space import Dimension, SearchSpace

NAN = np.nan


def test_a_curve_by_hand():
    table = best_so_far_table(
        [10.0, 12.0, 8.0, 4.0, NAN, 9.0, 5.0],
        [True, True, True, False, False, True, True],
        error_ms=[0.1, 0.1, 0.08, 0.1, NAN, 0.1, NAN],
    )
    assert table["best"].tolist() == pytest.approx([1, 1, 1.25, 1.25, 1.25, 1.25, 2])
    assert table["best_trial"].tolist() == [0, 0, 2, 2, 2, 2, 6]
    assert table["speedup"][3] == 2.5 and np.isnan(table["speedup"][4])
    assert table["low"][2] == pytest.approx(1.25 * np.exp(-1.96 * 0.01), rel=1e-4)
    assert table["high"][5] == pytest.approx(1.25 * np.exp(1.96 * 0.01), rel=1e-4)
    assert np.isnan(table["low"][6]) and table["low"][1] == table["high"][1] == 1.0


def test_a_reference_from_elsewhere():
    assert best_so_far_table([10.0, 5.0], reference_ms=20.0)["speedup"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least the reference"),
        (([NAN, 1.0],), "positive"),
        (([1.0, 1.0], [True]), "2 trials got 1 feasibility flags"),
    ],
)
def test_what_is_no_curve_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        best_so_far_table(*arguments)


@given(
    st.floats(0.1, 10),
    st.lists(st.tuples(st.one_of(st.just(NAN), st.floats(0.01, 100)), st.booleans()), max_size=30),
)
def test_the_best_never_falls_and_is_a_trial_that_was_feasible(reference, trials):
    value = np.array([reference, *(v for v, _ in trials)])
    ok = np.array([True, *(f for _, f in trials)])
    table = best_so_far_table(value, ok)
    best = table["best"].to_numpy()
    assert (np.diff(best) >= 0).all() and best[0] == 1
    expected = np.nanmin(np.where(ok, value, NAN))
    assert best[-1] == pytest.approx(reference / expected if expected < reference else 1.0)
    assert ok[table["best_trial"]].all()


def test_costs_are_charged_up_to_the_trial_and_the_reference_is_free():
    space = SearchSpace([Dimension("k", ("a", "b", "c"), 0)])
    history = History(space)
    history.append(0, np.array([0], np.int16), Observation(Outcome.OK, 2.0, cost_s={"build": 5.0, "time": 5.0}))
    history.append(1, np.array([1], np.int16), Observation(Outcome.BUILD_ERROR, cost_s={"build": 1.0}))
    history.append(2, np.array([2], np.int16), Observation(Outcome.OK, 1.0, cost_s={"time": 0.5}), Phase.TIME)
    table = history_curve(history)
    assert table["seconds"].tolist() == [0, 1, 1.5]
    assert table["builds"].tolist() == [0, 1, 1]
    assert table["best"].tolist() == [1, 1, 2]


def test_a_simulated_study():
    landscape = planted("sparse", 0)
    result = simulate(landscape.space, "random", landscape.measure, trials=40)
    table = history_curve(result.history)
    assert len(table) == 41
    fastest = np.nanmin(np.where(result.history.feasible, result.latency_ms, np.nan))
    assert table["best"].iloc[-1] == pytest.approx(max(1.0, result.latency_ms[0] / fastest))
