"""The runner on a real GPU, driving a stand-in for TensorRT's execution context that launches real kernels.

Run with `pytest -m gpu -s tests/backends/test_tensorrt_gpu.py`; -s shows the numbers that docs/tensorrt.md cites.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorrt_stand_in as stand_in
from cuda.bindings import runtime

from gpt_search.accuracy.gate import Tolerances
from gpt_search.accuracy.golden import save_golden
from gpt_search.backends.base import TimingRequest
from gpt_search.backends.cuda_runtime import (
    CaptureError,
    CudaError,
    CudaMemoryError,
    DeviceBuffer,
    Event,
    Hold,
    Stream,
    capture,
    checked,
    device_count,
    device_name,
    device_uuid,
    versions,
)
from gpt_search.backends.gpu_preflight import gpu_findings
from gpt_search.backends.nvml import Gpu, device_id, gpu_ids, reason_names
from gpt_search.backends.tensorrt_buffers import ShapeError
from gpt_search.domain.errors import InputError
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.evaluator import Evaluator, EvaluatorSettings
from gpt_search.measure.protocol import Protocol


def _no_gpu() -> str:
    try:
        return "" if device_count() else "CUDA sees no device"
    except CudaError as error:
        return str(error)


WHY_NOT = _no_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "there is a GPU")]
HERE = Path(__file__).parent


def shown(text: str) -> None:
    print(f"\n    {text}")


def median_ms(kind, options=None, seconds=0.2, launch=None, streams=1, host_copies=False, **more):
    engine, inputs = stand_in.engine(kind, options, **more)
    request = TimingRequest(
        inputs, seconds, min_calls=20, warmup_calls=1, streams=streams, host_copies=host_copies, launch=launch
    )
    result = engine.time(request)
    assert (result.streams, result.host_copies) == (streams, host_copies)
    assert np.isfinite(result.samples_ms).all() and (result.samples_ms > 0).all()
    engine.close()
    return float(np.median(result.samples_ms)), result


# -- timing ------------------------------------------------------------------------------------
@pytest.mark.parametrize("launch", ["stream", "graph"])
@pytest.mark.parametrize("ns", [200_000, 1_000_000, 5_000_000])
def test_a_kernel_of_known_duration_is_timed_within_two_percent(ns, launch):
    found, result = median_ms("spin", {"launch": launch}, ns=ns)
    shown(f"kernel of {ns / 1e6:.3f} ms, {launch}: median {found:.4f} ms ({100 * (found / (ns / 1e6) - 1):+.2f} %)")
    assert result.launch == launch and result.launch_note == ""
    assert found == pytest.approx(ns / 1e6, rel=0.02)


def test_a_graph_saves_what_many_launches_cost_the_host():
    found = {how: median_ms("spin", {"launch": how}, ns=1000, launches=100)[0] for how in ("stream", "graph")}
    shown(f"100 kernels of 1 us: stream {found['stream']:.3f} ms, graph {found['graph']:.3f} ms")
    assert found["graph"] < 0.8 * found["stream"]


def test_an_l2_flush_makes_dependent_loads_wait_for_memory_and_is_not_counted():
    more = {"size": 1 << 21, "lines": 2000, "hops": 2000}
    found = {flush: median_ms("chase", {"l2_flush": flush}, **more)[0] for flush in (False, True)}
    shown(f"2000 dependent loads: {found[False]:.4f} ms, after an L2 flush {found[True]:.4f} ms")
    assert found[True] > 1.2 * found[False]
    spin = [median_ms("spin", {"l2_flush": flush}, ns=200_000)[0] for flush in (False, True)]
    shown(f"kernel of 0.200 ms: {spin[0]:.4f} ms, with a flush between calls {spin[1]:.4f} ms")
    assert spin[1] == pytest.approx(0.2, rel=0.02)


@pytest.mark.parametrize("launch", ["stream", "graph"])
def test_host_copies_count_where_they_are_asked_for(launch):
    size = 1 << 22
    found = {c: median_ms("twice", {"launch": launch}, host_copies=c, size=size)[0] for c in (False, True)}
    rate = 2 * 4 * size / (found[True] - found[False]) / 1e6
    shown(f"16 MiB doubled, {launch}: {found[False]:.4f} ms, with copies {found[True]:.4f} ms ({rate:.1f} GB/s)")
    assert 1 < rate < 1000 and found[True] > 2 * found[False]


@pytest.mark.parametrize("launch", ["stream", "graph"])
def test_streams_run_beside_each_other_and_their_samples_mean_time_per_inference(launch):
    _, result = median_ms("spin", {"launch": launch}, streams=4, ns=1_000_000)
    found = float(np.mean(result.samples_ms))
    shown(f"kernel of 1 ms on 4 streams, {launch}: {found:.4f} ms per inference")
    assert found == pytest.approx(0.25, rel=0.02) and len(result.samples_ms) >= 20


def test_shape_points_in_turn_keep_their_graphs():
    engine, inputs = stand_in.engine("spin", ns=300_000)
    for n in (100, 200) * 3:
        result = engine.time(TimingRequest({"x": inputs["x"][:n]}, 0.02))
        assert result.launch == "graph" and np.median(result.samples_ms) == pytest.approx(0.3, rel=0.02)
    assert len(engine._engine.contexts) == 2
    engine.close()


def test_call_bounds_are_kept():
    engine, inputs = stand_in.engine("spin", ns=10_000)
    for streams in (1, 3):
        assert len(engine.time(TimingRequest(inputs, 10.0, max_calls=7, streams=streams)).samples_ms) == 7
        assert len(engine.time(TimingRequest(inputs, 0.0, min_calls=50, streams=streams)).samples_ms) >= 50


def test_flushing_and_several_streams_exclude_each_other():
    engine, inputs = stand_in.engine("spin", {"l2_flush": True}, ns=10_000)
    with pytest.raises(InputError, match="needs one stream"):
        engine.time(TimingRequest(inputs, streams=2))


# -- capture -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["nonzero", "syncs"])
def test_what_cannot_be_captured_is_timed_on_a_stream_and_says_why(kind):
    engine, inputs = stand_in.engine(kind)
    for _ in range(2):
        result = engine.time(TimingRequest(inputs, 0.01))
        assert result.launch == "stream" and "cannot be captured" in result.launch_note
    shown(result.launch_note)
    assert engine.infer(inputs)["y"].size  # nothing is broken


def test_a_request_for_streams_overrides_the_option_without_a_note():
    engine, inputs = stand_in.engine("twice")
    assert [engine.time(TimingRequest(inputs, launch=how)).launch for how in (None, "stream", None)] == [
        "graph",
        "stream",
        "graph",
    ]


def test_other_shapes_are_captured_anew():
    engine, inputs = stand_in.engine("twice")
    for n in (1024, 100, 2000):
        given = {"x": np.resize(inputs["x"], n)}
        assert engine.time(TimingRequest(given)).launch == "graph"
        np.testing.assert_array_equal(engine.infer(given)["y"], 2 * given["x"])


def test_a_failed_capture_leaves_the_stream_usable():
    with Stream() as stream, Event() as event:
        with pytest.raises(CaptureError, match="StreamCapture"):
            capture(stream, stream.synchronize)
        event.record(stream)
        event.synchronize()


def test_a_hold_keeps_the_stream_until_the_block_ends():
    with Stream() as stream, Event() as event, Hold() as hold:
        for _ in range(3):
            with hold.on(stream):
                event.record(stream)
                assert not event.done()
            event.synchronize()
            assert event.done()


# -- inference ---------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["twice", "alias", "syncs"])
def test_outputs_come_back_whole(kind):
    engine, inputs = stand_in.engine(kind)
    for factor in (1, 3):
        x = {"x": factor * inputs["x"]}
        np.testing.assert_array_equal(engine.infer(x)["y"], 2 * x["x"])


def test_a_shape_that_depends_on_data_is_what_the_data_gives():
    engine, inputs = stand_in.engine("nonzero")
    for x in (inputs["x"], np.zeros(1024, np.float32), np.ones(1024, np.float32)):
        np.testing.assert_array_equal(engine.infer({"x": x})["y"], x[x != 0])


def test_shape_tensors_stay_on_the_host():
    engine, inputs = stand_in.engine("host")
    for n in (5, 700):
        given = inputs | {"n": np.array([n], np.int64)}
        np.testing.assert_array_equal(engine.infer(given)["y"], 2 * inputs["x"][:n])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.zeros(10)}, "has type float64; the engine takes float32"),
        ({"z": np.zeros(10, np.float32)}, "takes the inputs x; it got z"),
        ({"x": np.zeros(5000, np.float32)}, r"no optimisation profile .* x \(5000,\).*\(1,\) to \(2048,\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ShapeError, match=message):
        stand_in.engine("twice")[0].infer(given)


def test_contexts_are_not_annotated_and_the_weight_streaming_budget_is_set():
    options = {"weight_streaming": True, "weight_streaming_budget": 600}
    engine, inputs = stand_in.engine("twice", options)
    engine.infer(inputs)
    assert engine.facts["weight_streaming_budget"] == engine._engine.weight_streaming_budget_v2 == 600
    assert [c.nvtx_verbosity for c in engine._engine.contexts] == ["none"]


def test_engines_leave_no_memory_on_the_device():
    """A worker builds route after route: what one leaves behind, the next one lacks."""
    size = 1 << 24  # 64 MiB for each of x and y

    def one(kind: str) -> None:
        engine, inputs = stand_in.engine(kind, {"l2_flush": kind == "twice"}, size=size)
        engine.infer(inputs)
        engine.time(TimingRequest(inputs, host_copies=True))
        if kind == "alias":
            engine.time(TimingRequest(inputs, streams=2))
        engine.close()

    kinds = ("twice", "alias", "syncs", "nonzero")
    for kind in kinds:
        one(kind)  # modules, and what the driver keeps for itself
    free = checked(runtime.cudaMemGetInfo)[0]
    for kind in kinds * 3:
        one(kind)
    left = free - checked(runtime.cudaMemGetInfo)[0]
    shown(f"12 engines of 128 MiB left {left / 2**20:.1f} MiB on the device")
    assert left < 32 << 20


# -- errors ------------------------------------------------------------------------------------
def test_an_allocation_that_is_too_large_is_a_memory_error_and_nothing_is_broken():
    with pytest.raises(CudaMemoryError, match="cudaMalloc: cudaErrorMemoryAllocation"):
        DeviceBuffer(1 << 50)
    engine, inputs = stand_in.engine("twice")
    np.testing.assert_array_equal(engine.infer(inputs)["y"], 2 * inputs["x"])


def evaluator(folder: Path, **options: object) -> Evaluator:
    model, golden = folder / "model.bin", folder / "golden.npz"
    model.write_bytes(b"stand-in")
    save_golden(golden, stand_in.golden(), {})
    settings = EvaluatorSettings(
        f"{HERE / 'tensorrt_stand_in.py'}:Backend:{json.dumps(options)}",
        Workload(model),
        golden,
        Tolerances("lInf", 1e-6),
        Protocol(warmup_seconds=0.02, warmup_limit_seconds=0.2),
        timeout_build_s=120.0,
    )
    return Evaluator(settings, Route(()))


def test_an_illegal_access_ends_the_worker_and_the_next_route_runs(tmp_path):
    with evaluator(tmp_path) as made:
        assert made.evaluate_reference().outcome is Outcome.OK
        (worker,) = made.pool.workers
        bad = made.evaluate(Route((("kind", "crash"),)))
        assert bad.outcome is Outcome.CRASH and "cudaErrorIllegalAddress" in bad.message
        shown(bad.message)
        assert not worker.alive
        good = made.evaluate(Route((("kind", "twice"),)))
        assert good.outcome is Outcome.OK and len(good.rounds) >= 5


def test_both_sides_of_a_pair_are_launched_alike_and_the_route_is_marked(tmp_path):
    with evaluator(tmp_path) as made:
        reference = made.evaluate_reference()
        syncing = made.evaluate(Route((("kind", "syncs"),)))
    assert {r.launch for r in reference.rounds} == {"graph"} and not reference.notes
    assert {r.launch for r in syncing.rounds} == {"stream"}
    assert any("both sides were launched as 'stream': for the candidate" in note for note in syncing.notes)


def test_clocks_temperature_power_and_throttle_reasons_go_with_every_round(tmp_path):
    with evaluator(tmp_path) as made:
        reference = made.evaluate_reference()
    shown(f"last round: { {k: round(v, 2) for k, v in reference.rounds[-1].device.items()} }")
    for round_ in reference.rounds:
        for side in ("", "reference_"):
            device = round_.device
            assert 0 < device[f"{side}sm_clock_mhz"] < 5000 and 0 < device[f"{side}temperature_c"] < 120
            assert device[f"{side}power_w"] > 0 and device[f"{side}throttled"] in (0, 1)
            assert device[f"{side}throttle_reasons"] == int(device[f"{side}throttle_reasons"])


# -- the device --------------------------------------------------------------------------------
def test_the_lock_is_the_gpus_and_two_processes_respect_it(tmp_path):
    """Each of two processes times for 0.2 s under the lock, three times; their turns do not overlap."""
    code = (
        f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
        "import time, tensorrt_stand_in as s\n"
        "from gpt_search.backends.base import TimingRequest\n"
        "from gpt_search.execution.devices import DeviceLock\n"
        "engine, inputs = s.engine('spin', ns=100_000)\n"
        "lock = DeviceLock(s.Backend().device_id)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(3):\n"
        "    with lock.hold():\n"
        "        began = time.monotonic()\n"
        "        engine.time(TimingRequest(inputs, 0.2))\n"
        "        print(began, time.monotonic(), flush=True)\n"
        "print(lock.device, flush=True)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    lines = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    turns = sorted(tuple(map(float, line.split())) for own in lines for line in own[:3])
    assert len(turns) == 6 and all(first[1] <= then[0] for first, then in itertools.pairwise(turns))
    assert lines[0][3] == lines[1][3] == device_id(device_uuid())


def test_the_device_is_found_by_nvml_under_its_id():
    identity = device_id(device_uuid())
    assert identity.startswith(("GPU-", "MIG-")) and Gpu(identity).read().temperature_c is not None
    if identity.startswith("GPU-"):
        assert identity in gpu_ids()
    reading = Gpu(identity).read()
    shown(f"{device_name()}, {versions()}; now {reading}")
    assert reading.reasons is not None
    assert all(isinstance(name, str) for name in reason_names(reading.reasons))


def test_the_preflight_says_what_is_in_the_way():
    facts, findings = gpu_findings()
    shown(f"{facts}")
    for finding in findings:
        shown(f"{finding.about}: {'ok' if finding.ok else 'NOT OK'}, {finding.text}")
    assert {f.about for f in findings} >= {"other processes", "MPS", "MIG", "power cap", "clocks", "module loading"}
    assert facts.name in device_name() or device_name() in facts.name
