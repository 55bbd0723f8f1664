"""Engine size and memory as constraints of a study, on a planted landscape."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_studies import NAME, config, own_locks, quick_workers

from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.limits import Limits
from gpt_search.domain.outcome import Outcome
from gpt_search.run.tune import tune
from gpt_search.store.study import StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures


def test_larger_engines_are_infeasible_and_not_timed(tmp_path: Path, quick_workers: None) -> None:
    limits = Limits(size_mb=1.25)  # the synthetic backend: 1 MB, and 0.1 MB for each knob that is changed
    given = config(tmp_path, budget=Budget(trials=12), limits=limits, strategy="sparse_random")
    summary = tune(given)
    with StudyStore.read(str(tmp_path / "study.journal"), NAME) as store:
        found = [row.evaluation for row in store.restore().rows]
    above = [e for e in found if e.outcome is Outcome.LIMIT]
    assert above and len(above) < len(found)
    for e in found:
        if e.engine_bytes is not None:
            assert (e.engine_bytes > 1_250_000) == (e.outcome is Outcome.LIMIT)
            assert e.excess["size"] == pytest.approx(e.engine_bytes / 1_250_000 - 1)
    assert all(not e.rounds and not e.losses and "above its limit" in (e.message or "") for e in above)
    assert all(n.trial not in [i for i, e in enumerate(found) if e in above] for n in summary.nominees)
    with pytest.raises(InputError, match="exists with other settings"):
        tune(config(tmp_path, budget=Budget(trials=12), limits=Limits(size_mb=2), strategy="sparse_random"))


def test_a_reference_above_a_limit_is_refused(tmp_path: Path, quick_workers: None) -> None:
    with pytest.raises(InputError, match=r"size is 100 % above its limit; raise --max-engine-size"):
        tune(config(tmp_path, limits=Limits(size_mb=0.5)))
