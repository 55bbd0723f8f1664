"""What one trial of `tpe` costs against plain Optuna TPE in memory, side by side in one process.

    python benchmarks/tpe.py [--knobs 209] [--sizes 100 300 1000] [--repeats 15]

Both histories hold the same routes and values. One trial of plain Optuna is `study.ask()`, one
`suggest_categorical` per knob and `study.tell()` with the default `TPESampler`; one trial of ours
is `Tpe.propose` and the append to the history. The two take turns, so that a slow machine slows
both; the medians and their ratio are printed, in ms per trial. Aim: a ratio of at most 1.0.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

import numpy as np
import optuna

from gpt_search import History, Observation, Outcome, SearchSpace, Streams, load_strategy
from gpt_search.domain.space import Codes, Dimension


def make_space(knobs: int) -> SearchSpace:
    """Nine in ten knobs boolean, the rest with three to five values: the shape of the 209-knob database."""
    few = round(knobs / 11)
    counts = [2] * (knobs - few) + [3 + i % 3 for i in range(few)]
    return SearchSpace(Dimension(f"knob{i}", tuple(map(str, range(k))), 0) for i, k in enumerate(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--knobs", type=int, default=209)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = make_space(options.knobs)
    rng = np.random.default_rng(0)
    effects = [rng.normal(0, 0.01, int(k)) for k in space.cardinalities]

    def latency(codes: Codes) -> float:
        return float(np.exp(sum(e[c] for e, c in zip(effects, codes.tolist(), strict=True))))

    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        n: optuna.distributions.CategoricalDistribution(v) for n, v in zip(space.names, space.values, strict=True)
    }
    study = optuna.create_study()
    history = History(space)
    strategy, streams = load_strategy("tpe"), Streams(0)

    def fill(codes: Codes) -> None:
        params = {n: v[c] for n, v, c in zip(space.names, space.values, codes.tolist(), strict=True)}
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=latency(codes)))
        history.append(history.next_trial, codes, Observation(Outcome.OK, latency(codes)))

    def plain() -> float:
        began = perf_counter()
        trial = study.ask()
        codes = np.array(
            [v.index(trial.suggest_categorical(n, v)) for n, v in zip(space.names, space.values, strict=True)], np.int16
        )
        study.tell(trial, latency(codes))
        return perf_counter() - began

    def ours() -> float:
        began = perf_counter()
        proposal = strategy.propose(space, history, streams)
        assert proposal is not None
        history.append(history.next_trial, proposal.codes, Observation(Outcome.OK, latency(proposal.codes)))
        return perf_counter() - began

    print(f"{options.knobs} knobs, median of {options.repeats} trials after n trials")
    print(f"{'n':>6} {'plain Optuna':>13} {'gpt_search':>11} {'ratio':>6}")
    fill(space.default)
    for size in options.sizes:
        while len(history) < size:
            fill(space.sample(rng))
        ours(), plain()  # the first call after filling pays for the filling
        times = [(plain(), ours()) for _ in range(options.repeats)]
        a, b = (1e3 * statistics.median(t) for t in zip(*times, strict=True))
        print(f"{size:>6} {a:>10.1f} ms {b:>8.1f} ms {b / a:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
