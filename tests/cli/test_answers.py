"""What reaches a reader: nothing but JSON with `--json`, and errors that a terminal of 80 columns shows whole."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios

import pytest
from click.testing import CliRunner

from gpt_search.cli.main import cli
from gpt_search.run.export import Exported

LOUD = '''"""Loud."""

from gpt_search import Proposal

print("loaded")


class Loud:
    """Prints in every method."""

    def propose(self, space, history, streams):
        print("proposing")
        return Proposal(space.sample(streams.trial(history.next_trial)))

    def count(self, space):
        print("counting")
        return 1

    def routes(self, space):
        print("listing")
        yield space.default
'''


def gpt_search(*args, cwd, **how):
    command = [sys.executable, "-m", "gpt_search", *args]
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, timeout=120, **how)


def on_terminal(*args, cwd):
    """What is written to standard error where that is a terminal of 80 columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    done = gpt_search(*args, cwd=cwd, stderr=theirs, env=environment)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    return done.returncode, text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    "args", [("strategies", "loud.py"), ("plan", "--knobs", "-opt:*=[*]", "--strategy", "loud.py")]
)
def test_what_a_strategy_prints_stays_out_of_the_json(tmp_path, args):
    (tmp_path / "loud.py").write_text(LOUD)
    done = gpt_search(*args, "--json", cwd=tmp_path, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert "loaded" in done.stderr  # it is not swallowed
    assert "loaded" in gpt_search(*args, cwd=tmp_path).stdout


def test_the_json_of_an_error_too(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    done = gpt_search("strategies", "loud.py:Lood", "--json", cwd=tmp_path, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert "did you mean 'Loud'" in json.loads(done.stdout)["error"]


def test_errors_are_folded_on_a_terminal_between_words_and_commands_stay_whole(tmp_path):
    code, text = on_terminal("strategies", "tpee", cwd=tmp_path)
    assert code == 2 and len(text.splitlines()) > 2
    assert max(map(len, text.splitlines())) <= 80
    assert "annealing, bandit" in " ".join(text.split())
    code, text = on_terminal("resume", "a-study", "--buildss", "3", cwd=tmp_path)
    assert code == 2 and max(map(len, text.splitlines())) <= 80
    assert "`gpt-search resume --help`" in text


def test_errors_stay_one_line_for_a_program(tmp_path):
    done = gpt_search("strategies", "tpee", cwd=tmp_path, stderr=subprocess.PIPE)
    assert len(done.stderr.splitlines()) == 1 and len(done.stderr) > 80


def test_what_an_export_wrote_is_folded_too(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = Exported(
        tmp_path / "x", "engine", 9, 0, None, "the reference route: " + 20 * "no route was faster, ", {}, ()
    )
    monkeypatch.setattr("gpt_search.run.export.export", lambda *args: done)
    shown = CliRunner().invoke(cli, ["export", "s", str(tmp_path / "x"), "--as", "engine"], prog_name="gpt-search")
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.removeprefix(str(tmp_path)).splitlines()[1:])) <= 80
    assert len(shown.stdout.splitlines()) > 3  # and not one long one


def test_a_file_that_is_no_text_is_said_to_be_that(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x08\x89")
    imported = ("table", "import", str(tmp_path / "binary"), "--out", str(tmp_path / "t.jsonl"))
    for args in (imported, ("tune", "m.onnx", "--option", f"@{tmp_path / 'binary'}")):
        result = CliRunner().invoke(cli, args, prog_name="gpt-search")
        assert result.exit_code == 2 and "it is not UTF-8 text" in result.stderr, result.stderr
    result = CliRunner().invoke(cli, ["tune", "m.onnx", "--option", "@none.json"], prog_name="gpt-search")
    assert "No such file or directory" in result.stderr and "Errno" not in result.stderr


EXPERIMENT = """
[experiment]
name = "loud"
seeds = 1
budget = { builds = 2 }
[[task]]
kind = "planted"
family = "sparse"
seed = 1
knobs = 12
[[strategy]]
spec = "loud.py"
"""


def test_what_a_strategy_prints_in_an_experiments_processes_stays_out_of_the_json_too(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    done = gpt_search(
        "compare", "e.toml", "--out", "out", "--jobs", "1", "--json", cwd=tmp_path, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict) and "proposing" in done.stderr


def test_the_failures_of_an_experiment_fit_the_terminal(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD.replace("return Proposal", "raise ValueError('x ' * 60) or Proposal"))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    environment = os.environ | {"COLUMNS": "80"}
    command = ("compare", "e.toml", "--out", "out", "--jobs", "1")
    done = gpt_search(*command, cwd=tmp_path, stderr=subprocess.PIPE, env=environment)
    listed = done.stderr.partition("tried again by the same command:")[2].splitlines()
    assert done.returncode == 1 and len(listed) > 2 and max(map(len, listed)) <= 80


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_output_is_no_error(tmp_path, closed):
    command = f'"{sys.executable}" -m gpt_search plan --knobs "-session:*=[*]" --strategy fast {closed}>&-'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("args", [(), ("table",)])
def test_a_group_without_a_command_shows_its_help(args):
    result = CliRunner().invoke(cli, list(args), prog_name="gpt-search")
    shown = result.stderr or result.stdout
    assert shown.startswith("Usage: gpt-search") and re.search(r"\nCommands:\n", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_an_option_is_not_suggested_for_its_dashes():
    for given, meant in (
        ("--bogus", None),
        ("--trails", "--trials"),
        ("--buids", "--builds"),
        ("--store", "--storage"),
    ):
        message = CliRunner().invoke(cli, ["resume", given, "1"], prog_name="gpt-search").stderr
        assert f"there is no option {given!r}{'' if meant is None else f'; did you mean {meant!r}?'} (see" in message
