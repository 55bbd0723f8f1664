"""Tuning caches into studies and back: the rows are of the real form, the routes and times are made up."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_studies import NAME, config

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "store"))
from tuning_caches import CRASH, DEFAULTS, header, row, torch_header, write

from gpt_search import InputError, KnobDatabase, Outcome
from gpt_search.cli.main import cli
from gpt_search.domain.budget import Budget
from gpt_search.domain.route import Route
from gpt_search.run.confirm import confirm
from gpt_search.run.export import export
from gpt_search.run.export_cache import export_cache, torch_tensorrt_setting, trtexec_command
from gpt_search.run.import_cache import import_cache
from gpt_search.run.minimise import minimise
from gpt_search.run.show import show
from gpt_search.run.tune import resume, tune
from gpt_search.store.study import StudyStore
from gpt_search.store.tuning_cache import read_tuning_cache

FAST = [
    row(0, 2, accuracy_loss={"y": 0.0}),
    row(1, 0, **CRASH),
    row(2, 1, accuracy_loss={"y": 0.5}, gpu_time=0.011),
    row(3, 2, "off", gpu_time=0.012),
]
"""All routes of `fast` for the expression of the header, in trtexec's order: the last knob first."""


def storage(folder: Path) -> str:
    return str(folder / "studies.journal")


def rows_of(folder: Path, name: str) -> list[Any]:
    with StudyStore.read(storage(folder), name) as store:
        return sorted(store.restore().rows, key=lambda r: r.trial)


def test_rows_become_trials_the_default_route_first(tmp_path: Path) -> None:
    shuffled = [FAST[1], FAST[3], FAST[0], FAST[2]]
    path = write(tmp_path / "mine.json", header(searching_algorithm="full"), *shuffled)
    done = import_cache(path, storage(tmp_path))
    assert (done.summary.study, done.summary.strategy, done.summary.model) == ("mine", "full", "/models/model.onnx")
    assert done.summary.imported == "trtexec" and done.summary.reference_ms == 0.0125
    rows = rows_of(tmp_path, "mine")
    assert [r.evaluation.outcome for r in rows] == [Outcome.OK, Outcome.CRASH, Outcome.OK, Outcome.ACCURACY]
    crash, off, missed = (r.evaluation for r in rows[1:])
    assert "crash or a failed build" in crash.message and "missing tuning result file" in crash.message
    assert off.latency_ms == 0.012 and off.log_ratio == pytest.approx(math.log(0.012 / 0.0125))
    assert off.violation == pytest.approx(0.001 - 0.01) and off.error_ms is None
    assert missed.latency_ms == 0.011 and missed.violation == pytest.approx(0.49)
    # The faster route missed the tolerance, so the other one is nominated.
    assert done.summary.nominees[0].changes == "-conv_lowering=off"
    assert any("one mean" in note for note in done.notes)


def test_losses_that_are_null_are_no_losses_to_pass_with(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header(), FAST[0], row(1, 0, accuracy_loss={"y": None}, gpu_time=0.001))
    import_cache(path, storage(tmp_path))
    [_, null] = rows_of(tmp_path, "c")
    assert null.evaluation.outcome is Outcome.ACCURACY and null.evaluation.violation == math.inf


def test_torch_tensorrt_says_without_a_crash_that_a_route_missed(tmp_path: Path) -> None:
    missed = row(1, 0, error_message="accuracy loss 0.2 >= 0.01", accuracy_loss=None, gpu_time=None)
    done = import_cache(write(tmp_path / "c.jsonl", torch_header(), FAST[0], missed), storage(tmp_path))
    assert done.summary.imported == "torch-tensorrt" and done.summary.outcomes == {"ACCURACY": 1}
    assert any("partition" in note for note in done.notes)
    [_, found] = rows_of(tmp_path, "c")
    assert found.evaluation.message == "accuracy loss 0.2 >= 0.01"


def test_without_an_accuracy_check_timed_routes_count(tmp_path: Path) -> None:
    lines = [row(i, t, accuracy_loss=None, gpu_time=0.01 + t / 1000) for i, t in enumerate((2, 0))]
    done = import_cache(write(tmp_path / "c.json", header(accuracy_parameter={}), *lines), storage(tmp_path))
    assert done.summary.outcomes == {"OK": 1} and done.summary.nominees[0].trial == 1
    assert any("no accuracy check" in note for note in done.notes)


