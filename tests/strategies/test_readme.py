"""The template in strategies/README.md works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpt_search import load_strategy
from gpt_search.search.discovery import folder, strategy_info
from gpt_search.testing import StrategyConformance

BLOCKS = re.findall(r"```python\n(.*?)```", (folder() / "README.md").read_text(), re.S)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("readme") / "halves.py"
    path.write_text(BLOCKS[0])
    return path


@pytest.mark.parametrize("test", [name for name in dir(StrategyConformance) if name.startswith("test_")])
def test_the_template_conforms(halves: Path, test: str) -> None:
    suite = type("TestHalves", (StrategyConformance,), {"spec": f"{halves}:Halves:share=0.25"})()
    getattr(suite, test)()


def test_the_test_of_the_template_is_valid(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, type[StrategyConformance]] = {}
    exec(BLOCKS[1], scope)
    monkeypatch.chdir(halves.parent)
    assert type(scope["TestHalves"]().make()).__name__ == "Halves"


def test_every_file_of_the_folder_says_what_it_is_good_and_bad_at() -> None:
    for info in strategy_info():
        path = folder() / f"{info.name}.py"
        text = path.read_text()
        assert "Good at:" in text and "ad at:" in text, path
        assert load_strategy(info.name) is not None and info.source
