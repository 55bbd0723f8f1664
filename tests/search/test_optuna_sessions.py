"""How failures are graded; what sessions do is tested through `OptunaStrategy`."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from gpt_search import Outcome
from gpt_search.search.optuna_sessions import failure


@example(6004799503160661.0, 9007199254740994.0)
@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_failures_are_ordered(a: float, b: float) -> None:
    assert failure(Outcome.OK, a) == 0
    for outcome in (Outcome.BUILD_ERROR, Outcome.CRASH, Outcome.TIMEOUT, Outcome.MEMORY):
        assert failure(outcome, a) == 1
    small, large = sorted([a, b])
    assert 0 < failure(Outcome.ACCURACY, small) <= failure(Outcome.ACCURACY, large) <= 1
    assert failure(Outcome.ACCURACY, math.nan) == 1
