"""Every strategy runs under a plain `study.optimize`, by its spec, and goes on when the study is loaded again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from strategy_cases import Additive, few, space_of

from gpt_search import Outcome, Phase, SearchSpace, as_sampler, load_strategy, simulate
from gpt_search.search.discovery import strategy_names

SPACE = space_of(*[2] * 9, 3)
MEASURE = Additive(np.vstack([np.pad(few(9, 3, 3), ((0, 0), (0, 1))), [[0.0, -0.02, 0.01]]]), failing=((8, 1),))


def objective(trial: optuna.Trial) -> float:
    values = [trial.suggest_categorical(n, v) for n, v in zip(SPACE.names, SPACE.values, strict=True)]
    seen = MEASURE(codes_of(SPACE, values), np.random.default_rng(0), Phase.TIME)
    trial.set_constraint("built", float(seen.outcome != Outcome.OK))
    trial.set_constraint("accuracy", -1.0 if seen.outcome == Outcome.OK else 0.0)
    if seen.latency_ms is None:
        raise optuna.TrialPruned
    return seen.latency_ms


def codes_of(space: SearchSpace, values: list[str]) -> np.ndarray:
    return np.array([v.index(x) for v, x in zip(space.values, values, strict=True)], np.int16)


def routes(study: optuna.Study) -> list[list[int]]:
    trials = study.get_trials(deepcopy=False)
    return [codes_of(SPACE, [t.params[n] for n in SPACE.names]).tolist() for t in trials]


@pytest.mark.parametrize("spec", strategy_names())
def test_under_plain_optuna(spec: str, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = 18
    whole = optuna.create_study(sampler=as_sampler(spec, SPACE, seed=4, noise=0.01))
    whole.optimize(objective, n_trials=trials)
    found = routes(whole)
    assert found[0] == SPACE.default.tolist()
    once = found[:-1]  # a strategy that ended repeats the reference in the trial that was being started
    assert getattr(load_strategy(spec), "repeats", False) or len(set(map(tuple, once))) == len(once)
    assert whole.best_value < 1.0

    file = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    optuna.create_study(study_name="s", storage=file, sampler=as_sampler(spec, SPACE, 4, 0.01)).optimize(objective, 7)
    again = optuna.load_study(study_name="s", storage=file, sampler=as_sampler(spec, SPACE, 4, 0.01))
    again.optimize(objective, len(found) - 7)
    assert routes(again) == found, "loaded again, the study went another way"


@pytest.mark.parametrize("spec", ["combined_elimination", "local_search", "genetic", "annealing", "cmaes", "catcma"])
def test_as_in_a_simulation(spec: str) -> None:
    """The same history gives the same proposals, by either door."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=as_sampler(spec, SPACE, seed=4))
    study.optimize(objective, n_trials=15)
    simulated = simulate(SPACE, spec, MEASURE, trials=14, seed=4).codes.tolist()
    assert routes(study)[: len(simulated)] == simulated
