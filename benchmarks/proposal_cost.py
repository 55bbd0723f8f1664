"""Cost of one proposal with a long history, and of a simulated study, for each strategy.

Run: python benchmarks/proposal_cost.py [--knobs 195] [--rows 1000] [--proposals 40] [--repeats 3]
     [--out docs/strategies-cost.csv] [strategy ...]

- first ms: a fresh object's first proposal for a history of `--rows` rows, as after a resume: it works out
  everything anew. - then ms: the proposals after that, each with one more row: their mean, and the slowest.
- evaluations/s: `simulate` of `--trials` trials, best of the repeats; measuring a planted landscape is part of it.

The rows are those that the strategy itself asks for on a planted landscape (family sparse); a strategy that ends
earlier is given rows of `sparse_random` after that, and where it proposes nothing then its number of rows is shown.
Times are of the processor, not of the wall, so other programs disturb them less; a strategy that computes in
several threads is charged for all of them. --out: a CSV of these numbers, which rows of the same strategies replace.
Aims: 1 ms for those that fit no model, 50 ms for the others.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from time import process_time

import numpy as np

from gpt_search import History, Phase, Streams, load_strategy, planted, simulate
from gpt_search.domain.landscape import Landscape
from gpt_search.search.discovery import strategy_names

_CHEAP = ("full", "fast", "mixed", "random", "sparse_random", "qmc", "annealing", "local_search", "genetic")
_CHEAP += ("combined_elimination", "catcma")
AIM_MS = dict.fromkeys(_CHEAP, 1.0) | dict.fromkeys(("sparse_linear", "forest", "screening", "live", "bandit"), 50.0)
AIM_RATE = 5000
FIELDS = ("strategy", "first_ms", "then_ms", "evaluations_per_s")
_SEED = 7


def proposals(spec: str, landscape: Landscape, rows: int, further: int) -> tuple[float, list[float], int]:
    """Milliseconds of a fresh object's first proposal and of the ones after it, and the rows that it had."""
    space, streams, noise = landscape.space, Streams(_SEED), Streams(f"noise of {_SEED}")
    history = History(space, landscape.noise)

    def measure(codes: np.ndarray, until: Phase = Phase.TIME) -> None:
        t = history.next_trial
        history.append(t, codes, landscape.measure(codes, noise.trial(t), until), until)

    measure(space.default)
    strategy = load_strategy(spec)
    while len(history) <= rows and (proposal := strategy.propose(space, history, streams)) is not None:
        measure(proposal.codes, proposal.until)
    own = len(history) - 1
    filling = load_strategy("sparse_random")
    while len(history) <= rows:
        filler = filling.propose(space, history, streams)
        assert filler is not None
        measure(filler.codes)
    fresh, took = load_strategy(spec), []
    for _ in range(further + 1):
        began = process_time()
        proposal = fresh.propose(space, history, streams)
        took.append(1e3 * (process_time() - began))
        if proposal is None:
            break
        measure(proposal.codes, proposal.until)
    return took[0], took[1:], own


def rate(spec: str, landscape: Landscape, trials: int, repeats: int) -> float:
    """Evaluations per second of processor time, best of the repeats."""
    best = 0.0
    for seed in range(repeats):
        began = process_time()
        done = simulate(landscape.space, spec, landscape.measure, trials, seed, noise=landscape.noise)
        best = max(best, (len(done) - 1) / (process_time() - began))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", help="strategy specs; all of them by default")
    parser.add_argument("--knobs", type=int, default=195)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--proposals", type=int, default=40)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    landscape = planted("sparse", "proposal cost", arguments.knobs)
    found: dict[str, dict[str, str]] = {}
    if arguments.out is not None and arguments.out.exists():
        with arguments.out.open(newline="", encoding="utf-8") as file:
            found = {row["strategy"]: row for row in csv.DictReader(file)}
    print(f"{arguments.knobs} knobs, {arguments.rows} rows; aims: {AIM_RATE} evaluations/s where the aim is 1 ms")
    print(f"{'':24} {'first ms':>9} {'then ms':>9} {'slowest':>9} {'aim ms':>7} {'evaluations/s':>14}")
    for spec in arguments.strategies or strategy_names():
        first, then, own = proposals(spec, landscape, arguments.rows, arguments.proposals)
        aim = AIM_MS.get(spec.partition(":")[0])
        mean, slowest = (f"{np.mean(then):9.3f}", f"{max(then):9.3f}") if then else ("        -", "        -")
        cheap = aim == 1.0
        speed = rate(spec, landscape, arguments.trials, arguments.repeats if cheap else 1)
        ended = "" if own >= arguments.rows else f"  (ended after {own} rows)"
        found[spec] = {
            "strategy": spec,
            "first_ms": f"{first:.2f}",
            "then_ms": f"{np.mean(then):.3f}" if then else "",
            "evaluations_per_s": f"{speed:.0f}",
        }
        print(
            f"{spec:24} {first:9.2f} {mean} {slowest} {'-' if aim is None else f'{aim:g}':>7} {speed:14,.0f}{ended}",
            flush=True,
        )
    if arguments.out is not None:
        part = arguments.out.with_name(f"{arguments.out.name}.part")  # the results of hours: never half a file
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found[spec] for spec in sorted(found))
        part.replace(arguments.out)


if __name__ == "__main__":
    main()
