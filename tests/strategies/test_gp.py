"""Gp: predictions are those of the textbook, the screening keeps what matters, interactions are found."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpt_search import FailureCauses, InputError, Observation, Outcome, Phase, load_strategy, simulate
from gpt_search.domain.space import Codes
from gpt_search.testing import space_of

gp = sys.modules[type(load_strategy("gp")).__module__]


def test_predictions_are_those_of_a_gaussian_conditioned_on_the_data() -> None:
    rng = np.random.default_rng(1)
    held = rng.random((9, 6)) < 0.5
    y, variance, screened = rng.normal(0, 0.05, 9), np.full(9, 1e-4), np.asarray([1, 4])
    _, process = gp._fit(held.astype(float), y, variance, screened, 0.02, 0.03, 2.0)
    new = rng.random((4, 6)) < 0.5
    joint = gp._kernel(*[np.vstack([held, new]).astype(float)] * 2, screened, 0.02, 0.03, 2.0)
    inverse = np.linalg.inv(joint[:9, :9] + np.diag(variance))
    centre = inverse.sum(0) @ y / inverse.sum()
    mean, sd = process.predict(new)
    assert np.allclose(mean, centre + joint[9:, :9] @ inverse @ (y - centre))
    assert np.allclose(sd**2, np.diag(joint[9:, 9:] - joint[9:, :9] @ inverse @ joint[:9, 9:]))


def test_it_screens_finds_an_interaction_and_leaves_a_failing_value_alone() -> None:
    space = space_of(*[2] * 40)

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        x = codes != space.default
        if x[9]:
            return Observation(Outcome.MEMORY)
        log = -0.04 * x[3] + 0.03 * x[11] - 0.09 * (x[3] & x[11]) + 0.06 * x[[20, 33]].sum()
        return Observation(Outcome.OK, float(np.exp(log + 0.003 * rng.standard_normal())), error_ms=0.003)

    done = simulate(space, load_strategy("gp"), measure, 70, seed=1)
    assert done.recommended is not None
    best = done.codes[done.recommended] != space.default
    assert best[[3, 11]].all() and not best[[20, 33]].any()
    assert not (done.outcome[-20:] != Outcome.OK).any()
    causes = FailureCauses(space, done.history)
    process = load_strategy("gp:active=6")._fitted(causes, done.history)  # type: ignore[attr-defined]
    kept = set(process.screened.tolist())
    assert {20, 33} < kept and kept & {3, 11}  # late routes have both, and either explains them


@pytest.mark.parametrize("option", ["active=0", "startup=0", "works=1", "rows=9"])
def test_options_that_make_no_sense(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"gp:{option}")
