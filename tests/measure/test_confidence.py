from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, nct, norm
from scipy.stats import t as student

from gpt_search.measure.confidence import (
    LOWER_SHARE,
    SIGN_SHARE,
    Bounds,
    bounds,
    counts,
    critical_count,
    critical_t,
    log_mixture,
    log_sign_mixture,
    margins,
    spending,
    spread_of,
)


def test_the_spending_series_sums_to_alpha_and_never_above() -> None:
    spent = np.cumsum([spending(i, 0.05) for i in range(1, 200_001)])
    assert (np.diff(spent) > 0).all()
    assert spent[-1] == pytest.approx(0.05 * 200_000 / 200_100, rel=1e-9)
    assert spent[-1] < 0.05


def test_late_routes_are_left_more_than_by_the_inverse_squares() -> None:
    for i in (100, 1000):
        assert spending(i, 0.05) > 40 * 0.05 * 6 / (math.pi * i) ** 2


@pytest.mark.parametrize(("index", "alpha"), [(0, 0.05), (-1, 0.05), (1, 0.0), (1, 1.0), (1, math.nan)])
def test_what_no_series_is_made_of_is_refused(index: int, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"index of a route|alpha is"):
        spending(index, alpha)


@pytest.mark.parametrize(
    ("n", "t", "g"), [(2, 1.0, 30.0), (3, 1.0, 0.5), (5, 3.0, 30.0), (5, -2.0, 2.0), (8, 6.0, 10.0), (15, 4.0, 1.0)]
)
def test_the_mixture_is_the_likelihood_ratio_of_t_mixed_over_a_half_normal(n: int, t: float, g: float) -> None:
    """Numerical integration of the noncentral t density over theta, the definition."""

    def mixed(theta: float) -> float:
        ratio = nct.pdf(t, n - 1, math.sqrt(n) * theta) / student.pdf(t, n - 1)
        return float(ratio * 2 * norm.pdf(theta, scale=math.sqrt(g)))

    assert math.exp(log_mixture(n, t, g)) == pytest.approx(quad(mixed, 0, 6 * math.sqrt(g), limit=200)[0], rel=1e-6)


@pytest.mark.parametrize("n", [3, 5, 30])
def test_the_mixture_is_on_average_1_and_rises_with_t(n: int) -> None:
    """The mean of a likelihood ratio under the null; by integration, as its tail is too heavy for drawing."""

    def weighted(t: float) -> float:
        return math.exp(log_mixture(n, t)) * float(student.pdf(t, n - 1))

    parts = [(-100, -8), (-8, 0), (0, 8), (8, 100), (100, 1e4), (1e4, 1e7)]
    assert sum(quad(weighted, *part, limit=200)[0] for part in parts) == pytest.approx(1, abs=2e-3)
    values = [log_mixture(n, t) for t in np.linspace(-5, 50, 200)]
    assert (np.diff(values) > 0).all()


@given(st.integers(2, 300), st.floats(1e-9, 0.4))
def test_the_critical_t_is_where_the_mixture_reaches_its_level(n: int, delta: float) -> None:
    t = critical_t(n, delta)
    if math.isinf(t):
        assert log_mixture(n, 1e6) < -math.log(delta)
    else:
        assert log_mixture(n, t) == pytest.approx(-math.log(delta), abs=1e-6)
        # A bound for all times can only be wider than one for this time alone.
        assert t > student.isf(delta, n - 1)


def test_one_round_says_nothing() -> None:
    assert bounds([0.3], 1, 0.05) == Bounds(-math.inf, math.inf)
    assert math.isinf(critical_t(1, 0.01))


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=20), st.floats(-3, 3), st.floats(0.1, 10))
def test_bounds_move_with_the_rounds_and_scale_with_them(x: list[float], shift: float, scale: float) -> None:
    low, high = bounds(x, 7, 0.05)
    moved = bounds([scale * v + shift for v in x], 7, 0.05)
    assert moved.lower == pytest.approx(scale * low + shift, abs=1e-6)
    assert moved.upper == pytest.approx(scale * high + shift, abs=1e-6)
    mirrored = bounds([-v for v in x], 7, 0.05)
    below, above = margins(len(x), 7, 0.05)
    ordered, (for_lower, for_upper) = sorted(x), counts(len(x), 7, 0.05)
    by_sign = ordered[-for_lower] if for_lower <= len(x) else -math.inf
    assert low == pytest.approx(max(np.mean(x) - below * spread_of(x), by_sign), abs=1e-9)
    of_mirrored = -ordered[-for_upper] if for_upper <= len(x) else math.inf
    assert mirrored.upper == pytest.approx(min(above * spread_of(x) - np.mean(x), of_mirrored), abs=1e-9)


