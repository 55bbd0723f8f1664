"""`tpe`: its options, and that it is Optuna's TPE and learns like it. The contract is in test_conformance.py."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from gpt_search import InputError, Observation, OptunaStrategy, Outcome, Phase, SearchSpace, load_strategy, simulate
from gpt_search.domain.space import Codes, Dimension

SPACE = SearchSpace(Dimension(f"k{i:02}", ("0", "1", "2")[: 2 + i % 2], 0) for i in range(14))
EFFECTS = np.random.default_rng(3).normal(0.0, 0.05, (14, 3))


def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
    if codes[3] == 2:
        return Observation(Outcome.CRASH)
    return Observation(Outcome.OK, float(np.exp(EFFECTS[np.arange(14), codes].sum())))


def test_it_is_optunas_sampler_with_these_options() -> None:
    ours = simulate(SPACE, "tpe:startup=5,changes=0,candidates=3", measure, trials=20, seed=1)
    optunas = OptunaStrategy("TPESampler", n_startup_trials=5, n_ei_candidates=3)
    assert (simulate(SPACE, optunas, measure, trials=20, seed=1).codes == ours.codes).all()
    for other in ("tpe:startup=5,changes=0,candidates=4", "tpe:startup=6,changes=0,candidates=3"):
        assert (simulate(SPACE, other, measure, trials=20, seed=1).codes != ours.codes).any()


def test_beats_random_and_leaves_the_crashes() -> None:
    tpe = simulate(SPACE, "tpe", measure, trials=80, seed=1)
    random = simulate(SPACE, "random", measure, trials=80, seed=1)
    assert np.nanmean(tpe.latency_ms[-30:]) < 0.9 * np.nanmean(random.latency_ms[-30:])
    crashed = tpe.outcome == Outcome.CRASH
    assert crashed[1:11].any()
    assert crashed[-40:].mean() < 0.2  # a third when failures are not seen


@pytest.mark.parametrize(
    ("spec", "message"),
    [("tpe:startup=-1", "0 or more"), ("tpe:candidates=0", "at least 1"), ("tpe:changes=0.5", "changes is 0.5")],
)
def test_bad_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_strategy(spec)


def test_spec_is_canonical() -> None:
    assert vars(load_strategy("tpe:startup=20,candidates=5"))["spec"] == "tpe:candidates=5"


def test_loading_it_does_not_import_optuna() -> None:
    program = "import sys, gpt_search; gpt_search.load_strategy('tpe'); assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_starts_near_the_reference() -> None:
    space = SearchSpace(Dimension(f"k{i:03}", ("0", "1"), 0) for i in range(100))
    ok = Observation(Outcome.OK, 1.0)
    changes = (simulate(space, "tpe:startup=40,changes=4", lambda *_: ok, trials=40, seed=0).codes != 0).sum(axis=1)
    assert 2.5 < changes[1:].mean() < 6 and changes[1:].min() == 1
