"""Measured noise floors: one small JSON file each, beside the records, found by what they hold for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt_search.domain.digest import digest_of
from gpt_search.domain.json_text import parse_json
from gpt_search.store.files import StorageError, reason, replace_file
from gpt_search.store.location import Location

_FORMAT = 1


def floor_path(location: Location, key: Mapping[str, str]) -> Path:
    """The file of the floor with that key: digests of workload, environment, protocol and whatever else must fit."""
    return location.records / "noise" / f"{digest_of(dict(key))[:16]}.json"


def save_floor(location: Location, key: Mapping[str, str], data: Mapping[str, Any]) -> Path:
    """Stores a floor, whole or not at all, in place of an older one with the same key; returns its path.

    data: JSON-like. Raises StorageError when it cannot be written.
    """
    path = floor_path(location, key)
    text = json.dumps({"format": _FORMAT, "key": dict(key), "floor": dict(data)}, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise StorageError(f"cannot write the noise floor {path}: {reason(error)}") from None
    return path


def find_floor(location: Location, key: Mapping[str, str]) -> dict[str, Any] | None:
    """The stored floor with exactly that key, None where there is none.

    Raises StorageError for a file that cannot be read, or is not a floor of this version.
    """
    path = floor_path(location, key)
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise ValueError(f"format {found['format']}, this version reads {_FORMAT}")
        return dict(found["floor"]) if found["key"] == dict(key) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read the noise floor {path}: {reason(error)}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is not a noise floor ({type(error).__name__}: {error}); remove it, or measure it again with "
            "`gpt-search noise`"
        ) from None
