"""What a worker and its parent say to each other: framed, checked, without pickle.

A frame is a 28-byte prefix (magic, header length, body length, checksum), a JSON header, and the
raw buffers of the arrays that the header announces. Frames travel over a socket of their own, so a
compiler that prints to stdout cannot disturb them. Whatever is not such a frame is a GarbageError.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpt_search.domain.workload import Array

MAGIC = b"GPTSRCH1"
_PREFIX = struct.Struct("<8sIQII")  # magic, header bytes, body bytes, checksum of header, checksum of this prefix
HEADER_LIMIT = 64 << 20
FRAME_LIMIT = 16 << 30
_PLAIN_KINDS = "biufc"
_ML_DTYPES = frozenset(
    {"bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"}
)

_NUMBER = (int, float)
_OPTIONAL_TEXT = (str, type(None))
_OPTIONAL_INT = (int, type(None))
SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    # requests
    "hello": {
        "backend": str,
        "workload": (dict, type(None)),
        "golden": _OPTIONAL_TEXT,
        "options": dict,
        "memory_limit": _OPTIONAL_INT,
    },
    "describe": {},
    "build": {"slot": str, "route": list, "seed": int},
    "gate": {"slot": str, "atol": _NUMBER, "rtol": _NUMBER},
    "infer": {"slot": str},
    "time": {
        "slot": str,
        "seconds": _NUMBER,
        "min_calls": int,
        "max_calls": int,
        "warmup_calls": int,
        "streams": int,
        "host_copies": bool,
        "point": int,
        "seed": int,
        "round": int,
        "launch": _OPTIONAL_TEXT,
    },
    "save": {"slot": str},
    "load": {"slot": str},
    "release": {"slot": str},
    # answers
    "ready": {
        "fingerprint": str,
        "build_uses_device": bool,
        "placement": str,
        "metrics": list,
        "environment": dict,
        "device_id": str,
        "own_workload": bool,
    },
    "described": {"database": str, "options": dict, "cannot_run": _OPTIONAL_TEXT, "frozen_cache": bool},
    "built": {
        "fingerprint": _OPTIONAL_TEXT,
        "memory_bytes": _OPTIONAL_INT,
        "engine_bytes": _OPTIONAL_INT,
        "seconds": _NUMBER,
        "facts": dict,
    },
    "losses": {"losses": list, "memory_bytes": _OPTIONAL_INT},
    "outputs": {},
    "samples": {"launch": str, "launch_note": str, "again": str, "simulated": bool, "device": dict},
    "bytes": {},
    "done": {},
    "note": {"cost_s": dict},
    "progress": {"phase": str, "done": int, "steps": int},
    "error": {"outcome": str, "message": str, "healthy": bool},
}
"""Kinds of messages, and the fields that each must carry with their types; "id" is common to all."""


class GarbageError(Exception):
    """What arrived is not a message: wrong magic, wrong checksum, too large, wrong schema."""


class ChannelClosed(Exception):
    """The other side closed the channel or died."""


@dataclass(frozen=True)
class Message:
    """One request or answer.

    kind: a key of SCHEMA. id: the number of the request; an answer repeats it. fields: JSON-like.
    arrays: tensors by name; numbers, booleans, and text (arrays of str).
    """

    kind: str
    id: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


# -- arrays ------------------------------------------------------------------------------------
def _array_to_wire(name: str, array: Array) -> tuple[list[Any], memoryview | bytes]:
    value = np.asarray(array)
    if value.dtype.kind in _PLAIN_KINDS:
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
        return [name, value.dtype.str, list(value.shape)], value.reshape(-1).view(np.uint8).data
    if value.dtype.name in _ML_DTYPES:
        value = np.ascontiguousarray(value).reshape(value.shape)
        return [name, value.dtype.name, list(value.shape)], value.reshape(-1).view(np.uint8).data
    if value.dtype.kind in "UO":
        items = value.reshape(-1).tolist()
        if all(isinstance(item, str) for item in items):
            encoded = [item.encode("utf-8", "surrogatepass") for item in items]
            lengths = np.asarray([len(e) for e in encoded], "<i8").tobytes()
            tag = "text" if value.dtype.kind == "O" else "text-fixed"
            return [name, tag, list(value.shape)], lengths + b"".join(encoded)
    raise TypeError(
        f"array {name!r} has dtype {value.dtype}, which cannot be sent; numbers, booleans and text (str) can"
    )


def _text_from_wire(name: str, body: memoryview, shape: tuple[int, ...], tag: str) -> tuple[Array, int]:
    count = math.prod(shape)
    if len(body) < 8 * count:
        raise GarbageError(f"array {name!r} announces {count} texts, the frame is too short for that")
    lengths = np.frombuffer(body[: 8 * count], "<i8").tolist()
    if any(n < 0 for n in lengths) or 8 * count + sum(lengths) > len(body):
        raise GarbageError(f"array {name!r} announces texts beyond the end of the frame")
    at = 8 * count
    flat = np.empty(count, object)
    for i, n in enumerate(lengths):
        try:
            flat[i] = bytes(body[at : at + n]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise GarbageError(f"array {name!r} holds text that is not UTF-8: {error}") from None
        at += n
    shaped = flat.reshape(shape)
    return (shaped if tag == "text" else shaped.astype(str)), at


def _array_from_wire(entry: Any, body: memoryview) -> tuple[str, Array, int]:
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and isinstance(entry[1], str)):
        raise GarbageError(f"array entry {str(entry)[:80]!r} is not [name, dtype, shape]")
    name, code, dims = entry
    if not (isinstance(dims, list) and len(dims) <= 32 and all(type(n) is int and n >= 0 for n in dims)):
        raise GarbageError(f"array {name!r} has shape {str(dims)[:80]}, which is not a list of sizes")
    shape = tuple(dims)
    if code in ("text", "text-fixed"):
        array, used = _text_from_wire(name, body, shape, code)
        return name, array, used
    if code in _ML_DTYPES:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, code))
    else:
        try:
            dtype = np.dtype(code)
        except (TypeError, ValueError):
            raise GarbageError(f"array {name!r} has unknown dtype {code[:40]!r}") from None
        if dtype.kind not in _PLAIN_KINDS or dtype.str != code:
            raise GarbageError(f"array {name!r} has dtype {code[:40]!r}, which is not allowed here")
    size = math.prod(shape) * dtype.itemsize
    if size > len(body):
        raise GarbageError(f"array {name!r} of shape {shape} reaches beyond the end of the frame")
    return name, np.frombuffer(body[:size], np.uint8).view(dtype).reshape(shape), size


# -- frames ------------------------------------------------------------------------------------
def encode(message: Message) -> list[bytes | memoryview]:
    """The frame as buffers, to be sent one after the other.

    Raises TypeError for an array or field that cannot be sent, ValueError when the frame is too large.
    """
    entries, buffers = [], []
    for name, array in message.arrays.items():
        entry, buffer = _array_to_wire(name, array)
        entries.append(entry)
        buffers.append(buffer)
    header = json.dumps(
        {"kind": message.kind, "id": message.id, "fields": dict(message.fields), "arrays": entries},
        ensure_ascii=True,
        separators=(",", ":"),
    ).encode()
    body = sum(len(b) for b in buffers)
    if len(header) > HEADER_LIMIT or body > FRAME_LIMIT:
        raise ValueError(f"message {message.kind!r} is too large: {len(header)} + {body} bytes")
    return [_prefix(header, body), header, *buffers]


def _prefix(header: bytes, body: int) -> bytes:
    head = zlib.crc32(header)
    own = zlib.crc32(struct.pack("<IQI", len(header), body, head))
    return _PREFIX.pack(MAGIC, len(header), body, head, own)


def parse_prefix(data: bytes, limit: int = FRAME_LIMIT) -> tuple[int, int, int]:
    """Header bytes, body bytes and header checksum that a prefix announces. Raises GarbageError."""
    if len(data) != _PREFIX.size or not data.startswith(MAGIC):
        raise GarbageError(f"expected a frame, got {data[:16]!r}")
    _, header, body, head, own = _PREFIX.unpack(data)
    if own != zlib.crc32(struct.pack("<IQI", header, body, head)):
        raise GarbageError("the frame's prefix fails its checksum")
    if header > HEADER_LIMIT or body > limit:
        raise GarbageError(f"a frame of {header} + {body} bytes is over the limit of {HEADER_LIMIT} + {limit}")
    return header, body, head


def decode(header: bytes, checksum: int, body: memoryview) -> Message:
    """The message of a frame. Raises GarbageError for anything that SCHEMA does not allow."""
    if zlib.crc32(header) != checksum:
        raise GarbageError("the frame's header fails its checksum")
    try:
        data = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"the frame's header is not JSON: {error}") from None
    if not isinstance(data, dict) or set(data) != {"kind", "id", "fields", "arrays"}:
        raise GarbageError("the frame's header does not hold exactly kind, id, fields and arrays")
    kind, number, fields, entries = data["kind"], data["id"], data["fields"], data["arrays"]
    if type(number) is not int or not isinstance(fields, dict) or not isinstance(entries, list):
        raise GarbageError("the frame's header has fields of a wrong type")
    if not isinstance(kind, str) or kind not in SCHEMA:
        raise GarbageError(f"unknown kind of message {str(kind)[:40]!r}")
    expected = SCHEMA[kind]
    for name, allowed in expected.items():
        value = fields.get(name, _MISSING)
        # bool is an int for isinstance; a number field must not accept it.
        if not isinstance(value, allowed) or (isinstance(value, bool) and allowed is not bool):
            raise GarbageError(f"message {kind!r} needs a field {name!r} of type {_type_names(allowed)}")
    if extra := set(fields) - set(expected):
        raise GarbageError(f"message {kind!r} has unknown fields: {', '.join(sorted(extra))[:80]}")
    arrays: dict[str, Array] = {}
    at = 0
    for entry in entries:
        name, array, used = _array_from_wire(entry, body[at:])
        if name in arrays:
            raise GarbageError(f"message {kind!r} names array {name!r} twice")
        arrays[name] = array
        at += used
    if at != len(body):
        raise GarbageError(f"message {kind!r} has {len(body) - at} bytes that no array accounts for")
    return Message(kind, number, fields, arrays)


_MISSING = object()


def _type_names(allowed: type | tuple[type, ...]) -> str:
    return " or ".join(t.__name__ for t in (allowed if isinstance(allowed, tuple) else (allowed,)))


# -- the channel -------------------------------------------------------------------------------
class Channel:
    """One end of a stream socket that carries frames. Use it from one thread at a time."""

    def __init__(self, sock: socket.socket, limit: int = FRAME_LIMIT) -> None:
        """limit: the largest body that is accepted, in bytes."""
        self._socket = sock
        self._limit = limit
        sock.setblocking(False)

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def send(self, message: Message, wait: Callable[[], None] | None = None) -> None:
        """Sends a message, waiting while the other side is slow to read.

        wait: called about every 50 ms meanwhile; what it raises ends the sending.
        Raises TypeError or ValueError (see `encode`) before a byte is sent, ChannelClosed.
        """
        for buffer in encode(message):
            view = memoryview(buffer).cast("B")
            while len(view):
                try:
                    view = view[self._socket.send(view[: 1 << 20]) :]
                except BlockingIOError:
                    self._poll(select.POLLOUT, wait)
                except OSError as error:
                    raise ChannelClosed(str(error)) from None

    def receive(self, wait: Callable[[], None] | None = None) -> Message:
        """The next message.

        wait: called about every 50 ms while nothing arrives; what it raises ends the waiting.
        Raises GarbageError, ChannelClosed.
        """
        header_size, body_size, checksum = parse_prefix(bytes(self._read(_PREFIX.size, wait)), self._limit)
        header = bytes(self._read(header_size, wait))
        body = self._read(body_size, wait)
        return decode(header, checksum, body)

    def _read(self, size: int, wait: Callable[[], None] | None) -> memoryview:
        try:  # not a bytearray, which is zeroed at once: here an announced size costs nothing until bytes arrive
            view = np.empty(size, np.uint8).data
        except MemoryError:
            raise GarbageError(f"a frame of {size} bytes does not fit in memory") from None
        at = 0
        while at < size:
            try:
                got = self._socket.recv_into(view[at:], min(size - at, 1 << 24))
            except BlockingIOError:
                self._poll(select.POLLIN, wait)
                continue
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if got == 0:
                raise ChannelClosed("the other side closed the channel")
            at += got
            if at < size and wait is not None:
                wait()  # a sender that trickles must not escape its deadline
        return view

    def _poll(self, events: int, wait: Callable[[], None] | None) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        if wait is None:
            poll.poll()
        elif not poll.poll(50):
            wait()
