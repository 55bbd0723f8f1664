from __future__ import annotations

import math

import numpy as np
import pytest
from measure_simulations import variance_coverage

from gpt_search.measure.intervals import Verdict, ratio_interval, verdict
from gpt_search.measure.variance import (
    MIN_REBUILDS,
    POWER,
    Component,
    Components,
    Costs,
    best_plan,
    detectable,
    rebuilds_for,
    variance_components,
)


def known(rebuilds: float, processes: float, samples: float) -> Components:
    parts = [Component(v, v, v) for v in (rebuilds, processes, samples, rebuilds + processes + samples)]
    return Components(*parts, mean=0.0, level=0.95)


def test_equal_counts_give_the_analysis_of_variance() -> None:
    y = np.random.default_rng(0).normal(size=(4, 3, 5)) + np.random.default_rng(1).normal(size=(4, 1, 1))
    ms_rebuilds = 3 * 5 * y.mean((1, 2)).var(ddof=1)
    ms_processes = 5 * ((y.mean(2) - y.mean((1, 2))[:, None]) ** 2).sum() / (4 * 2)
    ms_samples = ((y - y.mean(2)[:, :, None]) ** 2).sum() / (4 * 3 * 4)
    found = variance_components(y.tolist())
    assert found.samples.variance == pytest.approx(ms_samples)
    assert found.processes.variance == pytest.approx(max((ms_processes - ms_samples) / 5, 0))
    assert found.rebuilds.variance == pytest.approx(max((ms_rebuilds - ms_processes) / 15, 0))
    assert found.mean == pytest.approx(y.mean())


@pytest.mark.parametrize("unequal", [False, True])
def test_estimates_are_unbiased_and_intervals_cover(unequal: bool) -> None:
    for truth in ((1.0, 1.0, 1.0), (0.2, 1.0, 3.0)):
        means, covered = variance_coverage(truth, 1500, unequal=unequal, seed=3)
        # Estimates below 0 are cut off, which can only raise the mean.
        assert all(0.95 * t <= m for t, m in zip(truth, means[:3], strict=True))
        assert means[3] == pytest.approx(sum(truth), rel=0.06)
        assert all(0.92 <= share <= 0.995 for share in covered), covered


def test_no_effect_is_an_estimate_of_zero_with_a_limit_above() -> None:
    found = variance_components([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    assert found.rebuilds.variance == found.processes.variance == 0 and found.samples.variance == 0.5
    assert found.rebuilds.low == 0 and found.samples.low > 0


@pytest.mark.parametrize(
    "values",
    [
        [],
        [[[1.0, 2.0], [1.0, 2.0]]],
        [[[1.0, 2.0]], [[1.0, 2.0]]],
        [[[1.0], [2.0]], [[1.0], [2.0]]],
        [[[]], [[1.0]]],
        [[[math.nan, 1.0], [1.0, 2.0]], [[1.0, 2.0]]],
        [[], [[1.0, 2.0], [1.0, 2.0]]],
    ],
)
def test_too_little_data_is_refused(values: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match=r"at least two|every rebuild"):
        variance_components(values)


def test_json_gives_back_equal_components() -> None:
    found = variance_components(np.random.default_rng(0).normal(size=(3, 2, 4)).tolist())
    assert Components.from_json(found.to_json()) == found


def test_what_is_called_detectable_is_confirmed_as_often_as_promised() -> None:
    parts = known(1e-4, 2e-4, 4e-4)
    speedup = detectable(parts, 6, processes=2, samples=2)
    rng, repeats = np.random.default_rng(0), 4000
    rows = math.log(speedup) + 0.01 * rng.standard_normal((repeats, 6))
    rows += (np.sqrt(2e-4) * rng.standard_normal((repeats, 6, 2))).mean(2)
    rows += (0.02 * rng.standard_normal((repeats, 6, 2, 2))).mean((2, 3))
    share = np.mean([verdict(ratio_interval(row)) is Verdict.FASTER for row in rows])
    assert share == pytest.approx(POWER, abs=0.03)
    assert detectable(parts, 1) == math.inf


def test_rebuilds_for_is_the_fewest() -> None:
    parts = known(1e-4, 1e-4, 1e-4)
    for speedup in (1.005, 1.01, 1.1):
        n = rebuilds_for(parts, speedup)
        assert n is not None and detectable(parts, n) <= speedup
        assert n == MIN_REBUILDS or detectable(parts, n - 1) > speedup
    assert rebuilds_for(parts, 1.1) == MIN_REBUILDS
    assert rebuilds_for(known(1.0, 1.0, 1.0), 1.001) is None
    with pytest.raises(ValueError, match="above 1"):
        rebuilds_for(parts, 1.0)


def test_the_best_plan_stays_within_the_budget_and_follows_the_noise() -> None:
    costs = Costs(10.0, 1.0, 0.1)
    for parts in (known(1e-4, 0, 1e-6), known(0, 1e-4, 1e-6), known(0, 0, 1e-3)):
        plan = best_plan(parts, costs, 300.0, max_processes=8)
        assert plan is not None and plan.seconds <= 300
        assert plan.seconds == pytest.approx(costs.of(plan.rebuilds, plan.processes, plan.samples))
        assert plan.detectable == detectable(parts, plan.rebuilds, plan.processes, plan.samples)
    rebuilds, processes, samples = (
        best_plan(known(*v), costs, 300.0, max_processes=8) for v in ((1e-4, 0, 1e-6), (0, 1e-4, 1e-6), (0, 0, 1e-3))
    )
    assert rebuilds and processes and samples
    assert rebuilds.processes == 1 and rebuilds.rebuilds > processes.rebuilds
    assert processes.processes > 1 and samples.samples > max(processes.samples, rebuilds.samples)
    assert best_plan(known(1e-4, 0, 0), costs, 20.0) is None
