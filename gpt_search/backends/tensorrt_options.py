"""What the user fixes for every build and every timing with TensorRT, read and checked.

All of it is part of a record's key. Names follow TensorRT's Python API where it has one. Loads no TensorRT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError, did_you_mean

Shape = tuple[int, ...]

FULL, RTX = "tensorrt", "tensorrt-rtx"
"""The names of the two libraries' backends."""

MAX_OPTIMIZATION_LEVEL = 5
"""The highest builder optimisation level; TensorRT takes a higher number for this one."""

_TRUE, _FALSE = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_SHAPE = re.compile(r"\d+(x\d+)*")


@dataclass(frozen=True)
class Range:
    """What an optimisation profile says of one input: its smallest, typical and largest shape.

    For a shape tensor (a small integer input that lives on the host) these are values, not shapes.
    """

    min: Shape
    opt: Shape
    max: Shape


Profile = Mapping[str, Range]


@dataclass(frozen=True)
class PluginFile:
    """A shared library with TensorRT plugins: absolute path and SHA-256 of its content."""

    path: str
    digest: str


# -- readers: from a JSON-like value, or the text after `NAME=`, to a field's value -----------------
def _text(value: object) -> str:
    return str(value).strip()


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InputError(f"{value!r} is not one of on, off")


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    allowed = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"

    def read(value: object) -> int:
        try:
            number = int(_text(value)) if not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or number < least or (most is not None and number > most):
            raise InputError(f"{value!r} is not {allowed}")
        return number

    return read


def _amount(value: object) -> float:
    try:
        number = float(_text(value)) if not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise InputError(f"{value!r} is not a number above 0")
    return number


@dataclass(frozen=True)
class Words:
    """Reads one of some words, in lower case. enum: the name of TensorRT's enumeration whose members they are."""

    words: tuple[str, ...]
    enum: str = ""

    def __call__(self, value: object) -> str:
        """Raises InputError for any other word."""
        text = _text(value).lower()
        if text not in self.words:
            raise InputError(f"{value!r} is not one of {', '.join(self.words)}{did_you_mean(text, self.words)}")
        return text


def _one_of(*words: str, enum: str = "") -> Words:
    return Words(words, enum)


def _list(value: object) -> list[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, Sequence):
        return list(value)
    return [value]


def _names(value: object) -> tuple[str, ...]:
    return tuple(sorted({_text(v).lower() for v in _list(value)}))


def _capabilities(value: object) -> tuple[str, ...]:
    found = []
    for part in _list(value):
        text = _text(part).lower().removeprefix("sm")
        match = re.fullmatch(r"(\d+)\.?(\d)", text)
        if text != "current" and match is None:
            raise InputError(f"{part!r} is not a compute capability such as 8.9, nor current")
        found.append("current" if match is None else f"{match[1]}.{match[2]}")
    if not found or ("current" in found and len(found) > 1):
        raise InputError(f"{value!r}: give either current, or one or more compute capabilities such as 8.9")
    return tuple(dict.fromkeys(found))


def read_shape(value: object) -> Shape:
    """A shape from `1x128` or [1, 128]; `[]` is a scalar's. Raises InputError."""
    if isinstance(value, str) and _SHAPE.fullmatch(value.strip()):
        return tuple(int(n) for n in value.strip().split("x"))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return (value,)
    if isinstance(value, list | tuple) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value
    ):
        return tuple(value)
    raise InputError(f"{value!r} is not a shape such as 1x128 or [1, 128]")


def _range(name: str, value: object) -> Range:
    shapes: list[object]
    if isinstance(value, Mapping):
        unknown = set(value) - {"min", "opt", "max"}
        if unknown or set(value) != {"min", "opt", "max"}:
            raise InputError(
                f"input {name!r}: a range has min, opt and max; got {', '.join(map(str, value)) or 'none'}"
            )
        shapes = [value["min"], value["opt"], value["max"]]
    elif isinstance(value, str) and value.count(":") == 2:
        shapes = list(value.split(":"))
    elif isinstance(value, list | tuple) and len(value) == 3:
        shapes = list(value)
    else:
        raise InputError(f"input {name!r}: {value!r} is not a range such as 1x128:8x128:32x128")
    low, usual, high = (read_shape(s) for s in shapes)
    if not len(low) == len(usual) == len(high):
        raise InputError(f"input {name!r}: {value!r} has shapes of different ranks")
    if any(not a <= b <= c for a, b, c in zip(low, usual, high, strict=True)):
        raise InputError(f"input {name!r}: {value!r} is not in the order min <= opt <= max")
    return Range(low, usual, high)


