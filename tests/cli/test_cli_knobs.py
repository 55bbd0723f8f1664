import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpt_search import Knob, KnobDatabase
from gpt_search.cli.main import cli

DATABASE = KnobDatabase.of(
    "7.1",
    [
        Knob("fusion:attention_with_a_rather_long_name_for_a_knob", ("on", "off"), "on", "Fuses attention."),
        Knob("kgen:codegen:x", ("0", "1"), "1"),
        Knob("lvl", ("1", "2"), "0", open_ended=True, integer=True),
    ],
)


def run(*args: str, columns: int | None = None):
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli, ["knobs", *args], prog_name="gpt-search", env=env)


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = tmp_path / "db.json"
    path.write_text(DATABASE.to_json())
    return str(path)


def test_the_table_has_a_row_for_every_knob_as_it_is_written(database):
    lines = run("--database", database).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == list(DATABASE.names)
    assert lines[2].split() == ["kgen:codegen:x", "1", "[0|1]"]
    assert lines[3].split() == ["lvl", "0", "[1|2|...]"]
    assert "2 with a closed set" in " ".join(lines)


def test_no_line_is_wider_than_the_terminal_and_no_name_is_cut(database):
    output = run("--database", database, columns=50).stdout
    assert max(map(len, output.splitlines())) <= 50
    first_column = "".join(line[:26].strip() for line in output.splitlines()[1:4])
    assert first_column.startswith(DATABASE.names[0])


def test_json_gives_the_whole_database(database):
    report = json.loads(run("--database", database, "--json").stdout)
    assert report["tuner_version"] == "7.1" and report["digest"] == DATABASE.digest
    again = [Knob(**{**k, "values": tuple(k["values"])}) for k in report["knobs"]]
    assert tuple(again) == DATABASE.knobs


def test_a_pattern_lists_what_it_matches(database):
    report = json.loads(run("k*", "--database", database, "--json").stdout)
    assert [k["name"] for k in report["knobs"]] == ["kgen:codegen:x"]
    assert "1 of 3 knobs" in run("k*", "--database", database).stdout
    assert "no knob matches 'q*'" in run("q*", "--database", database).stderr


def test_one_knob_with_its_help(database):
    output = run(DATABASE.names[0], "--database", database).stdout
    assert output.splitlines()[0] == f"-{DATABASE.names[0]}=[on|off]"
    assert "default: on" in output and "Fuses attention." in output
    assert "whole numbers" in run("lvl", "--database", database).stdout
    assert json.loads(run("lvl", "--database", database, "--json").stdout)["open_ended"] is True
    assert run("--database", database, "--", "-lvl").stdout == run("lvl", "--database", database).stdout


def test_an_unknown_knob_is_answered_with_the_nearest(database):
    result = run("kgen:codegen", "--database", database)
    assert result.exit_code == 2 and "did you mean 'kgen:codegen:x'?" in result.stderr


def test_backends():
    report = json.loads(run("--backend", "onnxruntime", "--json").stdout)
    assert len(report["knobs"]) >= 115
    for name, message in (("onnxruntim", "did you mean 'onnxruntime'?"), ("tensorrt", "cannot be used")):
        result = run("--backend", name)
        assert result.exit_code == 2 and message in result.stderr


def test_a_backend_from_a_file_is_asked_in_a_worker(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\n"
        f"if os.getpid() == {os.getpid()}: raise RuntimeError('loaded into the caller')\n"
        "from gpt_search.backends.synthetic import SyntheticBackend as Mine\n"
        "class Dies(Mine):\n"
        "    def knob_database(self): os.abort()\n"
    )
    assert len(json.loads(run("--backend", f"{file}:Mine", "--json").stdout)["knobs"]) == 195
    result = run("--backend", f"{file}:Dies")
    assert result.exit_code == 2 and "the worker died by SIGABRT" in result.stderr
