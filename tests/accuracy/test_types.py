import ml_dtypes
import numpy as np
import pytest

from gpt_search.accuracy.types import Kind, dtype_named, is_sub_byte, kind_of, type_name
from gpt_search.domain.errors import InputError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float16", Kind.FLOAT),
        ("float64", Kind.FLOAT),
        ("bfloat16", Kind.FLOAT),
        ("float8_e4m3fn", Kind.FLOAT),
        ("float8_e5m2", Kind.FLOAT),
        ("float4_e2m1fn", Kind.FLOAT),
        ("int4", Kind.EXACT),
        ("uint4", Kind.EXACT),
        ("int64", Kind.EXACT),
        ("bool", Kind.EXACT),
        ("complex64", Kind.COMPLEX),
        ("string", Kind.TEXT),
    ],
)
def test_names_and_kinds(name: str, kind: Kind) -> None:
    dtype = dtype_named(name)
    assert kind_of(dtype) is kind
    assert type_name(dtype) == name


def test_numpy_types_are_taken_too() -> None:
    assert dtype_named(np.float32) == np.dtype("float32")
    assert dtype_named(np.dtype(ml_dtypes.bfloat16)) == np.dtype(ml_dtypes.bfloat16)


def test_one_name_for_all_byte_orders_and_string_lengths() -> None:
    assert type_name(np.dtype(">f4")) == "float32"
    assert type_name(np.dtype("U7")) == type_name(np.dtype("S3")) == type_name(np.dtype(object)) == "string"


@pytest.mark.parametrize("name", ["float33", "bfloat17", "float8_e9", "datetime64", "V2", None, "no such"])
def test_no_type_of_a_tensor(name: object) -> None:
    with pytest.raises(InputError, match="element type"):
        dtype_named(name)


def test_sub_byte_types() -> None:
    names = ("int4", "uint2", "float4_e2m1fn", "int16", "uint16", "int8", "float64", "float8_e5m2", "bool", "string")
    assert [is_sub_byte(dtype_named(n)) for n in names] == [True] * 3 + [False] * 7
