from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from run_forks import fork_workers
from run_studies import NAME, backend_name, config, copy_study, own_locks, quick_workers, records_path

from gpt_search.accuracy.gate import Tolerances
from gpt_search.backends.synthetic import SyntheticBackend
from gpt_search.cli.main import cli
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.devices import RUNTIME_VARIABLE
from gpt_search.measure.intervals import ratio_interval
from gpt_search.run import setup, ship
from gpt_search.run.config import TuneConfig
from gpt_search.run.confirm import confirm
from gpt_search.run.export import export, sidecar
from gpt_search.run.kept import RULE, nearest_to_median
from gpt_search.run.result import StudySummary
from gpt_search.run.show import show
from gpt_search.run.tune import tune
from gpt_search.store.study import StudyStore

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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a confirmed winner."""
    folder = tmp_path_factory.mktemp("confirmed")
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        patch.setenv(RUNTIME_VARIABLE, str(folder / "locks"))
        settings = config(folder, "sparse_random", budget=Budget(trials=12))
        tune(settings)
        assert confirm(NAME, settings.storage, top=1, rebuilds=5).verdict.name == "FASTER"
    return folder


@pytest.fixture
def confirmed(shared: Path, tmp_path: Path, quick_workers: None) -> str:
    """The storage of a copy of that study, its kept engines with it."""
    copy_study(shared, tmp_path / "copy")
    return str(tmp_path / "copy" / "study.journal")


def change(patch: pytest.MonkeyPatch, **settings: Any) -> None:
    """From now on evaluators have these settings."""
    own = setup.Prepared.evaluator_settings
    patch.setattr(
        setup.Prepared, "evaluator_settings", lambda self, protocol=None: replace(own(self, protocol), **settings)
    )


def test_an_engine_before_a_confirmation(study: tuple[TuneConfig, StudySummary], tmp_path: Path) -> None:
    settings, _ = study
    with pytest.raises(
        InputError, match=r"no confirmed build to ship; run `gpt-search confirm study --storage .*first"
    ):
        export(NAME, settings.storage, "engine", tmp_path / "engine")
    assert not list(tmp_path.glob("*engine*"))


def test_one_of_the_confirmed_builds_is_shipped(confirmed: str, tmp_path: Path) -> None:
    """The median one, byte for byte, with the route's interval and its own."""
    steps: list[tuple[int, int, str]] = []
    out = tmp_path / "engine"
    done = export(NAME, confirmed, "engine", out, processes=4, step=lambda *step: steps.append(step))
    (data,) = show(NAME, confirmed).confirmations
    ratios = [e["log_ratio"] for e in data["stage_2"]]
    build = ratios.index(sorted(ratios)[2])
    assert sha256(out.read_bytes()).hexdigest() == data["stage_2"][build]["engine"] == done.facts["sha256"]
    assert done.bytes == out.stat().st_size and done.trial == data["winner"]["trial"]
    assert done.note == f"confirmed; build {build + 1} of 5, reloaded and within tolerance"
    assert steps == [(i, 4, f"build {build + 1} of 5") for i in range(4)]
    facts = json.loads(sidecar(out).read_text())
    assert facts == json.loads(json.dumps(dict(done.facts))) and facts["file"] == "engine"
    assert facts["route_speedup"] == data["speedup"] and facts["file_speedup"]["n"] == 4
    own = ratio_interval([-e["log_ratio"] for e in facts["processes"]])
    assert facts["file_speedup"] == own.to_json() and own.low > 1
    # None of its timings is one of the confirmation's, and both agree.
    assert not {e["log_ratio"] for e in facts["processes"]} & set(ratios)
    assert facts["consistent"] is True and facts["warnings"] == [] == list(done.warnings)
    assert facts["expected"]["low"] < facts["file_speedup"]["estimate"] < facts["expected"]["high"]
    assert facts["rule"] == RULE and facts["metric"] == "lInf" and facts["accuracy"]["loss"] is not None
    backend = SyntheticBackend(backend_name().partition(":")[2])
    model = Path(show(NAME, confirmed).model)
    assert backend.load(out.read_bytes(), Workload(model, {"x": (16,)})).fingerprint == facts["fingerprint"]


