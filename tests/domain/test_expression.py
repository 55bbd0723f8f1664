"""The expression language: trtexec's grammar to the letter under strict, the extensions otherwise, and every error."""

from __future__ import annotations

import contextlib
import fnmatch
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_spaces import databases
from tensorrt_knobs import tensorrt

from gpt_search import ExpressionError, InputError, Knob, KnobDatabase, SearchSpace, parse_expression

SMALL = KnobDatabase.of(
    "9.9",
    [
        Knob("alpha", ("on", "off"), "on"),
        Knob("alpha:beta", ("0", "1", "2"), "2"),
        Knob("alpha:gamma", (), "0", open_ended=True, integer=True),
        Knob("delta", ("1", "max"), "7", open_ended=True),
        Knob("epsilon", ("10", "0"), "0"),
    ],
)


def message(text: str, strict: bool = False, folder: Path | str = ".") -> str:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text, SMALL, strict=strict, folder=folder)
    return str(caught.value)


# -- trtexec's grammar -------------------------------------------------------------------------------------
@pytest.mark.parametrize("strict", [True, False])
def test_lists_vary_values_pin_and_order_is_token_order(strict: bool) -> None:
    space = parse_expression("  -epsilon=[0|10]   -alpha=off -alpha:beta=[2|0] -alpha:gamma=-5 ", SMALL, strict=strict)
    assert space.names == ("epsilon", "alpha:beta")
    assert space.values == (("0", "10"), ("2", "0"))
    assert space.default.tolist() == [0, 0]
    assert space.pinned == {"alpha": "off", "alpha:gamma": "-5"}
    assert str(space.reference) == "-epsilon=0 -alpha:beta=2 -alpha=off -alpha:gamma=-5"
    assert space.notes == ()


BOTH = pytest.mark.parametrize("strict", [True, False], ids=["strict", "extended"])


@BOTH
@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("-alpha", 1, "has no '='"),
        ("alpha=on", 1, "a token starts with '-'"),
        ("-=on", 2, "no knob name"),
        ("-alpha=", 8, "no value after '='"),
        ("-alpha=on -alpho=[on]", 12, "unknown knob 'alpho'; did you mean 'alpha'? (5 knobs in version 9.9)"),
        ("-alpha=x[on|off]", 8, "text 'x' before the bracket; write -alpha=[a|b]"),
        ("-alpha=[on|off]x", 16, "text 'x' after the bracket"),
        ("-alpha=[on]|off]", 12, "text '|off]' after the bracket"),
        ("-alpha=[]", 8, "an empty list"),
        ("-alpha=[on||off]", 12, "an empty value in its list"),
        ("-alpha=[on|off|on]", 16, "lists 'on' twice"),
        ("-alpha=[on|of]", 12, "knob 'alpha': 'of' is not among on|off; did you mean 'off'?"),
        ("-epsilon=[10|1]", 14, "'1' is not among 10|0"),
        ("-alpha=maybe", 8, "'maybe' is not among on|off"),
        ("-alpha=on|off", 8, "several values need brackets: -alpha=[on|off]"),
        ("-alpha=[on|off", 8, "a '[' without a ']'"),
        ("-alpha=on]", 10, "a ']' without a '['"),
        ("-alpha=[on[off]", 11, "a '[' inside the brackets"),
        ("-alpha=on -epsilon=0 -alpha=[on]", 22, "'alpha' was already named by '-alpha=on' at column 1"),
    ],
)
def test_errors_point_at_the_token(text: str, column: int, what: str, strict: bool) -> None:
    got = message(text, strict)
    assert got.startswith(f"column {column}: '-") or text == "alpha=on"
    assert got.startswith(f"column {column}: ") and what in got


def test_trtexec_takes_no_list_on_an_open_ended_knob() -> None:
    assert "knob 'delta' is open-ended ([1|max|...]): trtexec takes no list for it" in message("-delta=[1]", True)
    assert "open-ended (int)" in message("-alpha:gamma=[1|2]", True)
    assert "open-ended" in message("-alpha:gamma=[*]", True)


