"""Files of other auto-tuners: Kernel Tuner's cache, and results in the T4 format that it and BAT write.

T4: an object with `results`, each with `configuration`, `times` (milliseconds unless `metadata.timeunit` says
otherwise; `runtimes` are the raw samples), `invalidity` and `correctness`. Sources: the T4 results schema 1.0.0, and
the cache format of Kernel Tuner 1.3; real ones lie in AutoTuningAssociation/benchmark_hub.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.outcome import Outcome
from gpt_search.measure.paired import latency_of
from gpt_search.store.files import reason, write_new_file
from gpt_search.store.tables import Table

KERNEL_TUNER, T4 = "Kernel Tuner cache", "T4"
_FAILED = 1e20
"""What Kernel Tuner's first versions gave as the time of a failure."""

_ERRORS = {
    "CompilationFailedConfig": (Outcome.BUILD_ERROR, "it could not be compiled"),
    "RuntimeFailedConfig": (Outcome.CRASH, "it failed when it ran"),
    "InvalidConfig": (Outcome.BUILD_ERROR, "it breaks a constraint of the space"),
}
_INVALIDITY = {
    "compile": Outcome.BUILD_ERROR,
    "constraints": Outcome.BUILD_ERROR,
    "runtime": Outcome.CRASH,
    "timeout": Outcome.TIMEOUT,
    "correctness": Outcome.ACCURACY,
}
_TO_T4 = {
    Outcome.OK: "correct",
    Outcome.ACCURACY: "correctness",
    Outcome.BUILD_ERROR: "compile",
    Outcome.CRASH: "runtime",
    Outcome.TIMEOUT: "timeout",
    Outcome.MEMORY: "runtime",
    Outcome.LIMIT: "constraints",
}
_PHASES = {"compile_time": "build", "verification_time": "gate", "benchmark_time": "time"}
_T4_PHASES = {"compilation": "build", "compilation_time": "build", "validation": "gate", "benchmark": "time"}
_SHORTEST_MS, _LONGEST_MS = 1e-9, 1e12
"""A picosecond and some thirty years: what lies outside was not measured, and ratios of it overflow."""
_UNITS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_UNITS |= {"seconds": 1e3, "milliseconds": 1.0, "miliseconds": 1.0, "microseconds": 1e-3, "nanoseconds": 1e-6}


@dataclass(frozen=True)
class TunerRow:
    """One configuration that another tuner tried. samples_ms: raw, in call order. cost_s: by phase of ours."""

    where: str
    configuration: Mapping[str, str]
    outcome: Outcome
    samples_ms: tuple[float, ...]
    cost_s: Mapping[str, float]
    message: str | None = None


@dataclass(frozen=True)
class TunerFile:
    """A file of another tuner. values: of each parameter that varies or not, in order."""

    program: str
    name: str
    device: str
    values: Mapping[str, tuple[str, ...]]
    rows: Sequence[TunerRow]
    notes: tuple[str, ...] = field(default=())


