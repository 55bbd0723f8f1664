"""What a run tells: its status while it goes on, and what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpt_search.accuracy.gate import Tolerances, Worst, worst
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Phase
from gpt_search.measure.protocol import Protocol
from gpt_search.run.engines import EngineCounts


@dataclass(frozen=True)
class Status:
    """Where a running study stands, after every finished trial.

    trial: number of the trial that just finished; finished: how many have, without the reference;
    best_trial: of the fastest feasible route so far, 0 for the reference; best_ratio: its latency
    over the reference's; feasible: how many finished trials are. clock_s: seconds the study has
    run, over all its sessions. left_s: estimated seconds until the budget is spent, None where
    unknown. used: share of the budget that is used, 0 to 1.
    """

    trial: int
    finished: int
    best_trial: int
    best_ratio: float
    feasible: int
    clock_s: float
    left_s: float | None
    used: float
    evaluation: Evaluation
    reference_ms: float


@dataclass(frozen=True)
class Nominee:
    """One route that a study nominates, best first.

    changes: the route without what is at its default. ratio: latency over the reference's; error: its standard error.
    points: the ratio at each shape point, empty where there is one only. worst: the output closest to its tolerance,
    None where nothing was gated. notes: what a reader must know about how it was timed.
    """

    trial: int
    route: str
    changes: str
    latency_ms: float
    ratio: float
    ratio_error: float
    worst: Worst | None
    fingerprint: str | None
    points: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-like form."""
        return {
            **({"points": {name: 1 / ratio for name, ratio in self.points.items()}} if self.points else {}),
            "trial": self.trial,
            "route": self.route,
            "changes": self.changes,
            "latency_ms": self.latency_ms,
            "speedup": 1 / self.ratio,
            "ratio_error": self.ratio_error if math.isfinite(self.ratio_error) else None,
            "accuracy": accuracy_json(self.worst),
            "fingerprint": self.fingerprint,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class StudySummary:
    """What is known of a study: for `show`, and at the end of `tune`.

    outcomes: trials by outcome name, without the reference. engines: against routes.
    nominees: the best routes that beat or equal the reference, best first; the reference itself
    when nothing is faster. timing: what is timed (`timing_json`). end: why the study ended, None while
    it has not. noise: "value", the relative standard deviation of one value, and its "source": "floor" or
    "calibration". imported: the program whose tuning cache the study was made from, None for a study of our own.
    noted: trials with a note on how they were timed; notes: in how many each is, the reference's own trial included.
    """

    study: str
    storage: str
    model: str
    backend: str
    strategy: str
    seed: int
    knobs: int
    routes: int
    trials: int
    outcomes: Mapping[str, int]
    engines: EngineCounts
    reference_ms: float | None
    reference_worst: Worst | None
    nominees: tuple[Nominee, ...]
    clock_s: float
    unfinished: int
    end: str | None
    golden_kind: str
    metric: str
    timing: Mapping[str, Any]
    confirmations: tuple[Mapping[str, Any], ...] = ()
    minimisations: tuple[Mapping[str, Any], ...] = ()
    noise: Mapping[str, Any] | None = None
    imported: str | None = None
    noted: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-like form; the number of routes is exact."""
        return {
            "study": self.study,
            "storage": self.storage,
            "model": self.model,
            "backend": self.backend,
            "strategy": self.strategy,
            "seed": self.seed,
            "knobs": self.knobs,
            "routes": self.routes,
            "trials": self.trials,
            "unfinished": self.unfinished,
            "outcomes": dict(self.outcomes),
            "engines": self.engines.engines,
            "identity": self.engines.to_json(),
            "reference_ms": self.reference_ms,
            "reference": self.golden_kind,
            "metric": self.metric,
            "timing": dict(self.timing),
            "noise": None if self.noise is None else dict(self.noise),
            "reference_accuracy": accuracy_json(self.reference_worst),
            "nominees": [n.to_json() for n in self.nominees],
            "seconds": self.clock_s,
            "end": self.end,
            "confirmations": [dict(c) for c in self.confirmations],
            "minimisations": [dict(m) for m in self.minimisations],
            "imported": self.imported,
            "noted": self.noted,
            "notes": dict(self.notes),
        }


def timing_json(protocol: Protocol) -> dict[str, Any]:
    """What was timed, as a JSON-like form."""
    return {"statistic": protocol.timing, "streams": protocol.streams, "host_copies": protocol.host_copies}


def accuracy_json(found: Worst | None) -> dict[str, Any] | None:
    """The JSON-like form of the output closest to its tolerance."""
    if found is None:
        return None
    loss = found.loss if math.isfinite(found.loss) else str(found.loss)
    return {"pair": found.pair, "output": found.output, "loss": loss, "tolerance": found.tolerance}


def worst_of(evaluation: Evaluation, tolerances: Tolerances) -> Worst | None:
    """The output closest to its tolerance, None where losses were not measured."""
    return worst(evaluation.losses, tolerances) if evaluation.losses else None


def best_row(history: History) -> int | None:
    """The feasible, fully timed row with the smallest value so far; None where there is none."""
    rows = history.feasible & (history.until == Phase.TIME)
    if not rows.any():
        return None
    masked = [v if ok else math.inf for v, ok in zip(history.value.tolist(), rows.tolist(), strict=True)]
    return min(range(len(masked)), key=masked.__getitem__)
