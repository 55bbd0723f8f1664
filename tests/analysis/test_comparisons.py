"""Tests against the control: exactness, published examples, error rates, missing studies."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_tables import simulated, table
from scipy import stats

from gpt_search.analysis.comparisons import (
    EXACT_UP_TO,
    a12,
    holm,
    magnitude,
    paired_comparisons,
    pairs_needed,
    signed_rank,
    smallest_p,
)
from gpt_search.domain.errors import InputError
from gpt_search.measure.intervals import share

FEW = st.lists(st.integers(-4, 4), min_size=1, max_size=9)


def brute_force(d: np.ndarray) -> tuple[float, float]:
    """One-sided p-values over all 2^n signs, by Pratt's ranks."""
    ranks = stats.rankdata(np.abs(d))
    observed = ranks[d > 0].sum()
    sums = [ranks[(np.array(s) * np.abs(d)) > 0].sum() for s in product((-1, 1), repeat=len(d))]
    return float(np.mean(np.array(sums) <= observed + 1e-9)), float(np.mean(np.array(sums) >= observed - 1e-9))


@given(FEW)
@settings(max_examples=60, deadline=None)
def test_the_distribution_is_exact_with_ties_and_zeros(values: list[int]) -> None:
    found = signed_rank(values)
    assert (found.less, found.greater) == pytest.approx(brute_force(np.array(values, float)))


@pytest.mark.parametrize("n", [3, 10, 25, 40])
def test_without_ties_it_is_scipys_exact_test(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1, n)
    found = signed_rank(d)
    for side, mine in (("less", found.less), ("greater", found.greater), ("two-sided", found.p)):
        assert mine == pytest.approx(stats.wilcoxon(d, alternative=side, method="exact").pvalue, rel=1e-9)


def test_wilcoxons_example() -> None:
    """Darwin's 15 pairs of maize plants (eighths of an inch), as in many textbooks: W = 24, p = 0.041."""
    d = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert signed_rank(d).p == pytest.approx(0.0413, abs=5e-5)


def test_many_pairs_take_the_normal_approximation() -> None:
    d = np.random.default_rng(3).normal(0.1, 1, EXACT_UP_TO)
    more = np.r_[d, 1e-6]  # one pair more, and the approximation takes over
    assert signed_rank(more).p == pytest.approx(signed_rank(d).p, rel=0.05)


@given(FEW)
def test_the_test_is_symmetric(values: list[int]) -> None:
    d = np.array(values, float)
    found, mirrored = signed_rank(d), signed_rank(-d)
    assert (found.less, found.greater) == pytest.approx((mirrored.greater, mirrored.less))
    assert found.less + found.greater >= 1 - 1e-12  # both hold the observed value


def test_infinite_differences_rank_beyond_all() -> None:
    assert signed_rank([-1, -2, math.inf]) == signed_rank([-1, -2, 100])
    with pytest.raises(ValueError, match="without NaN"):
        signed_rank([1, math.nan])


def test_rounding_makes_no_differences() -> None:
    assert signed_rank([0.1 + 0.2 - 0.3, 1e-12, 0]).p == 1
    assert signed_rank([0.3, -(0.1 + 0.2)]) == signed_rank([1, -1])


def test_holms_own_arithmetic() -> None:
    """p = 0.01, 0.04, 0.03, 0.005 of 4: 0.005 x 4, 0.01 x 3, 0.03 x 2, then no smaller than the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]
    assert holm([]).size == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_raw_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert (adjusted >= np.array(p) - 1e-15).all() and (adjusted <= np.minimum(1, len(p) * np.array(p)) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def test_a12_of_a_published_example() -> None:
    """Hogarty and Kromrey (1999), Cliff's delta -0.25; A = (delta + 1) / 2 of the larger, here of the smaller."""
    treatment = [10, 10, 20, 20, 20, 30, 30, 30, 40, 50]
    control = [10, 20, 30, 40, 40, 50]
    assert a12(control, treatment) == pytest.approx(0.375)
    assert a12(treatment, control) == pytest.approx(0.625)
    assert a12([], control) != a12([], control)