def test_rows_of_the_second_phase_of_mixed_are_rows_like_others(tmp_path: Path) -> None:
    second = [row(4 + i, t, low) for i, (low, t) in enumerate([("on", 1), ("off", 1)])]
    done = import_cache(
        write(tmp_path / "c.json", header(searching_algorithm="mixed"), *FAST, *second), storage(tmp_path)
    )
    assert done.summary.trials == 5  # one of them a second time


def database(version: str) -> KnobDatabase:
    options = [("conv_lowering", "[on|off]", "on"), ("kgen:tiling", "[0|1|2]", "2"), ("copy_ppg", "[on|off]", "off")]
    knobs = [{"option": f"-{n}", "allowed_values": f"-{n}={v}", "default_value": d, "help": ""} for n, v, d in options]
    return KnobDatabase.from_json(json.dumps({"tuner_version": version, "tuner_options": knobs}))


def test_the_database_must_be_of_the_version_that_wrote_the_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header(), *FAST)
    with pytest.raises(InputError, match=r"written by tuner version 2\.19\.45.*of 3\.0"):
        import_cache(path, storage(tmp_path), database=database("3.0"))
    assert import_cache(path, storage(tmp_path), database=database("2.19.45")).summary.trials == 3
    with pytest.raises(InputError, match=r"value '3' is not allowed|'3'"):
        other = header(tuning_expr="-conv_lowering=[on|off] -kgen:tiling=[0|3]")
        import_cache(write(tmp_path / "d.json", other, *FAST), storage(tmp_path), database=database("2.19.45"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no row times the default route"),
        ([row(0, 0)], "no row times the default route"),
        ([row(0, 2, **CRASH)], "no row times the default route"),
        ([row(0, 7)], r"line 2: kgen:tiling=7; the expression lists 0, 1, 2"),
        ([row(0, 2, build_route="-copy_ppg=on")], r"line 2: copy_ppg=on is neither in the expression nor the default"),
    ],
)
def test_rows_that_are_no_routes_of_the_expression_are_refused(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_cache(write(tmp_path / "c.json", header(), *lines), storage(tmp_path))


def test_a_pinned_knob_keeps_its_value(tmp_path: Path) -> None:
    pinned = header(tuning_expr="-kgen:tiling=[0|1|2] -copy_ppg=on")
    good = [row(0, 2, build_route="-kgen:tiling=2 -copy_ppg=on"), row(1, 0, build_route="-kgen:tiling=0 -copy_ppg=on")]
    assert import_cache(write(tmp_path / "c.json", pinned, *good), storage(tmp_path)).summary.trials == 1
    bad = row(2, 1, build_route="-kgen:tiling=1 -copy_ppg=off")
    with pytest.raises(InputError, match="line 4: copy_ppg=off, but the expression pins on"):
        import_cache(write(tmp_path / "d.json", pinned, *good, bad), storage(tmp_path))


def test_an_imported_study_can_be_shown_but_not_continued(tmp_path: Path) -> None:
    import_cache(write(tmp_path / "c.json", header(), *FAST), storage(tmp_path))
    assert show("c", storage(tmp_path)).trials == 3
    for what in (
        lambda: resume("c", storage(tmp_path)),
        lambda: confirm("c", storage(tmp_path)),
        lambda: minimise("c", storage(tmp_path)),
        lambda: export("c", storage(tmp_path), "engine", tmp_path / "engine"),
    ):
        with pytest.raises(InputError, match="imported from a tuning cache of trtexec"):
            what()
    # No advice that would be refused when it is followed.
    assert export("c", storage(tmp_path), "route", tmp_path / "route").note == "not confirmed: its study was imported"
    with pytest.raises(InputError, match="exists already"):
        import_cache(tmp_path / "c.json", storage(tmp_path))


def test_a_cache_comes_out_as_it_went_in_and_trtexec_could_go_on(tmp_path: Path) -> None:
    import_cache(write(tmp_path / "c.json", header(), *FAST[:3]), storage(tmp_path))
    with StudyStore.read(storage(tmp_path), "c") as store:
        size, note = export_cache(store, tmp_path / "out.json", continuable=True)
    assert size == (tmp_path / "out.json").stat().st_size and "--continue" in note
    one, other = read_tuning_cache(tmp_path / "c.json"), read_tuning_cache(tmp_path / "out.json")
    assert (one.expression, one.default_route, one.metric) == (other.expression, other.default_route, other.metric)
    assert (one.tolerance, one.search, one.tuner_version) == (other.tolerance, other.search, other.tuner_version)
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.number, a.route, a.crashed, a.losses, a.gpu_time_ms) == (
            b.number,
            b.route,
            b.crashed,
            b.losses,
            b.gpu_time_ms,
        )


