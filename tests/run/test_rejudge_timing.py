from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_studies import NAME, config, own_locks, quick_workers

from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.measure.protocol import Protocol
from gpt_search.run.rejudge import Missing, rejudge
from gpt_search.run.rejudge_timing import retimed, retimed_protocol
from gpt_search.run.tune import tune
from gpt_search.store.study import Restored, Row, StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures

ONE = (1.0,)


def rounds(ratio: float, count: int, samples: int = 200, slow: float = 1.0, seed: int = 0) -> tuple[Round, ...]:
    """Rounds of `samples` calls a side; the candidate's slowest fifth is `slow` times as slow as it would be."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        reference = 1 + 0.01 * rng.standard_normal(samples)
        mine = ratio * (1 + 0.01 * rng.standard_normal(samples))
        mine[rng.random(samples) < 0.2] *= slow
        found.append(Round(tuple(mine), tuple(reference)))
    return tuple(found)


def row(trial: int, of: tuple[Round, ...], **more: object) -> Row:
    found = Evaluation(
        Outcome.OK, Phase.TIME, violation=-1.0, latency_ms=1.0, error_ms=0.1, log_ratio=0.0, rounds=of, fingerprint="f"
    )
    return Row(trial, np.zeros(1, np.int16), Phase.TIME, replace(found, **more), float(trial))  # type: ignore[arg-type]


REFERENCE = row(0, rounds(1.0, 10))


def test_a_tail_quantile_ranks_by_the_tail() -> None:
    """The route with the faster median has the slower tail."""
    protocol = retimed_protocol(Protocol(), "p90")
    found, lacking = retimed([REFERENCE, row(1, rounds(0.9, 10, slow=2.0)), row(2, rounds(0.95, 10))], protocol, ONE)
    assert lacking == frozenset()
    reference, tail, even = (r.evaluation for r in found)
    assert reference.log_ratio == 0.0 and reference.latency_ms == pytest.approx(1.0127, abs=0.002)
    assert tail.latency_ms is not None and even.latency_ms is not None and tail.latency_ms > even.latency_ms
    assert even.log_ratio == pytest.approx(math.log(0.95), abs=0.003)
    by_median, _ = retimed([REFERENCE, row(1, rounds(0.9, 10, slow=2.0))], Protocol(), ONE)
    assert by_median[1].evaluation.log_ratio == pytest.approx(math.log(0.9), abs=0.01)


def test_samples_that_are_too_few_make_a_route_unknown_not_a_guess() -> None:
    protocol = retimed_protocol(Protocol(), "p99")
    reference = row(0, rounds(1.0, 30))
    found, lacking = retimed([reference, row(1, rounds(0.9, 5), raced=True), row(2, rounds(0.9, 30))], protocol, ONE)
    assert lacking == {1}
    short = found[1]
    assert short.until is Phase.GATE and short.evaluation.latency_ms is None and short.evaluation.rounds == ()
    assert short.evaluation.violation == -1.0 and not short.evaluation.raced
    assert found[2].evaluation.latency_ms == pytest.approx(0.92, abs=0.01)


def test_an_engine_whose_samples_were_extended_is_known_by_the_longer_ones() -> None:
    protocol = retimed_protocol(Protocol(), "p90")
    long = rounds(0.9, 10)
    rows = [
        REFERENCE,
        row(1, long[:2], raced=True),
        row(2, long, timed_as=1, borrowed=2),
        row(3, long, timed_as=1, borrowed=10),
    ]
    found, lacking = retimed(rows, protocol, ONE)
    assert lacking == frozenset()
    assert found[1].until is Phase.GATE
    second, third = found[2].evaluation, found[3].evaluation
    assert (second.timed_as, second.borrowed) == (None, 0)
    assert (third.timed_as, third.borrowed) == (2, 10) and third.latency_ms == second.latency_ms


def test_a_reference_with_too_few_samples_ends_it() -> None:
    with pytest.raises(InputError, match=r"too few for p99: 2 times 1000 of each side, and it needs 5"):
        retimed([REFERENCE], retimed_protocol(Protocol(), "p99"), ONE)


def test_throughput_is_another_kind_of_sample() -> None:
    for old, new in (("median", "throughput"), ("throughput", "mean")):
        with pytest.raises(InputError, match="say nothing of"):
            retimed_protocol(Protocol(timing=old, streams=2 if old == "throughput" else 1), new)
    with pytest.raises(InputError, match="is not one of"):
        retimed_protocol(Protocol(), "p95")


@pytest.fixture
def storage(tmp_path: Path, quick_workers: None) -> str:
    made = config(tmp_path, "sparse_random", budget=Budget(trials=12))
    tune(made)
    return made.storage


def restored(storage: str, name: str) -> Restored:
    with StudyStore.read(storage, name) as store:
        return store.restore()


def test_a_study_by_its_means(storage: str) -> None:
    done = rejudge(NAME, storage, timing="mean")
    assert (done.old_timing, done.new_timing, done.summary.study) == ("median", "mean", f"{NAME}-mean")
    assert not done.became_feasible and not done.became_infeasible
    assert all(u.missing is not Missing.SAMPLES for u in done.unknown)
    before, after = restored(storage, NAME), restored(storage, f"{NAME}-mean")
    differing = 0
    for one, other in zip(before.rows, after.rows, strict=True):
        assert one.trial == other.trial and one.evaluation.outcome is other.evaluation.outcome
        if one.trial and one.evaluation.rounds:
            mine = np.concatenate([r.candidate_ms for r in one.evaluation.rounds])
            theirs = np.concatenate([r.reference_ms for r in one.evaluation.rounds])
            assert other.evaluation.log_ratio == pytest.approx(math.log(mine.mean() / theirs.mean()))
            differing += one.evaluation.log_ratio != other.evaluation.log_ratio
    assert differing
    with pytest.raises(
        InputError, match="judged by exactly this already; give another --tolerance, --metric or --timing"
    ):
        rejudge(NAME, storage, timing="median")
    with pytest.raises(InputError, match="too few for p99"):
        rejudge(NAME, storage, timing="p99")
