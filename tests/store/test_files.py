from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_cases import full_disk

from gpt_search.store import files


def opened(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return os.open(path, os.O_RDWR | os.O_APPEND)


@pytest.mark.parametrize("room", [0, 1, 17, 4095])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, room: int) -> None:
    path = tmp_path / "x"
    fd = opened(path, b"first\n")
    with full_disk(path, room), pytest.raises(OSError, match="too large"):
        files.append(fd, b"y" * 8000 + b"\n")
    assert path.read_bytes() == b"first\n"
    files.append(fd, b"second\n")
    assert path.read_bytes() == b"first\nsecond\n"
    os.close(fd)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = opened(tmp_path / "x", b"")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    files.append(fd, b"0123456789\n")
    assert (tmp_path / "x").read_bytes() == b"0123456789\n"
    os.close(fd)


def test_a_failing_fsync_takes_the_line_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = opened(tmp_path / "x", b"first\n")

    def fsync(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        files.append(fd, b"second\n")
    assert (tmp_path / "x").read_bytes() == b"first\n"
    files.append(fd, b"second\n", sync=False)
    assert (tmp_path / "x").read_bytes() == b"first\nsecond\n"
    os.close(fd)


def test_what_another_writer_appended_is_not_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    fd = opened(path, b"")

    def fsync(fd: int) -> None:
        with path.open("ab") as other:
            other.write(b"theirs\n")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        files.append(fd, b"ours\n")
    assert path.read_bytes() == b"ours\ntheirs\n"
    os.close(fd)


def test_an_interrupted_but_complete_append_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = opened(tmp_path / "x", b"")

    def fsync(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        files.append(fd, b"line\n")
    assert (tmp_path / "x").read_bytes() == b"line\n"
    os.close(fd)


@given(st.binary(max_size=60), st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"")), st.integers(1, 70))
def test_the_torn_tail_is_what_follows_the_last_line_end(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, tail: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "x"
    whole = head + b"\n" if head else b""
    fd = opened(path, whole + tail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BLOCK", block)
        assert files.torn_tail(fd) == len(tail)
        assert files.trim_torn_tail(fd) == len(tail)
        assert files.trim_torn_tail(fd) == 0
    assert path.read_bytes() == whole
    os.close(fd)


def test_the_lock_holder_is_named(tmp_path: Path) -> None:
    fd = opened(tmp_path / "x", b"")
    if not Path("/proc/locks").exists():
        pytest.skip("this system has no /proc/locks")
    assert files.lock_holder(fd) is None
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert files.lock_holder(fd) == os.getpid()
    os.close(fd)


def test_a_new_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "route.txt"
    with full_disk(path, 10), pytest.raises(files.StorageError, match=r"cannot write .*route\.txt"):
        files.write_new_file(path, b"x" * 100)
    assert list(tmp_path.iterdir()) == []
    files.write_new_file(path, b"x" * 100)
    with pytest.raises(files.StorageError, match="it exists already; choose another name"):
        files.write_new_file(path, b"y")
    assert path.read_bytes() == b"x" * 100 and list(tmp_path.iterdir()) == [path]
    with pytest.raises(files.StorageError, match="it is a folder; give the name of the file"):
        files.write_new_file(tmp_path, b"y")
    with pytest.raises(files.StorageError, match=r"cannot write .*: Not a directory"):
        files.write_new_file(path / "below a file", b"y")
