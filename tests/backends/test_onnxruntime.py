"""The backend itself: engines, fingerprints, saving, failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpt_search.backends.base import BuildError, BuildOptions, Fingerprints, Placement, TimingRequest
from gpt_search.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeEngine
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.workloads.catalogue import write_workload

SMALL = {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 100, "sequence": 16}


@pytest.fixture(scope="module")
def backend() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend()


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return write_workload("bert", tmp_path_factory.mktemp("models") / "bert.onnx", **SMALL)


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return write_workload("bert", tmp_path_factory.mktemp("models") / "int8.onnx", precision="int8", **SMALL)


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((16, 3, 3, 3)), "w2": rng.standard_normal((16, 16, 3, 3))}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("models") / "conv.onnx"
    onnx.save(_model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 16, 16, 16]}, weights), str(path))
    return Workload(path, {"x": (1, 3, 16, 16)})


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: dict[str, list[int]],
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    def info(values: dict[str, list[int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values.items()]

    tensors = [onnx.numpy_helper.from_array(np.asarray(w, np.float32), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", info(inputs), info(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def build(backend: OnnxRuntimeBackend, workload: Workload, route: str = "") -> OnnxRuntimeEngine:
    return backend.build(workload, Route.parse(route), BuildOptions())


def feeds(workload: Workload, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    if "x" in workload.shapes:
        return {"x": rng.standard_normal(workload.shapes["x"]).astype(np.float32)}
    return {n: rng.integers(0, 2, s) for n, s in workload.shapes.items()}


def fingerprint(backend: OnnxRuntimeBackend, workload: Workload, route: str = "") -> str:
    engine = build(backend, workload, route)
    engine.close()
    assert engine.fingerprint is not None
    return engine.fingerprint


def test_what_the_backend_claims(backend: OnnxRuntimeBackend) -> None:
    assert backend.capabilities.fingerprint is Fingerprints.EXACT
    assert backend.capabilities.build_uses_device
    assert backend.capabilities.placement is Placement.PAUSED_WORKER
    environment = backend.environment()
    assert environment == backend.environment()
    assert {"onnxruntime", "onnx", "processor", "physical_cores", "system", "python"} <= set(environment)
    assert all(environment.values())


def test_knob_database_has_the_form_and_the_version(backend: OnnxRuntimeBackend) -> None:
    import onnxruntime

    database = backend.knob_database()
    assert database.tuner_version == f"onnxruntime-{onnxruntime.__version__}"
    assert len(database) >= 115
    assert not any(k.open_ended for k in database)
    assert all(k.help and len(k.values) > 1 for k in database)
    assert type(database).from_json(database.to_json()) == database


@pytest.mark.parametrize("name", ["bert", "conv"])
def test_six_rebuilds_have_one_fingerprint_and_equal_outputs(
    name: str, backend: OnnxRuntimeBackend, request: pytest.FixtureRequest
) -> None:
    workload: Workload = request.getfixturevalue(name)
    route = "-opt:MatMulAddFusion=off -session:intra_threads=2"
    engines = [build(backend, workload, route) for _ in range(6)]
    assert len({e.fingerprint for e in engines}) == 1
    outputs = [e.infer(feeds(workload)) for e in engines]
    for other in outputs[1:]:
        for key, value in outputs[0].items():
            np.testing.assert_array_equal(other[key], value)
    for e in engines:
        e.close()


@pytest.mark.parametrize(
    "route",
    [
        "-opt:SkipLayerNormFusion=off",
        "-opt:BiasGeluFusion=off",
        "-session:gelu_approximation=on",
        "-session:graph_level=basic",
        "-session:graph_level=disable",
        "-input:free_dims=fixed",
        "-model:quantize_dynamic=u8",
        "-model:quantize_dynamic=s8",
        "-model:quantize_dynamic=s8 -model:quantize_scope=matmul",
        "-session:intra_threads=1",
        "-session:intra_threads=4",
        "-session:intra_spinning=off",
        "-session:prepacking=off",
        "-session:cpu_arena=off",
        "-session:mem_pattern=off",
        "-session:denormal_as_zero=on",
        "-session:execution_mode=parallel",
        "-session:kernel_dispatch_policy=memory",
        "-mlas:nchwc_pointwise_batch=64",
        "-run:arena_shrinkage=on",
    ],
)
def test_what_changes_graph_speed_or_bits_changes_the_fingerprint(
    route: str, backend: OnnxRuntimeBackend, bert: Workload, default_fingerprint: str
) -> None:
    assert fingerprint(backend, bert, route) != default_fingerprint


@pytest.fixture(scope="module")
def default_fingerprint(backend: OnnxRuntimeBackend, bert: Workload) -> str:
    return fingerprint(backend, bert)


@pytest.mark.parametrize(
    "route",
    [
        "-opt:NchwcTransformer=off -rule:ConvAddFusion=off",  # no convolution in the model
        "-model:quantize_scope=matmul",  # inert without model:quantize_dynamic
        "-session:inter_threads=4",  # inert in sequential mode
        "-session:inter_spinning=off",
        "-session:parallel_prepacking=on",  # changes the time to build only
        "-session:qdq=off",  # nothing quantised in the model
    ],
)
def test_inert_knobs_leave_the_fingerprint(
    route: str, backend: OnnxRuntimeBackend, bert: Workload, default_fingerprint: str
) -> None:
    assert fingerprint(backend, bert, route) == default_fingerprint


def test_switches_are_inert_where_the_graph_level_is_off(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    off = fingerprint(backend, bert, "-session:graph_level=disable")
    assert fingerprint(backend, bert, "-session:graph_level=disable -opt:SkipLayerNormFusion=off") == off


def test_fingerprint_tells_weights_and_shapes_apart(
    backend: OnnxRuntimeBackend, default_fingerprint: str, tmp_path: Path
) -> None:
    for options in ({"seed": 1}, {"sequence": 15}, {"batch": 1}):
        other = write_workload("bert", tmp_path / "other.onnx", **{**SMALL, **options})
        assert fingerprint(backend, other) != default_fingerprint


@pytest.mark.parametrize(
    "route",
    [
        "",
        "-opt:SkipLayerNormFusion=off -session:intra_threads=1",
        "-model:quantize_dynamic=s8_per_channel -session:denormal_as_zero=on",
        "-input:free_dims=fixed -session:execution_mode=parallel",
        "-session:graph_level=disable -session:prepacking=off",
        "-run:arena_shrinkage=on",
    ],
)
@pytest.mark.parametrize("name", ["bert", "int8"])
def test_a_saved_engine_comes_back_the_same(
    name: str, route: str, backend: OnnxRuntimeBackend, request: pytest.FixtureRequest
) -> None:
    workload: Workload = request.getfixturevalue(name)
    if name == "int8" and "quantize" in route:
        pytest.skip("quantised already")
    engine = build(backend, workload, route)
    expected = engine.infer(feeds(workload))
    data = engine.save()
    engine.close()
    loaded = backend.load(data, workload)
    assert loaded.fingerprint == engine.fingerprint
    for key, value in loaded.infer(feeds(workload)).items():
        np.testing.assert_array_equal(value, expected[key])
    assert len(loaded.save()) == len(data)
    loaded.close()


def test_convolutions_in_a_blocked_layout_survive_saving(backend: OnnxRuntimeBackend, conv: Workload) -> None:
    engine = build(backend, conv)
    assert engine.fingerprint != fingerprint(backend, conv, "-opt:NchwcTransformer=off")
    loaded = backend.load(engine.save(), conv)
    np.testing.assert_array_equal(loaded.infer(feeds(conv))["y"], engine.infer(feeds(conv))["y"])


def test_big_weights_are_saved_beside_the_model(
    backend: OnnxRuntimeBackend, bert: Workload, default_fingerprint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt_search.backends.onnxruntime._EXTERNAL_FROM_BYTES", 1000)
    engine = build(backend, bert)
    data = engine.save()
    assert b"weights.bin" in data[:10_000]
    assert engine.fingerprint == default_fingerprint
    loaded = backend.load(data, bert)
    assert loaded.fingerprint == default_fingerprint
    for key, value in loaded.infer(feeds(bert)).items():
        np.testing.assert_array_equal(value, engine.infer(feeds(bert))[key])


def test_a_model_with_external_weights_builds(backend: OnnxRuntimeBackend, bert: Workload, tmp_path: Path) -> None:
    path = tmp_path / "split.onnx"
    onnx.save_model(
        onnx.load(str(bert.model)), str(path), save_as_external_data=True, location="w.bin", size_threshold=100
    )
    split = Workload(path, bert.shapes, (tmp_path / "w.bin",))
    engine, plain = build(backend, split), build(backend, bert)
    assert engine.fingerprint == plain.fingerprint
    for key, value in engine.infer(feeds(bert)).items():
        np.testing.assert_array_equal(value, plain.infer(feeds(bert))[key])
    assert build(backend, split, "-model:quantize_dynamic=u8").infer(feeds(bert))


def test_damaged_bytes_are_refused(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    data = build(backend, bert).save()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    for bad, why in (
        (b"", "not an ONNX Runtime engine"),
        (b"nonsense" * 10, "not an ONNX Runtime engine"),
        (data[:-5], "bytes long"),
        (data[:40], "header|bytes long"),
        (flipped, "damaged|DecodeError"),
        (data.replace(b'"version": "', b'"version": "0', 1), "saved by ONNX Runtime|header"),
    ):
        with pytest.raises(BuildError, match=why):
            backend.load(bad, bert)


def test_timing_gives_every_sample_in_ms(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    engine = build(backend, bert)
    result = engine.time(TimingRequest(feeds(bert), seconds=0, min_calls=7, warmup_calls=2))
    assert result.samples_ms.shape == (7,)
    assert result.samples_ms.dtype == np.float64
    assert (result.samples_ms > 0).all() and (result.samples_ms < 10_000).all()
    assert result.launch == "iobinding"
    assert len(engine.time(TimingRequest(feeds(bert), seconds=60, max_calls=5)).samples_ms) == 5
    long = engine.time(TimingRequest(feeds(bert), seconds=0.05)).samples_ms
    assert 20 < long.sum() < 5000  # the round lasts as long as was asked for, in ms


def test_several_streams_give_the_time_per_inference(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    engine = build(backend, bert)
    result = engine.time(TimingRequest(feeds(bert), seconds=0.02, min_calls=8, warmup_calls=2, streams=2))
    assert (result.streams, result.launch, result.host_copies) == (2, "iobinding", False)
    assert len(result.samples_ms) >= 8 and (result.samples_ms > 0).all()
    assert "throughput" in backend.capabilities.metrics


def test_text_inputs_are_timed_by_plain_calls(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, [2])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.save(model, str(tmp_path / "text.onnx"))
    engine = build(backend, Workload(tmp_path / "text.onnx", {"x": (2,)}))
    text = {"x": np.asarray(["a", "bc"], object)}
    assert engine.infer(text)["y"].tolist() == ["a", "bc"]
    assert engine.time(TimingRequest(text, seconds=0)).launch == "run"


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("-opt:SkipLayerNormFuson=off", "did you mean 'opt:SkipLayerNormFusion'"),
        ("-session:intra_spinning=banana", "not among on|off"),
        ("-session:intra_threads=-1", "not among"),
        ("-mlas:nchwc_pointwise_batch=banana", "not among"),  # the runtime would abort the process
    ],
)
def test_what_the_runtime_would_swallow_is_refused(
    route: str, why: str, backend: OnnxRuntimeBackend, bert: Workload
) -> None:
    with pytest.raises(BuildError, match=why.replace("|", r"\|")):
        build(backend, bert, route)


def test_a_switch_for_an_optimiser_that_is_gone_is_refused(
    backend: OnnxRuntimeBackend, bert: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpt_search.backends import onnxruntime_catalogue as catalogue

    monkeypatch.setitem(catalogue.TRANSFORMERS, "RenamedLongAgoFusion", "Gone.")
    catalogue.database_for.cache_clear()
    try:
        assert build(backend, bert, "-opt:RenamedLongAgoFusion=on")
        with pytest.raises(BuildError, match="no optimiser RenamedLongAgoFusion"):
            build(backend, bert, "-opt:RenamedLongAgoFusion=off")
    finally:
        monkeypatch.undo()
        catalogue.database_for.cache_clear()


def test_refusals_of_the_runtime_are_build_errors_without_a_second_try(
    backend: OnnxRuntimeBackend, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.onnx"
    nodes = [helper.make_node("NoSuchOperator", ["x"], ["y"])]
    onnx.save(_model(nodes, {"x": [1]}, {"y": [1]}, {}), str(bad))
    with pytest.raises(BuildError, match="NoSuchOperator"):
        build(backend, Workload(bad, {"x": (1,)}))
    assert "retrying" not in capfd.readouterr().out
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(BuildError):
        build(backend, Workload(tmp_path / "empty.onnx", {}))
    with pytest.raises(BuildError, match="no build options"):
        backend.build(Workload(bad, {"x": (1,)}), Route(()), BuildOptions({"banana": 1}))


def test_a_dimension_with_two_sizes_is_refused(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    shapes = dict(bert.shapes) | {"attention_mask": (2, 16)}
    with pytest.raises(BuildError, match="'batch' has two sizes"):
        build(backend, Workload(bert.model, shapes), "-input:free_dims=fixed")


def test_fixed_dimensions_refuse_other_shapes(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    two = {n: np.ones((2, 16), np.int64) for n in bert.shapes}
    assert build(backend, bert).infer(two)["pooler_output"].shape == (2, 64)
    with pytest.raises(Exception, match="Got: 2 Expected: 1"):
        build(backend, bert, "-input:free_dims=fixed").infer(two)


def test_nothing_is_left_behind(
    backend: OnnxRuntimeBackend, bert: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    build(backend, bert, "-model:quantize_dynamic=u8").close()
    with pytest.raises(BuildError):
        build(backend, Workload(tmp_path / "missing.onnx", {}))
    assert list(tmp_path.iterdir()) == []


def test_denormals_follow_the_engine_and_not_what_ran_before(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    onnx.save(_model(nodes, {"x": [50_000]}, {"y": [50_000]}, {}), str(tmp_path / "m.onnx"))
    workload = Workload(tmp_path / "m.onnx", {"x": (50_000,)})
    x = {"x": np.full(50_000, 1e-20, np.float32)}  # its square is denormal
    for setting in ("on", "off", "on", "off"):
        engine = build(backend, workload, f"-session:denormal_as_zero={setting}")
        share = float((engine.infer(x)["y"] == 0).mean())
        assert share == (1.0 if setting == "on" else 0.0)
        engine.time(TimingRequest(x, seconds=0))
        assert np.float32(1e-20) * np.asarray([1e-20], np.float32) != 0  # the caller's own arithmetic is untouched
        engine.close()


_HUNGRY = """
import resource, sys
import numpy as np
from gpt_search.backends.base import BuildOptions, MemoryLimitError, TimingRequest
from gpt_search.backends.onnxruntime import OnnxRuntimeBackend
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload

