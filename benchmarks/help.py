"""How long `gpt-search --help` takes, side by side with `optuna --help`.

Both run alternately from the same environment, so that whatever slows the machine slows both; the
first round of each fills the disk cache and is not counted. Prints medians, and the ratio of each
pair with its quartiles. Usage: python benchmarks/help.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path


def seconds(program: Path) -> float:
    """Wall time of `program --help`, its output discarded."""
    began = time.perf_counter()
    subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(rounds: int = 15) -> None:
    """Runs and prints the comparison."""
    programs = [Path(sys.executable).with_name(name) for name in ("gpt-search", "optuna")]
    pairs = [[seconds(p) for p in programs] for _ in range(rounds + 1)][1:]
    for program, times in zip(programs, zip(*pairs, strict=True), strict=True):
        print(f"{program.name} --help: median {1000 * statistics.median(times):.0f} ms of {rounds} runs")
    low, middle, high = statistics.quantiles((ours / theirs for ours, theirs in pairs), n=4)
    print(f"ratio: {middle:.3f} (quartiles {low:.3f} to {high:.3f}); at most 0.5 is wanted")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
