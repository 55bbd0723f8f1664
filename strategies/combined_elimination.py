"""Combined elimination: test every change against the baseline, keep those that gain, one after the other.

Pan and Eigenmann start from a baseline B with all options on, measure each option's relative improvement when it is
switched off, RIP = (T(off) - T(B)) / T(B), and remove options with negative RIP. Here the baseline is the reference
route, and the change of one knob to another value takes the place of switching an option off; a knob with several
values has several changes, of which at most one is made. Repeated until no change has a negative RIP:
1. measure the RIP of every change of a knob that was not changed yet, against B;
2. take those with negative RIP, the most negative first, and
   - `combined`: make the first one in B; measure each other one against the new B, and make it if still negative;
   - `batch`: make all of them at once, and end;
   - `iterative`: make the first one only.

With noise half of the changes that do nothing have a negative RIP. A change counts if its gain exceeds
`deviations` standard errors of the difference; 0 is the paper's rule, and with exact values both are the same.
Where rows carry no error the history's noise counts.

Failures: a change that makes a working baseline fail is the cause, alone or together with what was made before;
it has no RIP and is not made; after a failure in step 1 it is not measured again. Every measurement is one trial;
routes that were tried are not tried again, their first value counts. Step 1 runs in any number of builders, step 2 is
sequential.

Good at: telling changes apart one by one; few interactions. Bad at: small budgets, as step 1 alone takes one
build per change: about 200 for 195 knobs.

Source: Pan and Eigenmann, "Fast and Effective Orchestration of Compiler Optimizations for Automatic Performance
Tuning", CGO 2006, section 2: batch, iterative and combined elimination.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Outcome, Proposal, SearchSpace, Streams

Codes = NDArray[np.int16]
Change = tuple[int, int]


class CombinedElimination:
    """Pan and Eigenmann's elimination from the reference: combined, batch or iterative.

    elimination: which of the three. deviations: standard errors of the difference that a gain must exceed.
    """

    exhaustive: ClassVar[bool] = False

    def __init__(
        self, elimination: Literal["combined", "batch", "iterative"] = "combined", deviations: float = 1.0
    ) -> None:
        """Raises InputError unless deviations >= 0."""
        if not 0 <= deviations < math.inf:
            raise InputError(f"deviations is {deviations}; it must be 0 or more, and finite")
        self.elimination, self.deviations = elimination, deviations
        # A cache: how far the algorithm came with the finished rows of one history.
        self._history: History | None = None
        self._seed: object = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The next route to measure; None at the end, and while what was asked for is pending."""
        if history is not self._history or (type(streams.seed), streams.seed) != self._seed:
            self._history, self._seed = history, (type(streams.seed), streams.seed)
            self._algorithm = self._run(space, history, streams)
            self._wanted: list[Codes] | None = next(self._algorithm, None)
            self._at = 0
        while self._wanted is not None:
            # All routes before `_at` are in the history.
            while self._at < len(self._wanted):
                if not history.contains(self._wanted[self._at]):
                    return Proposal(self._wanted[self._at].copy())
                self._at += 1
            if any(not history.rows_of(codes) for codes in self._wanted):
                return None  # pending
            self._wanted, self._at = next(self._algorithm, None), 0
        return None

    # -- the algorithm --------------------------------------------------------------------------
    def _run(self, space: SearchSpace, history: History, streams: Streams) -> Generator[list[Codes], None, None]:
        """Yields the routes whose values it needs; goes on when all of them have finished."""
        base = space.default.copy()
        counts, default = space.cardinalities.tolist(), space.default.tolist()
        left = [(k, c) for k in range(len(space)) for c in range(counts[k]) if c != default[k]]
        order = streams.trial(0, "order").permutation(len(left)).tolist()  # a small budget ends within step 1
        left = [left[i] for i in order]
        while left:
            # Step 1 (in the paper step 2): the RIPs of all options against the baseline.
            routes = [_with(base, change) for change in left]
            yield routes
            gains = self._negative(history, base, list(zip(left, routes, strict=True)))
            if not gains:
                return
            made: set[int] = set()
            if self.elimination == "batch":
                for knob, code in gains:
                    if knob not in made:
                        base = _with(base, (knob, code))
                        made.add(knob)
                yield [base]
                return
            for change in gains:
                if change[0] in made:
                    continue
                route = _with(base, change)
                if made:
                    # Step 2 (in the paper step 3): the others against the baseline as it is now.
                    yield [route]
                    if not self._negative(history, base, [(change, route)]):
                        continue
                base = route
                made.add(change[0])
                if self.elimination == "iterative":
                    break
            left = [c for c, r in zip(left, routes, strict=True) if c[0] not in made and _log(history, r) is not None]

    def _negative(self, history: History, base: Codes, measured: list[tuple[Change, Codes]]) -> list[Change]:
        """The changes with a negative RIP, the most negative first."""
        level = _log(history, base)
        found = []
        for change, route in measured:
            seen = _log(history, route)
            if seen is None or level is None:
                continue
            rip = seen[0] - level[0]  # log(T / T_B): the same sign as the paper's (T - T_B) / T_B, and the same order
            if rip < -self.deviations * math.hypot(seen[1], level[1]) and rip < 0:
                found.append((rip, change))
        return [change for _, change in sorted(found)]


def _with(base: Codes, change: Change) -> Codes:
    codes = base.copy()
    codes[change[0]] = change[1]
    return codes


def _log(history: History, codes: Codes) -> tuple[float, float] | None:
    """log(latency) and its standard error by the route's first trial; None where it failed."""
    row = min(history.rows_of(codes), key=lambda r: int(history.trial[r]))
    value = float(history.value[row])
    if history.outcome[row] != Outcome.OK or not value > 0:
        return None
    error = float(history.error[row]) / value
    return math.log(value), (history.noise or 0.0) if math.isnan(error) else error
