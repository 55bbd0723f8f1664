"""Sparse-linear effects: a linear model of log-latency in which most values of most knobs do nothing.

The lasso selects (R. Tibshirani, J. R. Statist. Soc. B 58 (1996) 267-288), its penalty chosen by cross-validation.
Its estimates are shrunk, and its bootstrap says nothing for effects that it dropped; so the selected effects are
fitted again without a penalty, the others with a small ridge penalty, in every resample: H. Liu, X. Xu and J. J. Li,
"A bootstrap lasso + partial ridge method to construct confidence intervals for parameters in high-dimensional sparse
linear models", Statistica Sinica 30 (2020) 1333-1355 (with resampled pairs: no equal variance is assumed).
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gpt_search.analysis.importance_data import Floats, Trials, indicators

RESAMPLES = 120
FOLDS = 5
FEWEST = 12
"""Routes below which no model is fitted."""
PAIRED_KNOBS = 8


class SparseFit(NamedTuple):
    """effects: columns knob, value, ratio, low, high, selected, trials. importance: (d,), adds up to 1, or all 0.

    resampled: (resamples, d), importance in each resample. explained: share of the variance of log-latency that the
    selected effects explain, by cross-validation; 0 where the model predicts no better than the mean.
    """

    effects: pd.DataFrame
    importance: Floats
    resampled: Floats
    explained: float


def sparse_effects(trials: Trials, resamples: int = RESAMPLES, seed: int = 0) -> SparseFit:
    """Effects of single values on log-latency, all other knobs held equal, with 95 % percentile intervals over engines.

    effects, one row per value that at least 2 routes have: ratio is latency with the value over latency at the
    default; selected, the share of resamples in which the lasso kept it; trials, routes with it. Strongest first.
    importance: variance of the fitted effects of a knob were its values equally frequent, as a share of all; so it
    does not depend on how often a strategy tried what. With fewer than `FEWEST` routes, or as many engines as there are
    folds of the cross-validation, there are no effects.
    """
    d = len(trials.space)
    x, names = indicators(trials, trials.varied)
    n, p = x.shape
    columns = ["knob", "value", "ratio", "low", "high", "selected", "trials"]
    if n < FEWEST or len(np.unique(trials.engines)) <= FOLDS or not p or float(np.ptp(trials.y)) == 0:
        return SparseFit(pd.DataFrame(columns=columns), np.zeros(d), np.zeros((0, d)), 0.0)
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(seed)
    penalty, explained = _penalty(x, trials, rng)
    every = np.ones(n)
    effect, kept = _fit(x, trials.y, every, penalty)
    drawn = np.empty((resamples, p))
    chosen = np.zeros((resamples, p), bool)
    with threadpool_limits(1):  # matrices of this size gain nothing from threads, and lose much on a busy machine
        for b in range(resamples):
            drawn[b], chosen[b] = _fit(x, trials.y, trials.resample(rng).astype(np.float64), penalty)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0) if resamples else np.full((2, p), math.nan)
    space = trials.space
    table = pd.DataFrame(
        {
            "knob": [space.names[k] for k in names[:, 0].tolist()],
            "value": [space.values[k][c] for k, c in names.tolist()],
            "ratio": np.exp(effect),
            "low": np.exp(low),
            "high": np.exp(high),
            "selected": chosen.mean(axis=0) if resamples else kept.astype(np.float64),
            "trials": x.sum(axis=0).astype(np.int64),
        }
    )
    order = np.lexsort((-np.abs(effect), ~kept))
    return SparseFit(
        table.iloc[order].reset_index(drop=True),
        _shares(effect * kept, names, trials),
        np.stack([_shares(e * c, names, trials) for e, c in zip(drawn, chosen, strict=True)])
        if resamples
        else np.zeros((0, d)),
        explained,
    )


def _penalty(x: Floats, trials: Trials, rng: np.random.Generator) -> tuple[float, float]:
    """The lasso's penalty by cross-validation, and the share of variance explained on held-out engines."""
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import KFold

    scaled, y = (x - x.mean(axis=0)) / x.std(axis=0), trials.y
    engines = trials.engines
    by_engine = KFold(FOLDS, shuffle=True, random_state=int(rng.integers(2**31))).split(np.unique(engines))
    folds = [tuple(np.flatnonzero(np.isin(engines, part)) for part in parts) for parts in by_engine]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a path that has not converged at its smallest penalty, which is not chosen
        found = LassoCV(alphas=30, eps=5e-3, cv=folds, max_iter=2000, precompute=True).fit(scaled, y - y.mean())
    error = float(found.mse_path_.mean(axis=1).min())
    return float(found.alpha_), max(0.0, 1 - error / float(y.var()))


