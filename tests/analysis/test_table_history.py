"""A table as a history: every recorded route once, engines once, failures kept."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gpt_search.analysis.report_table import engines_table
from gpt_search.analysis.table_history import recorded_order, table_history, table_losses
from gpt_search.domain.errors import InputError
from gpt_search.domain.landscape import planted
from gpt_search.domain.outcome import Outcome
from gpt_search.run.planted_table import planted_table
from gpt_search.store.tables import Table, load_table

BERT = Path(__file__).parents[2] / "paper" / "data" / "bert.jsonl.zst"
LANDSCAPE = planted("infeasible", "history", 10, noise=0.01)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = tmp_path_factory.mktemp("tables") / "t.jsonl"
    planted_table(path, LANDSCAPE, 300, between=0.004, noise=0.004)
    return load_table(path)


def test_every_route_is_there_once_the_reference_first(table: Table) -> None:
    history = table_history(table)
    assert len(history) == history.n_routes == len(table) == 300
    assert (history.codes[0] == table.space.default).all()
    assert np.array_equal(history.codes, table.codes[recorded_order(table)])
    assert {Outcome(int(o)) for o in history.outcome} > {Outcome.OK}  # failures are there too


def test_values_are_the_landscapes_up_to_noise(table: Table) -> None:
    history = table_history(table)
    feasible = history.feasible
    assert np.array_equal(feasible, np.isfinite(LANDSCAPE.true_log_ratio(history.codes)))
    found = np.log(history.value[feasible] / history.value[0])
    off = found - LANDSCAPE.true_log_ratio(history.codes)[feasible]
    assert np.abs(off).max() < 0.02 and off.std() < 0.006
    assert (history.error[feasible][1:] > 0).all()


def test_equal_engines_share_one_value_and_the_references_is_the_references(table: Table) -> None:
    history = table_history(table)
    feasible = np.flatnonzero(history.feasible)
    for engine in np.unique(history.fingerprint[feasible]):
        rows = feasible[history.fingerprint[feasible] == engine]
        assert len(set(history.value[rows])) == len(set(history.samples[rows])) == 1
        assert history.samples[rows[0]] == history.trial[rows[0]]  # the first has them of its own
    assert history.value[0] == table.reference_ms


def test_engines_are_counted_with_their_routes_and_builds(table: Table) -> None:
    history = table_history(table)
    changes = [str(i) for i in range(len(history))]
    engines = engines_table(table, history, changes)
    assert engines["routes"].sum() == history.feasible.sum()
    assert len(engines) == len(np.unique(history.fingerprint[history.feasible]))
    assert (np.diff(engines["speedup"]) <= 0).all() and list(engines["engine"]) == list(range(1, len(engines) + 1))
    own = engines[engines["changes"] == "0"].iloc[0]
    assert own["speedup"] == own["low"] == own["high"] == own["chosen"] == 1.0
    others = engines[engines["changes"] != "0"]
    assert (others["low"] < others["speedup"]).all() and (others["speedup"] < others["high"]).all()
    truth = {change: float(t) for change, t in zip(changes, LANDSCAPE.true_log_ratio(history.codes), strict=True)}
    inside = [r.low <= math.exp(-truth[str(r.changes)]) <= r.high for r in others.itertuples()]
    assert np.mean(inside) > 0.85


def test_losses_are_shares_of_the_tolerance_in_the_same_order(table: Table) -> None:
    recorded = load_table(BERT)
    losses, tolerance = np.array(table_losses(recorded)), recorded.settings["tolerance"]["default"]
    violation = table_history(recorded).violation
    assert np.allclose(losses * tolerance - tolerance, violation, rtol=1e-9, atol=0) and len(set(losses)) > 2
    assert np.isnan(table_losses(table)).all()  # a planted table has no losses


def test_a_table_without_its_reference_is_refused(tmp_path: Path) -> None:
    codes = np.array([LANDSCAPE.space.codes_at(i) for i in range(5)], np.int16)
    planted_table(tmp_path / "t.jsonl", LANDSCAPE, codes)
    lines = (tmp_path / "t.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "t.jsonl").write_text(lines[0] + "".join(lines[2:]))
    with pytest.raises(InputError):
        table_history(load_table(tmp_path / "t.jsonl", unfinished=True))
