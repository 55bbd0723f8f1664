"""Which knobs matter in one study, and how sure that is.

Three methods, and every row of the result names the one it comes from:

single change: the study holds the reference with only this knob changed: its latency ratio, directly.
mean effect: mean log-latency of the trials with a value against that of the trials with the
    knob at its default. Other knobs vary too; they average out when they vary independently.
PED-ANOVA: the share of the variance of being among the best tenth (Optuna's
    implementation), for studies with many trials. Source: Watanabe, Bansal and Hutter,
    "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces", IJCAI 2023.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpt_search.analysis.curves import CONFIDENCE_Z
from gpt_search.analysis.importance_optuna import optuna_importance
from gpt_search.domain.errors import InputError
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome

PED_ANOVA_TRIALS = 100
"""Feasible trials from which PED-ANOVA is used: its best tenth is then ten routes or more."""

SINGLE_CHANGE_SHARE = 0.8
"""A study in which this share of the feasible trials differ from the reference in one knob is read by those."""

COLUMNS = ("knob", "value", "importance", "ratio", "low", "high", "trials", "failed", "method")


class _Effect(NamedTuple):
    """Latency with a value over latency at the default: its log, standard error, degrees of freedom, trials."""

    knob: int
    code: int
    log_ratio: float
    error: float
    freedom: float
    trials: int
    method: str


def knob_importance(history: History) -> pd.DataFrame:
    """The knobs of a study, the most important first.

    Columns, one row per knob that was tried at another value than its default: knob; value, the one
    with the strongest effect; importance, at least 0, adding up to 1 over the knobs (0 for all where
    nothing has an effect); ratio, latency with that value over latency at the default, below 1 is
    faster, NaN where no trial with it has a latency; low and high, its 95 % interval, NaN where it cannot be
    given; trials, feasible ones with that value; failed, share of all trials with the knob changed
    that failed; method, of importance ("PED-ANOVA") or of ratio and importance alike.

    Without PED-ANOVA importance is |log ratio| shrunk by its noise, |r| r^2 / (r^2 + error^2), so that
    a large effect seen once does not outrank a certain one. Raises InputError when the
    reference was not timed.
    """
    if not len(history) or not history.feasible[0]:
        raise InputError("knob importance needs a study whose reference route was timed")
    space, codes = history.space, history.codes
    feasible = np.flatnonzero(history.feasible)
    changed = codes != space.default
    effects = [e for e in map(_strongest, _by_knob(history, feasible, changed)) if e is not None]
    importance = {e.knob: _shrunk(e) for e in effects}
    by_ped = _use_ped_anova(changed[feasible])
    if by_ped:
        importance = _ped_anova(history, feasible)
    total = sum(importance.values())
    failures = history.outcome != Outcome.OK
    by_number = {e.knob: e for e in effects}
    rows = []
    for knob in np.flatnonzero(changed.any(axis=0)).tolist():
        effect = by_number.get(knob)
        with_it = changed[:, knob]
        share = importance.get(knob, 0.0) / total if total > 0 else 0.0
        margin = math.nan if effect is None else _quantile(effect.freedom) * effect.error
        rows.append(
            {
                "knob": space.names[knob],
                "value": _tried(history, knob) if effect is None else space.values[knob][effect.code],
                "importance": share,
                "ratio": math.nan if effect is None else math.exp(effect.log_ratio),
                "low": math.nan if effect is None else math.exp(effect.log_ratio - margin),
                "high": math.nan if effect is None else math.exp(effect.log_ratio + margin),
                "trials": 0 if effect is None else effect.trials,
                "failed": float(failures[with_it].mean()),
                "method": "PED-ANOVA" if by_ped else ("none" if effect is None else effect.method),
            }
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values(["importance", "knob"], ascending=[False, True], ignore_index=True)


def _by_knob(history: History, feasible: NDArray[np.intp], changed: NDArray[np.bool_]) -> Iterator[list[_Effect]]:
    """For every knob the effects of its values: single changes where there are any, else mean effects."""
    space = history.space
    log = np.log(history.value[feasible])
    relative = history.error[feasible] / history.value[feasible]
    relative = np.where(np.isnan(relative), history.noise if history.noise is not None else np.nan, relative)
    count = changed[feasible].sum(axis=1)
    reference = math.log(float(history.value[0]))
    for knob, cardinality in enumerate(space.cardinalities.tolist()):
        column = history.codes[feasible, knob]
        effects = []
        for code in range(cardinality):
            if code == space.default[knob]:
                continue
            chosen = column == code
            alone = chosen & (count == 1)
            if alone.any():
                effects.append(_single(knob, code, log[alone] - reference, relative[alone]))
            elif chosen.any() and (without := column == space.default[knob]).any():
                effects.append(_mean(knob, code, log[chosen], log[without]))
        yield effects


def _single(knob: int, code: int, log_ratios: NDArray[np.float64], errors: NDArray[np.float64]) -> _Effect:
    n = len(log_ratios)
    error = float(np.sqrt(np.mean(errors**2) / n))
    freedom = math.inf
    if math.isnan(error) and n > 1:
        error, freedom = float(log_ratios.std(ddof=1) / math.sqrt(n)), n - 1.0
    return _Effect(knob, code, float(log_ratios.mean()), error, freedom, n, "single change")


def _mean(knob: int, code: int, with_it: NDArray[np.float64], without: NDArray[np.float64]) -> _Effect:
    """Student's comparison of two means of log-latencies, with one variance for both groups.

    One variance, because most values are seen in a few trials only: the scatter of two of them says nothing.
    """
    n, m = len(with_it), len(without)
    freedom = n + m - 2.0
    error = math.nan
    if freedom > 0:
        squares = float(((with_it - with_it.mean()) ** 2).sum() + ((without - without.mean()) ** 2).sum())
        error = math.sqrt(squares / freedom * (1 / n + 1 / m))
    return _Effect(knob, code, float(with_it.mean() - without.mean()), error, freedom, n, "mean effect")


def _strongest(effects: list[_Effect]) -> _Effect | None:
    return max(effects, key=_shrunk, default=None)


def _shrunk(effect: _Effect) -> float:
    """|log ratio|, shrunk by its noise; an effect whose noise is unknown counts least."""
    size = abs(effect.log_ratio)
    if math.isnan(effect.error) or size == 0:
        return 0.0
    return size * size**2 / (size**2 + effect.error**2)


def _quantile(freedom: float) -> float:
    """Standard errors on each side of a 95 % interval."""
    if math.isnan(freedom):
        return math.nan
    if math.isinf(freedom):
        return CONFIDENCE_Z
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def _tried(history: History, knob: int) -> str:
    """The value that was tried most often, for a knob of which no effect can be given."""
    counts = np.bincount(history.codes[:, knob], minlength=int(history.space.cardinalities[knob]))
    counts[history.space.default[knob]] = 0
    return history.space.values[knob][int(np.argmax(counts))]


def _use_ped_anova(changed: NDArray[np.bool_]) -> bool:
    """Whether the feasible trials are many, and vary several knobs at once."""
    trials = changed[changed.any(axis=1)]
    if len(trials) < PED_ANOVA_TRIALS:
        return False
    return float((trials.sum(axis=1) == 1).mean()) < SINGLE_CHANGE_SHARE


def _ped_anova(history: History, feasible: NDArray[np.intp]) -> dict[int, float]:
    """PED-ANOVA importance by knob number, for the knobs with at least two values among the feasible trials."""
    sizes = history.space.cardinalities.tolist()
    return optuna_importance(history.codes[feasible], history.value[feasible], sizes, "ped-anova")
