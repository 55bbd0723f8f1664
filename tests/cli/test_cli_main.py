import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import gpt_search
from gpt_search.cli.main import _COMMANDS, LazyGroup, cli
from gpt_search.domain.errors import InputError, StrategyError

COMMANDS = tuple(_COMMANDS)


def run(*args: str):
    return CliRunner().invoke(cli, list(args), prog_name="gpt-search")


def python(code: str, *args: str, **kwargs):
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60, **kwargs)


def test_help_lists_every_command_in_the_tables_order():
    result = run("--help")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert listed[: len(_COMMANDS)] == list(_COMMANDS)


def test_help_fits_in_80_columns():
    for args in [("--help",), *((name, "--help") for name in COMMANDS)]:
        result = run(*args)
        assert result.exit_code == 0
        assert max(map(len, result.stdout.splitlines())) <= 80, args


def test_help_imports_neither_numpy_nor_any_command():
    code = (
        "import sys\n"
        "from gpt_search.cli.main import main\n"
        "sys.argv = ['gpt-search', '--help']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
        "heavy = {'numpy', 'optuna', 'pandas', 'matplotlib', 'onnx', 'onnxruntime', 'rich', 'json'}\n"
        "loaded = sorted(m for m in sys.modules if m in heavy or m.startswith('gpt_search.cli.'))\n"
        "print('LOADED', *loaded)\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == [
        "LOADED",
        *(f"gpt_search.cli.{name}" for name in ("errors", "interrupts", "main")),
    ]


def test_the_help_of_a_command_loads_no_backend_nor_optuna():
    for name in COMMANDS:
        code = (
            "import sys\n"
            "from gpt_search.cli.main import main\n"
            "sys.argv = ['gpt-search', sys.argv[1], '--help']\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print('LOADED', *sorted({'optuna', 'matplotlib', 'onnx', 'onnxruntime'} & set(sys.modules)))\n"
        )
        done = python(code, name)
        assert done.stdout.splitlines()[-1] == "LOADED", (name, done.stdout, done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_the_line_of_help_of_the_table(name):
    command = LazyGroup.get_command(cli, click.Context(cli), name)
    assert command is not None and command.name == name
    for one in command.commands.values() if isinstance(command, click.Group) else (command,):
        assert "--json" in [o for p in one.params for o in p.opts], one.name


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"gpt-search {gpt_search.__version__}\n")


def test_without_a_command_the_help_is_shown():
    result = run()
    assert "Usage: gpt-search" in result.output and result.exit_code == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("plna",), "error: there is no command 'plna'; did you mean 'plan'? (see `gpt-search --help`)\n"),
        (("knobs", "--bakend", "x"), "there is no option '--bakend'; did you mean '--backend'?"),
        (("plan",), "error: Missing option '--knobs' (see `gpt-search plan --help`)\n"),
        (("plan", "--knobs", "-x=[*]", "--limit", "-1"), "--limit"),
        (("--verion",), "did you mean '--version'?"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_on_stderr(args, message):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: ")


def test_an_unknown_command_with_no_near_name_gets_the_list():
    result = run("xyzzyx")
    assert all(name in result.stderr for name in _COMMANDS)


def test_a_mistake_with_json_is_an_object_on_stdout():
    result = run("knobs", "--bakend", "x", "--json")
    assert result.exit_code == 2
    assert result.stderr == ""
    assert list(json.loads(result.stdout)) == ["error"]


def failing(error: BaseException | None, code: int | None = None):
    """The group with one command that raises, or exits."""

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    @click.pass_context
    def fails(ctx: click.Context, as_json: bool) -> None:
        if error is not None:
            raise error
        ctx.exit(code or 0)

    group = LazyGroup(name="gpt-search", lazy={"fails": ("none", "none", "")})
    group.get_command = lambda ctx, name: fails  # type: ignore[method-assign]
    return group


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("the model 'x' is missing"), 2, "error: the model 'x' is missing\n"),
        (StrategyError("proposed a pending route"), 1, "error: proposed a pending route\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (OSError(28, "No space left on device", "study.journal"), 2, "the disk is full (study.journal)"),
        (PermissionError(13, "Permission denied", "x"), 1, "GPT_SEARCH_TRACEBACK=1"),
        (ZeroDivisionError("a\nb"), 1, "error: ZeroDivisionError: a b (unexpected; set GPT_SEARCH_TRACEBACK=1"),
    ],
)
def test_exit_codes_and_messages(error, code, message):
    result = CliRunner().invoke(failing(error), ["fails"])
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    as_json = CliRunner().invoke(failing(error), ["fails", "--json"])
    assert as_json.exit_code == code
    assert json.loads(as_json.stdout)["error"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that takes nothing")
@pytest.mark.parametrize("args", [["knobs", "--json"], ["knobs"], ["knobs", "nope", "--json"]])
def test_a_full_disk_behind_the_output_is_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from gpt_search.cli.main import main; main()", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: "), done.stderr


@pytest.mark.parametrize("code", [0, 3, 130])
def test_a_command_chooses_its_exit_code(code):
    assert CliRunner().invoke(failing(None, code), ["fails"]).exit_code == code


def test_the_traceback_is_shown_on_demand(monkeypatch):
    monkeypatch.setenv("GPT_SEARCH_TRACEBACK", "1")
    result = CliRunner().invoke(failing(ZeroDivisionError("x")), ["fails"])
    assert result.exit_code == 1 and "Traceback" in result.stderr and "unexpected" not in result.stderr


def test_outside_standalone_mode_errors_pass_through():
    with pytest.raises(InputError):
        failing(InputError("x")).main(["fails"], standalone_mode=False)


@pytest.mark.parametrize("args", [["strategies", "--json"], ["--help"], ["plan", "--help"]])
def test_a_reader_that_leaves_early_is_no_error(args):
    code = (
        "import subprocess, sys\n"
        "writer = subprocess.Popen([sys.executable, '-m', 'gpt_search.cli.main', *sys.argv[1:]],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "writer.stdout.close()\n"
        "print(writer.stderr.read().decode(), writer.wait())\n"
    )
    done = python(code, *args)
    assert done.stdout.split() == ["141"], (done.stdout, done.stderr)
