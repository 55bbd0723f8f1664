"""A stand-in with the interface of TensorRT's engine and execution context, which launches real kernels.

It is no TensorRT: it exists to run the runner (`tensorrt_engine`) on a real GPU, where TensorRT is not
installed. What it puts into the stream that it is given is compiled by NVRTC. `Backend` offers it to workers.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc, runtime

from gpt_search.backends.base import BuildOptions, Capabilities, Fingerprints, Placement
from gpt_search.backends.cuda_runtime import checked, compute_capability, device_uuid
from gpt_search.backends.nvml import device_id
from gpt_search.backends.tensorrt_engine import TensorRTEngine
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.backends.tensorrt_options import TensorRTOptions
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import GoldenPair, Workload

SOURCE = r"""
extern "C" __global__ void spin(long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
extern "C" __global__ void twice(const float* x, float* y, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
extern "C" __global__ void chase(const int* next, int* out, long long hops) {
    int at = 0;
    for (long long i = 0; i < hops; ++i) at = next[at];
    out[0] = at;
}
extern "C" __global__ void crash(int* where) { *where = 1; }
"""


class DataType(enum.Enum):
    FLOAT, INT32, INT64 = range(3)


class _Allocator:
    pass


class _Config:
    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.strategy = strategy


trt = SimpleNamespace(
    IOutputAllocator=_Allocator,
    TensorFormat=SimpleNamespace(LINEAR="linear"),
    TensorLocation=SimpleNamespace(HOST="host", DEVICE="device"),
    TensorIOMode=SimpleNamespace(INPUT="input", OUTPUT="output"),
    ProfilingVerbosity=SimpleNamespace(NONE="none"),
    CudaGraphStrategy=SimpleNamespace(DISABLED="disabled", WHOLE_GRAPH_CAPTURE="whole_graph_capture"),
    ExecutionContextAllocationStrategy=SimpleNamespace(STATIC="static", ON_PROFILE_CHANGE="on_profile_change"),
)


@functools.cache
def function(name: str) -> Any:
    """A kernel of SOURCE, compiled for the GPU that is here."""
    checked(runtime.cudaFree, 0)  # makes the primary context current
    return checked(driver.cuModuleGetFunction, _module(), name.encode())


@functools.cache
def _module() -> Any:
    code, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"stand_in.cu", 0, None, None)
    assert int(code) == 0, code
    major, minor = compute_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(code) != 0:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    assert int(nvrtc.nvrtcGetCUBIN(program, cubin)[0]) == 0
    return checked(driver.cuModuleLoadData, cubin)


def launch(name: str, stream: int, blocks: int, threads: int, *arguments: int) -> None:
    kinds = tuple(ctypes.c_longlong if name == "spin" else ctypes.c_void_p for _ in arguments)
    if name in ("twice", "chase"):
        kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
    checked(driver.cuLaunchKernel, function(name), blocks, 1, 1, threads, 1, 1, 0, stream, (tuple(arguments), kinds), 0)


class StandIn:
    """Plays ICudaEngine: input x of `size` numbers, output y. What an inference does is `kind`:

    spin: runs for `ns`, `launches` times. twice: y = 2x. alias: y is x's memory, doubled in place. chase: follows x,
    a chain of indices, for `hops`. nonzero: y = the numbers of x that are not 0, so its shape depends on data.
    syncs: twice, and then waits for the stream, which a capture forbids. crash: writes to an illegal address.
    host: n on the host says how many of x's numbers y takes.
    """

    def __init__(self, kind: str = "twice", size: int = 1024, **more: int) -> None:
        self.kind, self.size, self.more = kind, size, more
        self.contexts: list[Context] = []
        self.device_memory_size_v2 = 4096
        self.num_optimization_profiles = 1
        self.streamable_weights_size = 1000
        self.weight_streaming_budget_v2 = 1000
        self.names = ("x", "n", "y") if kind == "host" else ("x", "y")
        self.num_io_tensors = len(self.names)

    def get_tensor_name(self, number: int) -> str:
        return self.names[number]

    def get_tensor_format(self, name: str) -> str:
        return "linear"

    def get_tensor_location(self, name: str) -> str:
        return "host" if name == "n" else "device"

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (1,) if name == "n" else (-1,)

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType.INT64 if name == "n" else DataType.INT32 if self.kind == "chase" else DataType.FLOAT

    def get_tensor_mode(self, name: str) -> str:
        return "output" if name == "y" else "input"

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return "x" if name == "y" and self.kind == "alias" else None

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        return [(1,), (self.size,), (2 * self.size,)]

    def get_tensor_profile_values(self, profile: int, name: str) -> list[list[int]]:
        return [[0], [1], [self.size]]

    def is_shape_inference_io(self, name: str) -> bool:
        return name == "n"

    def create_runtime_config(self) -> _Config:
        return _Config()

    def create_execution_context(self, config: _Config) -> Context:
        self.contexts.append(Context(self))
        return self.contexts[-1]


class Context:
    """Plays IExecutionContext."""

    def __init__(self, engine: StandIn) -> None:
        self.engine = engine
        self.active_optimization_profile = 0
        self.nvtx_verbosity = "detailed"
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.allocators: dict[str, Any] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def infer_shapes(self) -> list[str]:
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name == "y" and self.engine.kind == "nonzero":
            return (-1,)
        if name == "y" and self.engine.kind == "host":
            return (int(ctypes.c_int64.from_address(self.addresses["n"]).value),)
        return (1,) if name == "y" and self.engine.kind == "chase" else self.shapes["x"]

    def execute_async_v3(self, stream: int) -> bool:
        kind, more = self.engine.kind, self.engine.more
        n = self.shapes["x"][0]
        x, y = self.addresses["x"], self.addresses.get("y", 0)
        blocks = (n + 255) // 256
        if kind == "spin":
            for _ in range(more.get("launches", 1)):
                launch("spin", stream, 1, 1, more["ns"])
        elif kind == "chase":
            launch("chase", stream, 1, 1, x, y, more["hops"])
        elif kind == "nonzero":
            return self._nonzero(stream, n)
        elif kind == "crash":
            launch("crash", stream, 1, 1, 16)
        else:
            n = self.get_tensor_shape("y")[0]
            launch("twice", stream, blocks, 256, x, y, n)
            if kind == "syncs":
                (code,) = runtime.cudaStreamSynchronize(stream)
                return int(code) == 0
        return True

    def _nonzero(self, stream: int, n: int) -> bool:
        checked(runtime.cudaStreamSynchronize, stream)
        x = np.empty(n, np.float32)
        to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(runtime.cudaMemcpy, x.ctypes.data, self.addresses["x"], x.nbytes, to_host)
        kept = np.ascontiguousarray(x[x != 0])
        address = self.allocators["y"].reallocate_output_async("y", 0, kept.nbytes, 256, stream)
        self.allocators["y"].notify_shape("y", kept.shape)
        if not address:
            return False
        to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        if kept.size:
            checked(runtime.cudaMemcpy, address, kept.ctypes.data, kept.nbytes, to_device)
        return True


def inputs(stand_in: StandIn) -> dict[str, np.ndarray]:
    n = stand_in.size
    if stand_in.kind == "chase":
        return {"x": chain(n, stand_in.more["lines"])}
    x = np.arange(n, dtype=np.float32)
    x[::2] = 0
    return {"x": x} | ({"n": np.array([n // 4], np.int64)} if stand_in.kind == "host" else {})


def chain(size: int, lines: int) -> np.ndarray:
    """A cycle through `lines` places in random order, as far apart as `size` allows: each hop waits for the last."""
    order = np.random.default_rng(0).permutation(lines) * (size // lines)
    order = np.roll(order, -int(np.argmin(order)))
    x = np.zeros(size, np.int32)
    x[order] = np.roll(order, -1)
    return x


def engine(kind: str = "twice", options: dict[str, object] | None = None, size: int = 1024, **more: int) -> Any:
    """The runner over a stand-in, and inputs for it."""
    made = StandIn(kind, size, **more)
    file = EngineFile("stand-in", "1", TensorRTOptions.parse(options or {}), b"")
    return TensorRTEngine(trt, made, file, Workload(__file__), f"{kind} {more}"), inputs(made)


KNOB = "kind"
KINDS = ("twice", "syncs", "nonzero", "crash", "spin")


def golden() -> list[GoldenPair]:
    given = inputs(StandIn())
    return [GoldenPair(given, {"y": 2 * given["x"]})]


class Backend:
    """Routes choose what the stand-in does; options after the class name are TensorRT options as JSON."""

    capabilities = Capabilities(
        Fingerprints.MAY_BOTH,
        build_uses_device=True,
        placement=Placement.SAME_WORKER,
        metrics=("latency", "throughput", "host_copies"),
    )

    def __init__(self, options: str = "{}") -> None:
        self._options = json.loads(options)

    @property
    def device_id(self) -> str:
        return device_id(device_uuid())

    def knob_database(self) -> KnobDatabase:
        return KnobDatabase("1", (Knob(KNOB, KINDS, KINDS[0], "what runs"),))

    def environment(self) -> dict[str, str]:
        return {"compiler": "stand-in"}

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> TensorRTEngine:
        kind = dict(route).get(KNOB, KINDS[0])
        more = {"ns": 300_000} if kind == "spin" else {}
        return engine(kind, self._options, **more)[0]  # type: ignore[no-any-return]

    def load(self, data: bytes, workload: Workload) -> TensorRTEngine:
        raise NotImplementedError
