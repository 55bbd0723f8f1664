from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState
from store_cases import SPACE, script, timed

from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.store.trials import Parameters, constraint_attributes, constraints, state_and_value


def test_states_values_and_constraints() -> None:
    found = [(*state_and_value(e, until), constraints(e)["built"]) for _, until, e in script()]
    assert found == [
        (TrialState.COMPLETE, 1.0, 0.0),
        (TrialState.FAIL, None, 1.0),
        (TrialState.COMPLETE, 0.5, 0.0),
        (TrialState.PRUNED, None, 0.0),
        (TrialState.PRUNED, None, 0.0),
        (TrialState.PRUNED, None, 0.0),
        (TrialState.FAIL, None, 1.0),
    ]


@given(st.sampled_from(list(Outcome)), st.none() | st.floats())
def test_feasible_means_the_same_to_optuna(outcome: Outcome, violation: float | None) -> None:
    """Optuna: feasible when <= 0. Here: when < 0. Equality, NaN and infinity must not slip through."""
    found = constraints(Evaluation(outcome, Phase.GATE, violation=violation))
    assert list(found)[:2] == ["built", "accuracy"] and all(math.isfinite(x) for x in found.values())
    assert any(x > 0 for x in list(found.values())[2:]) == (outcome is Outcome.LIMIT)
    meets = violation is None or violation < 0
    assert (found["accuracy"] <= 0) == (meets and outcome is not Outcome.ACCURACY)
    assert (found["built"] <= 0) == (outcome in (Outcome.OK, Outcome.ACCURACY, Outcome.LIMIT))
    if violation is not None and 1e-300 < abs(violation) < 1e30 and meets != (outcome is Outcome.ACCURACY):
        assert found["accuracy"] == violation, "ordinary violations are stored as they are"


def test_constraints_are_stored_as_optuna_stores_them() -> None:
    study = optuna.create_study()
    trial = study.ask()
    trial.set_constraint("built", 0.0)
    trial.set_constraint("accuracy", -0.005)
    assert study.get_trials()[0].system_attrs == constraint_attributes(timed(1.0))


@pytest.mark.parametrize("latency", [None, math.nan, math.inf])
def test_ok_until_time_needs_a_latency(latency: float | None) -> None:
    with pytest.raises(ValueError, match="finite"):
        state_and_value(Evaluation(Outcome.OK, Phase.TIME, latency_ms=latency), Phase.TIME)


@given(st.integers(0, SPACE.size - 1), st.sampled_from(list(Phase)))
def test_codes_come_back(index: int, until: Phase) -> None:
    parameters, codes = Parameters(SPACE), SPACE.codes_at(index)
    trial = parameters.running_trial(codes, until)
    trial._validate()
    assert trial.state is TrialState.RUNNING and trial.params == {k: SPACE.route(codes)[k] for k in SPACE.names}
    back, phase = parameters.read(trial.params, trial.user_attrs)
    assert back.dtype == np.int16 and back.tolist() == codes.tolist() and phase is until


def test_trials_share_nothing_that_changes() -> None:
    parameters = Parameters(SPACE)
    one, two = (parameters.running_trial(SPACE.codes_at(i), Phase.TIME) for i in (0, 1))
    assert one.params != two.params and one.user_attrs is not two.user_attrs


@pytest.mark.parametrize(
    "params",
    [{}, {"fuse": "0"}, {"fuse": "0", "tile:k": "16", "mode": "z"}, {"fuse": "0", "tile:k": "16", "other": "a"}],
)
def test_foreign_parameters_are_refused(params: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        Parameters(SPACE).read(params, {"until": "TIME"})
    good = {"fuse": "0", "tile:k": "16", "mode": "a"}
    with pytest.raises(KeyError):
        Parameters(SPACE).read(good, {})


def test_each_limit_of_a_study_is_a_constraint_of_its_own() -> None:
    excess = {"size": 0.25, "memory": math.inf}
    found = Evaluation(Outcome.LIMIT, Phase.TIME, engine_bytes=5, excess=excess)
    assert constraints(found) == {"built": 0.0, "accuracy": 0.0, "size": 0.25, "memory": 1e30}
    assert state_and_value(found, Phase.TIME) == (TrialState.PRUNED, None)
    assert Evaluation.from_json(found.to_json()) == found and found.observation().violation == math.inf