def test_a12_words_are_cohens_under_normal_distributions() -> None:
    """Vargha and Delaney (2000) set their limits where Cohen's d is 0.2, 0.5 and 0.8."""
    for d, word in ((0.2, "small"), (0.5, "medium"), (0.8, "large")):
        effect = round(stats.norm.cdf(d / math.sqrt(2)), 2)
        assert magnitude(effect) == magnitude(1 - effect) == word
    assert magnitude(0.55) == "negligible" and magnitude(math.nan) == ""


@given(FEW, FEW)
def test_a12_is_what_its_definition_counts(x: list[int], y: list[int]) -> None:
    counted = np.mean([(a < b) + 0.5 * (a == b) for a in x for b in y])
    assert a12(x, y) == pytest.approx(counted)
    assert a12(x, y) + a12(y, x) == pytest.approx(1)


def test_one_comparison_by_hand() -> None:
    mine, theirs = [-0.5, -0.4, -0.6, -0.5], [-0.3, -0.3, -0.2, -0.4]
    row = paired_comparisons(table({("t", "a"): mine, ("t", "c"): theirs}), "c").iloc[0]
    assert (row["n"], row["missing"], row["p"], row["holm"]) == (4, 0, 0.125, 0.125)
    assert row["mean"] == pytest.approx(-0.2) and row["median"] == pytest.approx(-0.15)
    assert row["percent"] == pytest.approx(100 * math.expm1(-0.2))
    assert row["a12"] == pytest.approx(15.5 / 16) and row["size"] == "large"
    assert row["low"] < -0.2 < row["high"]
    assert row["outcome"] == "not distinguishable"


def test_the_control_and_the_strategy_change_places() -> None:
    frame = simulated({"a": 0, "c": 6}, tasks=2, seeds=30)
    first, second = paired_comparisons(frame, "c"), paired_comparisons(frame, "a")
    assert first["p"].tolist() == pytest.approx(second["p"].tolist())
    assert (first["a12"] + second["a12"]).tolist() == pytest.approx([1.0, 1.0])
    assert first["low"].tolist() == pytest.approx((-second["high"]).tolist())
    assert set(first["outcome"]) == {"worse"} and set(second["outcome"]) == {"better"}


def test_the_family_is_what_was_declared() -> None:
    frame = simulated({"a": 1, "b": 0, "c": 0}, tasks=2, seeds=10, budgets=[1, 2])
    each, together = paired_comparisons(frame, "c"), paired_comparisons(frame, "c", family="all")
    for _, rows in each.groupby("budget"):
        assert rows["holm"].tolist() == holm(rows["p"]).tolist()
    assert together["holm"].tolist() == holm(together["p"]).tolist()
    assert each["p"].tolist() == together["p"].tolist() and (together["holm"] >= each["holm"]).all()


def test_studies_that_recommend_nothing_count_as_the_reference() -> None:
    frame = table({("t", "a"): [np.nan] * 6, ("t", "c"): [-0.5] * 6})
    row = paired_comparisons(frame, "c").iloc[0]
    assert row["outcome"] == "worse" and row["n"] == 6 and row["mean"] == 0.5


def test_missing_studies_never_help_a_claim() -> None:
    rng = np.random.default_rng(0)
    mine, theirs = -0.5 - 0.1 * rng.random(12), -0.4 + 0.1 * rng.random(12)
    whole = table({("t", "a"): mine, ("t", "c"): theirs})
    assert paired_comparisons(whole, "c")["outcome"].tolist() == ["better"]
    p = []
    for missing in range(5):
        for name in ("a", "c"):
            lacking = whole[~((whole["strategy"] == name) & (whole["seed"] < missing))]
            row = paired_comparisons(lacking, "c").iloc[0]
            assert row["missing"] == missing and row["n"] == 12 - missing
            p.append(row["p"])
            # As if the missing ones had been as bad for the claim as can be.
            worst = np.where(np.arange(12) < missing, 9.0, mine - theirs)
            assert row["p"] == pytest.approx(min(1, 2 * signed_rank(worst).less))
    assert p == sorted(p) and p[0] < 0.001 and p[-1] > 0.05


