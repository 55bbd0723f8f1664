"""Shapes, profiles, graphs and memory of the runner, with CUDA replaced by the host's memory. Needs no GPU.

What only a GPU can tell (times, capture, faults) is in test_tensorrt_gpu.py.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorrt_stand_in as stand_in

from gpt_search.backends import tensorrt_buffers, tensorrt_engine
from gpt_search.backends.base import MemoryLimitError, TimingRequest
from gpt_search.backends.cuda_runtime import CudaMemoryError
from gpt_search.backends.tensorrt_buffers import ShapeError
from gpt_search.backends.tensorrt_engine import TensorRTEngine
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.backends.tensorrt_options import TensorRTOptions
from gpt_search.domain.workload import Workload


class HostMemory:
    def __init__(self, size: int) -> None:
        if size > 1 << 30:
            raise CudaMemoryError("cudaMalloc", "cudaErrorMemoryAllocation", "out of memory")
        self.size = max(1, size)
        self._bytes = ctypes.create_string_buffer(self.size)
        self.address = ctypes.addressof(self._bytes)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return np.frombuffer(self._bytes, np.uint8, int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)

    def close(self) -> None:
        self.size = -1


class Stream:
    address = 1

    def synchronize(self) -> None: ...

    def close(self) -> None: ...

    def copy(self, to: int, source: int, size: int, kind: Any) -> None:
        ctypes.memmove(to, source, size)


class Graph:
    def __init__(self, work: Any) -> None:
        self.work = work

    def launch(self, stream: Stream) -> None:
        self.work()

    def close(self) -> None: ...


class Watch:
    device: dict[str, float] = {}  # noqa: RUF012
    again = ""

    def __init__(self, policy: str) -> None: ...

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None: ...

    def look(self) -> None: ...


class Context(stand_in.Context):
    """y = 2x, on the host; `enqueued` keeps the shapes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.enqueued: list[tuple[int, ...]] = []

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        self.active_optimization_profile = number
        return True

    def execute_async_v3(self, stream: int) -> bool:
        shape = self.shapes["x"]
        self.enqueued.append(shape)
        if self.engine.kind == "nonzero":
            return bool(self.allocators["y"].reallocate_output_async("y", 0, self.engine.more["needs"], 256, stream))
        n = int(np.prod(self.get_tensor_shape("y")))
        x, y = (np.ctypeslib.as_array((ctypes.c_float * n).from_address(self.addresses[t])) for t in "xy")
        y[:] = 2 * x
        return True


