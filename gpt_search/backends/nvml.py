"""What NVML tells about a GPU: clocks, temperature, power, throttling, and who else uses it.

NVML comes with the driver; its Python side is NVIDIA's own package `nvidia-ml-py` (module `pynvml`). It
needs no CUDA context, so any process may ask. A question that a GPU does not answer (a MIG slice has no
clocks of its own, a virtual GPU often no power) gives None, or is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

# NVML_CLOCKS_EVENT_REASON_...: the ones that slow a GPU down because of heat or power.
SLOWDOWNS: Mapping[int, str] = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}
_CLOCK_SETTING = 0x02
# Counters of the nanoseconds that a GPU has spent slowed down: exact over a round, where a reading is a moment.
_VIOLATIONS = {"power": pynvml.NVML_PERF_POLICY_POWER, "thermal": pynvml.NVML_PERF_POLICY_THERMAL}


class NvmlError(Exception):
    """NVML cannot be used here; the message says why."""


def reason_names(reasons: int, among: Mapping[int, str] = SLOWDOWNS) -> tuple[str, ...]:
    """The names of the reasons in a bit mask."""
    return tuple(name for bit, name in among.items() if reasons & bit)


def slowed_down(reasons: int) -> bool:
    """Whether any of the reasons is heat or power. Idling and clocks that somebody set are not."""
    return any(reasons & bit for bit in SLOWDOWNS)


@dataclass(frozen=True)
class Reading:
    """One look at a GPU: MHz, degrees C, W, a bit mask of reasons for its clocks; ns spent slowed down so far."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: int | None = None
    slowed_ns: Mapping[str, int] | None = None


@dataclass(frozen=True)
class GpuFacts:
    """What is worth knowing about a GPU before it is used; None where it does not say.

    processes: (process id, MB or None) of compute processes, as NVML sees them: in a container the ids are
    those of the host, and may be left out. power_cap_w, power_default_w: the limit in force, and the
    factory's. clock_setting: application or locked clocks are in force
    now. mig: for a MIG slice its parent's UUID, "on" for a whole GPU in MIG mode, else None.
    """

    uuid: str
    name: str
    driver: str
    memory_mb: float | None = None
    compute_capability: str | None = None
    processes: tuple[tuple[int, float | None], ...] = ()
    mps: bool = False
    mig: str | None = None
    power_cap_w: float | None = None
    power_default_w: float | None = None
    clock_setting: bool | None = None
    sm_clock_max_mhz: float | None = None
    temperature_c: float | None = None
    temperature_slowdown_c: float | None = None
    reasons: int | None = None
    persistence: bool | None = None


def _asked(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this GPU has none."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _start() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML cannot be used: {error}") from None


def device_id(uuid: str) -> str:
    """The id of the device with this UUID as NVML and the device lock know it: "GPU-..." or "MIG-...".

    uuid: as `cuda_runtime.device_uuid` gives it. A MIG slice has an id and so a lock of its own: its
    multiprocessors, cache and memory bandwidth are its own. It shares clocks and power with its neighbours.
    Where NVML cannot be used, "GPU-" is taken.
    """
    with contextlib.suppress(NvmlError):
        _start()
        for kind in ("GPU", "MIG"):
            if _asked(pynvml.nvmlDeviceGetHandleByUUID, f"{kind}-{uuid}") is not None:
                return f"{kind}-{uuid}"
    return f"GPU-{uuid}"


def gpu_ids() -> list[str]:
    """The ids of all GPUs that this process may see, CUDA_VISIBLE_DEVICES aside. Raises NvmlError."""
    _start()
    handles = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount()))
    return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def visible_id() -> str | None:
    """The id of the GPU that CUDA takes first here (CUDA_VISIBLE_DEVICES), without asking CUDA; None for none.

    With CUDA's default order of devices, the fastest first, that is a guess where GPUs differ.
    """
    ids = gpu_ids()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdigit():
        return ids[int(first)] if int(first) < len(ids) else None
    if first.startswith("MIG-"):
        return first
    return next((i for i in ids if first and i.startswith(first)), None)


class Gpu:
    """One GPU or MIG slice. Raises NvmlError when it cannot be found."""

    def __init__(self, identity: str) -> None:
        """identity: "GPU-..." or "MIG-...", as `device_id` gives it."""
        _start()
        self.identity = identity
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(identity)
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML knows no device {identity}: {error}") from None
        # Clocks, power and temperature are the whole GPU's.
        self._whole = self._handle
        if identity.startswith("MIG-"):
            self._whole = _asked(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, self._handle) or self._handle

    def read(self) -> Reading:
        """One look, about a millisecond on the host; the GPU goes on meanwhile."""
        whole = self._whole
        power = _asked(pynvml.nvmlDeviceGetPowerUsage, whole)
        slowed = {
            name: int(status.violationTime)
            for name, policy in _VIOLATIONS.items()
            if (status := _asked(pynvml.nvmlDeviceGetViolationStatus, whole, policy)) is not None
        }
        return Reading(
            _asked(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_SM),
            _asked(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_MEM),
            _asked(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
            _watts(power),
            _asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons, whole),
            slowed or None,
        )

    def facts(self) -> GpuFacts:
        """What is worth knowing before the GPU is used."""
        own, whole = self._handle, self._whole
        memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, own)
        capability = _asked(pynvml.nvmlDeviceGetCudaComputeCapability, whole)
        reasons = _asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons, whole)
        persistence = _asked(pynvml.nvmlDeviceGetPersistenceMode, whole)
        return GpuFacts(
            self.identity,
            str(_asked(pynvml.nvmlDeviceGetName, own)),
            str(_asked(pynvml.nvmlSystemGetDriverVersion)),
            None if memory is None else int(memory.total) / 1e6,
            None if capability is None else f"{capability[0]}.{capability[1]}",
            self._processes(),
            self._mps(),
            self._mig(),
            _watts(_asked(pynvml.nvmlDeviceGetEnforcedPowerLimit, whole)),
            _watts(_asked(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, whole)),
            None if reasons is None else bool(reasons & _CLOCK_SETTING),
            _asked(pynvml.nvmlDeviceGetMaxClockInfo, whole, pynvml.NVML_CLOCK_SM),
            _asked(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
            _asked(pynvml.nvmlDeviceGetTemperatureThreshold, whole, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            reasons,
            None if persistence is None else bool(persistence),
        )

    def _processes(self) -> tuple[tuple[int, float | None], ...]:
        found = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle) or []
        used = {int(p.pid): p.usedGpuMemory for p in found}
        return tuple(sorted((pid, None if size is None else int(size) / 1e6) for pid, size in used.items()))

    def _mps(self) -> bool:
        if _asked(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, self._handle):
            return True
        folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
        return os.path.exists(os.path.join(folder, "control"))  # noqa: PTH110, PTH118

    def _mig(self) -> str | None:
        if self.identity.startswith("MIG-"):
            return str(_asked(pynvml.nvmlDeviceGetUUID, self._whole))
        mode = _asked(pynvml.nvmlDeviceGetMigMode, self._whole)
        return "on" if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE else None
