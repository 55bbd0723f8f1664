"""The paper's numbers are rebuilt from its data, and from nothing else."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from gpt_search.domain.errors import InputError

PAPER = Path(__file__).parents[1] / "paper"
EXPERIMENT = """
[experiment]
name = "small"
seeds = 2
budget = {{ builds = 20 }}
budgets = [10, 20]

[[task]]
kind = "table"
file = "{data}/bert.jsonl.zst"

[[strategy]]
spec = "random"

[[strategy]]
spec = "fast"

[statistics]
control = "random"
budgets = [10, 20]
"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduce", PAPER / "reproduce.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_text_with_its_numbers_and_figures(script: ModuleType, tmp_path: Path) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text(EXPERIMENT.format(data=PAPER / "data"))
    assert script.main(["--out", str(tmp_path / "out"), "--experiment", str(experiment), "--jobs", "1"]) == 0
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "| bert | 10 | 1,024 | 56 |" in text and "1.888x [" in text and "Each of 4 studies (2 seeds)" in text
    rows = re.findall(r"^\| `(random|fast)` \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert {name for name, _, _ in rows} == {"random", "fast"}
    assert all(float(later) <= float(earlier) for name, earlier, later in rows if name == "fast")
    pictures = re.findall(r"\]\((\S+\.svg)\)", text)
    assert len(pictures) == 3 and all((tmp_path / "out" / picture).is_file() for picture in pictures)
    assert "{" not in text and "nan" not in text


def test_other_data_are_refused(script: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(PAPER / "data", tmp_path / "data")
    assert script.check_data(tmp_path / "data") == [tmp_path / "data" / f"{n}.jsonl.zst" for n in ("bert", "magika")]
    with (tmp_path / "data" / "magika.jsonl.zst").open("ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match=r"magika.jsonl.zst is missing, or not the table of SHA256SUMS"):
        script.check_data(tmp_path / "data")
