import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpt_search.accuracy.golden import GOLDEN_KINDS, golden_digest, load_golden, save_golden
from gpt_search.accuracy.losses import losses_of_pair
from gpt_search.accuracy.types import type_name
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Array, GoldenPair

_TYPES = ["f2", "f4", "f8", ">f4", "i1", "u1", "i8", "?", "c8", ml_dtypes.bfloat16, ml_dtypes.int4]
_name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_shape = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def _tensor(draw: st.DrawFn) -> Array:
    shape = draw(_shape)
    if draw(st.booleans()):
        array: Array = np.empty(shape, object)
        for i in np.ndindex(*shape):
            array[i] = draw(st.text(max_size=3))
        return array
    small = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 7)))
    return small.astype(draw(st.sampled_from(_TYPES)))


_tensors = st.dictionaries(_name, _tensor(), max_size=3)
_pairs = st.lists(st.builds(GoldenPair, _tensors, _tensors), min_size=1, max_size=3)
_json = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()))


def same(a: GoldenPair, b: GoldenPair) -> bool:
    return all(
        list(x) == list(y)
        and all(
            x[n].shape == y[n].shape
            and type_name(x[n].dtype) == type_name(y[n].dtype)
            and x[n].tolist() == y[n].tolist()
            for n in x
        )
        for x, y in ((a.inputs, b.inputs), (a.outputs, b.outputs))
    )


@pytest.fixture
def pairs() -> list[GoldenPair]:
    rng = np.random.default_rng(0)
    return [
        GoldenPair({"x": rng.random((2, 3), np.float32)}, {"y": rng.random(4), "id": np.arange(3)}) for _ in range(2)
    ]


@given(_pairs, _json)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path: Path, pairs: list[GoldenPair], info: dict[str, Any]) -> None:
    """Any names, types, shapes and strings."""
    path = tmp_path / "golden.npz"
    save_golden(path, pairs, info)
    loaded, loaded_info = load_golden(path)
    assert len(loaded) == len(pairs)
    assert all(same(a, b) for a, b in zip(pairs, loaded, strict=True))
    assert loaded_info == info
    assert golden_digest(path) == golden_digest(pairs) == golden_digest(loaded)


def test_loaded_outputs_have_no_loss(tmp_path: Path, pairs: list[GoldenPair]) -> None:
    save_golden(tmp_path / "g.npz", pairs, {})
    loaded, _ = load_golden(tmp_path / "g.npz")
    for a, b in zip(loaded, pairs, strict=True):
        assert {x for by in losses_of_pair(a.outputs, b.outputs).values() for x in by.values()} == {0.0}


def test_nothing_is_pickled_and_the_name_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "golden"  # numpy would append .npz
    save_golden(path, [GoldenPair({"s": np.array(["a", "c"], object)}, {})], {})
    assert [p.name for p in tmp_path.iterdir()] == ["golden"]
    with np.load(path, allow_pickle=False) as data:
        assert all(data[name].dtype != object for name in data.files)


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path, pairs: list[GoldenPair]) -> None:
    path = tmp_path / "g.npz"
    save_golden(path, pairs, {"kind": GOLDEN_KINDS[0]})
    bad = [GoldenPair({"x": np.array(["2020-01-01"], "datetime64[D]")}, {})]
    for wrong, info in (
        (bad, {}),
        ([GoldenPair({"x": np.array([1, None], object)}, {})], {}),
        (pairs, {"x": object()}),
    ):
        with pytest.raises(TypeError):
            save_golden(path, wrong, info)
    with pytest.raises(ValueError, match="no golden pairs"):
        save_golden(path, [], {})
    assert load_golden(path)[1] == {"kind": "files"}
    assert [p.name for p in tmp_path.iterdir()] == ["g.npz"]


def test_digest_covers_what_is_compared_and_nothing_else(tmp_path: Path, pairs: list[GoldenPair]) -> None:
    base = golden_digest(pairs)
    x, y = pairs[0].inputs["x"], pairs[0].outputs["y"]

    def changed(inputs: dict[str, Array], outputs: dict[str, Array]) -> str:
        return golden_digest([GoldenPair(inputs, outputs), pairs[1]])

    ids = pairs[0].outputs["id"]
    same_order = changed({"x": x}, {"id": ids, "y": y})
    same_bytes = changed({"x": np.asfortranarray(x).astype(">f4")}, dict(pairs[0].outputs))
    assert base == same_order == same_bytes
    others = [
        changed({"x": x + 1}, dict(pairs[0].outputs)),
        changed({"x": x.reshape(3, 2)}, dict(pairs[0].outputs)),
        changed({"x": x.view(np.int32)}, dict(pairs[0].outputs)),
        changed({"z": x}, dict(pairs[0].outputs)),
        changed({"x": x}, {"y": y}),
        changed({"x": x, "y": y}, {"id": ids}),
        golden_digest(pairs[::-1]),
        golden_digest(pairs[:1]),
    ]
    assert len({base, *others}) == 1 + len(others)
    save_golden(tmp_path / "a.npz", pairs, {"seed": 1})
    save_golden(tmp_path / "b.npz", pairs, {"seed": 2})
    assert golden_digest(tmp_path / "a.npz") == golden_digest(str(tmp_path / "b.npz")) == base


def test_files_that_are_no_golden_files(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], object))
    for name, message in {
        "absent.npz": "No such file",
        "text.npz": "without unpickling",
        "empty.npz": "without unpickling",
        "one.npy": "single array",
        "other.npz": "no entry 'index'",
        "pickled.npz": "without unpickling",
        ".": "cannot read",
    }.items():
        with pytest.raises(InputError, match=message) as caught:
            load_golden(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_damaged_files(tmp_path: Path, pairs: list[GoldenPair]) -> None:
    path = tmp_path / "g.npz"
    save_golden(path, pairs, {})
    whole = path.read_bytes()
    for length in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            load_golden(path)
    flipped = bytearray(whole)
    flipped[whole.index(pairs[0].inputs["x"].tobytes()) + 3] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(InputError):
        load_golden(path)


@pytest.mark.parametrize("change", ["pairs", "entry", "shape", "type"])
def test_an_index_that_does_not_fit(tmp_path: Path, pairs: list[GoldenPair], change: str) -> None:
    path = tmp_path / "g.npz"
    save_golden(path, pairs, {})
    with np.load(path) as data:
        entries = {name: data[name] for name in data.files}
    index = json.loads(entries["index"].tobytes())
    first = index["pairs"][0]["inputs"][0]
    if change == "pairs":
        del index["pairs"]
    else:
        first[change] = {"entry": "no", "shape": [6], "type": "int32"}[change]
    entries["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez(path, **entries)
    with pytest.raises(InputError, match="damaged"):
        load_golden(path)
