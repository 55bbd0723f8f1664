"""The racing rule: after each round, whether to go on timing a route, with an error bounded over the whole study.

The controlled event: **the truly fastest feasible route among those evaluated is ever discarded** (called
`CLEARLY_WORSE`). Its probability is at most `Protocol.alpha` over the whole study.

Proof. Let mu_i be the true log-ratio of the route of trial i, [L_i(n), U_i(n)] its `confidence.bounds` after n rounds,
and B the smallest upper bound among the feasible routes that were finished when a route is judged. The reference
(trial 0) has mu_0 = 0 by definition, so its bounds are 0 and spend nothing. Given everything that happened before
trial i started, the strategy's choice of that route included, its rounds are new, hence

    P(some n: L_i(n) > mu_i)  <=  0.8 alpha_i   and   P(some n: U_i(n) < mu_i)  <=  0.2 alpha_i,

and by the union over both sides and all trials, all bounds hold at all times except with probability
sum alpha_i <= alpha. Where they hold, let b be the fastest feasible route and j the one with U_j = B. Then
L_b <= mu_b <= mu_j <= U_j = B after every round, so b is never discarded. That includes ties (none of several
equally fast routes is discarded), any strategy, any order, several builders, and studies that are continued.

Routes. mu_i belongs to the engine that trial i built. That build may lie off the route's mean over all builds, which no
number of rounds of one build can tell: of routes the statement holds as far as their builds are alike.

Engines. Where equal fingerprints mean equal engines, routes that give one engine share one sequence of rounds: it
belongs to the trial i that began it, spends alpha_i and nothing more, and a later trial may add rounds to its end.
The bounds of i hold after all of its rounds at once, so when and why rounds are added does not matter; that
they are new does, so each round is in one sequence once, and one trial at a time adds to it (`run.engines`).

What it rests on: independent normal rounds with a variance of their own for each route, or symmetric ones for the
bounds by signs (`confidence`). Each round is a difference of logarithms of medians, so drift that both sides share
cancels, samples that are outliers move little, and what hits either side alike is symmetric. What is left of a burst
widens the bounds by the t-test; then those by signs decide. Nothing is dropped.
Where rounds take a few separate values only (a clock that ticks, a device that switches between two states), a few of
them agree by chance, and Student's statistic explodes. Against that, a route's standard deviation counts
as at least half the median one of the routes timed before it, which can only widen its bounds.
docs/measurement.md and benchmarks/racing.py have what happens under heavy tails, bursts, drift, steps and two states.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gpt_search.domain.evaluation import Round
from gpt_search.measure.confidence import bounds, spread_of
from gpt_search.measure.paired import error_rule, section_log_ratios
from gpt_search.measure.protocol import Protocol

SPREAD_SHARE = 0.5
"""Share of the median standard deviation of a round that a route's own counts as at least."""


class Decision(enum.Enum):
    """What to do after a round."""

    CONTINUE = "time another round"
    ENOUGH = "the estimate is precise enough, or the most rounds allowed are done"
    CLEARLY_WORSE = "the route's lower bound lies above the upper bound of the best: timing stops early"

    @property
    def explanation(self) -> str:
        """One line for reports."""
        return self.value


class Best(NamedTuple):
    """What a route is raced against.

    upper: smallest upper bound of the log-ratio among the feasible routes so far. spread: half the median standard
    deviation of a round among the routes timed so far.
    """

    upper: float
    spread: float = 0.0


class Field:
    """What the routes timed so far teach later ones. Written by one thread; `best` may be read by any.

    It depends on the order of `learn` only, so a continued study that repeats it goes on as it would have.
    """

    best: Best | None
    """None before a feasible route was timed."""

    def __init__(self, protocol: Protocol, weights: tuple[float, ...] = (1.0,)) -> None:
        """Nothing was timed yet. weights: of the workload's shape points."""
        self.best = None
        self._statistic = protocol.statistic(weights)
        self._protocol = protocol
        self._upper = math.inf
        self._spreads: list[float] = []
        self._spread_of: dict[int, float] = {}

    def learn(self, trial: int, rounds: Sequence[Round], *, feasible: bool) -> None:
        """Takes in all rounds of the sequence that this trial began; again when later trials have added to it.

        The reference, trial 0, has the log-ratio 0 by definition, without error.
        Raises ValueError for rounds that `paired_estimate` refuses.
        """
        log_ratios = section_log_ratios(rounds, self._statistic)
        if len(log_ratios) < 2:
            return
        before, found_spread = self._spread_of.get(trial), spread_of(log_ratios)
        if before is not None:
            del self._spreads[bisect_left(self._spreads, before)]
        self._spread_of[trial] = found_spread
        insort(self._spreads, found_spread)
        spread = SPREAD_SHARE * median(self._spreads)
        if feasible:
            found = 0.0 if trial == 0 else bounds(log_ratios, trial, self._protocol.alpha, spread).upper
            self._upper = min(self._upper, found)
        if self._upper < math.inf:
            self.best = Best(self._upper, spread)


def decide(
    rounds: Sequence[Round],
    best: Best | None,
    protocol: Protocol,
    trial: int = 1,
    weights: tuple[float, ...] = (1.0,),
) -> Decision:
    """Whether to go on timing a route after these rounds.

    best: of the `Field` of routes so far, or None while there is none.
    trial: the number of the trial that began this sequence of rounds, from 1; it says what share of alpha the
    sequence may spend, so no two sequences of a study may have the same. weights: of the workload's shape points.
    From `protocol.min_rounds` rounds on (sections of them, `measure.paired`):

    - CLEARLY_WORSE when the route's lower bound lies above the best's upper bound;
    - else ENOUGH at `max_rounds`, or when the standard error has come down to `contender_error`: a route that
      is not clearly worse is a contender. Without a best, `target_error` is enough.

    A function of its arguments alone. Raises ValueError for rounds that `paired_estimate` refuses.
    """
    if len(rounds) < protocol.min_rounds:
        return Decision.CONTINUE
    return decide_on(section_log_ratios(rounds, protocol.statistic(weights)), best, protocol, trial)


def decide_on(
    log_ratios: Sequence[float], best: Best | None, protocol: Protocol, trial: int = 1, uncounted: int = 0
) -> Decision:
    """The rule of `decide` on the sections' log-ratios (`paired.section_log_ratios`).

    uncounted: how many of the first do not count for the fewest and the most rounds, because whoever asks
    wants new ones; bounds and error rest on all of them.
    """
    n = len(log_ratios) - uncounted
    if n < protocol.min_rounds:
        return Decision.CONTINUE
    if best is not None and bounds(log_ratios, trial, protocol.alpha, best.spread).lower > best.upper:
        return Decision.CLEARLY_WORSE
    if n >= protocol.max_rounds:
        return Decision.ENOUGH
    target = protocol.target_error if best is None else protocol.contender_error
    error = error_rule(protocol.statistic())(log_ratios)
    return Decision.ENOUGH if error <= target else Decision.CONTINUE
