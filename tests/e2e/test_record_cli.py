"""`gpt-search record` and `table` as a user runs them: ONNX Runtime, real processes, kill -9."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpt_search.cli.main import cli
from gpt_search.domain.landscape import planted
from gpt_search.run.planted_table import planted_table
from gpt_search.run.replay import Replay
from gpt_search.store.table_part import part_path
from gpt_search.store.tables import load_table
from gpt_search.workloads.catalogue import write_workload

KNOBS = "-opt:SkipLayerNormFusion=[*] -opt:BiasGeluFusion=[*] -rule:ConvAddFusion=[*] -session:graph_level=[all|basic]"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("GPT_SEARCH_RUNTIME_DIR", str(tmp_path))
    write_workload("bert", tmp_path / "bert.onnx", layers=1, hidden=24)
    return [
        *(sys.executable, "-m", "gpt_search.cli.main", "record", str(tmp_path / "bert.onnx")),
        *("--shape", "input_ids=1x32", "--knobs", KNOBS, "--tolerance", "0.01", "--rounds", "8", "--several", "2"),
        *("--out", str(tmp_path / "bert.jsonl.zst")),
    ]


def lines_of(part: Path) -> int:
    return part.read_bytes().count(b"\n") if part.exists() else 0


def stopped(command: list[str], out: Path, lines: int, number: int) -> tuple[int, str]:
    """Exit status and standard error of the command, stopped by a signal once the file has so many lines."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while lines_of(part_path(out)) < lines and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.slow
def test_recording_real_engines_survives_ctrl_c_and_kill_9(tmp_path: Path, command: list[str]) -> None:
    out = tmp_path / "bert.jsonl.zst"
    status, said = stopped(command, out, 3, signal.SIGINT)
    assert status == 130 and "Traceback" not in said
    lines = said.splitlines()
    assert lines[-2] == "stopped; nothing that was finished is lost. Continue with:"
    assert shlex.split(lines[-1]) == ["gpt-search", *command[3:]]
    kept = part_path(out).read_bytes()
    status, _ = stopped(command, out, kept.count(b"\n") + 2, signal.SIGKILL)
    assert status == -signal.SIGKILL and part_path(out).read_bytes().startswith(kept)
    kept = part_path(out).read_bytes()
    assert kept.count(b"\n") >= 4 and not out.exists()
    changed = subprocess.run([*command, "--rounds", "9"], capture_output=True, text=True, check=False)
    assert changed.returncode == 2 and "recording.rounds: stored 8, now 9" in changed.stderr
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = load_table(out)
    table.check_samples()
    assert json.loads(done.stdout)["digest"] == table.digest
    assert table.complete and len(table) == 16 and table.between_builds is not None
    # ConvAddFusion has no convolution to fuse here: two routes give one engine, which is timed once.
    facts = json.loads(done.stdout)
    assert facts["engines"] <= 8 and facts["timed_builds"] == facts["engines"] + 2 * 2
    assert facts["sessions"] == 3 and facts["outcomes"] == {"OK": 16}
    assert all(len(table.rounds(i)) == 8 and table.rounds(i)[0].reference_ms for i in range(16))
    assert table.settings["environment"] and "CPU" not in table.settings["workload"]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("bert.jsonl")) == [out.name]
    result = Replay(table).simulate("random", 40, 1)
    assert len(result) == 16 and result.recommended is not None


def run(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in args])
    return result.exit_code, result.output


def test_table_commands(tmp_path: Path) -> None:
    planted_table(tmp_path / "t.jsonl.zst", planted("dense", 1, 6), between=0.004)
    code, text = run("table", "info", tmp_path / "t.jsonl.zst")
    assert code == 0
    for words in ("6 knobs; all routes", "engines", "best", "differ by", "from 3 builds of 8 routes"):
        assert words in " ".join(text.split())
    code, text = run("table", "info", tmp_path / "t.jsonl.zst", "--json")
    facts = json.loads(text)
    assert code == 0 and facts["complete"] and facts["routes"] == facts["space"] == 128
    assert facts["between_builds"]["builds"] == 3 and facts["outcomes"]["OK"] > 0
    code, text = run("table", "export", tmp_path / "t.jsonl.zst", tmp_path / "t4.json")
    assert code == 0 and f"{facts['builds']} results" in text
    code, text = run("table", "import", tmp_path / "t4.json", "--out", tmp_path / "back.jsonl")
    assert code == 0 and "samples are not paired" in text and "note:" in text
    code, text = run("table", "import", tmp_path / "t4.json", "--out", tmp_path / "more.jsonl", "--json")
    assert code == 0 and json.loads(text)["notes"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("table", "info", "none.jsonl"), "cannot read none.jsonl"),
        (("table", "import", "none.json", "--out", "x"), "cannot read none.json"),
        (("table", "export", "none.jsonl", "x", "--as", "t5"), "'t5' is not one of t4"),
        (("record", "none.onnx", "--out", "x.jsonl"), "none.onnx"),
        (("record", "none.onnx", "--out", "x.jsonl", "--routes", "some"), "neither `all` nor a whole number"),
        (("record", "none.onnx", "--out", "x.jsonl", "--builds", "2"), "must be 3 or more"),
        (("record", "none.onnx", "--out", "no/such/x.jsonl"), "the folder no/such does not exist"),
        (("record", "none.onnx"), "--out"),
    ],
)
def test_mistakes_are_told_in_one_line(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = run(*args)
    assert code == 2 and message in text and "Traceback" not in text
    assert list(tmp_path.iterdir()) == []
