"""What can become of one route: the outcomes, the phases, and what a strategy may see of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Outcome(enum.IntEnum):
    """How the evaluation of one route ended. Failure is data: every member explains itself."""

    explanation: str

    def __new__(cls, value: int, explanation: str) -> Outcome:
        """An integer member (so that arrays of outcomes stay small) with its explanation."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        return member

    OK = 0, "the route went through every phase that was asked of it"
    ACCURACY = 1, "the engine's outputs miss a tolerance, or are not finite, or have a wrong shape"
    BUILD_ERROR = 2, "the compiler refused the route with an error"
    CRASH = 3, "the worker process died, or answered with garbage"
    TIMEOUT = 4, "a phase took longer than its limit"
    MEMORY = 5, "the worker process needed more memory than its limit"
    LIMIT = 6, "the engine is larger, or needs more memory, than the study allows"

    @property
    def feasible(self) -> bool:
        """True when the route may be recommended."""
        return self is Outcome.OK


class Phase(enum.IntEnum):
    """How far an evaluation goes; each phase includes the ones before it."""

    explanation: str

    def __new__(cls, value: int, explanation: str) -> Phase:
        """An ordered member with its explanation."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.explanation = explanation
        return member

    BUILD = 1, "build the engine and take its fingerprint"
    GATE = 2, "run the golden inputs and compute the losses"
    TIME = 3, "time the engine against the reference"


_NO_COST: Mapping[str, float] = MappingProxyType({})


class Observation(NamedTuple):
    """The part of an evaluation that a strategy may see.

    outcome: how it ended.
    latency_ms: the paired estimate of the latency, in ms; None where the engine was not timed.
    violation: largest (loss - tolerance) over outputs and golden pairs, feasible when < 0; None
        where losses were not measured; infinity where no loss can be given (NaN, wrong shape). Of an
        engine above a limit (`Outcome.LIMIT`) the largest used / allowed - 1.
    fingerprint: digest of the program in the engine; None where the backend gives none.
    cost_s: seconds spent, by phase name ("start", "build", "gate", "time").
    error_ms: standard error of `latency_ms`, in ms; None where it is unknown.
    timed_as: number of the earlier trial that began the samples which `latency_ms` rests on, because the engine
        is the same; None where they are this trial's own. rounds: how many rounds of them, 0 where unknown.
    """

    outcome: Outcome
    latency_ms: float | None = None
    violation: float | None = None
    fingerprint: str | None = None
    cost_s: Mapping[str, float] = _NO_COST
    error_ms: float | None = None
    timed_as: int | None = None
    rounds: int = 0

    @property
    def built(self) -> bool:
        """True when it counts as a build. A cost without a build phase says that no engine was built; no cost at all
        says nothing."""
        return not self.cost_s or "build" in self.cost_s

    def __reduce__(self) -> tuple[type[Observation], tuple[object, ...]]:
        """Pickled and copied with a plain dictionary: a read-only view of one cannot be."""
        return Observation, (*self[:4], dict(self.cost_s), *self[5:])
