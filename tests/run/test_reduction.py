from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.run.reduction import reduce_items, same_engine, without_effect


@given(st.integers(1, 40), st.data())
def test_exactly_what_is_needed_remains(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    asked: list[frozenset[int]] = []

    def removable(removed: frozenset[int]) -> bool:
        asked.append(removed)
        return not removed & needed

    assert reduce_items(range(count), removable) == sorted(needed)
    assert len(set(asked)) == len(asked)  # nothing is asked twice


@given(st.integers(0, 2**32 - 1))
def test_nothing_that_remains_can_be_removed_alone(seed: int) -> None:
    """Whatever the predicate, also one with interactions: removal is 1-minimal."""
    rng = np.random.default_rng(seed)
    weights = {i: float(w) for i, w in enumerate(rng.standard_normal(8))}
    pairs = {(i, j): float(rng.standard_normal()) for i in range(8) for j in range(i)}

    def removable(removed: frozenset[int]) -> bool:
        left = [i for i in range(8) if i not in removed]
        return sum(weights[i] for i in removed) + sum(pairs[i, j] for i in left for j in left if j < i) > 0.0

    kept = reduce_items(range(8), removable)
    gone = frozenset(range(8)) - frozenset(kept)
    assert not gone or (removable(gone) and kept)
    for item in kept:
        assert len(kept) == 1 or not removable(gone | {item})


def test_what_was_needed_only_by_something_removed_later_goes_too() -> None:
    """1 may go once 3 is gone: 3 is a loss that 1 makes good."""
    assert reduce_items([1, 2, 3], lambda removed: 2 not in removed and (1 not in removed or 3 in removed)) == [2]


def test_few_of_many_take_few_tests() -> None:
    asked = []

    def removable(removed: frozenset[int]) -> bool:
        asked.append(removed)
        return not removed & {17, 150}

    assert reduce_items(range(200), removable) == [17, 150]
    assert len(asked) <= 2 * 2 * 8 + 2  # 2 k log2 (m / k) + k, rounded up; one by one it would be 200


def test_all_may_go_where_that_is_not_excluded() -> None:
    assert reduce_items([1, 2], lambda removed: True, all_needed=False) == []
    assert reduce_items([1, 2], lambda removed: True) == [2]
    assert reduce_items([], lambda removed: True) == []


@given(st.integers(1, 60), st.data())
def test_one_answer_tells_of_both_halves(count: int, data: st.DataObject) -> None:
    """Independent effects: what has none is found with a third of the builds or less that one by one would take."""
    needed = data.draw(st.sets(st.integers(0, count - 1), max_size=max(1, count // 8)))
    asked: list[frozenset[int]] = []

    def engine(removed: frozenset[int]) -> frozenset[int]:
        asked.append(removed)
        return removed & needed

    assert without_effect(range(count), engine) == set(range(count)) - needed
    assert len(set(asked)) == len(asked) <= 2 + len(needed) * (math.log2(count / max(1, len(needed))) + 2)
    assert same_engine(range(count), engine) == set(range(count)) - needed


@given(st.integers(0, 2**32 - 1))
def test_the_engine_stays_as_it_is_and_nothing_more_can_go(seed: int) -> None:
    """Whatever the engines, also where effects cancel or hide each other, and where some cannot be built."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 4, 2**8)

    def engine(removed: frozenset[int]) -> int | None:
        found = int(numbers[sum(1 << i for i in removed)])
        return None if found == 3 else found

    gone = same_engine(range(8), engine)
    whole = engine(frozenset())
    if whole is None:
        assert gone == frozenset()
        return
    assert engine(gone) == whole
    for item in set(range(8)) - gone:
        assert engine(gone | {item}) != whole


def test_what_seems_to_do_nothing_is_looked_at_once_more() -> None:
    """0 and 1 cancel: without both the engine is the same, so neither seems to do anything; 2 needs 3 to be there."""
    engine = {0: "a", 1: "b", 2: "b", 3: "a"}
    assert without_effect(range(2), lambda removed: engine[sum(1 << i for i in removed)]) == {0, 1}
    assert same_engine(range(2), lambda removed: engine[sum(1 << i for i in removed)]) == {0, 1}
    asked: list[frozenset[int]] = []

    def refused(removed: frozenset[int]) -> str:
        asked.append(removed)
        return "other"

    assert same_engine(range(2), lambda removed: engine[sum(1 << i for i in removed)], refused) == frozenset()
    assert asked[0] == {0, 1} and {frozenset({0}), frozenset({1})} <= set(asked)
