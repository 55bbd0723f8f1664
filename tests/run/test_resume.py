from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_studies import (
    FAILING,
    NAME,
    PROTOCOL,
    Stopped,
    assert_equal,
    backend_name,
    config,
    contents,
    copy_study,
    hungry,
    own_locks,
    quick_workers,
    stop_after,
)

from gpt_search.accuracy.golden import save_golden
from gpt_search.backends.synthetic import synthetic_golden
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.execution.describe import Description
from gpt_search.execution.evaluator import EvaluatorSettings
from gpt_search.measure.protocol import Protocol
from gpt_search.run import setup
from gpt_search.run.config import TuneConfig
from gpt_search.run.confirm import confirm
from gpt_search.run.result import Status
from gpt_search.run.show import show
from gpt_search.run.tune import resume, tune
from gpt_search.search.discovery import strategy_names
from gpt_search.store.study import StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures

AT = (3, 25, 49)


def collect(trials: list[int]) -> Callable[[Status], None]:
    """A progress callback that keeps the numbers of the trials."""
    return lambda status: trials.append(status.trial)


@pytest.mark.parametrize("strategy", [*strategy_names(), "hungry"])
def test_every_strategy_goes_on_as_if_never_interrupted(strategy: str, tmp_path: Path, quick_workers: None) -> None:
    """Copied right after trials 3, 25 and 49, which is what a kill there leaves; each copy is then resumed."""
    folder = tmp_path / "whole"
    folder.mkdir()
    if strategy == "hungry":
        strategy = hungry(tmp_path)

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
        summary = resume(NAME, str(copy / "study.journal"), progress=collect(fresh))
        assert fresh == list(range(at + 1, reached + 1))
        assert_equal(contents(copy), whole, f"{strategy} resumed at trial {at}")
        assert summary.trials == reached


def test_what_the_bit_for_bit_tests_rest_on(tmp_path: Path, quick_workers: None) -> None:
    """The study that others are compared with shows what depends on earlier trials: racing, engines known already."""
    settings = config(tmp_path, "sparse_random", FAILING)
    summary = tune(settings)
    with StudyStore.read(settings.storage, NAME) as store:
        rows = [row.evaluation for row in store.restore().rows]
    assert set(summary.outcomes) == {"OK", "ACCURACY", "BUILD_ERROR", "CRASH", "TIMEOUT"}
    assert any(e.raced for e in rows) and not all(e.raced for e in rows if e.rounds)
    assert any(e.timed_as is not None for e in rows)
    assert len({len(e.rounds) for e in rows}) > 2
    assert len({e.cost_s["build"] for e in rows}) > 10


@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_study_that_is_stopped_by_an_exception(at: int, tmp_path: Path, quick_workers: None) -> None:
    """As Ctrl-C does: the store is closed in order, and the next run starts from there, with `tune` or `resume`."""
    folders = [tmp_path / name for name in ("whole", "tune", "resume")]
    for folder in folders:
        folder.mkdir()
    settings = [config(folder, "sparse_random", FAILING, budget=Budget(trials=10)) for folder in folders]
    tune(settings[0])
    for each in settings[1:]:
        with pytest.raises(Stopped):
            tune(each, stop_after(at))
        found = show(NAME, each.storage)
        assert found.trials == at and found.end is None
    tune(settings[1])
    resume(NAME, settings[2].storage)
    for folder in folders[1:]:
        assert_equal(contents(folder), contents(folders[0]), folder.name)


def test_a_larger_budget_goes_on_where_a_smaller_one_ended(tmp_path: Path, quick_workers: None) -> None:
    folders = [tmp_path / name for name in ("whole", "grown")]
    for folder in folders:
        folder.mkdir()
    tune(config(folders[0], "tpe", budget=Budget(trials=15)))
    grown = config(folders[1], "tpe", budget=Budget(trials=6))
    assert tune(grown).end == "the budget of trials is spent"
    with pytest.raises(Stopped):
        resume(NAME, grown.storage, Budget(trials=15), progress=stop_after(9))
    assert show(NAME, grown.storage).end is None  # it had ended once, and is at work again
    fresh: list[int] = []
    summary = resume(NAME, grown.storage, progress=collect(fresh))  # the larger budget is the study's own now
    assert fresh == list(range(10, 16)) and summary.end == "the budget of trials is spent"
    assert_equal(contents(folders[1]), contents(folders[0]), "grown")
    assert resume(NAME, grown.storage, progress=collect(fresh)).trials == 15 and len(fresh) == 6  # nothing left


