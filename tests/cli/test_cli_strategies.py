import json
from pathlib import Path

from click.testing import CliRunner

from gpt_search import load_strategy
from gpt_search.cli.main import cli

FOLDER = Path(__file__).parents[2] / "strategies"


def run(*args: str):
    return CliRunner().invoke(cli, ["strategies", *args], prog_name="gpt-search")


def test_every_file_is_listed_with_a_line_and_options_that_load():
    listed = json.loads(run("--json").stdout)["strategies"]
    assert {s["name"] for s in listed} >= {p.stem for p in FOLDER.glob("[!_]*.py")}
    for entry in listed:
        assert entry["summary"] and entry["problem"] is None
        for option in entry["options"]:
            if option["default"] is not None:
                load_strategy(f"{entry['name']}:{option['name']}={option['default']}")


def test_the_text_fits_in_80_columns_and_names_options_with_defaults():
    output = run().stdout
    assert max(map(len, output.splitlines())) <= 80
    assert "margin: a number or auto, default 0.0" in output


def test_one_strategy_shows_its_source():
    assert "source: trtexec's tuner" in run("mixed").stdout
    assert json.loads(run("mixed", "--json").stdout)["name"] == "mixed"


def test_an_unknown_strategy_is_answered_with_the_nearest():
    result = run("mixd")
    assert result.exit_code == 2 and "did you mean 'mixed'?" in result.stderr


def test_a_file_of_ones_own_is_shown_as_tune_takes_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        'class Mine:\n    """Does nothing.\n\n    Source: folklore.\n    """\n'
        "    def __init__(self, share: float = 0.5) -> None: pass\n"
        "    def propose(self, space, history, streams): return None\n"
    )
    for spec in (f"{file}", f"{file}:Mine"):
        shown = json.loads(run(spec, "--json").stdout)
        assert (
            shown["name"] == f"{file}:Mine" and shown["summary"] == "Does nothing." and shown["source"] == "folklore."
        )
        assert shown["options"][0]["name"] == "share"
    assert "share: a number, default 0.5" in run(str(file)).stdout
    for spec, message in ((f"{file}:Other", "no class 'Other'"), (f"{file}:Mine:share=1", "sets options")):
        result = run(spec)
        assert result.exit_code == 2 and message in result.stderr
