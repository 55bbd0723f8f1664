"""Small ONNX models that TensorRT is given, written to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gpt_search.domain.workload import Workload

_OPSETS = [helper.make_opsetid("", 17)]


def _weight(name: str, *shape: int, seed: int = 0, scale: float = 0.1) -> onnx.TensorProto:
    rng = np.random.default_rng([seed, *name.encode()])
    return numpy_helper.from_array((scale * rng.standard_normal(shape)).astype(np.float32), name)


def _value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _save(path: Path, graph: onnx.GraphProto, external: bool = False) -> None:
    model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)


def mlp(folder: Path, external: bool = False, batch: int | str = 4) -> Workload:
    """Two matrix products with a ReLU between; external: weights in a file of their own."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="act"),
            helper.make_node("MatMul", ["b", "w2"], ["y"], name="second"),
        ],
        "mlp",
        [_value("x", batch, 16)],
        [_value("y", batch, 8)],
        [_weight("w1", 16, 32), _weight("w2", 32, 8)],
    )
    path = folder / "mlp.onnx"
    _save(path, graph, external)
    weights = (folder / "weights.bin",) if external else ()
    return Workload(path, {"x": (4, 16)}, weights)


def conv_net(folder: Path) -> Workload:
    """Convolution, instance normalisation, ReLU, pooling, a linear layer."""
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "k", "kb"], ["a"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("InstanceNormalization", ["a", "s", "t"], ["n"], name="norm"),
            helper.make_node("Relu", ["n"], ["b"], name="act"),
            helper.make_node("GlobalAveragePool", ["b"], ["c"], name="pool"),
            helper.make_node("Flatten", ["c"], ["d"], name="flat"),
            helper.make_node("Gemm", ["d", "w", "wb"], ["y"], name="fc"),
        ],
        "conv_net",
        [_value("x", 1, 3, 16, 16)],
        [_value("y", 1, 4)],
        [
            *(_weight("k", 8, 3, 3, 3), _weight("kb", 8), _weight("s", 8), _weight("t", 8)),
            *(_weight("w", 8, 4), _weight("wb", 4)),
        ],
    )
    path = folder / "conv_net.onnx"
    _save(path, graph)
    return Workload(path, {"x": (1, 3, 16, 16)})


def quantised_block(folder: Path, width: int = 16, tokens: int = 8) -> Workload:
    """A transformer block, attention and feed-forward, with Q/DQ pairs before every product with weights."""
    nodes: list[onnx.NodeProto] = []
    weights = [
        numpy_helper.from_array(np.float32(0.05), "scale"),
        numpy_helper.from_array(np.int8(0), "zero"),
        numpy_helper.from_array(np.float32(1 / np.sqrt(width)), "root"),
    ]

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def quantised(value: str, name: str) -> str:
        q = node("QuantizeLinear", [value, "scale", "zero"], f"{name}_q")
        return node("DequantizeLinear", [q, "scale", "zero"], f"{name}_dq")

    def linear(value: str, name: str, rows: int, columns: int) -> str:
        weights.append(_weight(f"{name}_w", rows, columns))
        return node("MatMul", [quantised(value, f"{name}_x"), quantised(f"{name}_w", f"{name}_weights")], name)

    def norm(value: str, name: str) -> str:
        weights.extend([_weight(f"{name}_g", width), _weight(f"{name}_b", width)])
        return node("LayerNormalization", [value, f"{name}_g", f"{name}_b"], name, axis=-1)

    h = norm("x", "norm1")
    query, key, value = (linear(h, name, width, width) for name in ("query", "key", "value"))
    turned = node("Transpose", [key], "key_t", perm=[0, 2, 1])
    scores = node("Mul", [node("MatMul", [query, turned], "qk"), "root"], "scores")
    mixed = node("MatMul", [node("Softmax", [scores], "attention", axis=-1), value], "mixed")
    h = node("Add", ["x", linear(mixed, "project", width, width)], "residual1")
    up = node("Relu", [linear(norm(h, "norm2"), "up", width, 4 * width)], "up_act")
    node("Add", [h, linear(up, "down", 4 * width, width)], "y")
    graph = helper.make_graph(nodes, "block", [_value("x", 1, tokens, width)], [_value("y", 1, tokens, width)], weights)
    path = folder / "quantised_block.onnx"
    _save(path, graph)
    return Workload(path, {"x": (1, tokens, width)})


def unsupported(folder: Path) -> Workload:
    """Two nodes that TensorRT cannot take, after one that it can."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], name="act"),
            helper.make_node("Foo", ["a"], ["b"], name="my_foo"),
            helper.make_node("StringNormalizer", ["b"], ["y"], name="my_text"),
        ],
        "unsupported",
        [_value("x", 4, 16)],
        [_value("y", 4, 16)],
    )
    path = folder / "unsupported.onnx"
    _save(path, graph)
    return Workload(path, {"x": (4, 16)})


def reshaped(folder: Path) -> Workload:
    """A reshape to a shape that is an input: a shape tensor."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="turn")],
        "reshaped",
        [_value("x", 4, 16), _value("shape", 2, kind=TensorProto.INT64)],
        [_value("y", "a", "b")],
    )
    path = folder / "reshaped.onnx"
    _save(path, graph)
    return Workload(path, {"x": (4, 16), "shape": (2,)})


def slow(folder: Path, layers: int = 400) -> Workload:
    """A long chain of convolutions: its build takes seconds."""
    nodes, weights, last = [], [], "x"
    for i in range(layers):
        weights.append(_weight(f"k{i}", 8 + i % 2, 8 + (i + 1) % 2, 3, 3, seed=i))
        nodes.append(helper.make_node("Conv", [last, f"k{i}"], [f"a{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Softmax", [f"a{i}"], [f"b{i}"], name=f"softmax{i}", axis=1))
        last = f"b{i}"
    channels = 8 + 1
    graph = helper.make_graph(
        nodes, "slow", [_value("x", 1, channels, 32, 32)], [_value(last, 1, 8 + (layers - 1) % 2, 32, 32)], weights
    )
    path = folder / "slow.onnx"
    _save(path, graph)
    return Workload(path, {"x": (1, channels, 32, 32)})
