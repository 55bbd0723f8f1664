"""Golden data: the inputs and reference outputs that a correct engine must reproduce, as one .npz file.

The file holds one entry "index" (JSON as bytes: names, types, shapes, the info dictionary) and one
entry per tensor, numbered, so that tensor names may hold any character. Nothing is pickled.
`accuracy.user_golden` reads what users bring; `accuracy.golden` is where to import from.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.accuracy.types import Kind, dtype_named, kind_of, type_name
from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.workload import Array, GoldenPair

FILES = "files"
ONNXRUNTIME_FP32 = "onnxruntime-fp32"
DEFAULT_ENGINE = "default-engine"
GOLDEN_KINDS = (FILES, ONNXRUNTIME_FP32, DEFAULT_ENGINE)
"""Where reference outputs come from: the user, the float32 model without optimisations, or the default engine."""

INDEX = "index"
_FORM = "gpt_search golden 1"


def save_golden(path: str | Path, pairs: Sequence[GoldenPair], info: Mapping[str, Any]) -> None:
    """Writes golden pairs as one .npz; a file of that name is replaced in one step, or stays as it was.

    info: JSON-like facts about them (kind, seed, digest of the model, ...).

    Raises ValueError without pairs, TypeError for an element type that no tensor has, either for an
    info that is not JSON-like, OSError when it cannot be written.
    """
    if not pairs:
        raise ValueError("there are no golden pairs to save")
    path = Path(path)
    entries: dict[str, Array] = {}
    index = {
        "form": _FORM,
        "info": dict(info),
        "pairs": [
            {side: _encode(getattr(pair, side), f"{number}/{side}", entries) for side in ("inputs", "outputs")}
            for number, pair in enumerate(pairs)
        ],
    }
    text = json.dumps(index, ensure_ascii=False, allow_nan=False)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **{INDEX: _bytes(text), **entries})  # type: ignore[arg-type]  # names never meet its own arguments
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_golden(path: str | Path) -> tuple[list[GoldenPair], dict[str, Any]]:
    """The pairs and the info that `save_golden` wrote.

    Raises InputError when the file cannot be read or is not in that form.
    """
    entries = read_npz(path)
    if not is_golden(entries):
        raise InputError(f"{path} is not a golden file of gpt_search: it has no entry {INDEX!r}")
    return decode(entries, str(path))


def is_golden(entries: Mapping[str, Array]) -> bool:
    """True when the entries of an .npz are those of a golden file."""
    return INDEX in entries and entries[INDEX].dtype == np.uint8 and _FORM.encode() in entries[INDEX].tobytes()


def decode(entries: Mapping[str, Array], where: str) -> tuple[list[GoldenPair], dict[str, Any]]:
    """The pairs and the info in the entries of a golden file; `where` is for messages. Raises InputError."""
    try:
        index = parse_json(entries[INDEX].tobytes())
        pairs = [GoldenPair(_decode(p["inputs"], entries), _decode(p["outputs"], entries)) for p in index["pairs"]]
        return pairs, dict(index["info"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the golden file {where} is damaged ({type(error).__name__}: {error}); make it anew"
        ) from None


def read_npz(path: str | Path) -> dict[str, Array]:
    """All entries of an .npz. Raises InputError when it cannot be read, or only by unpickling."""
    try:
        data = np.load(path, allow_pickle=False)
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is a single array (.npy); golden data are an .npz file")
        with data:
            return {name: data[name] for name in data.files}
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read the golden file {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely: not its words.
        raise InputError(
            f"{path} is damaged, or is not an .npz file that can be read without unpickling; "
            "golden data are saved with numpy.savez, or with gpt_search"
        ) from None


def golden_digest(golden: str | Path | Iterable[GoldenPair]) -> str:
    """SHA-256 (hex) of golden pairs: names, types, shapes and values, in order of pairs but not of names.

    golden: pairs, or the path of a golden file; its info and its bytes on disk do not count.
    Raises InputError when the file cannot be read.
    """
    pairs = load_golden(golden)[0] if isinstance(golden, str | Path) else golden
    total = hashlib.sha256()
    for pair in pairs:
        for side in (pair.inputs, pair.outputs):
            total.update(f"{len(side)}\0".encode())
            for name in sorted(side):
                array = np.asarray(side[name])
                raw = _raw(array)
                head = json.dumps([name, type_name(array.dtype), list(array.shape), raw.size])
                total.update(head.encode() + b"\0")
                total.update(raw.data)
    return total.hexdigest()


def _encode(tensors: Mapping[str, Array], prefix: str, entries: dict[str, Array]) -> list[dict[str, Any]]:
    """Puts tensors among the entries, and says in JSON what they are."""
    described = []
    for i, (name, tensor) in enumerate(tensors.items()):
        array = np.asarray(tensor)
        key = f"{prefix}/{i}"
        # numpy's own types are stored as they are, so that other programs can read them; the others as bytes.
        plain = kind_of(array.dtype) is not Kind.TEXT and array.dtype.kind != "V"
        entries[key] = _native(array) if plain else _raw(array)
        described.append({"name": name, "entry": key, "type": type_name(array.dtype), "shape": list(array.shape)})
    return described


def _decode(described: Iterable[Mapping[str, Any]], entries: Mapping[str, Array]) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for tensor in described:
        stored, shape = entries[tensor["entry"]], tuple(tensor["shape"])
        dtype = dtype_named(tensor["type"])
        if kind_of(dtype) is Kind.TEXT:
            array: NDArray[Any] = np.empty(shape, object)
            texts = parse_json(stored.tobytes())
            if len(texts) != array.size:
                raise ValueError(f"{len(texts)} strings for shape {shape}")
            array.reshape(-1)[:] = texts
        elif dtype.kind == "V":
            array = stored.view(dtype).reshape(shape)
        else:
            array = stored
        if array.shape != shape or type_name(array.dtype) != type_name(dtype):
            raise ValueError(f"{array.dtype} of shape {array.shape} instead of {dtype} of shape {shape}")
        tensors[str(tensor["name"])] = array
    return tensors


def _raw(array: Array) -> NDArray[np.uint8]:
    """The values as bytes in C order and native byte order; strings as a JSON list."""
    if kind_of(array.dtype) is Kind.TEXT:
        return _bytes(json.dumps([_text(x) for x in array.reshape(-1).tolist()], ensure_ascii=True))
    return np.ascontiguousarray(_native(array)).reshape(-1).view(np.uint8)


def _native(array: Array) -> Array:
    """The array in native byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise TypeError(f"a string tensor holds {type(value).__name__}")
    return value


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)
