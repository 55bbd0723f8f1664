"""Frames: round trips of everything that can be sent, refusal of everything else."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import zlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpt_search.execution.messages import (
    FRAME_LIMIT,
    MAGIC,
    SCHEMA,
    Channel,
    ChannelClosed,
    GarbageError,
    Message,
    decode,
    encode,
    parse_prefix,
)

_PLAIN = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(sizes=(64, 128)),
)
_SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
_ARRAYS = _PLAIN.flatmap(lambda dtype: hnp.arrays(dtype, _SHAPES))
_TEXT = hnp.arrays(object, _SHAPES, elements=st.text(max_size=8))
_FIELDS = {"slot": "candidate", "route": [["a", "on"]], "seed": 3}


def _frame(message: Message) -> bytes:
    return b"".join(bytes(b) for b in encode(message))


def _read(data: bytes, limit: int = FRAME_LIMIT) -> Message:
    """The message of a whole frame, as `Channel.receive` reads it."""
    header, body, checksum = parse_prefix(data[:28], limit)
    assert len(data) == 28 + header + body
    return decode(data[28 : 28 + header], checksum, memoryview(data[28 + header :]))


def _header(data: object, body: int = 0) -> bytes:
    """A frame with a valid prefix around any header."""
    header = json.dumps(data).encode()
    head = zlib.crc32(header)
    own = zlib.crc32(struct.pack("<IQI", len(header), body, head))
    return struct.pack("<8sIQII", MAGIC, len(header), body, head, own) + header + bytes(body)


@given(st.dictionaries(st.text(max_size=6), st.one_of(_ARRAYS, _TEXT), max_size=4), st.integers(0, 2**40))
def test_arrays_come_back_equal_in_value_shape_and_type(arrays, number):
    got = _read(_frame(Message("outputs", number, {}, arrays)))
    assert (got.kind, got.id, list(got.arrays)) == ("outputs", number, list(arrays))
    for name, array in arrays.items():
        back = got.arrays[name]
        assert back.shape == array.shape
        assert back.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back, array)


@given(st.text(max_size=20), st.lists(st.tuples(st.text(), st.text())), st.integers(-(2**62), 2**62))
def test_fields_come_back_equal(slot, items, seed):
    fields = {"slot": slot, "route": [list(i) for i in items], "seed": seed}
    got = _read(_frame(Message("build", 1, fields)))
    assert got.fields == fields


def test_losses_may_be_infinite_or_nan():
    fields = {"losses": [{"y": {"l0": math.inf, "l1": 0.0}}], "memory_bytes": None}
    assert _read(_frame(Message("losses", 1, fields))).fields == fields


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_small_types_come_back(dtype):
    array = np.asarray([[0, 1, -2], [3, 4, 5]], dtype)
    back = _read(_frame(Message("outputs", 1, {}, {"y": array}))).arrays["y"]
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_views_of_any_layout_come_back():
    base = np.arange(24, dtype=">f4").reshape(4, 6)
    arrays = {"strided": base[::2, ::-1], "fortran": np.asfortranarray(base), "fixed": np.asarray(["a", "bcd"])}
    got = _read(_frame(Message("outputs", 1, {}, arrays))).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)
    assert got["fixed"].dtype.kind == "U"


@pytest.mark.parametrize(
    "array",
    [
        np.asarray([b"bytes"]),
        np.asarray([{"a": 1}], object),
        np.asarray(["text", 1], object),
        np.asarray(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "i4")]),
    ],
)
def test_what_cannot_be_sent_is_refused_clearly(array):
    with pytest.raises(TypeError, match=r"array 'y' has dtype .* cannot be sent"):
        encode(Message("outputs", 1, {}, {"y": array}))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_garbage(data):
    with pytest.raises(GarbageError):
        parse_prefix(data[:28])


@given(st.data())
def test_a_changed_byte_in_the_prefix_or_header_is_garbage(data):
    frame = bytearray(_frame(Message("build", 7, _FIELDS)))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((GarbageError, AssertionError)):
        _read(bytes(frame))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=8,
    )
)
def test_any_json_header_that_is_no_message_is_garbage(value):
    with pytest.raises(GarbageError):
        _read(_header(value))


_GOOD = {"kind": "outputs", "id": 1, "fields": {}, "arrays": []}


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        (_GOOD | {"kind": "nonsense"}, 0, "unknown kind"),
        (_GOOD | {"kind": ["outputs"]}, 0, "unknown kind"),
        (_GOOD | {"id": True}, 0, "wrong type"),
        (_GOOD | {"more": 1}, 0, "exactly"),
        (_GOOD | {"fields": {"x": 1}}, 0, "unknown fields"),
        (_GOOD | {"kind": "build", "fields": {}}, 0, "needs a field 'slot'"),
        (_GOOD | {"kind": "build", "fields": _FIELDS | {"seed": True}}, 0, "needs a field 'seed'"),
        (_GOOD | {"kind": "build", "fields": _FIELDS | {"route": "x"}}, 0, "needs a field 'route' of type list"),
        (_GOOD | {"arrays": [["y", "<f4", [2]]]}, 4, "beyond the end"),
        (_GOOD | {"arrays": [["y", "<f4", [2]]]}, 12, "no array accounts for"),
        (_GOOD | {"arrays": [["y", "<f4", [-1]]]}, 4, "not a list of sizes"),
        (_GOOD | {"arrays": [["y", "<f4", [2**40, 2**40]]]}, 4, "beyond the end"),
        (_GOOD | {"arrays": [["y", "<f4", [1.0]]]}, 4, "not a list of sizes"),
        (_GOOD | {"arrays": [["y", "|O", [1]]]}, 8, "not allowed"),
        (_GOOD | {"arrays": [["y", "rubbish", [1]]]}, 8, "unknown dtype"),
        (_GOOD | {"arrays": [["y", "f4", [1]]]}, 4, "not allowed"),
        (_GOOD | {"arrays": [["y", "text", [9]]]}, 8, "too short"),
        (_GOOD | {"arrays": ["y"]}, 0, "is not"),
        (_GOOD | {"arrays": [["y", "<f4", [0]], ["y", "<f4", [0]]]}, 0, "twice"),
    ],
)
def test_a_wrong_schema_is_garbage_and_says_why(header, body, why):
    with pytest.raises(GarbageError, match=why):
        _read(_header(header, body))


def test_text_that_lies_about_its_lengths_is_garbage():
    for lengths in ([100], [-1]):
        data = np.asarray(lengths, "<i8").tobytes() + b"ab"
        with pytest.raises(GarbageError, match="beyond the end"):
            decode(*_decodable(_GOOD | {"arrays": [["y", "text", [1]]]}), memoryview(data))


def _decodable(header: object) -> tuple[bytes, int]:
    text = json.dumps(header).encode()
    return text, zlib.crc32(text)


def test_an_oversized_frame_is_refused_before_it_is_read():
    frame = _frame(Message("outputs", 1, {}, {"y": np.zeros(1000)}))
    with pytest.raises(GarbageError, match="over the limit"):
        parse_prefix(frame[:28], limit=7999)
    assert parse_prefix(frame[:28], limit=8000)[1] == 8000


def test_the_channel_carries_messages_larger_than_the_socket_buffer_both_ways():
    left, right = socket.socketpair()
    a, b = Channel(left), Channel(right)
    big = Message("outputs", 5, {}, {"y": np.arange(1_000_000.0)})

    def echo() -> None:
        b.send(b.receive())

    thread = threading.Thread(target=echo)
    thread.start()
    a.send(big)
    np.testing.assert_array_equal(a.receive().arrays["y"], big.arrays["y"])
    thread.join()
    b.close()
    with pytest.raises(ChannelClosed):
        a.receive()
    a.close()


def test_a_sender_that_trickles_does_not_escape_the_deadline():
    left, right = socket.socketpair()
    channel = Channel(left)
    frame = _frame(Message("outputs", 1, {}, {"y": np.zeros(100)}))
    calls = 0

    def wait() -> None:
        nonlocal calls
        if calls < len(frame) - 1:
            right.send(frame[calls : calls + 1])
        calls += 1
        if calls == 20:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        channel.receive(wait)
    right.close()
    channel.close()


def test_every_kind_has_a_schema_of_types():
    for fields in SCHEMA.values():
        for allowed in fields.values():
            isinstance(None, allowed)  # raises TypeError unless it is a type or a tuple of types
