from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.domain.evaluation import Round
from gpt_search.measure.confidence import bounds, spread_of
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import SPREAD_SHARE, Best, Decision, Field, decide, decide_on

PROTOCOL = Protocol(min_rounds=5, max_rounds=15, target_error=0.01, contender_error=0.005)
BEST = Best(-0.2, 0.0)


@pytest.fixture(scope="module")
def racing() -> ModuleType:
    """benchmarks/racing.py, which these tests run in a short form."""
    spec = importlib.util.spec_from_file_location("racing", Path(__file__).parents[2] / "benchmarks" / "racing.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["racing"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rounds(ratio: float, n: int, spread: float = 0.001) -> list[Round]:
    return [Round((ratio * math.exp(spread * (i - (n - 1) / 2)),), (1.0,)) for i in range(n)]


def test_no_decision_before_min_rounds() -> None:
    assert decide(rounds(9.0, 4), BEST, PROTOCOL) is Decision.CONTINUE
    assert decide([], BEST, PROTOCOL) is Decision.CONTINUE
    assert decide(rounds(9.0, 5), BEST, PROTOCOL) is Decision.CLEARLY_WORSE


def test_precise_estimate_is_enough() -> None:
    assert decide(rounds(1.0, 5), None, PROTOCOL) is Decision.ENOUGH
    assert decide(rounds(1.0, 5, spread=0.1), None, PROTOCOL) is Decision.CONTINUE
    between = rounds(0.8, 5, spread=0.007)  # precise enough without a best, not for a contender
    assert decide(between, None, PROTOCOL) is Decision.ENOUGH
    assert decide(between, BEST, PROTOCOL) is Decision.CONTINUE
    assert decide(rounds(0.8, 5), BEST, PROTOCOL) is Decision.ENOUGH


def test_max_rounds_end_it() -> None:
    assert decide(rounds(0.8, 14, spread=0.1), BEST, PROTOCOL) is Decision.CONTINUE
    assert decide(rounds(0.8, 15, spread=0.1), BEST, PROTOCOL) is Decision.ENOUGH


def test_a_route_is_discarded_just_when_its_lower_bound_lies_above_the_upper_bound_of_the_best() -> None:
    x = [0.02, 0.05, 0.03, 0.04, 0.01, 0.06, 0.03, 0.02]
    lower = bounds(x, 9, 0.05).lower
    assert decide_on(x, Best(lower - 1e-9), PROTOCOL, 9) is Decision.CLEARLY_WORSE
    assert decide_on(x, Best(lower + 1e-9), PROTOCOL, 9) is not Decision.CLEARLY_WORSE
    # The same rounds of a later trial, at a smaller alpha, or beside noisier routes, say less.
    assert decide_on(x, Best(lower - 1e-9), PROTOCOL, 10) is not Decision.CLEARLY_WORSE
    careful = Protocol(max_rounds=15, alpha=0.04)
    assert decide_on(x, Best(lower - 1e-9), careful, 9) is not Decision.CLEARLY_WORSE
    assert decide_on(x, Best(lower - 1e-9, 2 * spread_of(x)), PROTOCOL, 9) is not Decision.CLEARLY_WORSE


@given(st.floats(0.7, 1.3), st.integers(3, 15), st.floats(0.001, 0.1), st.integers(1, 500))
def test_deciding_on_rounds_and_on_their_log_ratios_agree(ratio: float, n: int, spread: float, trial: int) -> None:
    r = rounds(ratio, n, spread)
    x = [math.log(a.candidate_ms[0]) for a in r]
    assert decide(r, BEST, PROTOCOL, trial) is decide_on(x, BEST, PROTOCOL, trial)


class TestField:
    def test_the_reference_is_at_0_without_error(self) -> None:
        field = Field(PROTOCOL)
        assert field.best is None
        first = rounds(1.1, 5, 0.01)
        field.learn(0, first, feasible=True)
        assert field.best == Best(0.0, SPREAD_SHARE * spread_of([math.log(r.candidate_ms[0]) for r in first]))

    def test_the_smallest_upper_bound_counts_not_the_smallest_estimate(self) -> None:
        field = Field(PROTOCOL)
        field.learn(0, rounds(1.0, 5, 0.01), feasible=True)
        field.learn(1, rounds(0.90, 15, 0.01), feasible=True)
        sure = field.best
        assert sure is not None and math.log(0.9) < sure.upper < 0
        field.learn(2, rounds(0.85, 5, 0.05), feasible=True)  # faster on paper, known badly
        assert field.best is not None and field.best.upper == sure.upper

    def test_what_is_not_feasible_teaches_the_spread_alone(self) -> None:
        field = Field(PROTOCOL)
        field.learn(3, rounds(0.1, 9, 0.02), feasible=False)
        assert field.best is None
        field.learn(0, rounds(1.0, 5, 0.001), feasible=True)
        assert field.best is not None and field.best.upper == 0.0
        spreads = [
            spread_of([math.log(r.candidate_ms[0]) for r in rounds(1.0, n, s)]) for n, s in ((9, 0.02), (5, 0.001))
        ]
        assert field.best.spread == pytest.approx(SPREAD_SHARE * np.mean(spreads))

    def test_rounds_that_agree_by_chance_do_not_make_a_best(self) -> None:
        """Five equal rounds have no spread of their own; the routes before say that there is one."""
        field = Field(PROTOCOL)
        for trial in range(3):
            field.learn(trial, rounds(1.0, 9, 0.02), feasible=True)
        field.learn(3, rounds(0.97, 5, 0.0), feasible=True)
        assert field.best is not None and field.best.upper == 0.0
        assert decide(rounds(1.03, 5, 0.0), field.best, PROTOCOL, 4) is not Decision.CLEARLY_WORSE
        assert decide(rounds(1.03, 5, 0.0), Best(0.0), PROTOCOL, 4) is Decision.CLEARLY_WORSE


@pytest.mark.parametrize("noise", ["normal", "t3", "bursts", "uniform", "states", "drift", "steps"])
def test_no_study_of_equal_routes_discards_one(noise: str, racing: ModuleType) -> None:
    """Discarding any of 30 equal routes would be the error; at most alpha of 100 studies may, and none does."""
    found = racing.study("equal", noise, 0.02, 30, 100, Protocol(max_rounds=25), seed=5)
    assert found.errors <= 1
    assert racing.study("normal 0.1", noise, 0.02, 30, 20, Protocol(max_rounds=25)).discarded.mean() > 0.4


def test_without_the_guard_two_states_of_a_device_do_discard(
    racing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the least spread is for; the short form of the figure in docs/measurement.md."""
    monkeypatch.setattr(racing, "SPREAD_SHARE", 0.0)
    assert racing.study("equal", "states", 0.02, 30, 100, Protocol(max_rounds=25), seed=5).errors > 10


def test_a_careless_rule_is_found_out(racing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can see errors: bounds at a fixed 95 % after every round fail in most studies."""
    from scipy.special import stdtrit

    monkeypatch.setattr(racing, "margins", lambda n, i, a: (float(stdtrit(n - 1, 0.95)) / n**0.5,) * 2)
    assert racing.study("equal", "normal", 0.02, 30, 100, Protocol(max_rounds=25), seed=5).errors > 50


def test_the_guarantee_is_one_for_engines_as_built(racing: ModuleType) -> None:
    """Where builds of a route differ, the fastest engine stays; a route with one unlucky build may go."""
    found = racing.study("equal", "normal", 0.01, 30, 100, Protocol(), seed=5, between=0.01)
    assert found.errors_as_built <= 1
    assert found.errors > 50


def test_worse_routes_are_dropped_early_and_contenders_get_more_rounds(racing: ModuleType) -> None:
    found = racing.study("normal 0.1", "normal", 0.01, 40, 50, Protocol())
    assert found.rounds[found.discarded].mean() < 0.6 * found.rounds[~found.discarded].mean()
    assert found.errors == 0


def test_racing_uses_a_third_of_the_rounds_of_sampling_all_routes_alike(racing: ModuleType) -> None:
    found = racing.saving("normal 0.1", "normal", 0.03, 100, 40, racing.PRECISE, most=100)
    assert found.well >= 36
    assert found.same >= 3 * found.used


def test_the_simulation_races_by_the_rule(racing: ModuleType) -> None:
    protocol = Protocol(max_rounds=25)
    rng = np.random.default_rng(8)
    x = rng.normal(0.03, 0.02, (60, 25)) * rng.choice([0.2, 1.0], (60, 1))
    best, spread = np.full(60, 0.005), np.full(60, 0.004)
    raced = racing.race(x, best, spread, 12, protocol)
    for i in range(60):
        n = protocol.min_rounds
        while (decision := decide_on(x[i, :n].tolist(), Best(best[i], spread[i]), protocol, 12)) is Decision.CONTINUE:
            n += 1
        assert raced.rounds[i] == n
        assert raced.discarded[i] == (decision is Decision.CLEARLY_WORSE)
    assert 0 < raced.discarded.sum() < 60


def test_decisions_explain_themselves() -> None:
    assert len({d.explanation for d in Decision}) == len(Decision) == 3
