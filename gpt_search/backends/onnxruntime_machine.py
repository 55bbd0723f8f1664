"""The machine and the versions that an ONNX Runtime measurement belongs to."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from pathlib import Path


def environment() -> dict[str, str]:
    """What must be equal for two records to be comparable: versions, processor, cores, system."""
    import onnx
    import onnxruntime

    model, flags = _processor()
    return {
        "onnxruntime": onnxruntime.__version__,
        "onnxruntime_build": str(onnxruntime.get_build_info()),
        "onnx": onnx.__version__,
        "python": platform.python_version(),
        "processor": model,
        "processor_flags": flags,
        "physical_cores": str(physical_cores()),
        "usable_cores": str(_usable_cores()),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


@cache
def physical_cores() -> int:
    """Physical cores of the machine: what 0 threads stands for."""
    import psutil

    return int(psutil.cpu_count(logical=False) or psutil.cpu_count() or 1)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _processor() -> tuple[str, str]:
    """The processor's name, and a digest of its instruction-set flags ("" where the system does not list them)."""
    info: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    flags = info.get("flags") or info.get("Features") or ""
    name = " ".join(
        info[k] for k in ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part") if k in info
    )
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16] if flags else ""
    return name or platform.processor(), digest