engine = OnnxRuntimeBackend().build(Workload(sys.argv[1], {"x": (1, 1)}), Route(()), BuildOptions())
x = {"x": np.ones((20000, 1), np.float32)}
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
for call in (lambda: engine.infer(x), lambda: engine.time(TimingRequest(x, seconds=0))):
    try:
        call()
    except MemoryLimitError as error:
        print("limit:", error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_failed_allocation_is_a_memory_limit(tmp_path: Path) -> None:
    model = _model([helper.make_node("MatMul", ["x", "w"], ["m"])], {}, {}, {"w": np.ones((1, 20_000))})
    model.graph.node.extend([helper.make_node("ReduceMax", ["m"], ["y"], keepdims=0)])
    model.graph.input.extend([helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])])
    model.graph.output.extend([helper.make_tensor_value_info("y", TensorProto.FLOAT, [])])
    onnx.save(model, str(tmp_path / "hungry.onnx"))
    command = [sys.executable, "-c", _HUNGRY, str(tmp_path / "hungry.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("limit:") == 2, done.stdout + done.stderr


@pytest.mark.slow
def test_every_single_change_builds_and_stays_near_the_default(backend: OnnxRuntimeBackend, bert: Workload) -> None:
    """No value of any knob crashes, is refused, or loses the model; most engines coincide with the default's."""
    x = feeds(bert)
    default = build(backend, bert).infer(x)
    seen = set()
    for knob in backend.knob_database():
        for value in knob.values:
            if value == knob.default or ("threads" in knob.name and int(value) > 4):
                continue
            engine = build(backend, bert, f"-{knob.name}={value}")
            if engine.fingerprint in seen:
                engine.close()
                continue
            seen.add(engine.fingerprint)
            for name, output in engine.infer(x).items():
                a, b = output.astype(np.float64).ravel(), default[name].astype(np.float64).ravel()
                assert 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 0.02, (knob.name, value)
            engine.close()
    assert 30 < len(seen) < 120
