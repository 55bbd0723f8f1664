"""Search spaces: exact sizes, round trips between routes, codes and numbers, neighbours, digests."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_spaces import draw_codes, spaces
from tensorrt_knobs import tensorrt

from gpt_search import InputError, Route, SearchSpace, parse_expression
from gpt_search.domain.space import Dimension


def big() -> SearchSpace:
    return parse_expression("-*=[*]", tensorrt())


# -- 195 closed knobs ----------------------------------------------------------------------------------
def test_195_closed_knobs_give_an_exact_size() -> None:
    space = big()
    assert len(space) == 195
    assert type(space.size) is int and space.size == 2**188 * 3**4 * 4**3
    assert 200 < math.log2(space.size) < 201
    assert space.cardinalities.dtype == np.int16 and sorted(set(space.cardinalities.tolist())) == [2, 3, 4]


@given(st.integers(0, 2**188 * 3**4 * 4**3 - 1))
def test_numbers_of_routes_are_exact_at_2_to_the_200(index: int) -> None:
    space = big()
    route = space.route_at(index)
    assert space.index_of(route) == index
    assert space.index_of(str(route)) == index == space.index_of(space.codes_at(index))


def test_the_last_knob_is_the_fastest() -> None:
    space = parse_expression("-conv_lowering=[on|off] -kgen:tiling=[0|1|2]", tensorrt())
    assert [tuple(space.route_at(i).values()) for i in range(6)] == [
        (a, b) for a in ("on", "off") for b in ("0", "1", "2")
    ]
    assert tuple(space.reference.values()) == ("on", "2")
    last = big().codes_at(big().size - 1)
    assert np.array_equal(last, big().cardinalities - 1)


@pytest.mark.parametrize("index", [-1, 6, 2**300])
def test_a_number_outside_is_an_index_error(index: int) -> None:
    space = parse_expression("-conv_lowering=[on|off] -kgen:tiling=[0|1|2]", tensorrt())
    with pytest.raises(IndexError, match=r"outside 0\.\.5"):
        space.codes_at(index)


# -- any space --------------------------------------------------------------------------------------------
@given(st.data(), spaces())
def test_codes_routes_and_numbers_go_round(data: st.DataObject, space: SearchSpace) -> None:
    codes = data.draw(st.composite(draw_codes)(space))
    route = space.route(codes)
    assert Route.parse(str(route)) == route
    assert np.array_equal(space.codes(route), codes) and space.codes(str(route)).dtype == np.int16
    index = space.index_of(codes)
    assert 0 <= index < space.size and np.array_equal(space.codes_at(index), codes)
    assert space.route_at(index) == route
    assert all(route[name] == pin for name, pin in space.pinned.items())
    assert space.holds(codes) and np.array_equal(space.check(codes.astype(np.int64)), codes)


@given(spaces(max_knobs=4, max_values=3))
def test_numbers_count_every_route_once(space: SearchSpace) -> None:
    assert space.size == math.prod(len(v) for v in space.values)
    routes = [str(space.route_at(i)) for i in range(space.size)]
    assert len(set(routes)) == space.size


@given(st.data(), spaces())
def test_neighbours_differ_in_exactly_one_knob_and_are_all_there(data: st.DataObject, space: SearchSpace) -> None:
    codes = data.draw(st.composite(draw_codes)(space))
    near = space.neighbours(codes)
    assert near.dtype == np.int16 and near.shape == (int(sum(space.cardinalities - 1)), len(space))
    assert all((row != codes).sum() == 1 and space.holds(row) for row in near)
    assert len({row.tobytes() for row in near}) == len(near)


@given(spaces())
def test_a_spec_describes_the_space_and_its_digest_is_stable(space: SearchSpace) -> None:
    again = SearchSpace.from_spec(json.loads(json.dumps(space.spec())))
    assert again == space and again.digest == space.digest and hash(again) == hash(space)
    assert again.pinned == space.pinned and list(again.pinned) == list(space.pinned)
    assert np.array_equal(again.listed, space.listed) and np.array_equal(again.default, space.default)


def test_the_digest_never_changes_between_versions() -> None:
    space = SearchSpace([Dimension("a:b", ("on", "off"), 1), Dimension("c", ("0", "é"), 0, 1)], {"p": "7"})
    assert space.digest == "31433b4fdecfe91dfea6c637480b6bacaaf2a1e561a99659ee7c6960ec224672"


def test_the_digest_sees_order_values_defaults_listed_and_pins() -> None:
    a, b = Dimension("a", ("x", "y"), 0), Dimension("b", ("x", "y"), 0)
    variants = [
        SearchSpace([a, b]),
        SearchSpace([b, a]),
        SearchSpace([Dimension("a", ("y", "x"), 0), b]),
        SearchSpace([Dimension("a", ("x", "y"), 1), b]),
        SearchSpace([Dimension("a", ("x", "y"), 0, 1), b]),
        SearchSpace([a], {"b": "x"}),
        SearchSpace([a], {"b": "y"}),
    ]
    assert len({s.digest for s in variants}) == len(variants)
    assert SearchSpace([a, b], notes=["said"]) == SearchSpace([a, b])
    assert SearchSpace([a, b]) != "a space"


def test_samples_are_uniform() -> None:
    space = SearchSpace([Dimension("a", tuple("xyz"), 0), Dimension("b", tuple("xy"), 0)])
    rng = np.random.default_rng(1)
    counts = np.zeros(space.size)
    for _ in range(6000):
        codes = space.sample(rng)
        assert codes.dtype == np.int16
        counts[space.index_of(codes)] += 1
    assert np.abs(counts - 1000).max() < 150  # 5 standard deviations


def test_a_space_without_varying_knobs_holds_one_route() -> None:
    space = SearchSpace([], {"p": "1"})
    assert space.size == 1 and len(space.neighbours(space.default)) == 0
    assert str(space.route_at(0)) == "-p=1" and space.index_of("-p=1") == 0
    assert space.sample(np.random.default_rng(0)).shape == (0,)


def test_arrays_of_a_space_cannot_be_written() -> None:
    space = SearchSpace([Dimension("a", ("x", "y"), 0)])
    for array in (space.cardinalities, space.default, space.listed):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# -- what does not belong ------------------------------------------------------------------------------------
SMALL = SearchSpace([Dimension("a", ("x", "y"), 0), Dimension("b", ("0", "1", "2"), 2)], {"p": "7"})


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("-a=z", "'z' for knob 'a' is not among x"),
        ("-c=1", "knob 'c' is not in this space"),
        ("-p=8", "pinned to '7' in this space, the route sets '8'"),
        ("-a=x -a=y", "sets knob 'a' twice"),
    ],
)
def test_a_route_of_another_space_is_refused(route: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SMALL.codes(route)


def test_what_a_route_leaves_out_is_at_its_default_or_pin() -> None:
    assert SMALL.codes("").tolist() == [0, 2]
    assert SMALL.codes("-b=0 -p=7").tolist() == [0, 0]


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([0], "of shape"),
        ([[0, 0]], "of shape"),
        ([0.0, 1.0], "float64"),
        ([True, False], "bool"),
        ([0, 3], "code 3 for knob 'b' is outside 0..2"),
        ([-1, 0], "code -1 for knob 'a'"),
        ([0, 2**40], "is outside"),
    ],
)
def test_check_names_the_wrong_code(codes: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SMALL.check(np.asarray(codes))
    assert not SMALL.holds(np.asarray(codes)) and not SMALL.holds(codes)


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=2, max_size=2))
def test_holds_agrees_with_check(codes: list[int]) -> None:
    array = np.asarray(codes, np.int16)
    inside = 0 <= codes[0] < 2 and 0 <= codes[1] < 3
    assert SMALL.holds(array) == inside
    if inside:
        assert SMALL.check(array) is not None
    else:
        with pytest.raises(InputError):
            SMALL.check(array)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("k", (), 0), "no values to try"),
        (("k", ("a", "a"), 0), "lists a value twice"),
        (("k", ("a",), 1), "default code 1 is outside"),
        (("k", ("a",), -1), "default code -1 is outside"),
        (("k", ("a", "b"), 0, 0), "0 listed values of 2"),
        (("k", ("a", "b"), 0, 3), "3 listed values of 2"),
        (("k", tuple(map(str, range(32768))), 0), "at most 32767"),
    ],
)
def test_a_dimension_that_contradicts_itself_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Dimension(*arguments)  # type: ignore[arg-type]


def test_a_knob_appears_once_in_a_space() -> None:
    with pytest.raises(InputError, match="appears twice"):
        SearchSpace([Dimension("a", ("x",), 0)], {"a": "x"})
    with pytest.raises(InputError, match="appears twice"):
        SearchSpace([Dimension("a", ("x",), 0), Dimension("a", ("y",), 0)])


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"dimensions": [], "pinned": 3},
        {"dimensions": [["a"]], "pinned": []},
        {"dimensions": 3, "pinned": []},
        {"dimensions": [["a", ["x"], "0", 1]], "pinned": []},
        {"dimensions": [["a", ["x"], 5, 1]], "pinned": []},
    ],
)
def test_a_spec_of_another_form_is_an_input_error(spec: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SearchSpace.from_spec(spec)
