import json
import math
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.cli import common


def printed(function, columns: int | None = None) -> str:
    env = {"COLUMNS": None if columns is None else str(columns)}
    result = CliRunner().invoke(click.command()(function), [], env=env)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_jsonable_has_no_nan_and_knows_numpy():
    value = {
        "a": math.nan,
        "b": [np.float32(1.5), -math.inf],
        "c": np.arange(3, dtype=np.int16),
        4: Path("x"),
        "s": {2, 1},
    }
    assert common.jsonable(value) == {"a": "nan", "b": [1.5, "-inf"], "c": [0, 1, 2], "4": "x", "s": [1, 2]}
    assert common.jsonable(True) is True


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_print_json_is_always_valid_json(value):
    text = json.dumps(common.jsonable(value), allow_nan=False)
    assert common.jsonable(json.loads(text)) == common.jsonable(value)


@pytest.mark.parametrize(
    ("count", "text"),
    [(7, "7"), (1024, "1,024"), (2**195, "2^195"), (3 * 2**195, "about 2^196.6"), (10**15, "about 2^49.8")],
)
def test_approximate_count(count, text):
    assert common.approximate_count(count) == text


@given(st.integers(1, 2**5000))
def test_log2_of_any_size(count):
    found = common.log2_of(count)
    assert count.bit_length() - 1 <= found + 1e-9 and found - 1e-9 <= count.bit_length()


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=60)] * 3),
        min_size=1,
        max_size=4,
    )
)
def test_tables_keep_every_character_and_every_row_a_line_off_the_terminal(rows):
    lines = printed(lambda: common.print_table(["a", "b", "c"], rows)).splitlines()
    assert [tuple(line.split()) for line in lines[1:]] == rows
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fold_into_the_terminal(columns):
    rows = [("knob:" + "x" * 70, "[on|off]", ":smile: [bold]kept[/bold]")]
    output = printed(lambda: common.print_table(["knob", "values", "help"], rows), columns)
    assert max(map(len, output.splitlines())) <= columns
    assert output.count("x") == 70
    assert "smile" in output and "bold" in output


def test_a_long_last_column_goes_below_its_row_on_a_narrow_terminal():
    rows = [("first", "1", "word " * 30), ("second", "2", "short")]

    def show():
        common.print_table(["name", "n", "what"], rows, remarks=True)

    narrow = printed(show, 60).splitlines()
    assert narrow[0].split() == ["name", "n"] and max(map(len, narrow)) <= 60
    assert narrow[1].split() == ["first", "1"] and narrow[-2].split() == ["second", "2"]
    assert narrow[-1] == "    short" and " ".join(narrow[2:-2]).split() == ["word"] * 30
    assert printed(show, 200).splitlines()[0].split() == ["name", "n", "what"]


def test_numbers_align_right():
    lines = printed(lambda: common.print_table(["n", "x"], [("1", "a"), ("100", "b")], right=[0])).splitlines()
    assert lines[1:] == ["  1  a", "100  b"]


def test_paragraphs_wrap_at_80_off_the_terminal_and_keep_long_words():
    output = printed(lambda: common.print_wrapped("word " * 40 + "w" * 120, indent="  ", first="- "))
    lines = output.splitlines()
    assert lines[0].startswith("- word") and lines[-1] == "  " + "w" * 120
    assert max(map(len, lines[:-1])) <= 80


def test_the_console_prints_text_as_it_is():
    assert printed(lambda: common.console().print("kgen:smile: [red]x[/red]")) == "kgen:smile: [red]x[/red]\n"


def test_the_gpu_is_looked_at_for_backends_that_have_one_only(monkeypatch):
    from gpt_search.backends import gpu_preflight, registry
    from gpt_search.backends.nvml import NvmlError
    from gpt_search.cli.common import gpu_notes

    monkeypatch.setattr(registry, "availability", lambda name: None)
    found = [gpu_preflight.Finding("MPS", False, "running"), gpu_preflight.Finding("MIG", True, "a whole GPU")]
    monkeypatch.setattr(gpu_preflight, "gpu_findings", lambda: (None, found))
    assert gpu_notes("tensorrt") == ["GPU, MPS: running"]
    assert gpu_notes("onnxruntime") == gpu_notes("file.py:Class") == []

    def none():
        raise NvmlError("NVML cannot be used: no driver")

    monkeypatch.setattr(gpu_preflight, "gpu_findings", none)
    assert gpu_notes("tensorrt-rtx") == ["the GPU was not looked at: NVML cannot be used: no driver"]