class Engine(stand_in.StandIn):
    """profiles: (smallest, typical, largest) of x."""

    def __init__(self, kind: str = "twice", profiles: Any = (((1,), (8,), (64,)),), **more: Any) -> None:
        super().__init__(kind, 8, **more)
        self.profiles = profiles
        self.num_optimization_profiles = len(profiles)

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        assert name == "x"
        return self.profiles[profile]

    def create_execution_context(self, config: Any) -> Context:
        self.contexts.append(Context(self))
        return self.contexts[-1]


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces CUDA; grows by one with every capture."""
    counted: list[int] = []

    def capture(stream: Stream, work: Any) -> Graph:
        counted.append(1)
        return Graph(work)

    def time_calls(stream: Any, call: Any, *_: Any, **__: Any) -> np.ndarray:
        for one in call if isinstance(call, list) else [call]:
            one()
        return np.ones(3)

    for name, value in {
        "Stream": Stream,
        "capture": capture,
        "Watch": Watch,
        "DeviceBuffer": HostMemory,
        "time_one_by_one": time_calls,
        "time_concurrently": time_calls,
        "synchronize": lambda: None,
        "clear_last_error": lambda: None,
    }.items():
        monkeypatch.setattr(tensorrt_engine, name, value)
    monkeypatch.setattr(tensorrt_buffers, "DeviceBuffer", HostMemory)
    monkeypatch.setattr(tensorrt_buffers, "HostBuffer", HostMemory)
    return counted


def runner(engine: Engine, plan: bytes = b"", **options: object) -> TensorRTEngine:
    file = EngineFile("stand-in", "1", TensorRTOptions.parse(options), plan)
    made: Any = engine
    return TensorRTEngine(stand_in.trt, made, file, Workload(__file__), "f")


def x(n: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(n, dtype=np.float32)}


def test_every_shape_point_keeps_its_context_and_its_graph(captures: list[int]) -> None:
    engine = Engine()
    made = runner(engine)
    for _ in range(3):
        for n in (4, 16):
            result = made.time(TimingRequest(x(n)))
            assert (result.launch, result.launch_note, result.streams) == ("graph", "", 1)
            np.testing.assert_array_equal(made.infer(x(n))["y"], 2 * x(n)["x"])
    assert len(engine.contexts) == 2 and len(captures) == 2
    assert [set(c.enqueued) for c in engine.contexts] == [{(4,)}, {(16,)}]  # type: ignore[attr-defined]


def test_streams_and_host_copies_are_done_as_asked_and_told(captures: list[int]) -> None:
    engine = Engine()
    result = runner(engine).time(TimingRequest(x(4), streams=3, host_copies=True))
    assert (result.streams, result.host_copies, result.launch) == (3, True, "graph")
    assert len(engine.contexts) == len(captures) == 3


def test_a_graph_does_not_outlive_values_that_the_engine_reads_on_the_host(captures: list[int]) -> None:
    engine = Engine("host")
    made = runner(engine)
    for n in (3, 3, 5):
        given = x(8) | {"n": np.array([n], np.int64)}
        made.time(TimingRequest(given))
        assert len(made.infer(given)["y"]) == n
    assert len(captures) == 2  # for 3 and for 5


def test_a_profile_made_for_the_sizes_comes_before_the_first_that_holds_them() -> None:
    engine = Engine(profiles=(((1,), (8,), (64,)), ((16,), (32,), (64,)), ((99,), (99,), (99,))))
    made = runner(engine)
    for n, number in ((8, 0), (20, 0), (32, 1), (99, 2)):
        made.infer(x(n))
        assert engine.contexts[-1].active_optimization_profile == number
    with pytest.raises(ShapeError, match=r"holds x \(70,\); it has profile 0: x \(1,\) to \(64,\); profile 1: "):
        made.infer(x(70))


def test_of_a_fixed_shape_no_profile_is_asked() -> None:
    engine = Engine()
    engine.get_tensor_shape = lambda name: (8,)  # type: ignore[method-assign]
    engine.get_tensor_profile_shape = lambda *_: pytest.fail("asked")  # type: ignore[method-assign]
    made = runner(engine)
    np.testing.assert_array_equal(made.infer(x(8))["y"], 2 * x(8)["x"])
    with pytest.raises(ShapeError, match=r"x \(8,\) to \(8,\)"):
        made.infer(x(9))


def test_an_output_too_large_for_the_device_is_a_lack_of_memory() -> None:
    with pytest.raises(MemoryLimitError, match="cudaErrorMemoryAllocation"):
        runner(Engine("nonzero", needs=1 << 40)).infer(x(4))


def test_what_the_runtime_captures_itself_is_enqueued(captures: list[int]) -> None:
    result = runner(Engine(), cuda_graph_strategy="whole_graph_capture").time(TimingRequest(x(4)))
    assert result.launch == "stream" and "cuda_graph_strategy" in result.launch_note and not captures
    assert runner(Engine(), cuda_graph_strategy="disabled").time(TimingRequest(x(4))).launch == "graph"


@pytest.mark.parametrize(("budget", "taken"), [(0, 0), (600, 600), (5000, 1000)])
def test_memory_is_weights_on_the_device_and_a_contexts_own(budget: int, taken: int) -> None:
    """The stand-in has 1000 bytes of weights that can be streamed, and contexts of 4096 bytes."""
    made = runner(Engine(), b"p" * 3000, weight_streaming=True, weight_streaming_budget=budget)
    assert made.facts == {"weight_streaming_budget": taken}
    assert (made.size_bytes, made.memory_bytes) == (3000, 3000 + 4096 - 1000 + taken)
    plain = runner(Engine(), b"p" * 3000)
    assert (plain.size_bytes, plain.memory_bytes, plain.facts) == (3000, 7096, {})


def test_nothing_holds_an_engine_that_was_closed() -> None:
    engine = Engine()
    made = runner(engine)
    for n in (4, 8):
        made.infer(x(n))
        made.time(TimingRequest(x(n)))
    held = [weakref.ref(engine), *(weakref.ref(c) for c in engine.contexts)]
    gc.disable()  # a worker goes on to the next build at once: nothing may wait for the collector
    try:
        made.close()
        engine.contexts.clear()
        del engine
        assert [ref() for ref in held] == [None] * 3
    finally:
        gc.enable()
