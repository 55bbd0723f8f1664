"""The history of a study: everything a strategy may look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace

_NAN = math.nan
_BLANKS = {"value": _NAN, "error": _NAN, "violation": _NAN, "fingerprint": -1}


class History:
    """Finished trials in completion order, append-only, and the pending ones.

    Arrays of n rows (read-only views that stay valid); row 0 is the reference route:
    codes int16 (n, d); value float64, ms, NaN where none; error float64, ms, standard error, NaN
    where unknown; outcome int8, values of `Outcome`; until int8, values of `Phase`, how far the
    trial was asked to go; violation float64, NaN where not measured; fingerprint int32, numbered by
    first appearance, -1 where none; trial int32, trial numbers; route int32, distinct routes numbered
    by first appearance; samples int32, number of the trial that began the samples which the value rests on:
    its own, or an earlier one's where the engine is the same; rounds int32, how many rounds that were by then, 0
    where unknown. Values with equal `samples` are not independent: the one with the most rounds holds the others.

    noise: relative standard deviation of one value, from the measured noise floor, or None.
    """

    def __init__(self, space: SearchSpace, noise: float | None = None) -> None:
        """An empty history of routes of `space`."""
        self.space = space
        self.noise = noise
        self._n = 0
        self._capacity = 64
        self._codes = np.empty((self._capacity, len(space)), np.int16)
        self._columns: dict[str, NDArray[Any]] = {
            "value": np.full(self._capacity, _NAN),
            "error": np.full(self._capacity, _NAN),
            "violation": np.full(self._capacity, _NAN),
            "outcome": np.zeros(self._capacity, np.int8),
            "until": np.zeros(self._capacity, np.int8),
            "fingerprint": np.full(self._capacity, -1, np.int32),
            "trial": np.zeros(self._capacity, np.int32),
            "route": np.zeros(self._capacity, np.int32),
            "samples": np.zeros(self._capacity, np.int32),
            "rounds": np.zeros(self._capacity, np.int32),
        }
        self._bind()
        self._cost: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[bytes, int | list[int]] = {}
        self._settled: set[bytes] = set()
        self._fingerprints: dict[str, int] = {}
        self._pending: dict[int, tuple[Codes, Phase, bytes]] = {}
        self._pending_keys: dict[bytes, int] = {}
        self.total_cost_s = 0.0
        self.builds = 0

    def _bind(self) -> None:
        """Direct references to the columns: a dictionary look-up per cell would cost a fifth of an append."""
        c = self._columns
        self._value, self._error, self._violation = c["value"], c["error"], c["violation"]
        self._outcome, self._until, self._fingerprint, self._trial = (
            c["outcome"],
            c["until"],
            c["fingerprint"],
            c["trial"],
        )
        self._route, self._samples, self._rounds = c["route"], c["samples"], c["rounds"]
        # What is handed out: slices of a read-only view are read-only, and cost nothing more.
        self._codes_out = _read_only(self._codes)
        self._out = {name: _read_only(column) for name, column in c.items()}

    # -- what strategies read ---------------------------------------------------------------
    def __len__(self) -> int:
        """Number of finished rows, n."""
        return self._n

    @property
    def next_trial(self) -> int:
        """The number of the trial that is being proposed: what to address `streams.trial` with."""
        return self._n + len(self._pending)

    @property
    def reference(self) -> int:
        """The row of the reference route: always 0."""
        return 0

    @property
    def codes(self) -> Codes:
        """int16 (n, d)."""
        return self._codes_out[: self._n]

    @property
    def value(self) -> NDArray[np.float64]:
        """Latency in ms, float64 (n,), NaN where none."""
        return self._out["value"][: self._n]

    @property
    def error(self) -> NDArray[np.float64]:
        """Standard error of `value` in ms, float64 (n,), NaN where unknown."""
        return self._out["error"][: self._n]

    @property
    def violation(self) -> NDArray[np.float64]:
        """Largest (loss - tolerance), float64 (n,), feasible when < 0, NaN where not measured."""
        return self._out["violation"][: self._n]

    @property
    def outcome(self) -> NDArray[np.int8]:
        """int8 (n,), values of `Outcome`."""
        return self._out["outcome"][: self._n]

    @property
    def until(self) -> NDArray[np.int8]:
        """int8 (n,), values of `Phase`: how far each trial was asked to go."""
        return self._out["until"][: self._n]

    @property
    def fingerprint(self) -> NDArray[np.int32]:
        """int32 (n,): engines numbered by first appearance, -1 where none."""
        return self._out["fingerprint"][: self._n]

    @property
    def trial(self) -> NDArray[np.int32]:
        """int32 (n,): trial numbers, in completion order."""
        return self._out["trial"][: self._n]

    @property
    def route(self) -> NDArray[np.int32]:
        """int32 (n,): distinct routes numbered by first appearance."""
        return self._out["route"][: self._n]

    @property
    def samples(self) -> NDArray[np.int32]:
        """int32 (n,): number of the trial that began the samples which the value rests on."""
        return self._out["samples"][: self._n]

    @property
    def rounds(self) -> NDArray[np.int32]:
        """int32 (n,): rounds that the value rests on, 0 where unknown."""
        return self._out["rounds"][: self._n]

    @property
    def n_routes(self) -> int:
        """Number of distinct routes among the finished rows."""
        return len(self._rows)

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """bool (n,): rows with a value and outcome OK."""
        feasible: NDArray[np.bool_] = (self.outcome == Outcome.OK) & ~np.isnan(self.value)
        return feasible

    def cost(self, phase: str) -> NDArray[np.float64]:
        """Seconds spent in that phase by each trial, float64 (n,), 0 where none."""
        column = self._cost.get(phase)
        return np.zeros(self._n) if column is None else _read_only(column[: self._n])

    @property
    def phases_of_cost(self) -> tuple[str, ...]:
        """The phase names that `cost` knows."""
        return tuple(self._cost)

    @property
    def pending(self) -> Codes:
        """int16 (p, d): trials that are started and not finished, in trial order."""
        if not self._pending:
            return np.empty((0, len(self.space)), np.int16)
        return np.stack([self._pending[trial][0] for trial in sorted(self._pending)])

    @property
    def pending_trials(self) -> tuple[int, ...]:
        """Trial numbers of the pending rows, ascending."""
        return tuple(sorted(self._pending))

    @property
    def n_pending(self) -> int:
        """Number of pending rows, p."""
        return len(self._pending)

    def has_pending(self, trial: int) -> bool:
        """True when the trial of that number is pending."""
        return trial in self._pending

    def contains(self, codes: Codes) -> bool:
        """True when the route was tried or is pending. O(1)."""
        key = codes.tobytes()
        return key in self._rows or key in self._pending_keys

    def is_pending(self, codes: Codes) -> bool:
        """True when the route is started and not finished. O(1)."""
        return codes.tobytes() in self._pending_keys

    def rows_of(self, codes: Codes) -> tuple[int, ...]:
        """The finished rows of a route, oldest first. O(1)."""
        rows = self._rows.get(codes.tobytes(), ())
        return (rows,) if isinstance(rows, int) else tuple(rows)

    @property
    def settled(self) -> int:
        """Number of distinct routes that were timed or failed: nothing new can be learnt by a first look."""
        return len(self._settled)

    # -- what the loop writes ---------------------------------------------------------------
    def start(self, trial: int, codes: Codes, until: Phase) -> None:
        """Marks a trial as pending. Raises ValueError when the number is in use."""
        if trial in self._pending:
            raise ValueError(f"trial {trial} is already pending")
        key = codes.tobytes()
        self._pending[trial] = (codes, until, key)
        self._pending_keys[key] = self._pending_keys.get(key, 0) + 1

    def finish(self, trial: int, observation: Observation) -> int:
        """Moves a pending trial to the finished rows and returns its row. Raises KeyError when it is not pending."""
        codes, until, key = self._pending.pop(trial)
        left = self._pending_keys.pop(key) - 1
        if left:
            self._pending_keys[key] = left
        n = self._n
        if n == self._capacity:
            self._grow()
        outcome, latency, violation, fingerprint, cost_s, error, timed_as, timed_rounds = observation
        self._codes[n] = codes
        self._outcome[n] = outcome
        self._until[n] = until
        self._trial[n] = trial
        self._samples[n] = trial if timed_as is None else timed_as
        if timed_rounds:
            self._rounds[n] = timed_rounds
        # Columns are blank (NaN, -1) until written: most trials fill few of them.
        if latency is not None:
            self._value[n] = latency
        if error is not None:
            self._error[n] = error
        if violation is not None:
            self._violation[n] = violation
        if fingerprint is not None:
            self._fingerprint[n] = self._fingerprints.setdefault(fingerprint, len(self._fingerprints))
        for phase, seconds in cost_s.items():
            column = self._cost.get(phase)
            if column is None:
                column = self._cost[phase] = np.zeros(self._capacity)
            column[n] = seconds
            if n:
                self.total_cost_s += seconds
        rows = self._rows.get(key)
        if rows is None:
            # A bare number, not a list of one: the garbage collector would walk every list.
            self._route[n] = len(self._rows)
            self._rows[key] = n
        elif isinstance(rows, int):
            self._route[n] = self._route[rows]
            self._rows[key] = [rows, n]
        else:
            self._route[n] = self._route[rows[0]]
            rows.append(n)
        if until == Phase.TIME or outcome != Outcome.OK:
            self._settled.add(key)
        if n and observation.built:
            self.builds += 1
        self._n = n + 1
        return n

    def append(self, trial: int, codes: Codes, observation: Observation, until: Phase = Phase.TIME) -> int:
        """`start` and `finish` in one: for histories that are rebuilt."""
        self.start(trial, codes, until)
        return self.finish(trial, observation)

    def _grow(self) -> None:
        # Views handed out earlier keep the old buffers, which hold the same finished rows.
        self._capacity *= 2
        n = self._n
        codes = np.empty((self._capacity, len(self.space)), np.int16)
        codes[:n] = self._codes
        self._codes = codes
        for table, blanks in ((self._columns, _BLANKS), (self._cost, {})):
            for name, old in table.items():
                new = np.full(self._capacity, blanks.get(name, 0), old.dtype)
                new[:n] = old
                table[name] = new
        self._bind()

    def summary(self) -> Mapping[str, int]:
        """Number of rows by outcome name."""
        counts = np.bincount(self.outcome, minlength=len(Outcome))
        return {o.name: int(counts[o]) for o in Outcome if counts[o]}


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