def read_tuner_file(path: Path) -> TunerFile:
    """A cache file of Kernel Tuner or T4 results, also compressed with gzip. Raises InputError for any other file."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        words = (
            "it is not UTF-8 text"
            if isinstance(error, UnicodeDecodeError)
            else reason(error)
            if isinstance(error, OSError)
            else str(error)
        )
        raise InputError(f"cannot read {path}: {words}") from None
    try:
        data = _parsed(text)
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); give a cache file of Kernel Tuner, or T4 results") from None
    if isinstance(data, dict) and isinstance(data.get("cache"), dict):
        return _cache(path, data)
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return _results(path, data)
    raise InputError(
        f"{path} is neither a cache file of Kernel Tuner (an object with `tune_params` and `cache`) nor T4 results (an "
        "object with `results`)"
    )


def _parsed(text: str) -> Any:
    """The JSON value; a cache of Kernel Tuner that was not closed, as an interrupted run leaves it, is closed."""
    try:
        return parse_json(text)
    except ValueError:
        if '"cache"' not in text:
            raise
        return parse_json(text.rstrip().rstrip(",") + "}\n}")


def _cache(path: Path, data: Mapping[str, Any]) -> TunerFile:
    try:
        names = [str(n) for n in data["tune_params_keys"]]
        values = {n: tuple(dict.fromkeys(map(str, data["tune_params"][n]))) for n in names}
        rows = [_cache_row(key, names, line) for key, line in data["cache"].items()]
        _check_distinct(rows)
        # Values that were tried, though `tune_params` does not list them, are values too.
        for row in rows:
            for name, value in row.configuration.items():
                if value not in values[name]:
                    values[name] = (*values[name], value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is no cache file of Kernel Tuner ({_words(error)})") from None
    name, device = str(data.get("kernel_name", path.stem)), str(data.get("device_name", "unknown"))
    return TunerFile(KERNEL_TUNER, name, device, values, rows)


def _check_distinct(rows: Iterable[TunerRow]) -> None:
    """A cache holds a configuration once, unlike T4 results, where another one of it is another build."""
    seen: dict[tuple[str, ...], str] = {}
    for row in rows:
        other = seen.setdefault(tuple(row.configuration.values()), row.where)
        if other != row.where:
            raise ValueError(f"{other} and {row.where} have the same parameters")


def _cache_row(key: str, names: Sequence[str], line: Mapping[str, Any]) -> TunerRow:
    configuration = {n: str(line[n]) for n in names}
    where = f"configuration {key!r}"
    cost = {ours: _cost_s(line[theirs], theirs, where) for theirs, ours in _PHASES.items() if theirs in line}
    error = line.get("__error__") or (line["time"] if isinstance(line.get("time"), str) else None)
    if error is None and isinstance(line.get("time"), int | float) and not float(line["time"]) < _FAILED:
        error = "RuntimeFailedConfig"
    if error is not None:
        outcome, words = _ERRORS.get(str(error), (Outcome.CRASH, f"it failed: {error}"))
        return TunerRow(where, configuration, outcome, (), _reached(cost, outcome), words)
    return TunerRow(where, configuration, Outcome.OK, _samples_ms(line.get("times", ()), "times", where), cost)


def _results(path: Path, data: Mapping[str, Any]) -> TunerFile:
    unit = str((data.get("metadata") or {}).get("timeunit", "milliseconds"))
    if unit not in _UNITS:
        raise InputError(f"{path}: unknown metadata.timeunit {unit!r}; known are {', '.join(_UNITS)}")
    try:
        rows = [_result_row(number, line, _UNITS[unit]) for number, line in enumerate(data["results"], start=1)]
        values: dict[str, dict[str, None]] = {}
        for row in rows:
            if row.configuration.keys() != rows[0].configuration.keys():
                raise ValueError(f"{row.where} has other parameters than the first")
            for name, value in row.configuration.items():
                values.setdefault(name, {}).setdefault(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is no T4 results file ({_words(error)})") from None
    ordered = {name: _in_order(found) for name, found in values.items()}
    notes = ("the file does not list the values of its parameters: those that occur in it are taken",)
    return TunerFile(T4, path.name.split(".")[0], "unknown", ordered, rows, notes)


def _result_row(number: int, line: Mapping[str, Any], unit: float) -> TunerRow:
    times, invalidity = line["times"], str(line["invalidity"])
    configuration = {str(n): str(v) for n, v in line["configuration"].items()}
    where = f"result {number}"
    cost = {ours: _cost_s(times[theirs], theirs, where, unit) for theirs, ours in _T4_PHASES.items() if theirs in times}
    if invalidity != "correct":
        if invalidity not in _INVALIDITY:
            raise ValueError(f"{where} has the invalidity {invalidity!r}")
        outcome = _INVALIDITY[invalidity]
        return TunerRow(where, configuration, outcome, (), _reached(cost, outcome), f"invalidity {invalidity}")
    samples = _samples_ms(times.get("runtimes", ()), "runtimes", where, unit)
    cost.setdefault("time", sum(samples) / 1000)
    return TunerRow(where, configuration, Outcome.OK, samples, cost)


def _samples_ms(given: Iterable[Any], name: str, where: str, unit: float = 1.0) -> tuple[float, ...]:
    """Raw samples in milliseconds. Raises ValueError for what is no latency."""
    return tuple(_milliseconds(x, name, where, unit, _SHORTEST_MS) for x in given)


def _cost_s(given: Any, name: str, where: str, unit: float = 1.0) -> float:
    """What a phase took, in seconds. Raises ValueError for what is no duration."""
    return _milliseconds(given, name, where, unit, 0.0) / 1000


def _milliseconds(given: Any, name: str, where: str, unit: float, least: float) -> float:
    # Text, truth values, NaN and infinities, which Python's JSON reads, are no durations either.
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not least / unit <= given <= _LONGEST_MS / unit:
        raise ValueError(f"{where}: {given!r} in {name} is not a time from {least:g} to {_LONGEST_MS:g} ms")
    return float(given * unit)


def _reached(cost: Mapping[str, float], outcome: Outcome) -> dict[str, float]:
    """The phases that a failed configuration reached: these files give every phase a time, often 0."""
    last = {Outcome.BUILD_ERROR: 1, Outcome.ACCURACY: 2}.get(outcome, 3)
    names = ["build", "gate", "time"][:last]
    return {name: cost.get(name, 0.0) for name in names if name in cost or name == "build"}


def _in_order(values: Iterable[str]) -> tuple[str, ...]:
    """Numbers in ascending order, other values as they came."""
    found = list(values)
    try:
        return tuple(sorted(found, key=float))
    except ValueError:
        return tuple(found)


def _words(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


# -- writing -------------------------------------------------------------------------------------
def write_t4(table: Table, out: Path) -> int:
    """Writes a table as T4 results, one for each build; returns how many.

    Raises StorageError where the file cannot be written, or exists.
    """
    results = [_t4_result(table, record) for record in range(len(table.row))]
    data = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results}
    write_new_file(out, json.dumps(data, indent=1, allow_nan=False).encode() + b"\n")
    return len(results)


def _t4_result(table: Table, record: int) -> dict[str, Any]:
    outcome, rounds = table.outcome(record), table.rounds(record)
    route = table.space.route(table.columns.codes[record])

    def ms(phase: str) -> float:
        column = table.columns.cost.get(phase)
        return 0.0 if column is None or math.isnan(column[record]) else 1000 * float(column[record])

    measured = rounds and outcome is Outcome.OK
    return {
        "configuration": {name: _plain(value) for name, value in route.items_in_order},
        "times": {
            "compilation": ms("build"),
            "benchmark": ms("time"),
            "framework": ms("start") + ms("wait"),
            "search_algorithm": 0.0,
            "validation": ms("gate"),
            "runtimes": [x for r in rounds for x in r.candidate_ms] if measured else [],
        },
        "invalidity": _TO_T4[outcome],
        "correctness": 0 if outcome is Outcome.ACCURACY else 1,
        "measurements": [{"name": "time", "value": latency_of(rounds, "candidate", table.statistic), "unit": "ms"}]
        if measured
        else [],
        "objectives": ["time"],
    }


def _plain(value: str) -> int | float | bool | str:
    """A number or a truth value where the text is exactly one."""
    if value in ("True", "False"):
        return value == "True"
    for kind in (int, float):
        try:
            if str(kind(value)) == value and math.isfinite(float(value)):
                return kind(value)
        except ValueError:
            continue
    return value
