"""Evaluations: stored as JSON and read back without losing anything."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import Evaluation, Observation, Outcome, Phase
from gpt_search.domain.evaluation import Round

numbers = st.floats(allow_nan=True, allow_infinity=True)
maybe = st.none() | numbers
text = st.text(max_size=5)

rounds = st.builds(
    Round,
    candidate_ms=st.lists(numbers, max_size=4).map(tuple),
    reference_ms=st.lists(numbers, max_size=4).map(tuple),
    started_s=numbers,
    reference_first=st.booleans(),
    device=st.dictionaries(text, numbers, max_size=2),
    launch=text,
)
evaluations = st.builds(
    Evaluation,
    outcome=st.sampled_from(Outcome),
    until=st.sampled_from(Phase),
    losses=st.lists(st.dictionaries(text, st.dictionaries(text, numbers, max_size=3), max_size=2), max_size=2).map(
        tuple
    ),
    violation=maybe,
    latency_ms=maybe,
    error_ms=maybe,
    log_ratio=maybe,
    log_ratio_error=maybe,
    rounds=st.lists(rounds, max_size=3).map(tuple),
    fingerprint=st.none() | text,
    memory_bytes=st.none() | st.integers(0, 2**50),
    timed_as=st.none() | st.integers(0, 1000),
    borrowed=st.integers(0, 3),
    checks=st.none() | st.integers(0, 1000),
    raced=st.booleans(),
    cost_s=st.dictionaries(st.sampled_from(["start", "build", "gate", "time"]), numbers),
    message=st.none() | st.text(),
    notes=st.lists(st.text(), max_size=2).map(tuple),
)


@given(evaluations)
def test_an_evaluation_survives_strict_json(evaluation: Evaluation) -> None:
    line = json.dumps(evaluation.to_json(), allow_nan=False)
    assert "\n" not in line
    again = Evaluation.from_json(json.loads(line))
    assert repr(again) == repr(evaluation)  # repr, because NaN is not equal to itself
    assert again.to_json() == evaluation.to_json()


@given(evaluations)
def test_a_strategy_sees_only_its_part(evaluation: Evaluation) -> None:
    seen = evaluation.observation()
    assert isinstance(seen, Observation)
    assert seen.rounds == len(evaluation.rounds)
    for name in set(Observation._fields) - {"rounds"}:
        assert repr(getattr(seen, name)) == repr(getattr(evaluation, name))
    if evaluation.cost_s:
        assert seen.cost_s is not evaluation.cost_s


def test_the_stored_form_is_readable_by_later_versions() -> None:
    """Records are kept for years: this line was written by the first version."""
    line = (
        '{"outcome": "ACCURACY", "until": "TIME", "losses": [{"y": {"l0": 0.5, "cos": "inf"}}], "violation": "inf",'
        ' "latency_ms": null, "error_ms": null, "log_ratio": null, "log_ratio_error": null, "fingerprint": "ab",'
        ' "memory_bytes": 12, "timed_as": null, "raced": false, "cost_s": {"build": 1.5}, "message": "no",'
        ' "rounds": [{"candidate_ms": [1.0, "nan"], "reference_ms": [2.0], "started_s": 3.0, "reference_first": true}]}'
    )
    evaluation = Evaluation.from_json(json.loads(line))
    assert evaluation.outcome is Outcome.ACCURACY and evaluation.until is Phase.TIME
    assert evaluation.violation == math.inf and evaluation.losses[0]["y"] == {"l0": 0.5, "cos": math.inf}
    assert evaluation.rounds[0].candidate_ms[0] == 1.0 and math.isnan(evaluation.rounds[0].candidate_ms[1])
    assert json.loads(json.dumps(evaluation.to_json(), allow_nan=False)) == json.loads(line)


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "GOOD"},
        {"until": None},
        {"losses": 3},
        {"violation": "much"},
        {"rounds": [{}]},
        {"cost_s": {"a": None}},
    ],
)
def test_another_form_is_refused(change: dict[str, object]) -> None:
    data = {**Evaluation(Outcome.OK, Phase.TIME).to_json(), **change}
    with pytest.raises((KeyError, TypeError, ValueError)):
        Evaluation.from_json(data)
    with pytest.raises(KeyError):
        Evaluation.from_json({})
