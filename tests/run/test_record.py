"""Recording tables: engines are timed once, failures are data, a kill costs one route at most."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_forks import Attempt, Fuse
from run_studies import FAILING, SPEC, config, landscape_of, own_locks, quick_workers

from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.run.record import RecordConfig, record, routes_to_record
from gpt_search.run.replay import Replay
from gpt_search.store.files import StorageError
from gpt_search.store.table_part import TablePart, part_path
from gpt_search.store.tables import Table, load_table

__all__ = ["own_locks", "quick_workers"]  # fixtures

KILLED = -signal.SIGKILL


def few_knobs() -> str:
    """Knobs of the failing landscape: one for each way to fail, two that do nothing, three that matter."""
    landscape = landscape_of(FAILING)
    space, inert = landscape.space, landscape.inert
    chosen: dict[str, list[str]] = {}
    for i, name in enumerate(space.names):
        codes = space.default.copy()
        codes[i] = 1 - min(1, codes[i])
        kind = "inert" if inert[i] else landscape.outcome(codes).name
        chosen.setdefault(kind, []).append(name)
    names = [chosen[k][0] for k in ("ACCURACY", "BUILD_ERROR", "CRASH")] + chosen["inert"][:2] + chosen["OK"][:3]
    return " ".join(f"-{name}=[*]" for name in names)


def recording(folder: Path, spec: dict[str, Any] = FAILING, name: str = "t.jsonl", **more: Any) -> RecordConfig:
    given = {"routes": 30, "rounds": 8, "builds": 3, "several": 4} | more
    own = {name: given.pop(name) for name in ("builders", "knobs") if name in given}
    tune = config(folder, spec=spec, **own)
    return RecordConfig(replace(tune, seed=given.pop("seed", 3)), folder / name, **given)


def content(table: Table) -> list[str]:
    """The records in an order that does not depend on builders and kills, without what they may change.

    An engine's first record holds its rounds: which route that is depends on the builders.
    """
    out = []
    for i, body in enumerate(table.columns.bodies):
        kept = {k: body[k] for k in ("route", "build_number", "outcome", "fingerprint", "violation")}
        out.append(json.dumps(kept | {"timed": len(table.all_rounds(i))}))
    return sorted(out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, list[tuple[int, int, str]]]:
    folder, told = tmp_path_factory.mktemp("recorded"), list[tuple[int, int, str]]()
    from run_forks import fork_workers

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPT_SEARCH_RUNTIME_DIR", str(folder))
        fork_workers(patch)
        table = record(recording(folder, routes=60, knobs=few_knobs()), lambda *args: told.append(args))
    return table, told


def test_what_is_recorded_is_what_the_landscape_does(finished: tuple[Table, Any]) -> None:
    table, landscape = finished[0], landscape_of(FAILING)
    table.check_samples()
    assert len(table) == 60 and not table.complete
    assert table.codes[0].tolist() == table.space.default.tolist()
    for i, codes in enumerate(table.columns.codes):
        truth = landscape.truth(landscape.space.codes(table.space.route(codes)))
        assert table.outcome(i) is truth.outcome
        if truth.outcome is Outcome.OK:
            assert table.columns.violation[i] == pytest.approx(truth.violation)
            rounds = table.all_rounds(i)
            assert len(rounds) == 8
            assert np.median(rounds) == pytest.approx(truth.log_ratio, abs=0.02)
    assert {table.outcome(i) for i in range(60)} >= {Outcome.OK, Outcome.ACCURACY, Outcome.BUILD_ERROR}


def test_equal_engines_are_timed_once_and_marked(finished: tuple[Table, Any]) -> None:
    columns = finished[0].columns
    first_pass = columns.build == 0
    prints = columns.fingerprint[first_pass & (columns.fingerprint >= 0)]
    timed = np.diff(columns.start) > 0
    ok = columns.fingerprint[first_pass & (columns.outcome == Outcome.OK)]
    assert timed[first_pass].sum() == len(np.unique(ok)) < len(ok)
    taken = np.flatnonzero(columns.source != np.arange(len(columns.source)))
    assert len(taken) == len(prints) - len(np.unique(prints))
    for i in taken:
        assert columns.fingerprint[i] == columns.fingerprint[columns.source[i]]
        assert set(columns.bodies[i]["cost_s"]) <= {"start", "build", "wait"}


def test_some_routes_are_built_several_times_over_the_range(finished: tuple[Table, Any]) -> None:
    table, columns = finished[0], finished[0].columns
    again = [i for i in range(len(table)) if len(table.records(i)) > 1]
    assert len(again) == 4 and 0 in again
    assert all(len(table.records(i)) == 3 for i in again)
    assert all(len(table.all_rounds(r)) == 8 and columns.source[r] == r for i in again for r in table.records(i)[1:])
    effect = table.between_builds
    assert effect is not None and (effect.routes, effect.builds) == (4, 3)
    values = np.sort([table.truth[i] for i in again if i])
    every = np.unique(table.truth[np.isfinite(table.truth)])
    assert values[0] <= np.quantile(every, 0.45) and values[-1] >= np.quantile(every, 0.55)


def test_progress_and_nothing_left_behind(finished: tuple[Table, Any]) -> None:
    table, told = finished
    assert [done for done, _, _ in told] == list(range(1, len(table.row) + 1))
    assert told[-1][0] == told[-1][1] == 60 + 2 * 4
    assert "the same engine" in {what for _, _, what in told}
    assert not part_path(table.path).exists() and not list(table.path.parent.glob("*.records"))


def test_no_path_of_this_machine_is_in_a_table(finished: tuple[Table, Any]) -> None:
    table = finished[0]
    assert str(table.path.parent) not in json.dumps(dict(table.settings.sections))
    assert table.settings["workload"]["model"] == "model.json"


def test_a_recorded_table_replays(finished: tuple[Table, Any]) -> None:
    result = Replay(finished[0], "restrict").simulate("random", 30, 1)
    assert len(result) == 31 and result.recommended is not None


def test_several_builders_record_the_same(tmp_path: Path, quick_workers: None, finished: tuple[Table, Any]) -> None:
    table = record(recording(tmp_path, routes=60, builders=3, knobs=few_knobs()))
    # The choice of what is built again rests on values that depend on who timed an engine first.
    one, other = ([c for c in content(t) if '"build_number": 0' in c] for t in (table, finished[0]))
    assert one == other and len(table.row) == len(finished[0].row)
    timed = np.diff(table.columns.start) > 0
    prints = table.columns.fingerprint[timed & (table.columns.build == 0)]
    assert len(prints) == len(np.unique(prints))


def test_kill_and_repeat(tmp_path: Path, quick_workers: None) -> None:
    """Killed at random requests to workers and after random times, the same command records what one run would."""
    (tmp_path / "whole").mkdir()
    whole = record(recording(tmp_path / "whole", name="t.jsonl.zst"))
    settings, rng, kills = recording(tmp_path, name="t.jsonl.zst"), np.random.default_rng(2), 0
    status = KILLED
    while status == KILLED:
        by_clock = kills % 2 == 1
        fuse = None if by_clock else Fuse("ask", int(rng.integers(5, 60)), float(rng.choice([0.0, 1.0])))
        process = Attempt(lambda: record(settings), fuse if kills < 8 else None)
        if by_clock and kills < 8:
            time.sleep(0.05 + 0.2 * rng.random())
            process.kill()
        before = part_path(settings.out).read_bytes() if part_path(settings.out).exists() else b""
        status = process.wait()
        assert status in (0, KILLED)
        kills += status == KILLED
        if status == KILLED and not settings.out.exists():  # the clock may strike after the table is whole
            now = part_path(settings.out).read_bytes() if part_path(settings.out).exists() else b""
            assert now.startswith(before[: before.rfind(b"\n") + 1])
        elif status == KILLED:
            assert content(load_table(settings.out)) == content(whole)
    assert kills >= 3
    table = load_table(settings.out)
    assert content(table) == content(whole)
    assert max(b["session"] for b in table.columns.bodies) > 1
    assert not part_path(settings.out).exists() and not settings.scratch.exists()


def test_a_whole_table_is_left_as_it_is(tmp_path: Path, quick_workers: None) -> None:
    settings = recording(tmp_path)
    table = record(settings)
    before = settings.out.read_bytes()
    assert record(settings).digest == table.digest and settings.out.read_bytes() == before
    with pytest.raises(InputError, match=r"recorded with other settings: recording\.rounds: stored 8, now 9"):
        record(replace(settings, rounds=9))


def test_another_command_does_not_go_on_with_it(tmp_path: Path, quick_workers: None) -> None:
    settings = recording(tmp_path)

    def stop(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(settings, stop)
    part = part_path(settings.out)
    lines = part.read_bytes()
    for change, message in (
        ({"routes": 31}, r"recording\.routes: stored 30, now 31"),
        ({"seed": 4}, r"recording\.seed: stored 3, now 4"),
    ):
        with pytest.raises(InputError, match=f"{message}.*, or remove the file to begin anew"):
            record(recording(tmp_path, **change))
    assert part.read_bytes() == lines and lines.count(b"\n") == 6
    with part.open("ab") as file:  # what a kill leaves of a line
        file.write(b'{"route":[0,')
    told: list[int] = []
    table = record(settings, lambda done, total, what: told.append(done))
    assert told[0] == 6 and len(table) == 30
    broken = lines.replace(b'"outcome":"', b'"outcome":"X', 1)
    settings.out.unlink()
    part.write_bytes(broken)
    with pytest.raises(StorageError, match=r"t\.jsonl\.part, line 2 is not as it was written"):
        record(settings)


def test_two_recordings_of_one_table(tmp_path: Path, quick_workers: None) -> None:
    settings = recording(tmp_path)

    def look(done: int, total: int, what: str) -> None:
        with pytest.raises(StorageError, match=r"t\.jsonl is being recorded by process \d+"):
            TablePart(settings.out, load_table(part_path(settings.out), unfinished=True).settings)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(settings, look)


def test_a_reference_that_cannot_be_measured(tmp_path: Path, quick_workers: None) -> None:
    settings = recording(tmp_path)
    tune = replace(settings.tune, tolerances=("1e-30",))
    with pytest.raises(InputError, match="toleran"):
        record(replace(settings, tune=tune))
    assert not part_path(settings.out).exists() and not settings.out.exists()


def test_bad_numbers(tmp_path: Path, quick_workers: None) -> None:
    for change, message in (
        ({"routes": 1}, "--routes is 1; it must be 2 or more"),
        ({"rounds": 7}, "--rounds is 7; it must be 8 or more"),
        ({"builds": 2}, "--builds is 2; it must be 3 or more"),
        ({"several": 1}, "--several is 1"),
        ({"name": "none/t.jsonl"}, "does not exist; make it first"),
        ({"routes": 10**9}, "the space has .* routes; give `all`"),
        ({"routes": None}, "more than the 1,048,576 that are recorded as a whole"),
    ):
        with pytest.raises(InputError, match=message):
            record(recording(tmp_path, **change))
    assert [p.name for p in tmp_path.iterdir() if "t.jsonl.part" in p.name] == []


def test_a_folder_that_may_not_be_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match=r"the folder .* may not be written in; give --out another path"):
        recording(tmp_path)


def test_draws_are_distinct_and_depend_on_the_seed_alone() -> None:
    for spec in (SPEC, {"family": "sparse", "seed": 1, "knobs": 60}):
        space = landscape_of(spec).space
        one, again, other = (routes_to_record(space, 50, seed) for seed in (0, 0, 1))
        assert len({c.tobytes() for c in one}) == 50 and one[0].tolist() == space.default.tolist()
        assert np.array_equal(one, again) and not np.array_equal(one, other)
    small = landscape_of({"family": "dense", "seed": 1, "knobs": 6}).space
    assert len({c.tobytes() for c in routes_to_record(small, None, 0)}) == small.size
