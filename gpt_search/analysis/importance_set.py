"""Several importance measures side by side, with how stable their order is, and which of them hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpt_search.analysis.importance import knob_importance
from gpt_search.analysis.importance_data import Adaptivity, Floats, Trials, adaptivity, trials_of
from gpt_search.analysis.importance_optuna import optuna_importance
from gpt_search.analysis.importance_sparse import PAIRED_KNOBS, RESAMPLES, SparseFit, interactions, sparse_effects
from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.history import History

METHODS = {
    "single": "one-at-a-time: the reference with only this knob changed",
    "sparse": "sparse-linear: effects of single values, all others held equal",
    "ped-anova": "PED-ANOVA: what decides whether a route is among the best tenth",
    "mdi": "mean decrease impurity of a random forest",
    "fanova": "fANOVA: part of a forest's variance that the knob alone explains",
}
TOP = 10
"""Knobs whose order is looked at."""
SCREENED = {"fanova": 12}
"""Methods that look only at the knobs that mean decrease puts first: their cost grows with knobs times leaves."""
STABILITY = {"ped-anova": 20, "mdi": 0, "fanova": 0}
"""Resamples of the order where nothing else is asked for: a forest is fitted anew for each."""
NEEDS = 20
"""Distinct feasible routes below which forests and PED-ANOVA say nothing."""


class Importance(NamedTuple):
    """knobs: one row per knob and method. stability: one row per method. effects: single values, sparse-linear.

    singles: single values, one-at-a-time. pairs: interactions among the screened knobs. routes: distinct feasible
    ones. explained: by the sparse-linear model, on held-out routes. left_out: methods with too few routes.
    """

    knobs: pd.DataFrame
    stability: pd.DataFrame
    effects: pd.DataFrame
    singles: pd.DataFrame
    pairs: pd.DataFrame
    adaptive: Adaptivity
    routes: int
    explained: float
    left_out: tuple[str, ...]


def measure_importance(
    history: History,
    methods: Sequence[str] = tuple(METHODS),
    *,
    strategy: str | None = None,
    resamples: int | None = None,
    seed: int = 0,
) -> Importance:
    """Which knobs matter, by several methods.

    methods: of `METHODS`. strategy: its spec, where known; see `adaptivity`. resamples: of the bootstrap, for every
    method; by default 120 for sparse, 20 for PED-ANOVA (of the 24 knobs that it puts first), none for forests.

    knobs has the columns method, knob, importance (shares, adding up to 1), rank (1 first, ties share), rank_low and
    rank_high (95 % of the resamples; NaN without any), low and high (importance, 95 % of the resamples;
    of sparse only, whose resamples look at all knobs). stability
    has method, resamples, knobs (how many were looked at), tau (mean Kendall tau-b between the order of the first 10
    and theirs in each resample), top_kept (mean share of the first 10 that stay among the first 10).

    Deterministic. Raises InputError for an unknown method, or a study whose reference was not timed.
    """
    for name in methods:
        if name not in METHODS:
            raise InputError(f"no importance method {name!r}{did_you_mean(name, METHODS)}; {listing(METHODS)}")
    if resamples is not None and resamples < 0:
        raise InputError(f"{resamples} resamples; give 0 or more")
    trials = trials_of(history)
    asked = list(dict.fromkeys(methods))
    sparse = sparse_effects(trials, RESAMPLES if resamples is None else resamples, seed)
    table = knob_importance(history)
    singles = table[table["method"] == "single change"].drop(columns="method").reset_index(drop=True)
    enough = len(trials.y) >= NEEDS and len(trials.varied) > 0 and float(np.ptp(trials.y)) > 0
    left_out = [m for m in asked if (m in STABILITY and not enough) or (m == "sparse" and not sparse.importance.any())]
    parts: list[pd.DataFrame] = []
    stability: list[tuple[str, int, int, float, float]] = []
    forest: Floats | None = None
    for name in asked:
        if name in left_out:
            continue
        if name == "single":
            parts.append(_single(singles, trials))
            continue
        if name == "sparse":
            knobs, whole, drawn = trials.varied, sparse.importance, sparse.resampled
        else:
            if forest is None and name in ("mdi", "fanova"):
                forest = _shares(trials, "mdi", trials.varied, np.arange(len(trials.y)), seed)
            knobs = trials.varied
            if name in SCREENED and forest is not None:
                knobs = _first(forest, SCREENED[name])
            rows = np.arange(len(trials.y))
            whole = forest if name == "mdi" and forest is not None else _shares(trials, name, knobs, rows, seed)
            few = _first(whole, 24)
            count = STABILITY[name] if resamples is None else resamples
            rng = np.random.default_rng((seed, len(name)))
            drawn = (
                np.stack(
                    [_shares(trials, name, few, np.repeat(rows, trials.resample(rng)), seed + 1) for _ in range(count)]
                )
                if count
                else np.zeros((0, len(whole)))
            )
            # Shares among a few knobs only: brought to the scale of the whole.
            drawn = drawn * float(whole[few].sum())
        parts.append(_rows(name, trials, knobs, whole, drawn))
        if len(drawn):
            stability.append((name, len(drawn), int((drawn > 0).any(axis=0).sum()), *_stable(whole, drawn)))
    columns = ["method", "knob", "importance", "rank", "rank_low", "rank_high", "low", "high"]
    knobs_table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    return Importance(
        knobs_table[columns],
        pd.DataFrame(stability, columns=["method", "resamples", "knobs", "tau", "top_kept"]),
        sparse.effects,
        singles,
        interactions(trials, screened_knobs(sparse, forest)),
        adaptivity(history, strategy),
        len(trials.y),
        sparse.explained,
        tuple(left_out),
    )


def screened_knobs(sparse: SparseFit, forest: Floats | None, limit: int = PAIRED_KNOBS) -> NDArray[np.intp]:
    """The knobs that are paired: the first of the sparse-linear model and of the forest, in turn."""
    orders = [_first(sparse.importance, limit).tolist()]
    if forest is not None:
        orders.append(_first(forest, limit).tolist())
    taken: list[int] = []
    for i in range(limit):
        for order in orders:
            if i < len(order) and order[i] not in taken and len(taken) < limit:
                taken.append(order[i])
    return np.asarray(taken, np.intp)


def _first(importance: Floats, limit: int) -> NDArray[np.intp]:
    order = np.argsort(-importance, kind="stable")[:limit]
    return order[importance[order] > 0]


def _shares(trials: Trials, method: str, knobs: NDArray[np.intp], rows: NDArray[np.intp], seed: int) -> Floats:
    """Optuna's measure, float64 (d,), 0 for knobs that were not looked at."""
    sizes = trials.space.cardinalities.tolist()
    found = optuna_importance(trials.codes[rows], trials.y[rows], sizes, method, knobs.tolist(), seed)
    out = np.zeros(len(trials.space))
    for knob, share in found.items():
        out[knob] = share
    return out


