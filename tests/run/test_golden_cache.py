"""Golden data are made once, and made anew when anything that they depend on is another one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpt_search.accuracy.golden import load_golden
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.run import golden
from gpt_search.run.config import TuneConfig
from gpt_search.run.golden import Golden, prepare_golden
from gpt_search.run.setup import prepare
from gpt_search.workloads.model import describe_model

SIZE = 32


def write_model(path: Path, scale: float) -> Path:
    """y = x @ w, with w in a file of its own: two of them differ in that file only."""
    weight = numpy_helper.from_array(np.full((SIZE, SIZE), scale, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIZE])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".data").unlink(missing_ok=True)
    onnx.save(model, str(path), save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0)
    return path


def prepared(config: TuneConfig, folder: Path, environment: dict[str, str] | None = None) -> Golden:
    model = describe_model("onnxruntime", config.model, {})
    return prepare_golden(config, model, folder, Route.parse("-a=b"), "onnxruntime", environment or {})


def largest(found: Golden) -> float:
    return float(np.abs(load_golden(found.path)[0][0].outputs["y"]).max())


def test_a_float32_model_with_other_external_weights_gives_other_golden_data(tmp_path: Path) -> None:
    tuned = write_model(tmp_path / "tuned.onnx", 1.0)
    float32 = write_model(tmp_path / "float" / "float.onnx", 2.0)
    config = TuneConfig(tuned, golden=float32, pairs=1)
    first = prepared(config, tmp_path / "golden")
    assert prepared(config, tmp_path / "golden") == first
    text = float32.read_bytes()
    write_model(float32, 4.0)
    assert float32.read_bytes() == text  # only the weights' file differs
    second = prepared(config, tmp_path / "golden")
    assert second.path != first.path and largest(second) == 2 * largest(first)


def test_the_default_engine_of_another_environment_gives_other_golden_data(tmp_path: Path, monkeypatch) -> None:
    made: list[object] = []

    def engine(*arguments: object) -> object:
        made.append(arguments)
        return golden.make_reference_pairs(arguments[1].workload, 0, 1)  # type: ignore[attr-defined]

    monkeypatch.setattr(golden, "_from_default_engine", engine)
    config = TuneConfig(write_model(tmp_path / "m.onnx", 1.0), reference="default-engine", pairs=1)
    old = prepared(config, tmp_path / "golden", {"runtime": "1"})
    assert prepared(config, tmp_path / "golden", {"runtime": "1"}) == old and len(made) == 1
    new = prepared(config, tmp_path / "golden", {"runtime": "2"})
    assert new.path != old.path and len(made) == 2
    other = TuneConfig(config.model, reference="default-engine", pairs=1, options={"cache": "none"})
    assert prepared(other, tmp_path / "golden", {"runtime": "2"}).path not in (new.path, old.path)


@pytest.mark.parametrize("kind", ["onnxruntime-fp32", "default-engine"])
def test_a_reference_that_is_not_finite_is_refused_where_it_is_made(tmp_path: Path, monkeypatch, kind: str) -> None:
    monkeypatch.setattr(
        golden, "_from_default_engine", lambda config, model, *_: golden.make_reference_pairs(model.workload, 0, 1)
    )
    config = TuneConfig(write_model(tmp_path / "m.onnx", float("nan")), reference=kind, pairs=1)
    with pytest.raises(
        InputError, match=rf"--reference {kind}, golden pair 0: reference output 'y' holds NaN.*32 of 32"
    ):
        prepared(config, tmp_path / "golden")
    assert not list(tmp_path.glob("golden/*"))


def test_a_backend_from_a_file_lives_in_workers_only(tmp_path: Path, monkeypatch) -> None:
    """What it does to its process (here: ends it, in another folder) is not done to the caller's."""
    write_model(tmp_path / "m.onnx", 1.0)
    (tmp_path / "mine.py").write_text(
        "import os\n"
        f"if os.getpid() == {os.getpid()}: raise RuntimeError('loaded into the caller')\n"
        "from gpt_search.backends.onnxruntime import OnnxRuntimeBackend\n"
        "class Mine(OnnxRuntimeBackend):\n"
        "    def __init__(self): os.chdir('/')\n"
    )
    monkeypatch.chdir(tmp_path)
    config = TuneConfig(Path("m.onnx"), backend="mine.py:Mine", storage="s.journal", pairs=1)
    found = prepare(config)
    assert found.workload.model == tmp_path / "m.onnx" and found.golden_kind == "onnxruntime-fp32"
    assert Path.cwd() == tmp_path


def test_damaged_stored_golden_data_are_told_with_the_way_to_make_them_again(tmp_path: Path) -> None:
    config = TuneConfig(write_model(tmp_path / "m.onnx", 1.0), storage=str(tmp_path / "s.journal"), pairs=1)
    found = prepare(config)
    whole = found.settings()
    found.golden.write_bytes(found.golden.read_bytes()[:-100])
    for call in (found.settings, lambda: prepare(config)):
        with pytest.raises(InputError, match=r"damaged.* Remove that file and run `gpt-search tune`") as raised:
            call()
        assert str(found.golden.name) in str(raised.value) and "\n" not in str(raised.value)
    found.golden.unlink()
    assert prepare(config).settings() == whole
