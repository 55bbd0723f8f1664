"""Seeded simulations behind docs/measurement.md; the tests run them in a short form.

`python tests/measure/measure_simulations.py` prints the tables of the docs (about a minute).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.evaluation import Round
from gpt_search.measure.intervals import ratio_interval, share
from gpt_search.measure.merging import difference
from gpt_search.measure.paired import estimate_of, paired_estimate
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sampling import is_steady
from gpt_search.measure.sequential import Best, Decision, decide_on
from gpt_search.measure.statistic import Statistic
from gpt_search.measure.variance import variance_components

Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]

# Noise of one round or build, median and mean 0. "bursts": one in ten is ten times as wide.
NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape),
    "bursts": lambda rng, shape: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 10, 1),
}


def z_scores(noise: str, rounds: int, repeats: int, seed: int = 0) -> NDArray[np.float64]:
    """Estimate over its standard error, the truth being 0: (repeats,)."""
    x = NOISES[noise](np.random.default_rng(seed), (repeats, rounds))
    found = [estimate_of(row) for row in x]
    return np.array([e.log_ratio / e.error for e in found])


def coverage(builds: int, repeats: int, ratio: float, noise: str = "normal", samples: int = 30, seed: int = 0) -> float:
    """Share of 95 % intervals that hold the truth. ratio: variance between builds over that of one sample.

    Each build's mean is over `samples` samples with the noise given; builds differ normally.
    """
    rng = np.random.default_rng(seed)
    between = np.sqrt(ratio) * rng.standard_normal((repeats, builds))
    within = NOISES[noise](rng, (repeats, builds, samples)).mean(axis=2)
    rows = np.log(0.9) + 0.01 * (between + within)
    intervals = (ratio_interval(row) for row in rows)
    return float(np.mean([i.low <= 0.9 <= i.high for i in intervals]))


CALLS = 50
# Share of slow calls of the candidate and the reference, in a round; "clustered": all of them in a fifth of the rounds.
SLOW = (0.02, 0.03)
TAILS = ("even", "clustered")


def _samples(tail: str, slow: float, rng: np.random.Generator, rounds: int) -> NDArray[np.float64]:
    """Latencies in ms, (rounds, CALLS): most within 2 %, slow ones half as long again or more."""
    share = np.full(rounds, slow) if tail == "even" else np.where(rng.random(rounds) < 0.2, 5 * slow, 0.0)
    usual = np.exp(0.02 * rng.standard_normal((rounds, CALLS)))
    long = 1.5 * np.exp(0.1 * np.abs(rng.standard_normal((rounds, CALLS))))
    return np.where(rng.random((rounds, CALLS)) < share[:, None], long, usual)


def true_log_ratio(timing: str, tail: str) -> float:
    """The log-ratio of candidate and reference, from two million samples of each."""
    sides = [_samples(tail, slow, np.random.default_rng(7), 40_000).ravel() for slow in SLOW]
    values = [s.mean() if timing == "mean" else np.quantile(s, {"p90": 0.9, "p99": 0.99}[timing]) for s in sides]
    return float(np.log(values[0] / values[1]))


def timing_errors(timing: str, tail: str, sections: int, repeats: int, seed: int = 0) -> NDArray[np.float64]:
    """Estimates of a statistic less the truth, and their standard errors: (repeats, 2)."""
    rng = np.random.default_rng(seed)
    statistic, truth = Statistic(timing), true_log_ratio(timing, tail)
    n = sections * max(1, statistic.samples // CALLS)
    found = []
    for _ in range(repeats):
        mine, theirs = (_samples(tail, slow, rng, n).tolist() for slow in SLOW)
        rounds = [Round(tuple(a), tuple(b)) for a, b in zip(mine, theirs, strict=True)]
        estimate = paired_estimate(rounds, statistic)
        found.append((estimate.log_ratio - truth, estimate.error))
    return np.array(found)


ROUND_NOISE = 0.01
BUILD_NOISES = (0.0, 0.005)
"""Between two builds of one engine, each in its process: none, and half of a round's."""


def _raced(rng: np.random.Generator, level: float, noise: str) -> list[float]:
    """The rounds of an engine that is raced against a faster one, stopped as studies stop: by what they say."""
    protocol, x = Protocol(), list[float]()
    while decide_on(x, Best(-0.01), protocol, 5) is Decision.CONTINUE:
        x.append(level + ROUND_NOISE * float(_of_variance_one(noise, rng, 1)[0]))
    return x


