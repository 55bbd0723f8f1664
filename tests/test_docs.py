"""The documentation says what the program says; the README's commands work."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpt_search.domain.landscape import FAMILIES
from gpt_search.search.discovery import strategy_names

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in _BLOCK.findall(path.read_text(encoding="utf-8")) if kind == language]


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs" / "make_cli.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == module.cli_page(), "run: python docs/make_cli.py"


def test_the_page_of_strategies_is_what_the_strategies_say() -> None:
    spec = importlib.util.spec_from_file_location("make_strategies", ROOT / "docs" / "make_strategies.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert page == module.strategies_page(), "run: python docs/make_strategies.py"


def test_every_strategy_was_measured_on_every_family() -> None:
    with (ROOT / "docs" / "strategies.csv").open(newline="", encoding="utf-8") as file:
        studies = {(r["strategy"], r["family"], int(r["budget"])): int(r["studies"]) for r in csv.DictReader(file)}
    lacking = [
        f"{name} on {family} at {budget} builds"
        for name in strategy_names()
        for family in FAMILIES
        for budget in (50, 100, 200, 400)
        if studies.get((name, family, budget), 0) < 20
    ]
    assert not lacking, "run: python benchmarks/quality.py --strategies ... --families ... --out docs/strategies.csv"


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "strategies" / "README.md"]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.slow
def test_the_readme_works_from_top_to_bottom(tmp_path: Path) -> None:
    """Every `sh` and `python` block of the README, in order, in one empty folder (the two make commands aside)."""
    ran = 0
    script = tmp_path / "bin"
    script.mkdir()
    (script / "gpt-search").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpt_search.cli.main "$@"\n')
    (script / "gpt-search").chmod(0o755)
    (script / "python").symlink_to(sys.executable)
    env = os.environ | {"PATH": f"{script}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    for kind, text in _BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if kind == "python":
            # A block that begins by naming a file is that file.
            named = re.match(r"# (\w+\.py)\n", text)
            if named:
                (tmp_path / named[1]).write_text(text)
                continue
            command = [sys.executable, "-c", text]
        elif kind == "sh":
            if re.search(r"^(make|pip|git) ", text, re.MULTILINE):
                continue
            command = ["sh", "-euc", text]
        else:
            continue
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        ran += 1
    assert ran >= 3
