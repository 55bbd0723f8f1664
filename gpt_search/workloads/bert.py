"""A transformer encoder (BERT's layout) written as ONNX without a training framework.

Source of the layout: Devlin et al., "BERT", NAACL 2019 (post-normalised encoder, pooler). The graph
is spelled the way exporters spell it below opset 17 (layer norm as ReduceMean/Sub/Pow/Sqrt/Div, GELU
as Erf, one MatMul each for query, key and value), because that is what a compiler's fusions look for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError

# Attention fusion looks for the operators of opset 12 (Unsqueeze with its axes as an attribute); scales
# per channel need opset 13.
_OPSET = {"float32": 12, "int8": 14}
_MASKED = -10000.0  # added to the attention scores of masked tokens, as in the original code


@dataclass(frozen=True)
class BertOptions:
    """Sizes of the encoder; every one is an option of `gpt-search workload bert`.

    layers: encoder layers. hidden: width, a multiple of heads. heads: attention heads.
    intermediate: width of the feed-forward layer; 0 means 4 * hidden. vocabulary: token ids are
    0..vocabulary-1. sequence: tokens per sample. batch: samples per call; 0 leaves the dimension
    open (named "batch"). types: token types. seed: of the weights. precision: "float32", or "int8"
    for quantize/dequantize pairs around every matrix multiplication.
    """

    layers: int = 3
    hidden: int = 384
    heads: int = 6
    intermediate: int = 0
    vocabulary: int = 2000
    sequence: int = 32
    batch: int = 0
    types: int = 2
    seed: int = 0
    precision: str = "float32"

    def __post_init__(self) -> None:
        """Raises InputError for sizes that make no encoder."""
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence", "types"):
            if getattr(self, name) < 1:
                raise InputError(f"bert: {name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("intermediate", "batch", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"bert: {name} is {getattr(self, name)}; it must be 0 or more")
        if self.hidden % self.heads:
            raise InputError(f"bert: hidden ({self.hidden}) is not a multiple of heads ({self.heads})")
        if self.precision not in ("float32", "int8"):
            raise InputError(f"bert: precision is {self.precision!r}; allowed: float32, int8")

    @property
    def feed_forward(self) -> int:
        """Width of the feed-forward layer."""
        return self.intermediate or 4 * self.hidden

    def shapes(self, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """Concrete shapes of the three inputs; `batch` counts where the model leaves it open."""
        shape = (self.batch or batch, self.sequence)
        return {"input_ids": shape, "attention_mask": shape, "token_type_ids": shape}


class _Graph:
    """Nodes and initializers under construction."""

    def __init__(self, seed: int) -> None:
        import onnx.helper
        import onnx.numpy_helper

        self.helper = onnx.helper
        self.to_tensor = onnx.numpy_helper.from_array
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.rng = np.random.default_rng(seed)

    def add(self, op: str, *inputs: str, name: str, **attributes: Any) -> str:
        """A node with one output called `name`; returns that name."""
        self.nodes.append(self.helper.make_node(op, list(inputs), [name], name=f"{name}_{op}", **attributes))
        return name

    def const(self, name: str, value: NDArray[Any]) -> str:
        """An initializer, made once."""
        if name not in self.initializers:
            self.initializers[name] = self.to_tensor(np.asarray(value, order="C"), name)
        return name

    def floats(self, name: str, value: float) -> str:
        return self.const(name, np.asarray(value, np.float32))

    def normal(self, name: str, shape: tuple[int, ...], mean: float, deviation: float) -> str:
        return self.const(name, (mean + deviation * self.rng.standard_normal(shape)).astype(np.float32))

    def linear(self, x: str, name: str, fan_in: int, fan_out: int, gain: float = 1.0) -> str:
        # Deviation gain/sqrt(fan_in) keeps the variance of activations, as training does.
        weight = self.normal(f"{name}.weight", (fan_in, fan_out), 0.0, gain * fan_in**-0.5)
        bias = self.normal(f"{name}.bias", (fan_out,), 0.0, 0.02)
        return self.add("Add", self.add("MatMul", x, weight, name=f"{name}.matmul"), bias, name=f"{name}.out")

    def unsqueeze(self, x: str, axis: int, name: str, opset: int) -> str:
        if opset < 13:
            return self.add("Unsqueeze", x, name=name, axes=[axis])
        return self.add("Unsqueeze", x, self.const(f"axis_{axis}", np.asarray([axis], np.int64)), name=name)

    def layer_norm(self, x: str, name: str, width: int) -> str:
        mean = self.add("ReduceMean", x, name=f"{name}.mean", axes=[-1], keepdims=1)
        centred = self.add("Sub", x, mean, name=f"{name}.centred")
        square = self.add("Pow", centred, self.floats("two", 2.0), name=f"{name}.square")
        variance = self.add("ReduceMean", square, name=f"{name}.variance", axes=[-1], keepdims=1)
        stable = self.add("Add", variance, self.floats("epsilon", 1e-12), name=f"{name}.stable")
        scale = self.add("Sqrt", stable, name=f"{name}.deviation")
        unit = self.add("Div", centred, scale, name=f"{name}.unit")
        scaled = self.add("Mul", unit, self.normal(f"{name}.gamma", (width,), 1.0, 0.1), name=f"{name}.scaled")
        return self.add("Add", scaled, self.normal(f"{name}.beta", (width,), 0.0, 0.1), name=f"{name}.out")

    def gelu(self, x: str, name: str) -> str:
        erf = self.add(
            "Erf", self.add("Div", x, self.floats("sqrt_two", 2.0**0.5), name=f"{name}.ratio"), name=f"{name}.erf"
        )
        plus = self.add("Add", erf, self.floats("one", 1.0), name=f"{name}.plus")
        return self.add(
            "Mul", self.add("Mul", x, plus, name=f"{name}.product"), self.floats("half", 0.5), name=f"{name}.out"
        )

    def attention(self, x: str, mask: str, name: str, options: BertOptions) -> str:
        hidden, heads = options.hidden, options.heads
        split = self.const("split_heads", np.asarray([0, 0, heads, hidden // heads], np.int64))
        join = self.const("join_heads", np.asarray([0, 0, hidden], np.int64))
        part = {}
        for kind, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            flat = self.linear(x, f"{name}.{kind}", hidden, hidden)
            part[kind] = self.add(
                "Transpose",
                self.add("Reshape", flat, split, name=f"{name}.{kind}.split"),
                name=f"{name}.{kind}.heads",
                perm=order,
            )
        scores = self.add("MatMul", part["query"], part["key"], name=f"{name}.scores")
        scaled = self.add("Div", scores, self.floats("sqrt_head", float(hidden // heads) ** 0.5), name=f"{name}.scaled")
        masked = self.add("Add", scaled, mask, name=f"{name}.masked")
        weights = self.add("Softmax", masked, name=f"{name}.weights", axis=3)
        mixed = self.add("MatMul", weights, part["value"], name=f"{name}.mixed")
        back = self.add("Transpose", mixed, name=f"{name}.back", perm=(0, 2, 1, 3))
        joined = self.add("Reshape", back, join, name=f"{name}.joined")
        return self.linear(joined, f"{name}.output", hidden, hidden)


def bert(options: BertOptions | None = None) -> Any:
    """The encoder as an `onnx.ModelProto`.

    Inputs, int64 (batch, sequence): input_ids, attention_mask (1 keeps a token), token_type_ids.
    Outputs, float32: last_hidden_state (batch, sequence, hidden), pooler_output (batch, hidden).
    The ranges of the inputs stand in the metadata as `gpt_search.range.<input>`. Equal options give
    equal bytes. With precision "int8" ONNX Runtime's quantizer is used.
    """
    options = options or BertOptions()
    model = _encoder(options)
    return model if options.precision == "float32" else _quantized(model, options)


def _encoder(options: BertOptions) -> Any:
    """The encoder in float32."""
    import onnx
    from onnx import TensorProto

    g = _Graph(options.seed)
    hidden = options.hidden

    words = g.add(
        "Gather", g.normal("embeddings.word", (options.vocabulary, hidden), 0, 0.05), "input_ids", name="word"
    )
    kinds = g.add(
        "Gather", g.normal("embeddings.type", (options.types, hidden), 0, 0.05), "token_type_ids", name="type"
    )
    places = g.normal("embeddings.position", (options.sequence, hidden), 0, 0.05)
    positions = g.const("position_ids", np.arange(options.sequence, dtype=np.int64)[None, :])
    position = g.add("Gather", places, positions, name="position")
    summed = g.add("Add", g.add("Add", words, position, name="word_position"), kinds, name="embedded")
    x = g.layer_norm(summed, "embeddings.norm", hidden)

    opset = _OPSET[options.precision]
    wider = g.unsqueeze(g.unsqueeze("attention_mask", 1, "mask.wide", opset), 2, "mask.wider", opset)
    kept = g.add("Cast", wider, name="mask.kept", to=TensorProto.FLOAT)
    dropped = g.add("Sub", g.floats("one", 1.0), kept, name="mask.dropped")
    mask = g.add("Mul", dropped, g.floats("masked", _MASKED), name="mask.added")

    for i in range(options.layers):
        attended = g.attention(x, mask, f"layer.{i}.attention", options)
        x = g.layer_norm(
            g.add("Add", attended, x, name=f"layer.{i}.attention.residual"), f"layer.{i}.attention.norm", hidden
        )
        inner = g.gelu(g.linear(x, f"layer.{i}.inner", hidden, options.feed_forward), f"layer.{i}.gelu")
        outer = g.linear(inner, f"layer.{i}.outer", options.feed_forward, hidden, gain=1.5)
        x = g.layer_norm(g.add("Add", outer, x, name=f"layer.{i}.residual"), f"layer.{i}.norm", hidden)
    g.nodes[-1].output[0] = "last_hidden_state"

    first = g.add("Gather", "last_hidden_state", g.const("first", np.asarray(0, np.int64)), name="first_token", axis=1)
    weight = g.normal("pooler.weight", (hidden, hidden), 0, hidden**-0.5)
    pooled = g.add("Gemm", first, weight, g.normal("pooler.bias", (hidden,), 0, 0.02), name="pooler.linear")
    g.add("Tanh", pooled, name="pooler_output")

    helper = onnx.helper
    batch: int | str = options.batch or "batch"
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT64, [batch, options.sequence])
        for n in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [batch, options.sequence, hidden]),
        helper.make_tensor_value_info("pooler_output", TensorProto.FLOAT, [batch, hidden]),
    ]
    graph = helper.make_graph(g.nodes, "bert", ids, outputs, list(g.initializers.values()))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="gpt_search", ir_version=8
    )
    helper.set_model_props(
        model,
        {
            "gpt_search.range.input_ids": f"0,{options.vocabulary - 1}",
            "gpt_search.range.token_type_ids": f"0,{options.types - 1}",
        },
    )
    return model


def _quantized(model: Any, options: BertOptions) -> Any:
    """The encoder with 8-bit quantize/dequantize pairs, calibrated on seeded inputs; metadata kept.

    Source: onnxruntime.quantization.quantize_static (quantize/dequantize format, weights per channel).
    """
    import logging
    import tempfile
    from pathlib import Path

    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    rng = np.random.default_rng(options.seed)
    shapes = options.shapes()

    def sample() -> dict[str, NDArray[np.int64]]:
        highs = {"input_ids": options.vocabulary, "token_type_ids": options.types}
        return {n: rng.integers(0, highs[n], s) if n in highs else np.ones(s, np.int64) for n, s in shapes.items()}

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self.samples = iter([sample() for _ in range(4)])

        def get_next(self) -> dict[str, NDArray[np.int64]] | None:
            return next(self.samples, None)

    with tempfile.TemporaryDirectory(prefix="gpt_search_") as folder:
        source, target = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, str(source))
        logging.disable(logging.WARNING)  # it advises a pre-processing step on every call
        try:
            quantize_static(
                str(source),
                str(target),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,  # 7 bits: 8 saturate on x86 without VNNI
                op_types_to_quantize=["MatMul"],
            )
        finally:
            logging.disable(logging.NOTSET)
        made = onnx.load(str(target))
    kept = {p.key: p.value for p in model.metadata_props}
    del made.metadata_props[:]
    onnx.helper.set_model_props(made, kept)
    return made
