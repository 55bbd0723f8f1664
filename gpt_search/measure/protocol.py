"""The measurement protocol: how long a round is, how many there are, when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.measure.statistic import Statistic, check_timing

FRESH_WARMUP = 3.0
"""How many times as long the shortest warm-up is in new processes, which touch their memory for the first time."""

MAX_STREAMS = 256
"""Most calls in flight: each has a thread and buffers of its own, so that a slip of the keys would fill the memory."""

TAIL_ROUNDS = 20
"""`max_rounds` of a protocol for tail quantiles."""


_KINDS: Mapping[str, type] = {"timing": str, "host_copies": bool}


@dataclass(frozen=True)
class Protocol:
    """How one route is timed against the reference; part of a record's key.

    A round here is what gives one log-ratio (`measure.paired`): one turn of each side, at each shape point; for tail
    quantiles as many of these as hold the samples that the quantile needs.

    round_seconds: how long one side of a paired round runs (s), at least 0.01.
    min_rounds, max_rounds: fewest rounds of a route in a search before any decision (at least 3), and the most.
    build_rounds: rounds of each pair of fresh builds (at least 3), all of them used: more builds tell more than
        more rounds of one, since builds differ.
    warmup_seconds: shortest warm-up before the first round (s); it goes on until the samples are
        steady (`measure.sampling.is_steady`), at most warmup_limit_seconds. `FRESH_WARMUP` times as long in processes
        that are started for a pair of builds.
    target_error: standard error of the log-ratio, which is a relative error, at which sampling stops
        while there is nothing to race against.
    contender_error: the same for a route that may still be the best, as every route that is not discarded.
    alpha: probability, at most, that the truly fastest feasible route of a study is ever discarded
        (`measure.sequential`).
    timing: what is timed, one of `measure.statistic.TIMINGS`. streams: calls in flight, more than one for throughput
        only. host_copies: with the copies between host and device.
    """

    round_seconds: float = 0.01
    min_rounds: int = 5
    max_rounds: int = 40
    build_rounds: int = 30
    warmup_seconds: float = 0.1
    warmup_limit_seconds: float = 2.0
    target_error: float = 0.01
    contender_error: float = 0.003
    alpha: float = 0.05
    timing: str = "median"
    streams: int = 1
    host_copies: bool = False

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
        check_timing(self.timing)
        if not 1 <= self.streams <= MAX_STREAMS:
            raise InputError(f"--streams is {self.streams}; it must be from 1 to {MAX_STREAMS}")
        if self.streams > 1 and self.timing != "throughput":
            raise InputError(
                f"--streams {self.streams} with --timing {self.timing}: several calls at a time are timed as "
                "throughput; give --timing throughput, or one stream"
            )
        if not 0 < self.alpha < 1:
            raise InputError(f"measurement protocol: alpha is {self.alpha}; it must lie between 0 and 1")
        if self.contender_error > self.target_error:
            raise InputError(
                f"measurement protocol: contender_error is {self.contender_error}; "
                f"it must be at most target_error ({self.target_error})"
            )

    @classmethod
    def for_timing(cls, timing: str, streams: int = 1, host_copies: bool = False) -> Protocol:
        """The default protocol for what is timed: a tail quantile's rounds are long, so that fewer are allowed.

        Raises InputError for an unknown timing, or streams that do not fit it.
        """
        plain = cls(timing=timing, streams=streams, host_copies=host_copies)
        return plain if plain.statistic().quantile is None else replace(plain, max_rounds=TAIL_ROUNDS)

    def statistic(self, weights: tuple[float, ...] = (1.0,)) -> Statistic:
        """What sums up the samples. weights: of the workload's shape points."""
        return Statistic(self.timing, weights)

    def to_json(self) -> dict[str, Any]:
        """A JSON-like form that `from_json` reads back; without what is timed where that is the median latency."""
        plain = Protocol()
        left_out = {n for n in ("timing", "streams", "host_copies") if getattr(self, n) == getattr(plain, n)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Protocol:
        """The protocol that `to_json` described; what is left out is at its default.

        Raises InputError for an unknown name or a value of the wrong kind.
        """
        allowed = {f.name: int if f.name.endswith(("rounds", "streams")) else float for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in data.items():
            if name not in allowed:
                raise InputError(f"measurement protocol: unknown setting {name!r}{did_you_mean(name, allowed)}")
            if name in _KINDS:
                if not isinstance(value, _KINDS[name]):
                    raise InputError(f"measurement protocol: {name} is {value!r}; it must be a {_KINDS[name].__name__}")
                values[name] = value
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value != allowed[name](value):
                kind = "a whole number" if allowed[name] is int else "a number"
                raise InputError(f"measurement protocol: {name} is {value!r}; it must be {kind}")
            values[name] = allowed[name](value)
        return cls(**values)
