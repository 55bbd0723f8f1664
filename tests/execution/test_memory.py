"""The memory limit against the real ONNX Runtime: its arena, plain malloc, and a limit that is never reached."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpt_search.accuracy.golden import save_golden
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.workload import GoldenPair, Workload
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec
from gpt_search.execution.memory import oom_kills, says_no_memory, tree_memory

LIMIT = 700_000_000
BUILD = {"slot": "candidate", "seed": 0}
GATE = {"slot": "candidate", "atol": 1e-5, "rtol": 1e-5}


def _spec(folder: Path, elements: int, limit: int | None) -> WorkerSpec:
    """A model whose only intermediate tensor has that many float32 elements; its output is one number."""
    sizes = helper.make_tensor_value_info("n", TensorProto.INT64, [1])
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["big"]),
        helper.make_node("ReduceMax", ["big"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "huge",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), sizes],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "huge.onnx")
    inputs = {"x": np.ones(1, np.float32), "n": np.asarray([elements], np.int64)}
    save_golden(folder / "golden.npz", [GoldenPair(inputs, {"y": np.asarray(1.0, np.float32)})], {})
    workload = Workload(folder / "huge.onnx", {"x": (1,), "n": (1,)})
    return WorkerSpec("onnxruntime", workload, folder / "golden.npz", memory_limit_bytes=limit)


@pytest.mark.parametrize("arena", ["on", "off"])
def test_an_engine_that_needs_more_than_the_limit_is_a_memory_outcome(tmp_path, arena):
    with Worker(_spec(tmp_path, 400_000_000, LIMIT)) as worker:
        worker.ask("build", BUILD | {"route": [["session:cpu_arena", arena]]}, timeout_s=120, phase="build")
        with pytest.raises(WorkerFailed) as caught:
            worker.ask("gate", GATE, timeout_s=120, phase="gate")
    assert caught.value.outcome is Outcome.MEMORY
    # The allocation was refused by the kernel in the worker, not ended by the watchdog after the fact.
    assert says_no_memory(caught.value.message)
    assert "the limit is" not in caught.value.message


@pytest.mark.parametrize("elements", [40_000_000, 1000])
def test_an_engine_below_the_limit_is_not_disturbed(tmp_path, elements):
    with Worker(_spec(tmp_path, elements, LIMIT)) as worker:
        worker.ask("build", BUILD | {"route": []}, timeout_s=120, phase="build")
        losses = worker.ask("gate", GATE, timeout_s=120, phase="gate").fields["losses"]
    assert losses[0]["y"]["lInf"] == 0.0


def test_a_limit_that_not_even_the_libraries_fit_in_is_a_memory_outcome(tmp_path):
    with pytest.raises(WorkerFailed) as caught:
        Worker(_spec(tmp_path, 10, 20_000_000))
    assert caught.value.outcome is Outcome.MEMORY


@pytest.mark.parametrize(
    "text",
    [
        "Status Message: std::bad_alloc",
        "Failed to allocate memory for requested buffer of size 1600000000",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "CUDA out of memory",
        "OSError: [Errno 12] Cannot allocate memory",
        "numpy: Unable to allocate 2.0 GiB for an array",
    ],
)
def test_failed_allocations_are_recognised(text):
    assert says_no_memory(text)


@pytest.mark.parametrize(
    "text", ["", "memory pattern disabled", "Fatal Python error: Aborted", "bad allocation of time"]
)
def test_other_messages_are_not_taken_for_failed_allocations(text):
    assert not says_no_memory(text)


@pytest.mark.parametrize("text", ["std::bad_alloc" + "x" * 10**7, "x" * 10**7 + " std::bad_alloc", "std::bad_alloc"])
def test_both_ends_of_a_long_message_count(text):
    assert says_no_memory(text) and not says_no_memory(text.replace("bad_alloc", ""))


def test_shared_pages_of_a_tree_count_once():
    held = bytearray(os.urandom(1 << 20) * 60)
    ready, told = os.pipe()
    middle = os.fork()
    if middle == 0:
        for _ in range(3):
            if os.fork() == 0:
                os.write(told, held[:1])
                os.read(os.pipe()[0], 1)
        os.write(told, b"m")
        os.read(os.pipe()[0], 1)
    try:
        for _ in range(4):
            os.read(ready, 1)
        resident = tree_memory(os.getpid(), 1 << 60)
        proportional = tree_memory(os.getpid(), 0)
        assert resident > 4 * len(held)
        # Five processes share the pages, and four of them are descendants.
        assert proportional < resident - 2 * len(held)
    finally:
        from gpt_search.execution.supervisor import descendants

        for pid in descendants(os.getpid()):
            os.kill(pid, 9)
        os.waitpid(middle, 0)
        os.close(ready)
        os.close(told)


def test_the_kernels_count_of_memory_kills_can_be_read():
    assert oom_kills() >= 0
