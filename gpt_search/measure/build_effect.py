"""How much builds of one route differ, from a few routes that were built several times."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIDE = 0.025


class BuildEffect(NamedTuple):
    """The variance of a route's log-ratio from build to build, beyond what its rounds explain.

    variance: the estimate, 0 where it is below. low, high: its 95 % interval. routes, builds: what it rests on.
    """

    variance: float
    low: float
    high: float
    routes: int
    builds: int

    @property
    def deviation(self) -> float:
        """The standard deviation: a relative one, 0.01 is 1 %."""
        return math.sqrt(self.variance)


def build_effect(values: NDArray[np.float64], errors: NDArray[np.float64]) -> BuildEffect | None:
    """The build effect from log-ratios and their standard errors, both float64 (routes, builds).

    Model: value = route + pass + build + rounds. Column p holds the builds of pass p, all timed against one build of
    the reference, whose own effect and whose process all routes of the pass share: it ranks no route above another,
    and is taken out as the column's mean. What is left, over (routes - 1) (builds - 1) degrees of freedom, is the
    variance of builds and that of rounds, which the errors tell. The interval is that of the sum (chi-square), less
    the latter. Source: Scheffe, "The Analysis of Variance", Wiley 1959, ch. 4.2 (two-way layout, one value a cell).

    None for fewer than two routes or builds. Raises ValueError for values that are not finite.
    """
    from scipy.special import chdtri

    if values.ndim != 2 or values.shape != errors.shape:
        raise ValueError("values and errors are two arrays of one shape (routes, builds)")
    if min(values.shape) < 2:
        return None
    if not (np.isfinite(values).all() and np.isfinite(errors).all()):
        raise ValueError("values and errors must be finite")
    rest = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    freedom = (values.shape[0] - 1) * (values.shape[1] - 1)
    squares, of_rounds = float((rest**2).sum()), float((errors**2).mean())
    total, low, high = (
        squares / by for by in (freedom, float(chdtri(freedom, _SIDE)), float(chdtri(freedom, 1 - _SIDE)))
    )
    return BuildEffect(
        max(0.0, total - of_rounds), max(0.0, low - of_rounds), max(0.0, high - of_rounds), *values.shape
    )
