"""How long an experiment takes: the eleven cheap strategies, 30 seeds, 200 trials each, on a table of 4,096 routes.

Run: python benchmarks/compare.py [--seeds 30] [--trials 200] [--jobs 2] [--strategies NAME ...]

The table is that of a planted landscape of 12 on/off knobs, recorded as a compiler's would be (40 rounds a route).
Prints the seconds that loading it takes, those of the whole `gpt-search compare` (statistics included), the
processor time of its processes, and the largest memory that one of them held. Where other work shares the cores, the
processor time over the number of jobs is what the wall time would be without it.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHEAP = (
    *("full", "fast", "mixed", "random", "sparse_random", "qmc"),
    *("annealing", "local_search", "genetic", "combined_elimination", "catcma"),
)
LOAD = "import sys, time; from gpt_search.store.tables import load_table; t = time.perf_counter(); "
LOAD += "table = load_table(sys.argv[1]); print(len(table), time.perf_counter() - t)"


def experiment(strategies: list[str], seeds: int, trials: int) -> str:
    text = f"""[experiment]
name = "speed"
seeds = {seeds}
budget = {{ trials = {trials} }}
budgets = [{", ".join(str(b) for b in (25, 50, 100) if b < trials)}]

[[task]]
kind = "table"
file = "planted.jsonl"

[statistics]
control = "{strategies[0]}"
"""
    return text + "".join(f'\n[[strategy]]\nspec = "{name}"\n' for name in strategies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--strategies", nargs="+", default=list(CHEAP))
    given = parser.parse_args()

    from gpt_search.domain.landscape import planted
    from gpt_search.run.planted_table import planted_table

    landscape = planted("sparse", 1, 12)
    assert landscape.space.size == 4096
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planted_table(folder / "planted.jsonl", landscape)
        (folder / "speed.toml").write_text(experiment(given.strategies, given.seeds, given.trials))
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD, str(folder / "planted.jsonl")], check=True, capture_output=True, text=True
        )
        routes, load_s = loaded.stdout.split()
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "gpt_search.cli.main", "compare", str(folder / "speed.toml")]
        subprocess.run([*command, "--out", str(folder / "out"), "--jobs", str(given.jobs)], check=True)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        size = sum(path.stat().st_size for path in (folder / "out" / "cells").iterdir())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cells = len(given.strategies) * given.seeds
    print(f"table of {int(routes):,} routes: {float(load_s):.2f} s to load")
    print(
        f"{cells} cells of {given.trials} trials: {wall_s:.1f} s with {given.jobs} processes, {spent:.1f} s of "
        f"processor time, at most {after.ru_maxrss / 1024:.0f} MB in one process; cells take {size / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main()
