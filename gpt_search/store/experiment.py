"""The folder of an experiment: what it is of, its finished cells, and those that failed.

DIR/experiment.json   the facts that all cells depend on, with their digest
DIR/cells/*.json      one finished cell each, written whole or not at all
DIR/failed/*.json     cells that failed in the last run, with the reason; they are tried again
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError, listing
from gpt_search.domain.json_text import parse_json
from gpt_search.store.cells import file_name
from gpt_search.store.files import StorageError, lock_holder, reason, replace_file, write_new_file

FORMAT = "gpt_search experiment 1"
_SHOWN = 8


class ExperimentFolder:
    """One experiment's folder. Only `open_folder` makes one."""

    def __init__(self, path: Path) -> None:
        """path: of the folder, which is there."""
        self.path = path
        self.cells = path / "cells"
        self.failed = path / "failed"

    def has(self, task: str, strategy: str, seed: int) -> bool:
        """Whether that cell is finished."""
        return (self.cells / file_name(task, strategy, seed)).is_file()

    def fail(self, task: str, strategy: str, seed: int, error: str) -> None:
        """Records why a cell failed. Raises StorageError."""
        form = {"task": task, "strategy": strategy, "seed": seed, "error": error}
        path = self.failed / file_name(task, strategy, seed)
        path.unlink(missing_ok=True)
        write_new_file(path, json.dumps(form, indent=1).encode() + b"\n")


@contextmanager
def open_folder(path: str | Path, facts: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[ExperimentFolder]:
    """The folder of the experiment with these facts, made where it is not there, held against other processes.

    facts: everything that cells depend on. about: what else readers want to know; it may change from run to run.
    Raises InputError when the folder is of another experiment (with what differs), in use, or not one of an
    experiment; StorageError when it cannot be written.
    """
    folder = ExperimentFolder(Path(path))
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.path, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"cannot use the folder {path}: {reason(error)}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock_holder(lock)
            who = "" if holder is None else f" (process {holder})"
            raise InputError(f"another process{who} is running the experiment in {path}; wait for it") from None
        _settle(folder, facts, about)
        yield folder
    finally:
        os.close(lock)


def check_folder(path: str | Path, facts: Mapping[str, Any]) -> ExperimentFolder | None:
    """The folder, unchanged and not held, for a look at what is finished; None where it is not there.

    Raises InputError when it is of another experiment.
    """
    folder = ExperimentFolder(Path(path))
    if not (folder.path / "experiment.json").is_file():
        return None
    _compare(folder.path, facts)
    return folder


def experiment_facts(path: str | Path) -> dict[str, Any]:
    """What `experiment.json` of a folder holds: "name", "axis", "statistics", "facts" and more. Raises InputError."""
    file = Path(path) / "experiment.json"
    try:
        form = parse_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {file}: {reason(error)}; gpt-search compare FILE --out DIR makes it") from None
    except ValueError:
        raise InputError(f"{file} is no JSON; give the folder of an experiment") from None
    if not isinstance(form, dict) or form.get("format") != FORMAT:
        raise InputError(f"{file} is not of an experiment that this version reads ({FORMAT!r})")
    return form


def _settle(folder: ExperimentFolder, facts: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    file = folder.path / "experiment.json"
    if file.exists():
        _compare(folder.path, facts)
    elif not all(_left_over(path) for path in folder.path.iterdir()):
        raise InputError(f"{folder.path} holds other files, and is no experiment's folder; give an empty or a new one")
    try:
        for made in (folder.cells, folder.failed):
            made.mkdir(exist_ok=True)
            for partial in made.glob(".*"):  # what a killed process left
                partial.unlink(missing_ok=True)
        for partial in folder.path.glob(f".{file.name}.*"):
            partial.unlink(missing_ok=True)
        for old in folder.failed.glob("*.json"):
            old.unlink()
        form = {"format": FORMAT, "digest": digest_of(dict(facts)), **about, "facts": dict(facts)}
        replace_file(file, f"{json.dumps(form, indent=1)}\n".encode())
    except OSError as error:
        raise StorageError(f"cannot write into {folder.path}: {reason(error)}") from None


def _left_over(path: Path) -> bool:
    """What a process leaves that is killed before it has written experiment.json."""
    if path.name in ("cells", "failed"):
        return path.is_dir() and not any(path.iterdir())
    return path.name.startswith(".experiment.json.")


def _compare(path: Path, facts: Mapping[str, Any]) -> None:
    old = experiment_facts(path)
    if old["digest"] == digest_of(dict(facts)):
        return
    found = list(_differences(old["facts"], json.loads(json.dumps(facts)), ""))
    raise InputError(
        f"{path} holds cells of another experiment, and they cannot be mixed. What differs: {listing(found, _SHOWN)}. "
        "Give another --out, or undo the change"
    )


def _differences(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            inner = f"{where}.{key}" if where else str(key)
            if key not in new:
                yield f"{inner} is gone"
            elif key not in old:
                yield f"{inner} is new"
            else:
                yield from _differences(old[key], new[key], inner)
    elif old != new:
        yield f"{where} was {_short(old)}, is {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
