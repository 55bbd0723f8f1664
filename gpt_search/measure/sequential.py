"""The racing rule: after each round, whether to go on timing a route."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from gpt_search.domain.evaluation import Round
from gpt_search.measure.paired import PairedEstimate, paired_estimate
from gpt_search.measure.protocol import Protocol


class Decision(enum.Enum):
    """What to do after a round."""

    CONTINUE = "time another round"
    ENOUGH = "the estimate is precise enough, or the most rounds allowed are done"
    CLEARLY_WORSE = "the route's lower bound lies above the upper bound of the best: timing stops early"

    @property
    def explanation(self) -> str:
        """One line for reports."""
        return self.value


def decide(rounds: Sequence[Round], best: PairedEstimate | None, protocol: Protocol) -> Decision:
    """Whether to go on timing a route after these rounds.

    best: the best feasible route so far, or None while there is none. The rule, from
    `protocol.min_rounds` rounds on, with z = `protocol.race_z`:

    - CLEARLY_WORSE when log_ratio - z * error of the route lies above log_ratio + z * error of the best;
    - else ENOUGH at `max_rounds`, or when the standard error has come down to `target_error`, or
      to `contender_error` for a contender: a route whose estimate lies no further above the
      best's than z standard errors of their difference.

    Raises ValueError for rounds that `paired_estimate` refuses.
    """
    if len(rounds) < protocol.min_rounds:
        return Decision.CONTINUE
    return decide_on(paired_estimate(rounds), best, protocol)


def decide_on(estimate: PairedEstimate, best: PairedEstimate | None, protocol: Protocol) -> Decision:
    """The rule of `decide` on an estimate that was already computed."""
    if estimate.rounds < protocol.min_rounds:
        return Decision.CONTINUE
    z = protocol.race_z
    if best is not None and estimate.log_ratio - z * estimate.error > best.log_ratio + z * best.error:
        return Decision.CLEARLY_WORSE
    if estimate.rounds >= protocol.max_rounds:
        return Decision.ENOUGH
    target = protocol.contender_error if is_contender(estimate, best, z) else protocol.target_error
    return Decision.ENOUGH if estimate.error <= target else Decision.CONTINUE


def is_contender(estimate: PairedEstimate, best: PairedEstimate | None, z: float) -> bool:
    """True when the route may still be as fast as the best; without a best nothing is a contender."""
    if best is None:
        return False
    return estimate.log_ratio - best.log_ratio <= z * float((estimate.error**2 + best.error**2) ** 0.5)
