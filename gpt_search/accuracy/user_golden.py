"""Golden data that users bring (`--reference files --golden PATH`): .npz files, or raw .bin files as trtexec's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from gpt_search.accuracy.golden_file import decode, is_golden, read_npz
from gpt_search.accuracy.types import Kind, dtype_named, is_sub_byte, kind_of, type_name
from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.workload import Array, GoldenPair

Spec = tuple[Any, Sequence[int | str | None] | None]
"""Element type (a name or a numpy type) and shape of a tensor; a dimension is free where it is no int, or negative.

The shape is None where not even the rank is known.
"""

_SIDES = ("inputs", "outputs")


def read_user_golden(
    path: str | Path, input_specs: Mapping[str, Spec], output_specs: Mapping[str, Spec] | None = None
) -> list[GoldenPair]:
    """Reads the golden pairs of a user, in the order of their names ("pair10" after "pair2").

    path, one of:
    - an .npz of `save_golden`;
    - an .npz with entries "inputs/NAME" and "outputs/NAME": one pair;
    - a folder with inputs/NAME.bin and outputs/NAME.bin: one pair, values in C order and native
      byte order, as trtexec's --loadInputs takes them (in file names a character such as "/" may be written as %2F);
    - a folder of such .npz files or of such folders.

    input_specs, output_specs: name -> (type, shape) of every input and output of the model. Raw
    files take type and shape from there; at most one dimension may be free. Without output_specs
    outputs are not checked, and raw files cannot be read.

    Raises InputError when a tensor is missing, unknown, of the wrong type, shape or size in bytes,
    or when a reference output holds NaN or infinity.
    """
    path = Path(path)
    sources = list(_sources(path))
    if not sources:
        raise InputError(
            f"--golden {path}: no golden pairs there; expected an .npz file, a folder of .npz files, "
            "or a folder with inputs/NAME.bin and outputs/NAME.bin for each pair"
        )
    pairs: list[GoldenPair] = []
    for source in sources:
        if source.is_dir():
            if output_specs is None:
                raise InputError(f"{source}: raw .bin files can only be read when the model's outputs are known")
            found = [GoldenPair(_raw_side(source, "inputs", input_specs), _raw_side(source, "outputs", output_specs))]
        else:
            found = _npz_pairs(source)
        for pair in found:
            inputs, outputs = _checked_side(pair.inputs, input_specs, "input", source), dict(pair.outputs)
            if not outputs:
                raise InputError(f"{source} has no reference outputs; expected entries 'outputs/NAME'")
            if output_specs is not None:
                outputs = _checked_side(outputs, output_specs, "output", source)
            check_finite(outputs, source)
            pairs.append(GoldenPair(inputs, outputs))
    return pairs


def _sources(path: Path) -> Iterator[Path]:
    """The .npz files and folders that hold pairs, in natural order of their names."""
    if not path.exists():
        raise InputError(f"--golden {path}: no such file or folder")
    if not path.is_dir() or _is_raw_pair(path):
        yield path
    else:
        for child in sorted(path.iterdir(), key=_natural):
            if child.suffix == ".npz" or _is_raw_pair(child):
                yield child


def _is_raw_pair(path: Path) -> bool:
    return any((path / side).is_dir() for side in _SIDES)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(number or -1), text) for text, number in re.findall(r"(\D*)(\d*)", path.name)]


def _npz_pairs(path: Path) -> list[GoldenPair]:
    entries = read_npz(path)
    if is_golden(entries):
        return decode(entries, str(path))[0]
    sides: dict[str, dict[str, Array]] = {side: {} for side in _SIDES}
    for key, array in entries.items():
        side, slash, name = key.partition("/")
        if side not in sides or not slash or not name:
            raise InputError(f"{path}: entry {key!r} is neither 'inputs/NAME' nor 'outputs/NAME'")
        sides[side][name] = array
    return [GoldenPair(sides["inputs"], sides["outputs"])]


def _raw_side(folder: Path, side: str, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """One side of a pair from its .bin files."""
    root = folder / side
    files = {p.relative_to(root).as_posix()[: -len(".bin")]: p for p in sorted(root.rglob("*.bin"))}
    by_name: dict[str, Path] = {}
    for stem, file in files.items():
        name = stem if stem in specs else unquote(stem)
        if name not in specs:
            raise InputError(
                f"{file}: the model has no {side[:-1]} {name!r}; its {side} are "
                f"{listing(specs)}{did_you_mean(name, specs)}"
            )
        by_name[name] = file
    tensors = {}
    for name, spec in specs.items():
        if name not in by_name:
            raise InputError(f"{folder}: no file for {side[:-1]} {name!r}; expected {side}/{quote(name, safe='')}.bin")
        tensors[name] = _raw_tensor(by_name[name], name, spec)
    return tensors


def _raw_tensor(file: Path, name: str, spec: Spec) -> Array:
    dtype = dtype_named(spec[0])
    if kind_of(dtype) is Kind.TEXT:
        raise InputError(f"{file}: {name!r} holds strings, which have no raw form; give it as .npz")
    if is_sub_byte(dtype):
        raise InputError(f"{file}: {name!r} is of type {dtype.name}, smaller than a byte; give it as .npz")
    shape = _dimensions(spec)
    if shape is None:
        raise InputError(f"{file}: the model does not tell the rank of {name!r}; give it as .npz")
    try:
        data = np.fromfile(file, np.uint8)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    fixed = dtype.itemsize
    for dimension in shape:
        fixed *= 1 if dimension is None else dimension
    free = shape.count(None)
    if free > 1:
        raise InputError(f"{file}: shape {_shape_text(shape)} of {name!r} has {free} free dimensions; give it as .npz")
    if (data.size % fixed if free and fixed else data.size - fixed) != 0:
        raise InputError(
            f"{file}: {data.size} bytes; {name!r} ({dtype.name} of shape {_shape_text(shape)}) takes "
            f"{'a multiple of ' if free else ''}{fixed} bytes"
        )
    resolved = tuple(data.size // fixed if d is None and fixed else d or 0 for d in shape)
    array: Array = data.view(dtype).reshape(resolved)
    return array


def _dimensions(spec: Spec) -> tuple[int | None, ...] | None:
    if spec[1] is None:
        return None
    return tuple(d if isinstance(d, int) and d >= 0 else None for d in spec[1])


def _shape_text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if d is None else str(d) for d in shape) or "scalar"


def _checked_side(tensors: Mapping[str, Array], specs: Mapping[str, Spec], side: str, where: Path) -> dict[str, Array]:
    """The tensors in the order of the specs. Raises InputError unless they are those that the model has."""
    checked = {}
    for name in specs:
        if name not in tensors:
            raise InputError(f"{where}: {side} {name!r} is missing; it has {listing(tensors) or 'none'}")
    for name, array in tensors.items():
        if name not in specs:
            raise InputError(
                f"{where}: the model has no {side} {name!r}; its {side}s are "
                f"{listing(specs)}{did_you_mean(name, specs)}"
            )
        expected, shape = dtype_named(specs[name][0]), _dimensions(specs[name])
        if expected.kind == array.dtype.kind == "V" and expected.itemsize == array.dtype.itemsize:
            array = array.view(expected)  # numpy.savez keeps the bytes of bfloat16 and its like, not the type
        if not _is_type(array.dtype, expected):
            raise InputError(
                f"{where}: {side} {name!r} is of type {array.dtype.name}, the model's is {type_name(expected)}"
            )
        fits = shape is None or (
            len(array.shape) == len(shape)
            and all(want is None or want == got for want, got in zip(shape, array.shape, strict=True))
        )
        if not fits:
            hint = "; give the shape with --shape if the model's is free" if side == "input" else ""
            assert shape is not None
            raise InputError(
                f"{where}: {side} {name!r} has shape {_shape_text(array.shape)}, expected {_shape_text(shape)}{hint}"
            )
        checked[name] = array
    return {name: checked[name] for name in specs}


def _is_type(dtype: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    try:
        return type_name(dtype) == type_name(expected)
    except TypeError:
        return False


def check_finite(outputs: Mapping[str, Array], where: object) -> None:
    """Raises InputError when a reference output holds NaN or infinity; `where` begins the message."""
    for name, array in outputs.items():
        try:
            kind = kind_of(array.dtype)
        except TypeError as error:
            raise InputError(f"{where}: reference output {name!r}: {error}") from None
        if kind in (Kind.FLOAT, Kind.COMPLEX):
            numbers = array if kind is Kind.COMPLEX or array.dtype.kind == "f" else array.astype(np.float32)
            bad = int(np.count_nonzero(~np.isfinite(numbers)))
            if bad:
                raise InputError(
                    f"{where}: reference output {name!r} holds NaN or infinity in {bad} of {array.size} elements, "
                    "so no engine can be judged by it"
                )
