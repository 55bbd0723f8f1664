"""Bootstrap intervals: against brute force, and how often they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gpt_search.analysis.bootstrap import mean_interval, median_ranks, tail, weights
from gpt_search.measure.intervals import share


@pytest.mark.parametrize("n", [1, 2, 5, 9, 15, 31])
def test_the_interval_of_a_median_is_the_bootstrap_with_many_resamples(n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.sort(rng.normal(size=n))
    medians = np.median(x[rng.integers(n, size=(40_000, n))], axis=1)
    low, high = median_ranks(n)
    cut, room = (tail(n), 0.1 * tail(n) + 2e-4) if n > 1 else (0.5, 0)  # the room that 40,000 resamples need
    for found, q in ((x[low], cut), (x[high], 1 - cut)):
        least, most = np.quantile(medians, [max(q - room, 0), min(q + room, 1)], method="inverted_cdf")
        assert least <= found <= most


@pytest.mark.parametrize("n", [2, 4, 10, 30])
def test_with_an_even_number_it_holds_the_bootstrap_interval_of_the_middle(n: int) -> None:
    rng = np.random.default_rng(n)
    x = np.sort(rng.normal(size=n))
    medians = np.median(x[rng.integers(n, size=(40_000, n))], axis=1)
    low, high = median_ranks(n)
    outer = np.quantile(medians, [1.1 * tail(n) + 2e-4, 0.9998 - 1.1 * tail(n)])
    assert x[low] <= outer[0] and outer[1] <= x[high]
    inner = np.quantile(medians, [0.5 * tail(n), 1 - 0.5 * tail(n)])
    assert low + 1 >= n // 2 or x[low + 1] >= inner[0]  # and is not much wider


def test_coverage_of_the_median() -> None:
    """Exact for a continuous distribution: P(low < Binomial(n, 1/2) <= high)."""
    covers = {}
    for n in range(5, 101):
        low, high = median_ranks(n)
        covers[n] = stats.binom.cdf(high, n, 0.5) - stats.binom.cdf(low, n, 0.5)
    assert min(covers.values()) > 0.93
    assert covers[30] == pytest.approx(0.957, abs=0.001)


def test_the_tail_of_the_expanded_interval() -> None:
    assert tail(10**6) == pytest.approx(0.025, abs=1e-5)
    assert tail(10) == pytest.approx(stats.norm.cdf(-np.sqrt(10 / 9) * 2.2621572), abs=1e-6)


@pytest.mark.parametrize(("n", "kind"), [(10, "normal"), (30, "normal"), (30, "skewed"), (30, "tied")])
def test_coverage_of_the_mean(n: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    size = (2000, n)
    draws, truth = {
        "normal": (rng.normal(size=size), 0.0),
        "skewed": (rng.exponential(size=size), 1.0),
        "tied": (rng.binomial(2, 0.25, size=size).astype(float), 0.5),
    }[kind]
    low, high = mean_interval(draws, resamples=1000)
    covered = int(((low <= truth) & (truth <= high)).sum())
    nominal = 0.90 if kind == "skewed" else 0.935
    assert share(covered, size[0], 0.999).high > nominal
    plain = np.quantile(draws @ weights(n, 1000).T / n, [0.025, 0.975], axis=1)
    assert ((plain[0] <= truth) & (truth <= plain[1])).sum() <= covered


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.floats(-5, 5))
def test_intervals_hold_the_mean_and_move_with_the_values(values: list[float], by: float) -> None:
    low, high = mean_interval(values, resamples=200)
    assert low[0] <= np.mean(values) + 1e-9 and high[0] >= np.mean(values) - 1e-9
    moved = mean_interval(np.array(values) + by, resamples=200)
    assert moved[0][0] == pytest.approx(low[0] + by, abs=1e-9)


def test_one_value_has_no_interval() -> None:
    low, high = mean_interval([[1.0], [2.0]])
    assert np.isnan(low).all() and np.isnan(high).all()


def test_samples_do_not_depend_on_their_neighbours() -> None:
    x = np.random.default_rng(1).normal(size=(600, 8))
    alone = mean_interval(x[555])
    assert mean_interval(x)[0][555] == pytest.approx(alone[0][0], abs=1e-12)
