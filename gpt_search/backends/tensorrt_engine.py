"""A TensorRT engine that runs: inference and timing on CUDA streams or as a CUDA graph.

What one timed call is: CUDA events around one enqueue (stream) or one graph launch (graph), so the time is the
device's. On streams the host's part of an enqueue counts where the device has to wait for it; graph launches
are queued behind a hold and then run back to back, so that the host's part never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt_search.backends.base import MemoryLimitError, TimingRequest, TimingResult
from gpt_search.backends.cuda_runtime import (
    CaptureError,
    DeviceBuffer,
    Graph,
    Stream,
    capture,
    clear_last_error,
    l2_bytes,
    synchronize,
)
from gpt_search.backends.tensorrt_buffers import Bindings
from gpt_search.backends.tensorrt_options import TensorRTOptions, inputs_at
from gpt_search.backends.tensorrt_rtx_run import capturable, set_strategies
from gpt_search.backends.tensorrt_throttle import Watch
from gpt_search.backends.tensorrt_timing import time_concurrently, time_one_by_one
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Array, Workload

if TYPE_CHECKING:
    import tensorrt as trt

STREAM, GRAPH = "stream", "graph"


class Lane:
    """One execution context with a stream and tensors of its own, and the graph that was captured from it."""

    def __init__(self, trt: Any, engine: trt.ICudaEngine, context: trt.IExecutionContext, stream: Stream) -> None:
        self._context = context
        self.stream = stream
        self.bindings = Bindings(trt, engine, context, stream)
        self._graph: Graph | None = None
        self._shapes: object = None

    def give(self, inputs: Mapping[str, Array]) -> None:
        """Puts the inputs in place. A graph holds for the shapes that it was captured with."""
        shapes = {name: np.shape(value) for name, value in inputs.items()}
        if shapes != self._shapes:
            self._drop_graph()
        self.bindings.give(inputs)
        self._shapes = shapes

    def enqueue(self) -> None:
        """One inference into the stream. Raises CudaError or RuntimeError."""
        if not self._context.execute_async_v3(self.stream.address):
            synchronize()  # a fault on the device shows here, with its name
            error = clear_last_error()
            raise RuntimeError("TensorRT refused to enqueue the engine" + (f": {error}" if error else "; see its log"))

    def launch(self) -> None:
        """One launch of the graph, or one enqueue where there is none."""
        if self._graph is not None:
            self._graph.launch(self.stream)
        else:
            self.enqueue()

    def capture(self) -> None:
        """Captures one enqueue, unless that was done for these shapes. One enqueue must have run before it.

        Raises CaptureError with the reason.
        """
        if self._graph is not None:
            return
        if names := self.bindings.data_dependent:
            raise CaptureError(f"the shape of output {', '.join(names)} depends on data")
        context: Any = self._context
        if hasattr(context, "is_stream_capturable") and not capturable(context, self.stream.address):
            raise CaptureError("TensorRT-RTX says that the engine cannot be captured")
        self._graph = capture(self.stream, self.enqueue)

    def use_stream(self) -> None:
        """Later launches are enqueues."""
        self._drop_graph()

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def close(self) -> None:
        """Frees graph and buffers."""
        self._drop_graph()
        self.bindings.close()


class TensorRTEngine:
    """A deserialised engine. Use it from one thread; after a CudaError let the process end."""

    def __init__(
        self,
        trt: Any,
        engine: trt.ICudaEngine,
        data: bytes,
        workload: Workload,
        options: TensorRTOptions,
        fingerprint: str | None,
        size_bytes: int,
    ) -> None:
        """trt: the module, tensorrt or tensorrt_rtx. data: what `save` gives. size_bytes: of the serialised engine.

        Raises InputError when the weight-streaming budget cannot be set.
        """
        self._trt, self._engine, self._data, self._options = trt, engine, data, options
        self.workload, self.fingerprint, self.size_bytes = workload, fingerprint, size_bytes
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._streams: list[Stream] = []
        self._flush: DeviceBuffer | None = None
        self._watch: Watch | None = None
        self.weight_streaming_budget = self._set_budget()
        # The serialised engine is mostly weights; activations and scratch come on top for each context.
        self.memory_bytes: int | None = size_bytes + int(engine.device_memory_size_v2)

    # -- the engine's contract -------------------------------------------------------------------
    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs; launched on a stream, whatever timing uses.

        Raises InputError for inputs that do not fit, CudaError, RuntimeError.
        """
        lane = self._lane(0, 0)
        lane.give(inputs)
        lane.enqueue()
        # Errors of kernels, and shapes that depend on data, are known only now.
        lane.stream.synchronize()
        lane.bindings.download()
        lane.stream.synchronize()
        return lane.bindings.outputs()

    def time(self, request: TimingRequest) -> TimingResult:
        """Times calls, in ms. One call is one inference at every timing point; see `TimingRequest` for the rest.

        Raises InputError for options that do not go together and for a throttled GPU where the user wants that,
        CudaError, RuntimeError.
        """
        options = self._options
        if options.l2_flush and request.streams > 1:
            raise InputError("TensorRT option l2_flush needs one stream: calls beside each other share the cache")
        points = [inputs_at(point, request.inputs) for point in options.timing_points] or [dict(request.inputs)]
        calls = [[self._lane(s, p) for p in range(len(points))] for s in range(request.streams)]
        for lanes in calls:
            for lane, inputs in zip(lanes, points, strict=True):
                lane.give(inputs)
                lane.enqueue()  # before a capture, and before any timing: lazily loaded kernels, allocations
                lane.stream.synchronize()
        launch, note = self._prepare(calls, request.launch or options.launch)
        launches: list[list[Callable[[], None]]] = [
            [_whole_call(lane, request.host_copies) for lane in lanes] for lanes in calls
        ]
        streams = [lanes[0].stream for lanes in calls]
        for stream, own in zip(streams, launches, strict=True):
            for _ in range(request.warmup_calls):
                for one in own:
                    one()
            stream.synchronize()
        with self._throttle_watch() as watch:
            if request.streams == 1:
                before = self._flusher(streams[0]) if options.l2_flush else None
                samples = time_one_by_one(streams[0], launches[0], request, before, watch.look, held=launch == GRAPH)
            else:
                samples = time_concurrently(streams, launches, request, watch.look)
        return TimingResult(
            samples,
            launch,
            request.streams,
            request.host_copies,
            launch_note=note,
            device=watch.device,
            again=watch.again,
        )

    def save(self) -> bytes:
        """The engine as bytes for the backend's `load`."""
        return self._data

    def close(self) -> None:
        """Frees contexts, buffers and streams. Raises CudaError."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        if self._flush is not None:
            self._flush.close()
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        del self._engine

    # -- helpers -------------------------------------------------------------------------------
    def _prepare(self, calls: list[list[Lane]], wanted: str) -> tuple[str, str]:
        """How all lanes are launched, as wanted where that is possible, and why not where it is not."""
        lanes = [lane for one in calls for lane in one]
        if wanted == GRAPH:
            try:
                for lane in lanes:
                    lane.capture()
                return GRAPH, ""
            except CaptureError as error:
                note = f"the engine cannot be captured into a CUDA graph: {error}"
        else:
            note = ""
        for lane in lanes:
            lane.use_stream()
            lane.enqueue()  # a failed capture must have left nothing broken
            lane.stream.synchronize()
        return STREAM, note

    def _lane(self, stream: int, point: int) -> Lane:
        """The lane of one stream and one timing point: a context serves one set of shapes, as its graph does."""
        if (stream, point) not in self._lanes:
            while len(self._streams) <= stream:
                self._streams.append(Stream())
            self._lanes[stream, point] = Lane(self._trt, self._engine, self._context(), self._streams[stream])
        return self._lanes[stream, point]

    def _context(self) -> trt.IExecutionContext:
        options = self._options
        config: trt.IRuntimeConfig = self._engine.create_runtime_config()
        if options.context_allocation is not None:
            strategy = getattr(self._trt.ExecutionContextAllocationStrategy, options.context_allocation.upper())
            config.set_execution_context_allocation_strategy(strategy)
        of_rtx: Any = config  # what it sets exists there alone, and the options are refused elsewhere
        set_strategies(self._trt, of_rtx, options)
        context: trt.IExecutionContext | None = self._engine.create_execution_context(config)
        if context is None:
            raise MemoryLimitError("TensorRT created no execution context, most likely for lack of device memory")
        # An engine built with DETAILED verbosity annotates every layer, which slows launches.
        context.nvtx_verbosity = self._trt.ProfilingVerbosity.NONE
        return context

    def _set_budget(self) -> int | None:
        """Sets how many bytes of weights stay on the device, before any context exists. None where not asked for."""
        wanted = self._options.weight_streaming_budget
        if wanted is None:
            return None
        engine: trt.ICudaEngine = self._engine
        streamable = int(engine.streamable_weights_size)
        budget = int(engine.get_weight_streaming_automatic_budget()) if wanted == "auto" else int(wanted)
        budget = min(budget, streamable)
        engine.weight_streaming_budget_v2 = budget
        taken = int(engine.weight_streaming_budget_v2)
        if taken != budget:
            raise InputError(
                f"TensorRT option weight_streaming_budget: set to {budget} bytes, it reads back as {taken} "
                f"({streamable} bytes can be streamed)"
            )
        return taken

    def _flusher(self, stream: Stream) -> Callable[[], None]:
        """Overwrites a buffer of twice the L2 cache's size, so that nothing of the last call is left in it."""
        if self._flush is None:
            self._flush = DeviceBuffer(2 * l2_bytes())
        flush = self._flush
        return lambda: stream.fill(flush)

    def _throttle_watch(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._options.throttle)
        return self._watch


def _whole_call(lane: Lane, host_copies: bool) -> Callable[[], None]:
    if not host_copies:
        return lane.launch

    def call() -> None:
        lane.bindings.upload()
        lane.launch()
        lane.bindings.download()

    return call
