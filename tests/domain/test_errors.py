"""Suggestions and listings in error messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpt_search.domain.errors import InputError, did_you_mean, listing, nearest


def test_the_nearest_name_is_suggested() -> None:
    allowed = ["genetic", "random", "tpe"]
    assert nearest("RANDOM", allowed) == "random" and nearest("genetik", allowed) == "genetic"
    assert nearest("xyzzy", allowed) is None and nearest("x", []) is None
    assert did_you_mean("tep", allowed) == "; did you mean 'tpe'?" and did_you_mean("xyzzy", allowed) == ""


@given(st.text(), st.lists(st.text(), max_size=5))
def test_a_suggestion_is_always_an_allowed_name(name: str, allowed: list[str]) -> None:
    assert nearest(name, allowed) in (None, *allowed)


def test_long_listings_say_how_much_they_leave_out() -> None:
    assert listing(map(str, range(12))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert listing("abcd", limit=2) == "a, b, ... (2 more)"


def test_bad_input_is_a_value_error() -> None:
    assert issubclass(InputError, ValueError)
