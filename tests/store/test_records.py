from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_cases import KILLED, full_disk, in_child, no_fsync, script, timed

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Phase
from gpt_search.store.files import StorageError
from gpt_search.store.records import Confirmation, Line, Minimisation, Record, RecordFile, read_records, safe_name

__all__ = ["no_fsync"]  # a fixture

KEY = {"workload": "w", "database": "d", "route": "r", "environment": "e", "protocol": "p"}


def record(trial: int, evaluation: Evaluation, until: Phase = Phase.TIME) -> Record:
    return Record("s", "id", trial, KEY, "-fuse=1", until, evaluation, "2026-01-01T00:00:00.000+00:00", 1.5 * trial)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400)


@given(names, names)
@example("a/b", "a%2Fb")
@example(".", "..")
@example("x" * 200, "x" * 201)
@example("x" * 201, "x" * 202)
@example("é" * 100, "é" * 101)
def test_safe_names_are_file_names_without_collisions(one: str, two: str) -> None:
    first, second = f"{safe_name(one)}.jsonl", f"{safe_name(two)}.jsonl"
    for name in (first, second):
        assert Path(name).name == name and not name.startswith(".") and len(name) <= 255 and name.isascii()
    assert (first == second) == (one == two)


def test_ordinary_names_stay_readable() -> None:
    assert safe_name("bert-random_s0.1") == "bert-random_s0.1"
    assert safe_name("a b/c") == "a%20b%2Fc"


@pytest.mark.parametrize("name", ["", "a\ud800"])
def test_names_that_cannot_be_stored_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="study name"):
        safe_name(name)


def test_every_kind_of_evaluation_comes_back_equal(tmp_path: Path) -> None:
    lines: list[Line] = [record(i, e, until) for i, (_, until, e) in enumerate(script())]
    lines.insert(2, Confirmation("s", "id", {"speedup": [1.0, 1.1], "verdict": "fäster"}))
    lines.insert(5, Minimisation("s", "id", {"route": "-a=1", "kept": []}))
    with RecordFile(tmp_path / "deep" / "er" / "s.jsonl", "s") as file:
        for line in lines:
            file.append(line)
        assert [x.to_json() for x in file.read()] == [x.to_json() for x in lines]  # NaN is never equal to itself
    text = (tmp_path / "deep" / "er" / "s.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert [json.loads(line)["kind"] for line in text.splitlines()].count("evaluation") == len(script())


def test_a_line_torn_at_any_byte_is_trimmed(tmp_path: Path, no_fsync: None) -> None:
    path = tmp_path / "s.jsonl"
    with RecordFile(path, "s") as file:
        file.append(record(0, timed(1.0)))
        whole = path.stat().st_size
        file.append(record(1, timed(2.0)))
    full = path.read_bytes()
    for size in range(whole, len(full)):
        path.write_bytes(full[:size])
        assert [r.trial for r in read_records(path) if isinstance(r, Record)] == [0], "a reader leaves it out"
        assert path.stat().st_size == size, "and in place"
        with RecordFile(path, "s") as file:
            assert file.trimmed == size - whole
            file.append(record(2, timed(3.0)))
            assert [r.trial for r in file.read() if isinstance(r, Record)] == [0, 2]


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"not json\n", b"[]\n", b"\x00\xff\n", b'{"kind":"evaluation"}\n', b'{"kind":"x"}\n', b"\n"]
)
@pytest.mark.parametrize("after", [b"", b"more"])
def test_a_broken_line_is_named(tmp_path: Path, damage: bytes, after: bytes) -> None:
    path = tmp_path / "s.jsonl"
    with RecordFile(path, "s") as file:
        file.append(record(0, timed(1.0)))
    path.write_bytes(path.read_bytes() + damage + after)
    content = path.read_bytes()
    with pytest.raises(StorageError, match=r"s\.jsonl, line 2 is not a record") as caught:
        list(read_records(path))
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_loses_nothing(tmp_path: Path, room: int) -> None:
    path = tmp_path / "s.jsonl"
    with RecordFile(path, "s") as file:
        file.append(record(0, timed(1.0)))
        before = path.read_bytes()
        with full_disk(path, room), pytest.raises(StorageError, match=r"cannot write the records .*as it was before"):
            file.append(record(1, timed(2.0)))
        assert path.read_bytes() == before
        file.append(record(1, timed(2.0)))
    assert [r.trial for r in read_records(path) if isinstance(r, Record)] == [0, 1]


def test_a_tiny_file_system_that_is_full(tmp_path: Path) -> None:
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("only root can mount a tmpfs")
    if os.spawnv(os.P_WAIT, mount, ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]):
        pytest.skip("mounting is not allowed here")
    try:
        with RecordFile(tmp_path / "s.jsonl", "s") as file:
            with pytest.raises(StorageError, match="No space left on device"):
                for trial in range(1000):
                    file.append(record(trial, timed(float(trial))))
            kept = [r.trial for r in file.read() if isinstance(r, Record)]
            assert kept == list(range(trial)) and kept
    finally:
        os.spawnv(os.P_WAIT, umount, ["umount", str(tmp_path)])


def test_one_study_one_process(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with RecordFile(path, "my study") as file:
        file.append(record(0, timed(1.0)))
        with pytest.raises(StorageError, match=f"study 'my study' is being run by (process {os.getpid()}|another)"):
            RecordFile(path, "my study")
        assert len(list(read_records(path))) == 1, "readers need no lock"
    with RecordFile(path, "my study"):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    path, ready = tmp_path / "s.jsonl", tmp_path / "ready"
    pid = os.fork()
    if pid == 0:
        file = RecordFile(path, "s")
        file.append(record(0, timed(1.0)))
        ready.touch()
        time.sleep(60)
        os._exit(1)
    while not ready.exists():
        time.sleep(0.005)
    with pytest.raises(StorageError, match=f"process {pid}|another process"):
        RecordFile(path, "s")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with RecordFile(path, "s") as file:
        assert len(list(file.read())) == 1


def test_a_worker_that_outlives_a_killed_study_does_not_hold_its_lock(tmp_path: Path) -> None:
    def study() -> None:
        file = RecordFile(tmp_path / "s.jsonl", "s")
        file.append(record(0, timed(1.0)))
        worker = subprocess.Popen(["sleep", "60"])  # returns when the program runs, its descriptors closed
        (tmp_path / "worker").write_text(str(worker.pid))
        os._exit(KILLED)

    assert in_child(study) == KILLED
    worker = int((tmp_path / "worker").read_text())
    try:
        os.kill(worker, 0)
        RecordFile(tmp_path / "s.jsonl", "s").close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_an_unused_file_is_removed(tmp_path: Path) -> None:
    RecordFile(tmp_path / "s.jsonl", "s").close()
    assert not (tmp_path / "s.jsonl").exists()


def test_a_closed_file_cannot_be_written(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "s.jsonl", "s")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(record(0, timed(1.0)))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot open the records"):
        RecordFile(tmp_path / "file" / "s.jsonl", "s")
    with pytest.raises(StorageError, match="cannot read the records"):
        list(read_records(tmp_path / "missing.jsonl"))