@pytest.mark.parametrize(
    ("search", "lines", "reason"),
    [
        ("fast", [FAST[0], FAST[3]], "--continue counts rows, and trial 1 is not among the first routes"),
        ("fast", [*FAST, row(4, 1, "off")], "not among the first routes"),
        ("mixed", [*FAST, row(4, 1, "off")], "a route of mixed's second phase"),
        ("mixed", [FAST[0], row(1, 0, accuracy_loss={"y": 0.5}, gpu_time=None)], "was not timed"),
        ("full", [FAST[0]], "none of the first routes"),
    ],
)
def test_what_trtexec_would_continue_wrongly_is_refused(tmp_path: Path, search: str, lines: Any, reason: str) -> None:
    import_cache(write(tmp_path / "c.json", header(searching_algorithm=search), *lines), storage(tmp_path))
    with StudyStore.read(storage(tmp_path), "c") as store:
        with pytest.raises(InputError, match=reason):
            export_cache(store, tmp_path / "out.json", continuable=True)
        assert not (tmp_path / "out.json").exists()
        _, note = export_cache(store, tmp_path / "out.json")
    assert "trtexec cannot continue it" in note and len(read_tuning_cache(tmp_path / "out.json").rows) == len(lines)


def test_full_may_meet_the_reference_late(tmp_path: Path) -> None:
    lines = [row(0, 0, gpu_time=0.013), row(1, 1, gpu_time=0.014), row(2, 2)]
    import_cache(write(tmp_path / "c.json", header(searching_algorithm="full"), *lines), storage(tmp_path))
    with StudyStore.read(storage(tmp_path), "c") as store:
        export_cache(store, tmp_path / "out.json", continuable=True)
    assert [r.gpu_time_ms for r in read_tuning_cache(tmp_path / "out.json").rows] == [0.013, 0.014, 0.0125]


def test_a_study_of_another_backend_is_no_cache_to_continue(tmp_path: Path) -> None:
    made = config(tmp_path, budget=Budget(trials=3))
    tune(made)
    with (
        StudyStore.read(made.storage, NAME) as store,
        pytest.raises(InputError, match="whose knobs trtexec does not have"),
    ):
        export_cache(store, tmp_path / "out.json", continuable=True)


def test_what_applies_the_winner(tmp_path: Path) -> None:
    import_cache(write(tmp_path / "c.json", header(), *FAST), storage(tmp_path))
    route = Route.parse("-conv_lowering=off -kgen:tiling=2")
    with StudyStore.read(storage(tmp_path), "c") as store:
        assert trtexec_command(store, route) == "trtexec --onnx=/models/model.onnx --setBuildRoute=-conv_lowering=off"
        assert torch_tensorrt_setting(store, route) == "build_route='-conv_lowering=off'"
        assert torch_tensorrt_setting(store, Route.parse(DEFAULTS)) == "build_route=''"


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", header(), *FAST)
    done = CliRunner().invoke(cli, ["import", str(path), "--storage", storage(tmp_path), "--json"])
    assert done.exit_code == 0 and json.loads(done.output)["program"] == "trtexec"
    done = CliRunner().invoke(cli, ["import", str(path), "--storage", storage(tmp_path)])
    assert done.exit_code != 0


def test_the_export_forms_of_trtexec_and_torch_tensorrt(tmp_path: Path) -> None:
    import_cache(write(tmp_path / "c.json", header(), *FAST), storage(tmp_path))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["export", "c", "--storage", storage(tmp_path), *arguments])

    done = run("--as", "trtexec")
    assert done.exit_code == 0
    assert done.stdout == "trtexec --onnx=/models/model.onnx --setBuildRoute=-conv_lowering=off\n"
    assert "trial 3: not confirmed" in done.stderr
    done = run("--as", "torch-tensorrt", "--json")
    assert json.loads(done.stdout)["text"] == "build_route='-conv_lowering=off'"
    out = str(tmp_path / "out.json")
    done = run("--as", "trtexec-cache", "--continuable", out)
    assert done.exit_code == 0 and "goes on from there" in done.stdout
    for arguments in (["--as", "trtexec", out + "2"], ["--as", "route"], ["--as", "route", "--continuable", out + "2"]):
        assert run(*arguments).exit_code != 0
    assert not Path(out + "2").exists()
