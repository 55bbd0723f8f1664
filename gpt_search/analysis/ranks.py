"""Ranks over tasks: average rank over time, the Friedman test and Nemenyi's critical difference.

Source: J. Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7 (2006) 1-30. Tasks are the
blocks, one number for each strategy on each: the mean over seeds of the log-ratio, so that seeds do not pass for tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gpt_search.analysis.bootstrap import mean_interval
from gpt_search.analysis.tidy import budgets_of, checked, kept, panel, strategies_of
from gpt_search.domain.errors import InputError, listing

MIN_TASKS = 10
"""Fewer blocks than this, and the distributions of the Friedman and Nemenyi tests do not hold (Demsar 2006, 3.2.2)."""
DECIMALS = 9
"""Log-ratios are rounded before they are ranked: equal up to rounding is a tie."""
Floats = NDArray[np.float64]


def average_ranks(frame: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """The average rank of every strategy at every budget; 1 is best, ties share.

    Strategies are ranked by the recommended log-ratio on each seed of each task that all have; averaged over seeds
    within the task, then over tasks. Columns: strategy, budget, rank, low and high (bootstrap interval over tasks, NaN
    with one task), tasks, left_out (seeds of tasks that some strategy lacks). At each budget ranks have the mean
    (k + 1) / 2 over k strategies. Raises InputError when no seed of a task has all strategies.
    """
    checked(frame, ("recommended",))
    names = strategies_of(frame)
    everything = panel(frame, kept(frame)).reindex(columns=names)
    parts = []
    for budget in budgets_of(frame):
        table = everything[everything.index.get_level_values("budget") == budget]
        whole = table.dropna()
        if whole.empty:
            raise InputError(
                f"at budget {budget:g} no seed of a task has all of {listing(names)}; run the missing ones"
            )
        ranks = whole.round(DECIMALS).rank(axis=1).groupby(level="task").mean()
        low, high = mean_interval(ranks.to_numpy(np.float64).T, confidence)
        parts.append(
            pd.DataFrame(
                {
                    "strategy": names,
                    "budget": budget,
                    "rank": ranks.mean().to_numpy(),
                    "low": low,
                    "high": high,
                    "tasks": len(ranks),
                    "left_out": len(table) - len(whole),
                }
            )
        )
    return pd.concat(parts, ignore_index=True).sort_values(["strategy", "budget"], ignore_index=True)


@dataclass(frozen=True)
class Friedman:
    """The Friedman test over tasks, and Nemenyi's critical difference.

    ranks: average rank by strategy, ascending. tasks: blocks; left_out: tasks that some strategy lacks a seed of.
    chi2, p_chi2: Friedman's statistic, corrected for ties, with k - 1 degrees of freedom. f, p: Iman and Davenport's
    form of it, the one to use. critical_difference: average ranks that differ by more differ at family-wise alpha.
    """

    budget: float
    ranks: pd.Series
    tasks: tuple[str, ...]
    left_out: tuple[str, ...]
    chi2: float
    p_chi2: float
    f: float
    p: float
    alpha: float
    critical_difference: float

    @property
    def rejected(self) -> bool:
        """Whether the strategies are not all alike; without that no pair is told apart."""
        return self.p <= self.alpha

    def differ(self, first: str, second: str) -> bool:
        """Whether the ranks of two strategies are told apart."""
        return self.rejected and abs(float(self.ranks[first]) - float(self.ranks[second])) > self.critical_difference

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The largest sets of strategies, neighbours in rank, of which no two are told apart: the bars of a diagram."""
        names = [str(n) for n in self.ranks.index]
        out: list[tuple[str, ...]] = []
        end = 0
        for i, first in enumerate(names):
            stop = max(j for j in range(i, len(names)) if not self.differ(first, names[j])) + 1
            if stop > end and stop - i > 1:
                out.append(tuple(names[i:stop]))
            end = max(end, stop)
        return out


