"""CUDA's names exist, its return codes are checked, and a capture always ends; on a device: test_tensorrt_gpu."""

from __future__ import annotations

import ast
from pathlib import Path

import pynvml
import pytest
from cuda.bindings import driver, runtime

import gpt_search.backends
from gpt_search.backends import cuda_runtime as cuda
from gpt_search.backends.base import MemoryLimitError
from gpt_search.execution.worker import outcome_of

BACKENDS = Path(gpt_search.backends.__file__).parent
MODULES = {"runtime": runtime, "driver": driver, "pynvml": pynvml}


def names_used(path: Path) -> set[tuple[str, str]]:
    """(module, name) of every attribute that a file takes of CUDA's or NVML's modules, members of enumerations too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node).split(".")
            if text[0] in MODULES:
                found.add((text[0], ".".join(text[1:])))
    return found


def exists(module: str, name: str) -> bool:
    at = MODULES[module]
    for part in name.split("."):
        if not hasattr(at, part):
            return False
        at = getattr(at, part)
    return True


@pytest.mark.parametrize("file", ["cuda_runtime.py", "nvml.py"])
def test_every_name_exists_in_the_installed_bindings(file):
    used = names_used(BACKENDS / file)
    assert len(used) > 15
    assert [f"{m}.{n}" for m, n in sorted(used) if not exists(m, n)] == []


def test_no_other_backend_file_calls_cuda_or_nvml_itself():
    others = [p for p in BACKENDS.glob("*.py") if p.name not in ("cuda_runtime.py", "nvml.py")]
    importing = [p.name for p in others if "cuda.bindings" in p.read_text() or "import pynvml" in p.read_text()]
    assert importing == []


def test_every_call_goes_through_the_check():
    """A call of the bindings whose code nobody looks at is a silent failure; the exceptions look at it themselves."""
    own = {"cudaGetLastError", "cudaEventQuery", "cudaStreamEndCapture", "cudaGraphDestroy"}
    tree = ast.parse((BACKENDS / "cuda_runtime.py").read_text(encoding="utf-8"))
    direct = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("runtime", "driver")
    }
    assert direct == own


def answering(*result):
    def cudaSomething(*arguments):
        return result

    return cudaSomething


OK = runtime.cudaError_t.cudaSuccess


@pytest.mark.parametrize(("result", "value"), [((OK,), None), ((OK, 7), 7), ((OK, 7, 8), (7, 8))])
def test_results_come_without_the_code(result, value):
    assert cuda.checked(answering(*result)) == value


def test_a_code_that_is_not_success_raises_with_call_name_and_text():
    with pytest.raises(cuda.CudaError) as caught:
        cuda.checked(answering(runtime.cudaError_t.cudaErrorIllegalAddress, None))
    assert caught.value.name == "cudaErrorIllegalAddress"
    assert str(caught.value) == ("cudaSomething: cudaErrorIllegalAddress (an illegal memory access was encountered)")
    assert outcome_of(caught.value) == "CRASH"


def test_a_failed_allocation_is_the_routes_memory_outcome():
    with pytest.raises(cuda.CudaMemoryError) as caught:
        cuda.checked(answering(runtime.cudaError_t.cudaErrorMemoryAllocation, 0))
    assert isinstance(caught.value, MemoryLimitError) and outcome_of(caught.value) == "MEMORY"


@pytest.fixture
def capturing(monkeypatch):
    """Stands for the runtime's capture calls alone: what is tested is the order of ours, not CUDA."""
    calls = []

    def fake(name, *result):
        def call(*arguments):
            calls.append(name)
            return result

        call.__name__ = name
        monkeypatch.setattr(cuda.runtime, name, call)

    def set_up(end):
        fake("cudaStreamBeginCapture", OK)
        fake("cudaStreamEndCapture", end, "graph" if int(end) == 0 else None)
        fake("cudaGraphInstantiate", OK, "executable")
        fake("cudaGraphDestroy", OK)
        fake("cudaGetLastError", OK)
        stream = cuda.Stream.__new__(cuda.Stream)
        stream.handle = "stream"
        return stream, calls

    return set_up


def test_a_capture_ends_also_when_the_work_raises(capturing):
    stream, calls = capturing(OK)

    def work():
        raise RuntimeError("no")

    with pytest.raises(cuda.CaptureError, match="no"):
        cuda.capture(stream, work)
    assert calls == ["cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphDestroy", "cudaGetLastError"]


def test_a_capture_that_cuda_refuses_says_why(capturing):
    stream, calls = capturing(runtime.cudaError_t.cudaErrorStreamCaptureInvalidated)
    with pytest.raises(cuda.CaptureError, match="cudaErrorStreamCaptureInvalidated"):
        cuda.capture(stream, lambda: None)
    assert calls[-1] == "cudaGetLastError"


def test_a_capture_gives_an_executable_graph_and_frees_the_other(capturing):
    stream, calls = capturing(OK)
    assert cuda.capture(stream, lambda: None).handle == "executable"
    assert calls[-2:] == ["cudaGraphInstantiate", "cudaGraphDestroy"]


def test_without_a_device_the_lock_is_the_cpus_and_there_are_no_facts():
    from gpt_search.backends.tensorrt_device import current_device, device_facts

    try:
        if cuda.device_count():
            pytest.skip("there is a GPU")
    except cuda.CudaError:
        pass
    assert current_device() == "cpu" and device_facts() == {}
