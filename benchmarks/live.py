"""What a live study spends outside the worker: a `random` run on a small encoder, ONNX Runtime on the CPU.

Prints the share of the wall time between the first and the last trial's end that was worker start,
build, gate (inference) or timing, and the rest per trial. Time that was spent waiting because
another process held the device ("wait") is taken off first, and shown. Aim: at least 90 %.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gpt_search.domain.budget import Budget
from gpt_search.run.config import TuneConfig
from gpt_search.run.tune import tune
from gpt_search.store.study import StudyStore
from gpt_search.workloads.catalogue import write_workload

PHASES = ("start", "build", "gate", "time")
KNOBS = "-opt:*=[*] -session:mem_pattern=[*] -session:cpu_arena=[*]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workload = write_workload("bert", Path(folder) / "bert.onnx", layers=2, hidden=96)
        config = TuneConfig(
            model=workload.model,
            shapes=workload.shapes,
            knobs=KNOBS,
            strategy="random",
            budget=Budget(trials=arguments.trials),
            tolerances=("0.01",),
            storage=str(Path(folder) / "study.journal"),
            study="live",
        )
        tune(config)
        with StudyStore.read(config.storage, "live") as store:
            rows = store.restore().rows
    waited = sum(r.evaluation.cost_s.get("wait", 0.0) for r in rows[1:])
    wall = rows[-1].clock_s - rows[0].clock_s - waited
    cost = {phase: sum(r.evaluation.cost_s.get(phase, 0.0) for r in rows[1:]) for phase in PHASES}
    spent = sum(cost.values())
    shares = ", ".join(f"{phase} {100 * seconds / wall:.1f} %" for phase, seconds in cost.items())
    print(f"{len(rows) - 1} trials in {wall:.1f} s (and {waited:.1f} s of waiting)")
    print(f"{100 * spent / wall:.1f} % in the worker ({shares})")
    print(f"the rest is {1000 * (wall - spent) / (len(rows) - 1):.1f} ms a trial")


if __name__ == "__main__":
    main()
