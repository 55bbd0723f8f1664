"""The paired estimate: the candidate's latency relative to the reference's, and how sure it is.

Rounds are cut into **sections**, consecutive rounds that give one log-ratio: a round at each shape point, and for a
tail quantile as many of those as it takes until both sides have the samples that the quantile needs. A section is one
draw of everything, so sections are what intervals and races count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.evaluation import Round
from gpt_search.measure.statistic import MEDIAN, Statistic


class PairedEstimate(NamedTuple):
    """log_ratio: log(candidate / reference), below 0 is faster.

    error: its standard error, a relative error; infinite for a single section. rounds: how many sections,
    which are rounds unless there are several points or a tail quantile.
    """

    log_ratio: float
    error: float
    rounds: int


def paired_estimate(rounds: Sequence[Round], statistic: Statistic = MEDIAN) -> PairedEstimate:
    """The estimate from paired rounds. Drift that both sides of a round share cancels.

    Median: each side of a round is summed up by its median, a point by the median over its rounds, so a burst that
    hits one round moves little; the error is `estimate_of`'s. Else: the statistic of all samples of a side, pooled
    over rounds, since rare slow calls are what these statistics are asked for; the error is `section_error`.
    Several points: the weighted mean of their log-ratios.

    Raises ValueError without a whole section, or for samples that are not positive and finite.
    """
    sections = section_log_ratios(rounds, statistic)
    if not sections:
        raise ValueError(
            "an estimate needs at least one round"
            if statistic.samples == 1
            else f"{statistic.timing} needs {statistic.samples} samples of each side"
        )
    if statistic == MEDIAN:
        return estimate_of(sections)
    log_ratio = statistic.over_points(point_log_ratios(rounds, statistic))
    error = estimate_of(sections).error if statistic.timing == "median" else section_error(sections, log_ratio)
    return PairedEstimate(log_ratio, error, len(sections))


def point_log_ratios(rounds: Iterable[Round], statistic: Statistic) -> tuple[float, ...]:
    """The log-ratio at each point, as `paired_estimate` takes it. Raises ValueError where a point has no rounds."""
    found = []
    for of_point in _by_point(rounds, statistic):
        if statistic.timing == "median":
            found.append(float(np.median([log_ratio_of(r) for r in of_point])))
        else:
            found.append(_log_ratio(of_point, statistic))
    return tuple(found)


def latency_of(rounds: Iterable[Round], side: str, statistic: Statistic = MEDIAN) -> float:
    """One side's latency in ms: of a point, the median over rounds of medians, or the statistic of all samples.

    Of several points, their weighted geometric mean. side: "candidate" or "reference".
    """
    logs = []
    for of_point in _by_point(rounds, statistic):
        sides = [_samples(r, side) for r in of_point]
        if statistic.timing == "median":
            value = float(median(statistic.of(s, side) for s in sides))
        else:
            value = statistic.of([x for s in sides for x in s], side)
        if statistic.points == 1:
            return value
        logs.append(math.log(value))
    return math.exp(statistic.over_points(logs))


def log_ratio_of(round_: Round, statistic: Statistic = MEDIAN) -> float:
    """log(candidate / reference) of one round. Raises ValueError for unusable samples."""
    return _log_ratio([round_], statistic)


class Sections:
    """The sections of rounds that come one by one. log_ratios: of the whole ones so far."""

    def __init__(self, statistic: Statistic, earlier: Sequence[float] = ()) -> None:
        """earlier: log-ratios of sections before the first round."""
        self.log_ratios: list[float] = list(earlier)
        self._statistic = statistic
        self._open: list[Round] = []
        self._counts = [[0, 0] for _ in statistic.weights]

    def add(self, round_: Round) -> bool:
        """Takes a round in; True when a section is whole with it. Raises ValueError for unusable samples."""
        self._open.append(round_)
        counts = self._counts[round_.point]
        counts[0] += len(round_.candidate_ms)
        counts[1] += len(round_.reference_ms)
        needed = self._statistic.samples
        # After a round at every point only, so that all of them have as many.
        if len(self._open) % self._statistic.points or min(map(min, self._counts)) < needed:
            return False
        points = _by_point(self._open, self._statistic)
        self.log_ratios.append(self._statistic.over_points([_log_ratio(p, self._statistic) for p in points]))
        self._open = []
        self._counts = [[0, 0] for _ in self._statistic.weights]
        return True


def section_log_ratios(rounds: Iterable[Round], statistic: Statistic = MEDIAN) -> list[float]:
    """The log-ratio of each whole section, in order. Raises ValueError for unusable samples."""
    sections = Sections(statistic)
    for round_ in rounds:
        sections.add(round_)
    return sections.log_ratios


def estimate_of_sections(log_ratios: Sequence[float] | NDArray[np.float64], statistic: Statistic) -> PairedEstimate:
    """What sections say where their samples are not at hand: `estimate_of`, or their mean and `section_error`.

    Raises ValueError for no or non-finite log-ratios.
    """
    if statistic.timing == "median":
        return estimate_of(log_ratios)
    values = [float(x) for x in log_ratios]
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("an estimate needs at least one section, and finite log-ratios")
    return PairedEstimate(math.fsum(values) / len(values), section_error(values), len(values))


def error_rule(statistic: Statistic) -> Callable[[Sequence[float]], float]:
    """What gives the standard error of an estimate from the log-ratios of its sections."""
    return (lambda x: estimate_of(x).error) if statistic.timing == "median" else section_error


def section_error(log_ratios: Sequence[float], estimate: float | None = None) -> float:
    """The standard error of an estimate from pooled samples, by sectioning: how sections spread around it.

    The estimate from all samples is the mean of those of its g sections to first order, so its variance is a g-th of
    theirs. Widened by the quotient of Student's (g - 1 degrees of freedom) and the normal quantile, so that
    95 % of normal errors lie within 1.96 of it. estimate: by default the sections' mean. Infinite for one section.
    Source: Asmussen and Glynn, "Stochastic Simulation" (2007), III.5a; for quantiles Nakayama, "Confidence intervals
    for quantiles using sectioning when applying variance-reduction techniques", ACM TOMACS 24 (2014) 19.
    """
    g = len(log_ratios)
    if g < 2:
        return math.inf
    centre = math.fsum(log_ratios) / g if estimate is None else estimate
    spread = math.sqrt(math.fsum((x - centre) ** 2 for x in log_ratios) / (g - 1))
    return _widened(g) * spread / math.sqrt(g)


@lru_cache(maxsize=1024)
def _widened(g: int) -> float:
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(g - 1, 0.975)) / NormalDist().inv_cdf(0.975)


def _by_point(rounds: Iterable[Round], statistic: Statistic) -> list[list[Round]]:
    found: list[list[Round]] = [[] for _ in statistic.weights]
    for round_ in rounds:
        found[round_.point].append(round_)
    return found


def _samples(round_: Round, side: str) -> tuple[float, ...]:
    return round_.candidate_ms if side == "candidate" else round_.reference_ms


def _log_ratio(rounds: Sequence[Round], statistic: Statistic) -> float:
    return math.log(_value(rounds, "candidate", statistic)) - math.log(_value(rounds, "reference", statistic))


def _value(rounds: Sequence[Round], side: str, statistic: Statistic) -> float:
    if len(rounds) == 1:
        return statistic.of(_samples(rounds[0], side), side)
    return statistic.of([x for r in rounds for x in _samples(r, side)], side)


def estimate_of(log_ratios: Sequence[float] | NDArray[np.float64]) -> PairedEstimate:
    """The median of per-round log-ratios and its standard error.

    The standard error is the width of a distribution-free confidence interval of the median (two
    order statistics) over twice its normal quantile, so it needs no assumption on the tails; with
    five rounds or fewer it is widened so that 95 % of normal errors lie within 1.96 of it.
    Source: Price and Bonett, "Estimating the variance of the sample median", J. Statist. Comput.
    Simul. 68 (2001) 295-305. docs/measurement.md gives the measured z-scores.

    Raises ValueError for no or non-finite log-ratios.
    """
    x = np.sort(np.asarray(log_ratios, np.float64))
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError("an estimate needs at least one round, and finite log-ratios")
    if x.size == 1:
        return PairedEstimate(float(x[0]), math.inf, 1)
    k, divisor = order_statistics(x.size)
    return PairedEstimate(float(np.median(x)), float(x[x.size - k] - x[k - 1]) / divisor, x.size)


# 95 % quantile of |z| over 1.96, for normal rounds: benchmarks of docs/measurement.md. n = 2 is exact (t with 1 d.f.).
_SMALL = {2: 4.37, 3: 1.57, 4: 1.15, 5: 1.07}
_EXACT = 1000
"""Rounds up to which the chances of order statistics are summed exactly; beyond, scipy's agree to 1e-12."""


@lru_cache(maxsize=1024)
def order_statistics(n: int) -> tuple[int, float]:
    """For n rounds: k, counted from 1 at either end, and what to divide x[n - k + 1] - x[k] by."""
    k = max(1, round((n + 1) / 2 - math.sqrt(n)))
    # The chance that the median lies below x[k]. Exact numbers of n bits take minutes for the rounds of an imported
    # file, of which every sample is one.
    if n <= _EXACT:
        outside = sum(math.comb(n, i) for i in range(k)) / 2**n
    else:
        from scipy.special import bdtr  # slow to import

        outside = float(bdtr(k - 1, n, 0.5))
    return k, 2 * NormalDist().inv_cdf(1 - outside) / _SMALL.get(n, 1.0)
