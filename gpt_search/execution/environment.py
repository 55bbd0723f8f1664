"""What must be equal for records to be comparable, and the environment variables that a worker gets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

_KEPT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
    | {"VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "NO_COLOR", "PYTHONHOME"}
)
# Settings of compilers, their thread pools and allocators: a worker without them would measure another thing.
_KEPT_PREFIXES: tuple[str, ...] = (
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "CUDNN_",
    "TRT_",
    "TENSORRT_",
    "ORT_",
    "ONNXRUNTIME_",
    "XLA_",
    "JAX_",
    "TF_",
)
_KEPT_PREFIXES += (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "MALLOC_",
    "GLIBC_",
    "NCCL_",
    "TF_",
    "GPT_SEARCH_",
)


def cpu_model() -> str:
    """The processor's name, or the machine type where the system does not tell it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """How many CPUs this process may run on (its affinity mask, not the machine's total)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(backend_env: Mapping[str, str]) -> dict[str, str]:
    """What must be equal for records to be comparable, sorted by key.

    backend_env: the backend's own part (versions, device, driver), under its own keys; it wins
    where a key is in both.
    """
    own = {
        "cpu": cpu_model(),
        "cpus": str(usable_cpus()),
        "machine": platform.machine(),
        "system": platform.system(),
    }
    return dict(sorted((own | dict(backend_env)).items()))


def worker_environment(parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables of a worker: what compilers read, and nothing else of the parent's.

    parent: the parent's variables, by default `os.environ`. Hash seeds are fixed, so that a
    backend's set order is the same in every worker.
    """
    given = os.environ if parent is None else parent
    kept = {k: v for k, v in given.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
    kept.setdefault("PATH", os.defpath)
    return kept | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}


def import_paths() -> list[str]:
    """The parent's import path with every entry absolute, so that a worker imports the very same packages."""
    return [str(Path(p).absolute()) for p in sys.path]
