"""Golden pairs from the float32 model: seeded inputs, outputs of ONNX Runtime without optimisations.

The inputs are drawn so that they mean something to the model: token ids within the vocabulary,
attention masks of ones with some padding, floats from a normal distribution; a range declared in the
model's metadata (`gpt_search.range.<input>` = "low,high") comes before all that. The model runs in a
process of its own: `python -m gpt_search.workloads.reference MODEL PAIRS`.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt_search.accuracy.golden import load_golden, save_golden
from gpt_search.domain.errors import InputError
from gpt_search.domain.streams import Streams
from gpt_search.domain.workload import Array, GoldenPair, Workload
from gpt_search.workloads.inspect import InputSpec, inspect_model, read_model

_SAME_VALUES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_MANY = 1 << 24
_INDEXED = frozenset({"Gather", "GatherElements"})


@dataclass(frozen=True)
class InputRange:
    """How an input is drawn. low, high: both included, None for a normal distribution. why: for reports.

    padded: a mask, ones followed by a few zeros along the last dimension.
    """

    low: float | None
    high: float | None
    why: str
    padded: bool = False


def input_ranges(path: str | Path, specs: list[InputSpec]) -> dict[str, InputRange]:
    """How each input of a model is drawn. Raises InputError for text inputs, which cannot be made up."""
    graph = read_model(Path(path)).graph
    bounds = _index_bounds(graph)
    return {s.name: _range_of(s, bounds.get(s.name)) for s in specs}


def _range_of(spec: InputSpec, bound: int | None) -> InputRange:
    if spec.dtype == "str":
        raise InputError(
            f"input {spec.name!r} is text, which cannot be drawn: bring golden data with --reference files"
        )
    if spec.low is not None and spec.high is not None:
        return InputRange(spec.low, spec.high, "declared in the model")
    if "mask" in spec.name.lower():
        return InputRange(0, 1, "a mask by its name", padded=True)
    kind = np.dtype(spec.dtype).kind
    if kind in "iu" and bound is not None:
        return InputRange(0, bound - 1, f"an index into {bound} rows")
    if kind == "b":
        return InputRange(0, 1, "true or false")
    if kind in "iu":
        limits = np.iinfo(spec.dtype)
        if limits.bits == 8:
            return InputRange(int(limits.min), int(limits.max), "all 8-bit values")
        return InputRange(0, 1, "an integer of unknown meaning")
    return InputRange(None, None, "normal distribution")


def _index_bounds(graph: Any) -> dict[str, int]:
    """Inputs that end as indices, through nodes that keep values -> rows of the smallest table they index."""
    from onnx import numpy_helper

    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    shapes[node.output[0]] = numpy_helper.to_array(attribute.t).shape
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def tables(name: str, seen: set[str]) -> Iterator[int]:
        if name in seen:
            return
        seen.add(name)
        for node in readers.get(name, ()):
            if node.op_type in _INDEXED and len(node.input) > 1 and node.input[1] == name:
                shape = shapes.get(node.input[0])
                axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 0)
                if shape and -len(shape) <= axis < len(shape):
                    yield int(shape[axis])
            elif node.op_type in _SAME_VALUES and node.input[0] == name:
                for output in node.output:
                    yield from tables(output, seen)

    found = {value.name: min(tables(value.name, set()), default=0) for value in graph.input}
    return {name: rows for name, rows in found.items() if rows > 0}


def draw_inputs(specs: list[InputSpec], ranges: Mapping[str, InputRange], rng: np.random.Generator) -> dict[str, Array]:
    """One set of inputs, in the order of `specs`."""
    return {s.name: _draw(s, ranges[s.name], rng) for s in specs}


def _draw(spec: InputSpec, among: InputRange, rng: np.random.Generator) -> Array:
    try:
        return _drawn(spec, among, rng)
    except (MemoryError, ValueError, OverflowError) as error:  # ValueError: more elements than numpy can count
        count = math.prod(spec.shape)
        if count < _MANY:
            raise
        raise InputError(
            f"input {spec.name!r} of shape {'x'.join(map(str, spec.shape))} has {count:.3g} elements, which do not "
            f"fit in memory; check --shape"
        ) from error


def _drawn(spec: InputSpec, among: InputRange, rng: np.random.Generator) -> Array:
    dtype = np.dtype(spec.dtype)
    if among.padded and spec.shape:
        length = spec.shape[-1]
        padding = rng.integers(0, length // 5 + 1, spec.shape[:-1])
        return np.asarray(np.arange(length) < length - padding[..., None], dtype)
    if among.low is None or among.high is None:
        return rng.standard_normal(spec.shape).astype(dtype)
    if dtype.kind in "biu":
        low, high = int(np.ceil(among.low)), int(np.floor(among.high))
        return rng.integers(low, high, spec.shape, np.int64, endpoint=True).astype(dtype)
    return rng.uniform(among.low, among.high, spec.shape).astype(dtype)


def make_inputs(workload: Workload, seed: int, pairs: int) -> list[dict[str, Array]]:
    """Seeded inputs of a workload; set i depends on (seed, i) only. Raises InputError when they cannot be drawn.

    pairs: sets of inputs, at each of the workload's shape points in turn.
    """
    if pairs < 1:
        raise InputError(f"{pairs} golden pairs were asked for; at least one is needed")
    streams = Streams(seed)
    made: list[dict[str, Array]] = []
    for shapes in workload.all_shapes:
        _, specs = inspect_model(workload.model, shapes)
        ranges = input_ranges(workload.model, specs)
        made += [draw_inputs(specs, ranges, streams.trial(len(made) + i, "golden")) for i in range(pairs)]
    return made


def make_reference_pairs(
    workload: Workload, seed: int, pairs: int = 2, model: Path | None = None, timeout_s: float = 600
) -> list[GoldenPair]:
    """Golden pairs of kind onnxruntime-fp32.

    workload: what is tuned; its shapes count. seed: of the inputs; pair i depends on (seed, i) only.
    model: the float32 model where the tuned one is quantised; by default the tuned one itself.

    Raises InputError when inputs cannot be drawn or the model cannot be run on them.
    """
    inputs = [GoldenPair(each, {}) for each in make_inputs(workload, seed, pairs)]
    chosen = Path(model) if model is not None else workload.model
    read_model(chosen)  # its own messages for a missing or damaged file
    with tempfile.TemporaryDirectory(prefix="gpt_search_") as folder:
        exchange = Path(folder) / "pairs.npz"
        save_golden(exchange, inputs, {})
        command = [sys.executable, "-m", "gpt_search.workloads.reference", str(chosen), str(exchange)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(f"the reference model {chosen.name} did not finish within {timeout_s:g} s") from None
        if done.returncode != 0:
            raise InputError(f"the reference model {chosen.name} cannot be run: {_why(done)}")
        made, _ = load_golden(exchange)
    return made


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"it crashed with {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _run(model: str, exchange: str) -> None:
    """In the process of its own: adds the outputs to the pairs in the file."""
    import onnxruntime

    pairs, info = load_golden(exchange)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        names = [o.name for o in session.get_outputs()]
        wanted = {i.name for i in session.get_inputs()}
        made = []
        for pair in pairs:
            values = session.run(names, {n: v for n, v in pair.inputs.items() if n in wanted})
            for name, value in zip(names, values, strict=True):
                if not isinstance(value, np.ndarray):
                    raise SystemExit(f"output {name!r} is a {type(value).__name__}; only tensors can be compared")
            made.append(GoldenPair(pair.inputs, dict(zip(names, values, strict=True))))
    except Exception as error:
        raise SystemExit(" ".join(str(error).split())) from None
    save_golden(exchange, made, info)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
