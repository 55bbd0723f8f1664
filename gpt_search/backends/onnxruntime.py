"""ONNX Runtime on the CPU: the embedded default backend."""

from __future__ import annotations

import gc
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from gpt_search.backends.base import (
    BuildError,
    BuildOptions,
    Capabilities,
    Fingerprints,
    MemoryLimitError,
    Placement,
    TimingRequest,
    TimingResult,
)
from gpt_search.backends.onnxruntime_catalogue import database_for
from gpt_search.backends.onnxruntime_denormals import denormals
from gpt_search.backends.onnxruntime_fingerprint import graph_digest
from gpt_search.backends.onnxruntime_machine import environment, physical_cores
from gpt_search.backends.onnxruntime_probe import missing_optimizers
from gpt_search.backends.onnxruntime_settings import Settings
from gpt_search.backends.onnxruntime_shapes import free_dimensions
from gpt_search.backends.onnxruntime_streams import timed_streams
from gpt_search.domain.digest import digest_of
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Array, Workload

_MAGIC = b"gpt_search onnxruntime engine 1\n"
# Protocol buffers end at 2 GiB: from here on weights are written to a file beside the optimised model.
_EXTERNAL_FROM_BYTES = 1 << 30
_ALLOCATION = ("failed to allocate", "bad_alloc", "cannot allocate memory", "out of memory", "allocation failed")
_QUANTIZED = {  # knob value -> (weights signed, one scale per channel, 7 bits only)
    "u8": (False, False, False),
    "u8_per_channel": (False, True, False),
    "s8": (True, False, False),
    "s8_per_channel": (True, True, False),
    "s8_reduced": (True, False, True),
    "s8_per_channel_reduced": (True, True, True),
}


