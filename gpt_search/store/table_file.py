"""The file of a table: its first line, what all of its lines share, and how it is written (docs/tables.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.statistic import Statistic
from gpt_search.store.files import StorageError, write_new_file
from gpt_search.store.sealed import compressed, sealed_file
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_record import TableRecord

FORMAT = "gpt_search table"
VERSION = 1
MIN_ROUNDS = 4
"""Fewest sections (`measure.paired`) of a timed record: two for the truth, two for replays."""


def environment_digest(settings: StudySettings) -> str:
    """What each line carries of the environment."""
    return settings.digest_of("environment")[:12]


def protocol_of(settings: StudySettings) -> Protocol:
    """The protocol that a table's routes were timed by, and a replay races by; the default one for an import."""
    data = settings.get("protocol")
    return Protocol() if data is None else Protocol.from_json(data)


def statistic_of(settings: StudySettings) -> Statistic:
    """What sums up the samples of a table with these facts."""
    return protocol_of(settings).statistic(tuple(settings.get("weights") or (1.0,)))


def header(settings: StudySettings) -> dict[str, Any]:
    """The first line of a table with these facts (they include `space`, see `StudySettings.with_space`)."""
    return {"format": FORMAT, "version": VERSION, "facts": dict(settings.sections)}


def write_table(path: str | Path, settings: StudySettings, records: Iterable[TableRecord]) -> None:
    """Writes a table whole or not at all; compressed where the name ends in `.zst`.

    Raises InputError for a file that exists, and without zstandard; StorageError where it cannot be written.
    """
    path, environment, statistic = Path(path), environment_digest(settings), statistic_of(settings)
    if path.exists():
        raise InputError(f"{path} exists; choose another name, or remove it")
    bodies = [header(settings), *(record.to_json(environment, statistic) for record in records)]
    write_new_file(path, compressed(path, sealed_file(bodies)))


def read_header(path: Path, line: tuple[int, dict[str, Any], str] | None) -> StudySettings:
    """The facts in a table's first line. Raises StorageError for another line."""
    if line is None:
        raise StorageError(f"{path} has no header; give a file that gpt-search wrote")
    body = line[1]
    if body.get("format") != FORMAT:
        raise StorageError(f"{path}, line 1: format {body.get('format')!r}, expected {FORMAT!r}")
    if body.get("version") != VERSION:
        raise StorageError(
            f"{path} has version {body.get('version')} of the table format, this version of gpt-search reads {VERSION}"
        )
    return StudySettings(body["facts"])