def _profiles(value: object) -> tuple[Profile, ...]:
    given = [value] if isinstance(value, Mapping) else value
    if not isinstance(given, list | tuple) or not all(isinstance(p, Mapping) and p for p in given):
        raise InputError(
            f"""{value!r} is not a list of profiles such as [{{"ids": "1x128:8x128:32x128"}}] (min:opt:max by input)"""
        )
    return tuple({str(n): _range(str(n), r) for n, r in p.items()} for p in given)


def _plugins(value: object) -> tuple[PluginFile, ...]:
    found = []
    for part in _list(value):
        if isinstance(part, Mapping):  # as `to_json` wrote it
            path, expected = Path(str(part.get("path"))), part.get("digest")
        else:
            path, expected = Path(_text(part)).absolute(), None
        try:
            digest = sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"plugin library {str(path)!r} cannot be read: {error.strerror}") from None
        if expected is not None and expected != digest:
            raise InputError(
                f"plugin library {str(path)!r} is not what it was when the study began: its content differs"
            )
        found.append(PluginFile(str(path), digest))
    return tuple(found)


def _optional(read: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else read(value)


def _option(default: Any, read: Callable[[object], Any], text: str, when: str, only: str = "") -> Any:
    reader = _optional(read) if default is None else read
    words = read if isinstance(read, Words) else None
    return field(default=default, metadata={"read": reader, "text": text, "when": when, "only": only, "words": words})


def _build(default: Any, read: Callable[[object], Any], text: str, only: str = "") -> Any:
    return _option(default, read, text, "build", only)


def _run(default: Any, read: Callable[[object], Any], text: str, only: str = "") -> Any:
    return _option(default, read, text, "run", only)


@dataclass(frozen=True)
class TensorRTOptions:
    """Every option with its default; None leaves TensorRT's own default.

    Make one with `parse`. `to_json` gives what `parse` reads back, with defaults left out.
    """

    # -- build: what the engine is
    profiles: tuple[Profile, ...] = _build(
        (), _profiles, "optimisation profiles: min:opt:max shape by input; without any, one that spans the shape points"
    )
    builder_optimization_level: int | None = _build(
        None, _whole(0, MAX_OPTIMIZATION_LEVEL), "0 to 5: how much the builder tries"
    )
    avg_timing_iterations: int | None = _build(None, _whole(1), "runs that the builder averages over for one tactic")
    max_num_tactics: int | None = _build(None, _whole(1), "tactics that the builder times for one layer, at most")
    max_aux_streams: int | None = _build(None, _whole(0), "streams beside the main one that an engine may use, at most")
    tiling_optimization_level: str | None = _build(
        None,
        _one_of("none", "fast", "moderate", "full", enum="TilingOptimizationLevel"),
        "how much the builder searches for tilings",
    )
    l2_limit_for_tiling: int | None = _build(None, _whole(0), "bytes of L2 cache that tilings may count on")
    workspace_mib: float | None = _build(None, _amount, "memory pool WORKSPACE, MiB")
    tactic_dram_mib: float | None = _build(None, _amount, "memory pool TACTIC_DRAM, MiB")
    tactic_shared_memory_kib: float | None = _build(None, _amount, "memory pool TACTIC_SHARED_MEMORY, KiB")
    tactic_sources: tuple[str, ...] | None = _build(
        None, _names, "tactic sources in use, such as edge_mask_convolutions,jit_convolutions"
    )
    hardware_compatibility_level: str | None = _build(
        None,
        _one_of("none", "ampere_plus", "same_compute_capability", enum="HardwareCompatibilityLevel"),
        "GPUs that the engine may run on",
    )
    compute_capability: tuple[str, ...] | None = _build(
        None,
        _capabilities,
        "TensorRT-RTX: what to build for, such as 8.9 or 8.9,12.0; current asks the GPU here",
        only=RTX,
    )
    timing_cache: str = _build(
        "frozen",
        _one_of("frozen", "none", "shared"),
        "TensorRT: what a build knows of tactics timed in earlier builds",
        only=FULL,
    )
    tf32: bool = _build(True, _bool, "TF32 tensor cores for float32")
    sparse_weights: bool = _build(False, _bool, "kernels for structured sparsity")
    strict_nans: bool = _build(False, _bool, "no optimisation that treats NaN differently")
    distributive_independence: bool = _build(False, _bool, "equal arithmetic for every slice along a batch axis")
    refit: bool = _build(False, _bool, "weights can be exchanged later")
    refit_identical: bool = _build(False, _bool, "weights can be exchanged for identical ones later")
    version_compatible: bool = _build(False, _bool, "engine for later versions of TensorRT too")
    exclude_lean_runtime: bool = _build(False, _bool, "version_compatible without the runtime inside")
    weight_streaming: bool = _build(False, _bool, "weights may be streamed from the host at run time")
    native_instancenorm: bool = _build(True, _bool, "TensorRT's own instance normalisation instead of the plugin's")
    plugins: tuple[PluginFile, ...] = _build((), _plugins, "shared libraries with plugins, separated by commas")
    # -- run: how it is launched and timed
    launch: str = _run("graph", _one_of("graph", "stream"), "CUDA graph, where a route can be captured, or stream")
    l2_flush: bool = _run(False, _bool, "overwrite the L2 cache before every timed launch")
    weight_streaming_budget: int | None = _run(
        None, _whole(0), "bytes of streamable weights kept on the device; needs weight_streaming"
    )
    throttle: str = _run(
        "mark",
        _one_of("mark", "repeat", "refuse"),
        "a round in which the GPU was throttled: mark it, repeat it, or refuse to time",
    )
    context_allocation: str | None = _run(
        None,
        _one_of("static", "on_profile_change", enum="ExecutionContextAllocationStrategy"),
        "when a context's device memory is allocated",
    )
    cuda_graph_strategy: str | None = _run(
        None,
        _one_of("disabled", "whole_graph_capture", enum="CudaGraphStrategy"),
        "TensorRT-RTX: capture inside the runtime",
        only=RTX,
    )
    dynamic_shapes_kernel_specialization_strategy: str | None = _run(
        None,
        _one_of("lazy", "eager", "none", enum="DynamicShapesKernelSpecializationStrategy"),
        "TensorRT-RTX: kernels made for the shapes that are seen",
        only=RTX,
    )
    # -- set by gpt_search itself, from the study
    timing_cache_file: str | None = _option(None, _text, "the study's frozen timing cache", "internal", only=FULL)
    timing_cache_digest: str | None = _option(None, _text, "SHA-256 of its content", "internal", only=FULL)

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> TensorRTOptions:
        """The options from JSON-like values, or texts as after `--option NAME=`.

        Raises InputError for an unknown name, with the nearest one, and for a value that is not allowed.
        """
        known = {f.name: f for f in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                public = [n for n, f in known.items() if f.metadata["when"] != "internal"]
                raise InputError(
                    f"unknown TensorRT option {name!r}{did_you_mean(name, public)} "
                    f"(the options are {', '.join(public)})"
                )
            try:
                given[name] = known[name].metadata["read"](value)
            except InputError as error:
                raise InputError(f"TensorRT option {name}: {error}") from None
        options = cls(**given)
        options._check()
        return options

    def _check(self) -> None:
        names = [tuple(sorted(p)) for p in self.profiles]
        if len(set(names)) > 1:
            raise InputError("TensorRT option profiles: every profile must name the same inputs")
        defaults = {f.name: f.default for f in fields(self)}
        for wants, needs in (
            ("exclude_lean_runtime", "version_compatible"),
            ("weight_streaming_budget", "weight_streaming"),
        ):
            # By comparison with the default: 0 is a value like any other.
            if getattr(self, wants) != defaults[wants] and not getattr(self, needs):
                raise InputError(f"TensorRT option {wants} needs {needs}=on")
        if self.refit and self.refit_identical:
            raise InputError("TensorRT options refit and refit_identical exclude each other")

    def to_json(self) -> dict[str, Any]:
        """The options that differ from their default, in JSON's types; `parse` reads it back."""
        return {f.name: _jsonable(v) for f in fields(self) if (v := getattr(self, f.name)) != f.default}


def not_of(library: str) -> dict[str, str]:
    """The options that a library does not have: name -> the backend that has it. library: FULL or RTX."""
    found = {f.name: str(f.metadata["only"]) for f in fields(TensorRTOptions)}
    return {name: only for name, only in found.items() if only not in ("", library)}


def option_words() -> dict[str, Words]:
    """Of every option that takes one of TensorRT's own words: name -> words and enumeration."""
    found = {f.name: f.metadata["words"] for f in fields(TensorRTOptions)}
    return {name: words for name, words in found.items() if words is not None and words.enum}


def option_texts() -> list[tuple[str, str, str, str]]:
    """(name, default, "build" or "run", one line of text) of every option a user may set, in order."""
    return [
        (f.name, _shown(f.default), f.metadata["when"], f.metadata["text"])
        for f in fields(TensorRTOptions)
        if f.metadata["when"] != "internal"
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "TensorRT's"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Range):
        return [list(value.min), list(value.opt), list(value.max)]
    if isinstance(value, PluginFile):
        return {"path": value.path, "digest": value.digest}
    if isinstance(value, Mapping):
        return {k: _jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_jsonable(v) for v in value]
    return value
