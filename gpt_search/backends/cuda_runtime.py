"""CUDA through cuda-python's bindings: streams, events, memory and graphs, every return code checked.

Thin: one function or class for one thing of CUDA's runtime, with no logic of ours. Importing this module
needs the package `cuda-bindings` (extras `tensorrt` and `rtx`) and no driver; calls need one.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
from cuda.bindings import driver, runtime
from numpy.typing import NDArray

from gpt_search.backends.base import MemoryLimitError

TO_DEVICE = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
TO_HOST = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
_NOT_READY = "cudaErrorNotReady"


class CudaError(Exception):
    """A CUDA call failed.

    call: the function. name: of the error, such as "cudaErrorIllegalAddress". Many errors are sticky: the
    context is gone and every later call of the process fails with them, so whoever gets this must let the
    process end. The worker does: its answer says that it is not healthy, and the next route gets a new one.
    """

    def __init__(self, call: str, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({text})")
        self.call, self.name = call, name


class CudaMemoryError(CudaError, MemoryLimitError):
    """An allocation on the device, or of pinned memory, failed."""


def checked(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the bindings; its results without the return code: None, one value, or a tuple.

    Raises CudaError, CudaMemoryError.
    """
    code, *results = call(*arguments)
    if int(code) != 0:
        raise _error(call, code)
    return results[0] if len(results) == 1 else tuple(results) or None


def _error(call: Callable[..., Any], code: Any) -> CudaError:
    if isinstance(code, driver.CUresult):
        name, text = (f(code)[1] for f in (driver.cuGetErrorName, driver.cuGetErrorString))
    else:
        name, text = (f(code)[1] for f in (runtime.cudaGetErrorName, runtime.cudaGetErrorString))
    words = [w.decode() if isinstance(w, bytes) else str(w) for w in (name, text)]
    kind = CudaMemoryError if words[0] in _MEMORY else CudaError
    return kind(str(getattr(call, "__name__", call)), *words)


# -- the device --------------------------------------------------------------------------------
def device_count() -> int:
    """How many devices CUDA sees. Raises CudaError, also where there is no driver."""
    return int(checked(runtime.cudaGetDeviceCount))


def device_uuid(ordinal: int = 0) -> str:
    """The UUID of a device, or of the MIG instance that CUDA sees as one: 8-4-4-4-12 hexadecimal digits.

    NVML and nvidia-smi write "GPU-" or "MIG-" before it; `nvml.device_id` knows which.
    """
    checked(driver.cuInit, 0)
    handle = checked(driver.cuDeviceGet, ordinal)
    text = bytes(checked(driver.cuDeviceGetUuid, handle).bytes).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def device_name(ordinal: int = 0) -> str:
    """The device's name, such as "NVIDIA H200"."""
    name = checked(runtime.cudaGetDeviceProperties, ordinal).name
    return name.decode() if isinstance(name, bytes) else str(name)


def compute_capability(ordinal: int = 0) -> tuple[int, int]:
    """Major and minor."""
    attribute = runtime.cudaDeviceAttr
    return (
        int(checked(runtime.cudaDeviceGetAttribute, attribute.cudaDevAttrComputeCapabilityMajor, ordinal)),
        int(checked(runtime.cudaDeviceGetAttribute, attribute.cudaDevAttrComputeCapabilityMinor, ordinal)),
    )


def l2_bytes(ordinal: int = 0) -> int:
    """Size of the L2 cache."""
    return int(checked(runtime.cudaDeviceGetAttribute, runtime.cudaDeviceAttr.cudaDevAttrL2CacheSize, ordinal))


def versions() -> dict[str, str]:
    """CUDA's version as the driver and as the runtime of these bindings give it, such as "13.0"."""
    found = {
        "cuda_driver": checked(runtime.cudaDriverGetVersion),
        "cuda_runtime": checked(runtime.cudaRuntimeGetVersion),
    }
    return {name: f"{int(v) // 1000}.{int(v) % 1000 // 10}" for name, v in found.items()}


def synchronize() -> None:
    """Waits for everything on the device. An error of earlier, asynchronous work shows here."""
    checked(runtime.cudaDeviceSynchronize)


def clear_last_error() -> str | None:
    """The name of the error that the runtime still holds, taken away; None where it holds none."""
    (code,) = runtime.cudaGetLastError()
    return None if int(code) == 0 else _error(runtime.cudaGetLastError, code).name