class OnnxRuntimeBackend:
    """ONNX Runtime's CPU execution provider as a compiler with knobs.

    The fingerprint is exact: a Merkle hash of the optimised graph and the run-time settings. Building
    uses all cores, so it disturbs timing; the reference lives in a second, paused worker because the
    runtime's threads spin.
    """

    capabilities = Capabilities(
        Fingerprints.EXACT,
        build_uses_device=True,
        placement=Placement.PAUSED_WORKER,
        metrics=("latency", "throughput"),
    )

    def knob_database(self) -> KnobDatabase:
        """All knobs, with tuner_version "onnxruntime-<version>"; see `onnxruntime_probe` for their validation."""
        import onnxruntime

        return database_for(onnxruntime.__version__)

    def environment(self) -> dict[str, str]:
        """What must be equal for two records to be comparable."""
        return environment()

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> OnnxRuntimeEngine:
        """Quantises where the route says so, makes a session, and takes its fingerprint.

        Raises BuildError with the runtime's message for whatever it refuses, for an unknown knob or
        value, and for a switched-off optimiser that this runtime does not have (which it would
        silently ignore). Raises MemoryLimitError when an allocation fails.
        """
        if options.values:
            raise BuildError(f"the onnxruntime backend has no build options; given: {', '.join(options.values)}")
        settings = Settings.of(route, self.knob_database())
        missing = missing_optimizers(settings.disabled)
        if missing:
            raise BuildError(f"this ONNX Runtime has no optimiser {', '.join(missing)}: the switch would do nothing")
        scratch = tempfile.TemporaryDirectory(prefix="gpt_search_", ignore_cleanup_errors=True)
        try:
            with _errors_as_ours(scratch.name):
                model = workload.model
                if settings.quantize != "off":
                    model = _quantized(model, Path(scratch.name), settings)
                optimized = Path(scratch.name) / "optimized.onnx"
                session_options = settings.session_options()
                if settings.fixed_dimensions:
                    for name, size in free_dimensions(workload).items():
                        session_options.add_free_dimension_override_by_name(name, size)
                session_options.optimized_model_filepath = str(optimized)
                # Weights that lie in a file of their own would else stay there, out of the engine.
                if workload.external or workload.model.stat().st_size >= _EXTERNAL_FROM_BYTES:
                    key = "session.optimized_model_external_initializers_"
                    session_options.add_session_config_entry(key + "file_name", "weights.bin")
                    session_options.add_session_config_entry(key + "min_size_in_bytes", "1024")
                session = _session(model, session_options, settings)
                graph = _digest_of_model(optimized)
        except BaseException:
            scratch.cleanup()
            raise
        return OnnxRuntimeEngine(session, settings, graph, scratch)

    def load(self, data: bytes, workload: Workload) -> OnnxRuntimeEngine:
        """The engine that `OnnxRuntimeEngine.save` wrote, with the same outputs and fingerprint.

        Raises BuildError when the bytes are not such an engine, are damaged, or come from another
        version of the runtime.
        """
        import onnxruntime

        if not data.startswith(_MAGIC):
            raise BuildError("these bytes are not an ONNX Runtime engine saved by gpt_search")
        try:
            size = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 8], "little")
            start = len(_MAGIC) + 8 + size
            header = parse_json(data[len(_MAGIC) + 8 : start])
            settings = Settings.from_json(header["settings"])
            version, sizes, graph = str(header["version"]), dict(header["files"]), str(header["graph"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BuildError(f"the saved engine's header cannot be read: {error!r}") from None
        if version != onnxruntime.__version__:
            raise BuildError(f"the engine was saved by ONNX Runtime {version}, this is {onnxruntime.__version__}")
        if len(data) - start != sum(sizes.values()) or "optimized.onnx" not in sizes:
            raise BuildError(f"the saved engine is {len(data)} bytes long, expected {start + sum(sizes.values())}")
        scratch = tempfile.TemporaryDirectory(prefix="gpt_search_", ignore_cleanup_errors=True)
        try:
            with _errors_as_ours(scratch.name):
                for name, length in sizes.items():
                    (Path(scratch.name) / Path(name).name).write_bytes(data[start : start + length])
                    start += length
                optimized = Path(scratch.name) / "optimized.onnx"
                if _digest_of_model(optimized) != graph:
                    raise BuildError("the saved engine is damaged: its graph is not the one that was saved")
                session = _session(optimized, settings.reloading().session_options(), settings, reloading=True)
        except BaseException:
            scratch.cleanup()
            raise
        return OnnxRuntimeEngine(session, settings, graph, scratch)


class OnnxRuntimeEngine:
    """A session, ready to run.

    memory_bytes is None: the runtime does not say what a session holds, and the growth of the
    process would also count what earlier engines left behind.
    """

    memory_bytes: int | None = None

    def __init__(self, session: Any, settings: Settings, graph: str, scratch: tempfile.TemporaryDirectory[str]) -> None:
        self._session = session
        self._settings = settings
        self._graph = graph
        self._scratch = scratch
        self._run_options = settings.run_options()
        self.size_bytes: int | None = sum(p.stat().st_size for p in self._files())  # less a header of some hundred
        self._outputs = [o.name for o in session.get_outputs()]
        self.fingerprint: str | None = digest_of([graph, settings.runtime_part(physical_cores())])

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name. Raises MemoryLimitError, or the runtime's own exception."""
        with denormals(self._settings.denormals_are_zero), _memory_errors():
            values = self._session.run(self._outputs, dict(inputs), self._run_options)
        return dict(zip(self._outputs, values, strict=True))

    def time(self, request: TimingRequest) -> TimingResult:
        """Times calls back to back with inputs bound in advance; launch "iobinding", or "run" for text inputs.

        Several streams are as many threads, each with inputs and a binding of its own, on the one session.
        """
        if request.streams > 1:
            return self._time_streams(request)
        with denormals(self._settings.denormals_are_zero), _memory_errors():
            launch, call = self._prepared(request.inputs)
            for _ in range(request.warmup_calls):
                call()
            limit, least, most = int(request.seconds * 1e9), max(request.min_calls, 1), request.max_calls
            samples: list[int] = []
            collecting = gc.isenabled()
            gc.disable()
            try:
                begin = perf_counter_ns()
                while True:
                    before = perf_counter_ns()
                    call()
                    after = perf_counter_ns()
                    samples.append(after - before)
                    if len(samples) >= most or (len(samples) >= least and after - begin >= limit):
                        break
            finally:
                if collecting:
                    gc.enable()
        return TimingResult(np.asarray(samples, np.float64) / 1e6, launch)

    def _time_streams(self, request: TimingRequest) -> TimingResult:
        launches, calls = [], []
        for _ in range(request.streams):
            launch, call = self._prepared({n: np.array(v) for n, v in request.inputs.items()})
            launches.append(launch)
            calls.append(self._call_in_thread(call))
        samples = timed_streams(calls, request)
        return TimingResult(samples, launches[0], request.streams)

    def _call_in_thread(self, call: Callable[[], object]) -> Callable[[], AbstractContextManager[Callable[[], object]]]:
        @contextmanager
        def entered() -> Iterator[Callable[[], object]]:
            with denormals(self._settings.denormals_are_zero), _memory_errors():  # both belong to the thread
                yield call

        return entered

    def _prepared(self, inputs: Mapping[str, Array]) -> tuple[str, Callable[[], object]]:
        session, options = self._session, self._run_options
        if any(np.asarray(v).dtype.kind in "OUS" for v in inputs.values()):
            feeds = dict(inputs)
            return "run", lambda: session.run(self._outputs, feeds, options)
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value).reshape(np.shape(value)))
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        return "iobinding", lambda: session.run_with_iobinding(binding, options)

    def save(self) -> bytes:
        """The optimised model with its weights, and the settings that `OnnxRuntimeBackend.load` needs."""
        import onnxruntime

        files = self._files()
        header = {
            "version": onnxruntime.__version__,
            "settings": self._settings.to_json(),
            "graph": self._graph,
            "files": {p.name: p.stat().st_size for p in files},
        }
        text = json.dumps(header).encode()
        return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *(p.read_bytes() for p in files)])

    def _files(self) -> list[Path]:
        return sorted(p for p in Path(self._scratch.name).iterdir() if p.name in ("optimized.onnx", "weights.bin"))

    def close(self) -> None:
        """Ends the session's threads and frees its memory and files."""
        self._session = None
        self._scratch.cleanup()


