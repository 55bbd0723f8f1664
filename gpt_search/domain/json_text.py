"""JSON from outside: files that users give, and files of ours that may be damaged."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises ValueError for text that is no JSON, and for JSON that is nested too deeply for Python's parser: that is a
    RecursionError, which no reader of a file expects.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