def friedman(frame: pd.DataFrame, budget: float, alpha: float = 0.05) -> Friedman:
    """Compares all strategies over tasks, at one budget.

    A task that lacks a seed of some strategy that another strategy has is left out, and named. Raises InputError, with
    the reason, for fewer than `MIN_TASKS` tasks, or fewer than 3 strategies (two are a paired comparison).
    """
    checked(frame, ("recommended",))
    (budget,) = budgets_of(frame, [budget])
    at = frame[frame["budget"] == budget]
    names = strategies_of(frame)
    if len(names) < 3:
        raise InputError(f"a test of ranks over tasks needs at least 3 strategies; there are {len(names)}")
    table = panel(at, kept(at)).reindex(columns=names)
    lacking = table.isna().any(axis=1).groupby(level="task").any()
    blocks = table.groupby(level="task").mean()[~lacking]
    left_out = tuple(str(t) for t in lacking.index[lacking])
    if len(blocks) < MIN_TASKS:
        why = f"; {len(left_out)} more lack studies ({listing(left_out, 4)})" if left_out else ""
        raise InputError(
            f"a test of ranks over tasks needs at least {MIN_TASKS} of them; there are {len(blocks)}{why}. "
            f"The comparisons on each task hold"
        )
    ranks = blocks.round(DECIMALS).rank(axis=1)
    n, k = ranks.shape
    chi2, p_chi2, f, p = friedman_statistics(ranks.to_numpy(np.float64))
    mean = ranks.mean().sort_values(kind="stable")
    return Friedman(
        budget=budget,
        ranks=mean,
        tasks=tuple(str(t) for t in blocks.index),
        left_out=left_out,
        chi2=chi2,
        p_chi2=p_chi2,
        f=f,
        p=p,
        alpha=alpha,
        critical_difference=critical_difference(k, n, alpha),
    )


def friedman_statistics(ranks: ArrayLike, ties: bool = True) -> tuple[float, float, float, float]:
    """(chi2, its p, F, its p) of ranks (n blocks, k treatments).

    ties: divide chi2 by what ties take from the variance of ranks, as scipy.stats.friedmanchisquare does; Demsar's
    worked example does not. F is Iman and Davenport's (Commun. Statist. A9 (1980) 571-595), with k - 1 and
    (k - 1)(n - 1) degrees of freedom: chi2 alone is too conservative (Demsar 2006, 3.2.2).
    """
    r = np.asarray(ranks, np.float64)
    n, k = r.shape
    chi2 = 12 * n / (k * (k + 1)) * (float(np.square(r.mean(axis=0)).sum()) - k * (k + 1) ** 2 / 4)
    if ties:
        # Ranks 1..k have the sum of squares k(k+1)(2k+1)/6; each group of t ties lowers it by (t^3 - t) / 12.
        loss = n * k * (k + 1) * (2 * k + 1) / 6 - float(np.square(r).sum())
        left = 1 - 12 * loss / (n * k * (k * k - 1))
        if left <= 1e-12:  # every block is one tie
            return 0.0, 1.0, 0.0, 1.0
        chi2 /= left
    most = n * (k - 1)
    chi2 = min(max(chi2, 0.0), most)
    if most - chi2 <= 1e-9:  # all blocks agree: F is infinite, and one order out of k! came up n times
        return chi2, float(stats.chi2.sf(chi2, k - 1)), math.inf, math.factorial(k) ** (1.0 - n)
    f = (n - 1) * chi2 / (most - chi2)
    p_f = float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))
    return chi2, float(stats.chi2.sf(chi2, k - 1)), f, p_f


@lru_cache(maxsize=64)
def critical_difference(strategies: int, tasks: int, alpha: float = 0.05) -> float:
    """Nemenyi's: q sqrt(k (k + 1) / (6 n)), q the Studentized range quantile over sqrt(2) (Demsar 2006, 3.2.2)."""
    q = float(stats.studentized_range.ppf(1 - alpha, strategies, np.inf)) / math.sqrt(2)
    return q * math.sqrt(strategies * (strategies + 1) / (6 * tasks))
