"""The whole summary, as the command and the report call it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from result_tables import simulated, table

from gpt_search.analysis.cells import Cell
from gpt_search.analysis.cells import frame as cells_frame
from gpt_search.analysis.summary import TABLES, summarise_comparison
from gpt_search.analysis.targets import improvements
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome

SHIFTS = {"good": 5.0, "bad": -9.0, "random": 0.0}


def test_a_complete_experiment() -> None:
    frame = simulated(SHIFTS, tasks=12, seeds=20, budgets=[10, 100])
    found = summarise_comparison(frame, "random", budgets=[100])
    assert set(found.tables) == set(TABLES) and found.budgets == (100,)
    assert [(f.strategy, len(f.better) > 8, len(f.worse) > 6) for f in found.findings] == [
        ("bad", False, True),
        ("good", True, False),
    ]
    assert set(found.friedman) == {100} and found.friedman[100].differ("good", "bad")
    assert sum("Nemenyi" in s for s in found.sentences) == 1
    assert len(found.tables["comparisons"]) == 24 and len(found.tables["anytime"]) == 12 * 3 * 2
    assert set(found.tables["ranks"]["budget"]) == {10, 100}  # curves use all budgets of the table
    assert found.tables["sensitivity"].empty and found.tables["best"]["known"].all()
    again = summarise_comparison(frame, "random", budgets=[100])
    assert again.sentences == found.sentences and again.to_markdown() == found.to_markdown()


def test_few_tasks_say_why_there_is_no_test_over_them() -> None:
    found = summarise_comparison(simulated(SHIFTS, tasks=3, seeds=12, budgets=[10, 100]), "random")
    (reason,) = [s for s in found.sentences if "over tasks" in s]
    assert reason.startswith("A test of ranks over tasks needs at least 10 of them; there are 3.")
    assert not found.friedman and found.tables["friedman"].empty
    assert {f.budget for f in found.findings} == {10, 100}


def test_an_unknown_best_is_told() -> None:
    frame = simulated(SHIFTS, tasks=3, seeds=8, best=np.nan)
    found = summarise_comparison(frame, "random")
    assert any("3 of 3 tasks the optimum is unknown" in s for s in found.sentences)
    assert not found.tables["sensitivity"].empty and not found.tables["results"]["best_known"].any()


def test_nothing_to_find() -> None:
    frame = table({(t, s): [0.0] * 8 for t in "tu" for s in "ac"}, best=0.0)
    found = summarise_comparison(frame, "c")
    assert found.tables["running_time"].empty and found.tables["ecdf"].empty
    assert any("2 of 2 tasks (t, u) the best gain does not clear the noise floor" in s for s in found.sentences)
    assert (found.tables["results"]["regret_percent"] == 0).all()
    assert "nan" not in found.to_markdown()


def test_an_unfinished_experiment() -> None:
    frame = simulated(SHIFTS, tasks=3, seeds=12, budgets=[10, 100])
    frame = frame[np.random.default_rng(0).random(len(frame)) > 0.1].reset_index(drop=True)
    found = summarise_comparison(frame, "random")
    assert any("pairs lack a study" in s for s in found.sentences)
    alone = table({("t", "a"): [-0.1, -0.2], ("u", "c"): [-0.1]})
    found = summarise_comparison(alone, "c")
    assert any("There are no average ranks" in s for s in found.sentences)
    assert any("cannot be compared" in s for s in found.sentences)


def test_finer_runs_give_finer_runtimes() -> None:
    frame = simulated({"a": 1, "c": 0}, tasks=2, seeds=3, budgets=[100])
    fine = frame.assign(budget=50.0)
    runs = pd.concat([fine, frame], ignore_index=True)
    found = summarise_comparison(frame, "c", runs=runs).tables["ecdf"]
    assert set(found["budget"]) == {0, 50}


def test_files(tmp_path: Path) -> None:
    frame = simulated({"a|b": 3, "c": 0}, tasks=2, seeds=12)
    found = summarise_comparison(frame, "c", axis="trials")
    paths = found.to_csv(tmp_path / "new" / "statistics")
    assert {p.name for p in paths} == {f"{name}.csv" for name in TABLES} | {"verdicts.md"}
    back = pd.read_csv(tmp_path / "new" / "statistics" / "comparisons.csv")
    assert np.allclose(back["p"], found.tables["comparisons"]["p"]) and back["strategy"].tolist() == ["a|b"] * 2
    text = found.to_markdown()
    assert "a\\|b beats c at 100 trials" in text and paths[-1].read_text(encoding="utf-8") == text
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| budget"))
    bars = {line.replace("\\|", "").count("|") for line in lines[start : start + 4]}
    assert len(bars) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the tables"):
        found.to_csv(tmp_path / "file")


def test_without_a_control_nothing_is_tested_against_it() -> None:
    found = summarise_comparison(simulated(SHIFTS, tasks=10, seeds=6), None)
    assert found.sentences[0].startswith("No control is named") and not found.findings
    assert found.tables["comparisons"].empty and not found.tables["results"].empty and set(found.friedman) == {100}
    assert "beats" not in found.to_markdown()


def test_bad_input() -> None:
    frame = simulated({"tpe": 1, "random": 0}, tasks=2, seeds=3)
    with pytest.raises(InputError, match="did you mean 'random'"):
        summarise_comparison(frame, "Random")
    with pytest.raises(InputError, match="no results at budget 5; it has 100"):
        summarise_comparison(frame, "random", budgets=[5, 100])


def test_from_cells_to_sentences() -> None:
    cells = []
    for strategy, gain in (("good", 0.3), ("plain", 0.1)):
        for seed in range(8):
            n = 6
            truth = -gain * np.minimum(np.arange(n), 3 + seed % 2) / 4
            cells.append(
                Cell(
                    *("t", strategy, seed, np.arange(n), np.arange(n), 2.0 * np.arange(n), np.full(n, int(Outcome.OK))),
                    *(np.zeros(n), np.exp(truth), truth, np.arange(n), np.arange(n)),
                    facts={"best": -0.3, "best_known": True, "floor": 0.01, "reference_ms": 1.0},
                )
            )
    table_of = cells_frame(cells, "builds", [1, 5])
    found = summarise_comparison(table_of, "plain", budgets=[5], runs=improvements(cells))
    assert found.sentences[0].startswith("good beats plain at 5 builds on 1 of 1 task (Holm p = 0.0079, A12 = 1.00")
    times = found.tables["running_time"].set_index(["strategy", "share"])
    assert times.loc[("good", 0.5), "ert"] == 2 and times.loc[("plain", 0.5), "success_rate"] == 0
    # 90 % of the gain takes the fourth build, which every other seed makes: (4 x 4 + 4 x 5) / 4.
    assert times.loc[("good", 0.9), "ert"] == 9
