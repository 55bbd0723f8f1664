"""When a warm-up has done its work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MIN_SAMPLES = 12
_BLOCKS = 3
_AGREE = 0.02
_TREND = 0.01


def is_steady(samples_ms: Sequence[float] | NDArray[np.float64]) -> bool:
    """True when the latest samples of a warm-up show neither a level change nor a trend.

    samples_ms: latencies in ms, in call order. The declared criterion: the later half of the
    samples (at least 12) is cut into three consecutive blocks.

    - Agreement: the largest block median exceeds the smallest by at most 2 %, or 3 standard errors
      of a difference of block medians where noise makes that more.
    - No trend: where the three medians fall (or rise) one after the other, the first and the last
      differ by at most 1 %, or 2 such standard errors.

    False with fewer than 12 samples. Raises ValueError for samples that are not positive and finite.
    """
    x = np.asarray(samples_ms, np.float64)
    if x.size and not (np.isfinite(x).all() and (x > 0).all()):
        raise ValueError("latency samples must be positive and finite")
    if x.size < MIN_SAMPLES:
        return False
    blocks = np.array_split(x[-max(MIN_SAMPLES, x.size // 2) :], _BLOCKS)
    medians = [float(np.median(b)) for b in blocks]
    # Scale from within the blocks, so that a drift does not excuse itself; 1.4826 MAD is sigma for normal noise.
    sigma = float(np.median([1.4826 * np.median(np.abs(b - m)) for b, m in zip(blocks, medians, strict=True)]))
    error = math.sqrt(math.pi / 2) * sigma * math.sqrt(2 / len(blocks[-1]))
    low = min(medians)
    if max(medians) - low > max(_AGREE * low, 3 * error):
        return False
    first, middle, last = medians
    falls_or_rises = first > middle > last or first < middle < last
    return not (falls_or_rises and abs(first - last) > max(_TREND * low, 2 * error))
