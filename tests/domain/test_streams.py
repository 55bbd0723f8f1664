"""Streams: addressed, so no order of calls changes a number; and independent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import Streams
from gpt_search.domain.streams import seed_from

trials = st.integers(0, 2**40)
purposes = st.sampled_from(["", "noise", "a", "a\0b"])


def numbers(streams: Streams, t: int, purpose: str) -> list[float]:
    rng = streams.trial(t, purpose)
    return [rng.random(), rng.standard_normal(), float(rng.integers(0, 7)), *rng.random(3).tolist()]


@given(st.lists(st.tuples(trials, purposes), min_size=1, max_size=8), st.integers() | st.text())
def test_any_order_of_calls_gives_the_same_numbers(calls: list[tuple[int, str]], seed: int | str) -> None:
    streams = Streams(seed)
    forwards = {call: numbers(streams, *call) for call in calls}
    backwards = {call: numbers(streams, *call) for call in reversed(calls)}
    fresh = {call: numbers(Streams(seed), *call) for call in calls}
    assert forwards == backwards == fresh
    assert len({tuple(v) for v in forwards.values()}) == len(forwards)


def test_what_was_left_half_drawn_does_not_matter() -> None:
    streams = Streams(5)
    expected = numbers(streams, 3, "")
    streams.trial(3).integers(0, 5, dtype=np.int8)  # leaves part of a word behind
    streams.trial(3).random(1001)
    assert numbers(streams, 3, "") == expected


def test_purposes_can_be_used_side_by_side() -> None:
    streams = Streams(5)
    one, other = streams.trial(3, "one"), streams.trial(3, "other")
    mixed = [one.random(), other.random(), one.random()]
    again = Streams(5)
    assert mixed[0] == again.trial(3, "one").random() and mixed[1] == again.trial(3, "other").random()


def test_streams_are_independent_across_trials_purposes_and_seeds() -> None:
    n = 2000
    streams, other = Streams(0), Streams(1)
    columns = np.asarray(
        [
            [
                streams.trial(t).random(),
                streams.trial(t + 1).random(),
                streams.trial(t, "p").random(),
                other.trial(t).random(),
            ]
            for t in range(n)
        ]
    ).T
    assert np.abs(columns.mean(1) - 0.5).max() < 5 * np.sqrt(1 / 12 / n)
    correlation = np.corrcoef(columns) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(n)


def test_the_numbers_never_change_between_versions() -> None:
    assert Streams(0).trial(7, "measure").integers(0, 2**62, 2).tolist() == [2491044533494434724, 1484365149914511596]
    assert seed_from("experiment", "task", "tpe", 3) == 7431436779958231396


def test_seeds_of_equal_value_are_equal_and_text_is_no_number() -> None:
    assert Streams(np.int64(4)).trial(0).random() == Streams(4).trial(0).random()  # type: ignore[arg-type]
    assert Streams("4").trial(0).random() != Streams(4).trial(0).random()


def test_trials_start_at_0() -> None:
    with pytest.raises(ValueError, match="start at 0, got -1"):
        Streams(0).trial(-1)


@given(st.lists(st.integers() | st.text(max_size=3), max_size=4))
def test_derived_seeds_are_63_bits_and_depend_on_every_coordinate(coordinates: list[int | str]) -> None:
    seed = seed_from(*coordinates)
    assert 0 <= seed < 2**63 and seed == seed_from(*coordinates)
    assert seed != seed_from(*coordinates, 0)
    if len(set(map(repr, coordinates))) > 1:
        swapped = coordinates[::-1]
        assert (seed == seed_from(*swapped)) == (swapped == coordinates)