# -- things with an owner ----------------------------------------------------------------------
class _Owned:
    """Something to free: once, by `close` or at the end of a `with`."""

    handle: Any = None
    _free: Callable[[Any], Any]

    def close(self) -> None:
        """Frees it; does nothing the second time. Raises CudaError."""
        handle, self.handle = self.handle, None
        if handle is not None:
            checked(self._free, handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(CudaError):  # after a sticky error nothing can be freed: show the first one
            self.close()


class Stream(_Owned):
    """A stream that does not synchronise with the default one."""

    _free = staticmethod(runtime.cudaStreamDestroy)

    def __init__(self) -> None:
        self.handle = checked(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)

    @property
    def address(self) -> int:
        """The handle as TensorRT takes it."""
        return int(self.handle)

    def synchronize(self) -> None:
        """Waits until all work of the stream is done."""
        checked(runtime.cudaStreamSynchronize, self.handle)

    def wait_for(self, event: Event) -> None:
        """Later work of this stream starts after the event."""
        checked(runtime.cudaStreamWaitEvent, self.handle, event.handle, 0)

    def copy(self, to: int, source: int, size: int, kind: Any) -> None:
        """Copies bytes between addresses; kind: TO_DEVICE or TO_HOST."""
        if size:
            checked(runtime.cudaMemcpyAsync, to, source, size, kind, self.handle)

    def fill(self, buffer: DeviceBuffer, value: int = 0) -> None:
        """Sets every byte of a buffer."""
        checked(runtime.cudaMemsetAsync, buffer.handle, value, buffer.size, self.handle)


class Event(_Owned):
    """A point in a stream, with a time stamp."""

    _free = staticmethod(runtime.cudaEventDestroy)

    def __init__(self) -> None:
        self.handle = checked(runtime.cudaEventCreateWithFlags, runtime.cudaEventDefault)

    def record(self, stream: Stream) -> None:
        """Puts the event behind what is in the stream now."""
        checked(runtime.cudaEventRecord, self.handle, stream.handle)

    def synchronize(self) -> None:
        """Waits for it."""
        checked(runtime.cudaEventSynchronize, self.handle)

    def done(self) -> bool:
        """Whether the stream has passed it. Raises CudaError where the work before it failed."""
        (code,) = runtime.cudaEventQuery(self.handle)
        if int(code) == 0:
            return True
        error = _error(runtime.cudaEventQuery, code)
        if error.name != _NOT_READY:
            raise error
        return False

    def ms_since(self, earlier: Event) -> float:
        """Milliseconds from another event to this one; both must have been reached."""
        return float(checked(runtime.cudaEventElapsedTime, earlier.handle, self.handle))


class DeviceBuffer(_Owned):
    """Memory on the device. size: in bytes; at least one byte is taken, so that the address is never null."""

    _free = staticmethod(runtime.cudaFree)

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self.handle = checked(runtime.cudaMalloc, self.size)

    @property
    def address(self) -> int:
        """Where it starts."""
        return int(self.handle)


class HostBuffer(_Owned):
    """Page-locked memory on the host, which copies need to be asynchronous. size: in bytes."""

    _free = staticmethod(runtime.cudaFreeHost)

    def __init__(self, size: int) -> None:
        self.size = max(1, size)
        self.handle = checked(runtime.cudaMallocHost, self.size)

    @property
    def address(self) -> int:
        """Where it starts."""
        return int(self.handle)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[np.generic]:
        """The first bytes as an array; it lives as long as the buffer."""
        count = math.prod(shape) * dtype.itemsize
        if count > self.size:
            raise ValueError(f"{tuple(shape)} of {dtype} needs {count} bytes, the buffer has {self.size}")
        raw = memoryview((ctypes.c_uint8 * count).from_address(self.address))
        found: NDArray[np.generic] = np.ndarray(tuple(shape), dtype, raw)
        return found


class Graph(_Owned):
    """Work that was captured from a stream and can be launched as one."""

    _free = staticmethod(runtime.cudaGraphExecDestroy)

    def __init__(self, graph: Any) -> None:
        """graph: as `cudaStreamEndCapture` gave it; this frees it."""
        try:
            self.handle = checked(runtime.cudaGraphInstantiate, graph, 0)
        finally:
            runtime.cudaGraphDestroy(graph)

    def launch(self, stream: Stream) -> None:
        """Puts it into a stream."""
        checked(runtime.cudaGraphLaunch, self.handle, stream.handle)


class CaptureError(Exception):
    """Work cannot be captured into a graph; the stream is usable again. The message says why."""


def capture(stream: Stream, work: Callable[[], None]) -> Graph:
    """A graph of what `work` puts into the stream; nothing of it runs.

    Raises CaptureError when `work` raises, or does what cannot be captured (synchronises, allocates).
    """
    # Relaxed: what other threads do does not end a capture.
    checked(runtime.cudaStreamBeginCapture, stream.handle, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed)
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
    # Always ended: a stream that is still capturing refuses all other use.
    code, graph = runtime.cudaStreamEndCapture(stream.handle)
    if failure is None and int(code) == 0:
        try:
            return Graph(graph)
        except CudaMemoryError:
            raise
        except CudaError as error:  # captured, yet no graph can be made of it
            clear_last_error()
            raise CaptureError(str(error)) from None
    if int(code) == 0 and graph is not None:
        runtime.cudaGraphDestroy(graph)
    ended = _error(runtime.cudaStreamEndCapture, code) if int(code) != 0 else None
    clear_last_error()
    raise CaptureError("; ".join(str(e) for e in (failure, ended) if e is not None))


class Hold(_Owned):
    """Holds a stream until the host lets it go, so that work can be queued without gaps.

    The device polls a word of page-locked memory (cuStreamWaitValue32).
    """

    def __init__(self) -> None:
        self._word = HostBuffer(4)
        self._value = self._word.array((1,), np.dtype(np.uint32))
        self._value[0] = 0
        self._count = 0

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """What is put into the stream inside the block starts when the block ends, also when it raises."""
        self._count = self._count % 0x7FFFFFFF + 1
        self._value[0] = 0
        flag = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        checked(driver.cuStreamWaitValue32, stream.address, self._word.address, self._count, int(flag))
        try:
            yield
        finally:
            self._value[0] = self._count

    def close(self) -> None:
        """Frees the word."""
        self._word.close()
