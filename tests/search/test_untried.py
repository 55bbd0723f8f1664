"""Untried routes: found in spaces of any size, uniformly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt_search.search.untried as untried
from gpt_search import History, Observation, Outcome, Phase, SearchSpace, uniform_untried, untried_routes
from gpt_search.domain.space import Dimension


def _space(counts: Iterable[int]) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(c))), 0) for i, c in enumerate(counts))


def _history(space: SearchSpace, finished: Iterable[int], pending: Iterable[int] = ()) -> History:
    history = History(space)
    for trial, index in enumerate(finished):
        history.append(trial, space.codes_at(index), Observation(Outcome.OK, 1.0))
    for index in pending:
        history.start(history.next_trial, space.codes_at(index), Phase.TIME)
    return history


@pytest.mark.parametrize("largest", [2**62, 0], ids=["by numpy", "by whole numbers"])
@given(data=st.data())
def test_every_untried_route_and_no_other_is_drawn(largest: int, data: st.DataObject) -> None:
    space = _space(data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=4)))
    numbers = list(range(space.size))
    tried = data.draw(st.lists(st.sampled_from(numbers), max_size=space.size))
    pending = data.draw(st.lists(st.sampled_from(numbers), max_size=3, unique=True))
    history = _history(space, tried, pending)
    left = set(numbers) - set(tried) - set(pending)
    assert untried_routes(space, history) == len(left)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untried, "_INT64", largest)
        rng = np.random.default_rng(0)
        if not left:
            with pytest.raises(ValueError, match="every route"):
                uniform_untried(space, history, rng)
            return
        assert {space.index_of(uniform_untried(space, history, rng)) for _ in range(5)} <= left


@pytest.mark.parametrize("largest", [2**62, 0], ids=["by numpy", "by whole numbers"])
def test_the_draw_is_uniform(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untried, "_INT64", largest)
    space = _space([3, 2, 2])
    history = _history(space, [0, 1, 4, 7, 11], [5])
    rng = np.random.default_rng(1)
    counts = Counter(space.index_of(uniform_untried(space, history, rng)) for _ in range(3000))
    assert set(counts) == {2, 3, 6, 8, 9, 10}
    assert all(400 < n < 600 for n in counts.values())  # 500 each; 100 is five standard deviations


def test_a_space_beyond_64_bits() -> None:
    space = _space([2] * 200)
    history = _history(space, [0, 1, space.size - 1])
    codes = uniform_untried(space, history, np.random.default_rng(2))
    assert not history.contains(codes)
    assert untried_routes(space, history) == 2**200 - 3