def test_a_pinned_open_ended_value_is_taken_as_it_is_by_trtexec_only() -> None:
    assert parse_expression("-alpha:gamma=many -delta=a|b", SMALL, strict=True).pinned == {
        "alpha:gamma": "many",
        "delta": "a|b",
    }
    assert "'many' is not a whole number" in message("-alpha:gamma=many")
    assert "several values need brackets" in message("-delta=a|b")
    assert "trtexec separates tokens by spaces only" in message("-alpha:gamma=1\t-alpha=on", True)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-alpha=[*]", "'*' is not among on|off"),
        ("-alph*=on", "unknown knob 'alph*'"),
        ("@file", "a token starts with '-'"),
        ("-alpha=on\t-epsilon=0", r"'on\t-epsilon=0' is not among"),
        ("-alpha=[on | off]", "'on ' is not among"),
    ],
)
def test_extensions_are_off_under_strict(text: str, what: str) -> None:
    assert what in message(text, strict=True)


def test_a_default_that_is_not_listed_is_a_baseline_only_under_strict() -> None:
    space = parse_expression("-alpha:beta=[0|1]", SMALL, strict=True)
    assert space.values == (("0", "1", "2"),) and space.default.tolist() == [2] and space.listed.tolist() == [2]
    assert "the default '2' of knob 'alpha:beta' was not listed and serves as the baseline only" in space.notes[0]
    extended = parse_expression("-alpha:beta=[0|1]", SMALL)
    assert extended.values == space.values and extended.listed.tolist() == [3]
    assert "is added as a value" in extended.notes[0] and extended.digest != space.digest


# -- the extensions ---------------------------------------------------------------------------------------
def test_any_white_space_separates() -> None:
    one = parse_expression("-alpha=[on|off] -epsilon=0", SMALL)
    assert parse_expression("\n\t-alpha=[ on\t| off\n]\r\n\f-epsilon=0\n", SMALL) == one


def test_lists_on_open_ended_knobs() -> None:
    space = parse_expression("-alpha:gamma=[0|4|-8] -delta=[1|auto]", SMALL)
    assert space.values == (("0", "4", "-8"), ("1", "auto", "7"))
    assert space.default.tolist() == [0, 2] and len(space.notes) == 1
    assert message("-alpha:gamma=[0|four]").startswith("column 17: ")


def test_a_star_takes_all_allowed_values() -> None:
    space = parse_expression("-alpha:beta=[*] -alpha=[ * ]", SMALL)
    assert space.values == (("0", "1", "2"), ("on", "off"))
    assert "list the values to try, as in [0|1|2]" in message("-delta=[*]")
    assert "'*' is not among" in message("-alpha=[on|*]")


def test_globs_expand_in_database_order_and_skip_open_ended_knobs_with_a_note() -> None:
    space = parse_expression("-epsilon=[*] -alpha*=[*]", SMALL)
    assert space.names == ("epsilon", "alpha", "alpha:beta")
    assert space.notes == ("-alpha*=[*]: skips the open-ended knobs alpha:gamma; list their values to use them",)
    assert parse_expression("-*lpha=off", SMALL).pinned == {"alpha": "off"}
    assert parse_expression("-???ha=off", SMALL).pinned == {"alpha": "off"}
    assert "no knob matches 'x*'" in message("-x*=[*]")
    assert "no knob matches '????'" in message("-????=[*]")
    assert "matches open-ended knobs only (alpha:gamma)" in message("-*gamma=[*]")
    assert "'alpha:beta': 'on' is not among 0|1|2" in message("-alpha*=on")
    assert "knob 'alpha' was already named by '-alpha=on' at column 1" in message("-alpha=on -alpha*=[*]")


@given(st.text("ab:*?", max_size=12), st.text("ab:", min_size=1, max_size=8))
def test_globs_match_as_the_shell_does(glob: str, name: str) -> None:
    database = KnobDatabase.of("1", [Knob(name, ("x",), "x"), Knob("zz", ("x",), "x")])
    try:
        found = name in parse_expression(f"-{glob}=x", database).pinned
    except ExpressionError:
        found = False
    assert found == (fnmatch.fnmatchcase(name, glob) and glob != "")


def test_many_stars_come_to_an_end() -> None:
    database = KnobDatabase.of("1", [Knob("a" * 200, ("x",), "x")])
    with pytest.raises(ExpressionError, match="no knob matches"):  # backtracking would never end
        parse_expression("-" + "*a" * 40 + "*b=x", database)


def test_a_default_that_is_no_whole_number_is_written_and_read() -> None:
    """An integer knob of which the default is a word: it serves as a baseline, and may be pinned or listed."""
    database = KnobDatabase.of("1", [Knob("k", ("0", "1"), ":", open_ended=True)])
    space = parse_expression("-k=[0]", database)
    assert space.values == (("0", ":"),) and space.default.tolist() == [1]
    assert parse_expression("-k=[0|:]", database) == space and parse_expression("-k=:", database).pinned == {"k": ":"}
    with pytest.raises(ExpressionError, match="'x' is not a whole number"):
        parse_expression("-k=[0|x]", database)


