"""CatCMA with margin on categorical knobs: one distribution per knob, moved by the natural gradient.

Routes are drawn from independent categorical distributions, which start near the reference: each knob at its
default but for `changes` changes on average. After every `population` finished rows the rows are ranked, failures
last, and the distributions take a step of the adaptive stochastic natural gradient towards the better half. A margin
keeps every value possible, so no knob freezes. Without continuous knobs CatCMA is this and nothing else.

A row counts with its route, whatever distribution it was drawn from: the update needs no more than that, so
the state follows from the finished rows, and rows that come late, with several builders, still count. Values that
are likely to be the cause of a failure are put back to the default before a route is proposed (`Blame`).

Good at: budgets of many hundreds; knobs with many values. Bad at: 200 knobs and 200 builds, which are ten steps of
the distribution.

Source: Hamano, Nomura, Saito, Uchida and Shirakawa, "CatCMA with Margin", GECCO 2025, arXiv:2504.07884; the categorical
part is that of Hamano, Saito, Nomura, Uchida and Shirakawa, "CatCMA", GECCO 2024, arXiv:2405.09962: natural gradient,
margin and its size, with the rate of ASNG: Akimoto, Shirakawa, Yoshinari, Uchida, Saito and Nishida, "Adaptive
Stochastic Natural Gradient Method for One-Shot Neural Architecture Search", ICML 2019. The tests compare each step
with `cmaes.CatCMAwM`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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
_EPS = 1e-8


class Catcma:
    """CatCMA with margin on categorical knobs, started near the reference.

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
        # A cache: the distributions after the first `_rows` rows of one history.
        self._history: History | None = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A route drawn from the distributions that was not tried; None when every route was tried."""
        if history is not self._history:
            self._history, self._rows = history, 1  # the reference is no draw
            self._blame = Blame(space)
            self._free = np.flatnonzero(space.cardinalities > 1)
            if self._free.size:
                counts, default = space.cardinalities[self._free].astype(np.intp), space.default[self._free]
                share = min(self.changes / len(counts), 0.5)
                self._step = Distributions(counts, default, share)
                self._lambda = self.population or 4 + math.floor(3 * math.log(len(counts)))
                self._lambda = max(self._lambda, 4)
        if not self._free.size:
            return None
        self._blame.update(history)
        while len(history) - self._rows >= self._lambda:
            rows = np.arange(self._rows, self._rows + self._lambda)
            self._step.update(history.codes[rows][:, self._free][_ranked(history, rows)])
            self._rows += self._lambda
        rng = streams.trial(history.next_trial)
        for _ in range(_ATTEMPTS):
            codes = space.default.copy()
            codes[self._free] = self._step.draw(rng)
            codes = self._blame.heal(codes, rng)
            if not history.contains(codes):
                return Proposal(codes)
        if not untried_routes(space, history):
            return None
        return Proposal(uniform_untried(space, history, rng))


def _ranked(history: History, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The order of these rows, best first; failures last, a missed tolerance before a crash."""
    value, outcome = history.value[rows], history.outcome[rows]
    # A row that was built and not timed says nothing: it stands between what was timed and what failed.
    kind = np.where(outcome == Outcome.OK, np.isnan(value), 1 + np.minimum(outcome, 2))
    return np.lexsort((np.nan_to_num(value), kind))


class Distributions:
    """Independent categorical distributions, and the step that moves them. counts: values per knob, (n,)."""

    def __init__(self, counts: NDArray[np.intp], default: NDArray[np.int16], share: float) -> None:
        """share: the probability of not being at the default, spread evenly over the other values."""
        n, most = len(counts), int(counts.max())
        self._counts = counts
        self._exists = np.arange(most) < counts[:, None]
        # The margin that arXiv:2405.09962 derives: (1 - 0.73^(1 / knobs)) / (values - 1); arXiv:2504.07884 keeps it.
        self._least = ((1 - 0.73 ** (1 / n)) / (counts - 1))[:, None]
        share = max(share, float(self._least.max()) * (most - 1))
        q = np.where(self._exists, share / (counts - 1)[:, None], 0.0)
        q[np.arange(n), default] = 1 - share
        self.q: NDArray[np.float64] = q  # (n, most values), rows sum to 1
        self._last = np.arange(most) == (counts - 1)[:, None]
        self._parameters = int((counts - 1).sum())
        self._path = np.zeros((n, most))
        self._gamma, self._trust, self._rate = 0.0, 1.0, 1.0

    def draw(self, rng: np.random.Generator) -> NDArray[np.int16]:
        """One code per knob, int16 (n,)."""
        codes = (np.cumsum(self.q, axis=1)[:, :-1] <= rng.random(len(self.q))[:, None]).sum(axis=1)
        drawn: NDArray[np.int16] = np.minimum(codes, self._counts - 1).astype(np.int16)
        return drawn

    def update(self, ranked: NDArray[np.int16]) -> None:
        """One step towards the better half of these routes, best first, int16 (population, n)."""
        population, n = ranked.shape
        half = population // 2
        # Hansen, arXiv:1604.00772, equation 49, the positive ones, normalised as in equation 53.
        weights = math.log((population + 1) / 2) - np.log(np.arange(1, half + 1))
        weights /= np.maximum(math.log((population + 1) / 2) - np.log(np.arange(1, population + 1)), 0).sum()
        # Natural gradient for q, as in arXiv:2405.09962: the weighted sum of c - q over the better half, c one-hot.
        hit = np.zeros_like(self.q)
        at = np.arange(n)
        for weight, codes in zip(weights.tolist(), ranked, strict=False):
            hit[at, codes] += weight
        gradient = hit - weights.sum() * self.q
        # Times the square root of the Fisher information (Akimoto et al., appendix B): the last value is not free.
        root = np.sqrt(np.where(self._exists, self.q, 1.0))
        q_last = self.q[at, self._counts - 1]
        free = self._exists & ~self._last
        sums = np.where(free, gradient, 0.0).sum(axis=1)
        scaled = gradient / root + root * (sums / (q_last + np.sqrt(q_last)))[:, None]
        scaled = np.where(free, scaled, 0.0)
        length = math.sqrt(float((scaled**2).sum()))
        self.q = self.q + self._rate / (length + _EPS) * gradient
        # ASNG, Akimoto et al.: the rate follows the signal-to-noise ratio of the gradient (theirs: rate 1 at the start,
        # threshold 1.5). It acts from the next step on.
        self._rate = 1.0 / self._trust
        beta = self._rate / math.sqrt(self._parameters)
        if length > 0:
            self._path = (1 - beta) * self._path + math.sqrt(beta * (2 - beta)) * scaled / length
        self._gamma = (1 - beta) ** 2 * self._gamma + beta * (2 - beta)
        self._trust *= math.exp(beta * (self._gamma - float((self._path**2).sum()) / 1.5))
        self._keep_margin()

    def _keep_margin(self) -> None:
        """Every value keeps its least probability: the margin correction of arXiv:2405.09962."""
        q = np.where(self._exists, np.maximum(self.q, self._least), 0.0)
        total = q.sum(axis=1, keepdims=True)
        room = total - self._least * self._counts[:, None]
        q = np.where(self._exists, q - (total - 1) * (q - self._least) / room, 0.0)
        self.q = q / q.sum(axis=1, keepdims=True)
