"""Golden pairs: inputs that mean something, outputs of the float32 model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Workload
from gpt_search.workloads.catalogue import write_workload
from gpt_search.workloads.inspect import InputSpec, inspect_model
from gpt_search.workloads.reference import InputRange, draw_inputs, input_ranges, make_reference_pairs

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 50, "sequence": 20}


def lookup(path: Path, kind: int = TensorProto.INT64, rows: int = 7) -> Path:
    """ids -> Unsqueeze -> Cast -> Gather from a table of `rows`; x is added."""
    weights = [
        numpy_helper.from_array(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2), "table"),
        numpy_helper.from_array(np.asarray([0]), "axes"),
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "axes"], ["wide"]),
        helper.make_node("Cast", ["wide"], ["cast"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "cast"], ["rows"]),
        helper.make_node("Add", ["rows", "x"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", kind, [200]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 200, 2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_token_ids_stay_within_the_table_and_reach_its_ends(kind: int, tmp_path: Path) -> None:
    path = lookup(tmp_path / "m.onnx", kind)
    _, specs = inspect_model(path)
    ranges = input_ranges(path, specs)
    assert (ranges["ids"].low, ranges["ids"].high) == (0, 6)
    assert ranges["x"].low is None
    drawn = draw_inputs(specs, ranges, np.random.default_rng(0))
    assert (drawn["ids"].min(), drawn["ids"].max()) == (0, 6)
    assert drawn["ids"].dtype == (np.int64 if kind == TensorProto.INT64 else np.int32)
    assert drawn["x"].dtype == np.float32
    assert abs(float(drawn["x"].mean())) < 0.2 and 0.8 < float(drawn["x"].std()) < 1.2


def test_a_declared_range_comes_first(tmp_path: Path) -> None:
    path = lookup(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    helper.set_model_props(model, {"gpt_search.range.ids": "2,3", "gpt_search.range.x": "5,6"})
    onnx.save(model, str(path))
    _, specs = inspect_model(path)
    drawn = draw_inputs(specs, input_ranges(path, specs), np.random.default_rng(0))
    assert set(drawn["ids"].tolist()) == {2, 3}
    assert drawn["x"].min() >= 5 and drawn["x"].max() <= 6


def test_masks_are_ones_then_padding(tmp_path: Path) -> None:
    workload = write_workload("bert", tmp_path / "b.onnx", **SMALL)
    _, specs = inspect_model(workload.model, {"input_ids": (50, 20)})
    mask = draw_inputs(specs, input_ranges(workload.model, specs), np.random.default_rng(0))["attention_mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert (np.diff(mask, axis=-1) <= 0).all()
    assert 0.8 <= mask.mean() < 1
    assert (mask[:, 0] == 1).all()


def test_text_inputs_cannot_be_drawn(tmp_path: Path) -> None:
    path = lookup(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    model.graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, [1]))
    onnx.save(model, str(path))
    _, specs = inspect_model(path)
    with pytest.raises(InputError, match=r"'words' is text.*--reference files"):
        input_ranges(path, specs)


def test_pairs_are_seeded_and_come_from_the_unoptimised_model(tmp_path: Path) -> None:
    workload = write_workload("bert", tmp_path / "b.onnx", **SMALL)
    pairs = make_reference_pairs(workload, seed=3, pairs=2)
    again = make_reference_pairs(workload, seed=3, pairs=1)
    other = make_reference_pairs(workload, seed=4, pairs=1)
    assert len(pairs) == 2
    for name, value in again[0].inputs.items():
        np.testing.assert_array_equal(value, pairs[0].inputs[name])
    assert not np.array_equal(pairs[0].inputs["input_ids"], pairs[1].inputs["input_ids"])
    assert not np.array_equal(pairs[0].inputs["input_ids"], other[0].inputs["input_ids"])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(workload.model), options, providers=["CPUExecutionProvider"])
    expected = session.run(list(pairs[1].outputs), dict(pairs[1].inputs))
    for name, value in zip(pairs[1].outputs, expected, strict=True):
        np.testing.assert_array_equal(pairs[1].outputs[name], value)


def test_a_quantised_workload_is_judged_by_the_float32_model(tmp_path: Path) -> None:
    exact = write_workload("bert", tmp_path / "b.onnx", **SMALL)
    int8 = write_workload("bert", tmp_path / "i.onnx", precision="int8", **SMALL)
    from_exact = make_reference_pairs(int8, 0, 1, exact.model)[0]
    from_int8 = make_reference_pairs(int8, 0, 1)[0]
    plain = make_reference_pairs(exact, 0, 1)[0]
    np.testing.assert_array_equal(from_exact.outputs["pooler_output"], plain.outputs["pooler_output"])
    assert not np.array_equal(from_int8.outputs["pooler_output"], plain.outputs["pooler_output"])


def test_a_model_that_cannot_run_gives_one_line(tmp_path: Path) -> None:
    path = lookup(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    model.graph.node[2].op_type = "NoSuchOperator"
    onnx.save(model, str(tmp_path / "bad.onnx"))
    workload, _ = inspect_model(path)
    with pytest.raises(InputError, match=r"bad\.onnx cannot be run: .*NoSuchOperator") as caught:
        make_reference_pairs(workload, 0, 1, tmp_path / "bad.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no file"):
        make_reference_pairs(workload, 0, 1, tmp_path / "missing.onnx")
    with pytest.raises(InputError, match="0 golden pairs"):
        make_reference_pairs(workload, 0, 0)


def test_a_crash_stays_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, _ = inspect_model(lookup(tmp_path / "m.onnx"))
    (tmp_path / "onnxruntime.py").write_text("import os; os.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match=r"m\.onnx cannot be run: it crashed with SIGABRT"):
        make_reference_pairs(workload, 0, 1)


def test_shapes_of_the_workload_count(tmp_path: Path) -> None:
    workload = write_workload("bert", tmp_path / "b.onnx", **SMALL)
    wide = Workload(workload.model, dict.fromkeys(workload.shapes, (3, 20)))
    assert make_reference_pairs(wide, 0, 1)[0].outputs["pooler_output"].shape == (3, 32)


@pytest.mark.parametrize("size", [10**13, 10**21])
def test_inputs_too_large_for_memory_are_the_users_to_fix(size: int) -> None:
    for dtype, among in (("float32", InputRange(None, None, "")), ("int64", InputRange(0, 5, ""))):
        spec = InputSpec("x", dtype, (None, 64), (size, 64))
        with pytest.raises(InputError, match=rf"input 'x' of shape {size}x64 has 6\.4e\+\d+ elements.*check --shape"):
            draw_inputs([spec], {"x": among}, np.random.default_rng(0))
