"""Routes: what is written, what is read, what is equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_spaces import names, values

from gpt_search import InputError, Route

routes = st.dictionaries(names, values, max_size=6).map(lambda d: Route(tuple(d.items())))


@given(routes)
def test_a_route_survives_writing_and_reading(route: Route) -> None:
    again = Route.parse(str(route))
    assert again == route and again.items_in_order == route.items_in_order and str(again) == str(route)


@given(routes, st.randoms(use_true_random=False))
def test_order_does_not_matter_to_equality_and_digest(route: Route, random) -> None:  # type: ignore[no-untyped-def]
    items = list(route.items_in_order)
    random.shuffle(items)
    other = Route(tuple(items))
    assert other == route and hash(other) == hash(route) and other.digest({}) == route.digest({})


@given(routes, st.data())
def test_spelled_out_defaults_do_not_matter_to_the_digest(route: Route, data: st.DataObject) -> None:
    defaults = {n: data.draw(st.sampled_from([v, v + "x"])) for n, v in route.items()}
    changes = route.changes(defaults)
    assert all(defaults[n] != v for n, v in changes.items())
    assert set(route) - set(changes) == {n for n in route if defaults[n] == route[n]}
    assert changes.digest(defaults) == route.digest(defaults)
    if len(changes) < len(route):
        assert changes.digest({}) != route.digest({})


def test_a_route_is_a_mapping_in_writing_order() -> None:
    route = Route.parse(" -b=2\t-a:c=x=1\n")
    assert dict(route) == {"b": "2", "a:c": "x=1"} and list(route) == ["b", "a:c"] and len(route) == 2
    assert route["a:c"] == "x=1" and "c" not in route
    assert route != {"b": "2", "a:c": "x=1"}  # a route equals routes only
    assert len(Route.parse("")) == 0 and str(Route(())) == ""


@pytest.mark.parametrize("text", ["a=1", "-a", "-a=", "-=1", "-a=[x|y]", "-a=1 b"])
def test_what_is_no_route_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not of the form -name=value"):
        Route.parse(text)


def test_a_knob_set_twice_is_refused() -> None:
    with pytest.raises(InputError, match="sets knob 'b' twice"):
        Route.parse("-a=1 -b=1 -b=1")
