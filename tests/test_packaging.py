"""The sdist, the wheel made from it, and what an installation of that wheel can do outside the checkout."""

import os
import re
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import gpt_search

ROOT = Path(__file__).parents[1]
STRATEGIES = sorted(p.name for p in (ROOT / "strategies").glob("*.py"))

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path) -> str:
    # Neither the checkout nor this test's settings may help the installation.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GPT_SEARCH"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    """Builds with the hatchling that is installed here: nothing is downloaded."""
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", out, source, cwd=out)
    (made,) = out.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"gpt_search-{gpt_search.__version__}"


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory) -> Path:
    """Made from the sdist, not from the checkout: a file that the sdist forgets is missing here too."""
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel in it; what the wheel depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, symlinks=True)
    made = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        made,
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        wheel,
        cwd=folder,
    )
    borrowed = tmp_path_factory.mktemp("borrowed")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # All but this project itself, whose editable install would lead back to the checkout.
        if "gpt_search" not in entry.name and not entry.name.startswith("__editable__"):
            (borrowed / entry.name).symlink_to(entry)
    (purelib,) = folder.glob("lib/python*/site-packages")
    (purelib / "borrowed.pth").write_text(f"{borrowed}\n")
    return made


def test_the_sdist_holds_what_it_lists_and_nothing_else(unpacked):
    top = {p.name for p in unpacked.iterdir()}
    assert top >= {"gpt_search", "strategies", "tests", "benchmarks", "Makefile", "README.md", "pyproject.toml"}
    assert top <= {
        *("gpt_search", "strategies", "tests", "benchmarks", "experiments", "docs"),
        *("Makefile", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"),
    }
    files = [p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()]
    assert not [f for f in files if re.search(r"__pycache__|\.pyc$|\.venv|_cache/|\.journal|\.egg-info", f)]
    assert {f for f in files if f.startswith("strategies/") and f.endswith(".py")} == {
        f"strategies/{name}" for name in STRATEGIES
    }


def test_the_sdist_holds_every_module(unpacked):
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "gpt_search").rglob("*.py")}
    assert here == {p.relative_to(unpacked).as_posix() for p in (unpacked / "gpt_search").rglob("*.py")}


def test_the_wheel_holds_the_package_and_each_strategy_once(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"gpt_search-{gpt_search.__version__}.dist-info/METADATA").decode()
    tops = {n.partition("/")[0] for n in names}
    assert tops == {"gpt_search", f"gpt_search-{gpt_search.__version__}.dist-info"}
    inside = [n for n in names if "strategies/" in n and n.endswith(".py")]
    assert sorted(inside) == [f"gpt_search/_strategies/{name}" for name in STRATEGIES]
    assert "gpt_search/py.typed" in names
    templates = {f"gpt_search/analysis/templates/{name}" for name in ("report.html.j2", "report.css", "report.js")}
    assert templates <= set(names)
    assert len(names) == len(set(names)) and not [n for n in names if "__pycache__" in n]
    assert f"Version: {gpt_search.__version__}\n" in metadata
    for extra in ("tensorrt", "rtx", "xla", "dashboard", "dev"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_a_wheel_from_the_checkout_is_the_same(wheel, tmp_path):
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path)) as direct, zipfile.ZipFile(wheel) as from_sdist:
        assert sorted(direct.namelist()) == sorted(from_sdist.namelist())


def test_the_installed_command_works_outside_the_checkout(python, tmp_path):
    command = python.parent / "gpt-search"
    assert run(command, "--version", cwd=tmp_path) == f"gpt-search {gpt_search.__version__}\n"
    where = run(python, "-c", "import gpt_search; print(gpt_search.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1]), where
    listed = run(command, "strategies", cwd=tmp_path)
    names = {line.split()[0] for line in listed.splitlines() if line and not line.startswith(" ")}
    assert names >= {Path(name).stem for name in STRATEGIES if not name.startswith("_")}
    assert "cannot be loaded" not in listed
    plan = ("plan", "--backend", "synthetic", "--knobs", "-*=[*]", "--strategy", "random", "--limit", "2")
    assert "routes" in run(command, *plan, cwd=tmp_path)


def test_an_editable_install_copies_nothing(tmp_path):
    """The strategies are read from the checkout; copies in site-packages would go stale in silence."""
    code = f"import hatchling.build as b, os; os.chdir({str(ROOT)!r}); print(b.build_editable({str(tmp_path)!r}))"
    run(sys.executable, "-c", code, cwd=tmp_path)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert not [n for n in archive.namelist() if n.endswith(".py")]
        assert archive.read("_gpt_search.pth").decode().split() == [str(ROOT)]
    for folder in site.getsitepackages():
        assert not (Path(folder) / "gpt_search" / "_strategies").exists() or gpt_search.__file__.startswith(folder)
