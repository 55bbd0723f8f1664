"""One line of a table: what one build of one route gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Phase
from gpt_search.measure.paired import latency_of, section_log_ratios
from gpt_search.measure.statistic import MEDIAN, Statistic

_ALWAYS = ("outcome", "fingerprint", "violation", "cost_s")
_SOMETIMES = ("losses", "memory_bytes", "engine_bytes", "excess", "message", "build", "notes")
"""What a line holds of an evaluation besides its rounds."""
_OF_THE_SOURCE = ("latency_ms", "error_ms", "log_ratio", "log_ratio_error")


@dataclass(frozen=True)
class TableRecord:
    """What one build of one route gave.

    codes: of the route. build: 0 for the first build of the route. taken_from: number of the earlier record, from 0,
    whose rounds (or failure) stand for this one too, because the engines are the same; then `evaluation.rounds` is
    empty. session: which run of the recording made it, from 1. In an unpaired record (`paired` False: an import) a
    round is one sample of the candidate, and its reference sample is the latency of the reference route.
    """

    codes: tuple[int, ...]
    build: int
    evaluation: Evaluation
    taken_from: int | None = None
    session: int = 1
    paired: bool = True

    def to_json(self, environment: str, statistic: Statistic = MEDIAN) -> dict[str, Any]:
        """The JSON form of the line.

        environment: short digest of where it was measured. statistic: what sums up its samples.
        """
        e = self.evaluation.to_json()
        body: dict[str, Any] = {
            "route": list(self.codes),
            "build_number": self.build,
            **{name: e[name] for name in _ALWAYS},
            "session": self.session,
            "environment": environment,
        }
        if self.taken_from is not None:
            body["taken_from"] = self.taken_from
        for name in _SOMETIMES:
            if e.get(name):
                body[name] = e[name]
        if self.evaluation.rounds and self.taken_from is None:
            body["rounds"] = rounds_to_json(self.evaluation.rounds, statistic, paired=self.paired)
        return body


def rounds_to_json(rounds: Sequence[Round], statistic: Statistic = MEDIAN, *, paired: bool = True) -> dict[str, Any]:
    """All rounds by column, and what they say: the log-ratio of each section, and the reference's latency.

    Samples are text, read only when asked for: blanks between them, `;` between rounds.
    """
    out: dict[str, Any] = {
        "log_ratio": section_log_ratios(rounds, statistic),
        "reference_ms": latency_of(rounds, "reference", statistic),
        "candidate": _text([r.candidate_ms for r in rounds]),
    }
    if paired:
        out["reference"] = _text([r.reference_ms for r in rounds])
        out["started_s"] = [r.started_s for r in rounds]
        out["reference_first"] = "".join("1" if r.reference_first else "0" for r in rounds)
        if any(r.point for r in rounds):
            out["point"] = [r.point for r in rounds]
        launches = [r.launch for r in rounds]
        if set(launches) != {"call"}:
            out["launch"] = launches
        if any(r.device for r in rounds):
            out["device"] = [{k: v if math.isfinite(v) else str(v) for k, v in r.device.items()} for r in rounds]
    return out


def rounds_from_json(data: Mapping[str, Any]) -> tuple[Round, ...]:
    """The rounds that `rounds_to_json` described. Raises KeyError, TypeError or ValueError for another form."""
    candidate = _numbers(data["candidate"])
    n = len(candidate)
    if "reference" in data:
        reference = _numbers(data["reference"])
        started, first = data["started_s"], data["reference_first"]
    else:
        reference, started, first = [(float(data["reference_ms"]),)] * n, [0.0] * n, "0" * n
    launches, devices, points = (
        data.get("launch", ["call"] * n),
        data.get("device", [{}] * n),
        data.get("point", [0] * n),
    )
    if any(len(x) != n for x in (reference, started, first, launches, devices, points)):
        raise ValueError("rounds of different numbers")
    return tuple(
        Round(
            candidate[i],
            reference[i],
            float(started[i]),
            first[i] == "1",
            {str(k): float(v) for k, v in devices[i].items()},
            str(launches[i]),
            int(points[i]),
        )
        for i in range(n)
    )


def evaluation_from_json(body: Mapping[str, Any], rounds: tuple[Round, ...] = ()) -> Evaluation:
    """The evaluation of a line, with these rounds; without the estimates that follow from them."""
    own = {name: body[name] for name in (*_ALWAYS, *_SOMETIMES) if name in body}
    data = {"losses": [], "memory_bytes": None, "message": None, **own, "until": Phase.TIME.name, "rounds": []}
    data |= {"timed_as": None, "raced": False, **dict.fromkeys(_OF_THE_SOURCE)}
    return replace(Evaluation.from_json(data), rounds=rounds)


def _text(samples: Sequence[Sequence[float]]) -> str:
    return ";".join(" ".join(map(repr, map(float, one))) for one in samples)


def _numbers(text: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, one.split(" "))) for one in text.split(";")]
