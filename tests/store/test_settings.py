from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_cases import SETTINGS, SPACE

from gpt_search.domain.errors import InputError
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.store.settings import StudySettings, differences

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=8
)
sections = st.dictionaries(st.sampled_from(["workload", "seed", "a", "b"]), values)


def changed(section: str, **leaf: Any) -> StudySettings:
    return SETTINGS.with_section(section, {**SETTINGS[section], **leaf})


@given(sections)
def test_equal_settings_have_no_differences(data: dict[str, Any]) -> None:
    one, two = StudySettings(data), StudySettings(dict(reversed(list(data.items()))))
    assert differences(one, two) == [] and one.digest == two.digest


@given(sections, leaves, leaves)
def test_a_changed_leaf_is_found(data: dict[str, Any], old: Any, new: Any) -> None:
    one, two = StudySettings({**data, "x": {"y": old}}), StudySettings({**data, "x": {"y": new}})
    found = differences(one, two)
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    assert len(found) == (0 if same else 1)
    if not same:
        assert found[0].startswith("x.y: stored ") and "\n" not in found[0]


def test_messages() -> None:
    assert differences(SETTINGS, changed("tolerance", default=0.02)) == ["tolerance.default: stored 0.01, now 0.02"]
    assert differences(SETTINGS, changed("tolerance", by_output={"y": 1.0})) == [
        "tolerance.by_output.y: stored nothing, now 1.0"
    ]
    assert differences(SETTINGS, SETTINGS.with_section("seed", 8)) == ["seed: stored 7, now 8"]
    other_model = StudySettings({"model": {"digest": "1" * 64}}), StudySettings({"model": {"digest": "0" * 64}})
    assert differences(*other_model) == [f"model.digest: stored {'1' * 12}..., now {'0' * 12}..."]
    del_seed = StudySettings({k: v for k, v in SETTINGS.sections.items() if k != "seed"})
    assert differences(SETTINGS, del_seed) == ["seed: stored 7, now nothing"]


def test_several_leaves_are_listed_in_order() -> None:
    wanted = changed("environment", runtime="1.3").with_section("seed", 1)
    assert differences(SETTINGS, wanted) == [
        'environment.runtime: stored "1.2.3", now "1.3"',
        "seed: stored 7, now 1",
    ]


def test_where_a_file_lies_does_not_count_as_long_as_its_digest_is_equal() -> None:
    assert differences(SETTINGS, changed("workload", model="/else/net2.onnx", name="net2")) == []
    moved_and_changed = differences(SETTINGS, changed("workload", model="/else/net.onnx", digest="0" * 64))
    assert [line.partition(":")[0] for line in moved_and_changed] == ["workload.digest", "workload.model"]
    # The digest of a strategy is of its source: its options count still.
    assert differences(SETTINGS, changed("strategy", spec="random:x=1"))
    # Without a digest a path is all there is.
    assert differences(StudySettings({"a": {"path": "x"}}), StudySettings({"a": {"path": "y"}}))


def test_spaces_are_compared_by_knob() -> None:
    stored = SETTINGS.with_space(SPACE)
    assert differences(stored, SETTINGS.with_space(SPACE)) == []
    other = SearchSpace(
        [Dimension("fuse", ("0", "1"), 0), Dimension("tile:k", ("16", "32"), 1), Dimension("new", ("x", "y"), 0)],
        pinned={"fp16": "off", "mode": "a"},
    )
    assert differences(stored, SETTINGS.with_space(other)) == [
        "space.tile:k: stored 16|32|64 (default 32), now 16|32 (default 32)",
        "space.mode: stored a|b (default a), now pinned to a",
        "space.fp16: stored pinned to on, now pinned to off",
        "space.new: stored nothing, now x|y (default x)",
    ]
    swapped = SearchSpace([SPACE.dimensions[i] for i in (1, 0, 2)], SPACE.pinned)
    assert differences(stored, SETTINGS.with_space(swapped)) == [
        "space: the same knobs and values, but in another order or enumeration"
    ]


def test_long_values_that_begin_alike_do_not_look_alike() -> None:
    one, two = StudySettings({"x": ["a"] * 50 + ["b"]}), StudySettings({"x": ["a"] * 50 + ["c"]})
    (line,) = differences(one, two)
    stored, _, now = line.removeprefix("x: stored ").partition(", now ")
    assert stored != now and len(line) < 200


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_settings_must_be_json_like(value: object) -> None:
    with pytest.raises(InputError, match="JSON-like"):
        StudySettings({"x": value})


def test_settings_are_a_copy() -> None:
    data = {"x": {"y": [1]}}
    settings = StudySettings(data)
    data["x"]["y"].append(2)
    assert settings["x"] == {"y": [1]} and settings.get("z", 5) == 5


def test_digests_of_sections() -> None:
    assert SETTINGS.digest_of("workload") == "w" * 64, "its own"
    assert SETTINGS.digest_of("seed") != StudySettings({"seed": 8}).digest_of("seed")
    assert SETTINGS.digest_of("missing") == ""
