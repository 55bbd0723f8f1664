"""What a strategy is, and what every study does with one."""

from __future__ import annotations

import sys
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError, StrategyError
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.threads import OneBlasThread


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
    """Feasible routes, their samples pooled: row of first appearance (m,), value in ms (m,), standard error in ms (m,).

    Values of one route that rest on different samples are averaged with weights 1 / error^2. Of those that rest on
    the same samples (`history.samples`) one counts, the one with the most rounds, in whatever route it was: equal
    engines have one estimate, and no round counts twice. A value without an error takes the
    history's relative noise; where that is unknown too the error counts as 0, and the values of
    that route get equal weights. A route that failed in any row is left out, however fast it was
    in another.
    """
    route = history.route
    routes = history.n_routes
    failed = np.bincount(route, history.outcome != Outcome.OK, routes) > 0
    rows = np.flatnonzero(history.feasible & ~failed[route])
    rows, most = _independent(history, rows)
    route, value, error = route[rows], history.value[most], history.error[most]
    error = np.where(np.isnan(error), (history.noise or 0.0) * value, error)
    # Below the resolution of a float an error is no error, and its inverse square could overflow.
    none = error <= 1e-15 * value
    exact = np.bincount(route, none, routes) > 0
    weight = np.where(exact[route], 1.0, np.where(none, 1.0, error) ** -2.0)
    total = np.bincount(route, weight, routes)
    kept, first = np.unique(route, return_index=True)
    mean = np.bincount(route, weight * value, routes)[kept] / total[kept]
    alone = np.bincount(route, minlength=routes)[kept] == 1
    mean[alone] = value[first[alone]]  # the value itself, to the last bit
    pooled_error = np.where(exact[kept], 0.0, total[kept] ** -0.5)
    order = np.argsort(first, kind="stable")
    return rows[first][order], mean[order], pooled_error[order]


def _independent(history: History, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of these rows the first of each route and sequence of samples; and of each the row with the most rounds."""
    samples = history.samples
    if (samples[rows] == history.trial[rows]).all():
        return rows, rows
    feasible = np.flatnonzero(history.feasible)
    order = feasible[np.lexsort((feasible, history.rounds[feasible], samples[feasible]))]
    sequences, begin = np.unique(samples[order], return_index=True)
    most = order[np.append(begin[1:], len(order)) - 1]  # the last of each sequence
    pairs = np.stack([history.route[rows], samples[rows]])
    kept = np.sort(np.unique(pairs, axis=1, return_index=True)[1])
    return rows[kept], most[np.searchsorted(sequences, samples[rows[kept]])]


def recommend(history: History, k: int = 1) -> list[int]:
    """Rows of the k feasible routes with the smallest shrunken latency, best first.

    Each log-latency is shrunk towards the mean over feasible routes by the share of its variance
    that is noise, so a lucky noisy row does not beat a slightly slower certain one. Source: the
    empirical-Bayes (James-Stein) estimate for unequal errors, Efron and Morris, JASA 1975; the variance
    between routes is that of DerSimonian and Laird, Controlled Clinical Trials 1986, eq. 8, in which a
    noisy route counts for little. Fewer than k rows come back when fewer routes are feasible.
    """
    firsts, mean, error = pooled(history)
    if not len(firsts):
        return []
    x = np.log(mean)
    noise = np.clip(error / mean, 1e-6, 1e3) ** 2  # bounds, so that exact values have a finite weight
    weight = 1 / noise
    freedom = weight @ (weight.sum() - weight) / weight.sum()
    excess = weight @ (x - weight @ x / weight.sum()) ** 2 - (len(x) - 1)
    between = max(float(excess / freedom), 0.0) if len(x) > 1 else 0.0
    weight = 1 / (noise + between)
    centre = weight @ x / weight.sum()
    shrunk = centre + between / (noise + between) * (x - centre)
    order = np.lexsort((firsts, x, shrunk))
    return [int(firsts[i]) for i in order[:k]]


def recommended_rows(strategy: Strategy, history: History, k: int = 1) -> list[int]:
    """What the study nominates: the strategy's own `recommend` where it has one, else `recommend`. At most k rows.

    Raises StrategyError when the strategy's own fails, or gives anything but distinct, feasible rows.
    """
    own = getattr(strategy, "recommend", None)
    if own is None:
        return recommend(history, k)
    with OneBlasThread(), blamed(strategy, "recommend"):
        given = list(own(history, k))[:k]
    who, feasible, rows = type(strategy).__name__, history.feasible, list[int]()
    for row in given:
        if not isinstance(row, int | np.integer) or isinstance(row, bool) or not 0 <= row < len(history):
            raise StrategyError(
                f"strategy {who} recommended {row!r}, expected a row of the history, 0 to {len(history) - 1}"
            )
        if row in rows:
            raise StrategyError(f"strategy {who} recommended row {row} twice")
        if not feasible[row]:
            raise StrategyError(f"strategy {who} recommended row {row}, which history.feasible says may not win")
        rows.append(int(row))
    return rows


class blamed:
    """Around calls of a strategy's method: what goes wrong in there is said to be the strategy's, with the line.

    Raises StrategyError in place of any exception but InputError, StrategyError and KeyboardInterrupt.
    """

    __slots__ = ("_method", "_strategy")

    def __init__(self, strategy: Strategy, method: str) -> None:
        """The strategy, and the method's name for the message."""
        self._strategy, self._method = strategy, method

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # No generator: contextlib takes a RuntimeError caused by StopIteration for its own, and lets that one through.
        if not isinstance(error, Exception | SystemExit) or isinstance(error, InputError | StrategyError):
            return
        raise StrategyError(
            f"strategy {type(self._strategy).__name__} failed in {self._method}{_where(self._strategy, error)}: "
            f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
        ) from error


def _where(strategy: Strategy, error: BaseException) -> str:
    """The last line of the strategy's own file in the traceback, for a message."""
    file = getattr(sys.modules.get(type(strategy).__module__), "__file__", None)
    found, traceback = "", error.__traceback__
    while traceback is not None:
        if file is not None and traceback.tb_frame.f_code.co_filename == file:
            found = f" ({file}, line {traceback.tb_lineno})"
        traceback = traceback.tb_next
    return found
