"""Pairs of fresh builds: who is built first, the candidate's bytes, and whose failure it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers_execution import backend_name, backend_of, settings

from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.execution.evaluator import Evaluator, ReferenceFailed
from gpt_search.execution.launcher import Worker, WorkerFailed

GENTLE = backend_name(gentle=True)
LANDSCAPE = backend_of(GENTLE).landscape
SPACE = LANDSCAPE.space
SAME = """
from dataclasses import replace
from gpt_search.backends.base import Placement
from gpt_search.backends.synthetic import SyntheticBackend
class Same(SyntheticBackend):
    capabilities = replace(SyntheticBackend.capabilities, placement=Placement.SAME_WORKER)
"""


def good_route() -> Route:
    codes = next(c for c in SPACE.neighbours(SPACE.default) if LANDSCAPE.outcome(c) is Outcome.OK)
    return SPACE.route(codes)


def made(folder: Path, placement: str = "apart", **options: Any) -> Evaluator:
    name = backend_name(gentle=True, **options)
    if placement == "same":
        (folder / "same.py").write_text(SAME)
        name = f"{folder / 'same.py'}:Same:{name.partition(':')[2]}"
    made_ = settings(folder)
    evaluator = Evaluator(type(made_)(**{**vars(made_), "backend": name}), SPACE.reference)
    evaluator.reference_latency_ms = LANDSCAPE.reference_ms
    return evaluator


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What workers are asked: kind, slot, process; rounds of timing as one."""
    log: list[tuple[str, str, int]] = []
    plain = Worker.ask

    def spy(self: Worker, kind: str, fields: Any = None, *args: Any, **kwargs: Any) -> Any:
        entry = (kind, "" if kind == "time" else (fields or {}).get("slot", ""), self.pid if kind != "time" else 0)
        if kind != "hello" and (not log or log[-1] != entry):
            log.append(entry)
        return plain(self, kind, fields, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", spy)
    return log


@pytest.mark.parametrize("placement", ["apart", "same"])
@pytest.mark.parametrize("reference_first", [True, False])
def test_both_are_built_in_the_order_that_is_asked_for(
    placement: str, reference_first: bool, tmp_path: Path, asked: list[tuple[str, str, int]]
) -> None:
    with made(tmp_path, placement) as evaluator:
        found = evaluator.evaluate_pair(good_route(), seed=5, reference_first=reference_first, keep=True)
    order = ["reference", "candidate"] if reference_first else ["candidate", "reference"]
    assert [(kind, slot) for kind, slot, _ in asked] == [
        *(("build", side) for side in order),
        ("gate", "candidate"),
        ("time", ""),
        ("save", "candidate"),
    ]
    builders = {pid for kind, _, pid in asked if kind == "build"}
    assert len(builders) == (1 if placement == "same" else 2)
    assert found.evaluation.outcome is Outcome.OK and found.evaluation.rounds
    assert found.engine is not None and found.unsaved is None


def test_the_bytes_are_timed_and_judged_as_the_build_was(tmp_path: Path, asked: list[tuple[str, str, int]]) -> None:
    route = good_route()
    with made(tmp_path) as evaluator:
        built = evaluator.evaluate_pair(route, seed=5, keep=True)
    asked.clear()
    with made(tmp_path) as evaluator:
        loaded = evaluator.evaluate_pair(route, seed=5, reference_first=True, load=built.engine)
    assert [(k, s) for k, s, _ in asked][:3] == [("build", "reference"), ("load", "candidate"), ("gate", "candidate")]
    assert loaded.evaluation.fingerprint == built.evaluation.fingerprint
    assert loaded.evaluation.log_ratio == built.evaluation.log_ratio
    assert loaded.engine is None
    with made(tmp_path) as evaluator:
        garbage = evaluator.evaluate_pair(route, seed=5, load=b"garbage").evaluation
    assert garbage.outcome is Outcome.BUILD_ERROR and "not an engine" in (garbage.message or "")


def test_each_pair_has_a_reference_build_of_its_own(tmp_path: Path) -> None:
    """A backend whose builds differ: with one seed for all of them, the reference would be the same build each time."""
    levels = set()
    for seed in (1, 2, 3):
        with made(tmp_path, build_noise=0.1) as evaluator:
            found = evaluator.evaluate_pair(SPACE.reference, seed=seed).evaluation
        levels.add(round(sum(r.reference_ms[0] for r in found.rounds) / len(found.rounds) / LANDSCAPE.reference_ms, 2))
    assert len(levels) == 3


@pytest.mark.parametrize("placement", ["apart", "same"])
@pytest.mark.parametrize("kind", ["build_error", "segv"])
def test_whose_failure_it_is(placement: str, kind: str, tmp_path: Path, asked: list[tuple[str, str, int]]) -> None:
    route = good_route()
    changed = str(route.changes(SPACE.reference))
    for reference_first in (True, False):
        with made(tmp_path, placement, fail={changed: kind}) as evaluator:
            got = evaluator.evaluate_pair(route, reference_first=reference_first, keep=True)
        assert got.evaluation.outcome in (Outcome.BUILD_ERROR, Outcome.CRASH) and got.engine is None
    default = str(next(f"-{n}={SPACE.reference[n]}" for n in route.changes(SPACE.reference)))
    asked.clear()
    with made(tmp_path, placement, fail={default: kind}) as evaluator, pytest.raises(ReferenceFailed):
        evaluator.evaluate_pair(route, reference_first=True)
    assert [(k, s) for k, s, _ in asked if k == "build"] == [("build", "reference")] * (1 if kind != "segv" else 2)


def test_until_an_earlier_phase_no_reference_is_built(tmp_path: Path, asked: list[tuple[str, str, int]]) -> None:
    with made(tmp_path) as evaluator:
        found = evaluator.evaluate_pair(good_route(), Phase.BUILD, reference_first=True)
    assert [(kind, slot) for kind, slot, _ in asked] == [("build", "candidate")]
    assert found.evaluation.fingerprint is not None


def test_an_engine_that_cannot_be_saved_was_timed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Worker.ask

    def refusing(self: Worker, kind: str, *args: Any, **kwargs: Any) -> Any:
        if kind == "save":
            raise WorkerFailed(Outcome.CRASH, "no\nspace")
        return plain(self, kind, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", refusing)
    with made(tmp_path) as evaluator:
        found = evaluator.evaluate_pair(good_route(), keep=True)
    assert found.evaluation.outcome is Outcome.OK and found.engine is None and found.unsaved == "no space"
