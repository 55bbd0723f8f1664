"""The measurement protocol: how long a round is, how many there are, when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpt_search.domain.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Protocol:
    """How one route is timed against the reference; part of a record's key.

    round_seconds: how long one side of a paired round runs (s), at least 0.01.
    min_rounds, max_rounds: fewest rounds of a route in a search before any decision (at least 3), and the most.
    build_rounds: rounds of each pair of fresh builds (at least 3), all of them used: more builds tell more than
        more rounds of one, since builds differ.
    warmup_seconds: shortest warm-up before the first round (s); it goes on until the samples are
        steady (`measure.sampling.is_steady`), at most warmup_limit_seconds.
    target_error: standard error of the log-ratio, which is a relative error, at which sampling stops
        while there is nothing to race against.
    contender_error: the same for a route that may still be the best, as every route that is not discarded.
    alpha: probability, at most, that the truly fastest feasible route of a study is ever discarded
        (`measure.sequential`).
    """

    round_seconds: float = 0.02
    min_rounds: int = 5
    max_rounds: int = 60
    build_rounds: int = 15
    warmup_seconds: float = 0.3
    warmup_limit_seconds: float = 2.0
    target_error: float = 0.01
    contender_error: float = 0.003
    alpha: float = 0.05

    def __post_init__(self) -> None:
        """Raises InputError when a value is out of range."""
        for name, low in (
            ("round_seconds", 0.01),
            ("min_rounds", 3),
            ("max_rounds", self.min_rounds),
            ("build_rounds", 3),
            ("warmup_seconds", 0.0),
            ("warmup_limit_seconds", self.warmup_seconds),
            ("target_error", 0.0),
            ("contender_error", 0.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= low):
                raise InputError(f"measurement protocol: {name} is {value}; it must be at least {low:g}")
        if not 0 < self.alpha < 1:
            raise InputError(f"measurement protocol: alpha is {self.alpha}; it must lie between 0 and 1")
        if self.contender_error > self.target_error:
            raise InputError(
                f"measurement protocol: contender_error is {self.contender_error}; "
                f"it must be at most target_error ({self.target_error})"
            )

    def to_json(self) -> dict[str, float]:
        """A JSON-like form that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Protocol:
        """The protocol that `to_json` described; what is left out is at its default.

        Raises InputError for an unknown name or a value that is not a number.
        """
        allowed = {f.name: int if f.name.endswith("rounds") else float for f in fields(cls)}
        values = {}
        for name, value in data.items():
            if name not in allowed:
                raise InputError(f"measurement protocol: unknown setting {name!r}{did_you_mean(name, allowed)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value != allowed[name](value):
                kind = "a whole number" if allowed[name] is int else "a number"
                raise InputError(f"measurement protocol: {name} is {value!r}; it must be {kind}")
            values[name] = allowed[name](value)
        return cls(**values)  # type: ignore[arg-type]
