"""A TensorRT engine as bytes: TensorRT's own serialised engine, after a header that says how to run it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.tensorrt_options import TensorRTOptions
from gpt_search.domain.errors import InputError
from gpt_search.domain.json_text import parse_json

_MAGIC = b"gpt_search tensorrt engine 1\n"


@dataclass(frozen=True)
class EngineFile:
    """library: name of the backend that built it. version: of that library. plan: TensorRT's serialised engine."""

    library: str
    version: str
    options: TensorRTOptions
    plan: bytes

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the serialised engine."""
        return sha256(self.plan).hexdigest()

    def to_bytes(self) -> bytes:
        """What `from_bytes` reads back."""
        header: dict[str, Any] = {
            "library": self.library,
            "version": self.version,
            "options": self.options.to_json(),
            "digest": self.digest,
            "size_bytes": len(self.plan),
        }
        text = json.dumps(header).encode()
        return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, self.plan])

    @classmethod
    def from_bytes(cls, data: bytes) -> EngineFile:
        """Raises BuildError when the bytes are not such a file, or are damaged."""
        header, plan = _parts(data)
        try:
            library, version = str(header["library"]), str(header["version"])
            options = TensorRTOptions.parse(header["options"])
        except InputError as error:
            raise BuildError(f"the saved engine's options cannot be read: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise BuildError(f"the saved engine's header cannot be read: {error!r}") from None
        return cls(library, version, options, plan)


def plan_of(data: bytes) -> bytes:
    """TensorRT's own serialised engine in a saved file, as its runtime and trtexec load it. Raises BuildError."""
    return _parts(data)[1]


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and TensorRT's serialised engine, which is whole."""
    if not data.startswith(_MAGIC):
        raise BuildError("these bytes are not a TensorRT engine saved by gpt_search")
    start = len(_MAGIC) + 8
    size = int.from_bytes(data[len(_MAGIC) : start], "little")
    try:
        header: dict[str, Any] = parse_json(data[start : start + size])
        digest, expected = str(header["digest"]), int(header["size_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"the saved engine's header cannot be read: {error!r}") from None
    plan = data[start + size :]
    if len(plan) != expected:
        raise BuildError(f"the saved engine is cut: {len(plan)} bytes of {expected}")
    if sha256(plan).hexdigest() != digest:
        raise BuildError("the saved engine is damaged: its bytes are not those that were saved")
    return header, plan
