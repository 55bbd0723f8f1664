"""random and sparse_random: their distributions, and that they find the last route."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gpt_search import History, InputError, Observation, Outcome, Phase, SearchSpace, Streams, load_strategy, simulate
from gpt_search.domain.space import Dimension

OK = Observation(Outcome.OK, 1.0)


def space_of(*counts: int) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(c))), i % c) for i, c in enumerate(counts))


def constant(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
    return OK


def first_proposals(spec: str, space: SearchSpace, seeds: range) -> Counter[tuple[int, ...]]:
    strategy, history = load_strategy(spec), History(space)
    history.append(0, space.default, OK)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in seeds:
        proposal = strategy.propose(space, history, Streams(seed))
        assert proposal is not None
        found[tuple(proposal.codes.tolist())] += 1
    return found


def test_random_is_uniform_over_the_untried() -> None:
    space = space_of(3, 2, 4)
    found = first_proposals("random", space, range(4600))
    assert len(found) == 23 and tuple(space.default.tolist()) not in found
    # 200 expected each, standard deviation 14; the seeds are fixed, so this cannot flicker.
    assert max(found.values()) < 270 and min(found.values()) > 130


def test_random_with_keep_changes_each_knob_with_the_chance_that_is_left() -> None:
    space = space_of(*[2] * 40)
    found = first_proposals("random:keep=0.9", space, range(500))
    changed = sum(n * (np.array(codes) != space.default).sum() for codes, n in found.items()) / 500
    # A changed knob: not kept (0.1), and the other of its two values (0.5); the reference itself was tried.
    # Standard error of the mean 0.06.
    assert abs(changed - 40 * 0.05 / (1 - 0.95**40)) < 0.25


def test_random_is_uniform_when_the_untried_have_to_be_listed() -> None:
    """Two routes of 1000 left: 64 draws fail nearly always."""
    space = space_of(10, 10, 10)
    left = [(9, 9, 9), (3, 1, 4)]
    history = History(space)
    for index in range(space.size):
        codes = space.codes_at(index)
        if tuple(codes.tolist()) not in left:
            history.append(len(history), codes, OK)
    strategy = load_strategy("random")
    found = Counter(tuple(strategy.propose(space, history, Streams(s)).codes.tolist()) for s in range(400))  # type: ignore[union-attr]
    assert set(found) == set(left) and min(found.values()) > 150


def test_the_last_route_of_a_large_space_is_found() -> None:
    """The space is too large to be listed, so its order is walked; pending routes are skipped as well."""
    space = SearchSpace(Dimension(f"k{i}", ("0", "1") if i else ("0", "1", "2"), 0) for i in range(16))
    assert space.size == 3 * 2**15 > 2**16
    history = History(space)
    last, waiting = 81_234, 4_321
    codes = np.stack(np.unravel_index(np.arange(space.size), space.cardinalities), axis=1).astype(np.int16)
    for index in range(space.size):
        if index not in (last, waiting):
            history.append(len(history), codes[index], OK)
    history.start(len(history), codes[waiting], Phase.TIME)
    strategies = [
        load_strategy(s) for s in ("random", "sparse_random", "sparse_random:mean=1", "sparse_random:mean=50")
    ]
    for strategy in strategies:
        proposal = strategy.propose(space, history, Streams(1))
        assert proposal is not None and space.index_of(proposal.codes) == last
    history.start(len(history) + 1, codes[last], Phase.TIME)
    for strategy in strategies:
        assert strategy.propose(space, history, Streams(1)) is None


@pytest.mark.parametrize("spec", ["random", "sparse_random"])
def test_the_seed_and_the_trial_change_the_proposal(spec: str) -> None:
    space = space_of(*[2] * 40)
    runs = [simulate(space, spec, constant, 10, seed=s).codes for s in ("a", "b")]
    assert not np.array_equal(*runs)
    assert len(np.unique(runs[0], axis=0)) == 11


def test_sparse_random_changes_few_knobs() -> None:
    space = space_of(*[3] * 100)
    changes = (simulate(space, "sparse_random", constant, 2000).codes != space.default).sum(axis=1)[1:]
    assert changes.min() >= 1
    # The 200 single changes are soon used up and drawn anew, hence above 3.
    assert 3 < changes.mean() < 4 and 190 < (changes == 1).sum() <= 200
    wide = (simulate(space, "sparse_random:mean=10", constant, 2000).codes != space.default).sum(axis=1)[1:]
    assert 9 < wide.mean() < 11


def test_sparse_random_draws_every_other_value_alike() -> None:
    found = first_proposals("sparse_random:mean=1", space_of(4, 1, 5), range(3500))
    by_knob = Counter({0: 0, 2: 0})
    for codes, count in found.items():
        by_knob[0 if codes[0] != 0 else 2] += count
    assert len(found) == 3 + 4 and min(by_knob.values()) > 1600
    assert all(400 < count < 700 for count in found.values())


def test_sparse_random_single_changes_come_first_when_draws_fail() -> None:
    space = space_of(2, 2, 2, 2)
    changes = (simulate(space, "sparse_random:mean=1", constant, None).codes != space.default).sum(axis=1)
    assert changes.tolist() == [0] + [1] * 4 + [2] * 6 + [3] * 4 + [4]


def test_sparse_random_takes_knobs_with_very_many_values() -> None:
    space = SearchSpace([Dimension("k", tuple(map(str, range(32_767))), 32_766)])
    codes = simulate(space, "sparse_random", constant, 50).codes
    assert codes.min() >= 0 and len(np.unique(codes)) == 51


@pytest.mark.parametrize("mean", ["0.5", "-1", "inf"])
def test_sparse_random_refuses_a_mean_below_one(mean: str) -> None:
    with pytest.raises(InputError, match="mean is"):
        load_strategy(f"sparse_random:mean={mean}")
