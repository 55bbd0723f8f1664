"""Error rates and power of the statistics that verdicts rest on, by seeded simulation.

1. Family-wise errors of the comparisons with the control (Holm over strategies x tasks): no strategy differs; or one
   does, and the other is counted. Studies end at one of a few routes, as on a table, or at any log-ratio; with and
   without missing studies.
2. Errors of the Friedman test (Iman and Davenport) and of Nemenyi's critical difference.
3. Coverage of the 95 % bootstrap interval of a mean difference.
4. Power on one task of the exact signed-rank test, of a permutation test of the mean, and of scipy's signed-rank test
   without zeros (normal approximation).
Usage: python benchmarks/error_rates.py [REPEATS]   (some four minutes for 2,000)
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from gpt_search.analysis.bootstrap import mean_interval
from gpt_search.analysis.comparisons import paired_comparisons, signed_rank
from gpt_search.analysis.ranks import critical_difference, friedman_statistics
from gpt_search.measure.intervals import share

Floats = NDArray[np.float64]
ALPHA = 0.05


def at_routes(rng: np.random.Generator, shape: tuple[int, ...], shift: float = 0.0) -> Floats:
    """Log-ratios of 13 routes, skewed: many studies end at the same one."""
    return -np.clip(rng.geometric(0.25, shape) + shift, 0, 12) * 0.05


def anywhere(rng: np.random.Generator, shape: tuple[int, ...], shift: float = 0.0) -> Floats:
    """Continuous, with the long tail on the slow side."""
    return -0.4 + 0.1 * rng.exponential(size=shape) - 0.05 * shift


def with_failures(rng: np.random.Generator, shape: tuple[int, ...], shift: float = 0.0) -> Floats:
    """As `at_routes`, and one study in twenty finds nothing."""
    return np.where(rng.random(shape) < 0.05, 0.0, at_routes(rng, shape, shift) - 0.5)


Draw = Callable[..., Floats]
KINDS: dict[str, Draw] = {"routes of a table": at_routes, "continuous": anywhere, "with failures": with_failures}


def experiments(draw: Draw, shifts: dict[str, float], repeats: int, tasks: int, seeds: int, seed: int) -> pd.DataFrame:
    """Independent experiments in one table: each is a budget, and so a family of its own."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, shift in shifts.items():
        for task in range(tasks):
            index = pd.MultiIndex.from_product([range(repeats), range(seeds)], names=["budget", "seed"])
            one = pd.DataFrame({"recommended": draw(rng, (repeats * seeds,), shift)}, index).reset_index()
            parts.append(one.assign(task=f"task{task}", strategy=name, floor=0.01))
    return pd.concat(parts, ignore_index=True)


def errors(found: pd.DataFrame, repeats: int) -> str:
    """Experiments with any claim."""
    return str(share(int(found["outcome"].isin(["better", "worse"]).groupby(found["budget"]).any().sum()), repeats))


def family_wise(repeats: int) -> None:
    print(f"Family-wise errors at {ALPHA}, 3 tasks x 2 strategies and the control, 12 seeds")
    for number, (kind, draw) in enumerate(KINDS.items()):
        null = experiments(draw, {"a": 0, "b": 0, "control": 0}, repeats, 3, 12, number)
        found = paired_comparisons(null, "control", ALPHA, resamples=0)
        print(f"  {kind}, no difference: {errors(found, repeats)}")
        lost = null[np.random.default_rng(9).random(len(null)) > 0.05].reset_index(drop=True)
        print(f"  {kind}, 5 % missing: {errors(paired_comparisons(lost, 'control', ALPHA, resamples=0), repeats)}")
        mixed = experiments(draw, {"a": 6, "b": 0, "control": 0}, repeats, 3, 12, 10 + number)
        found = paired_comparisons(mixed, "control", ALPHA, resamples=0)
        null_only, real = found[found["strategy"] == "b"], found[found["strategy"] == "a"]
        right, wrong = (real["outcome"] == "better").mean(), (real["outcome"] == "worse").sum()
        print(f"  {kind}, one differs: {errors(null_only, repeats)}; found {right:.2f}, with the wrong sign {wrong}")


def over_tasks(repeats: int) -> None:
    print("Friedman (Iman and Davenport's form; chi2) and Nemenyi, no difference")
    rng = np.random.default_rng(1)
    for k, n in ((3, 10), (5, 10), (12, 10), (12, 28)):
        limit, hits = critical_difference(k, n, ALPHA), np.zeros(3, int)
        for _ in range(repeats):
            ranks = rng.random((n, k)).argsort(axis=1).argsort(axis=1) + 1.0
            _, p_chi2, _, p = friedman_statistics(ranks)
            hits += [p <= ALPHA, p_chi2 <= ALPHA, np.ptp(ranks.mean(axis=0)) > limit]
        print(f"  {k} strategies, {n} tasks: {'; '.join(str(share(int(h), repeats)) for h in hits)}")


def coverage(repeats: int) -> None:
    print("Coverage of the 95 % bootstrap interval of the mean difference: expanded; plain percentile")
    rng = np.random.default_rng(2)
    for kind, draw in KINDS.items():
        for n in (5, 10, 30):
            x = draw(rng, (repeats, n), 1.0) - draw(rng, (repeats, n), 0.0)
            truth = float(np.mean(draw(rng, (2_000_000,), 1.0)) - np.mean(draw(rng, (2_000_000,), 0.0)))
            low, high = mean_interval(x)
            plain = np.array([np.quantile(row[rng.integers(n, size=(500, n))].mean(1), [0.025, 0.975]) for row in x])
            covered = [((a <= truth) & (truth <= b)).mean() for a, b in ((low, high), plain.T)]
            print(f"  {kind}, {n} seeds: {covered[0]:.3f}; {covered[1]:.3f}")


def power(repeats: int) -> None:
    print("Power on one task at 0.05, 15 seeds: signed rank; permutation of the mean; scipy's without zeros")
    rng = np.random.default_rng(3)
    signs = rng.choice([-1.0, 1.0], (2000, 15))
    for kind, draw in KINDS.items():
        for shift in (0.0, 2.0):
            hits = np.zeros(3, int)
            for _ in range(repeats):
                d = draw(rng, (15,), shift) - draw(rng, (15,), 0.0)
                sums = np.abs(signs @ d)
                permuted = (1 + (sums >= abs(d.sum()) - 1e-9).sum()) / (1 + len(sums))
                d = np.round(d, 9)
                asymptotic = stats.wilcoxon(d, method="asymptotic").pvalue if d.any() else 1.0
                hits += [signed_rank(d).p <= ALPHA, permuted <= ALPHA, asymptotic <= ALPHA]
            what = "no difference" if shift == 0 else "a difference"
            print(f"  {kind}, {what}: {'; '.join(f'{h / repeats:.3f}' for h in hits)}")


def main(repeats: int = 2000) -> None:
    family_wise(repeats)
    over_tasks(repeats)
    coverage(repeats)
    power(repeats)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
