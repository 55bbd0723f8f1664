"""Reading a model file without running it: its inputs, their shapes, and its external weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_search.backends.onnxruntime_shapes import dimension_name
from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.workload import Workload

_SHAPE = re.compile(r"\d+(x\d+)*")


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    dtype: NumPy's name, "str" for text. symbolic: the model's own dimensions, a name or None where
    they are open. shape: concrete. low, high: the declared range of values, both included.
    """

    name: str
    dtype: str
    symbolic: tuple[int | str | None, ...]
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None


def parse_shapes(texts: Sequence[str], option: str = "--shape") -> dict[str, tuple[int, ...]]:
    """Reads `INPUT=1x128` texts; `INPUT=` alone is a scalar. Raises InputError for anything else, naming the option.

    The name may contain colons and equals signs: the last `=` separates.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        if not equals or not name or (sizes and not _SHAPE.fullmatch(sizes)):
            raise InputError(f"shape {text!r} is not of the form INPUT=1x128 (whole numbers joined by x)")
        if name in shapes:
            raise InputError(f"{option} gives input {name!r} twice")
        shape = tuple(int(s) for s in sizes.split("x")) if sizes else ()
        if 0 in shape:
            raise InputError(f"shape {text!r} has a dimension of 0; every dimension is 1 or more")
        shapes[name] = shape
    return shapes


def format_shape(name: str, shape: Sequence[int]) -> str:
    """The inverse of `parse_shapes` for one input."""
    return f"{name}={'x'.join(map(str, shape))}"


def inspect_model(
    path: str | Path, shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Workload, list[InputSpec]]:
    """The workload of a model file and its inputs in the model's order; nothing is executed.

    shapes: input name -> concrete shape; needed for inputs with open dimensions, allowed for others.
    A size given for a named dimension counts for every input that has a dimension of that name.

    Raises InputError with one line: a missing or corrupt file, an open dimension without a size, a
    shape for an input that does not exist, of the wrong rank, or against a fixed dimension; external
    weights that are missing, too short, or outside the model's folder.
    """
    model_path = Path(path).absolute()
    model = read_model(model_path)
    external = _external_files(model, model_path)
    given = {name: tuple(int(x) for x in shape) for name, shape in (shapes or {}).items()}
    weights = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    for name in given:
        if name not in {i.name for i in inputs}:
            raise InputError(
                f"--shape names input {name!r}, which the model does not have"
                f"{did_you_mean(name, [i.name for i in inputs])} (inputs: {listing(i.name for i in inputs)})"
            )
    ranges = _ranges(model)
    for each in inputs:
        _check_input(each)
    symbolic = {i.name: _dimensions(i) for i in inputs}
    sizes = _sizes_by_name(symbolic, given)
    specs = []
    for value in inputs:
        shape = _concrete(value.name, symbolic[value.name], given.get(value.name), sizes)
        low, high = ranges.get(value.name, (None, None))
        specs.append(InputSpec(value.name, _dtype(value), symbolic[value.name], shape, low, high))
    return Workload(model_path, {s.name: s.shape for s in specs}, tuple(external)), specs


def output_specs(path: str | Path) -> dict[str, tuple[str, tuple[int | str | None, ...] | None]]:
    """The outputs of a model file: name -> (NumPy's type name, dimensions, a name or None where open).

    Dimensions are None for an output whose rank the model does not tell.

    Raises InputError as `inspect_model`.
    """
    specs: dict[str, tuple[str, tuple[int | str | None, ...] | None]] = {}
    for value in read_model(Path(path)).graph.output:
        _check_tensor(value, "output")
        ranked = value.type.tensor_type.HasField("shape")
        specs[value.name] = (_dtype(value, "output"), _dimensions(value) if ranked else None)
    return specs


def read_model(path: Path) -> Any:
    """The `onnx.ModelProto` of a file, external weights not loaded. Raises InputError."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if path.is_dir():
        raise InputError(f"{path} is a folder; give the .onnx file in it")
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else [])
        raise InputError(f"there is no file {path}{near}")
    try:
        model = onnx.load(str(path), load_external_data=False, format="protobuf")
    except DecodeError:
        raise InputError(f"{path} is not an ONNX model, or is damaged: it cannot be decoded") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if not model.graph.node or not model.opset_import:
        raise InputError(f"{path} is not an ONNX model, or is damaged: it holds no graph")
    return model


def external_files(path: str | Path) -> list[Path]:
    """The files with the external weights of a model file, sorted. Raises InputError as `inspect_model`."""
    model_path = Path(path).absolute()
    return _external_files(read_model(model_path), model_path)


