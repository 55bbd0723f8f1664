"""An evaluation: everything learned about one route, with raw samples."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpt_search.domain.outcome import Observation, Outcome, Phase

_TIMES = re.compile(r" \([0-9]+ times\)$")


@dataclass(frozen=True)
class Round:
    """One paired round: the candidate and the reference, timed back to back in one window.

    candidate_ms, reference_ms: raw samples in ms, in call order, none dropped. started_s: seconds
    since the study's session began. reference_first: which side ran first. device: clocks,
    temperature and the like, where the backend reads them; the reference's under `reference_...`.
    launch: how the calls of both sides were made. point: number of the workload's shape point that was timed, 0 where
    it has one only.
    """

    candidate_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    started_s: float = 0.0
    reference_first: bool = False
    device: Mapping[str, float] = field(default_factory=dict)
    launch: str = "call"
    point: int = 0


@dataclass(frozen=True)
class Evaluation:
    """Everything learned about one route.

    losses: golden pair number -> output name -> loss name -> loss (NaN and infinity possible).
    violation: largest (loss - tolerance), infinity where no loss can be given, None where not measured.
    log_ratio, log_ratio_error: median over rounds of log(candidate / reference), and its standard error.
    point_log_ratios: the log-ratio at each shape point, empty where the workload has one only.
    error_ms: standard error of latency_ms. memory_bytes: what the engine needs, where the backend says so.
    engine_bytes: its size when saved, where known. excess: by limit of the study, used over allowed, less 1
    (`domain.limits`).
    timed_as: number of the trial that began the samples which stand for this route, because the engines are the
        same; None where that is this trial. borrowed: how many of `rounds`, from the first, earlier trials took.
    checks: number of the trial with the same fingerprint that this one was timed to be compared with: a spot check.
    raced: True when timing stopped early because the route was clearly worse than the best.
    cost_s: seconds by phase ("start", "build", "gate", "time"). message: why it failed, one or more lines.
    build: what the backend tells of the build beside the fingerprint, JSON-like, such as "engine_digest".
    notes: what a reader must know about how it was timed (launched otherwise than usual, throttled rounds).
    """

    outcome: Outcome
    until: Phase
    losses: tuple[Mapping[str, Mapping[str, float]], ...] = ()
    violation: float | None = None
    latency_ms: float | None = None
    error_ms: float | None = None
    log_ratio: float | None = None
    log_ratio_error: float | None = None
    point_log_ratios: tuple[float, ...] = ()
    rounds: tuple[Round, ...] = ()
    fingerprint: str | None = None
    memory_bytes: int | None = None
    engine_bytes: int | None = None
    excess: Mapping[str, float] = field(default_factory=dict)
    timed_as: int | None = None
    borrowed: int = 0
    checks: int | None = None
    raced: bool = False
    cost_s: Mapping[str, float] = field(default_factory=dict)
    message: str | None = None
    notes: tuple[str, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_rounds(self) -> tuple[Round, ...]:
        """The rounds that this trial took itself."""
        return self.rounds[self.borrowed :]

    @property
    def failed(self) -> bool:
        """True when the engine could not be built or run, whatever its accuracy."""
        return self.outcome not in (Outcome.OK, Outcome.ACCURACY)

    def observation(self) -> Observation:
        """What a strategy may see of it."""
        above = self.outcome is Outcome.LIMIT and self.excess
        return Observation(
            self.outcome,
            self.latency_ms,
            max(self.excess.values()) if above else self.violation,
            self.fingerprint,
            dict(self.cost_s),
            self.error_ms,
            self.timed_as,
            len(self.rounds),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON form without NaN or infinity (they become text); `from_json` gives back an equal evaluation."""
        return {
            "outcome": self.outcome.name,
            "until": self.until.name,
            "losses": [{o: {k: _number(v) for k, v in by.items()} for o, by in pair.items()} for pair in self.losses],
            "violation": _number(self.violation),
            "latency_ms": _number(self.latency_ms),
            "error_ms": _number(self.error_ms),
            "log_ratio": _number(self.log_ratio),
            "log_ratio_error": _number(self.log_ratio_error),
            **({"point_log_ratios": [_number(x) for x in self.point_log_ratios]} if self.point_log_ratios else {}),
            "fingerprint": self.fingerprint,
            "memory_bytes": self.memory_bytes,
            **({"engine_bytes": self.engine_bytes} if self.engine_bytes is not None else {}),
            **({"excess": {n: _number(x) for n, x in self.excess.items()}} if self.excess else {}),
            "timed_as": self.timed_as,
            # Only where it says something: borrowed is all or nothing, but for an engine with more rounds.
            **({} if self.borrowed == _borrowed(self.timed_as, len(self.rounds)) else {"borrowed": self.borrowed}),
            **({} if self.checks is None else {"checks": self.checks}),
            "raced": self.raced,
            "cost_s": {phase: _number(s) for phase, s in self.cost_s.items()},
            "message": self.message,
            **({"build": dict(self.build)} if self.build else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            "rounds": [
                {
                    "candidate_ms": [_number(x) for x in r.candidate_ms],
                    "reference_ms": [_number(x) for x in r.reference_ms],
                    "started_s": _number(r.started_s),
                    "reference_first": r.reference_first,
                    **({"device": {k: _number(v) for k, v in r.device.items()}} if r.device else {}),
                    **({"launch": r.launch} if r.launch != "call" else {}),
                    **({"point": r.point} if r.point else {}),
                }
                for r in self.rounds
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """The evaluation that `to_json` described. Raises KeyError, TypeError or ValueError for another form."""
        return cls(
            outcome=Outcome[data["outcome"]],
            until=Phase[data["until"]],
            losses=tuple(
                {o: {k: float(v) for k, v in by.items()} for o, by in pair.items()} for pair in data["losses"]
            ),
            violation=_float_or_none(data["violation"]),
            latency_ms=_float_or_none(data["latency_ms"]),
            error_ms=_float_or_none(data["error_ms"]),
            log_ratio=_float_or_none(data["log_ratio"]),
            log_ratio_error=_float_or_none(data["log_ratio_error"]),
            point_log_ratios=tuple(float(x) for x in data.get("point_log_ratios", ())),
            fingerprint=data["fingerprint"],
            memory_bytes=data["memory_bytes"],
            engine_bytes=data.get("engine_bytes"),
            excess={str(n): float(x) for n, x in data.get("excess", {}).items()},
            timed_as=data["timed_as"],
            borrowed=int(data.get("borrowed", _borrowed(data["timed_as"], len(data["rounds"])))),
            checks=data.get("checks"),
            raced=bool(data["raced"]),
            cost_s={str(k): float(v) for k, v in data["cost_s"].items()},
            message=data["message"],
            build=dict(data.get("build", {})),
            notes=tuple(map(str, data.get("notes", ()))),
            rounds=tuple(
                Round(
                    tuple(map(float, r["candidate_ms"])),
                    tuple(map(float, r["reference_ms"])),
                    float(r["started_s"]),
                    bool(r["reference_first"]),
                    {str(k): float(v) for k, v in r.get("device", {}).items()},
                    str(r.get("launch", "call")),
                    int(r.get("point", 0)),
                )
                for r in data["rounds"]
            ),
        )


def note_counts(notes: Iterable[Sequence[str]]) -> dict[str, int]:
    """In how many evaluations each note is, most first; how often it is said within one does not count.

    notes: of each evaluation.
    """
    counts = Counter(text for of_one in notes for text in dict.fromkeys(_TIMES.sub("", note) for note in of_one))
    return dict(counts.most_common())


def _borrowed(timed_as: int | None, rounds: int) -> int:
    """How many rounds are another trial's where nothing else is said."""
    return 0 if timed_as is None else rounds


def _number(value: float | None) -> float | str | None:
    """Text for what JSON has no number for: "nan", "inf", "-inf"."""
    return value if value is None or math.isfinite(value) else str(value)


def _float_or_none(value: float | str | None) -> float | None:
    return None if value is None else float(value)
