"""What a landscape is made of: terms, causes of failure, parents and children, costs.

Positions count the varying knobs of the space, codes their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import SearchSpace


class Term(NamedTuple):
    """What one knob (`second` is None) or a pair of knobs adds.

    first, second: positions of the knobs. log_ratio: float64, added to log(latency / reference), of
    shape (values of first,) or (values of first, values of second). loss: the same shape, added to the
    accuracy loss; None for nothing.
    """

    first: int
    second: int | None
    log_ratio: NDArray[np.float64]
    loss: NDArray[np.float64] | None = None


class Cause(NamedTuple):
    """One reason to fail: knob `first` at a code, and knob `second` at a code where there is one.

    outcome: what becomes of the route. phase: where it happens, BUILD or GATE. loss: for an accuracy
    failure, what it adds to the loss (at least the tolerance).
    """

    first: int
    first_code: int
    second: int | None
    second_code: int
    outcome: Outcome
    phase: Phase
    loss: float = 0.0


class Child(NamedTuple):
    """Knob `knob` changes the program only while knob `parent` is in effect and at one of the `active` codes."""

    knob: int
    parent: int
    active: tuple[int, ...]


class Costs(NamedTuple):
    """Seconds that a phase takes; the limits are what a timeout costs in that phase."""

    start: float
    build: float
    gate: float
    time: float
    build_limit: float
    run_limit: float


class Truth(NamedTuple):
    """What one route does, without noise.

    outcome: of a full evaluation. failed_in: the phase it fails in, None when it does not. log_ratio:
    log(latency / reference), NaN where infeasible. violation: loss - tolerance, NaN where the gate is not
    passed through. fingerprint: digest of the program, None where no engine is built.
    """

    outcome: Outcome
    failed_in: Phase | None
    log_ratio: float
    violation: float
    fingerprint: str | None


class Effect(NamedTuple):
    """One line of the truth: what setting `knobs` to `values` adds, the others at their default.

    log_ratio: added to log(latency / reference); for a pair the interaction alone; NaN for a failure.
    outcome: OK, or the failure that the setting causes.
    """

    knobs: tuple[str, ...]
    values: tuple[str, ...]
    log_ratio: float
    outcome: Outcome


@dataclass(frozen=True)
class Blueprint:
    """Everything that defines a landscape.

    inert: positions of knobs that never change the program. parents come before their children in
    `children`. noise: relative standard deviation of one measured latency. base_loss: the reference's loss.
    """

    space: SearchSpace
    terms: Sequence[Term]
    causes: Sequence[Cause]
    costs: Costs
    reference_ms: float
    noise: float
    children: Sequence[Child] = ()
    inert: frozenset[int] = frozenset()
    tolerance: float = 0.01
    base_loss: float = 0.001
    spec: Mapping[str, object] = field(default_factory=dict)
