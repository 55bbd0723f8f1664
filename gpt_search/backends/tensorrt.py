"""TensorRT and TensorRT-RTX: one code base, the library chosen when the backend is made.

Building is here; running is `tensorrt_engine`. An engine that was built on a machine which cannot run it (no
driver, a GPU that TensorRT-RTX does not support) can still be saved: every attempt to run it says why not.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt_search.backends.base import (
    BuildError,
    BuildOptions,
    Capabilities,
    Engine,
    Fingerprints,
    Placement,
    TimingRequest,
    TimingResult,
)
from gpt_search.backends.tensorrt_build import add_profiles, configure, load_plugins, parse_model, serialise, set_route
from gpt_search.backends.tensorrt_cache import CacheStore
from gpt_search.backends.tensorrt_failures import why_not_run
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.backends.tensorrt_fingerprint import fingerprint_of
from gpt_search.backends.tensorrt_knobs import route_database
from gpt_search.backends.tensorrt_log import Logs, Progress, RouteLog, log_folder, progress_monitor
from gpt_search.backends.tensorrt_options import FULL, RTX, TensorRTOptions, not_of
from gpt_search.backends.tensorrt_rtx import knobs_given_as_options, rtx_database, set_targets, with_knobs
from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Array, Workload

if TYPE_CHECKING:
    import tensorrt as trt

_WARNINGS_KEPT = 20
# Of an option that only the named backend has.
_WHY_NOT = {
    FULL: "TensorRT-RTX times nothing while it builds, so it has no timing cache",
    RTX: "it is TensorRT-RTX's",
}
# Run-time settings that make another program of the same engine.
_RUN_PART = ("cuda_graph_strategy", "dynamic_shapes_kernel_specialization_strategy", "weight_streaming_budget")


@dataclass(frozen=True)
class Library:
    """One of NVIDIA's two libraries: its modules, the first that is installed counting, and what to install."""

    name: str
    title: str
    modules: tuple[str, ...]
    install: str
    rtx: bool = False


LIBRARIES = {
    FULL: Library(
        FULL,
        "TensorRT",
        ("tensorrt", "tensorrt_bindings"),
        "pip install 'tensorrt-cu13>=11.1' 'cuda-python>=13' nvidia-ml-py",
    ),
    RTX: Library(
        RTX,
        "TensorRT-RTX",
        ("tensorrt_rtx", "tensorrt_rtx_bindings"),
        "pip install tensorrt-rtx-cu13-bindings tensorrt-rtx-cu13-libs 'cuda-python>=13' nvidia-ml-py",
        rtx=True,
    ),
}


def import_library(library: Library) -> Any:
    """The library's Python module. Raises InputError, with the reason and what to install, when it cannot be loaded."""
    reason = "it is not installed"
    for name in library.modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                reason = str(error)
        except (ImportError, OSError, RuntimeError) as error:  # bindings without the native libraries
            reason = f"{name} is installed, but cannot be loaded: {error}"
    raise InputError(f"{library.title} cannot be used here: {reason}; try: {library.install}")


