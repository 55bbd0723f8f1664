"""What makes routes fail is found, and what succeeded is acquitted."""

from __future__ import annotations

import numpy as np

from gpt_search import Blame, History, Observation, Outcome, Phase, SearchSpace, Streams, planted
from gpt_search.domain.space import Dimension

SPACE = SearchSpace(Dimension(f"k{i}", ("0", "1", "2")[: 2 + (i == 4)], 0) for i in range(6))
OK, FAILS = Observation(Outcome.OK, 1.0), Observation(Outcome.CRASH)


def history_of(*rows: tuple[str, Observation], until: Phase = Phase.TIME) -> History:
    history = History(SPACE)
    history.append(0, SPACE.default, OK)
    for text, seen in rows:
        history.append(len(history), np.array([int(c) for c in text], np.int16), seen, until)
    return history


def test_a_single_change_that_fails_is_the_cause() -> None:
    blame = Blame(SPACE).update(history_of(("010000", FAILS), ("100000", OK)))
    assert blame.value[1, 1] > 0.7 and blame.value[0, 1] < 0.01
    assert (blame.value[np.arange(6), SPACE.default] == 0).all()


def test_blame_is_shared_until_a_success_acquits() -> None:
    both = Blame(SPACE).update(history_of(("110000", FAILS)))
    assert 0.3 < both.value[0, 1] == both.value[1, 1] < 0.6
    for order in ((("110000", FAILS), ("100000", OK)), (("100000", OK), ("110000", FAILS))):
        one = Blame(SPACE).update(history_of(*order))
        assert one.value[0, 1] < 0.01 and one.value[1, 1] > 0.7


def test_a_known_cause_explains_other_failures_away() -> None:
    blame = Blame(SPACE).update(history_of(("010000", FAILS), ("011000", FAILS)))
    assert blame.value[1, 1] > 0.8 and blame.value[2, 1] < 0.1


def test_values_of_one_knob_are_told_apart() -> None:
    blame = Blame(SPACE).update(history_of(("000020", FAILS), ("000010", OK)))
    assert blame.value[4, 2] > 0.7 and blame.value[4, 1] < 0.01


def test_pairs_are_blamed_when_single_values_cannot_be() -> None:
    history = history_of(("110000", FAILS), ("101000", OK), ("011000", OK))
    blame = Blame(SPACE).update(history)
    fails = blame.of(np.array([[1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]], np.int16))
    assert fails[0] > 0.2 and fails[1] < 0.01 and fails[2] > 0.2
    healed = blame.heal(np.array([1, 1, 0, 1, 0, 0], np.int16), np.random.default_rng(0))
    assert healed[:2].sum() == 1 and healed[3] == 1


def test_a_mere_build_acquits_nothing() -> None:
    blame = Blame(SPACE).update(history_of(("100000", OK), until=Phase.BUILD))
    assert blame.value[0, 1] > 0.01


def test_rows_one_by_one_or_all_at_once_and_another_history() -> None:
    landscape = planted("infeasible", 3, 40)
    space, rng, history = landscape.space, np.random.default_rng(1), History(landscape.space)
    step = Blame(space)
    for t in range(80):
        codes = space.default.copy()
        chosen = rng.random(len(space)) < (t > 0) * 0.1
        codes[chosen] = space.sample(rng)[chosen]
        history.append(t, codes, landscape.measure(codes, rng, Phase.TIME))
        step.update(history)
    whole = Blame(space).update(history)
    assert np.array_equal(step.value, whole.value)
    assert np.array_equal(step.of(history.codes), whole.of(history.codes))
    routes = sparse(space, rng)
    fresh = np.array([landscape.outcome(c) != Outcome.OK for c in routes])
    assert whole.of(routes)[fresh].mean() > 2 * whole.of(routes)[~fresh].mean()
    other = History(space)
    other.append(0, space.default, OK)
    assert np.array_equal(step.update(other).value, Blame(space).update(other).value)
    assert step.heal(routes[0], Streams(0).trial(0)) is not routes[0]


def sparse(space: SearchSpace, rng: np.random.Generator) -> np.ndarray:
    routes = np.repeat(space.default[None], 400, axis=0)
    chosen = rng.random(routes.shape) < 0.08
    routes[chosen] = np.stack([space.sample(rng) for _ in routes])[chosen]
    return routes
