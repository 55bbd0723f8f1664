"""Tuning caches: the files in which trtexec and Torch-TensorRT keep the routes of a tuning run.

One JSON object a line. The first line is the header; each further one is a route: `iter`, `build_route`, `crash`,
`error_message`, `accuracy_loss` (output name -> loss, or null), `gpu_time` (ms, the mean of one run, or null).
Torch-TensorRT writes the same rows under a header of its own, one file for each partition of the model, which
`partition_key` tells; the two programs do not read each other's files.

Source: the tuning cache of trtexec (TensorRT 11.1 to 11.4) and of torch_tensorrt.dynamo's tuning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.route import Route
from gpt_search.store.files import write_new_file

TRTEXEC, TORCH = "trtexec", "torch-tensorrt"
_SEARCHES = ("fast", "full", "mixed")


@dataclass(frozen=True)
class CacheRow:
    """One route of a cache. line: in the file, from 1. losses: by output, NaN for null; None where none were taken.

    gpu_time_ms: None where the route was not timed. number: the program's own index of the route.
    """

    line: int
    number: int
    route: Route
    crashed: bool
    error_message: str = ""
    losses: Mapping[str, float] | None = None
    gpu_time_ms: float | None = None


@dataclass(frozen=True)
class TuningCache:
    """What a cache file holds.

    program: `TRTEXEC` or `TORCH`. metric: of the losses, by our name; tolerance: None where the run had no accuracy
    check. search: "fast", "full" or "mixed". default_route: every knob of the compiler at its default. header: as
    read. notes: what a reader should be told.
    """

    program: str
    tuner_version: str
    expression: str
    search: str
    metric: str
    tolerance: float | None
    default_route: Route
    rows: tuple[CacheRow, ...]
    header: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_tuning_cache(path: Path) -> TuningCache:
    """Reads a cache of either program.

    A last line without its end is what a stopped run leaves: it is left out, with a note.
    Raises InputError naming the file, the line and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the tuning cache {str(path)!r}: {reason}") from None
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path}: the tuning cache is empty; it starts with a header line")
    cut = not text.endswith("\n")
    header = _object(path, *lines[0])
    rows: list[CacheRow] = []
    notes: list[str] = []
    for i, line in lines[1:]:
        if cut and i == lines[-1][0] and not _is_json(line):
            notes.append(f"line {i} was cut off while it was written; it is left out")
            continue
        rows.append(_row(path, i, _object(path, i, line)))
    return _cache(path, header, rows, notes)


def write_tuning_cache(path: Path, header: Mapping[str, Any], rows: Sequence[CacheRow]) -> int:
    """Writes a cache, which must not exist yet; returns its bytes. Raises InputError."""
    lines = [json.dumps(dict(header), ensure_ascii=False)]
    for row in rows:
        losses = None if row.losses is None else {n: v if math.isfinite(v) else None for n, v in row.losses.items()}
        lines.append(
            json.dumps(
                {
                    "iter": row.number,
                    "build_route": str(row.route),
                    "crash": row.crashed,
                    "error_message": row.error_message,
                    "accuracy_loss": None if row.crashed else losses,
                    "gpu_time": None if row.crashed else row.gpu_time_ms,
                },
                ensure_ascii=False,
            )
        )
    data = ("\n".join(lines) + "\n").encode()
    write_new_file(path, data)
    return len(data)


def _is_json(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = parse_json(line)
    except ValueError as error:
        raise InputError(
            f"{path}, line {number}: not JSON ({error}); every line of a tuning cache is one object"
        ) from None
    if not isinstance(found, dict):
        raise InputError(
            f"{path}, line {number}: {_short(found)} is no JSON object; every line of a tuning cache is one"
        )
    return found


def _row(path: Path, line: int, data: Mapping[str, Any]) -> CacheRow:
    def fail(what: str) -> InputError:
        return InputError(f"{path}, line {line}: {what}")

    for key in ("iter", "build_route", "crash"):
        if key not in data:
            raise fail(f"a row without {key!r}; a route has iter, build_route, crash, accuracy_loss and gpu_time")
    number, text, crashed = data["iter"], data["build_route"], data["crash"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise fail(f"iter is {_short(number)}; it must be a whole number, 0 or more")
    if not isinstance(text, str):
        raise fail(f"build_route is {_short(text)}; it must be text")
    if not isinstance(crashed, bool):
        raise fail(f"crash is {_short(crashed)}; it must be true or false")
    try:
        route = Route.parse(text)
    except InputError as error:
        raise fail(str(error)) from None
    losses = data.get("accuracy_loss")
    if losses is not None and not (
        isinstance(losses, dict) and all(v is None or _is_number(v) for v in losses.values())
    ):
        raise fail(f"accuracy_loss is {_short(losses)}; it must be null, or a number or null by output name")
    time = data.get("gpu_time")
    if time is not None and not (_is_number(time) and 0 < time < math.inf):
        raise fail(f"gpu_time is {_short(time)}; it must be null, or a time in ms above 0")
    return CacheRow(
        line=line,
        number=number,
        route=route,
        crashed=crashed,
        error_message=str(data.get("error_message") or ""),
        # NaN has no number in JSON: it is written as null.
        losses=None if losses is None else {str(n): math.nan if v is None else float(v) for n, v in losses.items()},
        gpu_time_ms=None if time is None else float(time),
    )


def _cache(path: Path, header: Mapping[str, Any], rows: Sequence[CacheRow], notes: list[str]) -> TuningCache:
    def text(key: str, default: str | None = None) -> str:
        value = header.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{path}, line 1: the header's {key} is {_short(value)}; a tuning cache has a text there")
        return value

    program = TORCH if "partition_key" in header else TRTEXEC
    search = text("searching_algorithm", "fast").lower()
    if search not in _SEARCHES:
        raise InputError(f"{path}, line 1: searching_algorithm is {search!r}; it is one of {', '.join(_SEARCHES)}")
    parameter = header.get("accuracy_parameter") or {}
    tolerance = parameter.get("epsilon") if isinstance(parameter, Mapping) else None
    if tolerance is not None and not (_is_number(tolerance) and 0 < tolerance < math.inf):
        tolerance = None  # trtexec writes a number that is no limit where none was given
    default_route = text("default_build_route")
    try:
        default = Route.parse(default_route)
    except InputError as error:
        raise InputError(f"{path}, line 1: default_build_route: {error}") from None
    return TuningCache(
        program=program,
        tuner_version=text("tuner_version"),
        expression=text("tuning_expr"),
        search=search,
        metric=_metric(path, header.get("accuracy_algorithm", "l0")),
        tolerance=None if tolerance is None else float(tolerance),
        default_route=default,
        rows=tuple(rows),
        header=dict(header),
        notes=tuple(notes),
    )


def _metric(path: Path, name: object) -> str:
    for ours in ("l0", "l1", "l2", "lInf", "cos"):
        if isinstance(name, str) and name.lower() == ours.lower():
            return ours
    raise InputError(f"{path}, line 1: accuracy_algorithm is {_short(name)}; it is one of l0, l1, l2, lInf, cos")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
