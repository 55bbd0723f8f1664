"""One route while it is evaluated: what is known so far, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.execution.launcher import Worker


@dataclass
class FreshBuilds:
    """How a pair of fresh builds is made. load: the candidate is loaded from these bytes in place of being built."""

    reference_first: bool
    keep: bool
    load: bytes | None
    engine: bytes | None = None
    unsaved: str | None = None


class RouteRun:
    """What is known so far about the route that is being evaluated, and what it has cost."""

    def __init__(self, until: Phase, pair: FreshBuilds | None = None) -> None:
        """until: the last phase that is wanted. pair: where two fresh builds are compared."""
        self.until = until
        self.pair = pair
        self.worker: Worker | None = None
        self.cost: dict[str, float] = {"start": 0.0}
        self.facts: dict[str, Any] = {}
        self.reached = ["start"]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charges the wall time of a phase, also when it fails."""
        began = time.perf_counter()
        self.reached.append(name)
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Charges seconds to a phase."""
        self.cost[name] = self.cost.get(name, 0.0) + seconds

    def evaluation(self, outcome: Outcome, **more: Any) -> Evaluation:
        """What is known, as an evaluation. more: further fields of it."""
        note = self.worker.note if self.worker is not None else None
        cost = self.cost if note is None else {name: note.get(name, 0.0) for name in dict.fromkeys(self.reached)}
        return Evaluation(outcome, self.until, cost_s=cost, **(self.facts | more))
