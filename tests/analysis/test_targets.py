"""Runtimes to targets, their distribution, expected running time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_tables import simulated, table

from gpt_search.analysis.cells import Cell, frame
from gpt_search.analysis.regret import pooled_best
from gpt_search.analysis.targets import ecdf, expected_running_time, improvements, runtimes, target_sensitivity
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome


def runs(curves: dict[tuple[str, str], list[list[float]]], **facts: float) -> pd.DataFrame:
    """Studies seen at budgets 10, 20, ...: curves[task, strategy] has a row of log-ratios per seed."""
    parts = []
    for i in range(len(next(iter(curves.values()))[0])):
        parts.append(table({k: [row[i] for row in v] for k, v in curves.items()}, budget=10 * (i + 1), **facts))
    return pd.concat(parts, ignore_index=True)


def test_runtimes_by_hand() -> None:
    frame = runs({("t", "a"): [[0.0, -0.5, -0.9], [-0.8, -0.8, -0.8]]})
    times = runtimes(frame, (0.5, 0.9))
    assert times["runtime"].tolist() == [20, 30, 10, math.inf]
    assert times["reached"].tolist() == [True, True, True, False]
    assert times["target"].tolist() == pytest.approx([-0.5, -0.9] * 2) and set(times["spent"]) == {30}


def test_expected_running_time_by_its_definition() -> None:
    """Runtimes 10, 30 and two failures after 30: (10 + 30 + 30 + 30) / 2 = mean success + (1-p)/p mean failure."""
    frame = runs({("t", "a"): [[-1, -1, -1], [0, 0, -1], [0, 0, 0], [0, 0, -0.2]]})
    row = expected_running_time(runtimes(frame, (0.8,))).iloc[0]
    assert (row["ert"], row["success_rate"], row["successes"], row["n"]) == (50, 0.5, 2, 4)
    p = row["success_rate"]
    assert row["ert"] == pytest.approx((10 + 30) / 2 + (1 - p) / p * 30)
    assert row["low"] < 50 < row["high"] == math.inf  # one resample in 16 has no success


def test_expected_running_time_is_that_of_restarts() -> None:
    """A study hits with chance 0.3 after 10, else costs 30: restarts cost 10 + (0.7 / 0.3) 30 = 80 on average."""
    hits = np.random.default_rng(2).random(4000) < 0.3
    frame = runs({("t", "a"): [[-1.0, -1.0, -1.0] if hit else [0.0, 0.0, 0.0] for hit in hits]})
    row = expected_running_time(runtimes(frame, (1.0,))).iloc[0]
    assert row["low"] < 80 < row["high"] and row["ert"] == pytest.approx(80, rel=0.1)


def test_without_a_success_it_is_infinite() -> None:
    row = expected_running_time(runtimes(runs({("t", "a"): [[0.0, -0.1]]}), (0.5,))).iloc[0]
    assert row["ert"] == row["low"] == row["high"] == math.inf and row["success_rate"] == 0


def test_ecdf_by_hand() -> None:
    """Task t is reached by both seeds, u by none of its four: tasks weigh the same."""
    frame = runs({("t", "a"): [[-1.0, -1.0], [0.0, -1.0]], ("u", "a"): [[0.0, 0.0]] * 4})
    curve = ecdf(runtimes(frame, (1.0,))).set_index(["task", "budget"])["share"]
    assert curve["t"].to_dict() == {0: 0.0, 10: 0.5, 20: 1.0}
    assert curve["u"].to_dict() == {0: 0.0}
    assert curve[""].to_dict() == {0: 0.0, 10: 0.25, 20: 0.5}


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_ecdf_rises_to_the_success_rate(seed: int) -> None:
    frame = simulated({"a": 0, "b": 3}, tasks=3, seeds=4, seed=seed, budgets=[1, 2, 3])
    times = runtimes(frame)
    curves = ecdf(times)
    for (strategy, task), curve in curves.groupby(["strategy", "task"]):
        assert (np.diff(curve["share"]) >= 0).all() and (np.diff(curve["budget"]) > 0).all()
        mine = times[times["strategy"] == strategy]
        mine = mine if task == "" else mine[mine["task"] == task]
        assert curve["share"].iloc[-1] == pytest.approx(mine.groupby("task")["reached"].mean().mean())
    ert = expected_running_time(times, resamples=50)
    assert (ert["ert"] >= 1).all() and (ert["low"] <= ert["high"]).all()
    per_target = ert.sort_values(["strategy", "task", "share"]).groupby(["strategy", "task"])["ert"]
    assert per_target.apply(lambda e: bool((np.diff(np.nan_to_num(e, posinf=1e9)) >= 0).all())).all()


def test_no_targets_within_the_floor() -> None:
    frame = runs({("t", "a"): [[-0.01]], ("u", "a"): [[-0.5]]})
    frame["best"] = np.where(frame["task"] == "t", -0.01, -0.5)
    assert set(runtimes(frame)["task"]) == {"u"}
    assert ecdf(runtimes(frame.assign(floor=np.nan))).empty
    assert expected_running_time(runtimes(frame.assign(floor=np.nan))).empty


def test_what_is_recommended_can_be_later_than_what_was_tried() -> None:
    both = {("t", "a"): [-0.1]}
    frame = pd.concat(
        [table(both, budget=1, tried={("t", "a"): [-1.0]}), table({("t", "a"): [-1.0]}, budget=2)], ignore_index=True
    )
    assert runtimes(frame, (1.0,))["runtime"].item() == 1
    assert runtimes(frame, (1.0,), "recommended")["runtime"].item() == 2


def test_sensitivity_to_an_unknown_best() -> None:
    """The finder went on alone to -1: without it the others look much better."""
    curves = {("t", "a"): [[-0.1, -1.0]], ("t", "b"): [[-0.4, -0.4]], ("t", "c"): [[-0.3, -0.3]]}
    result = target_sensitivity(runs(curves, best=np.nan), (0.5, 1.0))
    share = result.set_index(["variant", "strategy"])["share_reached"]
    assert share["pooled"].to_dict() == {"a": 1, "b": 0, "c": 0}
    assert share["without the finder a"].to_dict() == {"a": 1, "b": 1, "c": 0.5}
    assert share["one floor better"].to_dict() == {"a": 0.5, "b": 0, "c": 0}
    kept = result.groupby("variant")["order_kept"].first()
    assert kept["pooled"] and kept["one floor better"] and not kept["without the finder a"]
    assert target_sensitivity(runs(curves)).empty


def test_nothing_found_anywhere_has_no_sensitivity() -> None:
    assert target_sensitivity(runs({("t", "a"): [[0.0]], ("t", "b"): [[0.0]]}, best=np.nan)).empty


def cell(truth: list[float], seconds: list[float], **change: object) -> Cell:
    n = len(truth)
    columns = {
        "trial": np.arange(n),
        "builds": [0, 1, 2, 2, 3][:n],
        "seconds": seconds,
        "outcome": np.full(n, int(Outcome.OK)),
        "until": np.zeros(n),
        "value": np.exp(truth),
        "truth": truth,
        "route": np.arange(n),
        "recommended": np.full(n, -2),
    }
    facts = {"best": -0.5, "floor": 0.01, "reference_ms": 1.0}
    return Cell("t", "a", 3, **(columns | change), facts=facts)  # type: ignore[arg-type]


def test_improvements_of_a_cell() -> None:
    one = cell([0.0, 0.2, -0.1, -0.3, -0.2], [0.0, 1.5, 2.0, 4.0, 7.0])
    found = improvements([one], "seconds")
    assert found["budget"].tolist() == [0, 2, 4, 7] and found["tried"].tolist() == [0, -0.1, -0.3, -0.3]
    by_builds = improvements([one])
    # Rows 2 and 3 cost one build together: after it the better of them is there.
    assert by_builds["budget"].tolist() == [0, 2, 3] and by_builds["tried"].tolist() == [0, -0.3, -0.3]
    assert improvements([one], "trials")["budget"].tolist() == [0, 2, 3, 4]
    assert runtimes(found, (0.2, 0.6, 1.0))["runtime"].tolist() == [2, 4, math.inf]
    assert by_builds["seed"].tolist() == [3] * 3 and by_builds["best"].tolist() == [-0.5] * 3


def test_a_best_that_was_only_seen_is_unknown() -> None:
    one = cell([0.0, -0.1], [0.0, 1.0], recommended=np.zeros(2))
    seen = dataclasses.replace(one, facts=dict(one.facts) | {"best_known": False})
    for found in (improvements([seen]), frame([seen], "trials", [1])):
        assert found["best"].isna().all()
        assert pooled_best(found)["best"].item() == -0.1


def test_improvements_leave_infeasible_routes_out() -> None:
    wrong = np.array([Outcome.OK, Outcome.OK, Outcome.BUILD_ERROR, Outcome.OK], np.int8)
    one = cell([0.0, -0.1, -0.4, 0.1], [0, 1, 2, 3], outcome=wrong)
    assert improvements([one], "trials")["tried"].tolist() == [0, -0.1, -0.1]


def test_improvements_agree_with_the_frame() -> None:
    rng = np.random.default_rng(6)
    one = cell(rng.normal(0, 0.2, 5).tolist(), [0, 1, 2, 3, 4], recommended=np.zeros(5))
    table_of = frame([one], "trials", [1, 2, 3, 4])
    steps = improvements([one], "trials").set_index("budget")["tried"]
    reached = [steps[steps.index <= b].iloc[-1] for b in (1, 2, 3, 4)]
    assert reached == np.fmin(table_of["tried"], 0).tolist()


def test_bad_input() -> None:
    frame = runs({("t", "a"): [[-0.1]]})
    for shares in ((), (0.0,), (1.1,), (0.5, 0.5)):
        with pytest.raises(InputError, match="different shares of the best gain"):
            runtimes(frame, shares)
    with pytest.raises(InputError, match="did you mean 'tried'"):
        runtimes(frame, column="tryed")
    with pytest.raises(InputError, match="not in 'hours'"):
        improvements([], "hours")
