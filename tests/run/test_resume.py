from __future__ import annotations

from pathlib import Path

import pytest
from run_studies import (
    FAILING,
    NAME,
    Stopped,
    assert_equal,
    config,
    contents,
    copy_study,
    own_locks,
    quick_workers,
    stop_after,
)

from gpt_search.run.result import Status
from gpt_search.run.tune import resume, tune
from gpt_search.search.discovery import strategy_names

__all__ = ["own_locks", "quick_workers"]  # fixtures

AT = (3, 25, 49)


@pytest.mark.parametrize("strategy", strategy_names())
def test_every_strategy_goes_on_as_if_never_interrupted(strategy: str, tmp_path: Path, quick_workers: None) -> None:
    """Copied right after trials 3, 25 and 49, which is what a kill there leaves; each copy is then resumed."""
    folder = tmp_path / "whole"
    folder.mkdir()

    def progress(status: Status) -> None:
        if status.trial in AT:
            copy_study(folder, tmp_path / f"at {status.trial}")

    tune(config(folder, strategy), progress)
    whole = contents(folder)
    reached = len(whole["order"]) - 1
    assert whole["order"] == list(range(reached + 1)) and whole["adopted"] == []
    for at in AT:
        if at > reached:
            continue  # the strategy had nothing left to propose
        copy = tmp_path / f"at {at}"
        assert len(contents(copy)["order"]) == at + 1
        fresh: list[int] = []
        summary = resume(NAME, str(copy / "study.journal"), progress=lambda s, fresh=fresh: fresh.append(s.trial))
        assert fresh == list(range(at + 1, reached + 1))
        assert_equal(contents(copy), whole, f"{strategy} resumed at trial {at}")
        assert summary.trials == reached
