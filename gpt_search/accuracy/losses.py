"""The five losses between an output and its reference: what they are, and what makes them infinite.

All are 0 for a perfect output and lower is better, as in trtexec: l0 (share of elements outside
atol + rtol * |reference|), l1 (mean absolute error), l2 (mean squared error), lInf (maximum
absolute error), cos (1 - cosine similarity). docs/accuracy.md lists where they differ from trtexec's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.accuracy.types import Kind, kind_of, type_name
from gpt_search.domain.workload import Array

METRICS = ("l0", "l1", "l2", "lInf", "cos")
ATOL = 1e-5
RTOL = 1e-5

_CHUNK = 1 << 17  # elements; the float64 temporaries (1 MiB each) stay in the cache
_SAFE_EXPONENT = 400  # within 2^-400..2^400 squares neither overflow nor lose to underflow

_Floats = NDArray[np.float64]


def compute_losses(output: Array, reference: Array, atol: float = ATOL, rtol: float = RTOL) -> dict[str, float]:
    """The losses of one output: a dictionary with the keys of `METRICS`.

    output, reference: arrays of equal shape and element type (byte order does not count). Sums are
    in float64, chunk by chunk, so that a large tensor needs no large temporary.

    All losses are infinite when shape or type differ, or when either array holds NaN or infinity.
    Empty arrays have loss 0. cos: 0 where both are zero vectors, 1 where one is. Integers,
    booleans and strings are compared exactly: l0 is the share of differing elements, and the
    other losses are never below it (strings: equal to it). Complex: real and imaginary parts are
    elements of their own.

    Raises ValueError for a negative or non-finite atol or rtol, TypeError for an element type that
    no tensor has.
    """
    for name, value in (("atol", atol), ("rtol", rtol)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}; it must be finite and 0 or more")
    a, b = np.asarray(output), np.asarray(reference)
    if a.shape != b.shape or type_name(a.dtype) != type_name(b.dtype):
        return dict.fromkeys(METRICS, math.inf)
    if a.size == 0:
        return dict.fromkeys(METRICS, 0.0)
    a, b = a.reshape(-1), b.reshape(-1)
    kind = kind_of(a.dtype)
    if kind is Kind.TEXT:
        return dict.fromkeys(METRICS, _share_differing(a, b))
    if kind is Kind.COMPLEX:
        a, b = (np.stack((x.real, x.imag), -1).reshape(-1) for x in (a, b))
    losses = _float_losses(a, b, atol, rtol)
    if kind is Kind.EXACT:
        share = _share_differing(a, b)
        return {name: share if name == "l0" else max(losses[name], share) for name in METRICS}
    return losses


def losses_of_pair(
    outputs: Mapping[str, Array], references: Mapping[str, Array], atol: float = ATOL, rtol: float = RTOL
) -> dict[str, dict[str, float]]:
    """The losses of every output of one golden pair, by output name.

    An output that is missing, or that the reference does not have, has infinite losses.
    Order: the reference's outputs, then the extra ones.
    """
    result = {}
    for name in (*references, *(n for n in outputs if n not in references)):
        if name in outputs and name in references:
            result[name] = compute_losses(outputs[name], references[name], atol, rtol)
        else:
            result[name] = dict.fromkeys(METRICS, math.inf)
    return result


def _float_losses(a: NDArray[Any], b: NDArray[Any], atol: float, rtol: float) -> dict[str, float]:
    """Losses of two flat, non-empty numeric arrays of one type."""
    n = a.size
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        largest_a, norm_a = _largest_and_norm(a)
        largest_b, norm_b = _largest_and_norm(b)
        if not (math.isfinite(largest_a) and math.isfinite(largest_b)):
            return dict.fromkeys(METRICS, math.inf)
        exponent_a, exponent_b = _exponent(largest_a), _exponent(largest_b)
        exponent = _exponent(max(largest_a, largest_b))
        outside = 0
        absolute = squared = largest = angle = 0.0
        for x, y in _chunks(a, b):
            difference = x - y
            np.abs(difference, out=difference)
            limit = np.abs(y)
            limit *= rtol
            limit += atol
            outside += int(np.count_nonzero(difference > limit))
            if exponent:  # rare: numbers so large or small that differences or squares would not fit
                difference = np.abs(np.ldexp(x, -exponent) - np.ldexp(y, -exponent))
            absolute += float(difference.sum())
            largest = max(largest, float(difference.max()))
            np.square(difference, out=difference)
            squared += float(difference.sum())
            if norm_a > 0 and norm_b > 0:
                # 1 - cos = |u - v|^2 / 2 for unit vectors: no cancellation, exactly 0 for equal arrays.
                u = np.ldexp(x, -exponent_a) if exponent_a else x
                v = np.ldexp(y, -exponent_b) if exponent_b else y
                apart = u / norm_a
                apart -= v / norm_b
                np.square(apart, out=apart)
                angle += float(apart.sum())
        if norm_a > 0 and norm_b > 0:
            cosine = min(angle / 2, 2.0)
        else:
            cosine = 0.0 if norm_a == norm_b else 1.0
        return {
            "l0": outside / n,
            "l1": float(np.ldexp(absolute / n, exponent)),
            "l2": float(np.ldexp(squared / n, 2 * exponent)),
            "lInf": float(np.ldexp(largest, exponent)),
            "cos": cosine,
        }


def _largest_and_norm(array: NDArray[Any]) -> tuple[float, float]:
    """The largest absolute value (NaN or infinity where there is one), and the norm of the array
    divided by 2^_exponent(largest)."""
    largest = squares = 0.0
    for (x,) in _chunks(array):
        here = max(abs(float(x.max())), abs(float(x.min())))  # max and min hand on NaN
        if not math.isfinite(here):
            return here, math.nan
        largest = max(largest, here)
        squares += float(np.square(x).sum())
    exponent = _exponent(largest)
    if exponent:
        squares = sum(float(np.square(np.ldexp(x, -exponent)).sum()) for (x,) in _chunks(array))
    return largest, math.sqrt(squares)


def _exponent(largest: float) -> int:
    """The power of two to divide by before squaring; 0 where the numbers can be squared as they are."""
    exponent = math.frexp(largest)[1]
    return exponent if abs(exponent) > _SAFE_EXPONENT else 0


def _share_differing(a: NDArray[Any], b: NDArray[Any]) -> float:
    different = sum(int(np.count_nonzero(a[i : i + _CHUNK] != b[i : i + _CHUNK])) for i in range(0, a.size, _CHUNK))
    return different / a.size


def _chunks(*arrays: NDArray[Any]) -> Iterator[tuple[_Floats, ...]]:
    """Consecutive pieces of flat arrays, as float64."""
    for i in range(0, arrays[0].size, _CHUNK):
        yield tuple(x[i : i + _CHUNK].astype(np.float64) for x in arrays)