class TensorRTBackend:
    """A TensorRT library as a compiler with knobs. Use it from one thread; `cancel` may come from another.

    Fingerprints come from the engine inspector and may merge and split. The builder times tactics on the GPU,
    so building disturbs timing there; TensorRT-RTX builds on the CPU alone.
    """

    def __init__(self, name: str = "tensorrt") -> None:
        """name: "tensorrt" or "tensorrt-rtx". Raises InputError when that library cannot be used here."""
        self.library = LIBRARIES[name]
        self.capabilities = Capabilities(
            Fingerprints.MAY_BOTH,
            build_uses_device=not self.library.rtx,
            placement=Placement.SAME_WORKER,
            metrics=("latency", "throughput", "host_copies"),
        )
        self.on_progress: Progress | None = None
        self._trt = import_library(self.library)
        self._logs = Logs.of(self._trt)
        self._cancelled = threading.Event()
        self._plugins: set[str] = set()
        self._caches: dict[str, bytes] = {}
        self._database: KnobDatabase | None = None
        self._initialised = False

    # -- what there is -------------------------------------------------------------------------
    @property
    def device_id(self) -> str:
        """What the device lock is named after: the GPU's or MIG slice's UUID, "cpu" where there is none."""
        from gpt_search.backends.tensorrt_device import current_device

        return current_device()

    @property
    def frozen_cache(self) -> bool:
        """True when builds time tactics, so that a study needs a frozen timing cache."""
        return not self.library.rtx

    def knob_database(self) -> KnobDatabase:
        """The compiler's build routes; TensorRT-RTX's own options. Raises InputError where there are none."""
        if self._database is None:
            builder = self._builder()
            config = builder.create_builder_config()
            if self.library.rtx:
                self._database = rtx_database(self._trt, config)
            else:
                self._database = route_database(config, self.library.title, str(self._trt.__version__))
        return self._database

    def environment(self) -> dict[str, str]:
        """What must be equal for two records to be comparable."""
        facts = {
            "compiler": f"{self.library.name} {self._trt.__version__}",
            "onnx_parser": str(self._trt.get_nv_onnx_parser_version()),
        }
        for name in ("TRT_INTERNAL_OPTIONS", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING"):
            if name in os.environ:  # the first can even switch off the check of knob names
                facts[name] = os.environ[name]
        from gpt_search.backends.tensorrt_device import device_facts

        return facts | device_facts()

    def check_options(self, values: Mapping[str, object]) -> dict[str, object]:
        """The build options in the form that records keep. Raises InputError for what is not allowed."""
        if self.library.rtx and (given := knobs_given_as_options(dict(values))):
            raise InputError(
                f"with the backend tensorrt-rtx these are knobs, not options: {', '.join(given)}; pin one with "
                "--knobs '-NAME=VALUE ...'"
            )
        elsewhere = not_of(self.library.name)
        for name in values:
            if name in elsewhere:
                raise InputError(
                    f"the backend {self.library.name} has no option {name}: {_WHY_NOT[elsewhere[name]]}; leave it out"
                )
        return TensorRTOptions.parse(values).to_json()

    def cannot_run(self) -> str | None:
        """Why engines can be built here, but not run, in one line; None where they can.

        TensorRT builds only where it can run. TensorRT-RTX builds the smallest network, on the CPU, and loads it.
        """
        if not self.library.rtx:
            return None
        builder = self._builder()
        network = builder.create_network()
        given = network.add_input("x", self._trt.float32, (1,))
        network.mark_output(network.add_identity(given).get_output(0))
        with self._logs.recording() as log:
            plan = serialise(builder, network, builder.create_builder_config(), log)
            runtime: trt.Runtime = self._trt.Runtime(self._logs.logger)
            engine: trt.ICudaEngine | None = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            return why_not_run(log.errors, self.library.title) or " ".join(log.errors)
        return None

    # -- building ------------------------------------------------------------------------------
    def cancel(self) -> None:
        """Ends the build that is running at its next step: it raises BuildError. From any thread."""
        self._cancelled.set()

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> Engine:
        """Parses, builds, deserialises, and takes the fingerprint.

        Raises BuildError with TensorRT's own messages, with the node for a model that it cannot take; InputError for
        options that do not fit the model; MemoryLimitError when an allocation failed.
        """
        self.check_options({k: v for k, v in options.values.items() if not k.startswith("timing_cache_")})
        parsed = TensorRTOptions.parse(options.values)
        with self._logs.recording(echo=True) as log:
            try:
                if self.library.rtx:
                    parsed = with_knobs(parsed, route, self.knob_database())
                    plan = self._plan(workload, "", parsed, log)
                else:
                    plan = self._plan(workload, str(route), parsed, log)
            finally:
                written = self._write_log(workload, route, log)
        file = EngineFile(self.library.name, str(self._trt.__version__), parsed, plan)
        return self._engine(file, workload, _facts(file, log, written))

    def load(self, data: bytes, workload: Workload) -> Engine:
        """The engine that `Engine.save` wrote. Raises BuildError when it is not one, or another version's."""
        file = EngineFile.from_bytes(data)
        here = (self.library.name, str(self._trt.__version__))
        if (file.library, file.version) != here and not file.options.version_compatible:
            raise BuildError(f"the engine was saved by {file.library} {file.version}, this is {' '.join(here)}")
        with self._logs.recording() as log:
            self._prepare(file.options, log)
        return self._engine(file, workload, _facts(file, log, None))

    def _plan(self, workload: Workload, route: str, options: TensorRTOptions, log: RouteLog) -> bytes:
        trt = self._trt
        builder = self._builder()
        self._cancelled.clear()
        self._prepare(options, log)
        config = builder.create_builder_config()
        configure(trt, config, options)
        if self.library.rtx:
            set_targets(trt, config, options)
        set_route(config, route)
        network, parser = parse_model(trt, builder, self._logs.logger, workload, options, log)
        add_profiles(builder, config, network, workload, options)
        monitor = progress_monitor(trt, self._cancelled, self.on_progress)
        config.progress_monitor = monitor
        with self._timing_cache(workload, config, options):
            plan = serialise(builder, network, config, log)
        del parser  # it holds the weights until here
        return plan

    def _prepare(self, options: TensorRTOptions, log: RouteLog) -> None:
        if not self._initialised:
            self._trt.init_libnvinfer_plugins(self._logs.logger, "")
            self._initialised = True
        load_plugins(self._trt.get_plugin_registry(), options, self._plugins, log)

    def _builder(self) -> trt.Builder:
        """A new one: what a build leaves in its builder, after a failure too, must not reach the next route's."""
        with self._logs.recording() as log:
            try:
                return self._trt.Builder(self._logs.logger)
            except Exception as error:
                title = self.library.title
                why = why_not_run(log.errors, title)
                words = " ".join([str(error), *log.errors])
                raise InputError(why or f"{title} cannot make a builder here: {words}") from None

    # -- the timing cache ----------------------------------------------------------------------
    @contextmanager
    def _timing_cache(self, workload: Workload, config: trt.IBuilderConfig, options: TensorRTOptions) -> Iterator[None]:
        """Gives the build its timing cache, and keeps what the build adds where the mode says so.

        frozen: every build starts from a copy of one cache, which the first build of a study wrote, and what it
        adds is thrown away. shared: every build starts from what all earlier ones left. none: no cache at all.
        """
        if self.library.rtx:
            yield
            return
        if options.timing_cache == "none":
            config.set_flag(self._trt.BuilderFlag.DISABLE_TIMING_CACHE)
            if not config.get_flag(self._trt.BuilderFlag.DISABLE_TIMING_CACHE):
                raise BuildError("TensorRT did not switch off its timing cache")
            yield
            return
        store = CacheStore(options, self._caches, digest_of([workload.digest, options.to_json()]))
        with store.opened() as known:
            cache = config.create_timing_cache(known or b"")
            if not config.set_timing_cache(cache, ignore_mismatch=False):
                raise BuildError("TensorRT did not take the timing cache: it is of another GPU or version")
            yield
            if known is None or options.timing_cache == "shared":
                store.keep(memoryview(config.get_timing_cache().serialize()).tobytes())

    # -- engines -------------------------------------------------------------------------------
    def _engine(self, file: EngineFile, workload: Workload, facts: Mapping[str, object]) -> Engine:
        with self._logs.recording() as log:
            runtime: trt.Runtime = self._trt.Runtime(self._logs.logger)
            if file.options.version_compatible:
                runtime.engine_host_code_allowed = True
            engine = runtime.deserialize_cuda_engine(file.plan)
            if engine is None:
                why = why_not_run(log.errors, self.library.title)
                if why is None:
                    raise BuildError("\n".join(["TensorRT cannot load the engine that it built:", *log.errors]))
                return UnrunnableEngine(file, why, facts)
            fingerprint = self._fingerprint(engine, file.options)
        from gpt_search.backends.tensorrt_engine import TensorRTEngine

        running = TensorRTEngine(self._trt, engine, file, workload, fingerprint)
        running.facts = {**facts, **running.facts}
        return running

    def _fingerprint(self, engine: trt.ICudaEngine, options: TensorRTOptions) -> str | None:
        inspector = engine.create_engine_inspector()
        told = inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)
        return fingerprint_of(told, {name: getattr(options, name) for name in _RUN_PART})

    def _write_log(self, workload: Workload, route: Route, log: RouteLog) -> Path | None:
        folder = log_folder()
        if folder is None:
            return None
        return log.write(folder, f"{workload.name}-{digest_of(str(route))[:12]}")


