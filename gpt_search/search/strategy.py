"""What a strategy is, and what every study does with one."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams


class Proposal(NamedTuple):
    """What to try next.

    codes: int16 (d,), a route of the space. until: how far to go; `Phase.BUILD` stops after the
    fingerprint, `Phase.GATE` after the losses, `Phase.TIME` on a route that was timed already
    extends its samples.
    """

    codes: Codes
    until: Phase = Phase.TIME


@runtime_checkable
class Strategy(Protocol):
    """Proposes what to try next: a pure function of space, history and streams.

    Equal arguments must give equal proposals, in a fresh object too: that is what makes a study
    resumable without stored state. A strategy may cache what it derived from a prefix of one
    history. All randomness comes from `streams.trial(history.next_trial, purpose)`. Routes that
    `history.contains` are the strategy's own to skip. Row 0 of the history is the reference route,
    evaluated before the first call.

    Optional methods: `recommend(history, k)`, like the function of that name in this module;
    `count(space)`, the exact number of trials known in advance, or None.
    """

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The next proposal, or None when there is nothing left to propose.

        With pending rows None may be temporary: the loop asks again once a pending trial has
        finished, and ends the study when it gets None with nothing pending.
        """
        ...


def pooled(
    history: History,
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Feasible routes, their rows averaged: row of first appearance (m,), value in ms (m,), standard error in ms (m,).

    Rows of one route are averaged with weights 1 / error^2. A row without an error takes the
    history's relative noise; where that is unknown too the error counts as 0, and the rows of
    that route get equal weights. A route that failed in any row is left out, however fast it was
    in another.
    """
    route, value = history.route, history.value
    routes = history.n_routes
    failed = np.bincount(route, history.outcome != Outcome.OK, routes) > 0
    rows = np.flatnonzero(history.feasible & ~failed[route])
    route, value, error = route[rows], value[rows], history.error[rows]
    error = np.where(np.isnan(error), (history.noise or 0.0) * value, error)
    exact = np.bincount(route, error <= 0, routes) > 0
    with np.errstate(divide="ignore"):
        weight = np.where(exact[route], 1.0, error**-2.0)
    total = np.bincount(route, weight, routes)
    kept, first = np.unique(route, return_index=True)
    mean = np.bincount(route, weight * value, routes)[kept] / total[kept]
    pooled_error = np.where(exact[kept], 0.0, total[kept] ** -0.5)
    order = np.argsort(first, kind="stable")
    return rows[first][order], mean[order], pooled_error[order]


def recommend(history: History, k: int = 1) -> list[int]:
    """Rows of the k feasible routes with the smallest shrunken latency, best first.

    Each log-latency is shrunk towards the mean over feasible routes by the share of its variance
    that is noise, so a lucky noisy row does not beat a slightly slower certain one. Source: the
    empirical-Bayes (James-Stein) estimate, Efron and Morris, JASA 1973. Fewer than k rows come back
    when fewer routes are feasible.
    """
    firsts, mean, error = pooled(history)
    if not len(firsts):
        return []
    x = np.log(mean)
    variance = (error / mean) ** 2
    between = max(float(np.var(x)) - float(variance.mean()), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        keep = np.where(variance + between > 0, between / (variance + between), 1.0)
    shrunk = x.mean() + keep * (x - x.mean())
    order = np.lexsort((firsts, x, shrunk))
    return [int(firsts[i]) for i in order[:k]]


def recommended_rows(strategy: Strategy, history: History, k: int = 1) -> list[int]:
    """What the study nominates: the strategy's own `recommend` where it has one, else `recommend`."""
    own = getattr(strategy, "recommend", None)
    rows = own(history, k) if own is not None else recommend(history, k)
    return [int(r) for r in rows]