def test_a_strategy_without_studies_on_a_task() -> None:
    frame = table({("t", "a"): [-0.5] * 8, ("t", "c"): [-0.1] * 8, ("u", "c"): [-0.1] * 8})
    found = paired_comparisons(frame, "c").set_index("task")
    assert found.loc["u", "outcome"] == "no data" and found.loc["u", "p"] == 1 and found.loc["u", "missing"] == 8
    assert found.loc["t", "holm"] == pytest.approx(2 * 2 / 2**8)  # the family keeps its size
    assert found.loc["t", "outcome"] == "better"


def test_differences_within_the_floor_are_marked() -> None:
    frame = table({("t", "a"): [-0.105] * 8, ("t", "c"): [-0.1] * 8}, floor=0.01)
    row = paired_comparisons(frame, "c").iloc[0]
    assert row["outcome"] == "better" and row["below_floor"]
    assert not paired_comparisons(frame.assign(floor=0.001), "c")["below_floor"].iloc[0]


@pytest.mark.parametrize("missing", [False, True])
def test_the_family_wise_error_rate_holds(missing: bool) -> None:
    """No strategy differs from the control: any claim on any task is an error. 400 experiments, one per budget."""
    repeats = 400
    null = {"a": 0.0, "b": 0.0, "c": 0.0}
    frame = simulated(null, tasks=3, seeds=10, budgets=np.arange(1, repeats + 1), seed=7)
    if missing:
        frame = frame[np.random.default_rng(1).random(len(frame)) > 0.05].reset_index(drop=True)
    found = paired_comparisons(frame, "c", alpha=0.1, resamples=0)
    wrong = int(found["outcome"].isin(["better", "worse"]).groupby(found["budget"]).any().sum())
    assert share(wrong, repeats).low <= 0.1
    if not missing:
        assert share(wrong, repeats).high > 0.01  # and the test is not one that never claims anything


def test_it_holds_for_the_true_nulls_among_real_differences() -> None:
    repeats = 300
    frame = simulated({"better": 5, "same": 0, "c": 0}, tasks=3, seeds=12, budgets=np.arange(1, repeats + 1), seed=8)
    found = paired_comparisons(frame, "c", alpha=0.1, resamples=0)
    null = found[found["strategy"] == "same"]
    wrong = int(null["outcome"].isin(["better", "worse"]).groupby(null["budget"]).any().sum())
    assert share(wrong, repeats).low <= 0.1
    real = found[found["strategy"] == "better"]
    assert (real["outcome"] == "better").mean() > 0.7 and not (real["outcome"] == "worse").any()


def test_how_many_pairs_it_takes() -> None:
    assert smallest_p(5) == 0.0625 == signed_rank([1, 2, 3, 4, 5]).p
    assert pairs_needed(1) == 6 and smallest_p(6) <= 0.05 < smallest_p(5)
    for m in (2, 20, 308):
        n = pairs_needed(m)
        assert m * smallest_p(n) <= 0.05 < m * smallest_p(n - 1)


def test_bad_input() -> None:
    frame = table({("t", "random"): [-0.1], ("t", "tpe"): [-0.1]})
    with pytest.raises(InputError, match="did you mean 'random'"):
        paired_comparisons(frame, "randon")
    with pytest.raises(InputError, match="needs another strategy"):
        paired_comparisons(frame[frame["strategy"] == "tpe"], "tpe")
    with pytest.raises(InputError, match="alpha is 5"):
        paired_comparisons(frame, "tpe", 5)
    with pytest.raises(InputError, match="no results at budget 7; it has 100"):
        paired_comparisons(frame, "tpe", budgets=[7])
    with pytest.raises(InputError, match="unknown family 'task'; allowed: budget, all"):
        paired_comparisons(frame, "tpe", family="task")
    with pytest.raises(InputError, match="stands twice"):
        paired_comparisons(pd.concat([frame, frame], ignore_index=True), "tpe")
