"""Knobs and knob databases: the real one of TensorRT 11.1.0, and any that can be written."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_spaces import databases, names, values
from tensorrt_knobs import tensorrt, tensorrt_json

from gpt_search import InputError, Knob, KnobDatabase


# -- the real database -------------------------------------------------------------------------------
def test_the_real_database_has_209_knobs_of_three_kinds() -> None:
    database = tensorrt()
    assert database.tuner_version == "2.19.45" and len(database) == 209
    closed = [k for k in database if not k.open_ended]
    assert sum(k.values == ("on", "off") for k in closed) == 188
    assert sorted(len(k.values) for k in closed if k.values != ("on", "off")) == [3] * 4 + [4] * 3
    opened = [k for k in database if k.open_ended]
    assert len(opened) == 14 and all(k.integer for k in opened)


def test_an_open_ended_list_keeps_its_examples_and_its_outside_default() -> None:
    knob = tensorrt()["peep:max"]
    assert (knob.values, knob.default, knob.open_ended, knob.allowed) == (("1", "2"), "0", True, "[1|2|...]")
    assert knob.check("17") is None and "not a whole number" in str(knob.check("many"))
    assert tensorrt()["kgen:topk_algo"].allowed == "int"


def test_the_real_database_survives_writing_and_reading() -> None:
    database = tensorrt()
    again = KnobDatabase.from_json(database.to_json())
    assert again == database and again.digest == database.digest
    spelled = [e["allowed_values"] for e in json.loads(database.to_json())["tuner_options"]]
    assert spelled == [e["allowed_values"] for e in json.loads(tensorrt_json())["tuner_options"]]


def test_order_and_lookup() -> None:
    database = tensorrt()
    assert database.names[:2] == ("conv_use_long_w", "conv_use_long_w:reshapes")
    assert [k.name for k in database] == list(database.names)
    assert "kgen:tiling" in database and "kgen" not in database
    assert database.defaults["kgen:tiling"] == "2" and len(database.defaults) == 209
    with pytest.raises(InputError, match=r"unknown knob 'kgen:tilling'; did you mean 'kgen:tiling'\? \(209 knobs"):
        database["kgen:tilling"]


# -- any database ----------------------------------------------------------------------------------------
@given(databases())
def test_any_database_survives_writing_and_reading(database: KnobDatabase) -> None:
    again = KnobDatabase.from_json(database.to_json())
    assert again == database and again.digest == database.digest
    assert again.to_json() == database.to_json()


@given(databases(), st.text(max_size=4))
def test_the_digest_covers_all_but_the_help_texts(database: KnobDatabase, text: str) -> None:
    first = database.knobs[0]
    helped = Knob(first.name, first.values, first.default, text, first.open_ended, first.integer)
    assert KnobDatabase(database.tuner_version, (helped, *database.knobs[1:])).digest == database.digest
    other = Knob(first.name, (*first.values, "more!"), first.default, "", first.open_ended)
    if not first.integer:
        assert KnobDatabase(database.tuner_version, (other, *database.knobs[1:])).digest != database.digest
    assert KnobDatabase(database.tuner_version + "1", database.knobs).digest != database.digest


@given(names, st.lists(values, min_size=1, unique=True), st.text())
def test_a_closed_knob_takes_its_values_and_no_others(name: str, allowed: list[str], text: str) -> None:
    knob = Knob(name, tuple(allowed), allowed[-1])
    assert all(knob.check(v) is None for v in allowed)
    assert (knob.check(text) is None) == (text in allowed)


@pytest.mark.parametrize("text", ["1", "-3", "+7", "007"])
def test_whole_numbers(text: str) -> None:
    assert Knob("k", (), "0", open_ended=True, integer=True).check(text) is None


@pytest.mark.parametrize("text", ["", "1.0", "1_0", "--1", "²", "१", " 1", "1\n", "one"])
def test_what_only_looks_like_a_whole_number(text: str) -> None:
    assert Knob("k", (), "0", open_ended=True, integer=True).check(text) is not None


@pytest.mark.parametrize("listed", [(), ("1", "2")])
def test_a_default_that_is_no_whole_number_is_a_value_of_its_knob(listed: tuple[str, ...]) -> None:
    """A compiler may say [1|2|...] and mean "auto" where nothing is set: the default can be written down, too."""
    knob = Knob("k", listed, "auto", open_ended=True, integer=True)
    assert knob.integer and knob.check("auto") is None and knob.check("17") is None
    assert knob.check("many") == "'many' is not a whole number"
    assert KnobDatabase.from_json(KnobDatabase.of("1", [knob]).to_json())["k"] == knob
    assert "is empty" in str(Knob("k", listed, "", open_ended=True, integer=True).check(""))


def test_a_wrong_value_gets_the_list_and_the_nearest() -> None:
    why = Knob("k", ("aggressive", "conservative"), "aggressive").check("agressive")
    assert why == "'agressive' is not among aggressive|conservative; did you mean 'aggressive'?"


def test_examples_decide_whether_an_open_ended_knob_is_whole_numbered() -> None:
    assert Knob("k", ("1", "-2"), "0", open_ended=True).integer
    assert not Knob("k", ("1", "auto"), "0", open_ended=True).integer
    assert not Knob("k", ("1", "2"), "1", integer=True).integer  # closed: its list says it all
    with pytest.raises(InputError, match=r"takes whole numbers, but lists 1\|auto"):
        Knob("k", ("1", "auto"), "0", open_ended=True, integer=True)


# -- what cannot be a knob ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", ("a",), "a"), "name '' is empty"),
        (("a b", ("a",), "a"), "contains white space"),
        (("a=b", ("a",), "a"), "one of ="),
        (("k", (), "a"), "no allowed values"),
        (("k", ("a", "b", "a"), "a"), "lists a value twice"),
        (("k", ("a", "b"), "c"), "default 'c', which is not among its values a|b"),
        (("k", ("a", ""), "a"), "the value '' is empty"),
        (("k", ("a", "b c"), "a"), "contains white space"),
        (("k", ("a", "b]"), "a"), "'b]'"),
        (("k", ("a", "..."), "a"), "stands for values beyond"),
    ],
)
def test_a_knob_that_contradicts_itself_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("|", r"\|").replace("]", r"\]")):
        Knob(*arguments)  # type: ignore[arg-type]


def entry(**changes: object) -> str:
    given = {"option": "-k", "allowed_values": "-k=[on|off]", "default_value": "on", "help": "", **changes}
    return json.dumps({"tuner_version": "1", "tuner_options": [{k: v for k, v in given.items() if v is not None}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  ", "is empty: this compiler build does not support"),
        ("{", "not JSON"),
        ("[]", "'tuner_options'"),
        ('{"tuner_version": "1"}', "'tuner_options'"),
        ('{"tuner_options": []}', "'tuner_version'"),
        ('{"tuner_version": "1", "tuner_options": [3]}', r"tuner_options\[0\] is int"),
        (entry(default_value=None), "'default_value'"),
        (entry(default_value=1), "'default_value'"),
        (entry(option="k"), "does not start with '-'"),
        (entry(allowed_values="-j=[on|off]"), "does not start with '-k='"),
        (entry(allowed_values="-k="), "allows nothing"),
        (entry(allowed_values="-k=[]"), "allows nothing"),
        (entry(allowed_values="-k=[on||off]"), "the value '' is empty"),
        (entry(default_value="auto"), "default 'auto'"),
        (entry(option="-k:*", allowed_values="-k:*=[on]"), "one of ="),
    ],
)
def test_a_database_that_cannot_be_read_says_why(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        KnobDatabase.from_json(text)


def test_a_name_may_appear_once() -> None:
    with pytest.raises(InputError, match="names 'k' twice"):
        KnobDatabase.of("1", [Knob("k", ("a",), "a"), Knob("k", ("b",), "b")])


@given(
    st.text()
    | st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_any_text_is_read_or_refused_with_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(KnobDatabase.from_json(text), KnobDatabase)
