"""Studies in which nothing matters: how often a speed-up is confirmed, and what a naive minimum would claim.

Run: python benchmarks/null_study.py [--studies 2052] [--jobs 1]

Every route has the same true latency. A study is simulated from its samples to its verdict through the code that
races, nominates and confirms in a real one; processes, and stage 1 of the confirmation, are left out. Each
study has a noise of 1, 2 or 5 % (between rounds, with half of it between the samples of a round, and a quarter
each between builds and between processes), one of three tails, and a drift of the machine that both sides
share: 10 % more over the search, or a step of 10 % at a random moment.

Naive: the smallest mean over a route's rounds against the mean of the default's, as trtexec compares routes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, Observation, Outcome, SearchSpace
from gpt_search.domain.evaluation import Round
from gpt_search.domain.space import Dimension
from gpt_search.domain.streams import seed_from
from gpt_search.measure.intervals import Verdict, ratio_interval, verdict
from gpt_search.measure.paired import estimate_of
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Decision, Field, decide_on
from gpt_search.run.confirm import DEFAULT_REBUILDS, DEFAULT_TOP, STAGE_1_REBUILDS
from gpt_search.search.strategy import recommend

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

NOISES = (0.01, 0.02, 0.05)
# Of variance 1, but "bursts": one in ten is longer, never shorter, by up to ten deviations and more.
TAILS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    "bursts": lambda rng, shape: (
        rng.standard_normal(shape) + (rng.random(shape) < 0.1) * np.abs(5 * rng.standard_normal(shape))
    ),
}
DRIFTS = ("linear", "step")
DRIFT = 0.1
CELLS = tuple(product(NOISES, TAILS, DRIFTS))

TRIALS = 20
SAMPLES = 6
BUILD_S = 1.0
NOMINAL_S = TRIALS * (BUILD_S + 1.0)
SPACE = SearchSpace(Dimension(f"knob{i}", ("off", "on"), 0) for i in range(10))
PROTOCOL = Protocol()


@dataclass(frozen=True)
class Result:
    """One study. found: None where nothing was nominated. headline: log of the confirmed speed-up, else None.

    naive: log of the gain that the naive minimum claims. claimed: of the best nominee, by the search's own timing.
    """

    noise: float
    tail: str
    drift: str
    found: Verdict | None
    headline: float | None
    claimed: float | None
    naive: float


class Machine:
    """Gives rounds of two engines of equal speed, on one clock."""

    def __init__(self, seed: int, noise: float, tail: str, drift: str) -> None:
        """drift: "linear", "step" or "none"."""
        self.rng = np.random.default_rng(seed)
        self.noise, self.tail, self.drift = noise, TAILS[tail], drift
        self.clock = 0.0
        self.step_s = float(self.rng.uniform(0, 1.2 * NOMINAL_S))  # now and then during the confirmation

    def engine(self) -> float:
        """The log-level of a fresh build in a fresh process."""
        self.clock += BUILD_S
        return float(self.noise / 4 * self.rng.standard_normal(2).sum())

    def rounds(self, candidate: float, reference: float) -> Iterator[Round]:
        """Round after round of two engines, the sides taking turns in running first.

        A side has one sample, the median of all: all that the code that follows looks at.
        """
        first = bool(self.rng.integers(2))
        while True:
            block = 16  # drawn together: a draw for each round would cost more than all the rest
            levels = self.noise * self.tail(self.rng, (block, 2)) + (candidate, reference)
            samples = self.noise / 2 * self.tail(self.rng, (block, 2, SAMPLES))
            for row in np.exp(levels + np.median(samples, axis=2)).tolist():
                began = self.clock
                for side in (1, 0) if first else (0, 1):
                    row[side] *= math.exp(self._drift_now())
                    self.clock += PROTOCOL.round_seconds
                yield Round((row[0],), (row[1],), began, first)
                first = not first

    def _drift_now(self) -> float:
        if self.drift == "linear":
            return DRIFT * self.clock / NOMINAL_S
        return DRIFT * (self.drift == "step" and self.clock > self.step_s)

    def pair_of_builds(self) -> float:
        """log(candidate / reference) of two fresh builds, from every round that a confirmation takes."""
        stream = self.rounds(self.engine(), self.engine())
        return estimate_of([_log_ratio(next(stream)) for _ in range(PROTOCOL.build_rounds)]).log_ratio


def _log_ratio(found: Round) -> float:
    """`paired.log_ratio_of` of a round with one sample on each side: its median is that sample."""
    return math.log(found.candidate_ms[0]) - math.log(found.reference_ms[0])


def run_study(seed: int, noise: float, tail: str, drift: str) -> Result:
    """One study from its reference to its verdict."""
    machine = Machine(seed_from("null study", seed), noise, tail, drift)
    reference = machine.engine()
    history, field = History(SPACE), Field(PROTOCOL)
    means: list[float] = []
    reference_ms = math.nan
    for trial in range(TRIALS + 1):
        stream = machine.rounds(machine.engine(), reference)
        rounds: list[Round] = []
        log_ratios: list[float] = []
        decision = Decision.CONTINUE
        while decision is Decision.CONTINUE:
            rounds.append(next(stream))
            log_ratios.append(_log_ratio(rounds[-1]))
            decision = decide_on(log_ratios, field.best if trial else None, PROTOCOL, trial or 1)
        field.learn(trial, rounds, feasible=True)
        estimate = estimate_of(log_ratios)
        means.append(float(np.mean([r.candidate_ms[0] for r in rounds])))
        if trial == 0:
            reference_ms = float(np.median([np.median(r.reference_ms) for r in rounds]))
        latency = reference_ms * (math.exp(estimate.log_ratio) if trial else 1.0)
        codes = np.array([trial >> i & 1 for i in range(len(SPACE))], np.int16)
        history.append(trial, codes, Observation(Outcome.OK, latency, -1.0, error_ms=latency * estimate.error))
    nominees = [r for r in recommend(history, DEFAULT_TOP) if r and history.value[r] < reference_ms]
    naive = math.log(means[0]) - math.log(min(means))
    if not nominees:
        return Result(noise, tail, drift, None, None, None, naive)
    if len(nominees) > 1:
        # Stage 1 picks one by builds of its own. All are equally fast, so only the time that it takes counts.
        one = 2 * (BUILD_S + PROTOCOL.round_seconds * PROTOCOL.build_rounds)
        machine.clock += STAGE_1_REBUILDS * len(nominees) * one
    speedup = ratio_interval([-machine.pair_of_builds() for _ in range(DEFAULT_REBUILDS)])
    claimed = -math.log(history.value[nominees[0]] / reference_ms)
    return Result(noise, tail, drift, verdict(speedup), math.log(speedup.estimate), claimed, naive)


def run_studies(studies: int, jobs: int = 1) -> list[Result]:
    """That many studies, the cells taking turns."""
    given = [(i, *CELLS[i % len(CELLS)]) for i in range(studies)]
    if jobs == 1:
        return [run_study(*one) for one in given]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(run_study, *zip(*given, strict=True), chunksize=20))


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a share. Source: Clopper and Pearson, Biometrika 26 (1934) 404-413."""
    from scipy.special import betaincinv

    alpha = (1 - level) / 2
    low = float(betaincinv(successes, n - successes + 1, alpha)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - alpha)) if successes < n else 1.0
    return low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=114 * len(CELLS))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    began = perf_counter()
    results = run_studies(arguments.studies, arguments.jobs)
    print(f"{len(results)} studies of {TRIALS} trials in {perf_counter() - began:.0f} s")
    report("all", results)
    for noise in NOISES:
        report(f"noise {noise:.0%}", [r for r in results if r.noise == noise])
    for tail in TAILS:
        report(tail, [r for r in results if r.tail == tail])
    for drift in DRIFTS:
        report(f"{drift} drift", [r for r in results if r.drift == drift])


def report(name: str, results: list[Result]) -> None:
    """One line on a set of studies."""
    faster = sum(r.found is Verdict.FASTER for r in results)
    headline = np.array([r.headline for r in results if r.headline is not None])
    claimed = np.array([r.claimed for r in results if r.claimed is not None])
    naive = np.array([r.naive for r in results])
    error = headline.std(ddof=1) / math.sqrt(headline.size)
    print(
        f"{name:13} confirmed faster {faster}/{len(results)} = {faster / len(results):.2%}, 95 % upper bound "
        f"{clopper_pearson(faster, len(results))[1]:.2%}; headline {headline.mean():+.3%} +- {error:.3%} "
        f"({headline.size} nominated); search's own claim {claimed.mean():+.2%}; naive minimum {naive.mean():+.2%} "
        f"(more than 1 % in {np.mean(naive > 0.01):.0%})"
    )


if __name__ == "__main__":
    main()
