"""Simulated annealing whose temperature is a multiple of the measured noise.

A walk over routes. Each trial changes one knob of the current route; knobs take their turns in sweeps, in an
order drawn anew for each sweep. A finished trial becomes the current route with the probability
min(1, exp(-D / T - s^2 / (2 T^2))), D being its log-latency minus that of the current route, s the standard error
of D and T the temperature. The second term is the price of noise: with it a walk that measures both routes anew
for every step samples exactly what a walk without noise would sample at T. Here the current route keeps its
value, which makes that an approximation. T falls from `start` to `end` standard errors of one value, by half
every `halving` trials; a walk far below the noise would only follow luck.

Where every single change of the current route was tried, the walk goes on over tried routes, whose values are
known, until it meets an untried one.

Failures are never accepted, and values that are likely to be their cause (`Blame`) are put back to the default
before a route is proposed. The state is worked out from finished rows in completion order, so with several
builders moves are proposed from a route that is a few trials old, as in asynchronous annealing.

Good at: gains that need a small loss on the way; any noise. Bad at: keeping what it found, since at the noise's
temperature harmful changes of its size are accepted too; the nominated route is the shared rule's choice.

Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing", Science 220, 1983, with the acceptance
of Metropolis et al., J. Chem. Phys. 21, 1953; under noise that of Ceperley and Dewing, "The penalty method for random
walks with uncertain energies", J. Chem. Phys. 110, 1999, for normal noise of known variance.
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

_STEPS = 256  # over tried routes, to an untried one
_REHEAT = 24  # such steps until the temperature has doubled
_LEAST = 0.002  # log-latency: the temperature's unit where the noise is unknown or smaller than this


class Annealing:
    """Simulated annealing in sweeps over the knobs, the temperature in units of the noise.

    start, end: first and last temperature, in standard errors of one value. halving: trials for half the way.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, start: float = 1.0, end: float = 0.6, halving: int = 60) -> None:
        """Raises InputError unless start >= end > 0 and halving >= 1."""
        if not (0 < end <= start < math.inf):
            raise InputError(f"start is {start} and end is {end}; temperatures fall: start >= end > 0")
        if halving < 1:
            raise InputError(f"halving is {halving}; it must be at least 1 trial")
        self.start, self.end, self.halving = start, end, halving
        # A cache: the state of the walk after the first `_rows` rows of one history.
        self._history: History | None = None
        self._seed: object = None
        self._rows = 0

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A change of the current route that was not tried; None when every route was."""
        if history is not self._history or (type(streams.seed), streams.seed) != self._seed:
            self._history, self._seed = history, (type(streams.seed), streams.seed)
            self._rows, self._value, self._error = 0, math.inf, 0.0
            self._current: NDArray[np.int16] = space.default
            self._blame = Blame(space)
            self._knobs = np.flatnonzero(space.cardinalities > 1)
            self._sweep, self._order = -1, self._knobs
        if not self._knobs.size:
            return None
        for row in range(self._rows, len(history)):
            self._learn(history, row, streams)
        self._rows = len(history)
        self._blame.update(history)
        trial = history.next_trial
        sweep, turn = divmod(trial - 1, len(self._knobs))
        if sweep != self._sweep:
            self._sweep, self._order = sweep, streams.trial(sweep, "sweep").permutation(self._knobs)
        rng = streams.trial(trial)
        default, limits = space.default, space.cardinalities
        for i in range(len(self._order)):
            knob = int(self._order[(turn + i) % len(self._order)])
            codes = self._current.copy()
            others = int(limits[knob]) - 1
            codes[knob] = (int(codes[knob]) + 1 + (int(rng.random() * others) if others > 1 else 0)) % (others + 1)
            if codes[knob] != default[knob] and self._blame.value[knob, codes[knob]] > 0.2:
                continue  # the change itself is suspected
            if history.contains(codes):
                continue
            codes = self._blame.heal(codes, rng)
            if not history.contains(codes):
                return Proposal(codes)
        codes_found = self._walk_on(space, history, rng)
        if codes_found is not None:
            return Proposal(codes_found)
        if not untried_routes(space, history):
            return None
        return Proposal(uniform_untried(space, history, rng))

    def _walk_on(self, space: SearchSpace, history: History, rng: np.random.Generator) -> NDArray[np.int16] | None:
        """Every single change of the current route was tried: walks on over tried routes to an untried one, or None.

        The steps are those of the walk itself, with the values that are known already, while the temperature
        rises, since a route that was lucky would never be left.
        """
        limits = space.cardinalities
        codes, log, error = self._current.copy(), self._value, self._error
        for number in range(_STEPS):
            knob = int(self._knobs[int(rng.random() * len(self._knobs))])
            step = codes.copy()
            step[knob] = (int(codes[knob]) + 1 + int(rng.random() * (int(limits[knob]) - 1))) % int(limits[knob])
            if not history.contains(step):
                step = self._blame.heal(step, rng)
                if not history.contains(step):
                    return step
            rows = history.rows_of(step)
            seen = _seen(history, rows[0]) if rows else None
            if seen is None:
                continue
            log_chance = self._log_chance((log, error), seen, len(history), 1.0 + number / _REHEAT)
            if log_chance >= 0 or rng.random() < math.exp(log_chance):
                codes, (log, error) = step, seen
        return None

    def _log_chance(self, here: tuple[float, float], there: tuple[float, float], row: int, heat: float = 1.0) -> float:
        """Logarithm of the chance of going there, with the temperature of row `row`; each is (log, error)."""
        t = heat * max(there[1], _LEAST) * (self.end + (self.start - self.end) * math.exp2(-row / self.halving))
        # Ceperley and Dewing: the acceptance that keeps detailed balance under normal noise of known variance.
        return (here[0] - there[0]) / t - (here[1] ** 2 + there[1] ** 2) / (2 * t * t)

    def _learn(self, history: History, row: int, streams: Streams) -> None:
        """One step of the walk: accepts a finished row, or does not."""
        seen = _seen(history, row)
        if seen is None:
            return
        log_chance = self._log_chance((self._value, self._error), seen, row)
        if log_chance >= 0 or streams.trial(int(history.trial[row]), "accept").random() < math.exp(log_chance):
            self._current, (self._value, self._error) = history.codes[row].copy(), seen


def _seen(history: History, row: int) -> tuple[float, float] | None:
    """log(latency) of a row and its standard error; None where there is none."""
    value = float(history.value[row])
    if history.outcome[row] != Outcome.OK or not value > 0:
        return None
    error = float(history.error[row]) / value
    return math.log(value), (history.noise or 0.0) if math.isnan(error) else error
