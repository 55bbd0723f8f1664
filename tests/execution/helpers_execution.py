"""What the tests of this folder share: a synthetic workload, and a look at the processes that live."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt_search.accuracy.gate import Tolerances
from gpt_search.accuracy.golden import save_golden
from gpt_search.backends.synthetic import SyntheticBackend, synthetic_golden, synthetic_workload
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.evaluator import EvaluatorSettings
from gpt_search.execution.launcher import WorkerSpec
from gpt_search.execution.supervisor import descendants
from gpt_search.measure.protocol import Protocol

SPEC = {"family": "infeasible", "seed": 1, "knobs": 20, "noise": 0.01}
MEMORY_LIMIT = 400_000_000
MARK = "GPT_SEARCH_TEST_MARK"


def backend_name(**options: Any) -> str:
    return "synthetic:" + json.dumps(SPEC | options)


def backend_of(name: str) -> SyntheticBackend:
    return SyntheticBackend(name.partition(":")[2])


def files(folder: Path) -> tuple[Workload, Path]:
    workload = synthetic_workload(folder, SPEC)
    golden = folder / "golden.npz"
    save_golden(golden, synthetic_golden(), {})
    return workload, golden


def worker_spec(folder: Path, name: str | None = None, limit: int | None = None) -> WorkerSpec:
    workload, golden = files(folder)
    return WorkerSpec(name or backend_name(fail_knob=True, gentle=True), workload, golden, memory_limit_bytes=limit)


def settings(folder: Path, name: str | None = None, **more: Any) -> EvaluatorSettings:
    workload, golden = files(folder)
    name = name or backend_name(gentle=True)
    landscape = backend_of(name).landscape if name.startswith("synthetic") else None
    tolerance = landscape.tolerance if landscape is not None else 1e-2
    given: dict[str, Any] = {"protocol": Protocol(warmup_seconds=0.02, warmup_limit_seconds=0.2)}
    return EvaluatorSettings(name, workload, golden, Tolerances("lInf", tolerance), **(given | more))


def route(**knobs: str) -> Route:
    return Route(tuple(knobs.items()))


def request(slot: str, knobs: Mapping[str, str] | None = None, seed: int = 1) -> dict[str, Any]:
    return {"slot": slot, "route": [list(i) for i in (knobs or {}).items()], "seed": seed}


def marked(mark: str) -> list[int]:
    """Living processes that were started with the mark in their environment, wherever they have gone since."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def children() -> list[int]:
    return descendants(os.getpid())


def eventually(condition: Any, seconds: float = 20.0) -> bool:
    """True as soon as the condition holds; a limit for a broken test, not an assertion on speed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
