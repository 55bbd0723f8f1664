"""Confidence sequences: bounds on a route's log-ratio that hold after every round, for all routes of a study at once.

A fixed-sample interval may be looked at once. A race looks after every round and stops when it likes what it
sees, so it needs bounds that hold at all times together: P(some n: mu < lower_n) <= delta.

The bounds here are those of the Gaussian-mixture t-test (H. Wang and A. Ramdas, "Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance", Sequential Analysis 44 (2025), arXiv:2310.03722,
section 4; after T. L. Lai, "On confidence sequences", Ann. Statist. 4 (1976) 265-280), in the one-sided form.

Model: the per-round log-ratios x_1, x_2, ... of a route are independent normal with mean mu (the route's true
log-ratio) and a variance that is unknown and may differ from route to route. For a point mu0 let t_n be Student's
statistic sqrt(n) (mean - mu0) / s. The likelihood of the scale-invariant data (x_1 - mu0, ..., x_n - mu0) / |x_1 - mu0|
depends on theta = (mu - mu0) / sigma alone, so for each theta its ratio to theta = 0 is a martingale from 1 when
mu = mu0, whatever sigma; and it is a function of t_n, increasing for theta > 0. So is its mixture over theta from
the half-normal with variance g,

    M_n(mu0) = 2 P_n (1 + n g)^(-1/2) [(1 + t^2 / (n-1)) / (1 + t^2 / ((n-1) (1 + n g)))]^(n/2),

whose second and third factors are the mixture over the whole normal (Gönen et al., The American Statistician 59
(2005) 252-257, eq. 3), and P_n is the posterior probability of theta > 0, under the right Haar prior on sigma: a
Student t with n degrees of freedom. By Ville's inequality P(some n: M_n(mu) >= 1 / delta) <= delta. As M_n(mu0)
falls when mu0 rises, the mu0 with M_n(mu0) < 1 / delta are a half-line, and its end is the lower bound

    lower_n = mean - critical_t(n, delta) s / sqrt(n),

with critical_t the solution t of M_n = 1 / delta. The upper bound is its mirror image.

Mean and standard deviation are wasteful where bursts take over whole rounds. So a fifth of the error goes to a second
bound, which needs no more than that mu is the median of a round and takes the better of the two: the sign test,
made anytime-valid in the same way. Of n rounds let k lie above mu0. If mu0 is the median, or above it, each does so
with probability at most 1/2, whatever happened before, hence the mixture over p uniform on (1/2, 1) of the likelihood
ratios of p to 1/2,

    S_n(mu0) = 2^(n+1) * integral from 1/2 to 1 of p^k (1-p)^(n-k) dp,

is a supermartingale from 1 (H. Robbins, "Statistical methods related to the law of the iterated logarithm", Ann. Math.
Statist. 41 (1970) 1397-1409, section 4). With critical_count the smallest k at which S_n >= 1 / delta, all mu0 below
the k-th largest round are excluded, so that round is the bound. It says something from 20 rounds on.
For a symmetric distribution mean and median are one; the log-ratio of two equally treated sides is symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIOR_VARIANCE = 30.0
"""g: variance of the mixture over theta. For the first 100 routes, the lower bounds after 6 to 200 rounds are at most
14 % wider than with the g that is best for that number of rounds."""

LOWER_SHARE = 0.8
"""Share of a route's error that its lower bound gets: that one decides early, the upper one late."""

SIGN_SHARE = 0.2
"""Share of each bound's error that goes to the sign test; what it takes from the t-test widens that by 6 % after 5
rounds, and by less later."""

USUAL_ROUTES = 100
"""K of the spending series: about as many routes as a study usually times."""


class Bounds(NamedTuple):
    """Lower and upper confidence bound of a log-ratio (candidate / reference)."""

    lower: float
    upper: float


def spending(index: int, alpha: float, usual: int = USUAL_ROUTES) -> float:
    """The error that the route with this index, counted from 1, may spend: they sum to less than alpha.

    alpha K / ((index + K - 1) (index + K)) with K = usual. That is the difference of alpha K / (index + K - 1)
    and alpha K / (index + K), so the sum over the first m routes is alpha m / (m + K). It needs no horizon: a
    study may always be continued. Unlike alpha 6 / (pi index)^2 it does not give most of alpha to the first few
    routes: the 100th gets 41 times as much, the 1000th 136 times.
    Raises ValueError for an index below 1 or an alpha outside (0, 1).
    """
    if index < 1:
        raise ValueError(f"the index of a route is {index}; it counts from 1")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; it must lie between 0 and 1")
    return alpha * usual / ((index + usual - 1) * (index + usual))


