"""Paired comparisons of strategies with a named control: on each task by itself, over seeds.

Tasks are blocks: seeds are never pooled over tasks. Of the same seed of a task, a strategy and the control make a
pair; the test is the exact signed-rank test.

Why that test: under the null hypothesis a strategy and the control are exchangeable, so each difference is as likely
with either sign, and the distribution of the statistic given the sizes of the differences is known exactly, whatever
the ties and zeros (on a table, many studies end at the very same route). A permutation test of the mean is exact too,
but one study that found nothing would decide it; ranks also take "worse than anything", which a missing study needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gpt_search.analysis.bootstrap import RESAMPLES, mean_interval
from gpt_search.analysis.regret import TOLERANCE
from gpt_search.analysis.tidy import budgets_of, checked, kept, known_strategy, panel, strategies_of
from gpt_search.domain.errors import InputError, did_you_mean, listing

EXACT_UP_TO = 300
"""Pairs; beyond, the normal approximation with the variance of the tied ranks."""
FAMILIES = ("budget", "all")
OUTCOMES = ("better", "worse", "not distinguishable", "no data")
COMPARISON_COLUMNS = (
    *("budget", "task", "strategy", "control", "n", "missing", "mean", "median", "low", "high"),
    *("percent", "a12", "size", "p", "holm", "outcome", "below_floor"),
)
Floats = NDArray[np.float64]


class SignedRank(NamedTuple):
    """One-sided p-values: that differences are not smaller than 0 (less), not larger (greater). n: pairs, zeros too."""

    less: float
    greater: float
    n: int

    @property
    def p(self) -> float:
        """Two-sided: twice the smaller one."""
        return min(1.0, 2 * min(self.less, self.greater))


@lru_cache(maxsize=4096)
def _null_distribution(doubled_ranks: tuple[int, ...]) -> Floats:
    """P(sum of a random half of the ranks <= s) for s = 0, 1, ...; ranks doubled, so that midranks are integers."""
    pmf = np.zeros(sum(doubled_ranks) + 1)
    pmf[0] = 1.0
    top = 0
    for rank in doubled_ranks:
        # Each rank counts with probability 1/2: a convolution with (1/2 at 0, 1/2 at rank).
        pmf[rank : top + rank + 1] += pmf[: top + 1].copy()
        top += rank
        pmf[: top + 1] *= 0.5
    return np.cumsum(pmf)


def signed_rank(differences: ArrayLike) -> SignedRank:
    """The exact signed-rank test that paired differences are symmetric about 0.

    differences: (n,), not NaN; infinite ones rank beyond all others. Zeros take part in the ranking and then drop out
    (Pratt 1959), ties have midranks, and the distribution is the exact one given those ranks. More than
    `EXACT_UP_TO` pairs: normal, with the variance of the ranks at hand and a continuity correction.
    Sources: F. Wilcoxon, Biometrics Bulletin 1 (1945) 80-83; J. W. Pratt, JASA 54 (1959) 655-667; on exactness with
    ties, E. L. Lehmann, Nonparametrics (1975), section 3.2. Raises ValueError for NaN.
    """
    d = np.asarray(differences, np.float64).ravel()
    if np.isnan(d).any():
        raise ValueError("a signed-rank test needs differences without NaN")
    d = np.where(np.abs(d) <= TOLERANCE, 0.0, d)
    # Midranks, doubled. Rounded first: differences that are equal up to the last bits are ties.
    _, place, count = np.unique(np.round(np.abs(d), 9), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(count) - count + 1)[place]
    positive = int(doubled[d > 0].sum())
    ranks = np.sort(doubled[d != 0])
    if not ranks.size:
        return SignedRank(1.0, 1.0, len(d))
    if len(d) <= EXACT_UP_TO:
        below = _null_distribution(tuple(ranks.tolist()))
        less = below[positive]
        greater = below[len(below) - 1 - positive]  # the distribution is symmetric: no difference of near-equal numbers
    else:
        mean, deviation = ranks.sum() / 2, math.sqrt(float(np.square(ranks.astype(np.float64)).sum())) / 2
        less = stats.norm.cdf((positive + 1 - mean) / deviation)
        greater = stats.norm.sf((positive - 1 - mean) / deviation)
    return SignedRank(min(1.0, float(less)), min(1.0, float(greater)), len(d))


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p that so many pairs can give: all differences of one sign, 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - pairs))


def pairs_needed(comparisons: int, alpha: float = 0.05) -> int:
    """The fewest pairs with which a single comparison out of so many can be significant after Holm."""
    return max(1, math.ceil(1 - math.log2(alpha / comparisons)))


def holm(p: ArrayLike) -> Floats:
    """Adjusted p-values that bound the family-wise error rate, under any dependence. p: (m,).

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979) 65-70.
    """
    values = np.asarray(p, np.float64)
    order = np.argsort(values, kind="stable")
    steps = (len(values) - np.arange(len(values))) * values[order]
    out = np.empty_like(values)
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return out


def a12(first: ArrayLike, second: ArrayLike) -> float:
    """The probability that a value of `first` is smaller (faster) than one of `second`, ties counting half.

    NaN when either is empty. 0.5: no difference; A. Vargha and H. D. Delaney call 0.56 (0.44) small, 0.64 (0.36)
    medium, 0.71 (0.29) large: "A critique and improvement of the CL common language effect size statistics of McGraw
    and Wong", J. Educ. Behav. Stat. 25 (2000) 101-132. They count larger values; here less is better.
    """
    x, y = np.asarray(first, np.float64).ravel(), np.asarray(second, np.float64).ravel()
    if not x.size or not y.size:
        return math.nan
    ordered = np.sort(y)
    larger = y.size - np.searchsorted(ordered, x + TOLERANCE, "right")
    smaller = np.searchsorted(ordered, x - TOLERANCE, "left")
    return float((larger.sum() + 0.5 * (x.size * y.size - larger.sum() - smaller.sum())) / (x.size * y.size))


def magnitude(effect: float) -> str:
    """Vargha and Delaney's word for an A12: negligible, small, medium or large; "" for NaN."""
    if math.isnan(effect):
        return ""
    distance = abs(effect - 0.5) + 1e-12
    words = ((0.21, "large"), (0.14, "medium"), (0.06, "small"))
    return next((word for limit, word in words if distance >= limit), "negligible")


