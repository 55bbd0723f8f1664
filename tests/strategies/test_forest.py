"""Forest: climbs to what was planted, keeps away from causes of failure, refits on a schedule."""

from __future__ import annotations

import numpy as np
import pytest

from gpt_search import InputError, Observation, Outcome, Phase, load_strategy, simulate
from gpt_search.domain.space import Codes
from gpt_search.testing import space_of

SPACE = space_of(*[2] * 24)


def additive(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
    x = codes != SPACE.default
    if x[9] or x[17]:
        return Observation(Outcome.BUILD_ERROR)
    log = -0.1 * x[2] - 0.06 * x[5] - 0.08 * (x[11] & x[2]) + 0.1 * x[[14, 20, 21]].sum()
    return Observation(Outcome.OK, float(np.exp(log)))


def test_it_climbs_to_the_planted_gains_and_leaves_failing_values_alone() -> None:
    done = simulate(SPACE, load_strategy("forest"), additive, 70, seed=4)
    assert done.recommended is not None
    best = done.codes[done.recommended] != SPACE.default
    assert best[[2, 5, 11]].all() and not best[[14, 20, 21]].any()
    assert not (done.outcome[-30:] != Outcome.OK).any()


def test_the_forest_belongs_to_a_multiple_of_eight_rows() -> None:
    strategy = load_strategy("forest")
    done = simulate(SPACE, strategy, additive, 45, seed=4)
    working = int(done.history.feasible[:-1].sum())
    assert strategy._fitted == working - working % 8  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["trees=1", "startup=0", "works=0", "explore=0"])
def test_options_that_make_no_sense(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"forest:{option}")
