"""CatCMA and CMA-ES take the steps of the `cmaes` package, keep their margins, and learn from late rows."""

from __future__ import annotations

import sys
from typing import Any

import cmaes
import numpy as np
import pytest
from cmaes._catcmawm import CatCMAwM as Library
from scipy import stats
from strategy_cases import Additive, few, space_of

from gpt_search import load_strategy, simulate


def part(strategy: str, name: str) -> Any:
    """A class of a strategy's file."""
    return getattr(sys.modules[type(load_strategy(strategy)).__module__], name)


def test_catcma_takes_the_steps_of_the_library() -> None:
    counts, rng, population = np.array([2, 3, 2, 5, 2, 4]), np.random.default_rng(4), 10
    ours = part("catcma", "Distributions")(counts, np.array([0, 2, 1, 0, 0, 3], np.int16), 0.2)
    theirs = Library(c_space=counts.tolist(), population_size=population, cat_param=ours.q.copy(), seed=1)
    for _ in range(40):
        codes = np.stack([ours.draw(rng) for _ in range(population)])
        values = (codes == [1, 1, 0, 4, 1, 0]).sum(axis=1) + 0.1 * rng.standard_normal(population)
        order = np.argsort(-values)
        hot = np.arange(5) == codes[:, :, None]
        theirs.tell([(Library.Solution(None, None, c), -float(v)) for c, v in zip(hot, values, strict=True)])
        ours.update(codes[order])
        np.testing.assert_allclose(ours.q, theirs._q, rtol=1e-6, atol=1e-9)
    assert ours.q[np.arange(6), [1, 1, 0, 4, 1, 0]].min() > 0.5


def test_separable_cma_takes_the_steps_of_the_library() -> None:
    n, population, rng = 7, 12, np.random.default_rng(2)
    ours = part("cmaes", "SeparableWithMargin")(np.full(n, 0.4), 0.6, np.ones(n, np.int16), population)
    ours._keep_margin = lambda: None
    theirs = cmaes.SepCMA(mean=np.full(n, 0.4), sigma=0.6, population_size=population, seed=1)
    for _ in range(25):
        points = ours.mean + ours.sigma * np.sqrt(ours.C) * rng.standard_normal((population, n))
        values = ((points - 0.1) ** 2).sum(axis=1)
        theirs.tell([(p.copy(), float(v)) for p, v in zip(points, values, strict=True)])
        ours.update(points[np.argsort(values)])
        np.testing.assert_allclose(ours.mean, theirs._mean, rtol=1e-7)
        np.testing.assert_allclose(ours.C, theirs._C, rtol=1e-7)
        assert ours.sigma == pytest.approx(theirs._sigma)


@pytest.mark.parametrize("mean", [-0.3, 0.2, 0.9, 1.7, 2.5])
def test_the_margin_is_that_of_the_library(mean: float) -> None:
    n, population = 3, 6
    ours = part("cmaes", "SeparableWithMargin")(np.full(n, mean), 0.05, np.array([1, 2, 2], np.int16), population)
    bounds = np.array([[0, 1], [0, 2], [0, 2]])
    theirs = cmaes.CMAwM(np.full(n, min(max(mean, 0), 1)), 0.05, bounds.astype(float), np.ones(n), population_size=6)
    theirs._cma._mean = np.full(n, mean)
    theirs._cma.tell = lambda solutions: None
    theirs.tell([])
    ours._keep_margin()
    np.testing.assert_allclose(ours.mean, theirs._cma._mean, rtol=1e-6)
    np.testing.assert_allclose(ours.A, theirs._A, rtol=1e-6)


def test_points_behind_codes_follow_the_distribution() -> None:
    step = part("cmaes", "SeparableWithMargin")(np.array([0.1, 1.6, 0.9]), 0.7, np.array([1, 3, 2], np.int16), 8)
    rng = np.random.default_rng(0)
    codes = np.stack([step.draw(rng) for _ in range(4000)])
    points = step.points_behind(codes, rng.random(codes.shape))
    assert np.array_equal(np.clip(np.ceil(points - 0.5), 0, step.top).astype(np.int16), codes)
    for knob in range(3):
        assert stats.kstest(points[:, knob], "norm", (step.mean[knob], step.sigma)).pvalue > 1e-3


@pytest.mark.parametrize(("knobs", "population"), [(3, 100), (5, 200), (10, 400)])
def test_variances_stay_positive_with_a_large_population_and_few_knobs(knobs: int, population: int) -> None:
    step = part("cmaes", "SeparableWithMargin")(np.full(knobs, 0.4), 0.6, np.ones(knobs, np.int16), population)
    rng = np.random.default_rng(3)
    for _ in range(30):
        codes = np.stack([step.draw(rng) for _ in range(population)])
        points = step.points_behind(codes, rng.random(codes.shape))
        step.update(points[np.argsort(codes.sum(axis=1) + rng.standard_normal(population))])
        assert (step.C > 0).all() and np.isfinite(step.C).all() and step.sigma > 0


@pytest.mark.parametrize("strategy", ["catcma", "cmaes"])
def test_no_knob_freezes(strategy: str) -> None:
    """After hundreds of rows that always say 'default', every other value is still drawn now and then."""
    harm = np.zeros((8, 2))
    harm[:, 1] = 0.05
    done = simulate(space_of(*[2] * 8), strategy, Additive(harm), trials=120)
    assert (done.codes[-40:].sum(axis=0) > 0).all()


@pytest.mark.parametrize("strategy", ["catcma", "cmaes"])
def test_learns_and_leaves_out_what_fails(strategy: str) -> None:
    measure = Additive(few(40, 8, 8), noise=0.005, failing=((30, 1), (31, 1)))
    done = simulate(space_of(*[2] * 40), strategy, measure, trials=400)
    assert measure.truth(done.codes[done.recommended]) < 0.6 * measure.effects.min(axis=1).sum()
    assert done.codes[200:, 30:32].mean() < 0.02
