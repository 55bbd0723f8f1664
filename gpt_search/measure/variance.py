"""Where noise comes from: variance components of nested measurements, and what they allow to detect.

Model: value = mean + rebuild + process + sample, independent random effects with mean 0. Values are
log-ratios, so a standard deviation of 0.01 is a relative one of 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SIGNIFICANCE = 0.025
"""One side of the 95 % interval that a verdict rests on."""
POWER = 0.8
"""Chance to find a speed-up that is called detectable."""
MIN_REBUILDS, MAX_REBUILDS = 5, 1000
"""What a plan may ask for; with fewer than 5 builds a confirmation is preliminary."""


@dataclass(frozen=True)
class Component:
    """One variance with its interval. variance: the unbiased estimate, below 0 replaced by 0."""

    variance: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class Components:
    """Variance between rebuilds, between processes of one build, and between samples of one process.

    total: the variance of one sample of one process of one build, about the mean; estimated as a sum before
    parts below 0 are cut off, so it may be less than the sum of the three. mean: the grand mean.
    level: of the intervals.
    """

    rebuilds: Component
    processes: Component
    samples: Component
    total: Component
    mean: float
    level: float

    def of_mean(self, rebuilds: int, processes: int = 1, samples: float = 1.0) -> float:
        """The variance of a mean over that many rebuilds, processes of each, and samples of each of these."""
        within = (self.processes.variance + self.samples.variance / samples) / processes
        return (self.rebuilds.variance + within) / rebuilds

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Components:
        """The components that `to_json` described. Raises KeyError, TypeError or ValueError."""
        parts = {k: Component(*(float(data[k][f]) for f in ("variance", "low", "high"))) for k in _PARTS}
        return cls(**parts, mean=float(data["mean"]), level=float(data["level"]))


_PARTS = ("rebuilds", "processes", "samples", "total")


def variance_components(values: Sequence[Sequence[Sequence[float]]], level: float = 0.95) -> Components:
    """The components of nested values: values[rebuild][process][sample], as many of each as there are.

    Estimates equate unweighted mean squares with their expectations: unbiased whatever the counts, and
    with equal counts the analysis of variance. Intervals are the modified large-sample ones, for normal
    effects; with unequal counts they are approximate. Sources: Burdick and Graybill, "Confidence
    Intervals on Variance Components", Dekker 1992, ch. 3 (eqs. 3.2.2 and 3.3.1-2) and 5; Graybill and
    Wang, JASA 75 (1980) 869-873; Ting et al., J. Statist. Comput. Simul. 35 (1990) 135-143.

    Raises ValueError for fewer than two rebuilds, when no rebuild has two processes or no process two
    samples, and for values that are not finite.
    """
    cells = [[np.asarray(samples, np.float64) for samples in processes] for processes in values]
    flat = [x for processes in cells for x in processes]
    if any(x.ndim != 1 or not x.size or not np.isfinite(x).all() for x in flat) or not all(cells):
        raise ValueError("every rebuild needs a process, every process a sample, and all must be finite")
    freedoms = (
        len(cells) - 1,
        len(flat) - len(cells),
        sum(x.size for x in flat) - len(flat),
    )
    for freedom, what in zip(freedoms, ("rebuilds", "processes of a rebuild", "samples of a process"), strict=True):
        if freedom < 1:
            raise ValueError(f"at least two {what} are needed to tell how much they differ")
    by_process = [np.array([x.mean() for x in processes]) for processes in cells]
    by_rebuild = np.array([m.mean() for m in by_process])
    square_3 = sum(float(((x - x.mean()) ** 2).sum()) for x in flat) / freedoms[2]
    square_2 = sum(float(((m - m.mean()) ** 2).sum()) for m in by_process) / freedoms[1]
    square_1 = float(((by_rebuild - by_rebuild.mean()) ** 2).sum()) / freedoms[0]
    # Expectations: square_2 = processes + h samples; square_1 = rebuilds + c processes + d samples.
    inverse = [sum(1 / x.size for x in processes) for processes in cells]
    counts = [len(processes) for processes in cells]
    h = sum((1 - 1 / j) * k for j, k in zip(counts, inverse, strict=True)) / freedoms[1]
    c = sum(1 / j for j in counts) / len(counts)
    d = sum(k / j**2 for j, k in zip(counts, inverse, strict=True)) / len(counts)
    one, two, three = ((s, n) for s, n in zip((square_1, square_2, square_3), freedoms, strict=True))
    alpha = (1 - level) / 2
    # With equal counts c h = d, and the last term of the rebuilds vanishes.
    return Components(
        rebuilds=_combine([(1.0, one), (-c, two), (c * h - d, three)], alpha),
        processes=_combine([(1.0, two), (-h, three)], alpha),
        samples=_combine([(1.0, three)], alpha),
        total=_combine([(1.0, one), (1 - c, two), (1 - d - h * (1 - c), three)], alpha),
        mean=float(by_rebuild.mean()),
        level=level,
    )


def _combine(terms: Sequence[tuple[float, tuple[float, int]]], alpha: float) -> Component:
    """A weighted sum of mean squares with its interval, each side at `alpha`; terms: (weight, (square, freedom))."""
    from scipy.special import chdtri, fdtri  # scipy.stats would take most of a second to import

    estimate = sum(weight * square for weight, (square, _) in terms)
    below = above = 0.0
    for weight, (square, n) in terms:
        part = (weight * square) ** 2
        g, h = 1 - n / float(chdtri(n, alpha)), n / float(chdtri(n, 1 - alpha)) - 1
        below += part * (g if weight > 0 else h) ** 2
        above += part * (h if weight > 0 else g) ** 2
    if len(terms) > 1 and terms[0][0] > 0 > terms[1][0]:
        # The cross term of a difference, which makes the limits exact where one of the two is 0.
        (w_1, (s_1, n_1)), (w_2, (s_2, n_2)) = terms[:2]
        product = abs(w_1 * s_1 * w_2 * s_2)
        g_1, h_1 = 1 - n_1 / float(chdtri(n_1, alpha)), n_1 / float(chdtri(n_1, 1 - alpha)) - 1
        g_2, h_2 = 1 - n_2 / float(chdtri(n_2, alpha)), n_2 / float(chdtri(n_2, 1 - alpha)) - 1
        upper, lower = float(fdtri(n_1, n_2, 1 - alpha)), float(fdtri(n_1, n_2, alpha))
        below += product * ((upper - 1) ** 2 - (g_1 * upper) ** 2 - h_2**2) / upper
        above += product * ((1 - lower) ** 2 - (h_1 * lower) ** 2 - g_2**2) / lower
    low, high = estimate - math.sqrt(max(below, 0.0)), estimate + math.sqrt(max(above, 0.0))
    return Component(max(estimate, 0.0), max(low, 0.0), max(high, 0.0))


def detectable(components: Components, rebuilds: int, processes: int = 1, samples: float = 1.0) -> float:
    """The smallest speed-up (1.01 is 1 % faster) that is confirmed with probability `POWER`.

    The confirmation is a t interval over `rebuilds` means, whose lower side is a test at
    `SIGNIFICANCE`; its power follows Student's noncentral t. Infinite for one rebuild.
    """
    if rebuilds < 2:
        return math.inf
    from scipy.special import nctdtrinc, stdtrit

    shift = float(nctdtrinc(rebuilds - 1, 1 - POWER, float(stdtrit(rebuilds - 1, 1 - SIGNIFICANCE))))
    return math.exp(shift * math.sqrt(components.of_mean(rebuilds, processes, samples)))


def rebuilds_for(components: Components, speedup: float, processes: int = 1, samples: float = 1.0) -> int | None:
    """The fewest rebuilds, at least `MIN_REBUILDS`, that detect a speed-up; None where `MAX_REBUILDS` do not.

    Raises ValueError for a speed-up that is not above 1.
    """
    if not speedup > 1:
        raise ValueError(f"a speed-up of {speedup} is none; it must be above 1")
    low, high = MIN_REBUILDS - 1, MAX_REBUILDS
    if detectable(components, high, processes, samples) > speedup:
        return None
    while high - low > 1:  # more rebuilds never detect less
        middle = (low + high) // 2
        if detectable(components, middle, processes, samples) > speedup:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Costs:
    """Seconds that a rebuild takes (of both sides), a process beyond that (start, load, warm-up), and a sample."""

    rebuild_s: float
    process_s: float
    sample_s: float

    def of(self, rebuilds: int, processes: int, samples: int) -> float:
        """Seconds of that many."""
        return rebuilds * (self.rebuild_s + processes * (self.process_s + samples * self.sample_s))


@dataclass(frozen=True)
class Plan:
    """How to spend a budget. samples: of each process. seconds: what it takes. detectable: see that function."""

    rebuilds: int
    processes: int
    samples: int
    seconds: float
    detectable: float


def best_plan(
    components: Components, costs: Costs, seconds: float, max_processes: int = 1, max_samples: int = 40
) -> Plan | None:
    """The plan within the budget that detects the smallest speed-up; None when it does not pay `MIN_REBUILDS`.

    Of plans that detect the same (where the components are 0), the cheapest. Every number of processes
    and samples up to the limits is tried, each with as many rebuilds as the budget pays.
    """
    found: list[Plan] = []
    for processes in range(1, max_processes + 1):
        for samples in range(1, max_samples + 1):
            one = costs.of(1, processes, samples)
            rebuilds = min(MAX_REBUILDS, int(seconds / one)) if one > 0 else MAX_REBUILDS
            if rebuilds >= MIN_REBUILDS:
                smallest = detectable(components, rebuilds, processes, samples)
                found.append(Plan(rebuilds, processes, samples, rebuilds * one, smallest))
    return min(found, key=lambda p: (p.detectable, p.seconds), default=None)
