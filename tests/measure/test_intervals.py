import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_simulations import coverage
from scipy import stats

from gpt_search.measure.intervals import (
    Interval,
    Verdict,
    prediction_interval,
    ratio_interval,
    simultaneous_intervals,
    speedup_interval,
    verdict,
)

_logs = st.lists(st.floats(-2, 2), min_size=2, max_size=12)


@pytest.mark.parametrize("builds", [3, 5, 10])
@pytest.mark.parametrize(("noise", "ratio"), [("normal", 0.0), ("t3", 0.1), ("bursts", 1.0)])
def test_coverage(builds: int, noise: str, ratio: float) -> None:
    assert abs(coverage(builds, 2000, ratio, noise) - 0.95) < 0.02  # Monte Carlo error 0.5 %


@given(_logs, st.sampled_from([0.8, 0.95, 0.99]))
def test_is_the_t_interval_of_the_logarithms(logs: list[float], level: float) -> None:
    found = ratio_interval(logs, level)
    if (error := stats.sem(logs)) > 0:
        expected = stats.t.interval(level, len(logs) - 1, np.mean(logs), error)
        assert (found.low, found.high) == pytest.approx(np.exp(expected))
    assert found.estimate == pytest.approx(stats.gmean(np.exp(logs)))
    assert found.low <= found.estimate <= found.high
    assert (found.level, found.n) == (level, len(logs))


@given(_logs)
def test_inverse_ratios_give_the_inverse_interval(logs: list[float]) -> None:
    a, b = ratio_interval(logs), ratio_interval([-x for x in logs])
    assert (1 / b.high, 1 / b.estimate, 1 / b.low) == pytest.approx((a.low, a.estimate, a.high))


def test_speedup_above_one_is_a_faster_candidate() -> None:
    reference, candidate = [10.0, 10.2, 9.9, 10.1, 10.0], [5.0, 5.2, 4.9, 5.0, 5.1]
    found = speedup_interval(reference, candidate)
    assert found == ratio_interval(np.log(reference) - np.log(candidate))
    assert found.estimate == pytest.approx(2, rel=0.02)
    assert verdict(found) is Verdict.FASTER
    assert verdict(speedup_interval(candidate, reference)) is Verdict.SLOWER


def test_verdicts_at_the_edge() -> None:
    assert verdict(Interval(1.0, 1.1, 1.2, 0.95, 5)) is Verdict.NOT_DISTINGUISHABLE
    assert verdict(Interval(0.8, 0.9, 1.0, 0.95, 5)) is Verdict.NOT_DISTINGUISHABLE
    assert verdict(Interval(1.0001, 1.1, 1.2, 0.95, 5)) is Verdict.FASTER
    assert [v for v in Verdict if not v.keep_default] == [Verdict.FASTER]


def test_few_builds_are_preliminary_and_one_says_nothing() -> None:
    assert [ratio_interval([0.1, 0.2, 0.3, 0.4, 0.5][:n]).preliminary for n in range(1, 6)] == [True] * 4 + [False]
    one = ratio_interval([0.7])
    assert (one.low, one.high) == (0.0, math.inf)
    assert verdict(one) is Verdict.NOT_DISTINGUISHABLE
    assert "preliminary" in str(one)
    assert json.loads(json.dumps(one.to_json(), allow_nan=False))["high"] is None


def test_text() -> None:
    assert str(Interval(1.04, 1.0512, 1.06, 0.95, 5)) == "1.051 [1.040, 1.060] (95 %, 5 builds)"


@pytest.mark.parametrize("logs", [[], [math.nan], [0.1, math.inf], [[0.1, 0.2]]])
def test_unusable_log_ratios(logs: list[float]) -> None:
    with pytest.raises(ValueError, match="log-ratio"):
        ratio_interval(logs)


def test_unusable_arguments() -> None:
    with pytest.raises(ValueError, match="level"):
        ratio_interval([0.1, 0.2], 95)
    with pytest.raises(ValueError, match="pairs"):
        speedup_interval([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        speedup_interval([1.0, 0.0], [1.0, 1.0])


def _noise(rng: np.random.Generator, kind: str, size: tuple[int, ...]) -> np.ndarray:
    """Of unit variance, but for "bursts" before its outliers."""
    if kind == "t3":
        return rng.standard_t(3, size) / math.sqrt(3)
    x = rng.standard_normal(size)
    return np.where(rng.random(size) < 0.1, 10 * x, x) if kind == "bursts" else x


@pytest.mark.parametrize("kind", ["normal", "t3", "bursts"])
@pytest.mark.parametrize(("builds", "spreads"), [(2, (1, 1, 1)), (3, (1, 1, 1)), (3, (0.2, 1, 5)), (5, (0.1, 0.1, 8))])
def test_intervals_of_stage_1_hold_together(kind: str, builds: int, spreads: tuple[float, ...]) -> None:
    """Simultaneous coverage with unequal variances; one pooled variance fails where a route is wilder."""
    rng = np.random.default_rng(builds)
    runs, together, pooled = 2000, 0, 0
    limit = stats.t.ppf(1 - 0.025 / 3, 3 * (builds - 1))
    for x in 0.003 * _noise(rng, kind, (runs, 3, builds)) * np.array(spreads)[None, :, None] + 0.02:
        found = simultaneous_intervals(list(x))
        together += all(i.low < math.exp(0.02) < i.high for i in found)
        half = limit * math.sqrt(x.var(axis=1, ddof=1).mean() / builds)
        pooled += bool((np.abs(x.mean(axis=1) - 0.02) < half).all())
    print(f"{kind} {builds} builds {spreads}: {together / runs:.4f}, pooled {pooled / runs:.4f}")
    assert together / runs > 0.94  # Monte Carlo error 0.5 %
    if kind == "normal":
        assert together / runs < 0.965  # and no wider than it must be
        assert spreads != (0.1, 0.1, 8) or pooled / runs < 0.93


def test_simultaneous_intervals_are_of_their_own_builds() -> None:
    groups = [[0.1, 0.2, 0.15], [0.0, 0.01, 0.02]]
    found = simultaneous_intervals(groups)
    assert found == [ratio_interval(x, 0.975) for x in groups]
    assert simultaneous_intervals(groups[:1])[0] == ratio_interval(groups[0])
    assert simultaneous_intervals([]) == []
    with pytest.raises(ValueError, match="confidence level is 2"):
        simultaneous_intervals(groups, 2)


def test_one_more_build_falls_into_its_prediction_interval() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for *x, new in 0.01 * rng.standard_normal((4000, 6)) + 0.1:
        found = prediction_interval(x)
        assert found.estimate == ratio_interval(x).estimate
        held += found.low < math.exp(new) < found.high
    assert abs(held / 4000 - 0.95) < 0.015
    assert prediction_interval([0.1]).high == math.inf
