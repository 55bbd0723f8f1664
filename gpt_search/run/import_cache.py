"""Importing a tuning cache of trtexec or Torch-TensorRT: its rows become the trials of a study.

A cache holds one mean time per route, without an error, and of the losses those of the last golden pair only. The study
can be shown, analysed and exported like any other. It cannot be continued or confirmed: the cache says neither on
what machine nor with what options its times were taken. Tune again with the same expression for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt_search.accuracy.gate import Tolerances, judge
from gpt_search.domain.digest import digest_of_file
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.expression import parse_expression
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.run.result import StudySummary
from gpt_search.run.show import summarise
from gpt_search.store.settings import StudySettings
from gpt_search.store.study import StudyStore
from gpt_search.store.tuning_cache import CacheRow, TuningCache, read_tuning_cache

SECTION = "imported"
"""The section of the settings that only imported studies have."""

_UNKNOWN_FAILURE = "a crash or a failed build: the cache does not tell which"
_UNCHECKED = 1.0
"""Tolerance of a study whose run had no accuracy check: nothing is judged by it."""


@dataclass(frozen=True)
class Imported:
    """The new study, the cache it was made from, and what the user should know."""

    summary: StudySummary
    cache: TuningCache
    notes: tuple[str, ...]


def import_cache(path: Path, storage: str, study: str | None = None, database: KnobDatabase | None = None) -> Imported:
    """Makes a study from a tuning cache.

    study: its name, by default the file's stem. database: of the compiler that wrote the cache; by default knobs
    have the values that the cache's own expression lists.

    Trial 0 is the first timed row of the default route; the other rows follow in the file's order. Raises
    InputError for a file that is no cache, a database of another tuner version, rows that are no routes of the
    expression, no timed default route, and a study that exists.
    """
    cache = read_tuning_cache(path)
    if database is None:
        database = _own_database(path, cache)
    elif database.tuner_version != cache.tuner_version:
        raise InputError(
            f"{path} was written by tuner version {cache.tuner_version}, and the knob database is of "
            f"{database.tuner_version}: names, values and defaults differ between versions; give the database of "
            f"{cache.tuner_version}, or none"
        )
    try:
        space = parse_expression(cache.expression, database, strict=True)
    except InputError as error:
        raise InputError(f"{path}, line 1, tuning_expr: {error}") from None
    codes = [_codes(path, space, cache, row) for row in cache.rows]
    order = _order(path, space, cache, codes)
    tolerances = Tolerances(cache.metric, cache.tolerance if cache.tolerance is not None else _UNCHECKED)
    reference_ms = cache.rows[order[0]].gpu_time_ms
    assert reference_ms is not None
    name = study or path.stem
    with StudyStore.create_or_resume(storage, name, _settings(path, cache, database, tolerances), space) as store:
        earlier = store.restore()
        if not store.created and store.attr(SECTION) != "incomplete":
            raise InputError(f"study {name!r} in {store.location.shown} exists already; choose another --study")
        store.set_attr(SECTION, "incomplete")  # one that was stopped here is gone on with
        done = {row.trial for row in earlier.rows}
        for trial, index in enumerate(order):
            if trial not in done:
                store.start(trial, codes[index], Phase.TIME)
                store.finish(trial, _evaluation(cache, cache.rows[index], tolerances, reference_ms), 0.0)
        store.set_attr(SECTION, "complete")
        store.set_attr("end", f"imported from a tuning cache of {cache.program}")
        summary = summarise(store)
    return Imported(summary, cache, (*cache.notes, *_notes(cache, space)))


def refuse_imported(settings: StudySettings, study: str) -> None:
    """Raises InputError for a study that was imported: there is nothing to build it with."""
    origin = settings.get(SECTION)
    if origin is not None:
        raise InputError(
            f"study {study!r} was imported from a tuning cache of {origin['program']}, which does not say how its "
            "times were taken: it cannot be continued or confirmed; tune anew with `gpt-search tune MODEL --backend "
            f"tensorrt --knobs {origin['expression']!r}`"
        )


def _own_database(path: Path, cache: TuningCache) -> KnobDatabase:
    """The knobs that the header names: at their defaults, with the values that the expression lists."""
    listed: dict[str, tuple[str, ...]] = {}
    for token in cache.expression.split():
        name, equals, value = token.partition("=")
        if name.startswith("-") and equals and value.startswith("[") and value.endswith("]"):
            listed[name[1:]] = tuple(value[1:-1].split("|"))
    unknown = [n for n in listed if n not in cache.default_route]
    if unknown:
        raise InputError(f"{path}, line 1: default_build_route has no knob {unknown[0]!r}, which tuning_expr varies")
    knobs = []
    for name, default in cache.default_route.items_in_order:
        values = tuple(dict.fromkeys((*listed.get(name, ()), default)))
        # Pinned knobs may have any value: the compiler took them.
        knobs.append(Knob(name, values, default, "from a tuning cache", open_ended=name not in listed))
    return KnobDatabase(cache.tuner_version, tuple(knobs))


def _codes(path: Path, space: SearchSpace, cache: TuningCache, row: CacheRow) -> Codes:
    """The row's route in the space; knobs that it leaves out are at their default, as the compiler takes them."""
    given = dict(row.route)
    for name, value in given.items():
        if name in space.pinned:
            if value != space.pinned[name]:
                raise InputError(
                    f"{path}, line {row.line}: {name}={value}, but the expression pins {space.pinned[name]}"
                )
        elif name not in {d.name for d in space.dimensions} and cache.default_route.get(name) != value:
            raise InputError(f"{path}, line {row.line}: {name}={value} is neither in the expression nor the default")
    found = space.default.copy()
    for i, dimension in enumerate(space.dimensions):
        value = given.get(dimension.name, dimension.values[dimension.default])
        if value not in dimension.values:
            raise InputError(
                f"{path}, line {row.line}: {dimension.name}={value}; the expression lists {', '.join(dimension.values)}"
            )
        found[i] = dimension.values.index(value)
    return found