def _external_files(model: Any, model_path: Path) -> list[Path]:
    """The external weight files, sorted; each exists, is long enough, and lies in the model's folder."""
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    folder = model_path.parent.resolve()
    needed: dict[Path, int] = {}
    for tensor in _get_all_tensors(model):
        if not uses_external_data(tensor):
            continue
        info = ExternalDataInfo(tensor)
        path = folder / info.location
        if not path.resolve().is_relative_to(folder):
            raise InputError(
                f"weight {tensor.name!r} of {model_path.name} lies outside the model's folder ({info.location}); "
                f"move that file beside the model and save the model again"
            )
        needed[path] = max(needed.get(path, 0), int(info.offset or 0) + int(info.length or 0))
    for path, size in needed.items():
        if not path.is_file():
            raise InputError(f"{model_path.name} needs the weight file {path.name} in {path.parent}; it is missing")
        if path.stat().st_size < size:
            raise InputError(
                f"the weight file {path} is damaged: {path.stat().st_size} bytes, {model_path.name} needs {size}"
            )
    return sorted(needed)


def _check_tensor(value: Any, side: str) -> None:
    if not value.type.HasField("tensor_type"):
        raise InputError(
            f"{side} {value.name!r} is not a tensor ({value.type.WhichOneof('value')}); only tensors can be tuned"
        )


def _check_input(value: Any) -> None:
    _check_tensor(value, "input")
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        raise InputError(f"input {value.name!r} has no rank in the model; save the model with shapes for its inputs")
    # Not an open dimension: the runtime takes a 0 at its word.
    if any(d.HasField("dim_value") and d.dim_value == 0 for d in kind.shape.dim):
        raise InputError(
            f"input {value.name!r} has a dimension that is fixed at 0 in the model: an empty tensor, with which there "
            "is nothing to time; save the model with a size, or a named dimension, in its place"
        )


def _dimensions(value: Any) -> tuple[int | str | None, ...]:
    return tuple(
        int(d.dim_value) if d.HasField("dim_value") and d.dim_value > 0 else (dimension_name(d))
        for d in value.type.tensor_type.shape.dim
    )


def _sizes_by_name(
    symbolic: Mapping[str, tuple[int | str | None, ...]], given: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, str]]:
    """Dimension name -> its size and the input whose shape said so. Raises InputError for two sizes."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in given.items():
        if len(shape) != len(symbolic[name]):
            raise InputError(
                f"--shape {format_shape(name, shape)} has rank {len(shape)}, the model's input {name!r} has rank "
                f"{len(symbolic[name])} ({_shown(symbolic[name])})"
            )
        for dim, size in zip(symbolic[name], shape, strict=True):
            if not isinstance(dim, str):
                continue
            before = sizes.setdefault(dim, (size, name))
            if before[0] != size:
                raise InputError(
                    f"dimension {dim!r} is {before[0]} in input {before[1]!r} and {size} in input {name!r}; "
                    "one name has one size"
                )
    return sizes


def _concrete(
    name: str,
    dims: tuple[int | str | None, ...],
    given: tuple[int, ...] | None,
    sizes: Mapping[str, tuple[int, str]],
) -> tuple[int, ...]:
    if given is None:
        filled = [sizes[d][0] if isinstance(d, str) and d in sizes else d for d in dims]
        if all(isinstance(d, int) for d in filled):
            return tuple(d for d in filled if isinstance(d, int))
        open_ = ", ".join(f"{i} ({d})" if d else str(i) for i, d in enumerate(filled) if not isinstance(d, int))
        example = format_shape(name, [d if isinstance(d, int) else 1 for d in filled])
        raise InputError(f"input {name!r} ({_shown(dims)}) has open dimensions {open_}: give --shape {example}")
    for position, (dim, size) in enumerate(zip(dims, given, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InputError(
                f"--shape {format_shape(name, given)}: dimension {position} is fixed at {dim} in the model "
                f"({_shown(dims)})"
            )
    return given


def _shown(dims: Sequence[int | str | None]) -> str:
    return "x".join("?" if d is None else str(d) for d in dims) or "scalar"


def _dtype(value: Any, side: str = "input") -> str:
    import onnx
    from onnx import helper

    code = value.type.tensor_type.elem_type
    if code == onnx.TensorProto.STRING:
        return "str"
    try:
        return str(helper.tensor_dtype_to_np_dtype(code).name)
    except (KeyError, ValueError):
        raise InputError(f"{side} {value.name!r} has element type {code}, which NumPy does not know") from None


def _ranges(model: Any) -> dict[str, tuple[float, float]]:
    """Declared ranges: metadata `gpt_search.range.<input>` = "low,high". Raises InputError."""
    prefix = "gpt_search.range."
    ranges = {}
    for entry in model.metadata_props:
        if not entry.key.startswith(prefix):
            continue
        low, comma, high = entry.value.partition(",")
        try:
            ranges[entry.key[len(prefix) :]] = (float(low), float(high))
            wrong = not comma or not float(low) <= float(high)
        except ValueError:
            wrong = True
        if wrong:
            raise InputError(f"the model's metadata {entry.key} is {entry.value!r}, expected 'low,high'")
    return ranges
