from pathlib import Path
from typing import Any
from urllib.parse import quote

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_search.accuracy.golden import golden_digest, read_user_golden, save_golden
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Array, GoldenPair

INPUTS = {"ids": ("int64", (2, 3)), "a/mask:0": (np.float32, (2,))}
OUTPUTS = {"y": ("float32", (2, "n")), "h": ("bfloat16", (4,))}


def make(seed: int) -> GoldenPair:
    rng = np.random.default_rng(seed)
    return GoldenPair(
        {"ids": rng.integers(0, 9, (2, 3)), "a/mask:0": rng.random(2, np.float32)},
        {"y": rng.random((2, 5), np.float32), "h": rng.random(4).astype(ml_dtypes.bfloat16)},
    )


def write_npz(path: Path, pair: GoldenPair, drop: str = "", **more: Array) -> Path:
    entries: dict[str, Any] = {f"inputs/{n}": x for n, x in pair.inputs.items()}
    entries |= {f"outputs/{n}": x for n, x in pair.outputs.items()}
    entries.pop(drop, None)
    np.savez(path, **(entries | more))
    return path


def write_raw(folder: Path, pair: GoldenPair) -> Path:
    for side in ("inputs", "outputs"):
        for name, tensor in getattr(pair, side).items():
            file = folder / side / f"{quote(name, safe='')}.bin"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(np.ascontiguousarray(tensor).tobytes())
    return folder


def read(path: Path) -> list[GoldenPair]:
    return read_user_golden(path, INPUTS, OUTPUTS)


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(InputError) as caught:
        read(path)
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert "\n" not in text


def test_our_own_form(tmp_path: Path) -> None:
    pairs = [make(0), make(1)]
    save_golden(tmp_path / "g.npz", pairs, {})
    assert golden_digest(read(tmp_path / "g.npz")) == golden_digest(pairs)


def test_one_npz_with_named_entries(tmp_path: Path) -> None:
    found = read(write_npz(tmp_path / "p.npz", make(0)))
    assert golden_digest(found) == golden_digest([make(0)])
    assert found[0].outputs["h"].dtype == ml_dtypes.bfloat16  # numpy.savez forgets this type


def test_one_folder_of_raw_files(tmp_path: Path) -> None:
    found = read(write_raw(tmp_path / "p", make(0)))
    assert golden_digest(found) == golden_digest([make(0)])
    assert list(found[0].inputs) == list(INPUTS)
    assert found[0].outputs["y"].shape == (2, 5)  # the free dimension follows from the size


def test_raw_names_may_be_paths(tmp_path: Path) -> None:
    folder = write_raw(tmp_path / "p", make(0))
    (folder / "inputs" / "a").mkdir()
    (folder / "inputs" / "a%2Fmask%3A0.bin").rename(folder / "inputs" / "a" / "mask:0.bin")
    assert golden_digest(read(folder)) == golden_digest([make(0)])


def test_a_folder_of_pairs_in_natural_order(tmp_path: Path) -> None:
    write_npz(tmp_path / "pair10.npz", make(10))
    write_npz(tmp_path / "pair2.npz", make(2))
    write_raw(tmp_path / "pair1", make(1))
    (tmp_path / "notes.txt").write_text("not a pair")
    assert golden_digest(read(tmp_path)) == golden_digest([make(1), make(2), make(10)])


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_in_raw_form(tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"{abs(hash(name))}"
    pair = GoldenPair({name: np.arange(3)}, {"y": np.ones(1)})
    if name in (".", "..") or len(quote(name, safe="")) > 250:
        return  # a name no file can have
    found = read_user_golden(write_raw(folder, pair), {name: ("int64", (3,))}, {"y": ("float64", (1,))})
    assert golden_digest(found) == golden_digest([pair])


def test_missing_tensors(tmp_path: Path) -> None:
    refused(write_npz(tmp_path / "a.npz", make(0), "inputs/ids"), "input 'ids' is missing", "a/mask:0")
    refused(write_npz(tmp_path / "b.npz", make(0), "outputs/y"), "output 'y' is missing")
    folder = write_raw(tmp_path / "raw", make(0))
    (folder / "inputs" / "ids.bin").unlink()
    refused(folder, "no file for input 'ids'", "inputs/ids.bin")


def test_unknown_tensors(tmp_path: Path) -> None:
    refused(write_npz(tmp_path / "a.npz", make(0), **{"inputs/idx": np.ones(1)}), "no input 'idx'", "mean 'ids'")
    refused(write_npz(tmp_path / "b.npz", make(0), x=np.ones(1)), "'x' is neither 'inputs/NAME' nor 'outputs/NAME'")
    folder = write_raw(tmp_path / "raw", make(0))
    (folder / "outputs" / "Y.bin").write_bytes(b"")
    refused(folder, "no output 'Y'", "mean 'y'")


def test_wrong_type_and_shape(tmp_path: Path) -> None:
    wrong = {"inputs/ids": np.ones((2, 3), np.int32)}
    refused(write_npz(tmp_path / "a.npz", make(0), **wrong), "input 'ids' is of type int32, the model's is int64")
    wrong = {"inputs/ids": np.ones((3, 2), np.int64)}
    refused(write_npz(tmp_path / "b.npz", make(0), **wrong), "'ids' has shape 3x2, expected 2x3", "--shape")
    wrong = {"outputs/y": np.ones((3, 5), np.float32)}
    refused(write_npz(tmp_path / "c.npz", make(0), **wrong), "'y' has shape 3x5, expected 2x?")
    wrong = {"outputs/y": np.ones(2, np.float32)}
    refused(write_npz(tmp_path / "d.npz", make(0), **wrong), "'y' has shape 2, expected 2x?")


@pytest.mark.parametrize("size", [0, 40, 47, 49, 96])
def test_wrong_size_of_a_raw_file(tmp_path: Path, size: int) -> None:
    folder = write_raw(tmp_path, make(0))
    (folder / "inputs" / "ids.bin").write_bytes(bytes(size))
    refused(folder, f"{size} bytes; 'ids' (int64 of shape 2x3) takes 48 bytes")


def test_wrong_size_with_a_free_dimension(tmp_path: Path) -> None:
    folder = write_raw(tmp_path, make(0))
    (folder / "outputs" / "y.bin").write_bytes(bytes(12))
    refused(folder, "12 bytes; 'y' (float32 of shape 2x?) takes a multiple of 8 bytes")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["y", "h"])
