"""Curves over the budget; random search against simulation and enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_tables import simulated, table

from gpt_search.analysis.anytime import anytime_curves, area_under_curve, random_search_curve
from gpt_search.domain.errors import InputError


def test_random_search_against_all_subsets() -> None:
    values = np.array([-0.3, np.nan, 0.1, -0.3, -0.5, 0.4])
    curve = random_search_curve(values).set_index("draws")
    for k in range(1, 7):
        seen = [np.nanmin([0.0, *values[list(c)]]) for c in combinations(range(6), k)]
        assert curve.loc[k, "expected"] == pytest.approx(np.mean(seen))
        for name, q in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
            assert curve.loc[k, name] == np.quantile(seen, q, method="inverted_cdf")
    assert curve.loc[0].tolist() == [0.0] * 4


def test_random_search_against_a_simulation() -> None:
    rng = np.random.default_rng(5)
    values = np.where(rng.random(4096) < 0.2, np.nan, rng.normal(0.02, 0.05, 4096))
    draws = np.array([1, 10, 100, 1000, 4000])
    runs = np.array([np.fmin.accumulate(np.fmin(rng.permutation(values), 0.0)) for _ in range(2000)])[:, draws - 1]
    curve = random_search_curve(values, draws)
    error = runs.std(axis=0, ddof=1) / 2000**0.5 + 1e-12
    assert (np.abs(runs.mean(axis=0) - curve["expected"]) < 4 * error).all()
    full = random_search_curve(values, [4096])
    assert full.iloc[0, 1:].tolist() == pytest.approx([np.nanmin(values)] * 4)


@given(st.lists(st.one_of(st.floats(-2, 2), st.just(float("nan"))), min_size=1, max_size=40))
def test_random_search_only_gets_better(values: list[float]) -> None:
    curve = random_search_curve(values)
    assert (np.diff(curve.to_numpy()[:, 1:], axis=0) <= 1e-9).all()
    assert (curve["q25"] <= curve["median"]).all() and (curve["median"] <= curve["q75"]).all()
    assert curve["expected"].iloc[-1] == pytest.approx(min(0.0, np.nanmin([0.0, *values])))


def test_draws_are_of_the_table() -> None:
    with pytest.raises(InputError, match="allowed are 0 to 3"):
        random_search_curve([0.1, 0.2, 0.3], [4])
    with pytest.raises(InputError):
        random_search_curve([])


def test_curves_have_the_quantiles_of_numpy() -> None:
    frame = simulated({"a": 0, "b": 2}, tasks=3, seeds=9, budgets=[10, 20])
    curves = anytime_curves(frame, "log_ratio").set_index(["task", "strategy", "budget"])
    assert len(curves) == 12
    for key, rows in frame.groupby(["task", "strategy", "budget"], observed=True):
        x = rows["recommended"].to_numpy()
        assert curves.loc[key, ["q25", "median", "q75"]].tolist() == pytest.approx(np.quantile(x, [0.25, 0.5, 0.75]))
        assert curves.loc[key, "mean"] == pytest.approx(x.mean()) and curves.loc[key, "n"] == 9
        assert curves.loc[key, "low"] <= curves.loc[key, "median"] <= curves.loc[key, "high"]
        assert {curves.loc[key, "low"], curves.loc[key, "high"]} <= set(x)


def test_columns_of_the_table_have_curves_too() -> None:
    frame = table({("t", "a"): [-0.5, np.nan, -0.1]})
    assert anytime_curves(frame, "tried")["n"].tolist() == [2]
    with pytest.raises(InputError, match="did you mean 'regret'"):
        anytime_curves(frame, "regrets")
    with pytest.raises(InputError, match="unknown measure 'task'"):
        anytime_curves(frame, "task")


def test_better_studies_have_curves_that_fall() -> None:
    parts = [table({("t", "a"): [x, x - 0.1]}, budget=b) for b, x in ((1, 0.0), (2, -0.2), (4, -0.4))]
    curve = anytime_curves(pd.concat(parts, ignore_index=True))
    assert (np.diff(curve["median"]) < 0).all()


def test_area_by_hand() -> None:
    """Best -1. Regret 1 up to 10, 0.6 up to 30, then 0.2; at the last budget the curve ends: (10 + 12 + 2) / 40."""
    parts = [table({("t", "a"): [x]}, budget=b) for b, x in ((10, -0.4), (30, -0.8), (40, -1.0))]
    frame = pd.concat(parts, ignore_index=True)
    assert area_under_curve(frame)["area"].tolist() == pytest.approx([(10 + 12 + 2) / 40])
    assert area_under_curve(frame, "log_ratio")["area"].tolist() == pytest.approx([(-0.4 * 20 - 0.8 * 10) / 40])


def test_area_needs_whole_studies() -> None:
    frame = pd.concat([table({("t", "a"): [-0.1]}, budget=1), table({("t", "a"): [-0.1, -0.2]}, budget=2)])
    with pytest.raises(InputError, match="strategy a, seed 1 lacks some of the budgets 1, 2"):
        area_under_curve(frame.reset_index(drop=True))
    with pytest.raises(InputError, match="no area under 'share'"):
        area_under_curve(table({("t", "a"): [-0.1]}), "share")
    with pytest.raises(InputError, match="a budget above 0"):
        area_under_curve(table({("t", "a"): [-0.1]}, budget=0))
