import math

import pytest
from measure_simulations import null_race, race_of_worse

from gpt_search.domain.evaluation import Round
from gpt_search.measure.paired import PairedEstimate, paired_estimate
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Decision, decide, decide_on, is_contender

PROTOCOL = Protocol(min_rounds=5, max_rounds=15, target_error=0.01, contender_error=0.005, race_z=3.0)
BEST = PairedEstimate(-0.2, 0.01, 9)


def rounds(ratio: float, n: int, spread: float = 0.001) -> list[Round]:
    return [Round((ratio * math.exp(spread * (i - (n - 1) / 2)),), (1.0,)) for i in range(n)]


def test_no_decision_before_min_rounds() -> None:
    assert decide(rounds(9.0, 4), BEST, PROTOCOL) is Decision.CONTINUE
    assert decide([], BEST, PROTOCOL) is Decision.CONTINUE
    assert decide(rounds(9.0, 5), BEST, PROTOCOL) is Decision.CLEARLY_WORSE


def test_precise_estimate_is_enough_without_a_best() -> None:
    assert decide(rounds(1.0, 5), None, PROTOCOL) is Decision.ENOUGH
    assert decide(rounds(1.0, 5, spread=0.1), None, PROTOCOL) is Decision.CONTINUE


def test_max_rounds_end_it() -> None:
    assert decide(rounds(0.8, 14, spread=0.1), BEST, PROTOCOL) is Decision.CONTINUE
    assert decide(rounds(0.8, 15, spread=0.1), BEST, PROTOCOL) is Decision.ENOUGH


@pytest.mark.parametrize(
    ("log_ratio", "error", "expected"),
    [
        (-0.1399, 0.01, Decision.CLEARLY_WORSE),  # -0.1399 - 0.03 > -0.2 + 0.03
        (-0.1401, 0.01, Decision.ENOUGH),  # bounds touch; too far off to be a contender
        (-0.19, 0.01, Decision.CONTINUE),  # a contender: needs the smaller error
        (-0.19, 0.005, Decision.ENOUGH),
        (-0.5, 0.01, Decision.CONTINUE),  # better than the best
        (-0.12, 0.02, Decision.CONTINUE),  # slower, but not known well enough for anything
    ],
)
def test_rule(log_ratio: float, error: float, expected: Decision) -> None:
    assert decide_on(PairedEstimate(log_ratio, error, 8), BEST, PROTOCOL) is expected


def test_deciding_on_rounds_and_on_their_estimate_agree() -> None:
    for ratio in (0.75, 0.85, 1.2):
        r = rounds(ratio, 7, 0.02)
        assert decide(r, BEST, PROTOCOL) is decide_on(paired_estimate(r), BEST, PROTOCOL)


def test_a_best_of_unknown_error_drops_nothing() -> None:
    assert decide_on(PairedEstimate(5.0, 0.001, 15), PairedEstimate(0.0, math.inf, 1), PROTOCOL) is Decision.ENOUGH


def test_contender() -> None:
    assert not is_contender(PairedEstimate(0.0, 0.01, 9), None, 3.0)
    assert is_contender(PairedEstimate(-0.9, 0.01, 9), BEST, 3.0)
    assert not is_contender(PairedEstimate(-0.15, 0.01, 9), BEST, 3.0)


@pytest.mark.parametrize("noise", ["normal", "t3", "bursts"])
def test_equal_routes_are_seldom_dropped(noise: str) -> None:
    share, _ = null_race(noise, 0.03, studies=10)
    assert share <= 0.025  # 390 routes; 0.1-0.9 % in docs/measurement.md


def test_worse_routes_are_dropped_early_and_contenders_get_more_rounds() -> None:
    dropped, used = race_of_worse(0.1, 0.02, 100)
    assert dropped > 0.95
    assert used < 6
    assert null_race("normal", 0.03, studies=3)[1] > 12


def test_decisions_explain_themselves() -> None:
    assert len({d.explanation for d in Decision}) == len(Decision) == 3
