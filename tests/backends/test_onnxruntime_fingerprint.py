"""The graph digest: blind to order and names, sharp on everything else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gpt_search.backends.onnxruntime_fingerprint import graph_digest


def model(swap: bool = False, **changes: object) -> onnx.ModelProto:
    """x -> Gemm -> (Tanh, Sin) -> Sub -> If -> y, with weights w and b."""
    alpha = float(changes.get("alpha", 1.0))  # type: ignore[arg-type]
    weight = np.asarray(changes.get("weight", np.arange(12).reshape(4, 3)), np.float32)
    operator = str(changes.get("operator", "Sin"))
    branch = str(changes.get("branch", "Neg"))
    parts = ["s", "t"] if swap else ["t", "s"]

    def graph(op: str, name: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["d"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], alpha=alpha, beta=0.5),
        helper.make_node("Tanh", ["g"], ["t"]),
        helper.make_node(operator, ["g"], ["s"]),
        helper.make_node("Sub", parts, ["d"]),
        helper.make_node("If", ["c"], ["y"], then_branch=graph(branch, "p"), else_branch=graph("Abs", "q")),
    ]
    rows = changes.get("rows", "n")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.ones(3, np.float32), "b")]
    made = helper.make_graph(nodes, "main", inputs, outputs, weights)
    opset = int(changes.get("opset", 14))  # type: ignore[call-overload]
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def renamed(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        node.name = node.name + "_renamed"
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                renamed(attribute.g, names)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**9))
def test_order_and_names_do_not_count(seed: int) -> None:
    rng = random.Random(seed)
    other = model()
    names = {n: f"{n}_{rng.randrange(1000)}" for n in ("w", "b", "g", "t", "s", "d", "p", "q")}
    renamed(other.graph, names)
    nodes, weights = list(other.graph.node), list(other.graph.initializer)
    rng.shuffle(nodes)
    rng.shuffle(weights)
    del other.graph.node[:], other.graph.initializer[:]
    other.graph.node.extend(nodes)
    other.graph.initializer.extend(weights)
    other.graph.doc_string = other.producer_name = str(seed)
    assert graph_digest(other) == graph_digest(model())


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 2.0},
        {"weight": np.arange(12).reshape(4, 3) + 1},
        {"operator": "Cos"},
        {"branch": "Exp"},
        {"rows": 2},
        {"rows": "m"},
        {"opset": 15},
        {"swap": True},
    ],
    ids=str,
)
def test_everything_else_counts(change: dict[str, object]) -> None:
    assert graph_digest(model(**change)) != graph_digest(model())  # type: ignore[arg-type]


def test_input_and_output_names_count() -> None:
    for kind in ("x", "y"):
        other = model()
        renamed(other.graph, {kind: "z"})
        for value in other.graph.input:
            value.name = "z" if value.name == kind else value.name
        assert graph_digest(other) != graph_digest(model())


def test_a_node_that_is_computed_twice_counts_twice() -> None:
    other = model()
    other.graph.node.insert(2, helper.make_node("Tanh", ["g"], ["t2"]))
    assert graph_digest(other) != graph_digest(model())


def test_which_output_of_a_node_is_read_counts() -> None:
    def split(first: str, second: str) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Split", ["x"], ["a", "b"], axis=0),
            helper.make_node("Sub", [first, second], ["y"]),
        ]
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [s]) for n, s in (("x", 4), ("y", 2))]
        return helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), ir_version=8)

    assert graph_digest(split("a", "b")) != graph_digest(split("b", "a"))


def test_how_a_weight_is_stored_does_not_count(tmp_path: Path) -> None:
    plain = model()
    typed = model()
    typed.graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.arange(12, dtype=np.float32).tolist())
    )
    assert graph_digest(typed) == graph_digest(plain)
    onnx.save_model(model(), str(tmp_path / "m.onnx"), save_as_external_data=True, location="w", size_threshold=0)
    outside = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)
    assert graph_digest(outside, tmp_path) == graph_digest(plain)


def test_a_value_that_nothing_makes_is_an_error() -> None:
    broken = model()
    del broken.graph.node[0]
    with pytest.raises(ValueError, match="'g' is read but never made"):
        graph_digest(broken)