def _order(path: Path, space: SearchSpace, cache: TuningCache, codes: list[Codes]) -> list[int]:
    """Indices of the rows, the reference first."""
    for i, row in enumerate(cache.rows):
        if np.array_equal(codes[i], space.default) and not row.crashed and row.gpu_time_ms is not None:
            return [i, *(j for j in range(len(codes)) if j != i)]
    raise InputError(
        f"{path}: no row times the default route of the expression, so there is nothing that its {len(codes)} rows "
        "could be compared with; `fast` and `mixed` time it first, `full` at its place in the order"
    )


def _evaluation(cache: TuningCache, row: CacheRow, tolerances: Tolerances, reference_ms: float) -> Evaluation:
    losses = () if row.losses is None else ({o: {cache.metric: v} for o, v in row.losses.items()},)
    checked = bool(losses) and cache.tolerance is not None
    violation = judge(losses, tolerances) if checked else None
    if row.crashed:
        message = "; ".join(t for t in (row.error_message, _UNKNOWN_FAILURE) if t)
        return Evaluation(Outcome.CRASH, Phase.TIME, message=message)
    # Torch-TensorRT gives a reason without a crash where a route missed the tolerance, and null for losses
    # that are not finite.
    missed = (violation is not None and not violation < 0) or row.gpu_time_ms is None or bool(row.error_message)
    if missed and violation is not None and violation < 0:
        violation = math.inf
    timed: dict[str, Any] = {}
    if row.gpu_time_ms is not None:
        timed = {"latency_ms": row.gpu_time_ms, "log_ratio": math.log(row.gpu_time_ms / reference_ms)}
    return Evaluation(
        Outcome.ACCURACY if missed else Outcome.OK,
        Phase.TIME,
        losses=losses,
        violation=(math.inf if violation is None else violation) if missed else violation,
        message=row.error_message or None,
        **timed,
    )


def _settings(path: Path, cache: TuningCache, database: KnobDatabase, tolerances: Tolerances) -> StudySettings:
    files = cache.header.get("files")
    model = files.get("onnx") if isinstance(files, Mapping) else None
    return StudySettings(
        {
            "backend": "tensorrt",
            "workload": {"digest": "", "model": str(model or "unknown model"), "name": path.stem},
            "golden": {"digest": "", "kind": "files", "path": ""},
            "tolerance": tolerances.to_json(),
            "database": {
                "tuner_version": database.tuner_version,
                "digest": database.digest,
                "defaults": database.defaults,
            },
            "environment": {"tuner_version": cache.tuner_version},
            "fingerprint": "NONE",
            "protocol": {"program": cache.program, "statistic": "one mean"},
            "strategy": {"spec": cache.search, "digest": None, "path": None},
            "seed": 0,
            "options": {},
            "limits": {},
            "time_infeasible": True,
            SECTION: {
                "program": cache.program,
                "digest": digest_of_file(path),
                "path": str(path.absolute()),
                "expression": cache.expression,
            },
        }
    )


def _notes(cache: TuningCache, space: SearchSpace) -> list[str]:
    notes = ["each time is one mean without an error: a small difference may be noise"]
    if cache.tolerance is None:
        notes.append("the run had no accuracy check: every route that was timed counts as feasible")
    else:
        notes.append("losses are those of the last golden pair only")
    if cache.program == "torch-tensorrt":
        notes.append(f"of one partition of the model ({cache.header.get('partition_key')})")
    return [*space.notes, *notes]
