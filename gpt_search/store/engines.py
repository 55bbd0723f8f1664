"""Engines that are kept beside the records: one file for each, named by the digest of its bytes.

They belong to the latest confirmation (and minimisation) of a study, whose record lines name them. A file
that no such line names is left over from a confirmation that was cut short, or from an earlier one; the
next confirmation removes it. So is the folder, when nothing is left in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from gpt_search.store.files import StorageError, reason, replace_file


class EngineFiles:
    """The kept engines of one study. Only the process that holds the study's lock writes them."""

    def __init__(self, folder: Path) -> None:
        """folder: need not exist."""
        self.folder = folder

    def put(self, data: bytes) -> str:
        """Stores an engine, whole or not at all, and returns its name: the SHA-256 of its bytes, in hexadecimal.

        Equal engines are stored once. Raises StorageError (a full disk).
        """
        name = sha256(data).hexdigest()
        path = self.folder / name
        if path.exists():
            return name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
        except OSError as error:
            raise StorageError(
                f"cannot keep an engine of {len(data)} bytes in {self.folder}: {reason(error)}"
            ) from None
        return name

    def get(self, name: str) -> bytes:
        """The bytes of an engine. Raises StorageError when it is not there, or is not what was stored."""
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read the kept engine {self.folder / name}: {reason(error)}") from None
        if sha256(data).hexdigest() != name:
            raise StorageError(f"the kept engine {self.folder / name} was changed since it was stored")
        return data

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self.folder / name).is_file()

    def remove(self, name: str) -> None:
        """Removes one engine, where it is there. Raises StorageError."""
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot remove the kept engine {self.folder / name}: {reason(error)}") from None

    def keep_only(self, names: Iterable[str]) -> None:
        """Removes every other file of the folder. Raises StorageError."""
        wanted = set(names)
        try:
            if not self.folder.is_dir():
                return
            for path in self.folder.iterdir():
                if path.name not in wanted:
                    path.unlink(missing_ok=True)
            if not wanted:
                self.folder.rmdir()
        except OSError as error:
            raise StorageError(f"cannot remove kept engines in {self.folder}: {reason(error)}") from None
