"""Reading models: shapes, mistakes, external weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gpt_search.domain.errors import InputError
from gpt_search.workloads.inspect import InputSpec, format_shape, inspect_model, output_specs, parse_shapes


def save(path: Path, inputs: dict[str, list[object]], weights: int = 0, **metadata: str) -> Path:
    """A model that adds up the sums of its inputs."""
    nodes = [helper.make_node("ReduceSum", [n], [f"{n}_sum"], keepdims=0) for n in inputs]
    nodes.append(helper.make_node("Sum", [f"{n}_sum" for n in inputs] + (["w_sum"] if weights else []), ["y"]))
    tensors = []
    if weights:
        tensors = [numpy_helper.from_array(np.ones(weights, np.float32), "w")]
        nodes.insert(0, helper.make_node("ReduceSum", ["w"], ["w_sum"], keepdims=0))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    helper.set_model_props(model, {f"gpt_search.range.{k}": v for k, v in metadata.items()})
    if weights:
        onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    else:
        onnx.save(model, str(path))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "m.onnx", {"ids": ["batch", "seq"], "mask": ["batch", "seq"], "x": [1, 3]}, x="-1,2.5")


def test_shapes_fill_dimensions_of_the_same_name(model: Path) -> None:
    workload, specs = inspect_model(model, {"ids": (2, 8)})
    assert workload.shapes == {"ids": (2, 8), "mask": (2, 8), "x": (1, 3)}
    assert workload.external == () and workload.name == "m"
    assert specs[0] == InputSpec("ids", "float32", ("batch", "seq"), (2, 8))
    assert specs[2] == InputSpec("x", "float32", (1, 3), (1, 3), -1.0, 2.5)


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ({}, r"input 'ids' \(batchxseq\) has open dimensions 0 \(batch\), 1 \(seq\): give --shape ids=1x1"),
        ({"idx": (1, 2)}, r"'idx', which the model does not have; did you mean 'ids'\?"),
        ({"ids": (1, 2, 3)}, r"ids=1x2x3 has rank 3, the model's input 'ids' has rank 2"),
        ({"ids": (1, 2), "x": (2, 3)}, r"x=2x3: dimension 0 is fixed at 1"),
        ({"ids": (1, 2), "mask": (1, 3)}, r"dimension 'seq' is 2 in input 'ids' and 3 in input 'mask'"),
    ],
)
def test_wrong_shapes(shapes: dict[str, tuple[int, ...]], why: str, model: Path) -> None:
    with pytest.raises(InputError, match=why):
        inspect_model(model, shapes)


def test_unnamed_dimensions_are_open_one_by_one(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", {"a": [None, 4], "b": [None, 4]})
    with pytest.raises(InputError, match=r"input 'b' \(\?x4\) has open dimensions 0: give --shape b=1x4"):
        inspect_model(path, {"a": (2, 4)})
    assert inspect_model(path, {"a": (2, 4), "b": (3, 4)})[0].shapes == {"a": (2, 4), "b": (3, 4)}


def test_a_question_mark_is_no_name(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", {"a": ["?", 3, "?"]})
    assert inspect_model(path, {"a": (1, 3, 48)})[0].shapes == {"a": (1, 3, 48)}
    with pytest.raises(InputError, match=r"open dimensions 0, 2: give --shape a=1x3x1"):
        inspect_model(path)


def test_missing_and_damaged_files(tmp_path: Path, model: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*n\.onnx; did you mean 'm\.onnx'\?"):
        inspect_model(tmp_path / "n.onnx")
    with pytest.raises(InputError, match="is a folder"):
        inspect_model(tmp_path)
    whole = model.read_bytes()
    for name, content in {
        "empty": b"",
        "text": b"This is no model at all.\n",
        "cut": whole[: len(whole) // 2],
        "zeros": bytes(100),
    }.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is not an ONNX model, or is damaged") as caught:
            inspect_model(path)
        assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_otherwise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError):
        inspect_model(path)


def test_external_weights(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", {"x": [2]}, weights=100)
    assert inspect_model(path)[0].external == (tmp_path.resolve() / "weights.bin",)
    whole = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"weights\.bin is damaged: 399 bytes, m\.onnx needs 400"):
        inspect_model(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match=r"needs the weight file weights\.bin in .*; it is missing"):
        inspect_model(path)


@pytest.mark.parametrize("absolute", [True, False])
def test_external_weights_outside_the_folder(absolute: bool, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    path = save(tmp_path / "inside" / "m.onnx", {"x": [2]}, weights=100)
    (tmp_path / "inside" / "weights.bin").rename(tmp_path / "weights.bin")
    model = onnx.load(str(path), load_external_data=False)
    place = str(tmp_path / "weights.bin") if absolute else "../weights.bin"
    model.graph.initializer[0].external_data[0].value = place
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"lies outside the model's folder.*move that file beside the model"):
        inspect_model(path)


def test_declared_ranges_must_be_ranges(tmp_path: Path) -> None:
    for text in ("1", "a,b", "3,1", "nan,1"):
        with pytest.raises(InputError, match="expected 'low,high'"):
            inspect_model(save(tmp_path / "m.onnx", {"x": [1]}, x=text))


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda n: not n.isspace()),
        st.lists(st.integers(1, 10**6), max_size=5).map(tuple),
    )
)
def test_shape_texts_round_trip(shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes([format_shape(n, s) for n, s in shapes.items()]) == shapes


@pytest.mark.parametrize("text", ["x", "=1x2", "x=1x", "x=1,2", "x=-1", "x=1x0", "x=axb", "x=1 x 2"])
def test_bad_shape_texts(text: str) -> None:
    with pytest.raises(InputError, match=r"shape '.*'"):
        parse_shapes([text])


def test_a_shape_given_twice() -> None:
    with pytest.raises(InputError, match="'x' twice"):
        parse_shapes(["x=1", "x=2"])


def test_what_is_wrong_with_an_output_is_said_of_the_output(tmp_path: Path) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    outputs = [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [1])]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), str(path))
    with pytest.raises(InputError, match=r"output 'y' is not a tensor \(sequence_type\)"):
        output_specs(path)


def test_an_output_may_be_of_any_rank(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), str(path))
    assert output_specs(path) == {"y": ("float32", None)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), str(path))
    with pytest.raises(InputError, match="input 'x' has no rank"):
        inspect_model(path)


def test_a_dimension_fixed_at_zero_is_not_an_open_one(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", {"x": [0, 4]})
    for shapes in ({}, {"x": (1, 4)}):
        with pytest.raises(InputError, match="input 'x' has a dimension that is fixed at 0"):
            inspect_model(path, shapes)
