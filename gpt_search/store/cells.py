"""Cells of an experiment: what one study of a comparison did, as arrays, and the file it is kept in.

One cell, one file: written whole or not at all, so that an experiment that was stopped goes on with the cells it lacks.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt_search.domain.budget import row_at
from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.outcome import Outcome
from gpt_search.store.files import reason, write_new_file

FORMAT = "gpt_search cell 1"
NONE, NOT_COMPUTED = -1, -2
"""In `Cell.recommended`: nothing is recommended; what would be was not worked out."""

_COLUMNS: dict[str, type] = {
    "trial": np.int32,
    "builds": np.int32,
    "seconds": np.float64,
    "outcome": np.int8,
    "until": np.int8,
    "value": np.float64,
    "truth": np.float64,
    "route": np.int32,
    "recommended": np.int32,
    "timed": np.int8,
}
_CHECKED = ("format", "task", "strategy", "seed", "facts", "columns")
"""The keys that the checksum is over."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One study of an experiment: task, strategy, seed. Arrays of n rows in completion order, row 0 the reference.

    task: its name. strategy: its name in the experiment, by default the spec. seed: the repeat's.
    trial int32, trial numbers; builds int32 and seconds float64, charged so far, the row included; outcome int8,
    `Outcome`; until int8, `Phase`; value float64, ms, NaN where none; truth float64, the true log(latency / reference)
    of the row's route, NaN where unknown or infeasible; route int32, distinct routes by first appearance;
    recommended int32, the row that the strategy recommends once this row is there, NONE (-1) where it recommends
    none, NOT_COMPUTED (-2) where it was not asked; timed int8, 1 where this row's own engine was timed (by default
    every row with a value).

    facts: "best", the true log-ratio of the task's best feasible route, or None; "best_known", whether that is a fact
    or the best of what was seen; "floor", the relative noise floor; "reference_ms"; "n_routes", routes of the space
    or rows of the table; "builds_behind", independent builds that the cell's values rest on, None where they are
    simulated; "checkpoints", by axis the budgets after whose last row `recommended` is known.
    """

    task: str
    strategy: str
    seed: int
    trial: NDArray[np.int32]
    builds: NDArray[np.int32]
    seconds: NDArray[np.float64]
    outcome: NDArray[np.int8]
    until: NDArray[np.int8]
    value: NDArray[np.float64]
    truth: NDArray[np.float64]
    route: NDArray[np.int32]
    recommended: NDArray[np.int32]
    facts: Mapping[str, Any] = field(default_factory=dict)
    timed: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))

    def __post_init__(self) -> None:
        """Gives the arrays their types. Raises ValueError for arrays of different lengths, or without the reference."""
        if not np.size(self.timed):  # not given
            object.__setattr__(self, "timed", ~np.isnan(np.asarray(self.value, np.float64)))
        for name, kind in _COLUMNS.items():
            column: NDArray[Any] = np.asarray(getattr(self, name), kind)
            if column.ndim != 1 or column.shape != np.shape(self.trial) or not column.size:
                raise ValueError(f"column {name!r} of a cell has shape {column.shape}, 'trial' {np.shape(self.trial)}")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """bool (n,): rows that may be recommended, with a value and outcome OK."""
        feasible: NDArray[np.bool_] = (self.outcome == Outcome.OK) & ~np.isnan(self.value)
        return feasible

    def row_at(self, axis: str, budgets: ArrayLike) -> NDArray[np.intp]:
        """See `domain.budget.row_at`, for this cell."""
        return row_at(axis, self.builds, self.seconds, budgets)


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """A JSON form without NaN (null); `cell_from_json` gives back an equal cell, to the last bit."""
    columns = {name: _listed(getattr(cell, name)) for name in _COLUMNS}
    form = {
        "format": FORMAT,
        "task": cell.task,
        "strategy": cell.strategy,
        "seed": cell.seed,
        "facts": dict(cell.facts),
        "columns": columns,
    }
    return form | {"check": digest_of(form)}


def cell_from_json(form: Mapping[str, Any]) -> Cell:
    """The cell that `cell_to_json` described. Raises InputError for another form."""
    try:
        if form["format"] != FORMAT:
            raise InputError(f"a cell has the format {form['format']!r}; this version reads {FORMAT!r}")
        if form["check"] != digest_of({name: form[name] for name in _CHECKED}):
            raise InputError("its checksum does not fit, so it was changed")
        columns: dict[str, Any] = {name: np.asarray(form["columns"][name], kind) for name, kind in _COLUMNS.items()}
        return Cell(str(form["task"]), str(form["strategy"]), int(form["seed"]), facts=dict(form["facts"]), **columns)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is no cell of an experiment: {type(error).__name__}: {error}") from None


def file_name(task: str, strategy: str, seed: int) -> str:
    """The name of a cell's file: readable, and different for every cell."""
    words = (re.sub(r"[^A-Za-z0-9.=,_+-]+", "_", word)[:40] for word in (task, strategy))
    digest = hashlib.sha256(f"{task}\0{strategy}\0{seed}".encode()).hexdigest()[:8]
    return f"{'-'.join(words)}-{seed}-{digest}.json"


def write_cell(folder: Path, cell: Cell, run: Mapping[str, Any] | None = None) -> Path:
    """Writes a cell into its file and returns the path. run: what is not part of the result (wall time).

    Raises StorageError when the file is there already or cannot be written.
    """
    path = folder / file_name(cell.task, cell.strategy, cell.seed)
    form = cell_to_json(cell) | {"run": dict(run or {})}
    write_new_file(path, json.dumps(form, separators=(",", ":"), allow_nan=False).encode() + b"\n")
    return path


def load_cells(folder: str | Path) -> list[Cell]:
    """The finished cells of an experiment, by task, strategy and seed. folder: the experiment's, or its `cells`.

    Raises InputError where there are none, or a file is not a cell.
    """
    given = Path(folder)
    where = given / "cells" if (given / "experiment.json").is_file() else given
    paths = sorted(where.glob("[!.]*.json"))
    if not paths:
        raise InputError(
            f"there are no cells of an experiment in {where}; make some: gpt-search compare FILE --out DIR"
        )
    return sorted((_load(path) for path in paths), key=lambda c: (c.task, c.strategy, c.seed))


def _load(path: Path) -> Cell:
    try:
        form = parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from None
    except ValueError:
        raise InputError(f"{path} is no JSON; remove it and run the experiment again") from None
    try:
        return cell_from_json(form)
    except InputError as error:
        raise InputError(f"{path}: {error}; remove it and run the experiment again") from None


def _listed(column: NDArray[Any]) -> list[Any]:
    values: Iterable[Any] = column.tolist()
    if column.dtype.kind != "f":
        return list(values)
    return [None if math.isnan(x) else x for x in values]
