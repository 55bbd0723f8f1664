"""The builds of a confirmation that are kept, and which of them is shipped.

Shipped is the build whose own log-ratio is the median of its confirmation's, of two in the middle the slower
one. The fastest build would be the luckiest: of n builds that differ by nothing but noise, its own
timing is better than what it gives by about a standard deviation (1.35 for 7). The median's is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome
from gpt_search.run.rebuild import Rebuilt, log_ratio
from gpt_search.store.engines import EngineFiles

KEPT_BYTES = 8 * 10**9
"""Kept builds of one confirmation take at most this together; the build nearest to the median stays in any case."""

RULE = "the build in the middle of those confirmed, by its own log-ratio; of two in the middle the slower one"


def nearest_to_median(log_ratios: Sequence[float]) -> list[int]:
    """Numbers of the builds in the order in which they would be shipped: by rank, from the middle outwards.

    log_ratios: log(candidate / reference), so the slower of two as near has the larger one.
    """
    by_speed = sorted(range(len(log_ratios)), key=lambda i: (log_ratios[i], i))
    middle = (len(log_ratios) - 1) / 2
    ranks = sorted(range(len(log_ratios)), key=lambda rank: (abs(rank - middle), -rank))
    return [by_speed[rank] for rank in ranks]


class Keeper:
    """Keeps the builds of one route while they are made, within a limit of bytes."""

    def __init__(self, files: EngineFiles, limit: int = KEPT_BYTES) -> None:
        """limit: bytes of all kept builds of this keeper; equal builds count once."""
        self._files, self._limit = files, limit
        self._bytes: dict[str, int] = {}

    def keep(self, data: bytes) -> str:
        """Stores one build's bytes, and returns their name."""
        name = self._files.put(data)
        self._bytes[name] = len(data)
        return name

    def shrink(self, builds: Sequence[Evaluation]) -> None:
        """Where the limit is passed, drops the builds that are farthest from the median of these."""
        if sum(self._bytes.values()) <= self._limit:
            return
        timed = [e for e in builds if isinstance(e, Rebuilt) and e.outcome is Outcome.OK]
        used = 0
        stay: list[str] = []
        if not timed:
            return
        for i in nearest_to_median([log_ratio(e) for e in timed]):
            name = timed[i].engine
            if name is None or name in stay or name not in self._bytes:
                continue
            if not stay or used + self._bytes[name] <= self._limit:
                stay.append(name)
                used += self._bytes[name]
        for name in set(self._bytes) - set(stay):
            del self._bytes[name]
            self._files.remove(name)


def kept_names(confirmation: Mapping[str, Any] | None, minimisation: Mapping[str, Any] | None = None) -> set[str]:
    """The engines that may be shipped: what is kept when nothing else is."""
    found: set[str] = set()
    for data, builds in ((confirmation, "stage_2"), (minimisation, "headline")):
        if data is not None and data["verdict"] == "FASTER":
            found |= {e["engine"] for e in data[builds] if e.get("engine")}
    return found
