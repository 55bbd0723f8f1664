"""Screening: the design is what it is called, the selection is least squares, the active knobs are found."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from gpt_search import InputError, Observation, Outcome, Phase, load_strategy, simulate
from gpt_search.domain.space import Codes
from gpt_search.testing import space_of

screening = sys.modules[type(load_strategy("screening")).__module__]


@pytest.mark.parametrize(("least", "prime"), [(1, 3), (3, 3), (4, 7), (8, 11), (12, 19), (195, 199), (209, 211)])
def test_the_order_of_the_design(least: int, prime: int) -> None:
    assert screening._prime(least) == prime


@pytest.mark.parametrize("order", [4, 12, 20, 200])
def test_all_rows_are_orthogonal_balanced_columns(order: int) -> None:
    columns = np.arange(order - 1)
    signs = np.stack([screening._hadamard_row(r, columns, order) for r in range(order)]) * 2.0 - 1.0
    assert (signs.sum(0) == 0).all()
    assert np.array_equal(signs.T @ signs, order * np.eye(order - 1))


def test_forward_selection_ends_at_least_squares_over_the_planted_columns() -> None:
    rng = np.random.default_rng(0)
    design = (rng.random((60, 100)) < 0.5).astype(float)
    weight = rng.uniform(0.5, 2.0, 60) / 0.01**2
    y = 0.5 + design[:, [7, 30, 81]] @ [0.1, -0.2, 0.05] + rng.standard_normal(60) / np.sqrt(weight)
    picked, effect, sure = screening._forward(design, y, weight)
    assert set(picked.tolist()) == {7, 30, 81} and picked[0] == 30
    x = np.column_stack([np.ones(60), design[:, picked]])
    root = np.sqrt(weight)[:, None]
    wanted = np.linalg.lstsq(x * root, y * root[:, 0], rcond=None)[0][1:]
    assert np.allclose(effect, wanted) and (sure > 5).all()


def test_runs_come_with_their_mirror_image() -> None:
    space = space_of(*[2] * 11)
    done = simulate(
        space, "screening:runs=40,works=0.0001", lambda c, rng, until: Observation(Outcome.OK, 1.0 + rng.random()), 12
    )
    x = done.codes != space.default
    # The first run clears everything that it holds; from the second pair on all is cleared.
    assert (x[5] != x[6]).all() and (x[7] != x[8]).all()


def test_it_finds_the_planted_knobs_and_their_interaction() -> None:
    space = space_of(*[2] * 60)

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        x = codes != space.default
        if x[9]:
            return Observation(Outcome.CRASH)
        log = -0.04 * x[3] - 0.02 * x[11] + 0.04 * x[[20, 33, 47]].sum() + 0.03 * x[50] - 0.09 * (x[50] & x[3])
        return Observation(Outcome.OK, float(np.exp(log + 0.003 * rng.standard_normal())), error_ms=0.003)

    done = simulate(space, load_strategy("screening"), measure, 110, seed=1)
    assert done.recommended is not None
    best = done.codes[done.recommended] != space.default
    assert best[[3, 11, 50]].all() and not best[[20, 33, 47]].any()
    assert not (done.outcome[-30:] != Outcome.OK).any()


@pytest.mark.parametrize("option", ["runs=1", "works=1"])
def test_options_that_make_no_sense(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"screening:{option}")