def _session(model: Path, options: Any, settings: Settings, reloading: bool = False) -> Any:
    import onnxruntime

    # Without enable_fallback=0 a refused session is silently made again without the optimiser switches.
    with denormals(settings.denormals_are_zero):
        return onnxruntime.InferenceSession(
            str(model),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=None if reloading else (list(settings.disabled) or None),
            enable_fallback=0,
        )


def _quantized(model: Path, folder: Path, settings: Settings) -> Path:
    """Writes the dynamically quantised model. Source: onnxruntime.quantization.quantize_dynamic."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    signed, per_channel, reduced = _QUANTIZED[settings.quantize]
    target = folder / "quantized.onnx"
    logging.disable(logging.WARNING)  # it advises a pre-processing step on every call
    try:
        quantize_dynamic(
            onnx.load(str(model)),  # given a path, it would look for external weights in a folder of its own
            str(target),
            weight_type=QuantType.QInt8 if signed else QuantType.QUInt8,
            per_channel=per_channel,
            reduce_range=reduced,
            op_types_to_quantize=["MatMul"] if settings.values["model:quantize_scope"] == "matmul" else None,
        )
    finally:
        logging.disable(logging.NOTSET)
    return target


def _digest_of_model(path: Path) -> str:
    import onnx

    return graph_digest(onnx.load(str(path), load_external_data=False), path.parent)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turns failed allocations into MemoryLimitError."""
    try:
        yield
    except MemoryError as error:
        raise MemoryLimitError(str(error) or "out of memory") from None
    except Exception as error:
        if any(sign in str(error).lower() for sign in _ALLOCATION):
            raise MemoryLimitError(str(error)) from None
        raise


@contextmanager
def _errors_as_ours(scratch: str) -> Iterator[None]:
    """Turns every failure of a build into BuildError or MemoryLimitError, with the runtime's message."""
    try:
        with _memory_errors():
            yield
    except (BuildError, MemoryLimitError):
        raise
    except Exception as error:
        # The scratch folder has a new name in every build; messages of equal failures should be equal.
        text = str(error).replace(scratch, "<scratch>") or repr(error)
        raise BuildError(f"{type(error).__name__}: {text}") from error
