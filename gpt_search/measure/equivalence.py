"""Non-inferiority: whether one engine is at most a declared margin slower than another, over pairs of builds.

That a difference is not significant does not say that it is small, so a change of a route is not
removed because its contribution "cannot be seen": it is removed when the route without it is *shown*
to be at most the margin slower.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt_search.measure.intervals import MIN_BUILDS, Interval, ratio_interval

ALPHA = 0.025
"""Level of the one-sided test."""
POWER = 0.9
"""Probability to show that an equally fast engine is not slower, where builds are planned for a margin."""
DETECTION_POWER = 0.8
"""Probability to see a difference that `detectable` calls detectable."""
MOST_BUILDS = 500
_NCT_HOLDS = 30.0
"""The noncentral t distribution of scipy 1.15 to 1.17 gives NaN for some shifts above 37."""


class Equivalence(enum.Enum):
    """What a test of non-inferiority says."""

    NOT_SLOWER = "at most the margin slower"
    SLOWER = "slower by more than the margin"
    UNDECIDED = "neither shown to be slower by more than the margin, nor by less"

    @property
    def explanation(self) -> str:
        """One line for reports."""
        return self.value


@dataclass(frozen=True)
class NonInferiority:
    """The result of a test: candidate / incumbent, above 1 is slower.

    margin: largest log-ratio that is given away. alpha: level of each one-sided test; the interval's level is
    1 - 2 alpha.
    """

    interval: Interval
    margin: float
    alpha: float

    @property
    def result(self) -> Equivalence:
        """NOT_SLOWER when the whole interval lies below the margin, SLOWER when it lies above it."""
        if self.interval.high < math.exp(self.margin):
            return Equivalence.NOT_SLOWER
        if self.interval.low > math.exp(self.margin):
            return Equivalence.SLOWER
        return Equivalence.UNDECIDED


def non_inferiority(
    log_ratios: Sequence[float] | NDArray[np.float64], margin: float, alpha: float = ALPHA
) -> NonInferiority:
    """The one-sided t test of "the candidate is slower by the margin or more", over pairs of builds.

    log_ratios: log(candidate / incumbent), one per pair of builds, timed in the same window. An
    incumbent that is truly faster by the margin or more is called NOT_SLOWER with probability at most
    `alpha` (normal builds). With one pair nothing is decided.

    Raises ValueError for no or non-finite log-ratios, a margin that is not positive and finite, or a
    level outside (0, 0.5).
    """
    _check(margin=margin)
    if not 0 < alpha < 0.5:
        raise ValueError(f"the level of a one-sided test is {alpha}; it must lie between 0 and 0.5")
    return NonInferiority(ratio_interval(log_ratios, 1 - 2 * alpha), margin, alpha)


def power(margin: float, spread: float, builds: int, alpha: float = ALPHA) -> float:
    """Probability that the test calls an equally fast candidate NOT_SLOWER.

    spread: standard deviation of the log-ratio of one pair of builds. Exact for normal log-ratios: the
    noncentral t distribution. Raises ValueError for a margin or spread that is not positive and finite.
    """
    _check(margin=margin, spread=spread)
    if builds < 2:
        return 0.0
    from scipy.special import nctdtr, stdtrit

    limit = float(stdtrit(builds - 1, 1 - alpha))
    shift = min(margin * math.sqrt(builds) / spread, 1e3)
    return 1.0 - (
        _far_below(builds - 1, shift, limit) if shift > _NCT_HOLDS else float(nctdtr(builds - 1, shift, limit))
    )


def _far_below(freedom: int, shift: float, limit: float) -> float:
    """P(T < limit) for the noncentral t: the chance of Z + shift < limit s, over the distribution of s.

    s is the root of chi-squared over its degrees of freedom. Only where it is beyond shift / limit can T be below.
    """
    from scipy.integrate import quad
    from scipy.special import gammaincc, ndtr
    from scipy.stats import chi

    root = math.sqrt(freedom)
    start, end = max(0.0, shift - 10) / limit, (shift + 10) / limit
    inside, _ = quad(lambda s: float(ndtr(limit * s - shift)) * float(chi.pdf(s * root, freedom)) * root, start, end)
    return float(inside) + float(gammaincc(freedom / 2, freedom * end**2 / 2))


def builds_needed(margin: float, spread: float, wanted: float = POWER, alpha: float = ALPHA) -> int | None:
    """Fewest pairs of builds, at least `MIN_BUILDS`, with which `power` is `wanted`; None beyond `MOST_BUILDS`."""
    _check(margin=margin, spread=spread)
    if not 0 < wanted < 1:
        raise ValueError(f"the power is {wanted}; it must lie between 0 and 1")
    low, high = MIN_BUILDS - 1, MOST_BUILDS
    if power(margin, spread, high, alpha) < wanted:
        return None
    while high - low > 1:  # power grows with the number of builds
        middle = (low + high) // 2
        if power(margin, spread, middle, alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def detectable(spread: float, builds: int, wanted: float = DETECTION_POWER, alpha: float = ALPHA) -> float:
    """The smallest difference (log-ratio) that `builds` pairs show with probability `wanted`: a noise floor.

    0 for no spread, infinity for one pair. Raises ValueError for a spread that is negative or not finite.
    """
    if not (math.isfinite(spread) and spread >= 0):
        raise ValueError(f"the spread is {spread}; it must be 0 or more, and finite")
    if builds < 2:
        return math.inf
    if spread == 0:
        return 0.0
    from scipy.special import nctdtrinc, stdtrit

    limit = float(stdtrit(builds - 1, 1 - alpha))
    return float(nctdtrinc(builds - 1, 1 - wanted, limit)) * spread / math.sqrt(builds)


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the {name} is {value}; it must be positive and finite")
