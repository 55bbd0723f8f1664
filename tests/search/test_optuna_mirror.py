"""The mirror: a sampler asked in it answers as in a plain study."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState

from gpt_search.domain.space import Dimension as Dim
from gpt_search.domain.space import SearchSpace
from gpt_search.search.optuna_mirror import Mirror, make_sampler

SPACE = SearchSpace([Dim(f"k{i:02}", ("a", "b", "c")[: 2 + i % 2], i % 2) for i in range(9)] + [Dim("one", ("a",), 0)])
FREE = [n for n in SPACE.names if n != "one"]


def distributions() -> dict[str, BaseDistribution]:
    return {n: CategoricalDistribution(range(int(k))) for n, k in zip(FREE, SPACE.cardinalities[:-1], strict=True)}


def test_tpe_suggests_what_it_suggests_in_a_plain_study() -> None:
    rng = np.random.default_rng(0)
    mirror = Mirror(SPACE, integer_codes=False)
    plain = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=5))
    for i in range(30):
        codes = SPACE.sample(rng)
        params: dict[str, Any] = dict(zip(FREE, codes[:-1].tolist(), strict=True))
        feasible = i % 4 > 0
        state = TrialState.COMPLETE if feasible else TrialState.PRUNED
        value = float(codes.sum() + rng.random()) if feasible else None
        mirror.show(codes, state, value, None if feasible else 0.5)
        constraints = {} if feasible else {"failed": 0.5}
        plain.add_trial(
            optuna.create_trial(
                params=params, distributions=distributions(), state=state, value=value, constraints=constraints
            )
        )
    without, _ = mirror.ask(make_sampler("TPESampler", 5, 0, 30, {}))
    running = np.repeat(without[None, :], 20, axis=0)
    for codes in running:
        params = dict(zip(FREE, codes[:-1].tolist(), strict=True))
        plain.add_trial(optuna.create_trial(params=params, distributions=distributions(), state=TrialState.RUNNING))
    trial = plain.ask(distributions())
    for _ in range(2):  # an ask leaves no trace
        codes, _ = mirror.ask(make_sampler("TPESampler", 5, 0, 30, {}), running)
        assert codes[:-1].tolist() == [trial.params[n] for n in FREE]
        assert codes[-1] == 0
        assert codes.tolist() != without.tolist(), "the pending routes must matter"


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("options", [{}, {"scramble": True}, {"qmc_type": "halton"}])
def test_qmc_walks_its_sequence_by_position(options: dict[str, Any]) -> None:
    plain = optuna.create_study(sampler=optuna.samplers.QMCSampler(seed=7, **options))
    expected = []
    for _ in range(12):
        trial = plain.ask(distributions())
        plain.tell(trial, 0.0)
        expected.append([trial.params[n] for n in FREE])
    mirror = Mirror(SPACE, integer_codes=False)
    for position in (3, 0, 10):  # in any order
        codes, _ = mirror.ask(make_sampler("QMCSampler", 99, 7, position, options))
        assert codes[:-1].tolist() == expected[position + 1]  # Optuna draws its first trial at random


def test_what_the_sampler_attached_is_handed_over() -> None:
    mirror = Mirror(SPACE, integer_codes=False)
    _, attached = mirror.ask(make_sampler("NSGAIISampler", 1, 1, 0, {"population_size": 2}))
    assert list(attached.values()) == [0], "the generation"
    for _ in range(2):
        mirror.show(SPACE.default, TrialState.COMPLETE, 1.0, 0.0, attached)
    _, attached = mirror.ask(make_sampler("NSGAIISampler", 1, 1, 2, {"population_size": 2}))
    assert list(attached.values()) == [1], "the next generation"
