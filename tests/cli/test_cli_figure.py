from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpt_search.backends.synthetic import synthetic_workload
from gpt_search.cli.main import cli

SPEC = {"family": "sparse", "seed": 1, "knobs": 6, "noise": 0.01}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("figures")
    model = synthetic_workload(folder, SPEC).model
    backend = "synthetic:" + json.dumps({**SPEC, "simulate_clock": True, "gentle": True, "drift": 0.05})
    command = ["tune", str(model), "--backend", backend, "--strategy", "random", "--trials", "6", "--metric", "lInf"]
    command += ["--tolerance", "0.01", "--storage", str(folder / "s.journal"), "--study", "s", "--no-confirm"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return str(folder / "s.journal")


@pytest.mark.parametrize("name", ["drift", "best", "accuracy", "cost", "timeline", "importance", "interactions"])
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")])
def test_a_figure_is_what_its_suffix_says_and_equal_each_time(
    name: str, suffix: str, magic: bytes, storage: str, tmp_path: Path
) -> None:
    written = []
    for folder in ("one", "two"):
        out = tmp_path / folder / f"figure{suffix}"
        done = CliRunner().invoke(cli, ["show", "s", "--storage", storage, "--figure", name, "--out", str(out)])
        assert done.exit_code == 0 and done.output == f"wrote {out}\n"
        written.append(out.read_bytes())
    assert written[0] == written[1] and written[0].startswith(magic)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--figure", "drfit", "--out", "x.svg"], "no figure 'drfit'; did you mean 'drift'? (there are drift, best, "),
        (["--figure", "drift", "--out", "x.jpg"], "ends in '.jpg'"),
        (["--figure", "drift", "--out", "x"], "--out 'x' has no ending; a figure's file ends in one of .svg"),
        (["--figure", "drift"], "go together"),
        (["--out", "x.svg"], "go together"),
        (["--figure", "drift", "--out", "/proc/no/x.svg"], "cannot be written"),
    ],
)
def test_mistakes_are_told_in_one_line(more: list[str], message: str, storage: str) -> None:
    done = CliRunner().invoke(cli, ["show", "s", "--storage", storage, *more], prog_name="gpt-search")
    assert done.exit_code == 2 and message in done.output and "Traceback" not in done.output
