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
from gpt_search.backends.tensorrt_file import EngineFile
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

    def __init__(
        self, trt: Any, engine: trt.ICudaEngine, context: trt.IExecutionContext, stream: Stream, own_graphs: bool
    ) -> None:
        """own_graphs: the runtime captures by itself what is enqueued."""
        self._context = context
        self.stream = stream
        self.bindings = Bindings(trt, engine, context, stream)
        self._own_graphs = own_graphs
        self._graph: Graph | None = None
        self._fixed: object = None

    def give(self, inputs: Mapping[str, Array]) -> None:
        """Puts the inputs in place. A graph holds for the shapes, and values on the host, that it was captured with."""
        fixed = self.bindings.fixed(inputs)
        if fixed != self._fixed:
            self._drop_graph()
        self.bindings.give(inputs)
        self._fixed = fixed

    def enqueue(self) -> None:
        """One inference into the stream. Raises CudaError or RuntimeError, or what an output's allocation raised."""
        if not self._context.execute_async_v3(self.stream.address):
            self.bindings.raise_failed_allocation()
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
        if self._own_graphs:
            raise CaptureError("TensorRT-RTX captures by itself (cuda_graph_strategy)")
        context: Any = self._context
        if hasattr(context, "is_stream_capturable") and not capturable(context, self.stream.address):
            raise CaptureError("TensorRT-RTX says that the engine cannot be captured")
        self._graph = capture(self.stream, self.enqueue)
        # The first launch uploads the graph, which may wait for the device: never behind a hold.
        self._graph.launch(self.stream)
        self.stream.synchronize()

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
        self, trt: Any, engine: trt.ICudaEngine, file: EngineFile, workload: Workload, fingerprint: str | None
    ) -> None:
        """trt: the module, tensorrt or tensorrt_rtx. file: what `engine` was deserialised from; `save` gives it.

        Raises InputError when the weight-streaming budget cannot be set.
        """
        self._trt, self._engine, self._file, self._options = trt, engine, file, file.options
        self.workload, self.fingerprint, self.size_bytes = workload, fingerprint, len(file.plan)
        self._lanes: dict[tuple[int, object], Lane] = {}
        self._streams: list[Stream] = []
        self._flush: DeviceBuffer | None = None
        self._watch: Watch | None = None
        self.facts: dict[str, object] = {}
        # The serialised engine is mostly weights; activations and scratch of a context come on top.
        needed = self.size_bytes + int(engine.device_memory_size_v2)
        if self._options.weight_streaming_budget is not None:
            budget = self._set_budget(self._options.weight_streaming_budget)
            self.facts["weight_streaming_budget"] = budget
            needed -= int(engine.streamable_weights_size) - budget  # these stay on the host
        self.memory_bytes: int | None = needed

    # -- the engine's contract -------------------------------------------------------------------
    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs; launched on a stream, whatever timing uses.

        Raises InputError for inputs that do not fit, CudaError, RuntimeError.
        """
        lane = self._lane(0, inputs)
        lane.give(inputs)
        lane.enqueue()
        # Errors of kernels, and shapes that depend on data, are known only now.
        lane.stream.synchronize()
        lane.bindings.download()
        lane.stream.synchronize()
        return lane.bindings.outputs()

    def time(self, request: TimingRequest) -> TimingResult:
        """Times calls, in ms; see `TimingRequest`.

        Raises InputError for options that do not go together and for a throttled GPU where the user wants that,
        CudaError, RuntimeError.
        """
        options = self._options
        if options.l2_flush and request.streams > 1:
            raise InputError("TensorRT option l2_flush needs one stream: calls beside each other share the cache")
        lanes = [self._lane(number, request.inputs) for number in range(request.streams)]
        for lane in lanes:
            lane.give(request.inputs)
            lane.enqueue()  # before a capture, and before any timing: lazily loaded kernels, allocations
            lane.stream.synchronize()
        launch, note = self._prepare(lanes, request.launch or options.launch)
        calls = [_whole_call(lane, request.host_copies) for lane in lanes]
        streams = [lane.stream for lane in lanes]
        for stream, call in zip(streams, calls, strict=True):
            for _ in range(request.warmup_calls):
                call()
            stream.synchronize()
        with self._throttle_watch() as watch:
            if request.streams == 1:
                before = self._flusher(streams[0]) if options.l2_flush else None
                samples = time_one_by_one(streams[0], calls[0], request, before, watch.look, held=launch == GRAPH)
            else:
                samples = time_concurrently(streams, calls, request, watch.look)
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
        return self._file.to_bytes()

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
    def _prepare(self, lanes: list[Lane], wanted: str) -> tuple[str, str]:
        """How all lanes are launched, as wanted where that is possible, and why not where it is not."""
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

    def _lane(self, stream: int, inputs: Mapping[str, Array]) -> Lane:
        """The lane of one stream and one set of shapes: shape points are timed in turn, each with its own graph."""
        key = stream, tuple(sorted((name, np.shape(value)) for name, value in inputs.items()))
        if key not in self._lanes:
            while len(self._streams) <= stream:
                self._streams.append(Stream())
            own_graphs = self._options.cuda_graph_strategy not in (None, "disabled")
            self._lanes[key] = Lane(self._trt, self._engine, self._context(), self._streams[stream], own_graphs)
        return self._lanes[key]

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

    def _set_budget(self, wanted: int) -> int:
        """Sets how many bytes of streamable weights stay on the device, before any context exists; all at the most."""
        engine: trt.ICudaEngine = self._engine
        streamable = int(engine.streamable_weights_size)
        budget = min(wanted, streamable)
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
