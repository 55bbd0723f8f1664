"""What is particular to `bandit`: who is asked follows from the history alone, and gains decide."""

from __future__ import annotations

import numpy as np
import pytest

from gpt_search import History, InputError, Observation, Outcome, Streams, load_strategy
from gpt_search.testing import space_of

SPACE = space_of(*[2] * 20)
SPEC = "bandit:members=random+sparse_random,block=5"


def _history(values: list[float]) -> History:
    """The reference and so many trials with these values."""
    history, rng = History(SPACE), np.random.default_rng(0)
    history.append(0, SPACE.default, Observation(Outcome.OK, 1.0))
    for trial, value in enumerate(values, 1):
        history.append(trial, SPACE.sample(rng), Observation(Outcome.OK, value))
    return history


def _turns(spec: str, history: History, trials: int) -> list[int]:
    strategy = load_strategy(spec)
    return [strategy.turns(history, t)[0] for t in range(1, trials + 1)]  # type: ignore[attr-defined]


def test_members_take_turns_where_nothing_gains() -> None:
    turns = _turns(SPEC, _history([1.0] * 60), 60)
    assert turns[:4] == [0, 1, 0, 1] and 25 <= sum(turns) <= 35


def test_the_member_that_gains_is_asked_more_often() -> None:
    """Every trial of member 1 beats all before it; who has the turn is asked trial by trial."""
    strategy, values = load_strategy(SPEC), list[float]()
    asked = []
    for trial in range(1, 81):
        member = strategy.turns(_history(values), trial)[0]  # type: ignore[attr-defined]
        asked.append(member)
        values.append(1.0 - 0.001 * trial if member else 1.0)
    assert sum(asked[20:]) > 0.8 * len(asked[20:])
    assert _turns(SPEC, _history(values), 80) == asked, "the whole history gives the same decisions again"


def test_a_block_waits_for_what_it_depends_on() -> None:
    strategy, history = load_strategy(SPEC), _history([1.0] * 2)
    rng = np.random.default_rng(1)
    straggler = SPACE.sample(rng)
    history.start(3, straggler, history.until[0])
    for trial in range(4, 11):
        history.append(trial, SPACE.sample(rng), Observation(Outcome.OK, 1.0))
    assert strategy.propose(SPACE, history, Streams(0)) is None, "trial 11 needs trials 1 to 5"
    history.finish(3, Observation(Outcome.OK, 0.9))
    assert strategy.propose(SPACE, history, Streams(0)) is not None


def test_another_member_stands_in_for_one_that_has_ended() -> None:
    history = _history([1.0])
    for codes in SPACE.neighbours(SPACE.default):  # all that `fast` has to propose
        if not history.contains(codes):
            history.append(history.next_trial, codes, Observation(Outcome.OK, 1.0))
    strategy = load_strategy("bandit:members=fast+random")
    for _ in range(6):
        proposal = strategy.propose(SPACE, history, Streams(0))
        assert proposal is not None
        history.append(history.next_trial, proposal.codes, Observation(Outcome.OK, 1.0))


@pytest.mark.parametrize("options", ["members=random", "members=random+random", "members=random+bandit", "window=0"])
def test_options_are_checked(options: str) -> None:
    with pytest.raises(InputError, match="must be"):
        load_strategy(f"bandit:{options}")


def test_an_unknown_member_is_named() -> None:
    with pytest.raises(InputError, match="sparse_randon"):
        load_strategy("bandit:members=random+sparse_randon")
