"""Speed of the study store: one `random` trial in a journal study of N trials, and resuming that study.

    python benchmarks/store.py [--knobs 195] [--trials 1000] [--stock 20] [--repeat 30]

Prints, in ms: proposing, starting and finishing one random trial (median and 90th percentile over
`--repeat`, after N trials), by step; stock Optuna's ask + one suggest per knob + tell in a journal
study of the same size, written in the same run; and, in s, resuming the study (a new process opens
it and restores every row, with imports counted apart). `cpu` is processor time: on a machine that is
busy with other things it says more than the wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from gpt_search import Evaluation, Outcome, Phase, SearchSpace, Streams
from gpt_search.domain.evaluation import Round
from gpt_search.domain.space import Dimension
from gpt_search.store.settings import StudySettings
from gpt_search.store.study import StudyStore

RESUME = """
import json, sys, time
t0 = time.perf_counter()
import optuna, gpt_search.store.study, gpt_search.store.journal
t1 = time.perf_counter()
with gpt_search.store.study.StudyStore.open(sys.argv[1], "bench") as store:
    t2 = time.perf_counter()
    rows = store.restore().rows
t3 = time.perf_counter()
parts = {"imports": t1 - t0, "open": t2 - t1, "restore": t3 - t2}
print(json.dumps({**parts, "cpu": time.process_time(), "rows": len(rows)}))
"""

STOCK_RESUME = """
import json, sys, time, optuna
from optuna.storages.journal import JournalFileBackend
t = time.perf_counter()
study = optuna.load_study(study_name="bench", storage=optuna.storages.JournalStorage(JournalFileBackend(sys.argv[1])))
study.get_trials(deepcopy=False)
print(json.dumps({"load": time.perf_counter() - t}))
"""


def space_of(knobs: int) -> SearchSpace:
    """Like TensorRT's closed knobs: nine in ten are boolean, the rest have 3 to 5 values."""
    sizes = [2 if i % 10 else 3 + i % 3 for i in range(knobs)]
    return SearchSpace(
        [
            Dimension(f"group_{i % 7}:knob_number_{i}", tuple(f"value_{v}" for v in range(n)), 0)
            for i, n in enumerate(sizes)
        ]
    )


def evaluation_of(rng: np.random.Generator) -> Evaluation:
    """An evaluation of usual size: 10 rounds of 2 x 20 raw samples, two golden pairs, five losses."""
    side = tuple(float(x) for x in rng.normal(1, 0.01, 20).round(6))
    losses = {"logits": dict.fromkeys(("l0", "l1", "l2", "lInf", "cos"), 1e-4)}
    return Evaluation(
        Outcome.OK,
        Phase.TIME,
        losses=(losses, losses),
        violation=-0.01,
        latency_ms=float(rng.normal(1, 0.1)),
        error_ms=0.002,
        log_ratio=0.01,
        log_ratio_error=0.002,
        rounds=tuple(Round(side, side, float(i)) for i in range(10)),
        fingerprint=f"{int(rng.integers(1 << 60)):064x}",
        memory_bytes=1 << 20,
        cost_s={"build": 1.0, "gate": 0.1, "time": 0.4},
    )


def child(code: str, path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def ours(path: Path, space: SearchSpace, trials: int, repeat: int) -> dict[str, list[float]]:
    streams = Streams(0)
    steps: dict[str, list[float]] = {"propose": [], "start": [], "finish": [], "whole": [], "cpu": []}
    with StudyStore.create_or_resume(path, "bench", StudySettings({"seed": 0}), space) as store:
        store.restore()
        for trial in range(trials + repeat):
            evaluation = evaluation_of(np.random.default_rng(trial))
            c0, t0 = time.process_time(), time.perf_counter()
            codes = space.sample(streams.trial(trial)) if trial else space.default
            t1 = time.perf_counter()
            store.start(trial, codes, Phase.TIME)
            t2 = time.perf_counter()
            store.finish(trial, evaluation, float(trial))
            t3, c3 = time.perf_counter(), time.process_time()
            if trial >= trials:
                for name, seconds in zip(steps, (t1 - t0, t2 - t1, t3 - t2, t3 - t0, c3 - c0), strict=True):
                    steps[name].append(seconds * 1e3)
    return steps


def stock(path: Path, space: SearchSpace, source: Path, trials: int, repeat: int) -> list[float]:
    """Plain Optuna on a copy of the same journal, so that both append to a study of the same size."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.write_bytes(source.read_bytes())
    study = optuna.load_study(
        study_name="bench",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    took = []
    for _ in range(repeat):
        t0 = time.perf_counter()
        trial = study.ask()
        for name, values in zip(space.names, space.values, strict=True):
            trial.suggest_categorical(name, values)
        study.tell(trial, 1.0)
        took.append((time.perf_counter() - t0) * 1e3)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--knobs", type=int, default=195)
    parser.add_argument("--trials", type=int, default=1000, help="size of the study when measuring begins")
    parser.add_argument("--repeat", type=int, default=30, help="trials of ours that are measured")
    parser.add_argument("--stock", type=int, default=20, help="trials of stock Optuna that are measured; 0 for none")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the files are written, and removed")
    arguments = parser.parse_args()
    space = space_of(arguments.knobs)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        path = Path(folder) / "bench.journal"
        steps = ours(path, space, arguments.trials, arguments.repeat)
        print(f"{arguments.knobs} knobs, {arguments.trials} trials; ms per random trial, median (90th percentile):")
        for name, times in steps.items():
            print(f"  {name:8} {median(times):8.2f} ({np.quantile(times, 0.9):.2f})")
        if arguments.stock:
            took = stock(Path(folder) / "stock.journal", space, path, arguments.trials, arguments.stock)
            ratio = median(took) / median(steps["whole"])
            print(
                f"  stock    {median(took):8.2f} ({np.quantile(took, 0.9):.2f}): "
                f"ask + suggest per knob + tell, {ratio:.1f} x ours"
            )
        resumed = child(RESUME, path)
        plain = child(STOCK_RESUME, path)
        whole = resumed["imports"] + resumed["open"] + resumed["restore"]
        print(
            f"resume: {whole:.2f} s for {resumed['rows']} rows (imports {resumed['imports']:.2f}, "
            f"open {resumed['open']:.2f}, restore {resumed['restore']:.2f}, of all CPU {resumed['cpu']:.2f}); "
            f"stock Optuna's load alone {plain['load']:.2f}"
        )
        size = sum(p.stat().st_size for p in Path(folder).rglob("*.jsonl"))
        print(f"files: journal {path.stat().st_size / 1e6:.1f} MB, records {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
