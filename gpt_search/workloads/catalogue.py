"""The workloads that gpt_search can write, by name, and public models inside installed packages."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.workload import Workload
from gpt_search.workloads.bert import BertOptions, bert


@dataclass(frozen=True)
class WorkloadOption:
    """One option of a workload: `name=value` on the command line."""

    name: str
    kind: type[int] | type[str]
    default: int | str
    help: str


@dataclass(frozen=True)
class _Family:
    """One entry of the catalogue. make(options) -> the model and its shapes."""

    summary: str
    options: type[Any]
    make: Callable[[Any], tuple[Any, Mapping[str, tuple[int, ...]]]]


def _make_bert(options: BertOptions) -> tuple[Any, Mapping[str, tuple[int, ...]]]:
    return bert(options), options.shapes()


_FAMILIES: dict[str, _Family] = {
    "bert": _Family("a transformer encoder (BERT's layout) with seeded weights", BertOptions, _make_bert),
}

# Models inside PyPI packages: name -> (package, file below it, shapes for a quick try).
_PUBLIC: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "magika": ("magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "rapidocr-cls": (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
    ),
    "rapidocr-det": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "rapidocr-rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
}


def workload_names() -> list[str]:
    """Names that `write_workload` takes."""
    return list(_FAMILIES)


def workload_summary(name: str) -> str:
    """One line about a workload. Raises InputError for an unknown name."""
    return _family(name).summary


def workload_options(name: str) -> list[WorkloadOption]:
    """The options of a workload, in order. Raises InputError for an unknown name."""
    family = _family(name)
    helps = _helps(family.options.__doc__ or "")
    defaults = dataclasses.asdict(family.options())
    return [WorkloadOption(key, type(value), value, helps.get(key, "")) for key, value in defaults.items()]


def write_workload(name: str, out: str | Path, **options: int | str) -> Workload:
    """Writes a workload's model to the file `out` and returns the workload with its shapes.

    options: see `workload_options`; whole numbers may come as text. Equal options write equal bytes.

    Raises InputError for an unknown name or option (with the nearest one), a bad value, or a path
    that cannot be written.
    """
    import onnx

    family = _family(name)
    chosen = family.options(**_checked(name, options))
    model, shapes = family.make(chosen)
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of the .onnx file to write")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it first")
    try:
        onnx.save(model, str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    return Workload(path, shapes)


def public_model(name: str) -> Workload:
    """A real public model inside an installed PyPI package, with shapes to try it at.

    Raises InputError for an unknown name, and when the package is not installed (how to get it).
    """
    if name not in _PUBLIC:
        raise InputError(f"unknown public model {name!r}{did_you_mean(name, _PUBLIC)} (known: {listing(_PUBLIC)})")
    package, file, shapes = _PUBLIC[name]
    found = importlib.util.find_spec(package)  # finds the folder without importing the package
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    for folder in folders:
        path = Path(folder) / file
        if path.is_file():
            return Workload(path, shapes, name=name)
    distribution = package.replace("_", "-")
    if not folders:
        raise InputError(f"model {name!r} is in the package {distribution}, which is not installed: pip install it")
    raise InputError(f"the installed {distribution} has no file {file}: another version may have renamed it")


def public_models() -> list[str]:
    """Names that `public_model` takes."""
    return list(_PUBLIC)


def _family(name: str) -> _Family:
    if name not in _FAMILIES:
        raise InputError(f"unknown workload {name!r}{did_you_mean(name, _FAMILIES)} (known: {listing(_FAMILIES)})")
    return _FAMILIES[name]


def _checked(name: str, options: Mapping[str, int | str]) -> dict[str, int | str]:
    known = {o.name: o for o in workload_options(name)}
    checked: dict[str, int | str] = {}
    for key, value in options.items():
        if key not in known:
            raise InputError(f"workload {name!r} has no option {key!r}{did_you_mean(key, known)} ({listing(known)})")
        if known[key].kind is int:
            try:
                checked[key] = int(value)
            except ValueError:
                raise InputError(f"option {key!r} of workload {name!r} is {value!r}, not a whole number") from None
        else:
            checked[key] = str(value)
    return checked


def _helps(text: str) -> dict[str, str]:
    """Help by option, from a docstring of the form "name: help. name: help."."""
    flat = " ".join(text.split())
    parts = re.split(r"(?:(?<=\. )|^)([a-z_]+): ", flat)
    return {parts[i]: parts[i + 1].strip() for i in range(1, len(parts) - 1, 2)}
