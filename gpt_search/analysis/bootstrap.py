"""Bootstrap intervals of a mean and of a median, for many samples at once.

Sources: B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7 (1979) 1-26 (the percentile
interval, and the bootstrap distribution of a median in closed form); T. C. Hesterberg, "What teachers should know
about the bootstrap", The American Statistician 69 (2015) 371-386 (the expanded percentile interval).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 2000
Floats = NDArray[np.float64]


@lru_cache(maxsize=64)
def tail(n: int, confidence: float = 0.95) -> float:
    """The share of the bootstrap distribution to cut off at each end, for a sample of n >= 2.

    Percentile intervals are too short by a factor of about sqrt((n-1)/n), and have normal in place of t quantiles;
    cutting off less makes up for both (Hesterberg 2015, section 5.2).
    """
    quantile = stats.t.ppf((1 - confidence) / 2, n - 1)
    return float(stats.norm.cdf(math.sqrt(n / (n - 1)) * quantile))


@lru_cache(maxsize=8)
def weights(n: int, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """float64 (resamples, n): how often each of n values is in each resample. Each row sums to n."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, n)))
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def mean_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Floats, Floats]:
    """Expanded percentile interval of the mean, of each of g samples. values: finite, (g, n). Returns (g,), (g,).

    NaN for n < 2. All samples share one set of resamples, so that results do not depend on what else is in the table.
    """
    x = np.atleast_2d(np.asarray(values, np.float64))
    g, n = x.shape
    if n < 2 or g == 0:
        return np.full(g, np.nan), np.full(g, np.nan)
    cut = tail(n, confidence)
    resampled = weights(n, resamples, seed)
    low, high = np.empty(g), np.empty(g)
    for start in range(0, g, 256):  # 256 x 2000 means are 4 MB
        means = x[start : start + 256] @ resampled.T / n
        low[start : start + 256], high[start : start + 256] = np.quantile(means, [cut, 1 - cut], axis=1)
    return low, high


@lru_cache(maxsize=1024)
def median_ranks(n: int, confidence: float = 0.95) -> tuple[int, int]:
    """Ranks, from 0, of the two values of a sorted sample of n that bound its median.

    This is the percentile bootstrap with infinitely many resamples: the m-th smallest of a resample is at most the
    j-th smallest of the sample where at least m of n draws are, with probability P(Binomial(n, j/n) >= m). For an
    even n the lower end is that of the lower middle value, the upper end that of the upper one: a little wider than
    the interval of their mean, and free of simulation. What is cut off at each end is `tail`, as for a mean.
    """
    if n < 2:
        return 0, 0
    at_most = np.arange(1, n + 1) / n
    lower, upper = (n + 1) // 2, n // 2 + 1
    cut = tail(n, confidence)
    low = int(np.argmax(stats.binom.sf(lower - 1, n, at_most) >= cut))
    high = int(np.argmax(stats.binom.sf(upper - 1, n, at_most) >= 1 - cut))
    return low, high