def paired_comparisons(
    frame: pd.DataFrame,
    control: str,
    alpha: float = 0.05,
    budgets: Iterable[float] | None = None,
    *,
    family: str = "budget",
    strategies: Iterable[str] = (),
    tasks: Iterable[str] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """Every strategy against the control, on every task, at every budget.

    frame: see `cells.frame`; what is compared is the log-ratio of the recommended route (the reference's, 0, where a
    study recommends none). The task's best cancels in the difference of two regrets, so none needs to be known.
    family: what Holm's adjustment is over: "budget" (strategies x tasks, at each budget by itself) or "all"
    (strategies x tasks x budgets). strategies, tasks: those that were declared; where one has no study at all, its
    comparisons are there without data, for what a claim is adjusted by must not hang on what failed. resamples: of the
    bootstrap; 0 leaves the interval NaN.

    A study that some strategy has and another lacks (it failed, or was not run) is not left out, since what is left
    would flatter the strategy that fails: each one-sided p-value takes it as the worst for the claim at hand. So a
    claim holds whatever the missing studies would have shown.

    Columns: budget, task, strategy, control, n (pairs with both), missing (pairs with one side), mean and median
    (difference strategy - control of log-ratios, below 0 where the strategy is faster; pairs with both), low and high
    (bootstrap interval of the mean at 1 - alpha, not adjusted), percent (100 (exp(mean) - 1)), a12 (chance that a
    study of the strategy ends faster than one of the control), size (Vargha and Delaney's word), p (two-sided), holm
    (adjusted), outcome (one of `OUTCOMES`, at alpha), below_floor (better or worse, and the mean difference is
    within the task's noise floor).

    Raises InputError for an unknown control, family or budget, no other strategy, or an alpha outside (0, 1).
    """
    checked(frame, ("recommended", "floor"))
    known_strategy(frame, control)
    if family not in FAMILIES:
        raise InputError(f"unknown family {family!r}; allowed: {listing(FAMILIES)}{did_you_mean(family, FAMILIES)}")
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; it must lie between 0 and 1")
    others = sorted({*strategies_of(frame), *strategies} - {control})
    if not others:
        raise InputError(f"the table has results of the control {control} only; a comparison needs another strategy")
    floors = frame.groupby(frame["task"].astype(str))["floor"].max()
    rows: list[dict[str, object]] = []
    differences: list[Floats] = []
    rows_of = frame[frame["budget"].isin(budgets_of(frame, budgets))]
    table = panel(rows_of, kept(rows_of)).reindex(columns=[control, *others])
    matrix = table.to_numpy(np.float64)
    at = table.index.get_level_values("budget").to_numpy(np.float64)
    of = table.index.get_level_values("task").to_numpy()
    # The index is sorted, so each task at each budget is a slice.
    starts = np.flatnonzero(np.r_[True, (at[1:] != at[:-1]) | (of[1:] != of[:-1])])
    for start, stop in zip(starts, [*starts[1:], len(at)], strict=True):
        for column, strategy in enumerate(others, start=1):
            row, difference = _one(matrix[start:stop, column], matrix[start:stop, 0])
            rows.append({"budget": at[start], "task": of[start], "strategy": strategy, "control": control} | row)
            differences.append(difference)
    there = set(zip(at.tolist(), of.tolist(), strict=True))
    nothing = np.empty(0)
    for budget in budgets_of(frame, budgets):
        for task in sorted(set(tasks)):
            for strategy in others if (budget, task) not in there else ():
                row, difference = _one(nothing, nothing)
                rows.append({"budget": budget, "task": task, "strategy": strategy, "control": control} | row)
                differences.append(difference)
    out = pd.DataFrame(rows)
    low, high = _intervals(differences, 1 - alpha, resamples, seed)
    out["low"], out["high"] = low, high
    groups = [out.index] if family == "all" else list(out.groupby("budget").groups.values())
    for index in groups:
        out.loc[index, "holm"] = holm(out.loc[index, "p"])
    significant = out["holm"] <= alpha
    none = (out["n"] == 0).to_numpy()
    out["outcome"] = np.select(
        [none, significant & (out["less"] < out["greater"]), significant],
        ["no data", "better", "worse"],
        "not distinguishable",
    )
    out["below_floor"] = significant & (out["mean"].abs() <= out["task"].map(floors).fillna(0.0))
    return out[list(COMPARISON_COLUMNS)]


def _one(mine: Floats, theirs: Floats) -> tuple[dict[str, object], Floats]:
    """The columns of one strategy on one task; and the differences of the pairs with both sides."""
    have_mine, have_theirs = ~np.isnan(mine), ~np.isnan(theirs)
    both = have_mine & have_theirs
    difference = mine[both] - theirs[both]
    # Seeds that neither has belong to other strategies. One-sided claims take missing pairs as the worst for them.
    missing = int((have_mine ^ have_theirs).sum())
    if not both.any():
        less = greater = 1.0
    elif missing:
        less = signed_rank(np.r_[difference, np.full(missing, np.inf)]).less
        greater = signed_rank(np.r_[difference, np.full(missing, -np.inf)]).greater
    else:
        less, greater, _ = signed_rank(difference)
    some = both.any()
    effect = a12(mine[both], theirs[both])
    mean = float(difference.mean()) if some else math.nan
    row: dict[str, object] = {
        "n": int(both.sum()),
        "missing": missing,
        "mean": mean,
        "median": float(np.median(difference)) if some else math.nan,
        "percent": 100 * math.expm1(mean),
        "a12": effect,
        "size": magnitude(effect),
        "p": min(1.0, 2 * min(less, greater)),
        "less": less,
        "greater": greater,
    }
    return row, difference


def _intervals(differences: list[Floats], confidence: float, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Bootstrap intervals of the means; samples of one size together."""
    low, high = np.full(len(differences), np.nan), np.full(len(differences), np.nan)
    sizes = np.array([len(d) for d in differences])
    for size in np.unique(sizes[sizes >= 2]) if resamples else ():
        which = np.flatnonzero(sizes == size)
        low[which], high[which] = mean_interval(np.stack([differences[i] for i in which]), confidence, resamples, seed)
    return low, high
