"""The calling thread's treatment of denormal floats, set and restored around every use of a session.

ONNX Runtime applies `session.set_denormal_as_zero` to the calling thread once per process, for the
first session made, and threads inherit it: in a reused worker a later engine would compute with an
earlier one's setting. So we set the processor's flag ourselves.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from gpt_search.backends.base import BuildError

# Layout of glibc's fenv_t. x86-64: 28 bytes of x87 state, then MXCSR, whose bits 15 and 6 are
# flush-to-zero and denormals-are-zero. AArch64: FPCR first, whose bit 24 flushes both ways.
_LAYOUT = {
    "x86_64": (32, 28, 0x8040),
    "AMD64": (32, 28, 0x8040),
    "aarch64": (8, 0, 1 << 24),
}


@cache
def _functions() -> tuple[Callable[[], bytearray], Callable[[bytearray], None], int, int] | None:
    """Get and set the floating-point environment, its flag word's offset and bits; None where unknown."""
    layout = _LAYOUT.get(platform.machine())
    if layout is None or platform.libc_ver()[0] != "glibc":
        return None
    size, offset, bits = layout
    library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")

    def get() -> bytearray:
        data = bytearray(size)
        library.fegetenv((ctypes.c_char * size).from_buffer(data))
        return data

    def put(data: bytearray) -> None:
        library.fesetenv((ctypes.c_char * size).from_buffer(data))

    return get, put, offset, bits


@contextmanager
def denormals(as_zero: bool) -> Iterator[None]:
    """Within the block the calling thread treats denormals as told; afterwards as before.

    Where the processor's flag cannot be reached (another libc or processor) False does nothing and
    True raises BuildError, because an engine's bits would depend on what ran before it.
    """
    functions = _functions()
    if functions is None:
        if as_zero:
            raise BuildError("session:denormal_as_zero=on cannot be kept to one engine on this platform")
        yield
        return
    get, put, offset, bits = functions
    before = get()
    wanted = bytearray(before)
    word = int.from_bytes(wanted[offset : offset + 4], "little")
    word = word | bits if as_zero else word & ~bits
    wanted[offset : offset + 4] = word.to_bytes(4, "little")
    put(wanted)
    try:
        yield
    finally:
        put(before)
