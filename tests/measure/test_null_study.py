"""A short form of benchmarks/null_study.py: nothing matters, and next to nothing is confirmed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import null_study
from null_study import CELLS, Machine, Result, clopper_pearson, run_studies, run_study

from gpt_search.measure.intervals import Verdict
from gpt_search.measure.paired import estimate_of, paired_estimate


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_studies(2 * len(CELLS))


def test_speed_ups_are_claimed_and_not_confirmed(results: list[Result]) -> None:
    faster = sum(r.found is Verdict.FASTER for r in results)
    assert clopper_pearson(faster, len(results))[0] <= 0.05
    headline = np.array([r.headline for r in results if r.headline is not None])
    assert len(headline) > len(results) / 2  # noise makes most studies nominate something
    assert abs(headline.mean()) < 4 * headline.std(ddof=1) / len(headline) ** 0.5
    claimed = np.array([r.claimed for r in results if r.claimed is not None])
    naive = np.array([r.naive for r in results])
    # The control: both claims are off by far more than the headline.
    assert claimed.mean() > 0.01 and naive.mean() > 0.005
    assert {(r.noise, r.tail, r.drift) for r in results} == set(CELLS)


def test_a_real_gain_is_confirmed_by_the_same_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an upper bound on false claims would mean nothing."""
    engine = Machine.engine
    # The reference is the first engine of the search, and the second of every pair of the confirmation.
    made: list[int] = []

    def faster_candidates(self: Machine) -> float:
        made.append(0)
        return engine(self) - 0.05 * (len(made) > 1)

    def pair(self: Machine) -> float:
        stream = self.rounds(engine(self) - 0.05, engine(self))
        return paired_estimate([next(stream) for _ in range(10)]).log_ratio

    monkeypatch.setattr(Machine, "engine", faster_candidates)
    monkeypatch.setattr(Machine, "pair_of_builds", pair)
    found = run_study(0, 0.01, "t3", "linear")
    assert found.found is Verdict.FASTER and found.headline == pytest.approx(0.05, abs=0.02)


def test_drift_moves_single_rounds_and_not_their_ratio() -> None:
    machine = Machine(0, 1e-6, "normal", "linear")
    stream = machine.rounds(0.0, 0.0)
    rounds = []
    for _ in range(50):
        rounds.append(next(stream))
        machine.clock += 1.0
    assert rounds[-1].reference_ms[0] / rounds[0].reference_ms[0] > 1.05
    assert abs(paired_estimate(rounds).log_ratio) < 1e-4
    # The benchmark's short cut is the real thing for rounds of one sample.
    assert estimate_of([null_study._log_ratio(r) for r in rounds]) == paired_estimate(rounds)


def test_clopper_pearson() -> None:
    assert clopper_pearson(0, 10) == (0.0, pytest.approx(0.3085, abs=1e-4))
    assert clopper_pearson(10, 10) == (pytest.approx(0.6915, abs=1e-4), 1.0)
    assert clopper_pearson(5, 100) == (pytest.approx(0.0164, abs=1e-4), pytest.approx(0.1128, abs=1e-4))
