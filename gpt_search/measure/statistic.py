"""What is timed: the statistic that sums up latency samples, and how several shape points become one number.

A statistic needs enough samples to be one. The 99 % quantile of eight samples is their maximum under
another name; so the samples of a tail quantile are pooled over rounds, until at least ten of them lie beyond it
on average (`Statistic.samples`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError, did_you_mean

TIMINGS = ("median", "mean", "p90", "p99", "throughput")
"""What may be timed."""

SAMPLES_BEYOND = 10
"""Samples beyond a tail quantile, on average, that an estimate of it rests on at least."""

_QUANTILES = {"p90": 0.90, "p99": 0.99}


def check_timing(timing: str) -> str:
    """The timing. Raises InputError for an unknown one."""
    if timing not in TIMINGS:
        raise InputError(f"--timing {timing!r} is not one of {', '.join(TIMINGS)}{did_you_mean(str(timing), TIMINGS)}")
    return timing


@dataclass(frozen=True)
class Statistic:
    """How samples become a latency.

    timing: one of `TIMINGS`. "throughput" is the mean: with n calls in flight each sample is a call's latency
    over n, and their mean is one over the throughput (Little's law). weights: of the workload's
    shape points, more than 0; they count relative to their sum.
    """

    timing: str = "median"
    weights: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Raises InputError for an unknown timing; ValueError for no weights, or wrong ones."""
        check_timing(self.timing)
        if not self.weights or not all(math.isfinite(w) and w > 0 for w in self.weights):
            raise ValueError(f"the weights of shape points are more than 0 and finite, not {self.weights}")

    @property
    def points(self) -> int:
        """Number of shape points."""
        return len(self.weights)

    @property
    def quantile(self) -> float | None:
        """The tail quantile, None for the other statistics."""
        return _QUANTILES.get(self.timing)

    @property
    def samples(self) -> int:
        """Samples of one side that the statistic of one point needs at least: 100 for p90, 1000 for p99, else 1."""
        q = self.quantile
        return 1 if q is None else round(SAMPLES_BEYOND / (1 - q))

    def of(self, samples_ms: Sequence[float] | NDArray[np.float64], side: str = "engine") -> float:
        """The statistic of samples, in ms. Raises ValueError for none, or any that is not positive and finite.

        Quantiles are median-unbiased whatever the distribution (Hyndman and Fan, "Sample quantiles in
        statistical packages", The American Statistician 50 (1996) 361-365, definition 8).
        """
        if not len(samples_ms):
            raise ValueError(f"a round has no samples of the {side}")
        if not (math.isfinite(sum(samples_ms)) and min(samples_ms) > 0):
            raise ValueError(f"latency samples of the {side} must be positive and finite")
        if self.timing == "median":  # in plain Python: a round has few samples, and numpy's overhead would be most
            return float(median(samples_ms))
        if self.quantile is None:
            return fmean(samples_ms)
        return float(np.quantile(np.asarray(samples_ms, np.float64), self.quantile, method="median_unbiased"))

    def over_points(self, log_values: Sequence[float]) -> float:
        """The weighted mean of one logarithm per point."""
        if len(log_values) == 1:
            return log_values[0]
        return math.fsum(w * x for w, x in zip(self.weights, log_values, strict=True)) / math.fsum(self.weights)


MEDIAN = Statistic()
"""What is timed unless something else is asked for: the median latency at one point."""
