"""Stable digests of JSON-like values and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def digest_of(value: Any) -> str:
    """SHA-256 (hex, 64 characters) of a JSON-like value; independent of dictionary order.

    Raises ValueError for NaN and infinity, TypeError for what JSON does not know.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """SHA-256 (hex) of a file's bytes. Raises OSError when it cannot be read."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
