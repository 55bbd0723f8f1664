"""Real builds with TensorRT-RTX on the CPU: parsing, profiles, options, errors, saving. No GPU is needed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from tensorrt_models import conv_net, mlp, quantised_block, reshaped, slow, unsupported

from gpt_search.backends.base import BuildError, BuildOptions
from gpt_search.backends.registry import native_engine
from gpt_search.backends.tensorrt import TensorRTBackend, UnrunnableEngine
from gpt_search.backends.tensorrt_build import span_of
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.backends.tensorrt_log import LOG_FOLDER_VARIABLE
from gpt_search.backends.tensorrt_options import Range
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Point, Workload
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec

HERE = {"compute_capability": "8.9"}
NO_GPU = shutil.which("nvidia-smi") is None
no_gpu = pytest.mark.skipif(not NO_GPU, reason="what a machine without a GPU says")


@pytest.fixture(scope="module")
def backend() -> TensorRTBackend:
    return TensorRTBackend("tensorrt-rtx")


def build(backend: TensorRTBackend, workload: Workload, route: str = "", **options: object) -> EngineFile:
    """The engine file that a build saves; needs no GPU."""
    engine = backend.build(workload, Route.parse(route), BuildOptions(HERE | options))
    data = engine.save()
    engine.close()
    return EngineFile.from_bytes(data)


@pytest.mark.parametrize("make", [mlp, conv_net, quantised_block])
def test_models_are_built_and_saved(backend: TensorRTBackend, tmp_path: Path, make: Callable[[Path], Workload]) -> None:
    file = build(backend, make(tmp_path))
    assert len(file.plan) > 4000 and file.digest == sha256(file.plan).hexdigest()
    assert (file.library, file.options.compute_capability) == ("tensorrt-rtx", ("8.9",))
    assert EngineFile.from_bytes(file.to_bytes()) == file


def test_what_is_exported_is_tensorrts_own_engine(backend: TensorRTBackend, tmp_path: Path) -> None:
    """Without the header that gpt_search needs, which TensorRT would call malformed."""
    data = build(backend, mlp(tmp_path)).to_bytes()
    plan = native_engine("tensorrt-rtx", data)
    assert data.endswith(plan) and plan == native_engine("tensorrt", data) == EngineFile.from_bytes(data).plan
    runtime, wrong_form = backend._trt.Runtime(backend._logs.logger), backend._trt.EngineInvalidityDiagnostics
    malformed = int(wrong_form.MALFORMED_ENGINE)
    assert runtime.get_engine_validity(data)[1] & malformed and not runtime.get_engine_validity(plan)[1] & malformed
    for wrong, says in ((data[:-1], "is cut"), (data[:-1] + b"?", "is damaged"), (plan, "not a TensorRT engine saved")):
        with pytest.raises(BuildError, match=says):
            native_engine("tensorrt-rtx", wrong)
    assert native_engine("onnxruntime", b"any") == b"any"


def test_external_weights_are_read_from_their_file(backend: TensorRTBackend, tmp_path: Path) -> None:
    (tmp_path / "within").mkdir()
    workload = mlp(tmp_path, external=True)
    within, beside = build(backend, mlp(tmp_path / "within")), build(backend, workload)
    assert len(within.plan) == len(beside.plan)  # builds are not equal bit by bit
    assert workload.external[0].read_bytes()[: 32 * 4] in beside.plan  # a row of the first matrix
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(BuildError, match=r"weights\.bin"):
        build(backend, Workload(tmp_path / "mlp.onnx", {"x": (4, 16)}))


# -- shapes ------------------------------------------------------------------------------------
def test_a_variable_shape_is_built_for_the_workload_or_for_profiles(backend: TensorRTBackend, tmp_path: Path) -> None:
    workload = mlp(tmp_path, batch="n")
    alone = build(backend, workload)
    profiles = [{"x": "1x16:4x16:8x16"}, {"x": "8x16:16x16:32x16"}]
    one, two = build(backend, workload, profiles=profiles[:1]), build(backend, workload, profiles=profiles)
    assert len(alone.plan) < len(one.plan) < len(two.plan)
    assert build(backend, replace(workload, points=points(1, 32)), profiles=profiles).plan


def points(*batches: int) -> tuple[Point, ...]:
    return tuple(Point(f"p{n}", float(n == 4) + 1, {"x": (n, 16)}) for n in batches)


def test_without_profiles_an_engine_is_built_for_all_shape_points(backend: TensorRTBackend, tmp_path: Path) -> None:
    one = mlp(tmp_path, batch="n")
    workload = replace(one, points=points(8, 4, 2))
    assert span_of("x", workload) == Range((2, 16), (4, 16), (8, 16))  # 4 has the largest weight
    assert span_of("x", one) == Range((4, 16), (4, 16), (4, 16))
    given = build(backend, workload, profiles={"x": "2x16:4x16:8x16"})
    assert len(build(backend, workload).plan) == len(given.plan) > len(build(backend, one).plan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profiles": {"z": "1x16:1x16:1x16"}}, "the model has no input 'z'.*it has x"),
        ({"profiles": {"x": "1x17:4x17:8x17"}}, r"input 'x' is \?x16 in the model, not 1x17"),
        ({"profiles": {"x": "1:4:8"}}, r"input 'x' is \?x16 in the model, not 1"),
        ({"profiles": {"x": "8x16:8x16:8x16"}}, "no optimisation profile covers what is to be timed: x 4x16"),
        (
            {"profiles": {"x": "1x16:4x16:8x16"}, "points": points(4, 9)},
            "no optimisation profile covers what is to be timed: x 9x16",
        ),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(
    backend: TensorRTBackend, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    workload = replace(mlp(tmp_path, batch="n"), points=options.get("points", ()))
    with pytest.raises(InputError, match=message):
        build(backend, workload, profiles=options["profiles"])


def test_a_shape_tensor_needs_its_values(backend: TensorRTBackend, tmp_path: Path) -> None:
    workload = reshaped(tmp_path)
    with pytest.raises(InputError, match="input 'shape' is a shape tensor"):
        build(backend, workload)
    with pytest.raises(InputError, match="of 2 values; 3 were given"):
        build(backend, workload, profiles={"shape": [[1, 1, 1], [1, 1, 1], [1, 1, 1]]})
    assert build(backend, workload, profiles={"shape": [[2, 2], [8, 8], [32, 32]]}).plan


# -- what is refused ---------------------------------------------------------------------------
def test_every_unsupported_operator_is_named_with_its_node(backend: TensorRTBackend, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        build(backend, unsupported(tmp_path))
    first, foo, text = str(caught.value).splitlines()
    assert first == "TensorRT cannot take this model:"
    assert foo.startswith("node 1 'my_foo' (operator Foo): ") and "Plugin not found" in foo
    assert (
        text
        == "node 2 'my_text' (operator StringNormalizer): TensorRT does not support this operator [UNSUPPORTED_NODE]"
    )


def test_a_file_that_is_no_model(backend: TensorRTBackend, tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(BuildError, match="cannot take this model:\nthe model as a whole"):
        build(backend, Workload(path, {"x": (4, 16)}))


def test_what_tensorrt_does_not_take_is_an_error(backend: TensorRTBackend, tmp_path: Path) -> None:
    """RTX 1.7 has the hardware levels in its API and keeps "none" in silence; they are no knob there either."""
    with pytest.raises(InputError, match=r"knobs, not options: hardware_compatibility_level"):
        build(backend, mlp(tmp_path), hardware_compatibility_level="ampere_plus")
    assert "builder:hardware_compatibility_level" not in backend.knob_database()
    with pytest.raises(BuildError, match="unknown knob 'builder:hardware_compatibility_level'"):
        build(backend, mlp(tmp_path), "-builder:hardware_compatibility_level=ampere_plus")


def test_options_reach_the_builder(backend: TensorRTBackend, tmp_path: Path) -> None:
    workload = mlp(tmp_path)
    with pytest.raises(BuildError, match=r"built no engine:\n.*within workspace limit"):
        build(backend, workload, workspace_mib=0.01)
    small = build(backend, workload, tactic_shared_memory_kib=48, workspace_mib=256, tactic_dram_mib=256)
    assert len(small.plan) != len(build(backend, workload).plan)
    assert build(backend, workload, tactic_sources="jit_convolutions", strict_nans=True, avg_timing_iterations=2).plan
    with pytest.raises(InputError, match="'cublas' is not one of edge_mask_convolutions, jit_convolutions"):
        build(backend, workload, tactic_sources="cublas")
    with pytest.raises(InputError, match=r"cannot build for compute capability 9\.0; it builds for current, 7\.5"):
        build(backend, workload, compute_capability="9.0")
    two = build(backend, workload, compute_capability="8.6,12.0")
    assert len(two.plan) > len(build(backend, workload).plan)


def test_an_engine_for_later_versions_needs_a_library_that_rtx_has_not(
    backend: TensorRTBackend, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"built no engine:\n.*lean"):
        build(backend, mlp(tmp_path), version_compatible=True)


def test_a_plugin_library_that_is_none(backend: TensorRTBackend, tmp_path: Path) -> None:
    path = tmp_path / "plugin.so"
    path.write_bytes(b"nothing")
    with pytest.raises(BuildError, match=r"plugin library .*plugin\.so cannot be loaded:\n.*loadLibrary"):
        build(backend, mlp(tmp_path), plugins=str(path))


# -- knobs -------------------------------------------------------------------------------------
def test_rtx_knobs_are_those_of_the_installed_library(backend: TensorRTBackend) -> None:
    database = backend.knob_database()
    assert database.tuner_version.startswith("tensorrt-rtx-1.")
    assert database.defaults["builder:optimization_level"] == "3"
    assert database["builder:tiling_optimization_level"].values == ("none", "fast", "moderate", "full")
    assert database["runtime:cuda_graph_strategy"].values == ("disabled", "whole_graph_capture")
    assert {k.name for k in database if k.open_ended} == {
        "builder:l2_limit_for_tiling",
        "builder:max_aux_streams",
        "builder:max_num_tactics",
    }


def test_a_route_is_what_is_built_and_run(backend: TensorRTBackend, tmp_path: Path) -> None:
    route = (
        "-builder:optimization_level=5 -builder:tf32=off -builder:max_num_tactics=-1 "
        "-builder:l2_limit_for_tiling=1048576 -runtime:cuda_graph_strategy=whole_graph_capture"
    )
    options = build(backend, mlp(tmp_path), route).options
    assert options.to_json() == {
        "compute_capability": ["8.9"],
        "builder_optimization_level": 5,
        "tf32": False,
        "l2_limit_for_tiling": 1048576,
        "cuda_graph_strategy": "whole_graph_capture",
    }
    for wrong in ("-builder:tf32=maybe", "-builder:tf=on", "-builder:max_aux_streams=-2"):
        with pytest.raises(BuildError, match=r"not among|unknown knob|not a whole number"):
            build(backend, mlp(tmp_path), wrong)


def test_options_that_are_knobs_or_do_nothing_are_refused(backend: TensorRTBackend) -> None:
    with pytest.raises(InputError, match=r"tf32 \(knob -builder:tf32\); pin one with --knobs"):
        backend.check_options({"tf32": "off"})
    with pytest.raises(InputError, match="tensorrt-rtx has no option timing_cache: TensorRT-RTX times nothing"):
        backend.check_options({"timing_cache": "shared"})


# -- logs and cancelling -----------------------------------------------------------------------
def test_the_whole_log_of_a_build_goes_to_a_file(
    backend: TensorRTBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FOLDER_VARIABLE, str(tmp_path / "logs"))
    engine = backend.build(mlp(tmp_path), Route.parse(""), BuildOptions(HERE))
    log = Path(str(engine.facts["log"]))  # type: ignore[attr-defined]
    assert log.parent == tmp_path / "logs" and log.name.startswith("mlp-")
    assert "[VERBOSE]" in log.read_text() and "Engine generation completed" in log.read_text()
    with pytest.raises(BuildError):
        backend.build(unsupported(tmp_path), Route.parse(""), BuildOptions(HERE))
    [failed] = (tmp_path / "logs").glob("unsupported-*.log")
    assert "[ERROR]" in failed.read_text()


def test_a_build_reports_progress_and_can_be_cancelled(backend: TensorRTBackend, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    backend.on_progress = lambda *step: seen.append(step)
    build(backend, mlp(tmp_path))
    assert ("Building engine", 0, 6) in seen and all(done <= steps for _, done, steps in seen)

    backend.on_progress = lambda *step: threading.Thread(target=backend.cancel).start()
    try:
        with pytest.raises(BuildError, match="Build canceled by user"):
            build(backend, slow(tmp_path, 20))
    finally:
        backend.on_progress = None
    assert build(backend, mlp(tmp_path)).plan  # the next build is not cancelled


# -- machines without a GPU --------------------------------------------------------------------
@no_gpu
def test_an_engine_that_cannot_run_here_says_why(backend: TensorRTBackend, tmp_path: Path) -> None:
    workload = mlp(tmp_path)
    engine = backend.build(workload, Route.parse(""), BuildOptions(HERE))
    assert isinstance(engine, UnrunnableEngine)
    assert engine.facts == {"engine_digest": engine.digest, "engine_bytes": engine.size_bytes}
    again = backend.load(engine.save(), workload)
    assert isinstance(again, UnrunnableEngine) and again.digest == engine.digest
    with pytest.raises(InputError, match=r"TensorRT-RTX cannot run here: there is no NVIDIA driver.*\(CUDA error 35\)"):
        again.infer({})


@no_gpu
def test_a_build_for_the_gpu_here_fails_where_there_is_none(backend: TensorRTBackend, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cudaError 35"):
        build(backend, mlp(tmp_path), compute_capability="current")


# -- in a worker -------------------------------------------------------------------------------
def request(route: str = "") -> dict[str, object]:
    return {"slot": "candidate", "route": [list(i) for i in Route.parse(route).items_in_order], "seed": 0}


def test_a_worker_builds_and_saves(tmp_path: Path) -> None:
    with Worker(WorkerSpec("tensorrt-rtx", mlp(tmp_path), options=HERE)) as worker:
        worker.ask("build", request("-builder:tf32=off"), timeout_s=60, phase="build")
        data = worker.ask("save", {"slot": "candidate"}, timeout_s=60, phase="save").arrays["data"].tobytes()
    assert not EngineFile.from_bytes(data).options.tf32


def test_a_build_that_takes_too_long_is_killed_and_reported(tmp_path: Path) -> None:
    worker = Worker(WorkerSpec("tensorrt-rtx", slow(tmp_path), options=HERE))
    with pytest.raises(WorkerFailed, match=r"phase build took longer than its limit of 0\.3 s") as caught:
        worker.ask("build", request(), timeout_s=0.3, phase="build")
    assert caught.value.outcome is Outcome.TIMEOUT and not worker.alive


def test_a_model_that_cannot_be_taken_leaves_a_healthy_worker(tmp_path: Path) -> None:
    with Worker(WorkerSpec("tensorrt-rtx", unsupported(tmp_path), options=HERE)) as worker:
        with pytest.raises(WorkerFailed, match="my_foo") as caught:
            worker.ask("build", request(), timeout_s=60, phase="build")
        assert caught.value.outcome is Outcome.BUILD_ERROR and worker.alive
