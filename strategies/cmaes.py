"""Separable CMA-ES with margin on the knobs' codes, from the reference.

Codes are rounded from a normal distribution with independent coordinates: a mean and a variance per knob, and a
common step size. After every `population` finished rows it moves towards the better half, failures ranked last.
Two-valued knobs are what plain CMA-ES fails at: once a knob's distribution lies on one side of the rounding
limit, all draws are equal, and it never comes back. The margin keeps the probability of leaving the present value
above 1 / (knobs * population), by moving the mean or widening the coordinate.

The mean starts at the reference, with a step size that makes a knob leave its default with the probability
`changes` / knobs. Of a finished row only its codes are known, while the update needs the point behind
them: it is drawn anew, from the present distribution given the codes, by the stream of the row's trial. For a
route that was drawn from this distribution that is a point with the very law of the one it came from; so the state
follows from the finished rows alone, and rows that come late, with several builders, still count.

Values with no natural order are ordered as they are listed. Values that are likely to be the cause of a failure
are put back to the default before a route is proposed (`Blame`).

Good at: many hundreds of builds; knobs whose values are ordered. Bad at: 200 knobs and 200 builds, which are ten
steps of the distribution; unordered values.

Source: Ros and Hansen, "A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity", PPSN 2008 (the
separable update); Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772 (the equations cited below);
Hansen and Kern, "Evaluating the CMA Evolution Strategy on Multimodal Test Functions", PPSN 2004 (the weights, and the
rates of the step size and of the paths, which the tutorial has since changed); Hamano, Saito, Nomura and Shirakawa,
"CMA-ES with Margin", GECCO 2022, arXiv:2205.13482 (the margin, for a full matrix there). The tests compare each step
with `cmaes.SepCMA` and `cmaes.CMAwM`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from gpt_search import (
    Blame,
    History,
    InputError,
    Outcome,
    Proposal,
    SearchSpace,
    Streams,
    uniform_untried,
    untried_routes,
)

_ATTEMPTS = 32
Floats = NDArray[np.float64]


class Cmaes:
    """Separable CMA-ES with margin on the codes, started at the reference.

    changes: mean number of changes to the reference at the start. population: rows per step; none for
    4 + 3 log(number of knobs).
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, changes: float = 4.0, population: int | None = None) -> None:
        """Raises InputError unless changes > 0 and population is none or at least 4."""
        if not 0 < changes < math.inf:
            raise InputError(f"changes is {changes}; the mean number must be above 0 and finite")
        if population is not None and population < 4:
            raise InputError(f"population is {population}; it must be at least 4, or none")
        self.changes, self.population = changes, population
        # A cache: the distribution after the first `_rows` rows of one history.
        self._history: History | None = None
        self._seed: object = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A route drawn from the distribution that was not tried; None when every route was tried."""
        if history is not self._history or (type(streams.seed), streams.seed) != self._seed:
            self._history, self._seed = history, (type(streams.seed), streams.seed)
            self._rows = 1  # the reference is no draw
            self._blame = Blame(space)
            self._free = np.flatnonzero(space.cardinalities > 1)
            if self._free.size:
                n = len(self._free)
                population = self.population or 4 + math.floor(3 * math.log(n))  # tutorial, equation 48
                self._lambda = max(population, 4)
                # A binary knob at code 0 leaves it when its coordinate passes 1/2: P(N > 1 / (2 sigma)) = share.
                share = min(self.changes / n, 0.3)
                sigma = 0.5 / float(ndtri(1 - share))
                self._step = SeparableWithMargin(
                    space.default[self._free].astype(float), sigma, space.cardinalities[self._free] - 1, self._lambda
                )
        if not self._free.size:
            return None
        self._blame.update(history)
        while len(history) - self._rows >= self._lambda:
            rows = np.arange(self._rows, self._rows + self._lambda)
            codes = history.codes[rows][:, self._free]
            uniform = np.stack(
                [streams.trial(int(t), "point").random(len(self._free)) for t in history.trial[rows].tolist()]
            )
            points = self._step.points_behind(codes, uniform)
            self._step.update(points[_ranked(history, rows)])
            self._rows += self._lambda
        rng = streams.trial(history.next_trial)
        for _ in range(_ATTEMPTS):
            route = space.default.copy()
            route[self._free] = self._step.draw(rng)
            route = self._blame.heal(route, rng)
            if not history.contains(route):
                return Proposal(route)
        if not untried_routes(space, history):
            return None
        return Proposal(uniform_untried(space, history, rng))


def _ranked(history: History, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The order of these rows, best first; failures last, a missed tolerance before a crash."""
    value, outcome = history.value[rows], history.outcome[rows]
    # A row that was built and not timed says nothing: it stands between what was timed and what failed.
    kind = np.where(outcome == Outcome.OK, np.isnan(value), 1 + np.minimum(outcome, 2))
    return np.lexsort((np.nan_to_num(value), kind))


