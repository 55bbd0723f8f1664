"""The layers of the package hold, and importing it stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpt_search

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpt_search"
# From the bottom up; packages of one row do not import each other.
LAYERS = (
    ("domain",),
    ("backends", "measure", "accuracy"),
    ("search", "execution", "store", "workloads"),
    ("run", "analysis"),
    ("cli",),
)
LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}
TOP = {"__init__", "__main__", "testing"}  # above the layers: they may import any of them
HEAVY = ("optuna", "matplotlib", "onnx", "onnxruntime", "jax", "cmaes", "sklearn", "scipy", "pandas", "cuda", "pynvml")
HEAVY += ("tensorrt", "tensorrt_bindings", "tensorrt_rtx", "tensorrt_rtx_bindings", "cuda")
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything a module imports, wherever in it."""
    package = (ROOT / path.relative_to(ROOT)).parent.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def violations(path: Path) -> list[str]:
    here = layer_of(path)
    out = []
    for line, name in imported(path):
        parts = name.split(".")
        if parts[0] != "gpt_search" or here in TOP:
            continue
        there = parts[1] if len(parts) > 1 else ""
        if there == "__version__" or there == here:
            continue
        if there not in LEVEL or LEVEL[there] >= LEVEL[here]:
            out.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    return out


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer_of(p) for p in MODULES} <= set(LEVEL) | TOP


def test_imports_point_down_only() -> None:
    assert [v for path in MODULES for v in violations(path)] == []


def test_the_check_sees_what_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "gpt_search")
    module = tmp_path / "gpt_search" / "backends" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from gpt_search.domain.knob import Knob\nfrom gpt_search.search import loop\n"
        "import gpt_search.measure.paired\n"
        "def f():\n    from ..run import config\n    from gpt_search import simulate\n    from . import base\n"
    )
    assert [v.split("imports ")[1] for v in violations(module)] == [
        "gpt_search.search.loop",
        "gpt_search.measure.paired",
        "gpt_search.run.config",
        "gpt_search.simulate",
    ]


def test_strategies_import_public_names_only() -> None:
    files = sorted((ROOT / "strategies").glob("*.py"))
    assert files
    public = {f"gpt_search.{name}" for name in gpt_search.__all__}
    allowed = {"numpy", "scipy", "sklearn", *sys.stdlib_module_names}
    wrong = []
    for path in files:
        for line, name in imported(path):
            if name not in public and name.partition(".")[0] not in allowed:
                wrong.append(f"{path.name}:{line} imports {name}")
    assert wrong == []


def loaded_by(code: str) -> set[str]:
    code += "\nimport sys; print(' '.join(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import gpt_search",
        "import gpt_search.cli.main",
        "import gpt_search; gpt_search.planted('sparse', 0).best_log_ratio; gpt_search.simulate; gpt_search.Workload",
    ],
)
def test_importing_loads_no_heavy_library(code: str) -> None:
    loaded = loaded_by(code)
    assert "gpt_search" in loaded and not loaded & set(HEAVY)


def test_every_public_name_can_be_imported() -> None:
    assert sorted(gpt_search.__all__) == sorted(set(gpt_search.__all__))
    for name in gpt_search.__all__:
        assert getattr(gpt_search, name) is not None
        assert name in dir(gpt_search)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gpt_search.nonsense
