import json
import math

import pytest

from gpt_search.domain.errors import InputError
from gpt_search.measure.protocol import Protocol


def test_json_round_trip_through_text() -> None:
    protocol = Protocol(round_seconds=0.05, min_rounds=3, max_rounds=40, alpha=0.01)
    assert Protocol.from_json(json.loads(json.dumps(protocol.to_json()))) == protocol


def test_left_out_values_are_defaults_and_whole_floats_become_ints() -> None:
    protocol = Protocol.from_json({"max_rounds": 20.0})
    assert protocol == Protocol(max_rounds=20)
    assert type(protocol.max_rounds) is int


def test_what_is_timed_is_part_of_it_but_old_studies_keep_their_digest() -> None:
    assert not {"timing", "streams", "host_copies"} & set(Protocol().to_json())
    tail = Protocol.for_timing("p99")
    assert tail.max_rounds < Protocol().max_rounds and tail.to_json()["timing"] == "p99"
    loaded = Protocol.for_timing("throughput", 4, host_copies=True)
    assert Protocol.from_json(json.loads(json.dumps(loaded.to_json()))) == loaded
    assert type(Protocol.from_json({"timing": "throughput", "streams": 2.0}).streams) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("p95",), "--timing 'p95' is not one of median"),
        (("median", 2), "--streams 2 with --timing median"),
        (("throughput", 0), "--streams is 0"),
        (("throughput", 257), "--streams is 257; it must be from 1 to 256"),
    ],
)
def test_what_cannot_be_timed_is_refused(given: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Protocol.for_timing(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"round_seconds": 0.001},
        {"round_seconds": math.nan},
        {"min_rounds": 2},
        {"min_rounds": 8, "max_rounds": 7},
        {"warmup_seconds": -1},
        {"warmup_seconds": 3.0, "warmup_limit_seconds": 2.0},
        {"target_error": -0.1},
        {"contender_error": 0.02, "target_error": 0.01},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"alpha": math.nan},
    ],
)
def test_out_of_range_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InputError, match="measurement protocol"):
        Protocol(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"min_round": 5}, "did you mean 'min_rounds'"),
        ({"min_rounds": 5.5}, "whole number"),
        ({"alpha": "3"}, "must be a number"),
        ({"alpha": True}, "must be a number"),
        ({"alpha": None}, "must be a number"),
        ({"timing": 3}, "timing is 3; it must be a str"),
        ({"streams": 1.5}, "whole number"),
        ({"host_copies": 1}, "it must be a bool"),
    ],
)
def test_unreadable_json_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Protocol.from_json(data)
