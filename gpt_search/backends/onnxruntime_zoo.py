"""Tiny models on which the runtime's rewrite rules apply: a switch proves itself by changing the graph.

Each model holds the pattern that one rule looks for, and as little else as possible, so that no
other optimiser would do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def _model(
    nodes: Sequence[Any],
    inputs: dict[str, tuple[str, list[int]]],
    outputs: dict[str, str],
    weights: dict[str, Any] | None = None,
    opset: int = 14,
) -> bytes:
    """A serialised model; types by NumPy name, output shapes left to inference."""
    from onnx import helper, numpy_helper

    def kind(name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))

    graph = helper.make_graph(
        list(nodes),
        "rule",
        [helper.make_tensor_value_info(n, kind(t), s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, kind(t), None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(w, order="C"), n) for n, w in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def _f(*shape: int) -> Any:
    return np.random.default_rng(0).random(shape, dtype=np.float32)


def anything() -> bytes:
    """A small model for questions that do not depend on the model."""
    return _model([_node("MatMul", "x w", "m"), _node("Tanh", "m", "y")], {"x": ("float32", [2, 4])},
                  {"y": "float32"}, {"w": _f(4, 3)})  # fmt: skip


def _chain(*nodes: Any, weights: dict[str, Any] | None = None, shape: Sequence[int] = (2, 4), kind: str = "float32",
           out: str = "float32", opset: int = 14) -> bytes:  # fmt: skip
    """x -> nodes -> y."""
    return _model(nodes, {"x": (kind, list(shape))}, {"y": out}, weights, opset)


def _convolution(op: str, *names: str, **weights: Any) -> bytes:
    conv = _node("Conv", "x w", "c", kernel_shape=[3, 3])
    return _chain(conv, _node(op, f"c {' '.join(names)}", "y"), weights={"w": _f(2, 3, 3, 3), **weights},
                  shape=(1, 3, 8, 8))  # fmt: skip


def _batch_norm() -> dict[str, Any]:
    return {n: _f(2) + 0.5 for n in ("scale", "bias", "mean", "variance")}


def _labels(key: str, value: str, keys: list[str], values: list[str], inputs: str, outputs: str) -> Any:
    return _node("LabelEncoder", inputs, outputs, domain="ai.onnx.ml", **{key: keys, value: values})


def _quantized(op: str) -> bytes:
    weights = {"scale": np.float32(0.02), "zero": np.uint8(0), "low": np.float32(0), "high": np.float32(6)}
    activation = _node(op, "t low high" if op == "Clip" else "t", "a")
    nodes = [_node("Tanh", "x", "t"), activation, _node("QuantizeLinear", "a scale zero", "y")]
    return _chain(*nodes, weights=weights if op == "Clip" else {k: weights[k] for k in ("scale", "zero")}, out="uint8")


# fmt: off
RULE_MODELS: dict[str, Callable[[], bytes]] = {
    "EliminateIdentity": lambda: _chain(_node("Tanh", "x", "a"), _node("Identity", "a", "b"), _node("Sin", "b", "y")),
    "EliminateSlice": lambda: _chain(
        _node("Tanh", "x", "a"), _node("Slice", "a s e axes", "b"), _node("Sin", "b", "y"),
        weights={"s": np.asarray([0]), "e": np.asarray([2**63 - 1]), "axes": np.asarray([1])}),
    "UnsqueezeElimination": lambda: _chain(
        _node("Unsqueeze", "w", "u", axes=[0]), _node("Add", "x u", "y"), weights={"w": _f(4)}, opset=12),
    "EliminateDropout": lambda: _chain(_node("Tanh", "x", "a"), _node("Dropout", "a", "b"), _node("Sin", "b", "y")),
    "ExpandElimination": lambda: _chain(
        _node("Tanh", "x", "a"), _node("Expand", "a s", "b"), _node("Sin", "b", "y"),
        weights={"s": np.asarray([1, 4])}),
    "CastElimination": lambda: _chain(
        _node("Tanh", "x", "a"), _node("Cast", "a", "b", to=1), _node("Sin", "b", "y")),
    "CastChainElimination": lambda: _chain(
        _node("Cast", "x", "a", to=11), _node("Cast", "a", "b", to=1), _node("Cast", "b", "c", to=7),
        _node("Abs", "c", "y"), kind="int32", out="int64"),
    "PreShapeNodeElimination": lambda: _chain(
        _node("Cast", "x", "a", to=7), _node("Shape", "a", "y"), shape=(-1, 4), out="int64"),
    "NoopElimination": lambda: _chain(
        _node("Tanh", "x", "a"), _node("Add", "a zero", "b"), _node("Sin", "b", "y"),
        weights={"zero": np.float32(0)}),
    "DivMulFusion": lambda: _model(
        [_node("Div", "one x", "a"), _node("Mul", "a z", "y")],
        {"x": ("float32", [2, 4]), "z": ("float32", [2, 4])}, {"y": "float32"}, {"one": np.float32(1)}),
    "FuseReluClip": lambda: _chain(
        _node("Relu", "x", "a"), _node("Clip", "a low high", "y"),
        weights={"low": np.float32(-1), "high": np.float32(6)}),
    "GemmSumFusion": lambda: _model(
        [_node("Gemm", "x w", "a"), _node("Sum", "a z", "y")],
        {"x": ("float32", [2, 4]), "z": ("float32", [2, 3])}, {"y": "float32"}, {"w": _f(4, 3)}),
    "GemmTransposeFusion": lambda: _model(
        [_node("Transpose", "x", "a", perm=[1, 0]), _node("Gemm", "a z", "y")],
        {"x": ("float32", [4, 2]), "z": ("float32", [4, 3])}, {"y": "float32"}),
    "NotWhereFusion": lambda: _model(
        [_node("Not", "c", "a"), _node("Where", "a x z", "y")],
        {"c": ("bool", [2, 4]), "x": ("float32", [2, 4]), "z": ("float32", [2, 4])}, {"y": "float32"}),
    "ConvAddFusion": lambda: _convolution("Add", "k", k=_f(1, 2, 1, 1)),
    "ConvMulFusion": lambda: _convolution("Mul", "k", k=_f(1, 2, 1, 1)),
    "ConvBNFusion": lambda: _convolution("BatchNormalization", *_batch_norm(), **_batch_norm()),
    "Pad_Fusion": lambda: _chain(
        _node("Pad", "x p", "a"), _node("Conv", "a w", "y", kernel_shape=[3, 3]),
        weights={"p": np.asarray([0, 0, 1, 1, 0, 0, 1, 1]), "w": _f(2, 3, 3, 3)}, shape=(1, 3, 8, 8)),
    "MatMul_BatchNormalization_Fusion": lambda: _chain(
        _node("MatMul", "x w", "a"), _node("BatchNormalization", f"a {' '.join(_batch_norm())}", "y"),
        weights={"w": _f(4, 2), **_batch_norm()}),
    "LabelEncoderFusion": lambda: _chain(
        _labels("keys_strings", "values_strings", ["a", "b"], ["c", "d"], "x", "m"),
        _labels("keys_strings", "values_strings", ["c", "d"], ["e", "f"], "m", "y"), kind="str", out="str"),
    "ClipQuantRewrite": lambda: _quantized("Clip"),
    "ReluQuantRewrite": lambda: _quantized("Relu"),
}
# fmt: on
