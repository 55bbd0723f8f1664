"""The quality benchmark: prefixes, merging, and the rule that a known engine is not timed again."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "quality.py"


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality_benchmark", _FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_smaller_budget_is_the_prefix_of_a_larger_one(quality: ModuleType) -> None:
    both = quality.run(quality.Task("sparse_random", "sparse", 0, 0, (10, 30)))
    (alone,) = quality.run(quality.Task("sparse_random", "sparse", 0, 0, (10,)))
    untimed = len(quality.MEANS) - 1  # milliseconds per proposal differ
    assert both[0].means[:untimed] == alone.means[:untimed]
    assert [r.budget for r in both] == [10, 30] and both[1].means != both[0].means


def test_new_results_replace_old_ones_of_the_same_cell_only(
    quality: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "quality.csv"
    for strategies, seeds in ((["fast", "sparse_random"], "1"), (["fast"], "2")):
        options = ["--families", "null", "--budgets", "5", "9", "--seeds", seeds, "--jobs", "1", "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["quality.py", "--strategies", *strategies, *options])
        quality.main()
    with out.open() as file:
        rows = [(r["strategy"], r["budget"], r["studies"], r["share"]) for r in csv.DictReader(file)]
    assert rows == [
        ("fast", "5", "2", ""),
        ("fast", "9", "2", ""),
        ("sparse_random", "5", "1", ""),
        ("sparse_random", "9", "1", ""),
    ]
