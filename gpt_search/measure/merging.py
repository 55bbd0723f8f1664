"""Whether two timed engines that were taken for one differ: a test that may be done again and again in one study.

A spot check times an engine whose fingerprint was seen before. Two means of log-ratios to the reference are compared,
and three things must not be taken for a difference:

- Racing stopped the earlier engine by what its rounds said, which a fixed-sample interval does not survive. So the
  earlier mean gets the half width of its confidence sequence (`measure.confidence`).
- The check takes a number of rounds that is fixed beforehand, so its mean gets Student's half width.
- Two builds of one engine, each in its process, differ by a standard deviation b, twice: without it every check would
  find a difference, given rounds enough. It is added to the check's variance, with Welch and Satterthwaite's
  degrees of freedom, b^2 being taken as known (B. L. Welch, "The generalization of 'Student's' problem when several
  different population variances are involved", Biometrika 34 (1947) 28-35).

The means differ significantly when they lie further apart than the sum of both half widths, each at half of the check's
level. The c-th check of a study may be wrong with probability `spending(c, ALPHA, USUAL_CHECKS)`, so that over all
checks of a study, however many there will be, two equal engines are called different with probability at most ALPHA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpt_search.measure.confidence import critical_t, spending

ALPHA = 0.05
"""Probability, at most, that a study calls any two equal engines different."""

USUAL_CHECKS = 10
"""About as many spot checks as a study usually does; more are allowed for too."""


class Difference(NamedTuple):
    """log_ratio: of the second engine to the first. least: what its size would have had to be to be significant."""

    log_ratio: float
    least: float

    @property
    def significant(self) -> bool:
        """True when the engines differ."""
        return abs(self.log_ratio) > self.least


def difference(raced: Sequence[float], fixed: Sequence[float], between: float, check: int) -> Difference:
    """The difference of two engines' log-ratios to the reference, and from where on it is significant.

    raced: one log-ratio a round, two or more, however many the racing rule asked for. fixed: the same of the second
    engine, in a number that was fixed beforehand. between: relative standard deviation between builds of one
    engine. check: the number of this check in its study, from 1. Raises ValueError for fewer than two rounds, and as
    `spending` does.
    """
    from scipy.special import stdtrit  # slow to import; only a check needs it

    tail = spending(check, ALPHA, USUAL_CHECKS) / 4  # two means, two sides
    x, y = np.asarray(raced, np.float64), np.asarray(fixed, np.float64)
    if min(x.size, y.size) < 2:
        raise ValueError("a difference needs two rounds or more of both engines")
    deviation = float(np.std(x, ddof=1))
    width = critical_t(x.size, tail) * deviation / math.sqrt(x.size) if deviation else 0.0
    own, builds = float(np.var(y, ddof=1)) / y.size, 2 * between**2
    if own + builds > 0:
        freedom = (y.size - 1) * (1 + builds / own) ** 2 if own > 0 else math.inf
        width += float(stdtrit(min(freedom, 1e9), 1 - tail)) * math.sqrt(own + builds)
    return Difference(float(y.mean() - x.mean()), width)
