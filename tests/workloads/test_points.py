from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpt_search.backends.onnxruntime_shapes import free_dimensions
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Point
from gpt_search.workloads.model import describe_model
from gpt_search.workloads.points import parse_points
from gpt_search.workloads.reference import make_inputs, make_reference_pairs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two inputs of one length and one batch."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "length"]) for n in ("a", "b")]
    output = helper.make_tensor_value_info("c", TensorProto.FLOAT, ["batch", "length"])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "g", inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(tmp_path / "m.onnx"))
    return tmp_path / "m.onnx"


def test_points_are_read_with_and_without_name_and_weight() -> None:
    found = parse_points(["short@3 ids:0=1x8 m=1x8", "ids:0=1x64", "big ids:0=1x512"], {"m": (1, 1)})
    assert found == (
        Point("short", 3.0, {"m": (1, 8), "ids:0": (1, 8)}),
        Point("point2", 1.0, {"m": (1, 1), "ids:0": (1, 64)}),
        Point("big", 1.0, {"m": (1, 1), "ids:0": (1, 512)}),
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["short"], "gives no shape"),
        ([""], "gives no shape"),
        (["a/b x=1"], "neither NAME@WEIGHT"),
        (["a@0 x=1"], "weight '0' is not a number above 0"),
        (["a@nan x=1"], "weight 'nan'"),
        (["a@ x=1"], "neither NAME@WEIGHT"),
        (["a x=1 x=2"], "--point gives input 'x' twice"),
        (["a x=1xq"], "not of the form"),
        (["a x=1", "a x=2"], "two points are called 'a'"),
    ],
)
def test_wrong_points_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_points(texts)


def test_shapes_are_completed_and_checked_at_every_point(model: Path) -> None:
    found = describe_model("onnxruntime", model, {}, points=parse_points(["s a=2x8", "l@2 a=2x16"]))
    assert found.workload.all_shapes == ({"a": (2, 8), "b": (2, 8)}, {"a": (2, 16), "b": (2, 16)})
    assert found.inputs["a"] == ("float32", (2, None))
    assert free_dimensions(found.workload) == {"batch": 2}
    one = describe_model("onnxruntime", model, {}, points=parse_points(["s a=2x8"])).workload
    assert one == describe_model("onnxruntime", model, {"a": (2, 8)}).workload
    with pytest.raises(InputError, match=r"--point 'l': .*rank"):
        describe_model("onnxruntime", model, {}, points=parse_points(["s a=2x8", "l a=16"]))
    with pytest.raises(InputError, match="'s' and 'l' have the same shapes"):
        describe_model("onnxruntime", model, {}, points=parse_points(["s a=2x8", "l a=2x8 b=2x8"]))
    with pytest.raises(InputError, match="--point has no meaning"):
        describe_model("synthetic", model, {}, own_workload=True, points=parse_points(["s a=2x8"]))


def test_golden_pairs_are_made_at_every_point(model: Path) -> None:
    workload = describe_model("onnxruntime", model, {}, points=parse_points(["s a=2x8", "l a=2x16"])).workload
    pairs = make_reference_pairs(workload, 0, 2)
    assert [workload.point_of(p) for p in pairs] == [0, 0, 1, 1]
    for pair in pairs:
        np.testing.assert_allclose(pair.outputs["c"], np.add(pair.inputs["a"], pair.inputs["b"]))
    one = describe_model("onnxruntime", model, {"a": (2, 8)}).workload
    for several, alone in zip(make_inputs(workload, 0, 2), make_inputs(one, 0, 2), strict=False):
        assert all((several[n] == alone[n]).all() for n in alone)  # as without points