def test_the_file_is_in_the_compilers_own_form(confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's engines are kept with a header of ours, which no other program would take."""
    monkeypatch.setattr(f"{export.__module__}.native_engine", lambda backend, data: data[8:])
    done = export(NAME, confirmed, "engine", tmp_path / "engine", processes=2)
    whole = tmp_path / "engine"
    assert done.facts["sha256"] == sha256(whole.read_bytes()).hexdigest()
    assert done.facts["bytes"] == done.bytes == whole.stat().st_size
    (data,) = show(NAME, confirmed).confirmations
    assert done.facts["sha256"] not in [e["engine"] for e in data["stage_2"]] and done.facts["options"] == {}


def test_what_the_command_prints(confirmed: str, tmp_path: Path) -> None:
    args = ["export", NAME, "--storage", confirmed, "--as", "engine", "--processes", "3", str(tmp_path / "e")]
    done = CliRunner().invoke(cli, args, prog_name="gpt-search")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "(95 %, 5 builds): what the route gives when it is built" in text
    assert "(95 %, 3 processes): what this build gives when it is loaded" in text
    assert f"chosen {RULE}" in text and "accuracy lInf loss" in text and text.endswith("e.json: what it is")
    assert done.stderr.startswith("timing the file: process 1/3 (build ")
    told = CliRunner().invoke(cli, [*args[:-1], str(tmp_path / "f"), "--json"], prog_name="gpt-search")
    assert json.loads(told.stdout)["facts"]["file_speedup"]["n"] == 3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan@gate", "the reloaded engine misses the tolerance with outputs that are not finite; nothing was written"),
        ("segv", r"cannot be exported: loaded again it failed \(CRASH: .*SIGSEGV"),
        ("segv@time", r"cannot be exported: loaded again it failed \(CRASH: .*SIGSEGV"),
    ],
)
def test_an_engine_that_fails_is_not_written(
    kind: str, message: str, confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data,) = show(NAME, confirmed).confirmations
    change(monkeypatch, backend=backend_name(fail={data["winner"]["changes"]: kind}))
    with pytest.raises(InputError, match=f"(?s){message}.*run `gpt-search confirm study .*again"):
        export(NAME, confirmed, "engine", tmp_path / "engine")
    assert not list(tmp_path.glob("engine*"))


def test_an_engine_beyond_the_tolerance_is_not_written(
    confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within it when it was searched, beyond it now: the loss is told."""
    (data,) = show(NAME, confirmed).confirmations
    change(monkeypatch, tolerances=Tolerances("lInf", data["accuracy"]["loss"] / 2, {}))
    with pytest.raises(InputError, match=r"the reloaded engine misses the tolerance by [0-9.e-]+; nothing was written"):
        export(NAME, confirmed, "engine", tmp_path / "engine")
    assert not list(tmp_path.glob("engine*"))


def shifted(patch: pytest.MonkeyPatch, shift: float, noise: float = 0.0) -> None:
    """From now on the shipped build is slower by this log-ratio than it was, and its timings scatter."""
    own, rng = ship.rebuild_pair, np.random.default_rng(0)

    def slower(*args: Any, **more: Any) -> Any:
        found = own(*args, **more)
        return replace(found, log_ratio=found.log_ratio + shift + noise * rng.standard_normal())

    patch.setattr(ship, "rebuild_pair", slower)


def test_a_file_that_is_slower_than_the_default_is_not_written(
    confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted(monkeypatch, 0.2)
    message = (
        r"slower than the default now: 0\.\d+x \[.*\] over 5 processes; nothing was written.* confirm study .*again"
    )
    with pytest.raises(InputError, match=message):
        export(NAME, confirmed, "engine", tmp_path / "engine")
    assert not list(tmp_path.glob("engine*"))


def test_a_file_that_is_not_what_was_confirmed_carries_a_warning(
    confirmed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data,) = show(NAME, confirmed).confirmations
    with monkeypatch.context() as patch:
        shifted(patch, 0.7 * math.log(data["speedup"]["estimate"]))
        done = export(NAME, confirmed, "engine", tmp_path / "half")
    assert done.facts["file_verdict"] == "FASTER" and done.facts["consistent"] is False
    (warning,) = done.warnings
    assert "own timing is not what the confirmation lets expect of a build" in warning
    with monkeypatch.context() as patch:
        shifted(patch, 0.0, noise=0.3)
        done = export(NAME, confirmed, "engine", tmp_path / "loud")
    assert done.facts["file_verdict"] == "NOT_DISTINGUISHABLE"
    assert "not shown to be faster than the default by its own timing" in done.warnings[0]


def test_builds_that_are_not_kept_any_more(confirmed: str, tmp_path: Path) -> None:
    (data,) = show(NAME, confirmed).confirmations
    with StudyStore.read(confirmed, NAME) as store:
        order = nearest_to_median([e["log_ratio"] for e in data["stage_2"]])
        names = [data["stage_2"][i]["engine"] for i in order]
        if names[0] != names[1]:
            store.engines.remove(names[0])
            assert export(NAME, confirmed, "engine", tmp_path / "next").facts["build"] == order[1] + 1
        (store.engines.folder / names[-1]).write_bytes(b"changed")
        store.engines.keep_only([names[-1]])
        with pytest.raises(InputError, match=r"was changed since it was stored; run `gpt-search confirm .*` again"):
            export(NAME, confirmed, "engine", tmp_path / "changed")
        store.engines.keep_only([])
    with pytest.raises(InputError, match="are not kept any more, so none can be shipped; run `gpt-search confirm"):
        export(NAME, confirmed, "engine", tmp_path / "gone")
    assert not list(tmp_path.glob("gone*"))


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
    for folder in (tmp_path / "no such folder", out):  # `out` is a file
        with pytest.raises(InputError, match=f"cannot write {folder / 'x'}: there is no folder {folder}"):
            export(NAME, settings.storage, form, folder / "x")
    for folder in (tmp_path, Path(), Path("/")):
        with pytest.raises(InputError, match="is a folder; give the name of the file to write"):
            export(NAME, settings.storage, form, folder)
    (tmp_path / "new.json").write_text("mine")
    with pytest.raises(InputError, match=r"new\.json exists already"):
        export(NAME, settings.storage, "engine", tmp_path / "new")


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
