"""Friedman and Nemenyi against Demsar (2006), scipy, and simulated error rates."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_tables import simulated, table
from scipy import stats

from gpt_search.analysis.ranks import average_ranks, critical_difference, friedman, friedman_statistics
from gpt_search.domain.errors import InputError
from gpt_search.measure.intervals import share

# Demsar (2006), table 6: areas under the ROC curve of four variants of C4.5 on 14 data sets.
AUC = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],  # both printed 0.975, and ranked 2 and 3: not a tie before rounding
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def demsar() -> dict[tuple[str, str], list[float]]:
    return {(f"d{i:02d}", name): [-AUC[i, j]] for i in range(14) for j, name in enumerate(NAMES)}


def test_demsars_example() -> None:
    ranks = stats.rankdata(-AUC, axis=1)
    assert ranks.mean(axis=0) == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    chi2, _, f, p = friedman_statistics(ranks, ties=False)
    assert chi2 == pytest.approx(9.28, abs=0.005) and f == pytest.approx(3.69, abs=0.005)
    assert p < 0.05 and stats.f.isf(0.05, 3, 39) == pytest.approx(2.85, abs=0.005)
    corrected = friedman_statistics(ranks)
    assert corrected[:2] == pytest.approx(stats.friedmanchisquare(*AUC.T))
    found = friedman(table(demsar(), best=-1.0), 100)
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)
    assert found.ranks.to_dict() == pytest.approx(dict(zip(NAMES, ranks.mean(axis=0), strict=True)))
    # At 0.05 Nemenyi's test tells no pair apart (3.143 - 1.964 = 1.18); at 0.10 two.
    assert found.rejected and found.groups == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]
    loose = friedman(table(demsar(), best=-1.0), 100, alpha=0.10)
    assert loose.differ("C4.5", "C4.5+m") and loose.differ("C4.5", "C4.5+m+cf")
    assert not loose.differ("C4.5+cf", "C4.5+m+cf") and not loose.differ("C4.5+cf", "C4.5")
    assert loose.groups == [("C4.5+m+cf", "C4.5+m", "C4.5+cf"), ("C4.5+cf", "C4.5")]


@pytest.mark.parametrize(
    ("alpha", "values"),
    [
        (0.05, [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]),
        (0.10, [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]),
    ],
)
def test_demsars_table_of_critical_values(alpha: float, values: list[float]) -> None:
    for k, q in enumerate(values, start=2):
        # CD = q where k (k + 1) = 6 n.
        assert critical_difference(k, 6, alpha) / math.sqrt(k * (k + 1) / 36) == pytest.approx(q, abs=1.1e-3)


def test_blocks_that_all_agree_or_all_tie() -> None:
    agree = np.tile([1.0, 2, 3], (10, 1))
    chi2, _, f, p = friedman_statistics(agree)
    assert chi2 == pytest.approx(20) and math.isinf(f) and p == pytest.approx(6.0**-9)
    assert friedman_statistics(np.full((10, 3), 2.0)) == (0.0, 1.0, 0.0, 1.0)


def test_refused_with_a_reason() -> None:
    with pytest.raises(InputError, match="at least 10 of them; there are 9"):
        friedman(simulated({"a": 0, "b": 0, "c": 0}, tasks=9), 100)
    with pytest.raises(InputError, match="at least 3 strategies; there are 2"):
        friedman(simulated({"a": 0, "b": 0}, tasks=10), 100)
    frame = simulated({"a": 0, "b": 0, "c": 0}, tasks=10)
    with pytest.raises(InputError, match=r"there are 9; 1 more lack studies \(task03\)"):
        friedman(frame.drop(frame.index[(frame["task"] == "task03") & (frame["seed"] == 2)][0]), 100)


def test_a_task_that_lacks_a_study_is_left_out_and_named() -> None:
    frame = simulated({"a": 0, "b": 1, "c": 0}, tasks=11)
    found = friedman(frame[~((frame["task"] == "task04") & (frame["strategy"] == "b"))], 100)
    assert found.left_out == ("task04",) and len(found.tasks) == 10


def test_seeds_are_not_tasks() -> None:
    """Ten times the seeds, the same means: the same result."""
    few = simulated({"a": 0, "b": 1, "c": 3}, tasks=10, seeds=3)
    parts = [few.assign(seed=few["seed"] + 3 * i) for i in range(10)]
    many = friedman(pd.concat(parts, ignore_index=True), 100)
    assert many.p == pytest.approx(friedman(few, 100).p)


def test_error_rates_of_both_tests() -> None:
    rng = np.random.default_rng(4)
    repeats, k, n = 1500, 4, 12
    limit = critical_difference(k, n)
    rejected = apart = 0
    for _ in range(repeats):
        ranks = rng.random((n, k)).argsort(axis=1).argsort(axis=1) + 1.0
        rejected += friedman_statistics(ranks)[3] <= 0.05
        apart += np.ptp(ranks.mean(axis=0)) > limit
    assert share(rejected, repeats).low <= 0.05 < share(rejected, repeats, 0.999).high
    assert share(apart, repeats).low <= 0.05


@given(st.integers(0, 10_000), st.integers(2, 4))
@settings(max_examples=12, deadline=None)
def test_ranks_have_their_mean_and_bounds(seed: int, k: int) -> None:
    frame = simulated({f"s{i}": i % 2 for i in range(k)}, tasks=3, seeds=2, budgets=[5, 9], seed=seed)
    ranks = average_ranks(frame)
    assert ranks.groupby("budget")["rank"].mean().tolist() == pytest.approx([(k + 1) / 2] * 2)
    assert ranks["rank"].between(1, k).all()
    assert ((ranks["low"] <= ranks["rank"] + 1e-9) & (ranks["rank"] <= ranks["high"] + 1e-9)).all()


def test_average_ranks_weigh_tasks_alike() -> None:
    frame = table(
        {
            ("t", "a"): [-0.5, -0.5, -0.5, -0.5],
            ("t", "b"): [-0.1, -0.1, -0.1, -0.1],
            ("u", "a"): [-0.1],
            ("u", "b"): [-0.5],
        }
    )
    assert average_ranks(frame)["rank"].tolist() == [1.5, 1.5]
    lacking = frame[~((frame["task"] == "u") & (frame["strategy"] == "b"))]
    ranks = average_ranks(lacking)
    assert ranks["rank"].tolist() == [1, 2] and ranks["left_out"].tolist() == [1, 1]
    with pytest.raises(InputError, match="no seed of a task has all of a, b"):
        average_ranks(table({("t", "a"): [-0.1], ("u", "b"): [-0.1]}))
