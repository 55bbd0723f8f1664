import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from gpt_search.accuracy import losses as module
from gpt_search.accuracy.losses import METRICS, compute_losses, losses_of_pair

INFINITE = dict.fromkeys(METRICS, math.inf)
PERFECT = dict.fromkeys(METRICS, 0.0)
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]

_shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def _pairs(elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    return _shapes.flatmap(
        lambda s: st.tuples(hnp.arrays(np.float64, s, elements=elements), hnp.arrays(np.float64, s, elements=elements))
    )


@given(_pairs(st.floats(-1e3, 1e3)))
def test_against_the_definitions(pair: tuple[NDArray[np.float64], NDArray[np.float64]]) -> None:
    a, b = pair
    found = compute_losses(a, b)
    assert tuple(found) == METRICS
    if a.size == 0:
        assert found == PERFECT
        return
    d = np.abs(a - b)
    assert found["l0"] == pytest.approx(np.mean(d > 1e-5 + 1e-5 * np.abs(b)))
    assert found["l1"] == pytest.approx(d.mean(), rel=1e-12)
    assert found["l2"] == pytest.approx((d**2).mean(), rel=1e-12)
    assert found["lInf"] == d.max()
    na, nb = np.linalg.norm(a), np.linalg.norm(b)
    if na > 1e-100 and nb > 1e-100:
        assert found["cos"] == pytest.approx(1 - float((a * b).sum()) / (na * nb), abs=1e-12)


@given(_pairs(st.floats(allow_nan=False, allow_infinity=False)))
def test_any_finite_numbers(pair: tuple[NDArray[np.float64], NDArray[np.float64]]) -> None:
    """No NaN, nothing negative, symmetric where the definition is; infinite only where the number is too large."""
    a, b = pair
    found, turned = compute_losses(a, b), compute_losses(b, a)
    for name, value in found.items():
        assert value >= 0
        assert name == "l0" or turned[name] == pytest.approx(value)
    assert found["cos"] <= 2
    assert math.isfinite(found["l0"])
    assert found["l1"] <= found["lInf"] * (1 + 1e-9)
    assert compute_losses(a, a.copy()) == PERFECT


@given(_pairs(st.floats(-10, 10)), st.integers(1, 7))
def test_chunks_make_no_difference(pair: tuple[NDArray[np.float64], NDArray[np.float64]], chunk: int) -> None:
    whole = compute_losses(*pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        assert compute_losses(*pair) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("power", [-1000, -500, 0, 500, 1000])
def test_extreme_scales(power: int) -> None:
    a, b = np.ldexp([1.0, 2.0, -3.0], power), np.ldexp([1.5, 2.0, -2.0], power)
    found = compute_losses(a, b)
    unit = compute_losses(np.ldexp(a, -power), np.ldexp(b, -power))
    assert found["l1"] == math.ldexp(unit["l1"], power)
    assert found["lInf"] == math.ldexp(unit["lInf"], power)
    if abs(power) <= 500:
        assert found["l2"] == math.ldexp(unit["l2"], 2 * power)
    assert found["cos"] == pytest.approx(unit["cos"], rel=1e-12)
    assert compute_losses(np.ldexp(a, -power), b)["cos"] == pytest.approx(unit["cos"], rel=1e-12)
    assert compute_losses(np.array([1e308]), np.array([-1e308])) == {
        "l0": 1.0, "l1": math.inf, "l2": math.inf, "lInf": math.inf, "cos": 2.0
    }  # fmt: skip


def test_a_tiny_angle_is_not_lost_to_cancellation() -> None:
    a = np.array([1.0, 0.0])
    assert compute_losses(np.array([1.0, 1e-9]), a)["cos"] == pytest.approx(0.5e-18)


def test_cosine_of_zero_vectors() -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert compute_losses(zero, zero)["cos"] == 0
    assert compute_losses(zero, one)["cos"] == 1
    assert compute_losses(one, zero)["cos"] == 1
    assert compute_losses(1e-200 * one, one)["cos"] < 1e-30  # trtexec: 1 below a norm of 1e-12


def test_l0_counts_what_is_outside_and_equal_is_inside() -> None:
    reference = np.array([0.0, 1.0, -1.0, 4.0])
    output = np.array([0.5, 1.75, -1.76, 4.0])
    assert compute_losses(output, reference, atol=0.5, rtol=0.25)["l0"] == 0.25
    assert compute_losses(output, reference, atol=0, rtol=0)["l0"] == 0.75


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_types_are_summed_in_float64(dtype: type) -> None:
    b = np.ones(4096, dtype)
    a = b.copy()
    a[::2] = dtype(1.125)
    found = compute_losses(a, b)
    assert (found["l0"], found["l1"], found["l2"], found["lInf"]) == (0.5, 0.0625, 0.125**2 / 2, 0.125)
    assert compute_losses(b, b) == PERFECT


def test_float16_differences_beyond_its_range() -> None:
    a, b = np.full(3, 6e4, np.float16), np.full(3, -6e4, np.float16)
    assert compute_losses(a, b)["lInf"] == 2 * float(np.float16(6e4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("place", [0, 150_000, 299_999])
def test_nan_and_infinity_anywhere_on_either_side(bad: float, dtype: type, place: int) -> None:
    good = np.ones(300_000, dtype)
    spoiled = good.copy()
    spoiled[place] = bad
    assert compute_losses(spoiled, good) == INFINITE
    assert compute_losses(good, spoiled) == INFINITE
    assert compute_losses(spoiled, spoiled) == INFINITE


def test_wrong_shape_or_type() -> None:
    x = np.ones((2, 3), np.float32)
    assert compute_losses(x.reshape(3, 2), x) == INFINITE
    assert compute_losses(x[..., None], x) == INFINITE
    assert compute_losses(np.float32(1), np.ones(1, np.float32)) == INFINITE
    assert compute_losses(np.zeros((0, 3)), np.zeros((3, 0))) == INFINITE
    for other in (np.float16, np.float64, np.int32, bool, str, ml_dtypes.bfloat16):
        assert compute_losses(x.astype(other), x) == INFINITE
    assert compute_losses(x.astype(">f4"), x) == PERFECT  # byte order is no difference


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64, bool, ml_dtypes.int4])
def test_integers_and_booleans_are_exact(dtype: type) -> None:
    b = np.zeros(8, dtype)
    a = b.copy()
    assert compute_losses(a, b) == PERFECT
    a[3] = 1
    found = compute_losses(a, b)
    assert found["l0"] == 1 / 8
    assert all(loss >= 1 / 8 for loss in found.values())
    assert found["lInf"] == 1


def test_integers_that_float64_cannot_tell_apart() -> None:
    a, b = np.array([2**62 + 1, 5]), np.array([2**62, 5])
    assert compute_losses(a, b) == dict.fromkeys(METRICS, 0.5)
    a, b = np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)
    assert compute_losses(a, b)["lInf"] == 2.0**64


def test_a_small_integer_difference_is_a_difference_within_any_relative_tolerance() -> None:
    assert compute_losses(np.array([10**9 + 1]), np.array([10**9]))["l0"] == 1


def test_strings() -> None:
    a = np.array([["x", "yes"], ["", "\u00e9"]])
    assert compute_losses(a, a.astype(object)) == PERFECT
    assert compute_losses(a, np.array([["x", "no"], ["", "e"]], object)) == dict.fromkeys(METRICS, 0.5)


def test_complex_parts_are_elements() -> None:
    a, b = np.array([1 + 1j, 2]), np.array([1 + 2j, 2])
    found = compute_losses(a, b)
    assert (found["l0"], found["l1"], found["lInf"]) == (0.25, 0.25, 1)


def test_views_are_compared_by_position() -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert compute_losses(x.T, np.ascontiguousarray(x.T)) == PERFECT
    assert compute_losses(x[::-1], x)["lInf"] == 8


def test_memory_stays_small() -> None:
    a, b = np.ones(8_000_000, np.float16), np.ones(8_000_000, np.float16)
    tracemalloc.start()
    compute_losses(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6  # float64 copies would take 128 MB


@pytest.mark.parametrize("limits", [(-1.0, 0.0), (0.0, -1.0), (math.nan, 0.0), (0.0, math.inf)])
def test_bad_limits(limits: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite and 0 or more"):
        compute_losses(np.ones(1), np.ones(1), *limits)


def test_types_that_are_no_tensor() -> None:
    dates = np.array(["2020-01-01"], "datetime64[D]")
    with pytest.raises(TypeError, match="tensor cannot hold"):
        compute_losses(dates, dates)


def test_pair_with_missing_and_extra_outputs() -> None:
    one = np.ones(2)
    found = losses_of_pair({"extra": one, "y": one}, {"y": one, "z": one})
    assert found == {"y": PERFECT, "z": INFINITE, "extra": INFINITE}
    assert list(found) == ["y", "z", "extra"]
