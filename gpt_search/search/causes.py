"""Which values of knobs, and which pairs of them, make routes fail: learnt from the failures of a history."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_ROUNDS = 12  # of message passing; marginals settle within about 8
_PRIOR, _WEIGHT = 0.05, 20.0  # one value in 20 fails, believed as firmly as 20 values seen
_PAIRS = 1e4  # pairs of which one is believed to fail, before anything is seen
_LEAK = 0.003  # a failure that neither a value nor a pair explains: one in 300
_EDGE = 30.0  # log-odds beyond which nothing changes


class FailureCauses:
    """The chance of each value of a knob, and of each pair of values, to be a cause of failure.

    A *value* here is a non-default one: the reference works. There are m of them, knob by knob, codes
    ascending. A route works when it holds no cause (a noisy-or without noise, but for a small leak).
    So a route that passed the gate clears all of its values and all pairs of them, and a failed one
    accuses what it holds and nothing else explains. The marginals are those of loopy belief propagation,
    the usual decoder of group testing: Sejdinovic and Johnson, "Note on noisy group testing: asymptotic
    bounds and belief propagation reconstruction", Allerton 2010; Cuturi, Teboul and Vert, "Noisy
    Adaptive Group Testing using Bayesian Sequential Experimental Design", arXiv:2004.12508, 2020. The
    shares of values and of pairs that fail are estimated along with them, by expectation-maximisation.

    It reads the whole history, in milliseconds, and estimates shares too: for strategies that fit a model and change
    many values at once. `Blame` is the incremental one, for cheap strategies.

    knob, code: int (m,), what the values are. alone: float64 (m,), chance that the value alone makes a
    route fail; 0 for a cleared one. pair: float64 (m, m), symmetric, chance that two values fail together
    though neither fails alone; 0 for cleared pairs and on the diagonal. rate: share of values that fail.
    """

    def __init__(self, space: SearchSpace, history: History) -> None:
        """Reads the whole history; a trial that stopped before the gate without failing says nothing."""
        self.knob, self.code = values_of(space)
        self._default = space.default
        outcome = history.outcome
        held = self.indicators(history.codes)
        works = held[(outcome == Outcome.OK) & (history.until >= Phase.GATE)]
        fails = held[outcome != Outcome.OK]
        cleared: Bools = works.any(0)
        count = works.astype(np.float32)
        open_pair = (count.T @ count) == 0
        np.fill_diagonal(open_pair, False)
        self.rate, self._pair_rate = _PRIOR, 1.0 / _PAIRS
        suspect = fails & ~cleared
        fails = fails.astype(np.float32)
        pairs = ((fails @ open_pair.astype(np.float32)) * fails).sum(1, dtype=np.float64) / 2
        self.alone = np.where(cleared, 0.0, _PRIOR)
        innocent = self._propagate(suspect, cleared, pairs) if len(fails) else np.empty(0)
        # Log-likelihood ratio of a failed route for each pair in it, all other causes given.
        others = np.exp(-np.maximum(pairs - 1, 0) * self._pair_rate - _LEAK)
        gain = -np.log(np.maximum(1 - others * innocent, 1e-12)).astype(np.float32)
        odds = np.log(self._pair_rate / (1 - self._pair_rate)) + (fails * gain[:, None]).T @ fails
        self.pair: Floats = np.where(open_pair, _logistic(odds.astype(np.float64)), 0.0)

    def _propagate(self, suspect: Bools, cleared: Bools, pairs: Floats) -> Floats:
        """Sets `alone` and the rates; the chance that no single value explains each failed route, before it failed."""
        mask = suspect.astype(np.float64)
        told = np.zeros_like(mask)  # from a failed route to a value: log-likelihood ratio for "a cause"
        m = len(self.knob)
        innocent = np.ones(len(mask))
        for _ in range(_ROUNDS):
            prior = np.log(self.rate / (1 - self.rate))
            # What a value tells a route: its odds by all the others.
            chance = np.minimum(_logistic(prior + told.sum(0) - told), 1 - 1e-9)
            clean = mask * np.log1p(-chance)
            others = clean.sum(1, keepdims=True) - clean
            leak = pairs * self._pair_rate + _LEAK
            fresh = -np.log(np.maximum(1 - np.exp(others - leak[:, None]), 1e-12)) * mask
            told = 0.5 * (told + fresh)
            self.alone = np.where(cleared, 0.0, _logistic(prior + told.sum(0)))
            innocent = np.exp((mask * np.log1p(-np.minimum(self.alone, 1 - 1e-9))).sum(1))
            unexplained = innocent * leak / (1 - innocent * np.exp(-leak) + 1e-12)
            self.rate = float((_PRIOR * _WEIGHT + self.alone.sum()) / (_WEIGHT + m))
            self._pair_rate = float((1 + np.minimum(unexplained, 1).sum()) / (_PAIRS + m * m / 2))
        return innocent

    def indicators(self, codes: Codes) -> Bools:
        """bool (n, m): which values the routes `codes` (n, d) hold."""
        held: Bools = codes[:, self.knob] == self.code
        return held

    def codes_of(self, chosen: Bools) -> Codes:
        """The route with the chosen values (bool (m,), at most one of each knob) and all else at its default."""
        codes = self._default.copy()
        codes[self.knob[chosen]] = self.code[chosen]
        return codes

    def works(self, chosen: Bools) -> float:
        """The chance that the route of the chosen values (bool (m,)) does not fail."""
        on = np.flatnonzero(chosen)
        pairs = np.log1p(-np.minimum(self.pair[np.ix_(on, on)], 1 - 1e-9)).sum() / 2
        return float(np.exp(np.log1p(-np.minimum(self.alone[on], 1 - 1e-9)).sum() + pairs))

    def group(self, works: float, order: Floats, barred: Bools, least: float = 0.3) -> NDArray[np.intp]:
        """Uncleared values of different knobs to try at once, so many that all work with about the chance `works`.

        The least suspect come first: they are cleared by the dozen, and what is left is split ever finer.
        order: float64 (m,), breaks ties; barred: bool (m,), values to leave out. Empty when
        all is cleared, and when the group would clear fewer than `least` values on average: its members are guilty.
        """
        chosen: list[int] = []
        chance, used = 1.0, set[int]()
        ranked = np.lexsort((order, np.round(self.alone, 4)))
        for value in ranked[(self.alone[ranked] > 0) & ~barred[ranked]].tolist():
            left = chance * (1 - self.alone[value])
            if chosen and left < works:
                break
            if int(self.knob[value]) not in used:
                chosen.append(value)
                used.add(int(self.knob[value]))
                chance = left
        return np.asarray(chosen if len(chosen) * chance >= least else [], np.intp)

    def without_risky_pairs(self, chosen: Bools, worth: Floats, risk: float) -> Bools:
        """The chosen values less those whose pairs are the most likely to fail for what they are worth.

        worth: positive float64 (m,), what is lost by leaving a value out. risk: of a failure by any
        pair that may be left, as the sum of the chances.
        """
        kept = chosen.copy()
        on = np.flatnonzero(chosen)
        table = self.pair[np.ix_(on, on)]
        each = table.sum(1)
        while each.sum() / 2 > risk:
            worst = int(np.argmax(each / worth[on]))
            kept[on[worst]] = False
            each = np.maximum(each - table[worst], 0.0)
            each[worst] = 0.0
            table[:, worst] = 0.0
        return kept


def values_of(space: SearchSpace) -> tuple[NDArray[np.intp], Codes]:
    """Knob and code of each non-default value, int (m,) and int16 (m,): knob by knob, codes ascending."""
    knob = np.repeat(np.arange(len(space)), space.cardinalities - 1)
    first = np.repeat(np.cumsum(space.cardinalities - 1) - (space.cardinalities - 1), space.cardinalities - 1)
    code = np.arange(len(knob)) - first
    return knob, (code + (code >= space.default[knob])).astype(np.int16)


def _logistic(odds: Floats) -> Floats:
    chance: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -_EDGE, _EDGE)))
    return chance