def bounds(
    log_ratios: Sequence[float] | NDArray[np.float64], index: int, alpha: float, least_spread: float = 0.0
) -> Bounds:
    """Bounds on the expected per-round log-ratio of the route with this index (`spending`).

    log_ratios: one per round, none left out. Infinite while they are too few to exclude anything. least_spread: a
    standard deviation of the rounds below this counts as this, which can only widen the bounds.
    With probability at least 1 - alpha, the bounds of all routes hold after all of their rounds.
    Raises ValueError for no or non-finite log-ratios, and as `spending` does.
    """
    x = np.asarray(log_ratios, np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError("bounds need at least one round, and finite log-ratios")
    below, above = margins(x.size, index, alpha)
    lower, upper = -math.inf, math.inf
    if math.isfinite(below) or math.isfinite(above):
        mean, s = float(x.mean()), max(spread_of(x), least_spread)
        lower = -math.inf if math.isinf(below) else mean - below * s
        upper = math.inf if math.isinf(above) else mean + above * s
    for_lower, for_upper = counts(x.size, index, alpha)
    if min(for_lower, for_upper) <= x.size:
        ordered = np.sort(x)
        if for_lower <= x.size:
            lower = max(lower, float(ordered[x.size - for_lower]))
        if for_upper <= x.size:
            upper = min(upper, float(ordered[for_upper - 1]))
    return Bounds(lower, upper)


def spread_of(log_ratios: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard deviation of a round's log-ratio, from two rounds or more."""
    return float(np.std(np.asarray(log_ratios, np.float64), ddof=1))


def margins(n: int, index: int, alpha: float) -> tuple[float, float]:
    """How far the t-test's lower and upper bound lie off the mean after n rounds, in sample standard deviations."""
    root = math.sqrt(n)
    lower, upper = _shares(index, alpha)
    return critical_t(n, (1 - SIGN_SHARE) * lower) / root, critical_t(n, (1 - SIGN_SHARE) * upper) / root


def counts(n: int, index: int, alpha: float) -> tuple[int, int]:
    """Which round is the sign test's bound: from the largest for the lower one, from the smallest for the upper.

    Counted from 1; above n while no round is.
    """
    lower, upper = _shares(index, alpha)
    return critical_count(n, SIGN_SHARE * lower), critical_count(n, SIGN_SHARE * upper)


def _shares(index: int, alpha: float) -> tuple[float, float]:
    delta = spending(index, alpha)
    return LOWER_SHARE * delta, (1 - LOWER_SHARE) * delta


@lru_cache(maxsize=65536)
def critical_count(n: int, delta: float) -> int:
    """The fewest of n rounds above mu0 at which the sign test's mixture reaches 1 / delta; n + 1 where none do."""
    k = np.arange(n + 1)
    reached = np.flatnonzero(log_sign_mixture(n, k) >= -math.log(delta))
    return int(reached[0]) if reached.size else n + 1


def log_sign_mixture(n: int, k: NDArray[np.int_]) -> NDArray[np.float64]:
    """log S_n, the module's formula, for k of n rounds above mu0."""
    from scipy.special import betaincc, betaln

    tail: NDArray[np.float64] = betaincc(k + 1, n - k + 1, 0.5)
    mixture: NDArray[np.float64] = (n + 1) * math.log(2) + betaln(k + 1, n - k + 1) + np.log(tail)
    return mixture


@lru_cache(maxsize=65536)
def critical_t(n: int, delta: float) -> float:
    """Student's statistic of n rounds at which the mixture reaches 1 / delta; infinite where it never does."""
    from scipy.optimize import brentq  # slow to import; only a race needs it

    if n < 2:
        return math.inf
    goal = -math.log(delta)

    def excess(log_t: float) -> float:
        return log_mixture(n, math.exp(log_t)) - goal

    low, high = math.log(1e-3), math.log(1e6)
    if excess(high) < 0:
        return math.inf
    return math.exp(brentq(excess, low, high, xtol=1e-12, rtol=1e-12))


def log_mixture(n: int, t: float, g: float = PRIOR_VARIANCE) -> float:
    """log M_n, the module's formula, as a function of Student's statistic t (of either sign) of n >= 2 rounds."""
    from scipy.special import stdtr

    u = 1 + n * g
    a = t * t / (n - 1)
    two_sided = -0.5 * math.log(u) + 0.5 * n * (math.log1p(a) - math.log1p(a / u))
    # In units of s: the posterior of mu is Student's t with n degrees of freedom around sqrt(n) g t / u, with
    # squared scale (n - 1 + t^2 / u) g / (n u); this is the quotient of the two.
    z = n * t * math.sqrt(g / (u * (n - 1 + t * t / u)))
    return two_sided + math.log(2 * float(stdtr(n, z)))
