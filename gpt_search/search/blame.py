"""Which changes make routes fail: a belief about causes, learnt from routes that failed and routes that did not.

A route fails when it carries a cause: one changed value, or, where single values cannot explain it, a pair of
them. That is a noisy-or network with an effect (the failure) observed per route; the beliefs are found by
belief propagation. Source: Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988, section 4.3.2 (the
noisy-or and its messages); Murphy, Weiss and Jordan, "Loopy belief propagation for approximate inference", UAI
1999, section 3.3 (its use on such two-layer networks).
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace

_VALUE = 0.03  # prior of one value being a cause
_PAIR = 0.003  # prior of one pair being a cause
_LEAK = 0.01  # chance of a failure without a cause: a flaky machine
_PASSES = 0.02  # chance that a route with a cause succeeds all the same
_ROUNDS = 3  # of belief propagation, after each failure
_ACQUITTED = _VALUE * _PASSES ** np.arange(5.0)  # the probability after so many successes, counted up to 4
_OK, _GATE = int(Outcome.OK), int(Phase.GATE)
_MOST_CHANGES = 24  # of a failure whose pairs are looked at
_MOST_SUSPECTS = 32  # a failure with more suspects says next to nothing about each


class Blame:
    """The probability of each changed value being a cause of failure, and of routes failing.

    For strategies whose proposals take microseconds; one that fits a model to the whole history and tries
    groups of untried values wants `FailureCauses`, which estimates the shares of causes and sizes such groups.

    Keeps what it derived from a prefix of one history; `update` takes in the rows that are new. Equal
    histories give equal beliefs, however they were taken in. The defaults of the space are never blamed,
    because the reference route, row 0, succeeded. Cost per row: O(d), and O(suspects) per failure.

    value: float64 (d, most values of a knob), the probability of being a cause, by knob and code;
    valid until the next `update`.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Nothing known yet: every changed value has its prior."""
        self.space = space
        self._width = max(map(len, space.values), default=1)
        self._offset = np.arange(len(space), dtype=np.intp) * self._width
        self._start()

    def _start(self) -> None:
        self._history: History | None = None
        self._rows = 0
        self._succeeded = np.zeros(len(self.space) * self._width, np.int32)
        self._failed: list[list[int]] = []  # changed values of each failure
        self._suspects: list[list[tuple[int, ...]]] = []  # of each failure: values, or pairs of them
        self._good: list[frozenset[int]] = []
        self._stale = False
        self.value = np.full((len(self.space), self._width), _VALUE)
        self.value[np.arange(len(self.space)), self.space.default] = 0.0
        self._flat = self.value.ravel()  # a view
        self._pairs: list[tuple[int, int, float]] = []
        self._paired = False  # whether any failure is blamed on pairs

    def update(self, history: History, rows: int | None = None) -> Blame:
        """Takes in the new rows of a history (all rows of another one), and returns itself.

        rows: take in the first so many only; None for all. Rows that were taken in stay.
        """
        if history is not self._history:
            self._start()
            self._history = history
        end = len(history) if rows is None else rows
        if end <= self._rows:
            return self
        new = slice(self._rows, end)
        known = zip(history.codes[new], history.outcome[new].tolist(), history.until[new].tolist(), strict=True)
        for codes, outcome, until in known:
            changed = (codes != self.space.default).nonzero()[0]
            where = self._offset[changed] + codes[changed]
            values = where.tolist()
            if outcome != _OK:
                self._failed.append(values)
                self._suspects.append(self._suspected(values))
                self._stale = True
            elif until >= _GATE:  # a build alone says nothing about running and accuracy
                times = self._succeeded[where]
                self._succeeded[where] = times + 1
                self._flat[where] = _ACQUITTED[np.minimum(times + 1, 4)]
                fresh = where[times == 0].tolist()
                self._good.append(frozenset(values))
                if self._failed and (fresh or self._paired):
                    self._acquit(set(values), set(fresh))
        self._rows = end
        if self._stale:
            self._believe()
            self._stale = False
        return self

    def _suspected(self, values: list[int]) -> list[tuple[int, ...]]:
        """Values that never succeeded; where there are none, pairs that never succeeded together."""
        single: list[tuple[int, ...]] = [(v,) for v in values if self._succeeded[v] == 0]
        if single or len(values) > _MOST_CHANGES:
            return single
        self._paired = True
        carried = frozenset(values)
        together = [both for good in self._good if len(both := good & carried) > 1]
        acquitted = {pair for both in together for pair in combinations(sorted(both), 2)}
        return [pair for pair in combinations(sorted(values), 2) if pair not in acquitted]

    def _acquit(self, values: set[int], fresh: set[int]) -> None:
        """A success: what it carries is no longer suspected."""
        for i, suspects in enumerate(self._suspects):
            if not suspects:
                continue
            if len(suspects[0]) == 1:
                if not any(s[0] in fresh for s in suspects):
                    continue
                left = [s for s in suspects if s[0] not in fresh]
                self._suspects[i] = left or self._suspected(self._failed[i])
            else:
                left = [s for s in suspects if not (s[0] in values and s[1] in values)]
                if len(left) == len(suspects):
                    continue
                self._suspects[i] = left
            self._stale = True

    def _believe(self) -> None:
        """Belief propagation over failures and their suspects, from the priors."""
        number: dict[tuple[int, ...], int] = {}
        suspect: list[int] = []
        failure: list[int] = []
        for i, suspects in enumerate(s for s in self._suspects if 0 < len(s) <= _MOST_SUSPECTS):
            for s in suspects:
                suspect.append(number.setdefault(s, len(number)))
                failure.append(i)
        flat = self._flat
        np.copyto(flat, _ACQUITTED[np.minimum(self._succeeded, 4)])
        flat[self._offset + self.space.default] = 0.0
        self._pairs = []
        if not number:
            return
        edge, of = np.asarray(suspect), np.asarray(failure)
        prior = np.asarray([_VALUE if len(s) == 1 else _PAIR for s in number])
        prior_logit = np.log(prior / (1 - prior))
        message = np.zeros(len(edge))
        for _ in range(_ROUNDS):
            total = prior_logit + np.bincount(edge, message, len(number))
            without = total[edge] - message  # the belief but for what this failure says
            innocent = np.logaddexp(0.0, without) * -1.0  # log(1 - p)
            rest = np.bincount(of, innocent)[of] - innocent  # log of the chance that no other suspect did it
            # Pearl's message of a noisy-or that is on: the likelihood ratio of "it is a cause" against "it is not".
            message = math.log(1 - _PASSES) - np.log1p(-(1 - _LEAK) * np.exp(rest))
        total = prior_logit + np.bincount(edge, message, len(number))
        belief = 1 / (1 + np.exp(-total))
        for s, p in zip(number, belief.tolist(), strict=True):
            if len(s) == 1:
                flat[s[0]] = p
            else:
                self._pairs.append((s[0], s[1], p))

    def of(self, codes: Codes) -> NDArray[np.float64]:
        """The probability of failing, for each of several routes: codes int16 (m, d) gives float64 (m,)."""
        at = self._offset + codes
        passes: NDArray[np.float64] = np.prod(1.0 - self._flat[at], axis=-1)
        for a, b, p in self._pairs:
            knob_a, code_a = divmod(a, self._width)
            knob_b, code_b = divmod(b, self._width)
            passes *= 1.0 - p * ((codes[..., knob_a] == code_a) & (codes[..., knob_b] == code_b))
        return 1.0 - passes

    def heal(self, codes: Codes, rng: np.random.Generator, limit: float = 0.2) -> Codes:
        """The route with what is likely to make it fail put back to the default: a copy, int16 (d,).

        Every value that is a cause with a probability above `limit` goes back, and one knob, drawn, of every such pair.
        """
        out = codes.copy()
        bad = (self._flat[self._offset + out] > limit).nonzero()[0]
        if bad.size:
            out[bad] = self.space.default[bad]
        for a, b, p in self._pairs:
            if p > limit:
                (knob_a, code_a), (knob_b, code_b) = divmod(a, self._width), divmod(b, self._width)
                if out[knob_a] == code_a and out[knob_b] == code_b:
                    back = knob_a if rng.random() < 0.5 else knob_b
                    out[back] = self.space.default[back]
        return out
