"""Strategies as samplers, under a plain `study.optimize`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from gpt_search import (
    History,
    InputError,
    Observation,
    OptunaStrategy,
    Outcome,
    Phase,
    Proposal,
    SearchSpace,
    Strategy,
    StrategyError,
    Streams,
    as_sampler,
    simulate,
)
from gpt_search.domain.space import Codes, Dimension
from gpt_search.search.optuna_sampler import observation_of

SPACE = SearchSpace(
    [Dimension(f"k{i}", ("off", "on", "auto")[: 2 + i % 2], i % 2) for i in range(8)] + [Dimension("fixed", ("x",), 0)]
)
EFFECTS = np.random.default_rng(3).normal(0.0, 0.05, (9, 3))


@pytest.fixture(autouse=True)
def quiet() -> Any:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


class Walk:
    """Changes one knob after the other to its other value; keeps the histories it saw."""

    def __init__(self, last: int = 1000) -> None:
        self.last = last
        self.seen: list[History] = []

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        self.seen.append(history)
        around = [c for c in space.neighbours(space.default) if not history.contains(c)]
        return Proposal(around[0]) if around and history.next_trial <= self.last else None


def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
    if codes[1] == 2:
        return Observation(Outcome.CRASH)
    if codes[0] == 1 and codes[2] == 1:
        return Observation(Outcome.ACCURACY, violation=0.25)
    return Observation(Outcome.OK, float(np.exp(EFFECTS[np.arange(9), codes].sum())))


def codes_of(params: dict[str, Any]) -> Codes:
    return np.array([v.index(params[n]) for n, v in zip(SPACE.names, SPACE.values, strict=True)], np.int16)


def objective(trial: optuna.Trial) -> float:
    codes = codes_of({n: trial.suggest_categorical(n, v) for n, v in zip(SPACE.names, SPACE.values, strict=True)})
    seen = measure(codes, np.random.default_rng(), Phase.TIME)
    if seen.outcome == Outcome.CRASH:
        raise RuntimeError("segmentation fault")
    if seen.violation is not None:
        trial.set_constraint("accuracy", seen.violation)
        raise optuna.TrialPruned
    assert seen.latency_ms is not None
    return seen.latency_ms


def optimize(strategy: Strategy | str, trials: int, function: Callable[..., float] = objective, **study: Any) -> Any:
    created = optuna.create_study(sampler=as_sampler(strategy, SPACE, seed=5), **study)
    created.optimize(function, n_trials=trials, catch=(RuntimeError,))
    return created


def routes(study: optuna.Study) -> list[list[int]]:
    return [codes_of(t.params).tolist() for t in study.get_trials(deepcopy=False)]


def test_a_strategy_drives_a_plain_study() -> None:
    walk = Walk()
    study = optimize(walk, 6)
    assert routes(study)[0] == SPACE.default.tolist()
    assert routes(study)[1:] == SPACE.neighbours(SPACE.default)[:5].tolist()
    history = walk.seen[-1]
    assert all(h is history for h in walk.seen), "the history is continued, not rebuilt"
    assert history.trial.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda: "tpe",
        lambda: "random",
        lambda: OptunaStrategy("CmaEsSampler", popsize=6),
        lambda: OptunaStrategy("NSGAIISampler", population_size=6),
    ],
)
def test_same_trials_as_a_simulated_study_also_after_a_reload(make: Callable[[], Strategy | str]) -> None:
    expected = simulate(SPACE, make(), measure, trials=29, seed=5)
    assert {Outcome.OK, Outcome.CRASH, Outcome.ACCURACY} == set(expected.outcome)
    assert routes(optimize(make(), 30)) == expected.codes.tolist()
    storage = optuna.storages.InMemoryStorage()
    optimize(make(), 17, storage=storage, study_name="s")
    reloaded = optuna.load_study(study_name="s", storage=storage, sampler=as_sampler(make(), SPACE, seed=5))
    reloaded.optimize(objective, n_trials=13, catch=(RuntimeError,))
    assert routes(reloaded) == expected.codes.tolist()


def test_a_reloaded_journal_continues(tmp_path: Path) -> None:
    def storage() -> JournalStorage:
        return JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))

    expected = simulate(SPACE, "tpe:startup=4", measure, trials=13, seed=5)
    optimize("tpe:startup=4", 9, storage=storage(), study_name="s")
    sampler = as_sampler("tpe:startup=4", SPACE, seed=5)
    reloaded = optuna.load_study(study_name="s", storage=storage(), sampler=sampler)
    reloaded.optimize(objective, n_trials=5, catch=(RuntimeError,))
    assert routes(reloaded) == expected.codes.tolist()


def test_what_a_strategy_sees() -> None:
    walk = Walk()
    optimize(walk, 12)
    history = walk.seen[-1]
    assert len(history) == 11
    for row in range(11):
        seen = measure(history.codes[row], np.random.default_rng(), Phase.TIME)
        assert history.outcome[row] == seen.outcome
        assert history.value[row] == pytest.approx(seen.latency_ms if seen.latency_ms else np.nan, nan_ok=True)
        assert history.violation[row] == pytest.approx(seen.violation if seen.violation else np.nan, nan_ok=True)
    assert len(set(history.outcome.tolist())) > 1


@pytest.mark.parametrize(
    ("state", "value", "constraints", "expected"),
    [
        (TrialState.COMPLETE, 2.0, {}, Observation(Outcome.OK, 2.0)),
        (TrialState.COMPLETE, 2.0, {"built": 0, "accuracy": -0.5}, Observation(Outcome.OK, 2.0, -0.5)),
        (TrialState.COMPLETE, 2.0, {"built": 0, "accuracy": 0.5}, Observation(Outcome.ACCURACY, 2.0, 0.5)),
        (TrialState.COMPLETE, 2.0, {"other": 0.5, "more": 0.75}, Observation(Outcome.ACCURACY, 2.0, 0.75)),
        (TrialState.COMPLETE, 2.0, {"built": 1, "accuracy": 0}, Observation(Outcome.BUILD_ERROR)),
        (TrialState.COMPLETE, float("inf"), {}, Observation(Outcome.CRASH)),
        (TrialState.PRUNED, None, {"built": 0, "accuracy": 0.5}, Observation(Outcome.ACCURACY, None, 0.5)),
        (TrialState.PRUNED, None, {"built": 1}, Observation(Outcome.BUILD_ERROR)),
        (TrialState.PRUNED, None, {}, Observation(Outcome.ACCURACY)),
        (TrialState.FAIL, None, {"built": 1}, Observation(Outcome.CRASH)),
    ],
)
def test_observations(
    state: TrialState, value: float | None, constraints: dict[str, float], expected: Observation
) -> None:
    trial = optuna.create_trial(state=state, value=value, constraints=constraints)
    assert observation_of(trial) == expected


def test_study_stops_when_the_strategy_has_nothing_left() -> None:
    study = optimize(Walk(last=4), 50)
    assert len(study.trials) == 6
    assert routes(study)[5] == SPACE.default.tolist(), "the last trial gets the reference again"
    asked = optuna.create_study(sampler=as_sampler(Walk(last=0), SPACE))
    reference = asked.ask()
    asked.tell(reference, objective(reference))
    trial = asked.ask()
    with pytest.warns(UserWarning, match="nothing left"):
        assert trial.suggest_categorical("k0", SPACE.values[0]) == SPACE.values[0][0]


def test_parameters_that_are_not_in_the_space_are_random_and_addressed() -> None:
    def with_more(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        trial.suggest_int("y", 0, 10**9)
        return objective(trial)

    first, again = (optimize(Walk(), 5, with_more) for _ in range(2))
    drawn = [(t.params["x"], t.params["y"]) for t in first.trials]
    assert drawn == [(t.params["x"], t.params["y"]) for t in again.trials]
    assert len(set(drawn)) == 5
    assert routes(first) == routes(optimize(Walk(), 5))


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_only_one_minimised_value(directions: list[Any]) -> None:
    study = optuna.create_study(directions=directions, sampler=as_sampler(Walk(), SPACE))
    with pytest.raises(InputError, match="create the study with direction='minimize'"):
        study.optimize(objective, n_trials=1)


@pytest.mark.parametrize("strategy", ["tpe", OptunaStrategy("NSGAIISampler", population_size=4)])
def test_threads_never_share_a_route(strategy: Strategy | str) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def slow(trial: optuna.Trial) -> float:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        try:
            value = objective(trial)
            time.sleep(0.02)
            return value
        finally:
            with lock:
                running[0] -= 1

    study = optuna.create_study(sampler=as_sampler(strategy, SPACE, seed=5))
    study.optimize(slow, n_trials=24, n_jobs=4, catch=(RuntimeError,))
    assert most[0] > 1
    assert len({tuple(r) for r in routes(study)}) == 24
    assert SPACE.default.tolist() in routes(study)


def test_trials_of_other_origin() -> None:
    """Enqueued ones count with their own parameters; those outside the space, or without any, are left out."""
    walk = Walk()
    study = optuna.create_study(sampler=as_sampler(walk, SPACE))
    bare = optuna.distributions.CategoricalDistribution(("off", "later"))
    study.add_trial(optuna.create_trial(state=TrialState.FAIL))
    study.add_trial(optuna.create_trial(params={"k0": "later"}, distributions={"k0": bare}, value=1.0))
    study.add_trial(optuna.create_trial(params={"k0": "off"}, distributions={"k0": bare}, value=1.5))
    other = SPACE.neighbours(SPACE.default)[3]
    study.enqueue_trial(dict(SPACE.route(other).items_in_order))
    study.optimize(lambda trial: objective(trial), n_trials=3, catch=(RuntimeError,))
    history = walk.seen[-1]
    # Trial 2 leaves all other knobs at their default: it is the reference.
    assert history.trial.tolist() == [2, 3, 4]
    assert history.value[0] == 1.5
    assert history.codes[0].tolist() == SPACE.default.tolist()
    assert history.codes[1].tolist() == other.tolist()


def test_the_reference_comes_next_in_a_study_that_has_none() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=4, catch=(RuntimeError,))
    assert SPACE.default.tolist() not in routes(study)
    walk = Walk()
    study.sampler = as_sampler(walk, SPACE)
    study.optimize(objective, n_trials=2, catch=(RuntimeError,))
    assert routes(study)[4] == SPACE.default.tolist()
    assert walk.seen[-1].trial.tolist() == [4, 0, 1, 2, 3]


def test_trials_left_by_a_killed_process_are_pending(tmp_path: Path) -> None:
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    killed = optimize(Walk(), 3, storage=storage, study_name="s")
    lost = killed.ask()
    first_value = lost.suggest_categorical("k0", SPACE.values[0])
    walk = Walk()
    study = optuna.load_study(study_name="s", storage=storage, sampler=as_sampler(walk, SPACE))
    study.optimize(objective, n_trials=1, catch=(RuntimeError,))
    around = SPACE.neighbours(SPACE.default).tolist()
    assert walk.seen[-1].pending.tolist() == [around[2]], "its whole route is known, though it asked for one knob only"
    assert SPACE.values[0][around[2][0]] == first_value
    assert codes_of(study.trials[-1].params).tolist() == around[3]
    # A lost reference may never finish: it is measured again.
    lost_first = optuna.create_study(sampler=as_sampler(Walk(), SPACE), storage=storage, study_name="r")
    lost_first.ask().suggest_categorical("k0", SPACE.values[0])
    again = optuna.load_study(study_name="r", storage=storage, sampler=as_sampler(Walk(), SPACE))
    again.optimize(objective, n_trials=2, catch=(RuntimeError,))
    assert codes_of(again.trials[1].params).tolist() == SPACE.default.tolist()
    assert codes_of(again.trials[2].params).tolist() == around[0]


def test_failed_reference_ends_the_study() -> None:
    def broken(trial: optuna.Trial) -> float:
        objective(trial)
        raise RuntimeError("no")

    with pytest.raises(InputError, match=r"the reference route \(trial 0\) failed"):
        optimize(Walk(), 3, broken)


def test_one_sampler_for_two_studies() -> None:
    sampler = as_sampler("tpe", SPACE, seed=5)
    studies = [optuna.create_study(sampler=sampler) for _ in range(2)]
    for _ in range(4):
        for study in studies:
            study.optimize(objective, n_trials=4, catch=(RuntimeError,))
    assert routes(studies[0]) == routes(studies[1]) == routes(optimize("tpe", 16))


def test_noise_is_passed_on() -> None:
    walk = Walk()
    study = optuna.create_study(sampler=as_sampler(walk, SPACE, noise=0.03))
    study.optimize(objective, n_trials=2)
    assert walk.seen[-1].noise == 0.03


@pytest.mark.parametrize(
    ("proposal", "message"), [("x", "expected a Proposal"), (Proposal(np.full(9, 7, np.int16)), "is outside 0..1")]
)
def test_broken_strategies(proposal: Any, message: str) -> None:
    class Broken(Walk):
        def propose(self, space: SearchSpace, history: History, streams: Streams) -> Any:
            return proposal

    study = optuna.create_study(sampler=as_sampler(Broken(), SPACE))
    with pytest.raises(StrategyError, match=message):
        study.optimize(objective, n_trials=2)


def test_a_strategy_that_fails_is_named() -> None:
    class Fails(Walk):
        def propose(self, space: SearchSpace, history: History, streams: Streams) -> Any:
            raise ZeroDivisionError("of mine")

    study = optuna.create_study(sampler=as_sampler(Fails(), SPACE))
    with pytest.raises(StrategyError, match=r"strategy Fails failed in propose \(.*\): ZeroDivisionError: of mine"):
        study.optimize(objective, n_trials=2)


def test_unknown_strategy() -> None:
    with pytest.raises(InputError, match="did you mean 'random'"):
        as_sampler("randon", SPACE)