def test_a_least_spread_only_widens() -> None:
    x = [0.0, 0.001, 0.0, 0.001, 0.0, 0.001, 0.0, 0.001]
    assert bounds(x, 3, 0.05, 1e-6) == bounds(x, 3, 0.05)
    plain, wide = bounds(x, 3, 0.05), bounds(x, 3, 0.05, 0.01)
    assert wide.lower < plain.lower < plain.upper < wide.upper
    assert wide.upper - np.mean(x) == pytest.approx(margins(8, 3, 0.05)[1] * 0.01)


def test_later_routes_and_smaller_alphas_get_wider_bounds_more_rounds_narrower_ones() -> None:
    assert margins(10, 1, 0.05) < margins(10, 50, 0.05) < margins(10, 50, 0.01)
    assert margins(10, 5, 0.05) > margins(20, 5, 0.05) > margins(60, 5, 0.05)
    assert LOWER_SHARE > 0.5 and margins(20, 5, 0.05)[0] < margins(20, 5, 0.05)[1]


@pytest.mark.parametrize("x", [[], [math.nan, 0.1], [math.inf, 0.0], [[0.1], [0.2]]])
def test_unusable_rounds_are_refused(x: list[float]) -> None:
    with pytest.raises(ValueError, match="finite log-ratios"):
        bounds(x, 1, 0.05)


@pytest.mark.parametrize("sigma", [0.01, 7.0])
def test_the_bounds_hold_after_every_round_at_once(sigma: float) -> None:
    """Checked at a delta large enough to be seen: 20,000 sequences of 60 rounds, whatever their variance."""
    delta, repeats, most = 0.2, 20_000, 60
    x = 1.5 + sigma * np.random.default_rng(0).standard_normal((repeats, most))
    missed = np.zeros(repeats, bool)
    for n in range(2, most + 1):
        seen = x[:, :n]
        lower = seen.mean(axis=1) - critical_t(n, delta) * seen.std(axis=1, ddof=1) / math.sqrt(n)
        missed |= lower > 1.5
    # Some must be missed, or the bounds are far wider than they have to be.
    assert 0.02 < missed.mean() <= delta


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_sign_mixture_is_the_likelihood_ratio_mixed_over_p(n: int) -> None:
    k = np.arange(n + 1)
    mixture = np.exp(log_sign_mixture(n, k))
    for i in k.tolist():
        by_definition, _ = quad(lambda p, i=i: 2 * 2.0**n * p**i * (1 - p) ** (n - i), 0.5, 1)
        assert mixture[i] == pytest.approx(by_definition, rel=1e-8)
    # Under p = 1/2 its mean is 1, and more rounds above say more.
    assert float((mixture * binom.pmf(k, n, 0.5)).sum()) == pytest.approx(1)
    assert (np.diff(mixture) > 0).all()


def test_the_sign_test_starts_when_all_rounds_above_are_enough() -> None:
    assert critical_count(5, 0.01) == 6
    first = next(n for n in range(1, 60) if critical_count(n, 1e-5) <= n)
    assert 2 ** (first + 1) / (first + 1) >= 1e5 > 2**first / first
    assert critical_count(first, 1e-5) == first


def test_the_sign_bound_holds_after_every_round_at_once_whatever_the_spread() -> None:
    """Rounds around a median of 1.5 whose spread follows from what was seen before, and is often enormous."""
    delta, repeats, most = 0.2, 20_000, 80
    rng = np.random.default_rng(1)
    x = np.empty((repeats, most))
    for n in range(most):
        spread = np.where(x[:, n - 1] > 1.5, 100.0, 1.0) if n else np.ones(repeats)
        x[:, n] = 1.5 + spread * np.abs(rng.standard_cauchy(repeats)) * rng.choice([-1.0, 1.0], repeats)
    missed = np.zeros(repeats, bool)
    for n in range(1, most + 1):
        count = critical_count(n, delta)
        if count <= n:
            missed |= np.sort(x[:, :n], axis=1)[:, n - count] > 1.5
    assert 0.05 < missed.mean() <= delta


def test_bursts_over_whole_rounds_leave_the_sign_bound_tight() -> None:
    rng = np.random.default_rng(2)
    x = 0.05 + 0.01 * rng.standard_normal(60) * np.where(rng.random(60) < 0.1, 10.0, 1.0)
    below = margins(60, 50, 0.05)[0]
    by_mean = float(x.mean()) - below * spread_of(x)
    assert by_mean < 0.03 < bounds(x, 50, 0.05).lower < 0.05
    assert 0 < SIGN_SHARE < 0.5