# -- files --------------------------------------------------------------------------------------------------
def test_a_file_holds_tokens_comments_and_files_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.txt").write_text("\ufeff# the whole set\n-alpha=[*]   # both\n@sub/more.txt\n", encoding="utf-8")
    (tmp_path / "sub" / "more.txt").write_text("@last.txt -delta=5#6\n")
    (tmp_path / "sub" / "last.txt").write_text("  -epsilon=[0|10]")
    space = parse_expression("-alpha:beta=1 @main.txt", SMALL, folder=tmp_path)
    assert space.names == ("alpha", "epsilon")
    assert space.pinned == {"alpha:beta": "1", "delta": "5#6"}
    absolute = parse_expression(f"-alpha:beta=1 @{tmp_path / 'main.txt'}", SMALL)
    assert absolute == space


def test_errors_in_a_file_name_it_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "knobs.txt"
    file.write_text("# [ a bracket in a comment\n-alpha=on # fine\n   -epsilon=[10|\n  1]\n")
    assert message("@knobs.txt", folder=tmp_path).startswith(f"{file}, line 4, column 3: ")
    file.write_text("-alpha=on -epsilon=0\n\t-epsilon=0")
    assert message("@knobs.txt", folder=tmp_path) == (
        f"{file}, line 2, column 2: '-epsilon=0': "
        f"knob 'epsilon' was already named by '-epsilon=0' at {file}, line 1, column 11"
    )
    assert message("-alpha=on\n -alpho=on").startswith("line 2, column 3: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert message("-alpha=on @none.txt", folder=tmp_path) == (
        f"column 11: '@none.txt': cannot read the expression file {str(tmp_path / 'none.txt')!r}: "
        "No such file or directory"
    )
    assert "Is a directory" in message("@", folder=tmp_path)
    assert "no file has such a name" in message("@a\0b", folder=tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in message("@binary", folder=tmp_path)


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-alpha=on\n@b.txt\n")
    (tmp_path / "b.txt").write_text("\n @./a.txt\n")
    got = message("@a.txt", folder=tmp_path)
    assert got.startswith(f"{tmp_path / 'b.txt'}, line 2, column 2: '@./a.txt': ") and "includes itself" in got


def test_a_file_may_be_named_twice_as_long_as_no_knob_is(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing yet\n")
    assert parse_expression("@empty.txt -alpha=on @empty.txt", SMALL, folder=tmp_path).pinned == {"alpha": "on"}


# -- the real database ----------------------------------------------------------------------------------------
def test_every_closed_knob_of_tensorrt_by_one_glob() -> None:
    space = parse_expression("-*=[*]", tensorrt())
    assert len(space) == 195 and space.pinned == {}
    [note] = space.notes
    assert "peep:max" in note and "(2 more)" in note
    assert space.names == tuple(k.name for k in tensorrt() if not k.open_ended)
    assert [v[c] for v, c in zip(space.values, space.default, strict=True)] == [
        tensorrt()[n].default for n in space.names
    ]


def test_groups_and_open_ended_knobs_of_tensorrt() -> None:
    space = parse_expression("-mha_fusion:*=[*] -peep:max=[0|1|2|8] -cask_fusion:num_tactics=20", tensorrt())
    members = [k for k in tensorrt() if k.name.startswith("mha_fusion:")]
    assert space.names == (*(k.name for k in members if not k.open_ended), "peep:max")
    assert space.values[-1] == ("0", "1", "2", "8") and space.default[-1] == 0
    assert space.pinned == {"cask_fusion:num_tactics": "20"}
    assert space.size == 4 * space.size // 4 and space.size > 2**40


def test_a_default_outside_its_own_list_of_examples_is_added() -> None:
    space = parse_expression("-peep:max=[1|2]", tensorrt())
    assert space.values == (("1", "2", "0"),) and space.default.tolist() == [2]


# -- the rest of what can be wrong ----------------------------------------------------------------------------
@BOTH
def test_an_expression_names_a_knob(strict: bool) -> None:
    assert "names no knob" in message("", strict) and "names no knob" in message("   ", strict)


def test_a_default_that_cannot_be_written_is_said() -> None:
    database = KnobDatabase.of("1", [Knob("k", (), "", open_ended=True)])
    with pytest.raises(ExpressionError, match="its default cannot be added to the list: '' is empty"):
        parse_expression("-k=[a]", database)
    assert parse_expression("-k=a", database).pinned == {"k": "a"}


def test_more_values_than_codes() -> None:
    long = "|".join(map(str, range(32768)))
    assert "lists 32768 values; at most 32767" in message(f"-alpha:gamma=[{long}]")
    long = "|".join(map(str, range(1, 32768)))
    assert "it is full" in message(f"-alpha:gamma=[{long}]")


# -- round trips ---------------------------------------------------------------------------------------------------
@st.composite
def expressions(draw: st.DrawFn) -> tuple[KnobDatabase, str, dict[str, list[str] | str]]:
    """A database, an expression on it, and what the expression says: lists and pins by name."""
    database = draw(databases())
    meant: dict[str, list[str] | str] = {}
    tokens = []
    for knob in draw(st.permutations(database.knobs)):
        possible = list(knob.values) or ["0", "1", "-3"]
        if draw(st.booleans()):
            chosen = draw(st.lists(st.sampled_from(possible), min_size=1, unique=True))
            meant[knob.name] = chosen
            tokens.append(f"-{knob.name}=[{'|'.join(chosen)}]")
        else:
            meant[knob.name] = draw(st.sampled_from(possible))
            tokens.append(f"-{knob.name}={meant[knob.name]}")
    return database, " ".join(tokens), meant


@given(expressions())
def test_an_expression_gives_the_space_it_says(case: tuple[KnobDatabase, str, dict[str, list[str] | str]]) -> None:
    database, text, meant = case
    space = parse_expression(text, database)
    lists = {n: v for n, v in meant.items() if isinstance(v, list)}
    assert space.names == tuple(lists)
    assert space.pinned == {n: v for n, v in meant.items() if isinstance(v, str)}
    for name, values, default in zip(space.names, space.values, space.default.tolist(), strict=True):
        assert list(values[: len(lists[name])]) == lists[name]
        assert values[default] == database[name].default
        assert len(values) - len(lists[name]) == (database[name].default not in lists[name])
    assert SearchSpace.from_spec(space.spec()) == space
    # Writing the space down and reading it again gives the same space.
    written = [f"-{n}=[{'|'.join(v)}]" for n, v in zip(space.names, space.values, strict=True)]
    written += [f"-{n}={v}" for n, v in space.pinned.items()]
    assert parse_expression("\n".join(written), database) == space


@given(expressions())
def test_strict_agrees_on_closed_knobs(case: tuple[KnobDatabase, str, dict[str, list[str] | str]]) -> None:
    database, _, meant = case
    closed = {n: v for n, v in meant.items() if not database[n].open_ended}
    text = " ".join(f"-{n}=[{'|'.join(v)}]" if isinstance(v, list) else f"-{n}={v}" for n, v in closed.items())
    if not closed:
        return
    strict, extended = parse_expression(text, database, strict=True), parse_expression(text, database)
    assert strict.values == extended.values and strict.pinned == extended.pinned
    assert strict.listed.tolist() == [len(v) for v in closed.values() if isinstance(v, list)]


_WORDS = ["alpha", "alpha:beta", "alpha:gamma", "delta", "epsilon", "on", "off", "0", "1", "10"]
PIECES = st.sampled_from([*"-=[]|*? \n\t#@\0é\u2003\ud800", *_WORDS])


@given(st.lists(PIECES | st.characters(), max_size=40).map("".join) | st.text(), st.booleans())
@settings(max_examples=400)
def test_any_text_is_read_or_refused_with_an_expression_error(text: str, strict: bool) -> None:
    with contextlib.suppress(ExpressionError):
        space = parse_expression(text, SMALL, strict=strict, folder="/nowhere")
        assert space.size >= 1 and (len(space) or space.pinned)


LONG = {
    "brackets": "[" * 100_000,
    "values": "-alpha=[" + "x|" * 30_000,
    "duplicates": "-alpha:gamma=[" + "7|" * 30_000 + "]",
    "stars": "-" + "*" * 100_000 + "x=[*]",
    "name": "-" + "alpha" * 20_000 + "=on",
    "tokens": "-alpha=on " * 20_000,
    "equals": "=" * 100_000,
    "lines": "\n" * 200_000,
}


@pytest.mark.parametrize("text", list(LONG.values()), ids=list(LONG))
def test_long_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text, SMALL)


def test_an_expression_error_is_an_input_error() -> None:
    assert issubclass(ExpressionError, InputError)
