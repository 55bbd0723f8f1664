import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_simulations import TAILS, timing_errors

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Round
from gpt_search.measure.paired import (
    Sections,
    latency_of,
    paired_estimate,
    point_log_ratios,
    section_error,
    section_log_ratios,
)
from gpt_search.measure.statistic import MEDIAN, TIMINGS, Statistic


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize(("timing", "repeats"), [("mean", 400), ("p90", 400), ("p99", 150)])
def test_errors_of_pooled_estimates_are_honest(timing: str, repeats: int, tail: str) -> None:
    off, error = timing_errors(timing, tail, 5, repeats).T
    inside = np.mean(np.abs(off) <= 1.96 * error)
    assert 0.88 < inside <= 1.0  # nominal 0.95, Monte Carlo error 0.018 at 150
    assert error.mean() < 6 * off.std()  # and not by being useless
    assert abs(off.mean()) < 0.5 * off.std() + 1e-4


def test_a_tail_quantile_needs_ten_samples_beyond_it() -> None:
    assert [Statistic(t).samples for t in TIMINGS] == [1, 1, 100, 1000, 1]
    few = [Round(tuple(range(1, 100)), tuple(range(1, 102)))]
    assert section_log_ratios(few, Statistic("p90")) == []
    with pytest.raises(ValueError, match="p90 needs 100 samples of each side"):
        paired_estimate(few, Statistic("p90"))
    assert len(section_log_ratios(few * 4, Statistic("p90"))) == 2  # two rounds make a section


def test_values_of_known_samples() -> None:
    x = tuple(float(i) for i in range(1, 101))
    assert Statistic("median").of(x) == 50.5
    assert Statistic("mean").of(x) == Statistic("throughput").of(x) == 50.5
    assert Statistic("p90").of(x) == pytest.approx(90.63, abs=0.01)  # (n + 1/3) q + 1/3


def test_pooled_means_are_of_calls_and_see_the_stall_that_the_median_does_not() -> None:
    rounds = [Round((1.0,) * 10, (1.0,) * 10)] * 9 + [Round((1.0, 99.0), (1.0,) * 10)]
    assert paired_estimate(rounds, MEDIAN).log_ratio == 0.0
    assert paired_estimate(rounds, Statistic("mean")).log_ratio == pytest.approx(math.log((91 + 99) / 92))
    assert latency_of(rounds, "candidate", Statistic("mean")) == pytest.approx(190 / 92)


def test_one_section_has_no_known_error_and_equal_ones_have_none() -> None:
    assert section_error([0.1]) == math.inf
    assert section_error([0.1] * 4) == pytest.approx(0.0, abs=1e-15)
    # Student's t with one degree of freedom over the normal quantile, times s / sqrt(2).
    assert section_error([0.0, 2.0]) == pytest.approx(12.706 / 1.96, rel=1e-4)


@pytest.mark.parametrize("timing", ["median", "mean"])
def test_points_are_a_weighted_mean_of_log_ratios(timing: str) -> None:
    statistic = Statistic(timing, (1.0, 3.0))
    rounds = [
        Round((1.0 * s,) * 3, (2.0 * s,) * 3, point=0) if i % 2 == 0 else Round((4.0 * s,) * 3, (1.0 * s,) * 3, point=1)
        for i, s in enumerate([1, 1, 1.1, 1.1, 0.9, 0.9])
    ]
    expected = (math.log(0.5) + 3 * math.log(4)) / 4
    assert section_log_ratios(rounds, statistic) == pytest.approx([expected] * 3)
    assert paired_estimate(rounds, statistic)[::2] == (pytest.approx(expected), 3)
    assert point_log_ratios(rounds, statistic) == pytest.approx((math.log(0.5), math.log(4)))
    assert latency_of(rounds, "reference", Statistic("median", (1.0, 3.0))) == pytest.approx(2 ** (1 / 4))


def test_a_section_is_whole_after_a_round_at_each_point_only() -> None:
    sections = Sections(Statistic("p90", (1.0, 1.0)))
    x = tuple(float(i) for i in range(1, 61))
    done = [sections.add(Round(x, x, point=i % 2)) for i in range(8)]
    assert done == [False, False, False, True] * 2


@given(st.integers(1, 400), st.lists(st.integers(1, 120), min_size=1, max_size=40))
def test_sections_are_a_function_of_the_rounds(seed: int, counts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    rounds = [Round(tuple(rng.uniform(1, 2, n)), tuple(rng.uniform(1, 2, n))) for n in counts]
    whole = section_log_ratios(rounds, Statistic("p90"))
    assert len(whole) <= sum(counts) // 100
    assert (
        section_log_ratios(rounds[:-1], Statistic("p90"))
        == whole[: len(whole)][: len(section_log_ratios(rounds[:-1], Statistic("p90")))]
    )


@pytest.mark.parametrize("samples", [(), (1.0, -1.0), (math.nan,), (math.inf, 1.0)])
@pytest.mark.parametrize("timing", TIMINGS)
def test_unusable_samples_are_refused(timing: str, samples: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"no samples|positive and finite"):
        Statistic(timing).of(samples)


def test_unknown_timings_and_wrong_weights_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'median'"):
        Statistic("medain")
    for weights in ((), (0.0,), (1.0, math.nan)):
        with pytest.raises(ValueError, match="more than 0"):
            Statistic("median", weights)