def _single(singles: pd.DataFrame, trials: Trials) -> pd.DataFrame:
    share = singles["importance"].to_numpy(np.float64)
    total = float(share.sum())
    out = pd.DataFrame({"method": "single", "knob": singles["knob"], "importance": share / total if total else share})
    out["rank"] = out["importance"].rank(ascending=False)
    return out.assign(rank_low=math.nan, rank_high=math.nan, low=math.nan, high=math.nan)


def _rows(name: str, trials: Trials, knobs: NDArray[np.intp], whole: Floats, drawn: Floats) -> pd.DataFrame:
    names = trials.space.names
    out = pd.DataFrame({"method": name, "knob": [names[k] for k in knobs.tolist()], "importance": whole[knobs]})
    out["rank"] = out["importance"].rank(ascending=False)
    for column in ("rank_low", "rank_high", "low", "high"):
        out[column] = math.nan
    if len(drawn):
        # What no resample looked at has no interval.
        seen = np.asarray((drawn > 0).any(axis=0))[knobs]
        ranks = pd.DataFrame(drawn[:, knobs]).rank(axis=1, ascending=False).to_numpy()
        ends_of = [(("rank_low", "rank_high"), ranks)]
        if name == "sparse":
            ends_of.append((("low", "high"), drawn[:, knobs]))
        for columns, values in ends_of:
            ends = np.quantile(values, [0.025, 0.975], axis=0)
            for column, end in zip(columns, ends, strict=True):
                out[column] = np.where(seen, end, math.nan)
    return out.sort_values(["importance", "knob"], ascending=[False, True], ignore_index=True)


def _stable(whole: Floats, drawn: Floats) -> tuple[float, float]:
    """Mean Kendall tau-b over the first knobs, and the mean share of them that stay the first."""
    from scipy.stats import kendalltau

    first = _first(whole, TOP)
    if len(first) < 2:
        return math.nan, float((drawn.argmax(axis=1) == first[0]).mean()) if len(first) else math.nan
    taus = [float(kendalltau(whole[first], row[first]).statistic) for row in drawn]
    kept = [len(set(first.tolist()) & set(_first(row, len(first)).tolist())) / len(first) for row in drawn]
    known = [t for t in taus if not math.isnan(t)]
    return float(np.mean(known)) if known else math.nan, float(np.mean(kept))
