"""Evaluations per second of `simulate`, for each strategy, beside a bare loop of numpy draws.

Run: python benchmarks/simulate.py [--knobs 195] [--trials 20000] [--repeats 5] [strategy ...]

Each number is the best of the repeats: on a shared machine the fastest run is the least disturbed
one. The bare loop draws one code vector per trial with the same addressed generator and keeps it: what
no study can be faster than. The measured function costs next to nothing and is the same for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np

from gpt_search import Observation, Outcome, Phase, SearchSpace, Streams, simulate
from gpt_search.domain.space import Dimension
from gpt_search.search.discovery import strategy_names

# Those that look at the history only to skip what was tried. All others work something out for each proposal, which
# takes up to tens of milliseconds: `proposal_cost.py` measures them.
_FAST = {"full", "fast", "mixed", "random", "sparse_random", "qmc"}


def space_of(knobs: int) -> SearchSpace:
    """A space of two-valued knobs."""
    return SearchSpace(Dimension(f"knob{i}", ("off", "on"), i % 2) for i in range(knobs))


def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
    return Observation(Outcome.OK, 1.0 + rng.random())


def bare(space: SearchSpace, trials: int) -> None:
    streams = Streams(0)
    seen: dict[bytes, int] = {}
    for t in range(trials):
        codes = space.sample(streams.trial(t))
        seen[codes.tobytes()] = t


def best_rate(run: Callable[[], int], repeats: int) -> float:
    rates = []
    for _ in range(repeats):
        began = perf_counter()
        evaluations = run()
        rates.append(evaluations / (perf_counter() - began))
    return max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", help="strategy specs; all of them by default")
    parser.add_argument("--knobs", type=int, default=195)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--slow-trials", type=int, default=60, help="for strategies that learn")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    space = space_of(arguments.knobs)
    print(f"{arguments.knobs} two-valued knobs, best of {arguments.repeats}")
    print(f"{'':16} {'trials':>8} {'evaluations/s':>14}")

    def run_bare() -> int:
        bare(space, arguments.trials)
        return int(arguments.trials)

    print(f"{'bare draws':16} {arguments.trials:8} {best_rate(run_bare, arguments.repeats):14,.0f}")
    for spec in arguments.strategies or strategy_names():
        slow = spec.partition(":")[0] not in _FAST
        trials = arguments.slow_trials if slow else arguments.trials
        done = 0

        def run(spec: str = spec, trials: int = trials) -> int:
            nonlocal done
            done = len(simulate(space, spec, measure, trials, seed=0)) - 1
            return done

        rate = best_rate(run, 1 if slow else arguments.repeats)
        print(f"{spec:16} {done:8} {rate:14,.0f}")


if __name__ == "__main__":
    main()
