"""A small experiment on planted landscapes, to be varied by the tests."""

from __future__ import annotations

from pathlib import Path

TEXT = """
[experiment]
name = "small"
seeds = 2
budget = { builds = 12 }
budgets = [4, 12]

[[task]]
kind = "planted"
family = "sparse"
seeds = [1, 2]
knobs = 12

[[strategy]]
spec = "random"

[[strategy]]
spec = "mixed"
options = { margin = 0.02 }

[statistics]
control = "random"
"""


def write(folder: Path, *changes: tuple[str, str], name: str = "small.toml") -> Path:
    """The experiment's file, with parts of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    return path
