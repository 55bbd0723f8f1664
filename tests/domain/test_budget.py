"""Budgets: whichever limit is reached first ends a study."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import Budget, InputError

limits = st.none() | st.integers(0, 20)


@given(limits, limits, limits, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_limit_is_spent_when_it_is_reached(
    trials: int | None, builds: int | None, seconds: int | None, t: int, b: int, s: int
) -> None:
    reached = {
        name
        for name, limit, used in (("trials", trials, t), ("builds", builds, b), ("seconds", seconds, s))
        if limit is not None and used >= limit
    }
    spent = Budget(trials, builds, seconds).spent(t, b, s)
    assert (spent is None) == (not reached) and (spent is None or spent in reached)


def test_no_limit_is_never_spent() -> None:
    assert Budget().spent(10**9, 10**9, math.inf) is None
    assert Budget(seconds=1.5).spent(0, 0, 1.4999) is None and Budget(seconds=1.5).spent(0, 0, 1.5) == "seconds"
    assert Budget(trials=0).spent(0, 0, 0) == "trials"


@pytest.mark.parametrize(("name", "value"), [("trials", -1), ("builds", -5), ("seconds", -0.1), ("seconds", math.nan)])
def test_a_budget_below_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"the budget in {name} is {value}; it must be 0 or more"):
        Budget(**{name: value})  # type: ignore[arg-type]
