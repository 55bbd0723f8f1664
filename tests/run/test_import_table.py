"""Tables from Kernel Tuner's caches and T4 results, written here in the forms that their programs write."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.run.import_table import import_table
from gpt_search.run.replay import Replay
from gpt_search.store.files import StorageError
from gpt_search.store.t4 import read_tuner_file, write_t4
from gpt_search.store.tables import Table, load_table

PARAMETERS: dict[str, list[Any]] = {"block": [16, 32, 64], "tile": [1, 2], "unroll": [True, False], "arch": ["sm_80"]}


def cache(**more: Any) -> dict[str, Any]:
    """A cache of Kernel Tuner: 12 configurations, two of them failed; one breaks a constraint and is missing."""
    rng = np.random.default_rng(0)
    lines: dict[str, Any] = {}
    for block, tile, unroll in itertools.product(*(PARAMETERS[n] for n in ("block", "tile", "unroll"))):
        values = {"block": block, "tile": tile, "unroll": unroll, "arch": "sm_80"}
        line: dict[str, Any] = {**values, "compile_time": 500.0, "verification_time": 0, "benchmark_time": 80.0}
        line |= {"strategy_time": 0, "framework_time": 3.0, "timestamp": "2024-01-01 00:00:00+00:00"}
        if (block, tile) == (64, 2):
            if unroll:
                continue
            line["time"] = "RuntimeFailedConfig"
        elif (block, tile, unroll) == (64, 1, False):
            line |= {"time": "CompilationFailedConfig", "benchmark_time": 0}
        else:
            samples = (3.0 - block / 32 + 0.1 * tile + 0.002 * rng.standard_normal(16)).tolist()
            line |= {"time": float(np.mean(samples)), "times": samples, "GFLOP/s": 1.0}
        lines[",".join(map(str, values.values()))] = line
    return {
        "device_name": "A device",
        "kernel_name": "convolution",
        "problem_size": [4096, 4096],
        "tune_params_keys": list(PARAMETERS),
        "tune_params": PARAMETERS,
        "objective": "time",
        "cache": lines,
    } | more


def t4() -> dict[str, Any]:
    """T4 results of the same configurations."""
    results = []
    for line in cache()["cache"].values():
        failed = {"CompilationFailedConfig": "compile", "RuntimeFailedConfig": "runtime"}.get(line["time"], "correct")
        times = {"compilation": line["compile_time"], "framework": 3.0, "search_algorithm": 0, "validation": 0}
        results.append(
            {
                "timestamp": line["timestamp"],
                "configuration": {n: line[n] for n in PARAMETERS},
                "times": {**times, "runtimes": line.get("times", [])},
                "invalidity": failed,
                "correctness": 1,
                "measurements": [{"name": "time", "value": line["time"], "unit": ""}],
                "objectives": ["time"],
            }
        )
    return {"metadata": {"timeunit": "miliseconds"}, "results": results}


def imported(folder: Path, data: Any, reference: str | None = None) -> Table:
    path = folder / "other.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    out = folder / "table.jsonl"
    out.unlink(missing_ok=True)
    return import_table(path, out, reference).table


@pytest.mark.parametrize("form", [cache, t4])
def test_what_was_tried_is_in_the_table(tmp_path: Path, form: Any) -> None:
    table = imported(tmp_path, form())
    table.check_samples()
    assert table.space.names == ("block", "tile", "unroll") and table.space.pinned == {"arch": "sm_80"}
    assert table.space.values[0] == ("16", "32", "64")
    assert (len(table), table.space.size, table.complete, table.paired) == (11, 12, False, False)
    assert str(table.space.reference) == "-block=16 -tile=1 -unroll=True -arch=sm_80"  # the first that was timed
    lines = cache()["cache"]
    for i, codes in enumerate(table.columns.codes):
        route = table.space.route(codes)
        line = lines[",".join(route[n] for n in PARAMETERS)]
        failed = {"CompilationFailedConfig": Outcome.BUILD_ERROR, "RuntimeFailedConfig": Outcome.CRASH}
        assert table.outcome(i) is failed.get(line["time"], Outcome.OK)
        assert [r.candidate_ms[0] for r in table.rounds(i)] == line.get("times", [])
        assert table.columns.cost["build"][i] == 0.5
        if table.outcome(i) is Outcome.OK:
            expected = np.log(np.median(line["times"]) / np.median(lines["16,1,True,sm_80"]["times"]))
            assert table.truth[table.row[i]] == pytest.approx(expected, abs=0.01)
    assert table.route(table.best)["block"] == "64"
    if form is cache:
        assert table.columns.cost["time"][0] == 0.08
        assert (
            table.settings["environment"] == {"device": "A device"}
            and table.settings["workload"]["name"] == "convolution"
        )
    replay = Replay(table, "refuse")
    result = replay.simulate("random", 30, 1)
    assert {o.name for o in result.outcome} == {"OK", "CRASH", "BUILD_ERROR"}
    assert "samples without a paired reference" in replay.label and "no route was built twice" in replay.label


def test_other_ways_to_write_them(tmp_path: Path) -> None:
    whole = imported(tmp_path, cache()).columns
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(cache()).encode()))
    assert import_table(packed, tmp_path / "packed.jsonl").table.columns.bodies == whole.bodies
    # An interrupted run leaves its cache open.
    text = json.dumps(cache())
    assert text.endswith("}}")
    assert imported(tmp_path, text[:-2] + ",\n").columns.bodies == whole.bodies
    newer = cache()
    for line in newer["cache"].values():
        if isinstance(line["time"], str):
            line["__error__"] = line.pop("time")
    assert imported(tmp_path, newer).columns.bodies == whole.bodies
    older = cache()
    for line in older["cache"].values():
        if isinstance(line["time"], str):
            line["time"] = 1e20
    assert set(imported(tmp_path, older).columns.outcome) == {Outcome.OK, Outcome.CRASH}
    seconds = t4()
    seconds["metadata"]["timeunit"] = "seconds"
    for line in seconds["results"]:
        line["times"] = {k: [x / 1e3 for x in v] if k == "runtimes" else v / 1e3 for k, v in line["times"].items()}
    assert imported(tmp_path, seconds).reference_ms == pytest.approx(imported(tmp_path, t4()).reference_ms)


def test_a_configuration_that_was_tried_twice_is_two_builds(tmp_path: Path) -> None:
    twice = t4()
    twice["results"] += twice["results"]
    table = imported(tmp_path, twice)
    assert len(table) == 11 and len(table.row) == 22 and table.between_builds is not None


def test_the_reference_may_be_chosen(tmp_path: Path) -> None:
    table = imported(tmp_path, cache(), "-block=32")
    assert str(table.space.reference) == "-block=32 -tile=1 -unroll=True -arch=sm_80" and table.truth[0] == 0.0
    for reference, message in (
        ("-blokc=32", "no parameter 'blokc'; did you mean 'block'"),
        ("-block=33", "block is '33'; .* has 16, 32, 64"),
        ("-block=64 -tile=2 -unroll=False", "did not time the reference"),
        ("block=32", "not of the form"),
    ):
        with pytest.raises(InputError, match=message):
            imported(tmp_path, cache(), reference)


def test_export_as_t4_and_back(tmp_path: Path) -> None:
    table = imported(tmp_path, cache())
    out = tmp_path / "t4.json"
    assert write_t4(table, out) == 11
    data = json.loads(out.read_text())
    assert data["schema_version"] == "1.0.0"
    for line in data["results"]:  # what the T4 results schema requires, and its words for failures
        assert {"configuration", "times", "invalidity", "correctness"} <= set(line)
        assert line["invalidity"] in {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
        assert set(line["configuration"]) == set(PARAMETERS)
        assert all(line["configuration"][n] in PARAMETERS[n] for n in PARAMETERS)
    again = import_table(out, tmp_path / "again.jsonl").table
    assert again.space == table.space and np.array_equal(again.columns.outcome, table.columns.outcome)
    assert np.array_equal(again.columns.log_ratio, table.columns.log_ratio)
    assert np.array_equal(again.columns.cost["time"], table.columns.cost["time"], equal_nan=True)
    with pytest.raises(StorageError, match="cannot write"):
        write_t4(table, out)


def cache_with(key: str = "16,1,True,sm_80", **changed: Any) -> dict[str, Any]:
    """The cache, with one configuration changed."""
    data = cache()
    data["cache"][key] |= changed
    return data


def t4_with(**times: Any) -> dict[str, Any]:
    """The T4 results, with times of the first changed."""
    data = t4()
    data["results"][0]["times"] |= times
    return data


NO_TIMES = [float("nan"), float("inf"), -1.0, 1e-320, 1e308, 10**400, True, None, "abc", [1.0]]


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:10])
def test_what_is_no_time_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    samples = [1.0, 1.0, 1.0, value, 1.0]
    for data, place in (
        (cache_with(times=samples), "configuration '16,1,True,sm_80': .* in times is not a time"),
        (t4_with(runtimes=samples), "result 1: .* in runtimes is not a time"),
    ):
        with pytest.raises(InputError, match=place):
            imported(tmp_path, data)
    if value == 1e-320:
        return  # so short a build is as good as none
    for data, place in (
        (cache_with(compile_time=value), "configuration '16,1,True,sm_80': .* in compile_time is not a time"),
        (cache_with("64,1,False,sm_80", compile_time=value), "configuration '64,1,False,sm_80': .* is not a time"),
        (t4_with(compilation=value), "result 1: .* in compilation is not a time"),
    ):
        with pytest.raises(InputError, match=place):
            imported(tmp_path, data)
    assert not (tmp_path / "table.jsonl").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("no JSON", "is no JSON"),
        ("[" * 100_000, "is no JSON .*nested too deeply"),
        (cache_with(tile=2), "'16,1,True,sm_80' and configuration '16,2,True,sm_80' have the same parameters"),
        (cache_with(times=[0.0] * 8), "0.0 in times is not a time from 1e-09 to 1e\\+12 ms"),
        ("[1]", "neither a cache file of Kernel Tuner"),
        ({"cache": {}}, "it lacks 'tune_params_keys'"),
        (cache(cache={"x": {"block": 1}}), "no cache file of Kernel Tuner"),
        (cache(cache={}), "no configuration that was timed"),
        ({"results": [{"configuration": {}}]}, "no T4 results file .*it lacks 'times'"),
        ({"results": [], "metadata": {"timeunit": "weeks"}}, "unknown metadata.timeunit 'weeks'"),
        ({"results": [{**t4()["results"][0], "invalidity": "odd"}]}, "result 1 has the invalidity 'odd'"),
        (
            {"results": [{**t4()["results"][0], "times": {"compilation": 1, "runtimes": [1.0]}}]},
            "result 1: 1 raw samples; a table needs 4 or more",
        ),
        ({"results": [{**t4()["results"][0], "configuration": {"a b": 1}}]}, "'a b' cannot be written in a route"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(tmp_path, data)
    assert not (tmp_path / "table.jsonl").exists()


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_tuner_file(tmp_path / "none.json")
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(InputError, match="cannot read"):
        read_tuner_file(tmp_path / "half.gz")
    imported(tmp_path, cache())
    with pytest.raises(InputError, match="exists"):
        import_table(tmp_path / "other.json", tmp_path / "table.jsonl")
    assert len(load_table(tmp_path / "table.jsonl")) == 11
