from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import InputError, Outcome, Phase
from gpt_search.analysis.cells import COLUMNS, Cell, cell_from_json, cell_to_json, frame, load_cells
from gpt_search.store.cells import file_name, write_cell

NAN = math.nan


def cell(**other: object) -> Cell:
    """Five rows: the reference, a gain, a failure, a lucky value, a build-only probe."""
    fields: dict[str, object] = {
        "task": "t",
        "strategy": "s:x=1",
        "seed": 3,
        "trial": [0, 1, 2, 3, 4],
        "builds": [0, 1, 2, 3, 4],
        "seconds": [0.0, 10.0, 11.5, 20.0, 22.0],
        "outcome": [Outcome.OK, Outcome.OK, Outcome.CRASH, Outcome.OK, Outcome.OK],
        "until": [Phase.TIME] * 4 + [Phase.BUILD],
        "value": [1.0, 0.95, NAN, 0.94, NAN],
        "truth": [0.0, -0.06, NAN, -0.02, -0.5],
        "route": [0, 1, 2, 3, 4],
        "recommended": [0, 1, 1, 1, -1],
        "facts": {"best": -0.1, "floor": 0.01, "reference_ms": 2.0, "checkpoints": {"builds": [1, 3]}},
    }
    return Cell(**(fields | other))  # type: ignore[arg-type]


def test_a_frame_says_what_was_reached_at_each_budget() -> None:
    table = frame([cell()], "builds", [0, 1, 2, 3, 4, 100])
    assert tuple(table.columns) == COLUMNS
    assert table["task"].dtype == "category" and table["strategy"].dtype == "category"
    assert table["recommended"].tolist()[:4] == [0.0, -0.06, -0.06, -0.06]
    assert table["recommended"].isna().tolist() == [False] * 4 + [True] * 2
    # The build-only probe of the fastest route has no value: it cannot be chosen, so it was not tried.
    assert table["tried"].tolist() == [0.0, -0.06, -0.06, -0.06, -0.06, -0.06]
    assert table["minimum"].tolist() == [0.0, -0.06, -0.06, -0.02, -0.02, -0.02]
    assert table["timed"].tolist() == [0, 1, 1, 2, 2, 2]
    assert table["failures"].tolist() == [0, 0, 1, 1, 1, 1]
    assert set(table["best"]) == {-0.1} and set(table["floor"]) == {0.01} and set(table["reference_ms"]) == {2.0}


def test_seconds_count_what_had_finished_and_builds_stop_at_the_last_one() -> None:
    assert cell().row_at("seconds", [0, 9.9, 10, 11, 30]).tolist() == [0, 0, 1, 1, 4]
    free = cell(builds=[0, 1, 1, 2, 2])
    assert free.row_at("builds", [1, 2, 3]).tolist() == [1, 3, 4]
    assert free.row_at("trials", [2, 9]).tolist() == [2, 4]
    with pytest.raises(InputError, match="not in 'hours'"):
        free.row_at("hours", [1])


def test_budgets_default_to_the_declared_ones() -> None:
    assert frame([cell()])["budget"].tolist() == [1, 3]
    with pytest.raises(InputError, match="no budgets in seconds"):
        frame([cell()], "seconds")


def test_a_recommendation_that_was_not_worked_out_is_an_error_not_a_guess() -> None:
    partly = cell(recommended=[-2, 1, -2, 1, -2])
    assert frame([partly])["recommended"].tolist() == [-0.06, -0.06]
    with pytest.raises(InputError, match="not worked out at 2 builds"):
        frame([partly], "builds", [1, 2])


def test_an_unknown_best_is_nan() -> None:
    assert frame([cell(facts={"best": None, "checkpoints": {"builds": [1]}})])["best"].isna().all()


def test_arrays_must_fit() -> None:
    with pytest.raises(ValueError, match="'value'"):
        cell(value=[1.0])


values = st.floats(allow_nan=True, allow_infinity=False)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_json_gives_back_an_equal_cell_to_the_last_bit(rows: list[tuple[float, float]]) -> None:
    n = len(rows)
    whole = cell(
        **{name: np.zeros(n) for name in ("trial", "builds", "seconds", "outcome", "until", "route", "recommended")},
        value=[v for v, _ in rows],
        truth=[t for _, t in rows],
    )
    back = cell_from_json(json.loads(json.dumps(cell_to_json(whole), allow_nan=False)))
    assert (back.task, back.strategy, back.seed, back.facts) == (whole.task, whole.strategy, whole.seed, whole.facts)
    for name in ("value", "truth", "timed", "trial"):
        a, b = getattr(whole, name), getattr(back, name)
        assert a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)


def test_files_are_read_back_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(InputError, match="no cells"):
        load_cells(tmp_path)
    for seed in (2, 1):
        write_cell(folder, cell(seed=seed))
    assert [c.seed for c in load_cells(tmp_path)] == [c.seed for c in load_cells(folder)] == [1, 2]
    assert file_name("a", "b", 1) != file_name("a", "b!", 1) != file_name("a", "b?", 1)


def test_what_is_no_cell_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cells"):
        load_cells(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match=r"x\.json is no JSON"):
        load_cells(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"x\.json: this is no cell"):
        load_cells(tmp_path)