def _fit(x: Floats, y: Floats, weight: Floats, penalty: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Lasso, then partial ridge (Liu et al. 2020, eq. 2.3): effects (p,) and which the lasso selected (p,).

    weight: how often each row counts. The ridge penalty of what was not selected is 1 / n, as theirs.
    """
    from sklearn.linear_model import lasso_path

    n = float(weight.sum())
    w = weight[:, None]
    mean, middle = (w * x).sum(axis=0) / n, float(weight @ y) / n
    gram = (x * w).T @ x - n * np.outer(mean, mean)
    product = x.T @ (weight * y) - n * mean * middle
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0) / n)
    there = scale > 1e-9  # a resample may lack a value
    effect, kept = np.zeros(len(scale)), np.zeros(len(scale), bool)
    if not there.any():
        return effect, kept
    s = scale[there]
    g, q = gram[np.ix_(there, there)] / np.outer(s, s), product[there] / s
    root = np.sqrt(weight)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # columns that others stand for converge slowly
        _, path, _ = lasso_path(
            root * ((x[:, there] - mean[there]) / s),
            root[:, 0] * (y - middle),
            alphas=[penalty],
            precompute=g,
            Xy=q,
            check_input=False,
        )
    coefficients = path[:, 0]
    selected = coefficients != 0
    ridge = np.where(selected, 1e-9, 1.0 / n)
    solved = np.linalg.solve(g / n + np.diag(ridge), q / n)
    effect[there], kept[there] = solved / s, selected
    return effect, kept


def _shares(effect: Floats, names: NDArray[np.intp], trials: Trials) -> Floats:
    """Variance of each knob's effects over its values, all equally frequent (0 for the default), as shares of all."""
    d = len(trials.space)
    sizes = np.asarray(trials.space.cardinalities, np.float64)
    total = np.bincount(names[:, 0], effect, d) / sizes
    squares = np.bincount(names[:, 0], effect**2, d) / sizes
    variance = np.maximum(squares - total**2, 0.0)
    whole = float(variance.sum())
    return variance / whole if whole > 0 else variance


def interactions(trials: Trials, knobs: NDArray[np.intp], confidence: float = 0.95) -> pd.DataFrame:
    """Whether two knobs do together what their effects alone do not add up to.

    knobs: the screened ones, (k,). Of each the value with the largest effect is paired. For each pair ordinary least
    squares of log-latency on all values of all these knobs and the product of the two; the product's coefficient is
    the interaction. Its error is the usual one, or that of engines where several routes have one: Cameron and Miller,
    "A Practitioner's Guide to Cluster-Robust Inference", Journal of Human Resources 50, 2015, section II (sums over
    clusters, a correction for few of them, as many degrees of freedom as clusters less one).

    Columns: first, first_value, second, second_value, ratio (latency with both over what the two
    alone give, below 1: faster together), low, high (t interval, all pairs together by Bonferroni), p, holm, trials
    (routes with both). Pairs that fewer than 2 routes have, or that another column stands for, have NaN.
    """
    from scipy import stats

    columns = ["first", "first_value", "second", "second_value", "ratio", "low", "high", "p", "holm", "trials"]
    x, names = indicators(trials, knobs)
    n, p = x.shape
    if p < 2 or n <= p + 2:
        return pd.DataFrame(columns=columns)
    base = np.column_stack([np.ones(n), x])
    q, r = np.linalg.qr(base)
    independent = np.abs(np.diag(r)) > 1e-8 * math.sqrt(n)
    q = np.linalg.qr(base[:, independent])[0]
    effect = np.linalg.lstsq(base, trials.y, rcond=None)[0][1:]
    strongest: dict[int, int] = {}
    for i in np.argsort(-np.abs(effect), kind="stable").tolist():
        strongest.setdefault(int(names[i, 0]), i)
    order = [k for k in knobs.tolist() if k in strongest]
    residual = trials.y - q @ (q.T @ trials.y)
    engines = trials.engines
    clusters = int(engines.max()) + 1
    clustered = clusters < n
    freedom = n - q.shape[1] - 1
    if clustered and clusters < 2:
        return pd.DataFrame(columns=columns)
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    rows = []
    space = trials.space
    for a, b in pairs:
        i, j = strongest[a], strongest[b]
        product = x[:, i] * x[:, j]
        both = int(product.sum())
        left = product - q @ (q.T @ product)  # Frisch and Waugh: what the main effects do not explain of it
        size = float(left @ left)
        log_ratio = low = high = p_value = math.nan
        if both >= 2 and size > 1e-8 * n:
            log_ratio = float(left @ residual) / size
            rest = residual - log_ratio * left
            error, known = math.sqrt(float(rest @ rest) / freedom / size), freedom
            if clustered:
                sums = np.bincount(engines, left * rest, clusters)
                few = clusters / (clusters - 1) * (n - 1) / freedom
                error, known = math.sqrt(few * float(sums @ sums)) / size, clusters - 1
            margin = float(stats.t.ppf(1 - (1 - confidence) / 2 / len(pairs), known)) * error
            low, high = log_ratio - margin, log_ratio + margin
            p_value = float(2 * stats.t.sf(abs(log_ratio) / error, known)) if error > 0 else 0.0
        words = (space.names[a], space.values[a][int(names[i, 1])], space.names[b], space.values[b][int(names[j, 1])])
        rows.append((*words, *np.exp([log_ratio, low, high]).tolist(), p_value, math.nan, both))
    table = pd.DataFrame(rows, columns=columns)
    known = table["p"].notna()
    # Holm's step-down over the pairs that could be tested.
    ranked = table.loc[known, "p"].sort_values()
    steps = np.minimum(np.maximum.accumulate(ranked.to_numpy() * np.arange(len(ranked), 0, -1)), 1.0)
    table.loc[ranked.index, "holm"] = steps
    return table
