"""Regret and its parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_tables import simulated, table

from gpt_search.analysis.regret import pooled_best, regret_table
from gpt_search.domain.errors import InputError


def test_a_worked_example() -> None:
    """Reference 10 ms, best 5 ms; 8 ms recommended, 6.25 ms tried."""
    frame = table({("t", "s"): [np.log(0.8)]}, best=np.log(0.5), tried={("t", "s"): [np.log(0.625)]})
    row = regret_table(frame).iloc[0]
    assert row["speedup"] == pytest.approx(1.25)
    assert row["regret_percent"] == pytest.approx(60.0)  # 8 ms is 60 % more than 5 ms
    assert row["regret_ms"] == pytest.approx(3.0)
    assert row["exploration"] == pytest.approx(np.log(1.25)) and row["selection"] == pytest.approx(np.log(1.28))
    assert row["share"] == pytest.approx(np.log(0.8) / np.log(0.5))
    assert row["best_known"]


def test_nothing_recommended_is_the_reference() -> None:
    row = regret_table(table({("t", "s"): [np.nan]}, tried={("t", "s"): [-0.3]})).iloc[0]
    assert not row["recommends"] and row["log_ratio"] == 0 and row["speedup"] == 1
    assert (row["exploration"], row["selection"], row["regret"]) == pytest.approx((0.7, 0.3, 1.0))


def test_no_share_of_a_gain_within_the_floor() -> None:
    studies = {("t", "s"): [-0.01]}
    assert np.isnan(regret_table(table(studies, best=-0.02, floor=0.02))["share"].iloc[0])
    assert np.isnan(regret_table(table(studies, best=-0.02, floor=np.nan))["share"].iloc[0])
    assert regret_table(table(studies, best=-0.02, floor=0.019))["share"].iloc[0] == pytest.approx(0.5)
    assert np.isnan(regret_table(table({("t", "s"): [0.0]}, best=0.0, floor=0.0))["share"].iloc[0])
    assert str(regret_table(table({("t", "s"): [0.0]}))["share"].iloc[0]) == "0.0"


def test_slower_than_the_reference_is_a_negative_share() -> None:
    row = regret_table(table({("t", "s"): [0.1]}, tried={("t", "s"): [-0.2]})).iloc[0]
    assert row["share"] == pytest.approx(-0.1) and row["selection"] == pytest.approx(0.3)


def test_the_best_is_pooled_over_strategies_where_unknown() -> None:
    frame = table({("t", "a"): [-0.1, -0.4], ("t", "b"): [-0.3, -0.2], ("u", "a"): [0.2]}, best=np.nan)
    best = pooled_best(frame).set_index("task")
    assert best.loc["t", "best"] == -0.4 and best.loc["t", "found_by"] == "a" and not best.loc["t", "known"]
    assert best.loc["u", "best"] == 0.0  # the reference was there
    regret = regret_table(frame)
    assert not regret["best_known"].any() and regret["regret"].tolist() == pytest.approx([0.3, 0.0, 0.1, 0.2, 0.2])


def test_a_stated_best_that_is_beaten_is_not_the_best() -> None:
    best = pooled_best(table({("t", "a"): [-0.5]}, best=-0.4)).iloc[0]
    assert best["best"] == -0.5 and not best["known"] and best["stated"] == -0.4


def test_a_given_best_that_is_beaten_is_refused() -> None:
    frame = table({("t", "a"): [-0.5]})
    with pytest.raises(InputError, match=r"best of task t is given as -0\.4 \(log-ratio\), but -0\.5 was tried"):
        regret_table(frame, pooled_best(frame).assign(best=-0.4))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([np.nan, -0.95, -2.0]))
def test_parts_are_not_negative_and_add_up(seed: int, best: float) -> None:
    frame = simulated({"a": 0, "b": 1}, tasks=2, seeds=3, seed=seed, best=best)
    frame["tried"] = frame["recommended"] - np.random.default_rng(seed).choice([0, 0.02], len(frame))
    regret = regret_table(frame)
    assert (regret[["regret", "exploration", "selection"]] >= 0).all(axis=None)
    assert np.allclose(regret["exploration"] + regret["selection"], regret["log_ratio"] - regret["best"])
    assert np.allclose(regret["regret_ms"], 10 * (np.exp(regret["log_ratio"]) - np.exp(regret["best"])))


def test_bad_tables() -> None:
    frame = table({("t", "a"): [-0.5]})
    with pytest.raises(InputError, match="no column floor"):
        regret_table(frame.drop(columns="floor"))
    with pytest.raises(InputError, match="no rows"):
        regret_table(frame.iloc[:0])
    with pytest.raises(InputError, match="task t, strategy a, seed 0 stands twice"):
        regret_table(frame.loc[[0, 0]].reset_index(drop=True))
