"""A steady-state genetic algorithm with sparse mutation, seeded by the reference.

The population is the `population` fastest routes so far, the reference among the first. A child has two
parents, each the faster of two drawn from the population; where they differ it takes either value. Then it
mutates: one or more values (geometric, with mean `mutations`) are set to what few routes have tried, and each change
that it carries goes back to the default with the probability `reversion` / (its number of changes). That keeps
routes near the reference unless selection pulls them away, and sheds what does nothing.

Children carry no value, nor pair of values, that is likely to be the cause of a failure (`Blame`). Every finished
row counts at once: there are no generations to wait for with several builders.

Good at: gains that add up, and some that need each other; any number of builders. Bad at: few builds, as one
route in the population may be there by luck.

Source: Holland, "Adaptation in Natural and Artificial Systems", 1975; Syswerda, "Uniform crossover in genetic
algorithms", ICGA 1989, and "A study of reproduction in generational and steady-state genetic algorithms", FOGA 1991;
Goldberg and Deb, "A comparative analysis of selection schemes used in genetic algorithms", FOGA 1991 (tournaments).
"""

from __future__ import annotations

import bisect
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
_OK = int(Outcome.OK)


class Genetic:
    """Steady-state genetic algorithm: few changes at a time, untried values first.

    population: routes kept as parents. mutations: mean number of values changed per child. reversion: mean number of
    changes put back per child. crossover: chance of a second parent.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(
        self, population: int = 12, mutations: float = 3.0, reversion: float = 1.0, crossover: float = 0.9
    ) -> None:
        """Raises InputError unless population >= 2, mutations >= 1, reversion >= 0 and 0 <= crossover <= 1."""
        if population < 2:
            raise InputError(f"population is {population}; at least 2 routes are needed")
        if not 1 <= mutations < math.inf:
            raise InputError(f"mutations is {mutations}; the mean number must be at least 1 and finite")
        if not 0 <= reversion < math.inf:
            raise InputError(f"reversion is {reversion}; the mean number must be 0 or more, and finite")
        if not 0 <= crossover <= 1:
            raise InputError(f"crossover is {crossover}; a chance is between 0 and 1")
        self.population, self.mutations, self.reversion, self.crossover = population, mutations, reversion, crossover
        # A cache: the population after the first `_rows` rows of one history.
        self._history: History | None = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A child that was not tried; None when every route was tried."""
        if history is not self._history:
            self._history, self._rows = history, 0
            self._best: list[tuple[float, int]] = []  # (latency, row), fastest first
            self._blame = Blame(space)
            counts = space.cardinalities.astype(np.intp)
            self._knob = np.repeat(np.arange(len(space)), counts)
            self._code = (np.arange(len(self._knob)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.int16)
            self._first = np.cumsum(counts) - counts
            self._default = self._first + space.default
            self._tried = np.zeros(len(self._knob))
            self._price = np.ones(len(self._knob))  # the inverse of the weight of being drawn
            self._price[self._default] = np.inf
        if not (space.cardinalities > 1).any():
            return None
        for row in range(self._rows, len(history)):
            self._learn(history, row)
        self._rows = len(history)
        self._blame.update(history)
        rng = streams.trial(history.next_trial)
        for _ in range(_ATTEMPTS):
            codes = self._child(space, history, rng)
            if not history.contains(codes):
                return Proposal(codes)
        if not untried_routes(space, history):
            return None
        return Proposal(uniform_untried(space, history, rng))

    def _learn(self, history: History, row: int) -> None:
        """Takes in one finished row."""
        codes, value = history.codes[row], float(history.value[row])
        carried = self._first + codes
        times = self._tried[carried] + 1
        self._tried[carried] = times
        self._price[carried] = (1.0 + times) ** 2
        self._price[self._default] = np.inf
        if history.outcome[row] == _OK and value > 0:
            bisect.insort(self._best, (value, row))
            del self._best[self.population :]

    def _parent(self, history: History, rng: np.random.Generator) -> NDArray[np.int16]:
        """The faster of two routes of the population: a tournament."""
        n = len(self._best)
        parent: NDArray[np.int16] = history.codes[self._best[min(int(rng.random() * n), int(rng.random() * n))][1]]
        return parent

    def _child(self, space: SearchSpace, history: History, rng: np.random.Generator) -> NDArray[np.int16]:
        codes = self._parent(history, rng).copy()
        if rng.random() < self.crossover:
            other = self._parent(history, rng)
            differ = (codes != other).nonzero()[0]
            taken = differ[rng.random(len(differ)) < 0.5]
            codes[taken] = other[taken]
        changed = (codes != space.default).nonzero()[0]
        left = changed.size
        if left:
            back = changed[rng.random(left) * left < self.reversion]
            codes[back] = space.default[back]
            left -= back.size
        # Values that few routes have tried come first: the chance falls with the square of their number.
        price = self._price.copy()
        price[self._first + codes] = np.inf
        number = min(int(rng.geometric(1.0 / self.mutations)), len(price) - len(codes) - left)  # other values there are
        if number:
            # The smallest of exponential numbers over the weights: a weighted sample without replacement
            # (Efraimidis and Spirakis, Inf. Process. Lett. 97, 2006).
            key = rng.standard_exponential(len(price)) * price
            for at in np.argpartition(key, number - 1)[:number].tolist():
                codes[self._knob[at]] = self._code[at]
        return self._blame.heal(codes, rng)