def test_a_reference_that_is_not_finite(tmp_path: Path, bad: float, name: str) -> None:
    pair = make(0)
    pair.outputs[name][-1] = bad  # type: ignore[index]
    refused(write_npz(tmp_path / "a.npz", pair), f"reference output {name!r} holds NaN or infinity in")
    refused(write_raw(tmp_path / "raw", pair), f"reference output {name!r} holds NaN or infinity in")


def test_infinite_inputs_are_the_users_business(tmp_path: Path) -> None:
    pair = make(0)
    pair.inputs["a/mask:0"][0] = -np.inf  # type: ignore[index]
    assert read(write_npz(tmp_path / "a.npz", pair))[0].inputs["a/mask:0"][0] == -np.inf


def test_what_has_no_raw_form(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "inputs" / "x.bin").write_bytes(bytes(4))
    for spec, message in {
        ("string", (1,)): "strings",
        ("int4", (4,)): "smaller than a byte",
        ("float32", ("a", "b")): "2 free dimensions",
    }.items():
        with pytest.raises(InputError, match=message):
            read_user_golden(tmp_path, {"x": spec}, {"y": ("float32", (1,))})
    with pytest.raises(InputError, match="outputs are known"):
        read_user_golden(tmp_path, {"x": ("float32", (1,))})


def test_scalars_and_empty_tensors_in_raw_form(tmp_path: Path) -> None:
    pair = GoldenPair({"x": np.array(3.5), "e": np.zeros((0, 4), np.float32)}, {"y": np.array(True)})
    specs = {"x": ("float64", ()), "e": ("float32", (-1, 4))}
    found = read_user_golden(write_raw(tmp_path, pair), specs, {"y": ("bool", ())})
    assert golden_digest(found) == golden_digest([pair])


def test_outputs_are_unchecked_without_specs_but_must_be_there(tmp_path: Path) -> None:
    only = {"x": ("float32", (1,))}
    pair = GoldenPair({"x": np.ones(1, np.float32)}, {"any": np.ones(7)})
    assert golden_digest(read_user_golden(write_npz(tmp_path / "a.npz", pair), only)) == golden_digest([pair])
    with pytest.raises(InputError, match="no reference outputs"):
        read_user_golden(write_npz(tmp_path / "b.npz", GoldenPair(pair.inputs, {})), only)


def test_paths_with_nothing_to_read(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no such file or folder")
    refused(tmp_path, "no golden pairs there", "inputs/NAME.bin")
    (tmp_path / "text.npz").write_text("hello")
    refused(tmp_path / "text.npz", "not an .npz file")


def test_an_output_of_unknown_rank_takes_any_shape_but_has_no_raw_form(tmp_path: Path) -> None:
    pair = GoldenPair({"x": np.arange(3)}, {"y": np.ones((2, 3))})
    specs = {"x": ("int64", (3,))}, {"y": ("float64", None)}
    np.savez(tmp_path / "a.npz", **{"inputs/x": pair.inputs["x"], "outputs/y": pair.outputs["y"]})
    assert golden_digest(read_user_golden(tmp_path / "a.npz", *specs)) == golden_digest([pair])
    with pytest.raises(InputError, match=r"does not tell the rank of 'y'; give it as \.npz"):
        read_user_golden(write_raw(tmp_path / "raw", pair), *specs)
    with pytest.raises(InputError, match="'y' is of type float64, the model's is float32"):
        read_user_golden(tmp_path / "a.npz", specs[0], {"y": ("float32", None)})
