"""Every option of `tune` at work on tiny models: golden data of each kind, budgets, metrics, storage."""

import functools
import json

import numpy as np
import onnxruntime
import pytest
from e2e_runs import conv, inside, mlp

import gpt_search.run.setup
from gpt_search.execution.describe import describe_backend
from gpt_search.workloads.catalogue import write_workload

FUSION = "-session:graph_level=[all|disable] -session:intra_threads=1"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    mlp(folder / "mlp.onnx")
    mlp(folder / "open.onnx", rows="batch")
    conv(folder / "conv.onnx")
    sizes = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 8, "vocabulary": 50, "batch": 1}
    write_workload("bert", folder / "float.onnx", **sizes)
    write_workload("bert", folder / "int8.onnx", precision="int8", **sizes)
    return folder


@pytest.fixture(autouse=True, scope="module")
def described_once():
    """A backend is described in a process of its own, which takes a second: once is enough here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_search.run.setup, "describe_backend", functools.cache(describe_backend))
        yield


@pytest.fixture
def tune(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def tune(model, *args, knobs=FUSION, trials=("--trials", "0")):
        command = ["tune", str(models / model), "--strategy", "full", "--no-confirm", "--json", "--knobs", knobs]
        result = inside(*command, *trials, *args)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return tune


def pair(models, model, seed=0):
    session = onnxruntime.InferenceSession(str(models / model), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(seed).standard_normal((2, 16)).astype(np.float32)
    names = [o.name for o in session.get_outputs()]
    return {"x": x}, dict(zip(names, session.run(names, {"x": x}), strict=True))


def records(folder):
    (file,) = folder.glob("*.records/*.jsonl")
    return [json.loads(line)["evaluation"] for line in file.read_text().splitlines()]


def test_a_convolution_with_the_default_engine_as_reference(tune, tmp_path):
    found = tune("conv.onnx", "--reference", "default-engine", trials=("--trials", "1"))
    assert found["reference"] == "default-engine" and found["reference_accuracy"]["loss"] == 0
    assert found["engines"] == 2 and found["outcomes"] == {"OK": 1}
    assert "golden outputs come from the default engine" in " ".join(inside("show", "conv-full-0").stdout.split())


def test_golden_pairs_from_npz_files(tune, models, tmp_path):
    (tmp_path / "golden").mkdir()
    for i in range(2):
        inputs, outputs = pair(models, "open.onnx", seed=i)
        entries = {f"inputs/{n}": v for n, v in inputs.items()} | {f"outputs/{n}": v for n, v in outputs.items()}
        np.savez(tmp_path / "golden" / f"{i}.npz", **entries)
    found = tune("open.onnx", "--shape", "x=2x16", "--reference", "files", "--golden", "golden", "--metric", "lInf")
    assert found["reference"] == "files" and found["reference_accuracy"]["loss"] < 1e-5
    assert len(records(tmp_path)[0]["losses"]) == 2


def test_golden_pairs_from_raw_files(tune, models, tmp_path):
    inputs, outputs = pair(models, "mlp.onnx")
    outputs["y"] = outputs["y"] + np.float32(0.5)
    for side, tensors in (("inputs", inputs), ("outputs", outputs)):
        (tmp_path / "raw" / side).mkdir(parents=True)
        for name, value in tensors.items():
            value.tofile(tmp_path / "raw" / side / f"{name}.bin")
    found = tune("mlp.onnx", "--reference", "files", "--golden", "raw", "--metric", "lInf", "--tolerance", "y=0.501")
    assert found["reference_accuracy"] == {
        "pair": 0,
        "output": "y",
        "loss": pytest.approx(0.5, 1e-4),
        "tolerance": 0.501,
    }


def test_a_quantised_model_is_judged_by_its_float32_one(tune, models):
    found = tune("int8.onnx", "--golden", str(models / "float.onnx"), "--metric", "l1", "--tolerance", "0.5")
    assert found["metric"] == "l1" and 1e-4 < found["reference_accuracy"]["loss"] < 0.5


def test_a_tolerance_for_one_output_beside_that_of_all(tune, tmp_path):
    # Quantised weights: both outputs are a little wrong, and one of them may be.
    args = ("--metric", "l0", "--tolerance", "1e-3", "--tolerance", "hidden=1.1", "--tolerance", "y=1.1")
    knobs = "-model:quantize_dynamic=[off|u8] -session:intra_threads=1"
    assert tune("mlp.onnx", *args, knobs=knobs, trials=("--trials", "1"))["outcomes"] == {"OK": 1}


@pytest.mark.parametrize("timed", [False, True])
def test_infeasible_routes_are_timed_on_demand(tune, tmp_path, timed):
    found = tune(
        *("mlp.onnx", "--metric", "l2", "--tolerance", "y=1e-7", *(["--time-infeasible"] if timed else [])),
        knobs="-model:quantize_dynamic=[off|u8] -session:intra_threads=1",
        trials=("--trials", "1"),
    )
    _, trial = records(tmp_path)
    assert found["outcomes"] == {"ACCURACY": 1} and trial["violation"] > 0
    assert (trial["latency_ms"] is not None, bool(trial["rounds"]), "time" in trial["cost_s"]) == (timed,) * 3
    assert found["nominees"][0]["trial"] == 0  # never nominated


def test_two_builders_within_a_memory_limit_and_a_budget_of_builds(tune):
    found = tune(
        "mlp.onnx", "--builders", "2", "--memory-limit", "4", knobs="-session:graph_level=[*]", trials=("--builds", "3")
    )
    assert found["trials"] == 3 and found["unfinished"] == 0 and found["end"] == "the budget of builds is spent"


def test_a_study_in_an_sqlite_database(tune, tmp_path):
    url = ("--storage", "sqlite:///studies.db")
    found = tune("mlp.onnx", *url, trials=("--seconds", "0"))
    assert found["end"] == "the budget of seconds is spent"
    shown = json.loads(inside("show", "mlp-full-0", *url, "--json").stdout)
    assert shown["reference_ms"] == found["reference_ms"] and shown["trials"] == 0
    assert not (tmp_path / "gpt_search.journal").exists()


def test_a_memory_limit_that_not_even_the_reference_keeps(tune, models):
    command = ("tune", str(models / "mlp.onnx"), "--knobs", FUSION, "--strategy", "full", "--study", "small")
    result = inside(*command, "--memory-limit", "0.02")
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].startswith("error: ")
    assert "(MEMORY)" in result.stderr and "--memory-limit" in result.stderr
    assert inside("show", "small").exit_code == 2  # nothing is left of it


def test_strict_trtexec_takes_no_extensions(tune, models):
    assert tune("mlp.onnx", "--strict-trtexec")["routes"] == 2
    command = ("tune", str(models / "mlp.onnx"), "--knobs", "-session:graph_level=[*]", "--study", "extended")
    result = inside(*command, "--strict-trtexec")
    assert result.exit_code == 2 and "'*' is not among" in result.stderr


def test_a_default_that_is_not_listed_is_added_with_a_note(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    knobs = "-session:graph_level=[basic|disable] -session:intra_threads=1"
    command = ("tune", str(models / "mlp.onnx"), "--trials", "0", "--no-confirm", "--strategy", "full")
    result = inside(*command, "--knobs", knobs)
    assert result.exit_code == 0
    notes = [line for line in result.stderr.splitlines() if not line.startswith(("study ", "reference: "))]
    assert notes[0].startswith("note: ") and "session:graph_level" in " ".join(notes)
    assert max(map(len, result.stderr.splitlines())) <= 80
