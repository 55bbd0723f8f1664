"""TensorRT's options: what is read, what is refused, and what a record keeps of them. Needs no TensorRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.backends.tensorrt_options import FULL, RTX, Range, TensorRTOptions, not_of, option_texts
from gpt_search.domain.errors import InputError

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "profiles": st.lists(
        st.fixed_dictionaries({"x": st.integers(1, 5).map(lambda n: f"{n}x8:{n + 1}x8:{n + 9}x8")}), max_size=2
    ),
    "builder_optimization_level": st.integers(0, 5),
    "avg_timing_iterations": st.integers(1, 20).map(str),
    "tiling_optimization_level": st.sampled_from(["none", "FAST", "full"]),
    "workspace_mib": st.floats(0.5, 1e6),
    "tactic_sources": st.just("jit_convolutions,edge_mask_convolutions"),
    "compute_capability": st.sampled_from(["current", "sm89", "8.9,12.0", ["8.6"]]),
    "timing_cache": st.sampled_from(["frozen", "none", "shared"]),
    "refit": st.sampled_from(["on", "off", True, False]),
    "launch": st.sampled_from(["graph", "stream"]),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_what_a_record_keeps_reads_back(values: dict[str, Any]) -> None:
    options = TensorRTOptions.parse(values)
    kept = json.loads(json.dumps(options.to_json()))
    assert TensorRTOptions.parse(kept) == options
    assert TensorRTOptions.parse(kept).to_json() == kept


def test_without_options_nothing_is_kept() -> None:
    assert TensorRTOptions.parse({}).to_json() == {}


def test_every_option_is_described() -> None:
    texts = option_texts()
    assert {name for name, *_ in texts} >= set(VALUES)
    assert all(text and when in ("build", "run") for _, _, when, text in texts)


@pytest.mark.parametrize("profile", [{"x": "1x8:4x8:16x8"}, {"x": [[1, 8], "4x8", (16, 8)]}])
def test_a_profile(profile: dict[str, object]) -> None:
    expected = ({"x": Range((1, 8), (4, 8), (16, 8))},)
    assert TensorRTOptions.parse({"profiles": profile}).profiles == expected
    by_name = {"x": {"min": "1x8", "opt": "4x8", "max": "16x8"}}
    assert TensorRTOptions.parse({"profiles": [by_name]}).profiles == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"launhc": "graph"}, r"unknown TensorRT option 'launhc'; did you mean 'launch'\?"),
        ({"timing_cache_fil": "x"}, "unknown TensorRT option"),
        ({"launch": "grap"}, r"launch: 'grap' is not one of graph, stream; did you mean 'graph'\?"),
        ({"builder_optimization_level": 6}, "'?6'? is not a whole number from 0 to 5"),
        ({"builder_optimization_level": True}, "True is not a whole number"),
        ({"workspace_mib": "-1"}, "not a number above 0"),
        ({"workspace_mib": "nan"}, "not a number above 0"),
        ({"refit": "maybe"}, "not one of on, off"),
        ({"profiles": "x"}, "not a list of profiles"),
        ({"profiles": {"x": "1x8:4x8"}}, "not a range"),
        ({"profiles": {"x": "4x8:1x8:8x8"}}, "not in the order min <= opt <= max"),
        ({"profiles": {"x": "4:4x8:8x8"}}, "different ranks"),
        ({"profiles": [{"x": "1:1:1"}, {"y": "1:1:1"}]}, "must name the same inputs"),
        ({"profiles": {"x": {"min": "1", "max": "2"}}}, "a range has min, opt and max"),
        ({"compute_capability": "ada"}, "not a compute capability"),
        ({"compute_capability": "current,8.9"}, "either current, or"),
        ({"plugins": "/nowhere/plugin.so"}, "cannot be read: No such file"),
        ({"weight_streaming_budget": "auto", "weight_streaming": True}, "'auto' is not a whole number, 0 or more"),
        ({"exclude_lean_runtime": True}, "needs version_compatible=on"),
        ({"refit": True, "refit_identical": True}, "exclude each other"),
        ({"weight_streaming_budget": 0}, "weight_streaming_budget needs weight_streaming=on"),
        ({"timing_points": {"x": "1"}}, "unknown TensorRT option 'timing_points'"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TensorRTOptions.parse(values)


def test_plugins_count_by_content(tmp_path: Path) -> None:
    library = tmp_path / "plugin.so"
    library.write_bytes(b"one")
    kept = TensorRTOptions.parse({"plugins": str(library)}).to_json()
    assert TensorRTOptions.parse(kept).to_json() == kept
    library.write_bytes(b"two")
    assert TensorRTOptions.parse({"plugins": str(library)}).to_json() != kept
    with pytest.raises(InputError, match="its content differs"):
        TensorRTOptions.parse(kept)


@pytest.mark.parametrize("library", [FULL, RTX])
def test_what_only_one_library_has_is_refused_with_the_other(library: str) -> None:
    refused = not_of(library)
    assert set(refused.values()) == {RTX if library == FULL else FULL}
    assert "cuda_graph_strategy" in not_of(FULL) and "timing_cache" in not_of(RTX)
