"""The records of a table, by column, and how they are read from its lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.outcome import Outcome
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.store.files import StorageError
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_file import MIN_ROUNDS, environment_digest

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """The records of a table, m of them, by column.

    codes int16 (m, d). build int16 (m,). outcome int8 (m,). fingerprint int32 (m,), numbered by first appearance, -1
    none. violation float64 (m,), NaN where not measured. source int32 (m,): the record whose rounds or failure
    stand for it, its own number where they are its own. log_ratio float64: of all sections of rounds; start int64
    (m + 1,): where a record's own begin in it. reference_ms float64 (m,): latency of the reference beside it, NaN where
    a record has no rounds of its own. cost: float64 (m,) by phase, NaN where it was not reached.
    """

    codes: Codes
    build: NDArray[np.int16]
    outcome: NDArray[np.int8]
    fingerprint: NDArray[np.int32]
    fingerprints: tuple[str, ...]
    violation: Floats
    source: NDArray[np.int32]
    start: NDArray[np.int64]
    log_ratio: Floats
    reference_ms: Floats
    cost: Mapping[str, Floats]
    bodies: Sequence[Mapping[str, Any]]


class Reader:
    """Collects the columns line by line."""

    def __init__(
        self,
        path: Path,
        settings: StudySettings,
        space: SearchSpace,
        lines: Iterator[tuple[int, dict[str, Any], str]],
        digest: str,
    ) -> None:
        """lines: those after the header. digest: of the header; `columns` makes it that of the whole content."""
        self._path, self._space = path, space
        self._environment = environment_digest(settings)
        self._lines = lines
        self.digest = digest
        self._seen: dict[tuple[bytes, int], int] = {}

    def columns(self) -> Columns:
        """All records. Raises StorageError naming the line for one that is not of this table."""
        bodies: list[Mapping[str, Any]] = []
        codes: list[Codes] = []
        build: list[int] = []
        outcome: list[int] = []
        prints: dict[str, int] = {}
        fingerprint: list[int] = []
        violation: list[float] = []
        source: list[int] = []
        start: list[int] = [0]
        log_ratio: list[Floats] = [np.empty(0)]
        reference_ms: list[float] = []
        cost: list[Mapping[str, float]] = []
        for number, body, check in self._lines:
            self.digest = check
            try:
                row = self._codes(body["route"], int(body["build_number"]), number)
                if body["environment"] != self._environment:
                    raise ValueError("it was measured in another environment than the table's")
                found = body.get("fingerprint")
                rounds, taken = body.get("rounds"), body.get("taken_from")
                if taken is not None:
                    if not 0 <= taken < len(bodies) or "taken_from" in bodies[taken] or rounds is not None:
                        raise ValueError(f"it is taken from record {taken}, which is no earlier record with rounds")
                    if bodies[taken].get("fingerprint") != found or found is None:
                        raise ValueError(f"it is taken from record {taken}, which is of another engine")
                if rounds is not None:
                    ratios = np.array(rounds["log_ratio"], np.float64)
                    side = float(rounds["reference_ms"])
                    if ratios.ndim != 1 or len(ratios) < MIN_ROUNDS:
                        raise ValueError(f"it has {len(ratios)} rounds; {MIN_ROUNDS} are the fewest")
                    if not (np.isfinite(ratios).all() and 0 < side < np.inf):
                        raise ValueError("its rounds are not all finite numbers")
                    log_ratio.append(ratios)
                state = Outcome[body["outcome"]]
                if state is Outcome.OK and rounds is None and (taken is None or "rounds" not in bodies[taken]):
                    raise ValueError("it is feasible and has no rounds")
                costs = {str(k): float(v) for k, v in body["cost_s"].items()}
                worst = body["violation"]
                violation.append(np.nan if worst is None else float(worst))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
                what = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise StorageError(f"{self._path}, line {number} is not a record of this table: {what}") from None
            reference_ms.append(np.nan if rounds is None else side)
            codes.append(row)
            build.append(int(body["build_number"]))
            outcome.append(int(state))
            fingerprint.append(-1 if found is None else prints.setdefault(found, len(prints)))
            source.append(len(bodies) if taken is None else taken)
            start.append(start[-1] + (0 if rounds is None else len(ratios)))
            cost.append(costs)
            bodies.append(body)
        phases = dict.fromkeys(phase for costs in cost for phase in costs)
        return Columns(
            codes=np.array(codes, np.int16).reshape(len(codes), len(self._space)),
            build=np.array(build, np.int16),
            outcome=np.array(outcome, np.int8),
            fingerprint=np.array(fingerprint, np.int32),
            fingerprints=tuple(prints),
            violation=np.array(violation, np.float64),
            source=np.array(source, np.int32),
            start=np.array(start, np.int64),
            log_ratio=np.concatenate(log_ratio),
            reference_ms=np.array(reference_ms, np.float64),
            cost={p: np.array([costs.get(p, np.nan) for costs in cost], np.float64) for p in phases},
            bodies=bodies,
        )

    def _codes(self, given: Any, build: int, number: int) -> Codes:
        row = np.array(given, np.int16)
        if not self._space.holds(row):
            raise ValueError(f"{given} is no route of the table's space")
        earlier = self._seen.setdefault((row.tobytes(), build), number)
        if earlier != number:
            raise ValueError(f"build {build} of its route is in line {earlier} already")
        return row