def test_builds_and_seconds_count_from_the_start_of_the_study(tmp_path: Path, quick_workers: None) -> None:
    settings = config(tmp_path, "random", budget=Budget(builds=8))
    with pytest.raises(Stopped):
        tune(settings, stop_after(5))
    assert resume(NAME, settings.storage).trials == 8
    before = show(NAME, settings.storage).clock_s
    summary = resume(NAME, settings.storage, Budget(seconds=before / 2))
    assert summary.trials == 8 and summary.end == "the budget of seconds is spent"
    assert show(NAME, settings.storage).clock_s == before > 0


STRATEGY = """
from gpt_search import Proposal

class Mine:
    def propose(self, space, history, streams):
        codes = space.sample(streams.trial(history.next_trial))
        return Proposal(codes)
"""


@pytest.fixture
def stopped(tmp_path: Path, quick_workers: None) -> TuneConfig:
    """A study with a strategy of its own, stopped at trial 4 of 8."""
    (tmp_path / "mine.py").write_text(STRATEGY)
    settings = config(tmp_path, f"{tmp_path / 'mine.py'}:Mine", budget=Budget(trials=8))
    with pytest.raises(Stopped):
        tune(settings, stop_after(4))
    return settings


OTHER_PROTOCOL = replace(PROTOCOL, max_rounds=10)


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({"knobs": "the last one pinned"}, ["space.{last}: stored {values} (default", "now pinned to {value}"]),
        ({"tolerances": ("0.02",)}, ["tolerance.default: stored 0.01, now 0.02"]),
        ({"tolerances": ("0.01", "y=0.03")}, ["tolerance.by_output.y: stored nothing, now 0.03"]),
        ({"metric": "l1"}, ['tolerance.metric: stored "lInf", now "l1"']),
        ({"strategy": "random"}, ["strategy.spec: stored", 'now "random"', "strategy.digest: stored"]),
        ({"seed": 4}, ["seed: stored 3, now 4"]),
        ({"protocol": OTHER_PROTOCOL}, ["protocol.max_rounds: stored 9, now 10"]),
        ({"backend": backend_name(drift=0.1)}, ["backend: stored"]),
        ({"timeout_run_s": 5.0}, ["limits.timeout_run_s: stored 60.0, now 5.0"]),
        ({"seed": 4, "metric": "l1"}, ["seed: stored 3", "tolerance.metric"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_other_settings_are_refused_with_the_differences(
    changes: dict[str, Any], differences: list[str], stopped: TuneConfig
) -> None:
    folder = stopped.model.parent
    with StudyStore.read(stopped.storage, NAME) as store:
        last = store.space.dimensions[-1]
    words = {"last": last.name, "value": last.values[0], "values": "|".join(last.values)}
    if "knobs" in changes:
        others = " ".join(f"-{d.name}=[*]" for d in store.space.dimensions[:-1])
        changes = {"knobs": f"{others} -{last.name}={last.values[0]}"}
    before = contents(folder)
    with pytest.raises(InputError) as refused:
        tune(replace(stopped, **changes))
    message = str(refused.value)
    for text in differences:
        assert text.format(**words) in message
    assert "\n" not in message
    assert f"Choose another --study name, or continue it as it is with `gpt-search resume {NAME} --storage" in message
    assert contents(folder) == before
    tune(replace(stopped, **changes, study="another name", budget=Budget(trials=0)))
    assert resume(NAME, stopped.storage).trials == 8  # as it is


def test_a_strategy_file_with_a_relative_path_is_found_from_every_folder(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("here", "elsewhere")]
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "mine.py").write_text(STRATEGY)
        settings = config(folder, "mine.py:Mine", budget=Budget(trials=8))
        with pytest.raises(Stopped):
            tune(settings, stop_after(4))
    # From the other folder, whose own mine.py is another one by now.
    (folders[1] / "mine.py").write_text(STRATEGY + "# edited\n")
    here = str(folders[0] / "study.journal")
    assert show(NAME, here).strategy == "mine.py:Mine"
    assert resume(NAME, here).trials == 8
    with StudyStore.read(here, NAME) as store:
        assert store.settings["strategy"]["path"] == str(folders[0])
    with pytest.raises(InputError, match=r"strategy\.digest: stored"):
        resume(NAME, settings.storage)
    # The same file in another place is the same strategy.
    (folders[1] / "mine.py").write_text(STRATEGY)
    copy_study(folders[0], tmp_path / "copy")
    assert tune(replace(config(folders[0], "mine.py:Mine"), storage=here, budget=Budget(trials=9))).trials == 9


def test_a_backend_file_with_a_relative_path_is_found_from_every_folder_and_told_when_it_changes(
    tmp_path: Path, own_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from gpt_search.backends.synthetic import SyntheticBackend\n\n\nclass Mine(SyntheticBackend):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    options = backend_name().partition(":")[2]
    settings = config(tmp_path, backend=f"mine.py:Mine:{options}", budget=Budget(trials=2))
    assert tune(settings).trials == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(NAME, settings.storage, Budget(trials=3)).trials == 3
    with (tmp_path / "mine.py").open("a") as file:
        file.write("# edited\n")
    with pytest.raises(InputError, match=r"environment\.backend_file: stored"):
        resume(NAME, settings.storage, Budget(trials=4))


def test_golden_data_of_an_earlier_study_are_found_from_every_folder(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for study in ("first", "second"):  # the second one finds them made
        tune(config(tmp_path, storage="study.journal", study=study, budget=Budget(trials=1)))
    monkeypatch.chdir(tmp_path / "elsewhere")
    for study in ("first", "second"):
        assert resume(study, str(tmp_path / "study.journal"), Budget(trials=2)).trials == 2


def test_resume_looks_at_everything_anew(stopped: TuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model, strategy file, golden data, runtime version: refused by tune, resume and confirm, then mended."""
    folder = stopped.model.parent
    before = contents(folder)
    golden = next((folder / "study.records" / "golden").iterdir())

    def refused(call: Callable[[], object], *differences: str) -> None:
        with pytest.raises(InputError) as error:
            call()
        for text in differences:
            assert text in str(error.value)
        assert "\n" not in str(error.value)
        assert contents(folder) == before

    def both(*differences: str) -> None:
        refused(lambda: resume(NAME, stopped.storage), *differences, "Restore it, or start a new study")
        refused(lambda: confirm(NAME, stopped.storage), *differences)

    for path, change in (
        (stopped.model, lambda data: data + b"\n"),  # the same landscape, in other bytes
        (folder / "mine.py", lambda data: data + b"# another comment\n"),
    ):
        data = path.read_bytes()
        path.write_bytes(change(data))
        section = "workload.digest" if path == stopped.model else "strategy.digest"
        both(f"{section}: stored ")
        refused(lambda: tune(stopped), f"{section}: stored ", "Choose another --study name")
        path.write_bytes(data)
    for path, what in ((stopped.model, "model file"), (golden, "golden data")):
        aside = path.rename(folder / "aside")
        refused(lambda: resume(NAME, stopped.storage), what, str(path), "no longer there")
        aside.rename(path)
    data = golden.read_bytes()
    save_golden(golden, synthetic_golden(3), {})
    both("golden.digest: stored ")
    golden.write_bytes(data)

    described = setup.describe_backend

    def updated(name: str, options: object = None) -> Description:
        found = described(name)
        return replace(found, environment={**found.environment, "runtime": "2.0"})

    with monkeypatch.context() as patch:
        patch.setattr(setup, "describe_backend", updated)
        both('environment.runtime: stored nothing, now "2.0"')
        refused(lambda: tune(stopped), 'environment.runtime: stored nothing, now "2.0"', "Choose another --study name")

    def renamed(name: str, options: object = None) -> Description:
        found = described(name)
        knobs = list(found.database.knobs)
        knobs[0] = replace(knobs[0], name="renamed")
        return replace(found, database=KnobDatabase.of("another version", knobs))

    with monkeypatch.context() as patch:
        patch.setattr(setup, "describe_backend", renamed)
        both("database.tuner_version: stored ", 'now "another version"', "database.digest", "database.defaults.renamed")
    assert resume(NAME, stopped.storage).trials == 8


def test_a_reference_that_fails_later(stopped: TuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine was fine in trial 0 and dies now: nothing is recorded for the trial that it would spoil."""
    folder = stopped.model.parent
    before = contents(folder)["records"]
    own = setup.Prepared.evaluator_settings

    def dying(self: setup.Prepared, protocol: Protocol | None = None) -> EvaluatorSettings:
        return replace(own(self, protocol), backend=backend_name(fail={"": "segv@time"}))

    with monkeypatch.context() as patch:
        patch.setattr(setup.Prepared, "evaluator_settings", dying)
        with pytest.raises(InputError, match=r"reference engine failed twice in a row \(CRASH\).*SIGSEGV") as refused:
            resume(NAME, stopped.storage)
    assert f"`gpt-search resume {NAME} --storage" in str(refused.value)
    assert contents(folder)["records"][: len(before)] == before
    assert resume(NAME, stopped.storage).trials == 8
