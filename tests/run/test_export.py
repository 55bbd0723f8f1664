from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_studies import NAME, backend_name, config, own_locks, quick_workers, records_path

from gpt_search.accuracy.gate import Tolerances, judge
from gpt_search.backends.synthetic import SyntheticBackend
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.evaluator import EvaluatorSettings
from gpt_search.measure.protocol import Protocol
from gpt_search.run import setup
from gpt_search.run.config import TuneConfig
from gpt_search.run.confirm import confirm
from gpt_search.run.export import export
from gpt_search.run.result import StudySummary
from gpt_search.run.tune import tune

__all__ = ["own_locks", "quick_workers"]  # fixtures


@pytest.fixture
def study(tmp_path: Path, quick_workers: None) -> tuple[TuneConfig, StudySummary]:
    settings = config(tmp_path, "sparse_random", budget=Budget(trials=12))
    return settings, tune(settings)


def test_the_route(study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, summary = study
    best = summary.nominees[0]
    done = export(NAME, settings.storage, "route", tmp_path / "before")
    assert (done.trial, done.route, done.form) == (best.trial, best.route, "route")
    assert "not confirmed: run `gpt-search confirm` first" in done.note
    text = (tmp_path / "before").read_text()
    assert text == best.route + "\n" and done.bytes == len(text)
    assert Route.parse(text).changes(dict(SyntheticBackend(settings.backend[10:]).knob_database().defaults))
    confirmed = confirm(NAME, settings.storage, rebuilds=5)
    assert confirmed.winner is not None and confirmed.verdict.name == "FASTER"
    done = export(NAME, settings.storage, "route", tmp_path / "after")
    assert (done.trial, done.note) == (confirmed.winner.trial, "confirmed")
    assert (tmp_path / "after").read_text() == confirmed.winner.route + "\n"


def test_the_engine(study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, summary = study
    out = tmp_path / "engine"
    done = export(NAME, settings.storage, "engine", out)
    assert done.bytes == out.stat().st_size and done.trial == summary.nominees[0].trial
    assert "reloaded and within tolerance" in done.note
    backend = SyntheticBackend(settings.backend.partition(":")[2])
    engine = backend.load(out.read_bytes(), Workload(settings.model, {"x": (16,)}))
    assert engine.fingerprint == summary.nominees[0].fingerprint


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan@gate", "the rebuilt engine misses the tolerance with outputs that are not finite; nothing was written"),
        ("segv", "the engine cannot be exported: .*SIGSEGV"),
        ("build_error", "the engine cannot be exported: "),
    ],
)
def test_an_engine_that_fails_is_not_written(
    kind: str,
    message: str,
    study: tuple[TuneConfig, StudySummary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, _ = study
    own = setup.Prepared.evaluator_settings

    def failing(self: setup.Prepared, protocol: Protocol | None = None) -> EvaluatorSettings:
        return replace(own(self, protocol), backend=backend_name(fail={"": kind}))

    monkeypatch.setattr(setup.Prepared, "evaluator_settings", failing)
    with pytest.raises(InputError, match=message):
        export(NAME, settings.storage, "engine", tmp_path / "engine")
    assert not list(tmp_path.glob("*engine*"))


def test_an_engine_beyond_the_tolerance_is_not_written(
    study: tuple[TuneConfig, StudySummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within it when it was searched, beyond it now: the loss is told."""
    settings, summary = study
    worst = summary.nominees[0].worst
    assert worst is not None and 0 < worst.loss < worst.tolerance
    tight = Tolerances("lInf", worst.loss / 2, {})
    monkeypatch.setattr("gpt_search.run.export.judge", lambda losses, _: judge(losses, tight))
    with pytest.raises(InputError, match=r"the rebuilt engine misses the tolerance by [0-9.e-]+; nothing was written"):
        export(NAME, settings.storage, "engine", tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_the_records(study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, _ = study
    path = records_path(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"kind": "evalua')  # a writer is at work
    done = export(NAME, settings.storage, "record", tmp_path / "record.jsonl")
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["trial"] for line in lines] == list(range(13))
    assert done.note == "13 records, one JSON object a line" and done.trial is None
    assert (tmp_path / "record.jsonl").read_bytes() == path.read_bytes().rpartition(b"\n")[0] + b"\n"


@pytest.mark.parametrize("form", ["engine", "route", "record"])
def test_what_exists_is_not_overwritten(form: str, study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, _ = study
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(InputError, match=f"{out} exists already; choose another name, or remove it"):
        export(NAME, settings.storage, form, out)
    assert out.read_text() == "mine"
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        export(NAME, settings.storage, form, tmp_path / "no such folder" / "out")


def test_bad_requests(study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, _ = study
    with pytest.raises(InputError, match=r"--as engin: unknown form; did you mean 'engine'.*engine, route, record"):
        export(NAME, settings.storage, "engin", tmp_path / "out")
    with pytest.raises(InputError, match="no study 'stud'"):
        export("stud", settings.storage, "route", tmp_path / "out")
    with pytest.raises(InputError, match="there is no study database at"):
        export(NAME, str(tmp_path / "none.journal"), "record", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_reference_where_nothing_was_faster(tmp_path: Path, quick_workers: None) -> None:
    settings = config(tmp_path, "random", budget=Budget(trials=0))
    summary = tune(settings)
    done = export(NAME, settings.storage, "route", tmp_path / "route")
    assert done.trial == 0 and done.route == summary.nominees[0].route and "reference" in done.note
