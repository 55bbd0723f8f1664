from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_simulations import NOISES
from numpy.typing import NDArray
from scipy.stats import t as student

from gpt_search.measure.equivalence import (
    ALPHA,
    MOST_BUILDS,
    Equivalence,
    builds_needed,
    detectable,
    non_inferiority,
    power,
)
from gpt_search.measure.intervals import MIN_BUILDS, ratio_interval


def rates(
    loss: float, margin: float, spread: float, builds: int, repeats: int, noise: str = "normal"
) -> dict[str, float]:
    """How often each result comes out, the candidate being `loss` slower (log-ratio)."""
    draw = NOISES[noise](np.random.default_rng(0), (repeats, builds))
    found = [non_inferiority(row, margin).result for row in loss + spread * draw]
    return {r.name: found.count(r) / repeats for r in Equivalence}


@pytest.mark.parametrize("noise", list(NOISES))
@pytest.mark.parametrize("builds", [5, 9])
def test_a_candidate_slower_by_the_margin_is_let_go_at_most_at_the_level(noise: str, builds: int) -> None:
    """4000 repeats: three standard errors of a share of 2.5 % are 0.74 %. Heavy tails make the test cautious."""
    found = rates(0.01, 0.01, 0.005, builds, 4000, noise)
    assert found["NOT_SLOWER"] <= ALPHA + 0.0075
    assert found["SLOWER"] <= ALPHA + 0.0075
    if noise == "normal":
        assert found["NOT_SLOWER"] >= ALPHA - 0.0075  # exact, not merely cautious
    assert rates(0.02, 0.01, 0.005, builds, 2000, noise)["NOT_SLOWER"] <= 0.002


@pytest.mark.parametrize(("margin", "spread", "builds"), [(0.01, 0.01, 13), (0.01, 0.005, 5), (0.003, 0.006, 20)])
def test_the_power_is_what_simulations_find(margin: float, spread: float, builds: int) -> None:
    share = rates(0.0, margin, spread, builds, 4000)["NOT_SLOWER"]
    assert share == pytest.approx(power(margin, spread, builds), abs=0.025)


def test_stopping_early_for_slower_never_lets_more_go() -> None:
    """As `minimise` does it: after each pair from the third on, a candidate that is clearly slower is dropped."""
    draw = np.random.default_rng(1).standard_normal((4000, 9))

    def stopped(row: NDArray[np.float64]) -> tuple[int, Equivalence]:
        for n in range(3, 10):
            found = non_inferiority(row[:n], 0.01).result
            if found is Equivalence.SLOWER:
                break
        return n, found

    at_the_margin = [stopped(row) for row in 0.01 + 0.005 * draw]
    let_go = [r is Equivalence.NOT_SLOWER for _, r in at_the_margin]
    without = [non_inferiority(row, 0.01).result is Equivalence.NOT_SLOWER for row in 0.01 + 0.005 * draw]
    assert not (np.array(let_go) & ~np.array(without)).any() and sum(let_go) > 0
    assert np.mean(let_go) <= ALPHA + 0.0075
    # What is far slower costs three pairs, not nine.
    assert np.mean([n for n, _ in (stopped(row) for row in 0.05 + 0.005 * draw[:500])]) < 3.5


def test_the_result_follows_from_the_interval() -> None:
    x = [0.001, 0.002, 0.0, 0.001, 0.002]
    found = non_inferiority(x, 0.01)
    assert found.interval == ratio_interval(x, 0.95) and found.result is Equivalence.NOT_SLOWER
    assert non_inferiority([v + 0.05 for v in x], 0.01).result is Equivalence.SLOWER
    assert non_inferiority([v + 0.009 for v in x], 0.01).result is Equivalence.UNDECIDED
    # Just at the margin is not below it.
    assert non_inferiority([0.01] * 5, 0.01).result is not Equivalence.NOT_SLOWER
    assert non_inferiority([0.0], 0.01).result is Equivalence.UNDECIDED  # one pair decides nothing


@given(st.floats(1e-4, 0.1), st.floats(1e-4, 0.1), st.floats(0.5, 0.99))
def test_the_planned_builds_are_the_fewest_that_do(margin: float, spread: float, wanted: float) -> None:
    n = builds_needed(margin, spread, wanted)
    if n is None:
        assert power(margin, spread, MOST_BUILDS) < wanted
    else:
        assert n >= MIN_BUILDS and power(margin, spread, n) >= wanted
        assert n == MIN_BUILDS or power(margin, spread, n - 1) < wanted


@given(st.floats(1e-5, 0.1), st.integers(2, 60))
def test_what_is_detectable_is_detected_with_that_probability(spread: float, builds: int) -> None:
    assert power(detectable(spread, builds), spread, builds) == pytest.approx(0.8, abs=1e-3)


def test_detectable_at_the_ends() -> None:
    assert detectable(0.0, 7) == 0.0 and detectable(0.01, 1) == math.inf
    assert detectable(0.01, 7) > detectable(0.01, 8) > detectable(0.005, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: non_inferiority([0.0, 0.1], 0.0), "the margin is 0.0; it must be positive"),
        (lambda: non_inferiority([0.0, 0.1], math.nan), "the margin is nan"),
        (lambda: non_inferiority([0.0, 0.1], 0.1, 0.5), "must lie between 0 and 0.5"),
        (lambda: non_inferiority([], 0.1), "at least one log-ratio"),
        (lambda: power(0.1, -1.0, 5), "the spread is -1.0; it must be positive"),
        (lambda: builds_needed(0.1, 0.1, 1.0), "the power is 1.0"),
        (lambda: detectable(-0.1, 5), "it must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("builds", "shift"), [(2, 29.0), (2, 31.0), (2, 60.0), (5, 61.1), (10, 38.6), (50, 39.6)])
def test_power_far_off_is_a_number_and_right(builds: int, shift: float) -> None:
    """There the noncentral t of scipy may be NaN; the same chance by simulation."""
    found = power(shift / math.sqrt(builds), 1.0, builds)
    rng = np.random.default_rng(0)
    s = np.sqrt(rng.chisquare(builds - 1, 400_000) / (builds - 1))
    t = (rng.standard_normal(400_000) + shift) / s
    shown = float((t > student.ppf(0.975, builds - 1)).mean())
    assert found == pytest.approx(shown, abs=4 * math.sqrt(max(shown * (1 - shown), 1e-7) / 400_000) + 1e-6)
    assert power(0.0546875, 0.002, 5) == pytest.approx(1.0, abs=1e-6)
