"""The trials that importance is worked out from, and whether a strategy that learns chose them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError
from gpt_search.domain.history import History
from gpt_search.domain.space import SearchSpace
from gpt_search.search.strategy import pooled

NOT_ADAPTIVE = ("full", "fast", "random", "sparse_random", "qmc")
"""Strategies whose choices do not depend on what was measured."""
PERMUTATIONS = 199
Floats = NDArray[np.float64]


class Trials(NamedTuple):
    """Distinct feasible routes, the reference among them, in order of first appearance.

    codes: int16 (n, d). y: float64 (n,), log(latency / reference). varied: numbers of the knobs with more than one
    value among them. engine: (n,), numbers from 0 of the engines whose samples the values rest on; None where every
    route has samples of its own. Routes of one engine share its error, so that they are no independent data.
    """

    space: SearchSpace
    codes: NDArray[np.int16]
    y: Floats
    varied: NDArray[np.intp]
    engine: NDArray[np.intp] | None = None

    @property
    def engines(self) -> NDArray[np.intp]:
        """`engine`, with a number for every route where that is None."""
        return np.arange(len(self.y)) if self.engine is None else self.engine

    def resample(self, rng: np.random.Generator) -> NDArray[np.intp]:
        """How often each route counts in one bootstrap resample of the engines, (n,)."""
        engines = self.engines
        count = int(engines.max()) + 1
        return np.bincount(rng.integers(0, count, count), minlength=count)[engines]


def trials_of(history: History) -> Trials:
    """The routes of a study with their values pooled. Raises InputError when the reference was not timed."""
    if not len(history) or not history.feasible[0]:
        raise InputError("knob importance needs a study whose reference route was timed")
    rows, value, _ = pooled(history)
    codes = history.codes[rows]
    reference = value[0] if rows[0] == 0 else history.value[0]
    varied = np.flatnonzero((codes != history.space.default).any(axis=0)) if len(rows) > 1 else np.empty(0, np.intp)
    engine = np.unique(history.samples[rows], return_inverse=True)[1].astype(np.intp)
    return Trials(history.space, codes, np.log(value / reference), varied, engine)


def indicators(trials: Trials, knobs: NDArray[np.intp], fewest: int = 2) -> tuple[Floats, NDArray[np.intp]]:
    """One column for each value other than the default that at least `fewest` routes have, and as many have not.

    Returns float64 (n, p) of 0 and 1, and (p, 2): knob number, code.
    """
    columns, names = [], []
    n = len(trials.y)
    for knob in knobs.tolist():
        for code in range(int(trials.space.cardinalities[knob])):
            if code == trials.space.default[knob]:
                continue
            column = trials.codes[:, knob] == code
            if fewest <= int(column.sum()) <= n - fewest:
                columns.append(column)
                names.append((knob, code))
    if not columns:
        return np.empty((n, 0)), np.empty((0, 2), np.intp)
    return np.stack(columns, axis=1).astype(np.float64), np.asarray(names, np.intp)


class Adaptivity(NamedTuple):
    """adaptive: whether choices may depend on results. shift_p: of the test that the first and the second half of the
    study tried the same values equally often, NaN where it cannot be done. warning: for readers, or None.
    """

    adaptive: bool
    shift_p: float
    warning: str | None


def adaptivity(history: History, strategy: str | None = None) -> Adaptivity:
    """Whether the trials were chosen by a strategy that learns, and which measures then hold.

    strategy: its spec, as "tpe:startup=20"; None where it is not known, and then the data decide. All trials count,
    failed ones too.
    """
    p = _shift(history)
    name = None if strategy is None else strategy.partition(":")[0]
    adaptive = name not in NOT_ADAPTIVE if name is not None else p < 0.01
    if not adaptive:
        return Adaptivity(False, p, None)
    who = "the trials" if name is None else f"the trials of {name}"
    seen = "; the second half of the study tried other values than the first" if p < 0.01 else ""
    return Adaptivity(
        True,
        p,
        f"{who} were chosen by earlier results{seen}. Measures that average over trials (fANOVA, mean decrease "
        "impurity, mean effects) then describe where the strategy looked, and PED-ANOVA what it preferred. Single "
        "changes of the reference hold; sparse-linear effects hold as far as effects add up. For the other "
        "measures run a study with --strategy random.",
    )


def _shift(history: History, seed: int = 0) -> float:
    """Permutation test: do both halves of the trials try the values of every knob equally often?

    The statistic is the sum over values of the squared difference of counts over its expectation (Pearson's).
    """
    codes = history.codes[1:]
    n = len(codes)
    if n < 20:
        return float("nan")
    columns = [
        codes[:, k] == c
        for k in np.flatnonzero((codes != codes[0]).any(axis=0)).tolist()
        for c in np.unique(codes[:, k]).tolist()
    ]
    if not columns:
        return float("nan")
    x = np.stack(columns, axis=1).astype(np.float32)
    half = np.zeros(n, np.float32)
    half[n // 2 :] = 1.0
    rng = np.random.default_rng(seed)
    halves = np.stack([half, *(rng.permutation(half) for _ in range(PERMUTATIONS))])
    counts = halves @ x
    expected = x.sum(axis=0) * half.mean()
    statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum(axis=1)
    return float((1 + (statistic[1:] >= statistic[0]).sum()) / (1 + PERMUTATIONS))