class UnrunnableEngine:
    """A built engine on a machine that cannot run it: it can be saved and looked at, no more.

    digest, size_bytes: of TensorRT's serialised engine. why: one line.
    """

    fingerprint: str | None = None
    memory_bytes: int | None = None

    def __init__(self, file: EngineFile, why: str, facts: Mapping[str, object]) -> None:
        self._file = file
        self.why, self.facts = why, facts
        self.digest, self.size_bytes = file.digest, len(file.plan)

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises InputError: nothing runs here."""
        raise InputError(self.why)

    def time(self, request: TimingRequest) -> TimingResult:
        """Raises InputError: nothing runs here."""
        raise InputError(self.why)

    def save(self) -> bytes:
        """The engine as bytes for `TensorRTBackend.load`, here or elsewhere."""
        return self._file.to_bytes()

    def close(self) -> None:
        """Does nothing: there is nothing on a device."""


def _facts(file: EngineFile, log: RouteLog, written: Path | None) -> dict[str, object]:
    """What is recorded beside the fingerprint: digest and size of the serialised engine, warnings, the log's file."""
    facts: dict[str, object] = {"engine_digest": file.digest, "engine_bytes": len(file.plan)}
    warnings = log.of("WARNING")
    if warnings:
        facts["warnings"] = warnings[:_WARNINGS_KEPT]
    if written is not None:
        facts["log"] = str(written)
    return facts
