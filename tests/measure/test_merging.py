from __future__ import annotations

import numpy as np
import pytest
from measure_simulations import BUILD_NOISES, merge_checks

from gpt_search.measure.confidence import spending
from gpt_search.measure.intervals import share
from gpt_search.measure.merging import ALPHA, USUAL_CHECKS, difference


def test_the_errors_of_all_checks_together_stay_below_alpha() -> None:
    levels = [spending(check, ALPHA, USUAL_CHECKS) for check in range(1, 5000)]
    assert 0.99 * ALPHA < sum(levels) < ALPHA and levels == sorted(levels, reverse=True)


@pytest.mark.parametrize("noise", ["normal", "t3"])
@pytest.mark.parametrize("between", BUILD_NOISES)
def test_equal_engines_are_rarely_called_different_though_racing_stops_early(noise: str, between: float) -> None:
    """The first check of a study may be wrong with probability 0.45 %. Builds differ by `between`, and racing looks."""
    wrong, least = merge_checks(700, noise, between)
    assert share(wrong, 700).low <= spending(1, ALPHA, USUAL_CHECKS) and 0.01 < least < 0.1


def test_without_the_noise_between_builds_many_equal_engines_would_be_called_different() -> None:
    rng = np.random.default_rng(4)
    pairs = [
        [(0.01 * rng.standard_normal() + 0.005 * rng.standard_normal(60)).tolist() for _ in range(2)]
        for _ in range(200)
    ]
    assert sum(difference(one, other, 0.0, 1).significant for one, other in pairs) > 100
    assert sum(difference(one, other, 0.01, 1).significant for one, other in pairs) <= 4


def test_a_difference_of_a_few_errors_is_seen_and_its_least_size_told() -> None:
    rng = np.random.default_rng(5)
    seen = 0
    for _ in range(200):
        first, second = (0.01 * rng.standard_normal(20)).tolist(), (0.03 + 0.01 * rng.standard_normal(15)).tolist()
        found = difference(first, second, 0.0, 1)
        assert found.significant == (abs(found.log_ratio) > found.least) and 0.01 < found.least < 0.04
        seen += found.significant
    assert seen > 190
    later = difference(first, second, 0.0, 10)
    assert later.least > found.least and later.log_ratio == found.log_ratio
    assert difference([0.0, 0.0], [0.0, 0.0], 0.0, 1).significant is False
    assert difference([0.0, 0.0], [0.1, 0.1], 0.0, 1).significant is True
    with pytest.raises(ValueError, match="two rounds"):
        difference([0.0], [0.1, 0.2], 0.0, 1)


def test_a_share_has_its_exact_interval() -> None:
    """Against the tables' 0 of 10 and 1 of 10."""
    assert (share(0, 10).low, share(0, 10).high) == (0.0, pytest.approx(0.30850, abs=1e-5))
    assert (share(1, 10).low, share(1, 10).high) == (pytest.approx(0.00253, abs=1e-5), pytest.approx(0.44502, abs=1e-5))
    assert share(10, 10).high == 1.0 and str(share(1, 10)) == "1 of 10 [0.25 %, 45 %]"
    assert share(0, 0).to_json() == {"events": 0, "tried": 0, "estimate": None, "low": 0.0, "high": 1.0}
    with pytest.raises(ValueError, match="2 events of 1"):
        share(2, 1)
