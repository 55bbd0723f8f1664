"""Sentences made from tests: what may be said of a strategy, and no more.

Every claim in a sentence is a row of `comparisons.paired_comparisons` or a pair of `ranks.Friedman`. "Not
distinguishable" says that no difference was shown, never that there is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpt_search.analysis.comparisons import pairs_needed, smallest_p
from gpt_search.analysis.ranks import Friedman
from gpt_search.domain.errors import listing

NAMED = 4
"""Tasks that a sentence names; with more it counts."""


@dataclass(frozen=True)
class Finding:
    """What the comparisons of one strategy with the control, at one budget, allow to say.

    better, worse, same, no_data: names of tasks, every task in exactly one. sentence: the same in words.
    """

    budget: float
    strategy: str
    control: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    same: tuple[str, ...]
    no_data: tuple[str, ...]
    sentence: str


def p_text(p: float) -> str:
    """A p-value with two digits, rounded up: "= 0.0032"; "< 0.0001" below that; "= 1"."""
    if p < 1e-4:
        return "< 0.0001"
    digits = 1 - math.floor(math.log10(p))
    scale = 10.0**digits
    # Up, so that no p looks smaller than it is; less a whisker, so that 0.05 stays 0.05.
    return f"= {math.ceil(p * scale - 1e-9) / scale:g}"


def findings(comparisons: pd.DataFrame, axis: str = "builds") -> list[Finding]:
    """One finding for each budget and strategy, in that order. comparisons: from `paired_comparisons`."""
    return [
        _finding(float(rows["budget"].iloc[0]), str(rows["strategy"].iloc[0]), rows, axis)
        for _, rows in comparisons.groupby(["budget", "strategy"], sort=True)
    ]


def _finding(budget: float, strategy: str, rows: pd.DataFrame, axis: str) -> Finding:
    control, total = str(rows["control"].iloc[0]), len(rows)
    by = {name: rows[rows["outcome"] == name] for name in ("better", "worse", "not distinguishable", "no data")}
    better, worse, same, no_data = by.values()
    at = f"at {budget:g} {axis}"
    of = f"of {total} task{'s' if total > 1 else ''}"
    if len(better):
        text = f"{strategy} beats {control} {at} on {len(better)} {of} ({_evidence(better)})"
        text += f"; it is worse on {len(worse)} ({_evidence(worse)})" if len(worse) else ""
    elif len(worse):
        text = f"{strategy} is worse than {control} {at} on {len(worse)} {of} ({_evidence(worse)})"
    elif len(same):
        where = f"on any {of}" if total > 1 else "on the one task"
        least = p_text(float(same["holm"].min()))
        text = f"{strategy} is not distinguishable from {control} {at} {where} (smallest Holm p {least})"
    else:
        text = f"{strategy} cannot be compared with {control} {at}: no seed of any task has both"
    if (len(better) or len(worse)) and len(same):
        text += f"; not distinguishable on {_tasks(same)}"
    if len(no_data) and len(no_data) < total:
        text += f"; no pair of studies on {_tasks(no_data)}"
    compared = rows[rows["outcome"] != "no data"]
    missing = int(compared["missing"].sum())
    if missing:
        pairs = int(compared["n"].sum()) + missing
        text += f"; {missing} of {pairs} pairs lack a study, which counts against every claim"
    small = rows[rows["below_floor"]]
    if len(small):
        text += f"; on {_tasks(small)} the difference is within the noise floor of one measurement"
    won, lost, tied, unknown = (tuple(part["task"].astype(str)) for part in (better, worse, same, no_data))
    return Finding(budget, strategy, control, won, lost, tied, unknown, text + ".")


def _evidence(rows: pd.DataFrame) -> str:
    """Holm p (the largest), A12 and the mean difference (ranges) of tasks with one outcome."""
    worst = p_text(float(rows["holm"].max()))
    effect = _range(rows["a12"], "{:.2f}")
    percent = rows["percent"]
    # A rank test and a mean may disagree on skewed differences; then the number is given as it is.
    sign = "faster" if (percent < 0).all() else "slower" if (percent > 0).all() else ""
    amount = f"{_range(percent.abs(), '{:.2g}')} % {sign}" if sign else f"latency {_range(percent, '{:+.2g}')} %"
    if len(rows) > 1:
        worst = f"at most {worst.removeprefix('= ')}" if worst.startswith("=") else f"{worst} on each"
    return f"Holm p {worst}, A12 = {effect}, mean {amount}"


def _range(values: pd.Series, form: str) -> str:
    low, high = form.format(values.min()), form.format(values.max())
    return low if low == high else f"{low} to {high}"


def _tasks(rows: pd.DataFrame) -> str:
    names = list(rows["task"].astype(str))
    return f"{len(names)} ({', '.join(names)})" if len(names) <= NAMED else f"{len(names)}"


def rank_sentence(result: Friedman, axis: str = "builds") -> str:
    """What the test over tasks allows to say, pair by pair."""
    k, n = len(result.ranks), len(result.tasks)
    statistic = f"F({k - 1}, {(k - 1) * (n - 1)}) = {result.f:.2f}"
    test = f"Friedman test in Iman and Davenport's form, {statistic}, p {p_text(result.p)}"
    left = f"; without {listing(result.left_out, NAMED)}, which lack studies" if result.left_out else ""
    where = f"Over {n} tasks at {result.budget:g} {axis}"
    if not result.rejected:
        return f"{where} the strategies' ranks are not distinguishable ({test}{left})."

    def shown(names: list[str]) -> str:
        return ", ".join(f"{name} ({result.ranks[name]:.2f})" for name in names)

    order = [str(name) for name in result.ranks.index]
    claims = []
    for i, first in enumerate(order):
        beaten = [other for other in order[i + 1 :] if result.differ(first, other)]
        if beaten:
            claims.append(f"{shown([first])} ranks better than {shown(beaten)}")
    best = [other for other in order[1:] if not result.differ(order[0], other)]
    tied = f"; the best, {order[0]}, is not distinguishable from {shown(best)}" if best else ""
    pairs = "; ".join(claims) if claims else "no pair is told apart"
    cd = f"Nemenyi, critical difference {result.critical_difference:.2f} ranks"
    return f"{where} the strategies differ ({test}{left}); {cd}: {pairs}{tied}."


def power_sentences(comparisons: pd.DataFrame, alpha: float, axis: str = "builds", family: str = "budget") -> list[str]:
    """A warning for each budget at which there are too few seeds for any difference to be shown."""
    out = []
    groups = (
        [("all budgets", comparisons)]
        if family == "all"
        else [(f"{budget:g} {axis}", rows) for budget, rows in comparisons.groupby("budget", sort=True)]
    )
    for where, rows in groups:
        pairs, m = int((rows["n"] + rows["missing"]).max()), len(rows)
        if m * smallest_p(pairs) > alpha:
            out.append(
                f"At {where} no difference can be shown: {pairs} pair{'s' if pairs != 1 else ''} of studies give p = "
                f"{smallest_p(pairs):.2g} at best, and Holm's adjustment is over {m} comparisons; "
                f"{pairs_needed(m, alpha)} seeds are the fewest that can."
            )
    return out


def none_recommended(results: pd.DataFrame, axis: str = "builds") -> list[str]:
    """A sentence for each strategy with studies that recommend nothing at the largest budget: the reference counts.

    results: from `regret.regret_table`.
    """
    last = results[results["budget"] == results["budget"].max()]
    failed = last.assign(strategy=last["strategy"].astype(str)).groupby("strategy")["recommends"]
    table = failed.agg(lambda r: int(np.sum(~r))).to_frame("none").assign(n=failed.size())
    return [
        f"{name} recommended nothing in {row['none']} of {row['n']} studies at {last['budget'].max():g} {axis}; "
        f"the reference counts for them."
        for name, row in table.iterrows()
        if row["none"]
    ]
