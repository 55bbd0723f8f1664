from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gpt_search.domain.errors import InputError
from gpt_search.store.location import locate

ONNX_HEAD = b"\x08\x08\x12\x07pytorch\x1a\x0513.0\n"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.mark.parametrize(
    ("storage", "path", "records"),
    [
        ("./gpt_search.journal", "gpt_search.journal", "gpt_search.records"),
        ("/a/b.c/study.log", "/a/b.c/study.log", "/a/b.c/study.records"),
        ("plain", "plain", "plain.records"),
        ("journal:///a/x.journal", "/a/x.journal", "/a/x.records"),
        ("journal://x.journal", "x.journal", "x.records"),
        ("JOURNAL://x y.journal", "x y.journal", "x y.records"),
    ],
)
def test_journal_files(storage: str, path: str, records: str) -> None:
    found = locate(storage)
    assert (found.is_journal, found.path, found.records) == (True, Path(path), Path(records))


def test_database_urls() -> None:
    found = locate("sqlite:////a/study.db")
    assert (found.url, found.path, found.records) == (
        "sqlite:////a/study.db",
        Path("/a/study.db"),
        Path("/a/study.records"),
    )
    assert locate("sqlite:///study.db").path == Path("study.db")
    assert locate("sqlite+pysqlite:///study.db").path == Path("study.db")


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("sqlit:///x.db", "did you mean 'sqlite'"),
        ("redis://host", "unknown storage scheme 'redis'"),
        ("https://host/x", "unknown storage scheme 'https'"),
        ("sqlite://", "in memory only"),
        ("sqlite:///:memory:", "in memory only"),
        ("sqlite+nodriver:///x.db", "not a database URL"),
        ("journal://", "names no file"),
        ("", "names no file"),
    ],
)
def test_storages_that_cannot_be(storage: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        locate(storage)
    assert "\n" not in str(caught.value)


def test_passwords_are_not_shown() -> None:
    for storage in (
        "oracle+oracledb://me:secret@host/db",
        "mssql+nodriver://me:secret@host/db",
        "mysql://me:secret@host:x/d",
    ):
        try:
            shown = locate(storage).shown
        except InputError as error:
            shown = str(error)
        assert "secret" not in shown


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"hello", PNG, ONNX_HEAD, b"{}\n", b'{"kind":"evaluation"}\n', b"\n", b"[1]\n", b' {"op_code":0}\n'],
)
@pytest.mark.parametrize("storage", ["{}", "journal://{}", "sqlite:///{}"])
def test_a_file_of_another_kind_is_refused_and_kept(tmp_path: Path, content: bytes, storage: str) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a study database|not an SQLite database") as caught:
        locate(storage.format(path)).check(must_exist=False)
    assert "untouched" in str(caught.value) and str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_folders_and_missing_places(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        locate(tmp_path).check(must_exist=False)
    with pytest.raises(InputError, match="does not exist"):
        locate(tmp_path / "no" / "x.journal").check(must_exist=False)
    with pytest.raises(InputError, match="there is no study database"):
        locate(tmp_path / "x.journal").check(must_exist=True)
    with pytest.raises(InputError, match="there is no study database"):
        locate(f"sqlite:///{tmp_path}/x.db").check(must_exist=True)
    with pytest.raises(InputError, match="not a regular file"):
        locate("/dev/null").check(must_exist=False)
    locate(tmp_path / "x.journal").check(must_exist=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("storage", [".", "..", "/", "journal://.", "journal://a/..", "sqlite:///.", "sqlite:////"])
def test_what_can_only_be_a_folder(storage: str) -> None:
    with pytest.raises(InputError, match=r"is a folder; --storage takes|--storage .* lives in memory only"):
        locate(storage)


def test_the_home_of_nobody() -> None:
    with pytest.raises(InputError, match="--storage '~no-such-user/x': there is no home folder '~no-such-user'"):
        locate("~no-such-user/x")


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.journal"
    path.write_text("")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(InputError, match=r"cannot read the study database .*x\.journal: Permission denied"):
        locate(path).check(must_exist=True)


def test_the_two_kinds_are_told_apart(tmp_path: Path) -> None:
    database, journal = tmp_path / "x.db", tmp_path / "x.journal"
    sqlite3.connect(database).execute("CREATE TABLE studies (x)").connection.close()
    journal.write_text('{"op_code":0}\n')
    with pytest.raises(InputError, match="use --storage sqlite:///"):
        locate(database).check(must_exist=False)
    with pytest.raises(InputError, match=r"it is a journal file: use --storage .*x\.journal"):
        locate(f"sqlite:///{journal}").check(must_exist=False)
    locate(f"sqlite:///{database}").check(must_exist=True)
    locate(journal).check(must_exist=True)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"without Optuna studies .*'accounts'"):
        locate(f"sqlite:///{path}").check(must_exist=False)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", range(12))
def test_a_journal_torn_in_its_first_entry_is_one(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(b'{"op_code":0,"worker_id":"x"}\n'[:size])
    locate(path).check(must_exist=True)
