"""Digests: stable, and blind to what does not matter only."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.domain.digest import digest_of, digest_of_file

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_like, max_size=4))
def test_the_order_of_a_dictionary_does_not_count(value: dict[str, object]) -> None:
    assert digest_of(value) == digest_of(dict(reversed(value.items())))
    assert digest_of(value) != digest_of([value])


def test_digests_never_change_between_versions() -> None:
    assert digest_of({"b": [1, None, "é"], "a": 0.5}) == hashlib.sha256(b'{"a":0.5,"b":[1,null,"\\u00e9"]}').hexdigest()
    assert len(digest_of("\ud800")) == 64  # JSON may hold half a character


@pytest.mark.parametrize("value", [math.nan, [math.inf]])
def test_what_json_has_no_number_for_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        digest_of(value)


def test_files_are_digested_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert digest_of_file(tmp_path / "a") == digest_of_file(str(tmp_path / "a")) == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(OSError, match="none"):
        digest_of_file(tmp_path / "none")
