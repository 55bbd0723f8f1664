"""The paired estimate: the candidate's latency relative to the reference's, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.evaluation import Round


class PairedEstimate(NamedTuple):
    """log_ratio: median over rounds of log(candidate / reference), below 0 is faster.

    error: its standard error, a relative error; infinite for a single round. rounds: how many.
    """

    log_ratio: float
    error: float
    rounds: int


def paired_estimate(rounds: Sequence[Round]) -> PairedEstimate:
    """The estimate from paired rounds, each side of a round being summed up by its median.

    Drift that both sides of a round share cancels; a burst that hits one round moves a median of
    rounds little. Raises ValueError without rounds, or for samples that are not positive and finite.
    """
    return estimate_of([log_ratio_of(r) for r in rounds])


def log_ratio_of(round_: Round) -> float:
    """log(median candidate / median reference) of one round. Raises ValueError for unusable samples."""
    return math.log(_median(round_.candidate_ms, "candidate")) - math.log(_median(round_.reference_ms, "reference"))


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


@lru_cache(maxsize=1024)
def order_statistics(n: int) -> tuple[int, float]:
    """For n rounds: k, counted from 1 at either end, and what to divide x[n - k + 1] - x[k] by."""
    k = max(1, round((n + 1) / 2 - math.sqrt(n)))
    outside = sum(math.comb(n, i) for i in range(k)) / 2**n  # chance that the median lies below x[k]
    return k, 2 * NormalDist().inv_cdf(1 - outside) / _SMALL.get(n, 1.0)


def _median(samples_ms: Sequence[float], side: str) -> float:
    # In plain Python: a round has few samples, and numpy's overhead would be most of the time.
    if not len(samples_ms):
        raise ValueError(f"a round has no samples of the {side}")
    if not (math.isfinite(sum(samples_ms)) and min(samples_ms) > 0):
        raise ValueError(f"latency samples of the {side} must be positive and finite")
    return float(median(samples_ms))
