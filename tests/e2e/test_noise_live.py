"""The noise floor of a real model on ONNX Runtime, measured by real processes, and the study that uses it."""

import json
import math

import pytest
from e2e_runs import inside, mlp, run

from gpt_search.execution.devices import RUNTIME_VARIABLE

KNOBS = ("--knobs", "-session:graph_level=[all|disable] -session:intra_threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise")
    mlp(path / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:  # what is timed beside this does not matter here
        patch.setenv(RUNTIME_VARIABLE, str(path / "locks"))
        yield path


@pytest.fixture(scope="module")
def measured(folder):
    few = ("--rebuilds", "2", "--processes", "2", "--rounds", "10")
    return run("noise", "model.onnx", *KNOBS, *few, "--json", cwd=folder)


def test_the_floor_of_a_real_model(folder, measured):
    found = json.loads(measured.stdout)
    assert (found["rebuilds"], found["processes"], found["rounds"]) == (2, 2, 10)
    assert found["reference"] == "-session:graph_level=all -session:intra_threads=1"
    assert 0 < found["noise"] < math.inf and found["reference_ms"] > 0
    assert (folder / found["file"]).is_file()
    # Every process timed all of its rounds, and the same route gave the same engine each time.
    stored = json.loads((folder / found["file"]).read_text())["floor"]
    assert [[len(p) for p in rebuild] for rebuild in stored["rounds_ms"]] == [[10, 10]] * 2
    assert len({f for pair in found["fingerprints"] for f in pair}) == 1
    assert all(level["variance"] >= 0 for level in found["components"].values() if isinstance(level, dict))
    assert all(found["costs"][name] > 0 for name in ("rebuild_s", "process_s", "sample_s"))
    told = measured.stderr.splitlines()
    assert told and all(line.startswith("measuring noise: ") for line in told)


def noise_of(study):
    return json.loads(inside("show", study, "--json").stdout)["noise"]


def test_a_study_of_that_model_uses_the_stored_floor(folder, measured, monkeypatch):
    monkeypatch.chdir(folder)
    done = inside(
        "tune", "model.onnx", *KNOBS, "--strategy", "full", "--no-confirm", "--study", "same", "--trials", "1"
    )
    assert done.exit_code == 0, done.output
    assert noise_of("same")["source"] == "floor"
    assert noise_of("same")["value"] == json.loads(measured.stdout)["noise"]


def test_a_study_of_another_reference_route_does_not(folder, measured, monkeypatch):
    monkeypatch.chdir(folder)
    knobs = ("--knobs", "-session:graph_level=[all|disable] -session:intra_threads=2")
    done = inside("tune", "model.onnx", *knobs, "--no-confirm", "--study", "other", "--trials", "0")
    assert done.exit_code == 0, done.output
    assert noise_of("other")["source"] == "calibration"
