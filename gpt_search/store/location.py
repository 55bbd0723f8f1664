"""Where a study database lies: journal file or Optuna URL, checked before anything is written."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.store.files import StorageError, reason
from gpt_search.store.records import safe_name

DEFAULT_STORAGE = "./gpt_search.journal"

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+._-]*)://(.*)$", re.DOTALL)
_DIALECTS = ("journal", "sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql")
_JOURNAL_HEAD = b'{"op_code":'
_SQLITE_HEAD = b"SQLite format 3\0"
_ALLOWED = "a path or journal://PATH for a journal file, or an Optuna URL such as sqlite:///study.db"


@dataclass(frozen=True)
class Location:
    """One study database.

    shown: how messages name it, without a password. url: None for a journal file. path: the file,
    None for a database server. records: the folder of its record files.
    """

    shown: str
    url: str | None
    path: Path | None
    records: Path

    def record_file(self, study: str) -> Path:
        """The record file of a study. Raises InputError for a name that cannot be one."""
        return self.records / f"{safe_name(study)}.jsonl"

    @property
    def is_journal(self) -> bool:
        """True for a journal file."""
        return self.url is None

    def check(self, must_exist: bool) -> None:
        """Raises InputError when this cannot be, or become, a study database; writes nothing."""
        if self.path is None:
            return
        if not self.path.parent.is_dir():
            raise InputError(f"cannot use {self.shown} as study database: the folder {self.path.parent} does not exist")
        try:
            if self.path.is_dir():
                raise InputError(f"{self.path} is a folder; --storage takes {_ALLOWED}")
            if not self.path.exists():
                if must_exist:
                    raise InputError(f"there is no study database at {self.shown}; `gpt-search tune` makes one")
                if not os.access(self.path.parent, os.W_OK | os.X_OK):
                    raise InputError(
                        f"cannot use {self.shown} as study database: the folder {self.path.parent} may not be written "
                        "in; give --storage another path"
                    )
                return
            if not self.path.is_file():
                raise InputError(f"{self.path} is not a regular file; --storage takes {_ALLOWED}")
            with self.path.open("rb") as file:
                head = file.read(len(_SQLITE_HEAD))
        except OSError as error:
            raise StorageError(f"cannot read the study database {self.shown}: {reason(error)}") from None
        if self.is_journal:
            self._check_journal(head)
        else:
            self._check_sqlite(head)

    def _check_journal(self, head: bytes) -> None:
        if head.startswith(_JOURNAL_HEAD) or _JOURNAL_HEAD.startswith(head):
            return  # the latter: empty, or torn within its first entry
        if head == _SQLITE_HEAD:
            raise InputError(
                f"{self.path} is an SQLite database, not a journal file; use --storage sqlite:///{self.path}"
            )
        raise InputError(
            f"{self.path} is not a study database (its first line is no journal entry); it was left untouched. "
            "Give --storage a new path, or one written by gpt-search or Optuna"
        )

    def _check_sqlite(self, head: bytes) -> None:
        if not head:
            return
        if head != _SQLITE_HEAD:
            hint = f"; it is a journal file: use --storage {self.path}" if head.startswith(_JOURNAL_HEAD) else ""
            raise InputError(f"{self.path} is not an SQLite database; it was left untouched{hint}")
        # Not mode=ro: a database whose writer was killed has to be rolled back before it can be read.
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=rw", uri=True)) as database:
                tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        except sqlite3.Error as error:
            raise InputError(f"cannot read the SQLite database {self.path}: {error}") from None
        if tables and "studies" not in tables:
            raise InputError(
                f"{self.path} is an SQLite database without Optuna studies (it has the table "
                f"{sorted(tables)[0]!r}); it was left untouched. Give --storage another path"
            )


def locate(storage: str | Path) -> Location:
    """The study database that `--storage` names: a path, `journal://PATH`, or an Optuna URL.

    Raises InputError for an unknown scheme, a database driver that is not installed, and a
    database in memory.
    """
    text = str(storage)
    match = _SCHEME.match(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("journal", text)
    if scheme == "journal":
        if not rest:
            raise InputError(f"--storage {text!r} names no file; it takes {_ALLOWED}")
        return Location(rest, None, *_files(_expanded(rest)))
    return _locate_url(text, scheme)


def _locate_url(text: str, scheme: str) -> Location:
    dialect = scheme.partition("+")[0]
    if dialect not in _DIALECTS:
        raise InputError(
            f"unknown storage scheme {scheme!r}{did_you_mean(dialect, _DIALECTS)} (--storage takes {_ALLOWED})"
        )
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(text)
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise InputError(f"--storage {_masked(text)!r} is not a database URL; it takes {_ALLOWED}") from None
    except ImportError as error:
        raise InputError(
            f"the driver for {scheme!r} is not installed ({error}); install it, or use a journal file"
        ) from None
    shown = url.render_as_string(hide_password=True)
    if dialect != "sqlite":
        return Location(shown, text, None, Path("gpt_search.records"))
    if not url.database or url.database == ":memory:":
        raise InputError(
            f"--storage {text!r} lives in memory only and cannot be resumed; name a file: sqlite:///study.db"
        )
    if url.database.startswith("file:"):
        raise InputError(f"--storage {text!r}: SQLite's file: form is not supported; use sqlite:///PATH")
    return Location(shown, text, *_files(Path(url.database)))


def _expanded(text: str) -> Path:
    """A path with its `~` replaced. Raises InputError for the home of a user that there is not."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"--storage {text!r}: there is no home folder {text.partition('/')[0]!r}") from None


def _files(path: Path) -> tuple[Path, Path]:
    """The file of a database, and the folder of its records. Raises InputError for `.`, `..` and `/`."""
    if path.name in ("", ".."):
        raise InputError(f"{path} is a folder; --storage takes {_ALLOWED}")
    return path, path.with_suffix(".records")


def _masked(text: str) -> str:
    """A URL that cannot be parsed, with what may be a password left out."""
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", text, flags=re.DOTALL)
