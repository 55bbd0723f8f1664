"""Confidence intervals of speed-ups over builds, and the verdict they allow."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_BUILDS = 5
"""Fewer builds than this are labelled preliminary."""


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval of a ratio; for a speed-up (reference / candidate) above 1 is faster.

    level: confidence, 0.95 for 95 %. n: builds it rests on. With one build, low is 0 and high infinity.
    """

    low: float
    estimate: float
    high: float
    level: float
    n: int

    @property
    def preliminary(self) -> bool:
        """True when it rests on fewer than `MIN_BUILDS` builds."""
        return self.n < MIN_BUILDS

    def to_json(self) -> dict[str, float | int | None]:
        """A JSON-like form; high is None where it is infinite."""
        high = self.high if math.isfinite(self.high) else None
        return {"low": self.low, "estimate": self.estimate, "high": high, "level": self.level, "n": self.n}

    def __str__(self) -> str:
        few = ", preliminary" if self.preliminary else ""
        return (
            f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}] ({100 * self.level:g} %, "
            f"{self.n} build{'s' if self.n != 1 else ''}{few})"
        )


class Verdict(enum.Enum):
    """What an interval of a speed-up allows to say."""

    FASTER = "faster than the default"
    SLOWER = "slower than the default"
    NOT_DISTINGUISHABLE = "not distinguishable from the default"

    @property
    def explanation(self) -> str:
        """One line for reports."""
        return self.value

    @property
    def keep_default(self) -> bool:
        """Whether the answer is to keep the default: whenever the route is not shown to be faster."""
        return self is not Verdict.FASTER


def ratio_interval(log_ratios: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> Interval:
    """The t interval of the mean log-ratio over builds, exponentiated.

    log_ratios: one per build, of that build's mean latencies: log(reference / candidate) where the
    result is to be a speed-up. `PairedEstimate.log_ratio` is log(candidate / reference): negate it.
    The estimate is the geometric mean of the ratios.

    Raises ValueError for no or non-finite log-ratios, or a level outside (0, 1).
    """
    x = np.asarray(log_ratios, np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError("an interval needs at least one log-ratio, all finite, in one dimension")
    if not 0 < level < 1:
        raise ValueError(f"the confidence level is {level}; it must lie between 0 and 1")
    mean = float(x.mean())
    if x.size == 1:
        return Interval(0.0, math.exp(mean), math.inf, level, 1)
    from scipy.special import stdtrit  # scipy.stats would take most of a second to import

    half = float(stdtrit(x.size - 1, (1 + level) / 2)) * float(x.std(ddof=1)) / math.sqrt(x.size)
    return Interval(math.exp(mean - half), math.exp(mean), math.exp(mean + half), level, x.size)


def simultaneous_intervals(
    groups: Sequence[Sequence[float] | NDArray[np.float64]], level: float = 0.95
) -> list[Interval]:
    """Intervals of several routes that all hold at once with probability `level`, at least.

    groups: the log-ratios of each route's builds, as `ratio_interval` takes them. Each is a t interval at
    1 - (1 - level) / k from its own builds alone (Bonferroni): valid with 2 builds or more, for variances that
    differ from route to route, and whatever the routes share. Dunnett's intervals are not: they pool one variance
    over all groups, and their correlation is that of one shared control group, while every build here has a
    reference build of its own. Sidak's level, which asks for independent routes, would be narrower by 0.9 % for
    three builds of each of three.

    Raises ValueError as `ratio_interval` does.
    """
    if not 0 < level < 1:
        raise ValueError(f"the confidence level is {level}; it must lie between 0 and 1")
    return [ratio_interval(x, 1 - (1 - level) / len(groups)) for x in groups]


def prediction_interval(log_ratios: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> Interval:
    """Where one more build's own ratio falls with probability `level`; arguments and errors as `ratio_interval`.

    mean +- t s sqrt(1 + 1/n). With one build it is without bounds.
    """
    mean = ratio_interval(log_ratios, level)
    if mean.n == 1:
        return mean
    half = math.log(mean.high / mean.estimate) * math.sqrt(mean.n + 1)
    return Interval(mean.estimate * math.exp(-half), mean.estimate, mean.estimate * math.exp(half), level, mean.n)


def speedup_interval(
    reference_ms: Sequence[float] | NDArray[np.float64],
    candidate_ms: Sequence[float] | NDArray[np.float64],
    level: float = 0.95,
) -> Interval:
    """The interval of reference / candidate from the mean latencies (ms) of builds that were made in pairs.

    reference_ms[i] and candidate_ms[i] belong to one pair of builds, timed in the same window.
    Raises ValueError for unequal lengths or latencies that are not positive and finite.
    """
    a, b = np.asarray(reference_ms, np.float64), np.asarray(candidate_ms, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} reference builds and {b.size} candidate builds do not make pairs")
    if not ((a > 0).all() and (b > 0).all()):
        raise ValueError("latencies must be positive and finite")
    return ratio_interval(np.log(a) - np.log(b), level)


def verdict(interval: Interval) -> Verdict:
    """What the interval of a speed-up says: each side is a one-sided test at (1 - level) / 2."""
    if interval.low > 1:
        return Verdict.FASTER
    if interval.high < 1:
        return Verdict.SLOWER
    return Verdict.NOT_DISTINGUISHABLE


class Share(NamedTuple):
    """How often something happened, with an exact two-sided 95 % interval. estimate: NaN where nothing was tried."""

    events: int
    tried: int
    low: float
    high: float

    @property
    def estimate(self) -> float:
        """events / tried."""
        return self.events / self.tried if self.tried else math.nan

    def to_json(self) -> dict[str, float | int | None]:
        """A JSON-like form; estimate is None where nothing was tried."""
        estimate = self.estimate if self.tried else None
        return {"events": self.events, "tried": self.tried, "estimate": estimate, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.events} of {self.tried} [{100 * self.low:.2g} %, {100 * self.high:.2g} %]"


def share(events: int, tried: int, level: float = 0.95) -> Share:
    """The exact interval of a share. Source: Clopper and Pearson, Biometrika 26 (1934) 404-413.

    Raises ValueError for more events than were tried.
    """
    from scipy.special import betaincinv

    if not 0 <= events <= tried:
        raise ValueError(f"{events} events of {tried}")
    tail = (1 - level) / 2
    low = float(betaincinv(events, tried - events + 1, tail)) if events else 0.0
    high = float(betaincinv(events + 1, tried - events, 1 - tail)) if events < tried else 1.0
    return Share(events, tried, low, high)