class SeparableWithMargin:
    """The distribution: mean (n,), step size sigma, variances C (n,), margin's scale A (n,); codes 0 .. top."""

    def __init__(
        self, mean: Floats, sigma: float, top: NDArray[np.int16], population: int, margin: float | None = None
    ) -> None:
        """top: the largest code of each knob, at least 1. margin: least probability; None for 1 / (n population)."""
        n = len(mean)
        self.mean, self.sigma, self.top = mean.astype(float), sigma, top.astype(float)
        self.C: Floats = np.ones(n)
        self.A: Floats = np.ones(n)
        self.margin = 1 / (n * population) if margin is None else margin
        self._path_sigma, self._path_c, self._generation = np.zeros(n), np.zeros(n), 0
        half = population // 2
        # Hansen and Kern; the tutorial's equation 49 has (population + 1) / 2 in place of half + 1.
        weights = math.log(half + 1) - np.log(np.arange(1, half + 1))
        self._weights: Floats = weights / weights.sum()
        mu = 1 / float((self._weights**2).sum())
        self._mu = mu
        self._c1 = 2 / ((n + 1.3) ** 2 + mu)  # tutorial, equation 57
        # Ros and Hansen: the full matrix's rate, Hansen and Kern's, times (n + 2) / 3. As in `cmaes.SepCMA` all of it
        # goes to the better half, and c1 comes on top; the limit, by which no variance falls below 0 where few knobs
        # meet a large population, is that of the tutorial's equation 58.
        full = 2 / mu / (n + math.sqrt(2)) ** 2 + (1 - 1 / mu) * min(1, (2 * mu - 1) / ((n + 2) ** 2 + mu))
        self._cmu = min(1 - self._c1, (n + 2) / 3 * full)
        # Hansen and Kern; the tutorial's equations 55 and 56 differ in cs and cc.
        self._cs = (mu + 2) / (n + mu + 3)
        self._ds = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + self._cs
        self._cc = 4 / (n + 4)
        self._expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int16]:
        """One code vector, int16 (n,)."""
        widened = self.mean + self.A * self.sigma * np.sqrt(self.C) * rng.standard_normal(len(self.mean))
        # Limits lie half-way between codes, and belong to the lower one.
        drawn: NDArray[np.int16] = np.clip(np.ceil(widened - 0.5), 0, self.top).astype(np.int16)
        return drawn

    def points_behind(self, codes: NDArray[np.int16], uniform: Floats) -> Floats:
        """Points that round to these codes, drawn from the distribution given that; all of shape (population, n)."""
        scale = self.A * self.sigma * np.sqrt(self.C)
        low = np.where(codes > 0, (codes - 0.5 - self.mean) / scale, -np.inf)
        high = np.where(codes < self.top, (codes + 0.5 - self.mean) / scale, np.inf)
        # From the side where the tail is: differences of probabilities near 1 would be lost.
        sign = np.where(low > 0, -1.0, 1.0)
        a, b = ndtr(np.where(sign > 0, low, -high)), ndtr(np.where(sign > 0, high, -low))
        z = sign * ndtri(np.clip(a + uniform * (b - a), 1e-300, 1 - 1e-16))
        points: Floats = self.mean + self.sigma * np.sqrt(self.C) * np.clip(z, low, high)
        return points

    def update(self, ranked: Floats) -> None:
        """One step towards the better half of these points, best first, (population, n)."""
        n, self._generation = len(self.mean), self._generation + 1
        y = (ranked[: len(self._weights)] - self.mean) / self.sigma
        step = self._weights @ y  # tutorial, equation 41
        self.mean = self.mean + self.sigma * step  # 42
        self._path_sigma = (1 - self._cs) * self._path_sigma + math.sqrt(
            self._cs * (2 - self._cs) * self._mu
        ) * step / np.sqrt(self.C)  # 43
        length = float(np.linalg.norm(self._path_sigma))
        self.sigma *= math.exp(self._cs / self._ds * (length / self._expected - 1))  # 44
        stalled = length / math.sqrt(1 - (1 - self._cs) ** (2 * (self._generation + 1)))
        keep = 1.0 if stalled < (1.4 + 2 / (n + 1)) * self._expected else 0.0
        self._path_c = (1 - self._cc) * self._path_c + keep * math.sqrt(
            self._cc * (2 - self._cc) * self._mu
        ) * step  # 45
        lost = (1 - keep) * self._cc * (2 - self._cc)
        self.C = (
            (1 + self._c1 * lost - self._c1 - self._cmu) * self.C
            + self._c1 * self._path_c**2
            + self._cmu * (self._weights @ y**2)
        )  # 47, the diagonal
        self._keep_margin()

    def _keep_margin(self) -> None:
        """Every knob keeps the probability `margin` of leaving its value: Hamano et al. 2022."""
        inside = np.clip(np.ceil(self.mean - 0.5), 0, self.top)
        low = np.clip(inside - 1, 0, self.top - 1) + 0.5  # the limits around the mean; equal at the ends of the range
        up = np.clip(inside, 0, self.top - 1) + 0.5
        deviation = self.sigma * np.sqrt(self.C)
        below = ndtr((low - self.mean) / (deviation * self.A))
        above = 1.0 - ndtr((up - self.mean) / (deviation * self.A))
        edge = np.maximum(below, above) > 0.5
        half = self.margin / 2
        # At an end of the range, as for binary knobs: the mean moves to where the limit is passed with the margin.
        short = edge & (np.minimum(below, above) < self.margin)
        distance = deviation * self.A * float(ndtri(1 - self.margin))
        ends = up + np.sign(self.mean - up) * distance
        # Between two limits, as for integer knobs: mean and A give each side half the margin at least.
        between = 1.0 - below - above
        p_low, p_up = np.maximum(below, half), np.maximum(above, half)
        excess = (1.0 - p_low - p_up - between) / (p_low + between + p_up - 3 * half)
        p_low = np.clip(p_low + excess * (p_low - half), 1e-10, 0.5 - 1e-10)
        p_up = np.clip(p_up + excess * (p_up - half), 1e-10, 0.5 - 1e-10)
        z_low, z_up = ndtri(1 - p_low), ndtri(1 - p_up)
        self.A = np.where(edge, self.A, (up - low) / ((z_low + z_up) * deviation))
        self.mean = np.where(edge, np.where(short, ends, self.mean), (low * z_up + up * z_low) / (z_low + z_up))
