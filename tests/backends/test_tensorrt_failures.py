"""Why an engine cannot run on a machine: one line, from recorded text of the real library."""

from __future__ import annotations

import pytest

from gpt_search.backends.tensorrt_failures import why_not_run

# TensorRT-RTX 1.7.1 on a machine without a driver.
NO_DRIVER = [
    "Skipping the engine compute capability check: In getCurrentCC at /_src/runtime/dispatch/planHeaders.cpp:130 "
    "(cudaError 35: CUDA driver version is insufficient for CUDA runtime version)",
    "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (In ScopedCudaStream at /_src/common/dispatch/"
    "cudaResources.cpp:25 (cudaError 35: CUDA driver version is insufficient for CUDA runtime version))",
]
# TensorRT-RTX 1.7.1 on an NVIDIA H200: engines built for all GPUs, for 8.9, and for the GPU that was there.
REFUSED = (
    "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine cannot run on this GPU, which has "
    "compute capability 9.0. Supported compute capabilities: {}. TensorRT-RTX does not support this compute "
    "capability, so the engine cannot be rebuilt for it. In throwUnlessComputeCapSupported at "
    "/_src/runtime/dispatch/runtime.cpp:84)"
)


def test_no_driver() -> None:
    assert why_not_run(NO_DRIVER, "TensorRT-RTX") == (
        "TensorRT-RTX cannot run here: there is no NVIDIA driver, or one older than this TensorRT-RTX needs "
        "(CUDA error 35); run on a machine with an NVIDIA GPU and a current driver"
    )


@pytest.mark.parametrize(
    ("supported", "shown"),
    [("8.0 8.6 8.9 12.0 12.1 >12.0", "8.0, 8.6, 8.9, 12.0, 12.1, >12.0"), ("8.9", "8.9"), ("None", "None")],
)
def test_a_gpu_that_rtx_does_not_support(supported: str, shown: str) -> None:
    assert why_not_run([REFUSED.format(supported)], "TensorRT-RTX") == (
        "TensorRT-RTX cannot run here: it does not support compute capability 9.0, which this GPU has; the engine was "
        f"built for {shown}"
    )


def test_no_gpu_and_other_errors() -> None:
    assert "CUDA_VISIBLE_DEVICES" in str(why_not_run(["CUDA initialization failure with error: 100"], "TensorRT"))
    assert why_not_run(["Error Code 1: Serialization (magic tag does not match)", "cudaError 2: x"], "TensorRT") is None
    assert why_not_run(NO_DRIVER[:1], "TensorRT") is None  # a check that was left out stops nothing
