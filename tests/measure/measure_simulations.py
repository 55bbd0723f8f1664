"""Seeded simulations behind docs/measurement.md; the tests run them in a short form.

`python tests/measure/measure_simulations.py` prints the tables of the docs (about a minute).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpt_search.measure.intervals import ratio_interval
from gpt_search.measure.paired import PairedEstimate, estimate_of
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sampling import is_steady
from gpt_search.measure.sequential import Decision, decide_on

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


def race(
    log_ratios: NDArray[np.float64], best: PairedEstimate | None, protocol: Protocol
) -> tuple[Decision, PairedEstimate]:
    """The rule applied round after round to (max_rounds,) log-ratios."""
    for n in range(protocol.min_rounds, protocol.max_rounds + 1):
        estimate = estimate_of(log_ratios[:n])
        decision = decide_on(estimate, best, protocol)
        if decision is not Decision.CONTINUE:
            return decision, estimate
    raise AssertionError("no decision at max_rounds")


def null_race(noise: str, sigma: float, studies: int, routes: int = 40, seed: int = 0) -> tuple[float, float]:
    """Studies in which all routes are equal: share of routes called clearly worse, mean rounds per route.

    The best is the smallest estimate so far: the hardest case, since it was selected for being lucky.
    """
    rng = np.random.default_rng(seed)
    protocol = Protocol()
    dropped = rounds = 0
    for _ in range(studies):
        best: PairedEstimate | None = None
        for x in sigma * NOISES[noise](rng, (routes, protocol.max_rounds)):
            decision, estimate = race(x, best, protocol)
            rounds += estimate.rounds
            if decision is Decision.CLEARLY_WORSE:
                dropped += 1
            elif best is None or estimate.log_ratio < best.log_ratio:
                best = estimate
    return dropped / (studies * (routes - 1)), rounds / (studies * routes)


def race_of_worse(gap: float, sigma: float, repeats: int, seed: int = 0) -> tuple[float, float]:
    """A route `gap` slower than a well-known best, normal noise: share dropped, mean rounds."""
    x = gap + sigma * NOISES["normal"](np.random.default_rng(seed), (repeats, Protocol().max_rounds))
    found = [race(row, PairedEstimate(0.0, sigma / 4, 15), Protocol()) for row in x]
    dropped = [d is Decision.CLEARLY_WORSE for d, _ in found]
    return float(np.mean(dropped)), float(np.mean([e.rounds for _, e in found]))


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


def main() -> None:
    """Prints the tables."""
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
    print("racing among 40 equal routes")
    for noise in NOISES:
        for sigma in (0.01, 0.03, 0.1):
            share, rounds = null_race(noise, sigma, 50)
            print(f"  {noise:7} noise {sigma:.0%}: {share:.2%} of routes dropped, {rounds:.1f} rounds a route")
    print("racing of a worse route")
    for gap in (0.05, 0.1, 0.3):
        for sigma in (0.01, 0.03):
            share, rounds = race_of_worse(gap, sigma, 1000)
            print(f"  {gap:.0%} worse, noise {sigma:.0%}: {share:.1%} dropped, {rounds:.1f} rounds a route")
    print("is_steady: share accepted")
    for trace in TRACES:
        for samples in (12, 60, 1000):
            shares = (f"{s:.1%} noise {share_steady(trace, samples, s, 500):.2f}" for s in (0.005, 0.02, 0.05))
            print(f"  {trace:32} {samples:4} samples: {', '.join(shares)}")


if __name__ == "__main__":
    main()
