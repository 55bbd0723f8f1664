"""Tensor element types as this package tells them apart, the small float types of ml_dtypes included."""

from __future__ import annotations

import enum
import re
from typing import Any

import numpy as np

from gpt_search.domain.errors import InputError

# Element types that numpy itself does not know; ml_dtypes, which onnx depends on, does.
_SUB_BYTE = re.compile(r"u?int[124]|float[46]_\w+")
_SMALL = re.compile(rf"bfloat16|float8_\w+|{_SUB_BYTE.pattern}")


class Kind(enum.Enum):
    """How values of an element type are compared."""

    FLOAT = "by their distance"
    COMPLEX = "by the distance of real and imaginary parts"
    EXACT = "integers and booleans: equal or not"
    TEXT = "strings: equal or not"


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """How values of this type are compared. Raises TypeError for a type that no tensor has (dates, records)."""
    match dtype.kind:
        case "f":
            return Kind.FLOAT
        case "c":
            return Kind.COMPLEX
        case "i" | "u" | "b":
            return Kind.EXACT
        case "U" | "S" | "O" | "T":
            return Kind.TEXT
    # bfloat16, float8_*, float4_*, int4, uint4, int2, uint2: numpy shows them as void, their name tells.
    if dtype.kind == "V" and dtype.fields is None:
        if dtype.name.startswith(("bfloat", "float")):
            return Kind.FLOAT
        if dtype.name.startswith(("int", "uint")):
            return Kind.EXACT
    raise TypeError(f"a tensor cannot hold elements of type {dtype}")


def type_name(dtype: np.dtype[Any]) -> str:
    """One name per type, the same for every byte order and string length: "float32", "bfloat16", "string"."""
    return "string" if kind_of(dtype) is Kind.TEXT else dtype.name


def is_sub_byte(dtype: np.dtype[Any]) -> bool:
    """True for int4 and its like, which numpy holds in a byte each and other programs pack."""
    return _SUB_BYTE.fullmatch(dtype.name) is not None


def dtype_named(name: Any) -> np.dtype[Any]:
    """The numpy type of a name such as "float32", "bfloat16" or "string", or of a numpy type itself.

    Raises InputError for an unknown name.
    """
    if isinstance(name, str):
        if name in ("string", "str"):
            return np.dtype(object)
        if _SMALL.fullmatch(name):
            import ml_dtypes

            name = getattr(ml_dtypes, name, name)
    try:
        if name is None:
            raise TypeError  # which numpy takes for float64
        dtype: np.dtype[Any] = np.dtype(name)
        kind_of(dtype)
    except TypeError:
        raise InputError(
            f"{name!r} is not an element type of tensors; examples are float32, float16, bfloat16, int64, bool, string"
        ) from None
    return dtype
