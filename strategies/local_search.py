"""Iterated local search from the reference, with acceptance that knows the noise.

Looks at single changes of the current route, in random order. A change that makes it faster beyond the noise is
kept at once (`improvement=first`) or once all were looked at, the best one (`best`). A change that was
looked at is not looked at again until something near it changes (don't-look bits). When nothing is left to
look at, changes whose effect drowned in the noise get up to `looks` looks in all, by then from another route, the most
promising first, their effects averaged. After that the route is kicked: `kick` random changes at once, of
which each is looked at again; the better of the routes before and after is kept, and so on.

Noise: an effect counts when it exceeds `deviations` times its standard error. The level of the current route is
not its own lucky value: when a change is kept, its gain is shrunk by the noise, and what changes without effect
measure later is averaged in, since that is the current route's latency again.

Failures: a change that fails is not looked at again while its value is likely to be the cause (`Blame`); a
kick carries none of these.

Good at: many knobs that act alone, a few per cent each; spaces in which many routes fail. Bad at: gains of two changes
that each harm alone, and changes that gain less than the noise.

Source: Lourenco, Martin and Stutzle, "Iterated Local Search", Handbook of Metaheuristics, 2003, section 2, with its
acceptance criterion `Better`; Bentley, "Fast algorithms for geometric traveling salesman problems", ORSA J. Comput. 4,
1992 (don't-look bits); the shrinkage has the form of the positive-part James-Stein estimate (James and Stein,
"Estimation with Quadratic Loss", Fourth Berkeley Symposium, 1961), of one gain alone.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

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

_LIKELY = 0.2
_SETTLINGS = 8  # kicks to routes that were tried before the walk rests until the next row
_LEVEL_ROWS = 12  # values that the level of the current route is averaged over, at most


class LocalSearch:
    """Iterated local search by single changes, keeping what gains beyond the noise.

    improvement: keep the first change that gains, or the best of all. deviations: standard errors that a gain must
    exceed. looks: how often a change with an unclear effect is tried. kick: changes of a kick.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(
        self,
        improvement: Literal["first", "best"] = "first",
        deviations: float = 1.0,
        looks: int = 3,
        kick: int = 3,
    ) -> None:
        """Raises InputError unless deviations >= 0, looks >= 1 and kick >= 1."""
        if not 0 <= deviations < math.inf:
            raise InputError(f"deviations is {deviations}; it must be 0 or more, and finite")
        if looks < 1 or kick < 1:
            raise InputError(f"looks is {looks} and kick is {kick}; both must be at least 1")
        self.improvement, self.deviations, self.looks, self.kick = improvement, deviations, looks, kick
        # A cache: the state of the search after the first `_rows` rows of one history.
        self._history: History | None = None
        self._seed: object = None
        self._rows = 0
        self._blame: Blame

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The next change to look at; None when every route was tried, or while the last looks are pending."""
        if history is not self._history or (type(streams.seed), streams.seed) != self._seed:
            self._history, self._seed = history, (type(streams.seed), streams.seed)
            self._begin(space, streams)
        if not self._changes:
            return None
        for row in range(self._rows, len(history)):
            self._blame.update(history, row + 1)
            self._learn(history, row)
            # Nothing left to look at: where to go on follows from the rows up to here, not from when it is asked.
            for _ in range(_SETTLINGS):
                if self._next(history, row + 1) is not None:
                    break
                self._settle(space, history, row + 1, streams)
        self._rows = len(history)
        codes = self._next(history, self._rows, skip_pending=True)
        if codes is not None:
            return Proposal(codes)
        if history.n_pending and self._next(history, self._rows) is not None:
            return None  # what is pending decides where to go on
        if not untried_routes(space, history):
            return None
        return Proposal(uniform_untried(space, history, streams.trial(history.next_trial)))

    # -- state --------------------------------------------------------------------------------
    def _begin(self, space: SearchSpace, streams: Streams) -> None:
        default, counts = space.default.tolist(), space.cardinalities.tolist()
        # All (knob, code) in the order in which they are looked at; a knob's default is a change once it was left.
        every = [(k, c) for k in range(len(space)) if counts[k] > 1 for c in range(counts[k])]
        self._changes = [every[i] for i in streams.trial(0, "order").permutation(len(every))] if every else []
        self._default = default
        self._rows = self._kicks = 0
        self._blame = Blame(space)
        self._todo = dict.fromkeys((k, c) for k, c in self._changes if c != default[k])
        self._codes: NDArray[np.int16] = space.default.copy()
        self._home = self._codes
        self._engine = self._home_engine = -1  # fingerprints
        self._level = self._home_level = math.nan  # log-latency of the current route; NaN while unknown
        self._error = self._home_error = 0.0
        self._averaged = 1
        self._again: dict[tuple[int, int], None] = {}
        self._effect: dict[tuple[int, int], tuple[int, float, float]] = {}  # looks, weighted mean, its variance
        self._kicked = False
        self._best: tuple[float, int, float, float] | None = None

    def _next(self, history: History, rows: int, skip_pending: bool = False) -> NDArray[np.int16] | None:
        """The first route worth a look that was not tried in the first `rows` rows."""
        if math.isnan(self._level):
            pending = skip_pending and history.is_pending(self._codes)
            return None if pending or _tried(history, self._codes, rows) else self._codes.copy()
        for waiting in (self._todo, self._again):
            for change in list(waiting):
                knob, code = change
                if self._codes[knob] == code:
                    del waiting[change]
                    continue
                if self._blame.value[knob, code] > _LIKELY:
                    continue
                codes = self._codes.copy()
                codes[knob] = code
                if _tried(history, codes, rows):
                    del waiting[change]
                elif not (skip_pending and history.is_pending(codes)):
                    return codes
        return None

    def _learn(self, history: History, row: int) -> None:
        """Takes in one finished row."""
        codes, value = history.codes[row], float(history.value[row])
        ok = history.outcome[row] == Outcome.OK and value > 0
        if ok:
            error = float(history.error[row]) / value
            if math.isnan(error):
                error = history.noise or 0.0
            log = math.log(value)
        where = np.flatnonzero(codes != self._codes)
        if not where.size:
            if math.isnan(self._level):
                if ok:
                    self._level, self._error, self._averaged = log, error, 1
                    self._engine = int(history.fingerprint[row])
                else:
                    self._go_home()  # the kick failed
            return
        if math.isnan(self._level) or where.size > 1:
            return  # a look at a route that is no longer the current one's neighbour
        change = int(where[0]), int(codes[where[0]])
        self._todo.pop(change, None)
        self._again.pop(change, None)
        if not ok:
            return
        if self._engine >= 0 and history.fingerprint[row] == self._engine:
            return  # the same engine: the change does nothing here, and its value is no new one
        delta, variance = log - self._level, error**2 + self._error**2
        looks, mean, var = self._effect.get(change, (0, 0.0, math.inf))
        if looks:
            weight = var / (var + variance) if var + variance > 0 else 0.5
            mean, var = mean + weight * (delta - mean), var * variance / (var + variance) if variance > 0 else 0.0
        else:
            mean, var = delta, variance
        self._effect[change] = looks + 1, mean, var
        sure = self.deviations * math.sqrt(var)
        if mean < -sure and delta < 0:
            if self.improvement == "first":
                self._move(codes, mean, var, change, error, int(history.fingerprint[row]))
            elif self._best is None or mean < self._best[0]:
                self._best = mean, row, var, error
            return
        if looks + 1 < self.looks and mean < 0:
            self._again[change] = None
        if abs(delta) < 2 * math.sqrt(variance) and self._averaged < _LEVEL_ROWS:
            # Most likely no effect at all: one more value of the current route.
            self._averaged += 1
            self._level += delta / self._averaged
            self._error = error / math.sqrt(self._averaged)

    def _move(
        self,
        codes: NDArray[np.int16],
        gain: float,
        variance: float,
        change: tuple[int, int],
        error: float,
        engine: int,
    ) -> None:
        """Keeps a change."""
        self._engine = engine
        # The form of James-Stein, positive part: a gain that is selected for being large is believed in part.
        believed = gain * max(0.0, 1.0 - variance / gain**2)
        self._codes, self._level = codes.copy(), self._level + believed
        self._error, self._averaged = min(error, math.hypot(self._error, 0.5 * error)), 2
        del self._effect[change]
        # Its knob is looked at again: other values, and the way back, but not soon.
        for other in self._changes:
            if other[0] == change[0] and other[1] not in (change[1], self._default[change[0]]):
                self._todo[other] = None
        if self.improvement == "best":
            self._best = None
            self._todo = dict.fromkeys(c for c in self._changes if codes[c[0]] != c[1])

    def _settle(self, space: SearchSpace, history: History, rows: int, streams: Streams) -> None:
        """Nothing is left to look at: moves to the best neighbour, or keeps the better route and kicks it."""
        if self._best is not None:
            gain, row, variance, error = self._best
            codes, self._best = history.codes[row], None
            where = np.flatnonzero(codes != self._codes)
            if where.size == 1:
                change = int(where[0]), int(codes[where[0]])
                self._move(codes, gain, variance, change, error, int(history.fingerprint[row]))
                return
        if math.isnan(self._level):
            self._go_home()
        # Lourenco et al., acceptance criterion `Better`, beyond the noise.
        doubt = self.deviations * math.hypot(self._error, self._home_error)
        if not self._kicked or self._level < self._home_level - doubt:
            self._home, self._home_level, self._home_error = self._codes, self._level, self._error
            self._home_engine = self._engine
        rng = streams.trial(self._kicks, "kick")
        self._kicks += 1
        codes = self._home.copy()
        chosen = rng.permutation(np.flatnonzero(space.cardinalities > 1))[: self.kick].tolist()
        for knob in chosen:
            count = int(space.cardinalities[knob])
            codes[knob] = (int(codes[knob]) + 1 + int(rng.random() * (count - 1))) % count
        self._codes = self._blame.heal(codes, rng)
        self._level, self._averaged, self._kicked, self._again = math.nan, 1, True, {}
        self._todo = {(k, c): None for k, c in self._changes if k in chosen}
        for row in history.rows_of(self._codes)[:1]:
            if row < rows:
                self._learn(history, row)

    def _go_home(self) -> None:
        self._codes, self._level, self._error, self._averaged = self._home, self._home_level, self._home_error, 2
        self._engine = self._home_engine
        self._todo, self._again = {}, {}


def _tried(history: History, codes: NDArray[np.int16], rows: int) -> bool:
    """True when the route is among the first `rows` rows."""
    found = history.rows_of(codes)
    return bool(found) and found[0] < rows
