"""One study looked at after each of several budgets: what it would have recommended, had it ended there.

Strategies do not know the budget, so a study of the largest budget holds the smaller ones as prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.search.simulate import Measure
from gpt_search.search.strategy import Strategy, recommended_rows


class Evaluated(NamedTuple):
    """One trial that was measured: its route, how far it was to go, and what was observed."""

    codes: Codes
    until: Phase
    observation: Observation


class Seen:
    """Measures, and remembers it: `seen` holds the trials in order."""

    def __init__(self, measure: Measure) -> None:
        """measure: as for `simulate`."""
        self.measure = measure
        self.seen: list[Evaluated] = []

    def __call__(self, codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        """One evaluation, as `simulate` wants it."""
        found = self.measure(codes, rng, until)
        self.seen.append(Evaluated(codes.copy(), until, found))
        return found


class AsLive:
    """Measures as a live study does: an engine known by its fingerprint is not timed twice.

    The second route of an engine takes the value over and pays for its start and build; the same route, proposed
    again, is timed again.
    """

    def __init__(self, measure: Measure) -> None:
        """measure: as for `simulate`; fingerprints that are equal must mean equal engines."""
        self.measure = measure
        self._timed: dict[str, tuple[bytes, Observation]] = {}

    def __call__(self, codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        """One evaluation, as `simulate` wants it."""
        found = self.measure(codes, rng, until)
        if found.latency_ms is not None and found.fingerprint is not None:
            route, first = self._timed.setdefault(found.fingerprint, (codes.tobytes(), found))
            if first is not found and route != codes.tobytes():
                cost = {phase: s for phase, s in found.cost_s.items() if phase in ("start", "build")}
                found = first._replace(cost_s=cost)
        return found


def charged(seen: Sequence[Evaluated]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Builds int32 (n,) and seconds float64 (n,) charged so far, each row included; the reference is not charged."""
    builds = np.fromiter((s.observation.built for s in seen), np.int32, len(seen))
    seconds = np.fromiter((sum(s.observation.cost_s.values()) for s in seen), np.float64, len(seen))
    builds[:1] = seconds[:1] = 0
    return np.cumsum(builds, dtype=np.int32), np.cumsum(seconds)


def recommendations(
    make: Callable[[], Strategy],
    space: SearchSpace,
    seen: Sequence[Evaluated],
    rows: Iterable[int],
    noise: float | None = None,
) -> dict[int, int | None]:
    """For each of these rows, the row that the strategy recommends once it is the last one; None where it does none.

    make: makes a fresh strategy, for each row anew, so that nothing it saw later can help. seen: the trials of the
    study, the reference first. rows: numbers of rows, 0 is the reference; later ones than there are stand for the
    last. noise: as the study's.

    Raises StrategyError when the strategy's own `recommend` breaks its contract.
    """
    found: dict[int, int | None] = {}
    prefix = History(space, noise)
    for row in sorted({min(row, len(seen) - 1) for row in rows}):
        while len(prefix) <= row:
            codes, until, observation = seen[len(prefix)]
            prefix.append(len(prefix), codes, observation, until)
        chosen = recommended_rows(make(), prefix)
        found[row] = chosen[0] if chosen else None
    return found
