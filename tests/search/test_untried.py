"""Routes that were not tried: near ones first, and uniform over what is left."""

from __future__ import annotations

import numpy as np
import pytest

from gpt_search import History, Observation, Outcome, Phase, SearchSpace, Streams
from gpt_search.domain.space import Dimension
from gpt_search.search.untried import nearest_untried, tried, uniform_untried


def make_space(*counts: int) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(k))), 0) for i, k in enumerate(counts))


def test_tried_counts_distinct_routes() -> None:
    space = make_space(2, 3)
    history = History(space)
    assert tried(history) == 0
    for trial, index in enumerate((0, 1, 1)):
        history.append(trial, space.codes_at(index), Observation(Outcome.OK, 1.0))
    for trial, index in enumerate((1, 2, 2), 3):  # one was tried before, one is pending twice
        history.start(trial, space.codes_at(index), Phase.TIME)
    assert tried(history) == 3


def test_nearest_untried_is_a_single_change_while_there_is_one() -> None:
    space = make_space(2, 3, 2)
    history = History(space)
    history.append(0, space.default, Observation(Outcome.OK, 1.0))
    seen = set()
    for t in range(1, 5):
        codes = nearest_untried(space, history, space.default, Streams(0).trial(t))
        assert (codes != space.default).sum() == 1
        seen.add(codes.tobytes())
        history.append(t, codes, Observation(Outcome.OK, 1.0))
    assert len(seen) == 4
    assert (nearest_untried(space, history, space.default, Streams(0).trial(5)) != space.default).sum() > 1


def test_uniform_untried_is_uniform_over_what_is_left() -> None:
    space = make_space(3, 4)
    history = History(space)
    for t, index in enumerate((0, 1, 2, 7, 11)):
        history.append(t, space.codes_at(index), Observation(Outcome.OK, 1.0))
    drawn = [space.index_of(uniform_untried(space, history, Streams(0).trial(t))) for t in range(1400)]
    counts = np.bincount(drawn, minlength=12)
    assert np.flatnonzero(counts).tolist() == [3, 4, 5, 6, 8, 9, 10]
    assert counts[counts > 0].min() > 140 and counts.max() < 260  # 200 expected, standard deviation 13
    for t in (3, 4, 5, 6, 8, 9, 10):
        history.append(t + 10, space.codes_at(t), Observation(Outcome.OK, 1.0))
    with pytest.raises(ValueError, match="every route"):
        uniform_untried(space, history, Streams(0).trial(0))


def test_uniform_untried_in_a_huge_space() -> None:
    space = make_space(*[2] * 200)
    history = History(space)
    history.append(0, space.default, Observation(Outcome.OK, 1.0))
    share = np.mean([uniform_untried(space, history, Streams(0).trial(t)).mean() for t in range(50)])
    assert abs(float(share) - 0.5) < 0.02  # 10,000 bits: standard deviation 0.005
