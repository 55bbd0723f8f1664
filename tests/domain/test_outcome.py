"""Outcomes and phases: numbers for arrays, words for people."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from gpt_search import Observation, Outcome, Phase


def test_the_numbers_are_those_that_records_and_histories_hold() -> None:
    assert {o.name: int(o) for o in Outcome} == {
        "OK": 0, "ACCURACY": 1, "BUILD_ERROR": 2, "CRASH": 3, "TIMEOUT": 4, "MEMORY": 5, "LIMIT": 6,
    }  # fmt: skip
    assert {p.name: int(p) for p in Phase} == {"BUILD": 1, "GATE": 2, "TIME": 3}


def test_every_member_explains_itself() -> None:
    words = [m.explanation for m in (*Outcome, *Phase)]
    assert all(len(w) > 20 for w in words) and len(set(words)) == len(words)


def test_only_ok_may_be_recommended() -> None:
    assert [o for o in Outcome if o.feasible] == [Outcome.OK]


def test_members_survive_arrays_and_pickling() -> None:
    array = np.asarray([Outcome.CRASH, Outcome.OK], np.int8)
    assert (array == Outcome.CRASH).tolist() == [True, False] and Outcome(int(array[0])) is Outcome.CRASH
    assert pickle.loads(pickle.dumps(Phase.GATE)) is Phase.GATE


def test_an_observation_needs_an_outcome_only_and_can_be_sent_to_another_process() -> None:
    seen = Observation(Outcome.CRASH)
    assert seen == (Outcome.CRASH, None, None, None, {}, None, None, 0)
    assert pickle.loads(pickle.dumps(seen)) == seen and copy.deepcopy(seen) == seen
    with pytest.raises(TypeError):
        seen.cost_s["build"] = 1.0  # type: ignore[index]  # shared by all observations
