"""The GPU that TensorRT will use: its id for the device lock, and what makes records comparable."""

from __future__ import annotations

from gpt_search.backends.cuda_runtime import CudaError, device_count, device_name, device_uuid, versions
from gpt_search.backends.nvml import Gpu, NvmlError, device_id

NO_DEVICE = "cpu"


def current_device() -> str:
    """The id of the first GPU that CUDA sees, "GPU-..." or "MIG-..."; "cpu" where it sees none.

    It makes no CUDA context. TensorRT-RTX builds on machines without a GPU.
    """
    return device_id(device_uuid()) if _there_is_one() else NO_DEVICE


def device_facts() -> dict[str, str]:
    """Name, driver, versions and power cap of the GPU that will be used; nothing where there is none.

    A power cap changes what is fast, so records under different ones are not comparable. Clocks are read with
    every round.
    """
    if not _there_is_one():
        return {}
    facts = {"gpu": device_name(), **versions()}
    try:
        found = Gpu(current_device()).facts()
    except NvmlError as error:
        return facts | {"nvml": str(error)}
    facts["driver"] = found.driver
    if found.power_cap_w is not None:
        facts["power_cap_w"] = f"{found.power_cap_w:.0f}"
    if found.mig is not None:
        facts["mig"] = "a slice" if found.uuid.startswith("MIG-") else found.mig
    return facts


def _there_is_one() -> bool:
    try:
        return device_count() > 0
    except CudaError as error:
        if error.name in ("cudaErrorNoDevice", "cudaErrorInsufficientDriver"):
            return False
        raise
