"""Golden data are made once, and made anew when anything that they depend on is another one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpt_search.accuracy.golden import load_golden
from gpt_search.domain.route import Route
from gpt_search.run import golden
from gpt_search.run.config import TuneConfig
from gpt_search.run.golden import Golden, prepare_golden
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
