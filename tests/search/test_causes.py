"""Failure causes: found where they were planted, and cleared where routes worked."""

from __future__ import annotations

import numpy as np

from gpt_search import FailureCauses, History, Observation, Outcome, Phase
from gpt_search.domain.space import Codes
from gpt_search.search.causes import values_of
from gpt_search.testing import space_of

OK = Observation(Outcome.OK, 1.0)
CRASH = Observation(Outcome.CRASH)


def history_of(space, routes, fails, until=Phase.TIME) -> History:  # type: ignore[no-untyped-def]
    history = History(space)
    for trial, codes in enumerate([space.default, *routes]):
        history.append(trial, codes.copy(), CRASH if fails(codes) else OK, until)
    return history


def half_designs(space, n: int) -> list[Codes]:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    return [space.sample(rng) for _ in range(n)]


def test_values_are_all_codes_but_the_defaults() -> None:
    space = space_of(2, 3, 1, 4)
    knob, code = values_of(space)
    assert list(zip(knob.tolist(), code.tolist(), strict=True)) == [
        (0, 1), (1, 0), (1, 2), (3, 0), (3, 1), (3, 2),
    ]  # fmt: skip
    causes = FailureCauses(space, History(space))
    assert causes.codes_of(np.asarray([True, False, True, False, False, True])).tolist() == [1, 2, 0, 2]
    assert causes.indicators(space.default[None]).sum() == 0


def test_a_failing_value_is_found_and_the_others_are_cleared() -> None:
    space = space_of(*[2] * 12)
    bad = 1 - int(space.default[4])
    history = history_of(space, half_designs(space, 14), lambda c: c[4] == bad)
    causes = FailureCauses(space, history)
    assert causes.alone[4] > 0.9 and np.delete(causes.alone, 4).max() < 0.01
    assert causes.rate > 0.05


def test_a_failed_group_shares_the_suspicion_and_a_cleared_member_passes_it_on() -> None:
    space = space_of(*[2] * 10)

    def flip(*knobs: int) -> Codes:
        codes = space.default.copy()
        codes[list(knobs)] = 1 - codes[list(knobs)]
        return codes

    group = history_of(space, [flip(0, 1, 2, 3)], lambda c: not np.array_equal(c, space.default))
    shared = FailureCauses(space, group).alone
    assert np.ptp(shared[:4]) < 1e-9 and 0.15 < shared[0] < 0.5 and shared[4] < 0.1
    group.append(2, flip(0, 1), OK)
    passed = FailureCauses(space, group).alone
    assert passed[0] == passed[1] == 0 and passed[2] > shared[2] + 0.1
    group.append(3, flip(2), OK)
    assert FailureCauses(space, group).alone[3] > 0.7


def test_a_pair_that_fails_is_told_from_its_members() -> None:
    space = space_of(*[2] * 10)
    a, b = 1 - int(space.default[2]), 1 - int(space.default[7])
    history = history_of(space, half_designs(space, 60), lambda c: c[2] == a and c[7] == b)
    causes = FailureCauses(space, history)
    assert causes.alone.max() < 0.01
    assert causes.pair[2, 7] == causes.pair[7, 2] > 0.9
    both = np.zeros(10, bool)
    both[[2, 5, 7]] = True
    assert causes.works(both) < 0.2
    kept = causes.without_risky_pairs(both, np.where(np.arange(10) == 7, 0.1, 1.0), 0.1)
    assert kept.nonzero()[0].tolist() == [2, 5] and causes.works(kept) > 0.9


def test_a_build_that_was_not_checked_clears_nothing() -> None:
    space = space_of(*[2] * 6)
    causes = FailureCauses(space, history_of(space, half_designs(space, 9), lambda c: False, Phase.BUILD))
    assert (causes.alone == 0.05).all()


def test_groups_are_as_large_as_the_chance_allows_and_take_one_value_of_a_knob() -> None:
    space = space_of(*[2] * 30, *[4] * 5)
    causes = FailureCauses(space, history_of(space, [], lambda c: False))
    order = np.random.default_rng(0).random(len(causes.knob))
    group = causes.group(0.5, order, np.zeros(len(order), bool))
    assert len(group) == 13 and len(set(causes.knob[group].tolist())) == 13  # 0.95^13 = 0.51
    barred = np.ones(len(order), bool)
    barred[3] = False
    assert causes.group(0.5, order, barred).tolist() == [3]
