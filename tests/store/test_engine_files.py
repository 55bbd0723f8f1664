"""Engines that are kept beside the records."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from gpt_search.store.engines import EngineFiles
from gpt_search.store.files import StorageError


def test_an_engine_is_named_by_its_bytes_and_stored_once(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path / "study.engines")
    name = files.put(b"engine")
    assert name == sha256(b"engine").hexdigest() == files.put(b"engine")
    assert files.get(name) == b"engine" and name in files and "other" not in files and None not in files
    assert [p.name for p in files.folder.iterdir()] == [name]


def test_only_what_is_named_stays(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path / "study.engines")
    files.keep_only(["nothing"])  # there is no folder yet
    names = [files.put(data) for data in (b"a", b"b", b"c")]
    (files.folder / ".torn.123").write_bytes(b"half")  # of a process that was killed
    files.remove(names[2])
    files.remove(names[2])
    files.keep_only(names[1:])
    assert [p.name for p in files.folder.iterdir()] == [names[1]]
    files.keep_only([])
    assert not files.folder.exists()


def test_what_was_changed_or_is_gone_is_not_given_out(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path / "study.engines")
    name = files.put(b"engine")
    (files.folder / name).write_bytes(b"enginE")
    with pytest.raises(StorageError, match="was changed since it was stored"):
        files.get(name)
    files.remove(name)
    with pytest.raises(StorageError, match="cannot read the kept engine"):
        files.get(name)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = EngineFiles(tmp_path / "study.engines")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match=r"cannot keep an engine of 6 bytes in .*No space left on device"):
        files.put(b"engine")
    assert list(files.folder.iterdir()) == []
