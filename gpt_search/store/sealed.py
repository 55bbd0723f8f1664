"""Sealed lines: JSON objects, one a line, each with a checksum over itself and everything before it.

A line that was changed, removed, added or moved breaks the chain at a line that can be named; the last line says that
it is the last, so a file that was cut is found too. Plain text, or compressed with Zstandard where the name ends in
`.zst`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json
from gpt_search.store.files import StorageError, reason

END = "end"
"""The key that only the last line has."""

_KEY = b',"check":"'
_DIGITS = 16
_TAIL = len(_KEY) + _DIGITS + len(b'"}\n')
_LEVEL = 19


class Sealer:
    """Makes sealed lines, one after the other."""

    def __init__(self, check: str = "") -> None:
        """check: that of the line to go on after; empty for a new file."""
        self.check = check

    def seal(self, body: Mapping[str, Any]) -> bytes:
        """One line, with its end. body: JSON-like, with at least one key. Raises ValueError for NaN and infinity."""
        if not body:
            raise ValueError("a sealed line needs at least one key")
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        self.check = _digest(self.check, text)
        return text[:-1] + _KEY + self.check.encode() + b'"}\n'

    def end(self, lines: int) -> bytes:
        """The last line. lines: how many come before it."""
        return self.seal({END: {"lines": lines}})


def _digest(before: str, text: bytes) -> str:
    return sha256(before.encode() + text).hexdigest()[:_DIGITS]


def sealed_file(bodies: Iterable[Mapping[str, Any]]) -> bytes:
    """A whole file of these lines, with its end."""
    sealer = Sealer()
    lines = [sealer.seal(body) for body in bodies]
    lines.append(sealer.end(len(lines)))
    return b"".join(lines)


def compressed(path: Path, data: bytes) -> bytes:
    """What is to be written to `path`: compressed where its name says so. Raises InputError without zstandard."""
    if path.suffix != ".zst":
        return data
    found: bytes = _zstandard(path).ZstdCompressor(level=_LEVEL).compress(data)
    return found


def require_compressor(path: Path) -> None:
    """Raises InputError where `path` asks for a compression that is not installed."""
    if path.suffix == ".zst":
        _zstandard(path)


def read_sealed(path: Path, *, unfinished: bool = False) -> Iterator[tuple[int, dict[str, Any], str]]:
    """The lines before the last one: (line number from 1, body, check).

    unfinished: a file that is still being written: a last line without its end is left out, and nobody says which is
    the last. Raises StorageError naming the first line that is not as it was written, and for a file that was cut or
    cannot be read.
    """
    before, number = "", 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                if unfinished and not line.endswith(b"\n"):
                    return
                text, check = _opened_line(path, number, line, before)
                before = check
                body = parse_json(text)
                if END in body:
                    _check_end(path, number, body[END], file)
                    return
                yield number, body, check
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from None
    except StorageError:
        raise
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise StorageError(f"{path} is no whole Zstandard file ({error}); {_RESTORE}") from None
    if not unfinished:
        what = (
            f"{path} ends after line {number}, and its last line is missing: it was cut"
            if number
            else f"{path} is empty"
        )
        raise StorageError(f"{what}; {_RESTORE}")


_RESTORE = "restore it from a copy"


def _check_end(path: Path, number: int, end: Any, file: IO[bytes]) -> None:
    lines = end.get("lines") if isinstance(end, dict) else None
    if lines != number - 1:
        raise StorageError(f"{path}, line {number}: {lines} lines were written, and {number - 1} are there; {_RESTORE}")
    if file.read(1):
        raise StorageError(f"{path}, line {number + 1} follows the last line; {_RESTORE}")


def _opened_line(path: Path, number: int, line: bytes, before: str) -> tuple[bytes, str]:
    """The JSON text of a line without its check, and the check."""
    tail = line[-_TAIL:]
    if len(line) <= _TAIL or not tail.startswith(_KEY) or not tail.endswith(b'"}\n'):
        what = "is not a line of a table" if number == 1 else "is broken"
        raise StorageError(f"{path}, line {number} {what}: it has no checksum at its end{_hint(number)}")
    text = line[:-_TAIL] + b"}"
    check = tail[len(_KEY) : -len(b'"}\n')].decode("ascii", "replace")
    if _digest(before, text) != check:
        raise StorageError(
            f"{path}, line {number} is not as it was written: it was changed, or a line before it was removed, added "
            f"or moved; {_RESTORE}"
        )
    return text, check


def _hint(number: int) -> str:
    return "; give a file that gpt-search wrote" if number == 1 else f"; {_RESTORE}"


def _opened(path: Path) -> IO[bytes]:
    if path.suffix != ".zst":
        return path.open("rb")
    decompressor = _zstandard(path).ZstdDecompressor()
    return io.BufferedReader(decompressor.stream_reader(path.open("rb"), closefd=True), 1 << 20)


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            f"{path}: a name that ends in .zst needs the package zstandard, which is not installed: "
            "pip install 'gpt-search[zstd]', or leave .zst out"
        ) from None
    return zstandard
