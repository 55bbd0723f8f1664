"""Tables: what a space, or a sample of it, measured; a stand-in for the compiler. The format is in docs/tables.md."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt_search.backends.base import Fingerprints
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.measure.build_effect import BuildEffect, build_effect
from gpt_search.measure.paired import PairedEstimate, estimate_of_sections, latency_of, section_log_ratios
from gpt_search.store.files import StorageError
from gpt_search.store.sealed import read_sealed
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_columns import Columns, Floats, Reader
from gpt_search.store.table_file import MIN_ROUNDS, read_header, statistic_of
from gpt_search.store.table_record import evaluation_from_json, rounds_from_json

_OUTCOMES = list(Outcome)
_PHASES = {"build": Phase.BUILD, "gate": Phase.GATE, "time": Phase.TIME}


def load_table(path: str | Path, *, unfinished: bool = False) -> Table:
    """A table, loaded columnar. unfinished: the partial file of a recording that was stopped.

    Raises StorageError naming file and line for a line that is broken, cut off, edited, from another environment, or
    that contradicts the header or an earlier line; InputError without zstandard.
    """
    path = Path(path)
    lines = read_sealed(path, unfinished=unfinished)
    with _no_collection():
        first = next(lines, None)
        settings = read_header(path, first)
        try:
            space = SearchSpace.from_spec(settings["space"]["spec"])
        except (KeyError, TypeError, InputError) as error:
            raise StorageError(f"{path}, line 1: no search space ({error})") from None
        reader = Reader(path, settings, space, lines, first[2] if first is not None else "")
        return Table(path, settings, space, reader.columns(), reader.digest)


@contextmanager
def _no_collection() -> Iterator[None]:
    # Many small objects at once, none of them garbage: looking for some would take most of the time.
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Table:
    """A measured space, or a sample of it.

    settings: the facts that all records share. statistic: what sums up its samples. fingerprints: what equal ones
    mean. space: the search space. columns: of the records. codes: int16 (n, d), the distinct routes in order of first
    appearance. row: int32 (m,), the route of each record. digest: of the whole content.

    Rounds are split in two halves that share none, pair by pair in turn, so that both hold as many rounds of either
    order and of every time: `truth_rounds` tell what is true, `replay_rounds` are what a replay draws from.
    """

    def __init__(self, path: Path, settings: StudySettings, space: SearchSpace, columns: Columns, digest: str) -> None:
        """Not called by users: `load_table` does."""
        self.digest = digest
        self.path, self.settings, self.space, self.columns = path, settings, space, columns
        self.statistic = statistic_of(settings)
        self.fingerprints = Fingerprints[settings.get("fingerprint") or "NONE"]
        self._rows: dict[bytes, int] = {}
        row = [self._rows.setdefault(codes.tobytes(), len(self._rows)) for codes in columns.codes]
        self.row: NDArray[np.int32] = np.array(row, np.int32)
        _, first = np.unique(self.row, return_index=True)
        self.codes: Codes = columns.codes[first]
        self._first: NDArray[np.intp] = first
        self._records: list[list[int]] = [[] for _ in range(len(first))]
        for record, one in enumerate(row):
            self._records[one].append(record)

    def __len__(self) -> int:
        """Number of distinct routes, n."""
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Table({self.path.name}: {len(self)} of {self.space.size} routes, {len(self.row)} builds)"

    def estimate(self, log_ratios: Floats) -> PairedEstimate:
        """What sections of rounds say."""
        return estimate_of_sections(log_ratios, self.statistic)

    # -- what is there -------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return self.path.name.split(".")[0]

    @property
    def complete(self) -> bool:
        """True when every route of the space was recorded."""
        return len(self) == self.space.size

    @property
    def paired(self) -> bool:
        """False for an import, whose samples are of the candidate alone."""
        return self.settings.get("imported") is None

    def find(self, codes: Codes) -> int | None:
        """The row of a route, None where it was not recorded. codes: int16 (d,)."""
        return self._rows.get(codes.tobytes())

    def route(self, row: int) -> Route:
        """The route of a row."""
        return self.space.route(self.codes[row])

    def records(self, row: int) -> Sequence[int]:
        """The records of a route, its first build first."""
        return self._records[row]

    @property
    def first(self) -> NDArray[np.intp]:
        """The first record of each route, (n,)."""
        return self._first

    @cached_property
    def reference(self) -> int:
        """The row of the reference route. Raises InputError where it was not recorded, or is not feasible."""
        row = self.find(self.space.default)
        if row is None:
            raise InputError(f"{self.path} does not hold the reference route; record it, or import it with --reference")
        outcome = self.outcome(int(self._first[row]))
        if outcome is not Outcome.OK:
            raise InputError(f"{self.path}: the reference route is {outcome.name}; there is nothing to compare with")
        return row

    @cached_property
    def reference_ms(self) -> float:
        """The reference's latency beside its own first build, ms."""
        return float(self.columns.reference_ms[self.columns.source[self._first[self.reference]]])

    def outcome(self, record: int) -> Outcome:
        """The outcome of a record."""
        return _OUTCOMES[int(self.columns.outcome[record])]

    def failed_in(self, record: int) -> Phase:
        """The phase in which a failed record failed, in its own trial or that of the engine it shares."""
        reached = self.columns.bodies[int(self.columns.source[record])]["cost_s"]
        return max((phase for name, phase in _PHASES.items() if name in reached), default=Phase.BUILD)

    def rounds(self, record: int) -> tuple[Round, ...]:
        """The rounds that stand for a record, with all raw samples. Raises StorageError for samples that are none."""
        source = int(self.columns.source[record])
        data = self.columns.bodies[source].get("rounds")
        try:
            return () if data is None else rounds_from_json(data)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self.path}, line {source + 2}: its samples cannot be read ({error})") from None

    def evaluation(self, record: int) -> Evaluation:
        """A record as an evaluation, with the rounds that stand for it and without estimates."""
        return evaluation_from_json(self.columns.bodies[record], self.rounds(record))

    def check_samples(self) -> None:
        """Raises StorageError when the log-ratios of a record are not those of its raw samples."""
        for record in np.flatnonzero(self.columns.source == np.arange(len(self.row))):
            rounds = self.rounds(int(record))
            if not rounds:
                continue
            found = section_log_ratios(rounds, self.statistic)
            side, own = latency_of(rounds, "reference", self.statistic), self._own(self.columns.log_ratio, int(record))
            same = len(found) == len(own) and np.allclose(found, own, rtol=0, atol=1e-12)
            if not same or not np.isclose(side, self.columns.reference_ms[record], rtol=1e-12):
                raise StorageError(f"{self.path}, line {record + 2}: its log-ratios are not those of its samples")

    def _own(self, column: Floats, record: int) -> Floats:
        start = self.columns.start
        return column[start[record] : start[record + 1]]

    # -- two halves ----------------------------------------------------------------------------
    def all_rounds(self, record: int) -> Floats:
        """Log-ratios of the sections of rounds that stand for a record, float64; empty where there are none."""
        return self._own(self.columns.log_ratio, int(self.columns.source[record]))

    def truth_rounds(self, record: int) -> Floats:
        """Those of them that the truth rests on."""
        rounds = self.all_rounds(record)
        return rounds[~_replayed(len(rounds))]

    def replay_rounds(self, record: int) -> Floats:
        """Those of them that replays draw from."""
        rounds = self.all_rounds(record)
        return rounds[_replayed(len(rounds))]

    @cached_property
    def _timed(self) -> dict[int, list[int]]:
        """Records with rounds of their own, by engine where equal fingerprints prove one."""
        found: dict[int, list[int]] = {}
        for record in np.flatnonzero(np.diff(self.columns.start) > 0):
            found.setdefault(int(self.columns.fingerprint[record]), []).append(int(record))
        return found

    def timed(self, row: int) -> Sequence[int]:
        """The records whose rounds tell about a route: of its engine where fingerprints prove one, else its own."""
        number = int(self.columns.fingerprint[self._first[row]])
        if number >= 0 and self.fingerprints.equal_is_same:
            return self._timed.get(number, ())
        return [r for r in self._records[row] if len(self.all_rounds(r))]

    @cached_property
    def _truth(self) -> tuple[Floats, Floats]:
        known: dict[tuple[int, ...], tuple[float, float]] = {}
        truth, error = np.full(len(self), np.nan), np.full(len(self), np.nan)
        for row, records in enumerate(self._records):
            if any(self.columns.outcome[r] != Outcome.OK for r in records):
                continue  # a route that failed once is not one to recommend
            timed = tuple(self.timed(row))
            if timed not in known:
                found = [self.estimate(self.truth_rounds(r)) for r in timed]
                known[timed] = (
                    float(np.mean([f.log_ratio for f in found])),
                    math.sqrt(sum(f.error**2 for f in found)) / len(found),
                )
            truth[row], error[row] = known[timed]
        reference = self.find(self.space.default)
        if reference is not None and np.isfinite(truth[reference]):
            truth[reference], error[reference] = 0.0, 0.0  # by definition
        return truth, error

    @property
    def truth(self) -> Floats:
        """log(latency / reference latency) of each route from the half for the truth, (n,); NaN where infeasible.

        A route whose engine was built and timed several times has the mean over these builds. The reference has 0.
        """
        return self._truth[0]

    @property
    def truth_error(self) -> Floats:
        """Standard error of `truth` from its rounds, (n,); builds not included."""
        return self._truth[1]

    @property
    def best(self) -> int:
        """The row of the fastest feasible route by `truth`. Raises InputError where no route is feasible."""
        if not np.isfinite(self.truth).any():
            raise InputError(f"{self.path}: no route of the table is feasible; there is nothing to find in it")
        return int(np.nanargmin(self.truth))

    @cached_property
    def between_builds(self) -> BuildEffect | None:
        """What builds of one route differ by, from the routes that were built several times; None where none were."""
        most = max((len(records) for records in self._records), default=0)
        values, errors = [], []
        for records in self._records:
            if most < 2 or len(records) < most:
                continue
            # Builds of their own alone: a build whose rounds were taken over says nothing about builds.
            if any(self.columns.source[r] != r for r in records[1:]):
                continue
            rounds = [self.all_rounds(r) for r in records]
            if min(map(len, rounds)) >= MIN_ROUNDS:
                found = [self.estimate(r) for r in rounds]
                values.append([e.log_ratio for e in found])
                errors.append([e.error for e in found])
        return build_effect(np.array(values), np.array(errors)) if len(values) > 1 else None


def _replayed(rounds: int) -> NDArray[np.bool_]:
    """Which sections are for replays: the second of every two pairs."""
    found: NDArray[np.bool_] = np.arange(rounds) // 2 % 2 == 1
    return found
