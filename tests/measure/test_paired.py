import math
import time
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_simulations import NOISES, z_scores

from gpt_search.domain.evaluation import Round
from gpt_search.measure.paired import _EXACT, estimate_of, log_ratio_of, order_statistics, paired_estimate

_logs = st.lists(st.floats(-3, 3), min_size=2, max_size=30)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rounds", [3, 4, 5, 6, 8, 11, 15])
def test_z_scores_are_about_standard_normal(noise: str, rounds: int) -> None:
    z = z_scores(noise, rounds, 4000)
    assert np.mean(np.abs(z) > 1.96) < 0.07  # honest: 5 % nominal, Monte Carlo error 0.35 %
    assert np.mean(np.abs(z) > 1.96) > 0.015  # and not by being useless
    assert np.mean(np.abs(z) > 3) < 0.03
    assert abs(np.mean(z > 0) - 0.5) < 0.03


def test_drift_shared_by_both_sides_cancels() -> None:
    rng = np.random.default_rng(0)
    drift = np.linspace(1, 2, 12)
    rounds = [
        Round(tuple(0.9 * d * np.exp(0.01 * rng.standard_normal(9))), tuple(d * np.exp(0.01 * rng.standard_normal(9))))
        for d in drift
    ]
    found = paired_estimate(rounds)
    assert found.rounds == 12
    assert abs(found.log_ratio - math.log(0.9)) < 4 * found.error
    assert 0 < found.error < 0.01


def test_one_burst_moves_neither_estimate_nor_error_much() -> None:
    quiet = [0.01 * x for x in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2)]
    loud = [*quiet[:-1], 5.0]
    assert estimate_of(loud).log_ratio == estimate_of(quiet).log_ratio
    assert estimate_of(loud).error == pytest.approx(estimate_of(quiet).error, rel=0.5)


def test_each_side_is_summed_up_by_its_median() -> None:
    assert log_ratio_of(Round((2.0, 2.0, 900.0), (1.0, 1.0, 1.0, 500.0, 0.5))) == pytest.approx(math.log(2))


def test_equal_rounds_have_no_error_and_one_round_has_no_known_error() -> None:
    assert paired_estimate([Round((2.0,), (4.0,))] * 5) == (math.log(0.5), 0.0, 5)
    assert paired_estimate([Round((2.0,), (4.0,))]) == (math.log(0.5), math.inf, 1)


@given(_logs, st.floats(-2, 2), st.sampled_from([0.25, 2.0, 8.0]), st.randoms())
def test_equivariance(logs: list[float], shift: float, scale: float, random: object) -> None:
    base = estimate_of(logs)
    moved = estimate_of([scale * x + shift for x in logs])
    assert moved.log_ratio == pytest.approx(scale * base.log_ratio + shift, abs=1e-9)
    assert moved.error == pytest.approx(scale * base.error, abs=1e-9)
    shuffled = list(logs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert estimate_of(shuffled) == base


@given(_logs)
def test_swapping_sides_turns_the_sign(logs: list[float]) -> None:
    turned = estimate_of([-x for x in logs])
    assert turned.log_ratio == pytest.approx(-estimate_of(logs).log_ratio)
    assert turned.error == pytest.approx(estimate_of(logs).error)


def test_large_numbers_of_rounds() -> None:
    x = np.random.default_rng(0).standard_normal(2001)
    assert estimate_of(x).error == pytest.approx(math.sqrt(math.pi / 2 / 2001), rel=0.2)


@pytest.mark.parametrize(
    "rounds",
    [[], [Round((), (1.0,))], [Round((1.0,), ())], [Round((1.0, math.nan), (1.0,))], [Round((0.0,), (1.0,))]],
)
def test_unusable_rounds(rounds: list[Round]) -> None:
    with pytest.raises(ValueError, match=r"round|samples"):
        paired_estimate(rounds)


def test_the_order_statistics_of_very_many_rounds_come_at_once_and_go_on_from_those_of_fewer() -> None:
    (k, divisor), (next_k, next_divisor) = order_statistics(_EXACT), order_statistics(_EXACT + 1)
    assert 0 <= next_k - k <= 1 and next_divisor == pytest.approx(divisor, rel=0.02)
    n = _EXACT + 1
    exact = sum(math.comb(n, i) for i in range(next_k)) / 2**n
    assert next_divisor == pytest.approx(2 * NormalDist().inv_cdf(1 - exact), rel=1e-12)
    began = time.monotonic()
    assert order_statistics(10**7)[1] == pytest.approx(4, rel=1e-3)  # two standard errors at either side
    assert time.monotonic() - began < 5
