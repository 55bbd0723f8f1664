"""Sparse linear: finds what was planted, learns interactions and leaves causes of failure alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpt_search import InputError, Observation, Outcome, Phase, SearchSpace, load_strategy, simulate
from gpt_search.domain.space import Codes
from gpt_search.testing import space_of


def on(space: SearchSpace, codes: Codes) -> np.ndarray:
    return np.asarray(codes != space.default)


def test_it_finds_the_planted_knobs_of_a_noiseless_additive_landscape() -> None:
    space = space_of(*[2] * 60)
    effects = np.zeros(60)
    effects[[3, 11, 19, 40]] = -0.02, -0.05, -0.01, -0.03
    effects[[5, 20, 33, 47, 52]] = 0.08

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        return Observation(Outcome.OK, float(np.exp(effects @ on(space, codes))))

    done = simulate(space, load_strategy("sparse_linear"), measure, 60, seed=1)
    assert done.recommended is not None
    best = on(space, done.codes[done.recommended])
    assert effects @ best == pytest.approx(-0.11)


def test_it_learns_an_interaction_and_recommends_by_the_model() -> None:
    """Each of two changes harms alone; both together are the largest gain there is."""
    space = space_of(*[2] * 20)

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        x = on(space, codes)
        log = 0.03 * x[2] + 0.03 * x[7] - 0.16 * (x[2] & x[7]) - 0.03 * x[12]
        return Observation(Outcome.OK, float(np.exp(log + 0.01 * rng.standard_normal())), error_ms=0.01)

    done = simulate(space, load_strategy("sparse_linear"), measure, 70, seed=2)
    assert done.recommended is not None
    assert on(space, done.codes[done.recommended])[[2, 7, 12]].all()


def test_a_failing_value_is_left_alone_once_it_is_found() -> None:
    space = space_of(*[2] * 40)

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        if on(space, codes)[[8, 30]].any():
            return Observation(Outcome.CRASH)
        return Observation(Outcome.OK, 1.0 + 0.01 * rng.standard_normal(), error_ms=0.01)

    done = simulate(space, load_strategy("sparse_linear"), measure, 60, seed=3)
    failed = done.outcome != Outcome.OK
    assert 2 <= failed.sum() <= 15 and not failed[-20:].any()


@pytest.mark.parametrize("option", ["works=1", "active=-1", "sweeps=1", "greedy=0"])
def test_options_that_make_no_sense(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"sparse_linear:{option}")
