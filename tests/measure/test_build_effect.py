from __future__ import annotations

import numpy as np
import pytest

from gpt_search.measure.build_effect import build_effect


def test_unbiased_with_an_interval_that_covers() -> None:
    """300 simulations of 8 routes in 3 builds: routes and passes differ far more than builds do."""
    rng = np.random.default_rng(0)
    found, covered = [], 0
    for _ in range(300):
        values = rng.normal(0, 0.3, (8, 1)) + rng.normal(0, 0.1, 3)
        values = values + rng.normal(0, 0.01, (8, 3)) + rng.normal(0, 0.004, (8, 3))
        effect = build_effect(values, np.full((8, 3), 0.004))
        assert effect is not None
        found.append(effect.variance)
        covered += effect.low <= 0.01**2 <= effect.high
    assert np.mean(found) == pytest.approx(0.01**2, rel=0.06)
    assert covered / 300 > 0.92


def test_nothing_but_rounds() -> None:
    rng = np.random.default_rng(1)
    effect = build_effect(rng.normal(0, 0.01, (50, 3)), np.full((50, 3), 0.01))
    assert effect is not None and effect.low == 0.0 and effect.deviation < 0.004


def test_too_few_and_wrong() -> None:
    assert build_effect(np.zeros((1, 3)), np.zeros((1, 3))) is None
    assert build_effect(np.zeros((4, 1)), np.zeros((4, 1))) is None
    with pytest.raises(ValueError, match="finite"):
        build_effect(np.full((2, 2), np.nan), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="one shape"):
        build_effect(np.zeros((2, 2)), np.zeros((2, 3)))