def _of_variance_one(noise: str, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    return NOISES[noise](rng, (n,)) / {"normal": 1.0, "t3": 3**0.5}[noise]


def merge_checks(checks: int, noise: str, between: float, apart: float = 0.0, seed: int = 3) -> tuple[int, float]:
    """How many first spot checks of a study call two engines different, and the median of the least size to be seen.

    apart: their true difference; 0 for one engine. between: standard deviation between builds. Some engines are raced
    out at once, some at the brink, some never.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(checks):
        level = 0.02 * rng.standard_normal()
        first = _raced(rng, level + between * rng.standard_normal(), noise)
        second = level + apart + between * rng.standard_normal()
        fixed = second + ROUND_NOISE * _of_variance_one(noise, rng, Protocol().build_rounds)
        found.append(difference(first, fixed.tolist(), between, 1))
    return sum(f.significant for f in found), float(np.median([f.least for f in found]))


# Level of a warm-up over its length t in [0, 1), and what is_steady should say of it.
TRACES: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], bool]] = {
    "flat": (np.ones_like, True),
    "settled early (decay over 1/20)": (lambda t: 1 + 3 * np.exp(-20 * t), True),
    "still decaying (over 1/4)": (lambda t: 1 + np.exp(-4 * t), False),
    "falling by 10 %": (lambda t: 1.1 - 0.1 * t, False),
    "rising by 10 %": (lambda t: 1 + 0.1 * t, False),
    "step of 10 % at 3/4": (lambda t: np.where(t < 0.75, 1.1, 1.0), False),
}


def share_steady(trace: str, samples: int, sigma: float, repeats: int, seed: int = 0) -> float:
    """Share of noisy traces (log-normal, 3 % of the samples five times as long) that is_steady accepts."""
    rng = np.random.default_rng(seed)
    level = TRACES[trace][0](np.arange(samples) / samples)
    noise = np.exp(sigma * rng.standard_normal((repeats, samples)))
    noise *= np.where(rng.random((repeats, samples)) < 0.03, 5, 1)
    return float(np.mean([is_steady(5 * level * row) for row in noise]))


def variance_coverage(
    truth: tuple[float, float, float],
    repeats: int,
    *,
    shape: tuple[int, int, int] = (6, 3, 3),
    noise: str = "normal",
    unequal: bool = False,
    seed: int = 0,
) -> tuple[list[float], list[float]]:
    """Means of the estimated variances (rebuilds, processes, samples, total), and how often their intervals cover.

    truth: the variances. shape: rebuilds, processes of each, samples of each. noise: of the samples, which are
    medians of 5 rounds as `gpt-search noise` takes them. unequal: every other rebuild has a process less, every
    third process a sample less.
    """
    rng = np.random.default_rng(seed)
    scale = float(np.median(NOISES[noise](np.random.default_rng(1), (400_000, 5)), axis=1).std())
    all_truths = [*truth, sum(truth)]
    sums, covered = np.zeros(4), np.zeros(4)
    i, j, k = shape
    for _ in range(repeats):
        y = np.sqrt(truth[0]) * rng.standard_normal((i, 1, 1)) + np.sqrt(truth[1]) * rng.standard_normal((i, j, 1))
        y = y + np.sqrt(truth[2]) * np.median(NOISES[noise](rng, (i, j, k, 5)), axis=3) / scale
        rows = [
            [y[a, b, : k - (unequal and (a + b) % 3 == 0)].tolist() for b in range(j - (unequal and a % 2 == 0))]
            for a in range(i)
        ]
        found = variance_components(rows)
        for n, part in enumerate((found.rebuilds, found.processes, found.samples, found.total)):
            sums[n] += part.variance
            covered[n] += part.low <= all_truths[n] <= part.high
    return (sums / repeats).tolist(), (covered / repeats).tolist()


def main() -> None:
    """Prints the tables."""
    print("variance components, 6 rebuilds x 3 processes x 3 samples: mean estimate over truth; coverage of 95 %")
    for noise in NOISES:
        for truth in ((1.0, 1.0, 1.0), (0.1, 0.3, 1.0), (0.0, 0.0, 1.0)):
            means, shares = variance_coverage(truth, 4000, noise=noise)
            text = ", ".join(f"{m:.2f} ({s:.3f})" for m, s in zip(means, shares, strict=True))
            print(f"  {noise:7} rebuild/process/sample variance {truth}: rebuilds, processes, samples, total {text}")
    print("z-scores of the paired estimate (nominal: 95 % quantile 1.96, beyond 3: 0.27 %)")
    for noise in NOISES:
        for n in (3, 4, 5, 7, 10, 15):
            z = np.abs(z_scores(noise, n, 20_000))
            print(f"  {noise:7} {n:2} rounds: quantile {np.quantile(z, 0.95):.2f}, beyond 3: {np.mean(z > 3):.2%}")
    print("coverage of the 95 % interval")
    for noise in NOISES:
        for ratio in (0.0, 0.1, 1.0):
            shares = (f"{n} builds {coverage(n, 10_000, ratio, noise):.3f}" for n in (3, 5, 10))
            print(f"  {noise:7} build/sample variance {ratio}: {', '.join(shares)}")
    print("other statistics than the median: bias, spread, share of truths within 1.96 standard errors")
    for timing in ("mean", "p90", "p99"):
        for tail in TAILS:
            for sections in (5, 20):
                off, error = timing_errors(timing, tail, sections, 1000).T
                inside = np.mean(np.abs(off) <= 1.96 * error)
                print(f"  {timing:4} {tail:9} {sections:2} sections: {off.mean():+.2%}, {off.std():.2%}, {inside:.3f}")
    print("first spot checks of a study that call engines different, by their true difference; least that is seen")
    for noise in ("normal", "t3"):
        for between in BUILD_NOISES:
            wrong, least = merge_checks(5000, noise, between)
            seen = (f"{apart:.0%} apart {merge_checks(500, noise, between, apart)[0]}/500" for apart in (0.02, 0.05))
            where = f"{noise:7} builds differ by {between:.1%}"
            print(f"  {where}: equal {wrong}/5000 ({share(wrong, 5000)}), {', '.join(seen)}; least {least:.2%}")
    print("is_steady: share accepted")
    for trace in TRACES:
        for samples in (12, 60, 1000):
            shares = (f"{s:.1%} noise {share_steady(trace, samples, s, 500):.2f}" for s in (0.005, 0.02, 0.05))
            print(f"  {trace:32} {samples:4} samples: {', '.join(shares)}")


if __name__ == "__main__":
    main()
