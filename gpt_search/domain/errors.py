"""Errors that are the user's to fix, and the helper that suggests the name they meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from the user: one clear message, shown without a traceback (exit code 2).

    The message says what was received, what is allowed and what to do.
    """


class StrategyError(RuntimeError):
    """A strategy broke its contract: a route outside the space, a pending route, a wrong type."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to `name`, or None when none is close."""
    by_folded = {a.casefold(): a for a in allowed}
    if name.casefold() in by_folded:
        return by_folded[name.casefold()]
    found = difflib.get_close_matches(name.casefold(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or the empty string: to be appended to a message."""
    near = nearest(name, allowed)
    return f"; did you mean {near!r}?" if near is not None else ""


def listing(names: Iterable[str], limit: int = 12) -> str:
    """Names for an error message, cut after `limit` with the number left out."""
    items = list(names)
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown}, ... ({len(items) - limit} more)"
