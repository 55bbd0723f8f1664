"""A landscape whose truth is known: what every route of a space does, exactly, as data.

The latency of a route is the reference latency times exp(sum of terms). A term belongs to one knob
or to a pair. Failures have causes: one knob at one value, or a pair at two values. Knobs that share
a term or a cause form a component; components are independent, so the best feasible route is found
component by component, exactly, however large the space is.

What counts is the *program*: knobs that never change the engine, and children whose parent switches
them off, are taken at their default. Equal fingerprints mean equal programs, and the other way round.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.blueprint import Blueprint, Cause, Child, Effect, Term, Truth
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes

MAX_COMPONENT = 1 << 20
"""Routes that one component may have: the best one is found by enumerating them."""
_CHUNK = 1 << 12  # routes enumerated at a time


class _Level(NamedTuple):
    """The children of one depth, one entry each: places among the live knobs, and what makes them count.

    active: bool, at `start` of the child + code of its parent. default: the child's default code.
    parent_row: the parent's entry in the level above; None in the first level.
    """

    child: NDArray[np.intp]
    parent: NDArray[np.intp]
    start: NDArray[np.intp]
    active: NDArray[np.bool_]
    default: Codes
    parent_row: NDArray[np.intp] | None


class Landscape:
    """A space whose truth is known: measures routes with noise, and tells the truth about them.

    space: the search space. reference_ms: latency of the reference route, ms. noise: relative standard
    deviation of one measured latency. costs: seconds by phase. tolerance: the accuracy limit on the loss.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        """Raises ValueError when the blueprint contradicts itself (see `_check`)."""
        self._blueprint = blueprint
        self.space = blueprint.space
        self.reference_ms = blueprint.reference_ms
        self.noise = blueprint.noise
        self.costs = blueprint.costs
        self.tolerance = blueprint.tolerance
        # Early phases first: the first of several causes is what happens.
        self._causes = sorted(blueprint.causes, key=lambda c: (c.phase, c.outcome == Outcome.ACCURACY))
        self._live = np.asarray([i for i in range(len(self.space)) if i not in blueprint.inert], np.intp)
        self._place = {int(knob): place for place, knob in enumerate(self._live)}
        self._check()
        self._compile_children()
        self._compile_cells()

    def _check(self) -> None:
        b, default = self._blueprint, self.space.default
        soft = b.base_loss
        for term in b.terms:
            knobs = (term.first,) if term.second is None else (term.first, term.second)
            if any(k not in self._place for k in knobs):
                raise ValueError(f"a term belongs to an inert knob: {knobs}")
            at = tuple(int(default[k]) for k in knobs)
            if term.log_ratio[at] != 0 or (term.loss is not None and term.loss[at] != 0):
                raise ValueError(f"the term of knobs {knobs} is not 0 at the reference")
            if term.loss is not None:
                if term.loss.min() < 0:
                    raise ValueError(f"the term of knobs {knobs} has a negative loss")
                soft += float(term.loss.max())
        if not soft < b.tolerance:
            raise ValueError(f"losses of feasible routes reach {soft}, the tolerance is {b.tolerance}")
        for cause in b.causes:
            pairs = [(cause.first, cause.first_code)]
            if cause.second is not None:
                pairs.append((cause.second, cause.second_code))
            if any(k not in self._place for k, _ in pairs) or all(default[k] == c for k, c in pairs):
                raise ValueError(f"a cause of failure lies on an inert knob or on the reference: {pairs}")
            if cause.outcome == Outcome.ACCURACY and not (cause.phase == Phase.GATE and cause.loss >= b.tolerance):
                raise ValueError("an accuracy failure happens in the gate and adds at least the tolerance to the loss")

    def _compile_children(self) -> None:
        """Children by depth, so that a parent is settled before its children."""
        depth: dict[int, int] = {}
        levels: list[list[Child]] = []
        for child in self._blueprint.children:
            if child.knob not in self._place or child.parent not in self._place or child.knob in depth:
                raise ValueError(f"child {child.knob} or its parent {child.parent} is inert, or it has two parents")
            if any(child.knob == earlier.parent for level in levels for earlier in level):
                raise ValueError(f"child {child.knob} comes after its own children")
            depth[child.knob] = depth.get(child.parent, -1) + 1
            if depth[child.knob] == len(levels):
                levels.append([])
            levels[depth[child.knob]].append(child)
        self._levels: list[_Level] = []
        above: list[int] = []
        width = int(self.space.cardinalities.max(initial=1))
        for level in levels:
            active = np.zeros((len(level), width), bool)
            for row, child in enumerate(level):
                active[row, list(child.active)] = True
            self._levels.append(
                _Level(
                    child=np.asarray([self._place[c.knob] for c in level], np.intp),
                    parent=np.asarray([self._place[c.parent] for c in level], np.intp),
                    start=np.arange(len(level), dtype=np.intp) * width,
                    active=active.ravel(),
                    default=self.space.default[[c.knob for c in level]],
                    parent_row=np.asarray([above.index(c.parent) for c in level], np.intp) if above else None,
                )
            )
            above = [c.knob for c in level]

    def _compile_cells(self) -> None:
        """All terms and causes laid out in one row of cells, so that a route is a handful of array look-ups.

        Row m picks cell `code(a) * stride + code(b) + offset`; a single knob has stride 0 and a = b.
        """
        first, second, stride, offset = [], [], [], []
        values: list[NDArray[np.float64]] = []
        cause_of: list[NDArray[np.int16]] = []
        cells = 0

        def add(a: int, b: int | None, value: NDArray[np.float64], cause: NDArray[np.int16]) -> None:
            nonlocal cells
            first.append(self._place[a])
            second.append(self._place[a if b is None else b])
            stride.append(0 if b is None else len(self.space.values[b]))
            offset.append(cells)
            values.append(value)
            cause_of.append(cause)
            cells += len(value)

        for term in self._blueprint.terms:
            loss = np.zeros_like(term.log_ratio) if term.loss is None else term.loss
            value = np.stack([term.log_ratio.ravel(), loss.ravel()], axis=1)
            add(term.first, term.second, value, np.zeros(len(value), np.int16))
        for number, cause in enumerate(self._causes):
            width = 1 if cause.second is None else len(self.space.values[cause.second])
            at = cause.first_code * width + (0 if cause.second is None else cause.second_code)
            value = np.zeros((len(self.space.values[cause.first]) * width, 2))
            value[at, 1] = cause.loss
            hit = np.zeros(len(value), np.int16)
            hit[at] = number + 1
            add(cause.first, cause.second, value, hit)
        self._both = np.asarray(first + second, np.intp)
        self._stride, self._offset = np.asarray(stride, np.intp), np.asarray(offset, np.intp)
        both = np.concatenate(values) if values else np.zeros((0, 2))
        self._log_ratio, self._loss = both[:, 0].copy(), both[:, 1].copy()
        self._cause_of = np.concatenate(cause_of) if cause_of else np.zeros(0, np.int16)
        self._ones = np.ones(len(first))

    def _program(self, codes: Codes) -> Codes:
        """Codes of the live knobs, children that are off at their default: (..., live)."""
        program = codes.take(self._live, -1)
        on: NDArray[np.bool_] | None = None
        for level in self._levels:
            here = level.active.take(program.take(level.parent, -1) + level.start)
            if on is not None and level.parent_row is not None:
                here &= on.take(level.parent_row, -1)
            program[..., level.child] = np.where(here, program.take(level.child, -1), level.default)
            on = here
        return program

    def _cells(self, program: Codes) -> NDArray[np.intp]:
        """The cell of every term and cause: (..., rows). In place, because this is most of a measurement's time."""
        both = program.take(self._both, -1).astype(np.intp)
        cells: NDArray[np.intp] = both[..., : len(self._offset)]
        cells *= self._stride
        cells += both[..., len(self._offset) :]
        cells += self._offset
        return cells

    def _cause(self, cells: NDArray[np.intp]) -> Cause | None:
        """The first cause of failure that one route's cells hold."""
        hits = self._cause_of.take(cells)
        if not hits.tobytes().strip(b"\0"):  # 3 x faster than any()
            return None
        number: int = min(filter(None, hits.tolist()))
        return self._causes[number - 1]

    def _sums(self, cells: NDArray[np.intp]) -> tuple[float, float]:
        """log(latency / reference) and loss of one route's cells."""
        return float(self._log_ratio.take(cells).dot(self._ones)), float(self._loss.take(cells).dot(self._ones))

    # -- the truth ----------------------------------------------------------------------------
    def true_log_ratio(self, codes: Codes) -> NDArray[np.float64] | float:
        """log(latency / reference latency) without noise, NaN where infeasible.

        codes: (d,) gives a float, (n, d) gives float64 (n,). Codes are not checked against the space.
        """
        cells = self._cells(self._program(np.atleast_2d(codes)))
        value: NDArray[np.float64] = self._log_ratio.take(cells).sum(-1)
        value[self._cause_of.take(cells).any(-1)] = math.nan
        return float(value[0]) if codes.ndim == 1 else value

    def truth(self, codes: Codes) -> Truth:
        """What the route does, without noise. codes: int16 (d,), not checked against the space."""
        program = self._program(codes)
        cells = self._cells(program)
        log_ratio, loss = self._sums(cells)
        cause = self._cause(cells)
        if cause is None:
            return Truth(Outcome.OK, None, log_ratio, self._violation(loss), self._digest(program))
        fingerprint = None if cause.phase == Phase.BUILD else self._digest(program)
        violation = self._violation(loss) if cause.outcome == Outcome.ACCURACY else math.nan
        return Truth(cause.outcome, cause.phase, math.nan, violation, fingerprint)

    def outcome(self, codes: Codes) -> Outcome:
        """What becomes of a full evaluation of the route. codes: int16 (d,)."""
        return self.truth(codes).outcome

    def fingerprint(self, codes: Codes) -> str:
        """Digest of the route's program: equal exactly where the programs are equal. codes: int16 (d,)."""
        return self._digest(self._program(codes))

    def _violation(self, loss: float) -> float:
        return self._blueprint.base_loss + loss - self.tolerance

    @staticmethod
    def _digest(program: Codes) -> str:
        return blake2b(program.tobytes(), digest_size=16).hexdigest()

    @cached_property
    def best_codes(self) -> Codes:
        """A feasible route with the smallest latency there is: int16 (d,), read-only."""
        best = self.space.default.copy()
        for knobs in self._components():
            counts = [int(self.space.cardinalities[k]) for k in knobs]
            total, lowest = math.prod(counts), 0.0  # the reference is at 0, and stays where nothing is better
            for start in range(0, total, _CHUNK):
                numbers = np.arange(start, min(start + _CHUNK, total))
                routes = np.repeat(self.space.default[None, :], len(numbers), axis=0)
                routes[:, knobs] = np.stack(np.unravel_index(numbers, counts), axis=1)
                value = np.where(np.isnan(found := np.asarray(self.true_log_ratio(routes))), np.inf, found)
                winner = int(np.argmin(value))
                if value[winner] < lowest:
                    lowest = value[winner]
                    best[knobs] = routes[winner, knobs]
        best.flags.writeable = False
        return best

    @cached_property
    def best_log_ratio(self) -> float:
        """log(latency / reference latency) of the best feasible route: exact, 0 where nothing helps."""
        return float(self.true_log_ratio(self.best_codes))

    def _components(self) -> list[list[int]]:
        """Knobs that must be optimised together, for every knob that matters."""
        b = self._blueprint
        root = list(range(len(self.space)))

        def find(k: int) -> int:
            while root[k] != k:
                root[k] = root[root[k]]
                k = root[k]
            return k

        relevant: set[int] = set()
        for item in itertools.chain[Term | Cause](b.terms, b.causes):
            second = item.first if item.second is None else item.second
            relevant |= {item.first, second}
            root[find(item.first)] = find(second)
        for child in reversed(b.children):  # grandchildren make their parents relevant first
            if child.knob in relevant:
                relevant.add(child.parent)
                root[find(child.knob)] = find(child.parent)
        members: dict[int, list[int]] = {}
        for k in sorted(relevant):
            members.setdefault(find(k), []).append(k)
        for knobs in members.values():
            if math.prod(len(self.space.values[k]) for k in knobs) > MAX_COMPONENT:
                raise ValueError(f"{len(knobs)} knobs of the landscape interact: too many to find the best exactly")
        return list(members.values())

    @property
    def inert(self) -> NDArray[np.bool_]:
        """bool (d,): knobs that never change the program."""
        out = np.ones(len(self.space), bool)
        out[self._live] = False
        return out

    @property
    def children(self) -> tuple[tuple[str, str], ...]:
        """(child, parent) names: the child counts only at some values of the parent."""
        names = self.space.names
        return tuple((names[c.knob], names[c.parent]) for c in self._blueprint.children)

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """The truth, line by line: every setting that changes the latency or causes a failure."""
        names, values = self.space.names, self.space.values
        out = []
        for term in self._blueprint.terms:
            knobs = (term.first,) if term.second is None else (term.first, term.second)
            for at in np.argwhere(term.log_ratio != 0).tolist():
                chosen = tuple(values[k][c] for k, c in zip(knobs, at, strict=True))
                size = float(term.log_ratio[tuple(at)])
                out.append(Effect(tuple(names[k] for k in knobs), chosen, size, Outcome.OK))
        for cause in self._causes:
            pairs = [(cause.first, cause.first_code)]
            if cause.second is not None:
                pairs.append((cause.second, cause.second_code))
            out.append(
                Effect(
                    tuple(names[k] for k, _ in pairs),
                    tuple(values[k][c] for k, c in pairs),
                    math.nan,
                    cause.outcome,
                )
            )
        return tuple(out)

    def spec(self) -> dict[str, object]:
        """The JSON form from which `planted_from_spec` makes an equal landscape in another process."""
        return dict(self._blueprint.spec)

    def database(self) -> KnobDatabase:
        """The landscape's knobs as a knob database."""
        knobs = [Knob(d.name, d.values, d.values[d.default]) for d in self.space.dimensions]
        return KnobDatabase.of("planted", knobs)

    # -- measuring ----------------------------------------------------------------------------
    def measure(self, codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        """One noisy evaluation, as `simulate` wants it.

        codes: int16 (d,), not checked against the space. Noise on the latency is log-normal with the
        relative standard deviation `noise`, which is also the reported error. A phase after the failing
        one, or after `until`, is neither reached nor charged.
        """
        program = self._program(codes)
        cells = self._cells(program)
        costs = self.costs
        jitter, luck = rng.standard_normal(), rng.standard_normal()
        build_s = costs.build * math.exp(0.05 * jitter)
        cause = self._cause(cells)
        if cause is not None and cause.phase == Phase.BUILD:
            spent = costs.build_limit if cause.outcome == Outcome.TIMEOUT else 0.5 * build_s
            return Observation(cause.outcome, cost_s={"start": costs.start, "build": spent})
        fingerprint = self._digest(program)
        if until == Phase.BUILD:
            return Observation(Outcome.OK, None, None, fingerprint, {"start": costs.start, "build": build_s})
        if cause is not None and cause.outcome != Outcome.ACCURACY:
            spent = costs.run_limit if cause.outcome == Outcome.TIMEOUT else 0.5 * costs.gate
            cost = {"start": costs.start, "build": build_s, "gate": spent}
            return Observation(cause.outcome, None, None, fingerprint, cost)
        log_ratio, loss = self._sums(cells)
        violation = self._violation(loss)
        cost = {"start": costs.start, "build": build_s, "gate": costs.gate}
        if cause is not None:
            return Observation(Outcome.ACCURACY, None, violation, fingerprint, cost)
        if until == Phase.GATE:
            return Observation(Outcome.OK, None, violation, fingerprint, cost)
        cost["time"] = costs.time
        latency = self.reference_ms * math.exp(log_ratio + self.noise * luck)
        return Observation(Outcome.OK, latency, violation, fingerprint, cost, latency * self.noise)
