"""Growing a landscape: knobs with a tuner's kind of names, and the ways in which they can matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.blueprint import Blueprint, Cause, Child, Costs, Term
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Dimension, SearchSpace

_COMPONENT = 1 << 12  # routes of the knobs that interactions may tie together

_AREAS = ("fuse", "lower", "tile", "layout", "attention", "codegen", "schedule", "norm", "reduce", "elide")
_THINGS = ("concat", "conv", "gemm", "mask", "pad", "pool", "reshape", "slice", "softmax", "split", "stride", "warp")
_WAYS = ("accumulate", "align", "approx", "batch", "early", "inline", "late", "pack", "prefetch", "unroll", "vector")
_PARTS = ("causal", "depth", "epilogue", "force", "grid", "half", "implicit", "loop", "mixed", "narrow", "prologue")

# In this order, over and over: nine failures are 3 build errors, 3 accuracy failures, 2 crashes, 1 timeout.
_FAILURES = (
    (Outcome.BUILD_ERROR, Phase.BUILD),
    (Outcome.ACCURACY, Phase.GATE),
    (Outcome.CRASH, Phase.BUILD),
    (Outcome.BUILD_ERROR, Phase.BUILD),
    (Outcome.ACCURACY, Phase.GATE),
    (Outcome.TIMEOUT, Phase.BUILD),
    (Outcome.BUILD_ERROR, Phase.BUILD),
    (Outcome.ACCURACY, Phase.GATE),
    (Outcome.CRASH, Phase.GATE),
    (Outcome.MEMORY, Phase.BUILD),
    (Outcome.TIMEOUT, Phase.GATE),
)


class Planter:
    """Grows one landscape: knobs first, then what they do."""

    def __init__(self, rng: np.random.Generator, count: int, many_values: float, max_routes: float = math.inf) -> None:
        """many_values: share of knobs with three or four values, as long as there are at most `max_routes` routes."""
        self.rng = rng
        self.count = count
        # Real closed knobs are nearly all on/off: 188 of 195 in TensorRT 11.1.
        self.cards = [int(rng.integers(3, 5)) if rng.random() < many_values else 2 for _ in range(count)]
        for knob in range(count):
            if math.prod(self.cards) > max_routes:
                self.cards[knob] = 2
        self.defaults = [0 if c == 2 and rng.random() < 0.7 else int(rng.integers(c)) for c in self.cards]
        self.names = self._new_names(count)
        self.terms: list[Term] = []
        self.causes: list[Cause] = []
        self.children: list[Child] = []
        self.inert: set[int] = set()
        self.gain: dict[int, tuple[int, float]] = {}  # knob -> its best code and log-ratio there
        self._unused = [int(k) for k in rng.permutation(count)]
        self._joined = list(range(count))
        self._routes = list(self.cards)

    def _new_names(self, count: int) -> list[str]:
        names: dict[str, None] = {}
        while len(names) < count:
            area, thing, way = (str(self.rng.choice(words)) for words in (_AREAS, _THINGS, _WAYS))
            name = f"{area}:{thing}_{way}"
            names[name if name not in names else f"{name}_{len(names)}"] = None
        return list(names)

    def take(self, count: int) -> list[int]:
        """Knobs that nothing was planted on yet (fewer where there are not enough)."""
        taken, self._unused = self._unused[:count], self._unused[count:]
        return taken

    def scaled(self, count: int, of: int = 195) -> int:
        """A count meant for `of` knobs, for a space with fewer: in proportion, at least 1."""
        return max(1, min(count, round(count * self.count / of)))

    def size(self, low: float, high: float) -> float:
        """One number, log-uniform between `low` and `high`."""
        return low * math.exp(self.rng.random() * math.log(high / low))

    def _other(self, knob: int) -> int:
        """One of the knob's codes that is not its default."""
        return int(self.rng.choice([c for c in range(self.cards[knob]) if c != self.defaults[knob]]))

    # -- what knobs do ------------------------------------------------------------------------
    def helps(self, knobs: Iterable[int], low: float = 0.01, high: float = 0.06) -> None:
        """One value of each knob makes the engine `low` to `high` faster; other values do little."""
        for knob in knobs:
            best, size = self._other(knob), self.size(low, high)
            table = self.rng.uniform(-0.5 * size, 0.02, self.cards[knob])
            table[best], table[self.defaults[knob]] = -size, 0.0
            self.gain[knob] = (best, -size)
            self._main(knob, table)

    def harms(self, knobs: Iterable[int]) -> None:
        """Every value of each knob but the default makes the engine 1 to 15 % slower."""
        for knob in knobs:
            table = np.asarray([self.size(0.01, 0.15) for _ in range(self.cards[knob])])
            table[self.defaults[knob]] = 0.0
            code = self._other(knob)
            self.gain[knob] = (code, float(table[code]))
            self._main(knob, table)

    def _main(self, knob: int, table: NDArray[np.float64]) -> None:
        # A third of what changes the latency also changes the rounding: never enough to fail.
        loss = None
        if self.rng.random() < 1 / 3:
            loss = np.full(self.cards[knob], self.rng.uniform(0.0, 0.006) / self.count)
            loss[self.defaults[knob]] = 0.0
        self.terms.append(Term(knob, None, table, loss))

    def interact(self, helpful: Sequence[int], harmful: Sequence[int], count: int) -> None:
        """Pairs that do not add up, in turn: two gains that exclude each other, two that help each other,
        and a gain that makes a harmful change worth while."""
        for number in range(count):
            others = harmful if number % 4 == 3 and harmful else helpful
            pair = self._pair(helpful, others)
            if pair is None:
                return
            (a, b), (code_a, gain_a), (code_b, gain_b) = pair, self.gain[pair[0]], self.gain[pair[1]]
            if gain_b > 0:
                size = -gain_b * self.rng.uniform(0.7, 1.4)
            elif number % 2 == 0:
                size = self.rng.uniform(0.4, 1.2) * min(-gain_a, -gain_b)
            else:
                size = -self.size(0.005, 0.02)
            table = np.zeros((self.cards[a], self.cards[b]))
            table[code_a, code_b] = size
            self.terms.append(Term(a, b, table))

    def fails(self, knobs: Iterable[int]) -> None:
        """One value of each knob fails, the kinds in turn."""
        for knob in knobs:
            self._cause(knob, self._other(knob), None, 0)

    def fails_together(self, first: Sequence[int], second: Sequence[int], count: int) -> None:
        """Pairs that fail when both are changed."""
        for _ in range(count):
            pair = self._pair(first, second)
            if pair is None:
                return
            a, b = pair
            self._cause(a, self._code(a), b, self._code(b))

    def _code(self, knob: int) -> int:
        return self.gain[knob][0] if knob in self.gain else self._other(knob)

    def _cause(self, a: int, code_a: int, b: int | None, code_b: int) -> None:
        outcome, phase = _FAILURES[len(self.causes) % len(_FAILURES)]
        loss = self.size(1.1, 30.0) * Blueprint.tolerance if outcome == Outcome.ACCURACY else 0.0
        self.causes.append(Cause(a, code_a, b, code_b, outcome, phase, loss))

    def _pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[int, int] | None:
        """A new pair whose component stays small enough to be solved exactly; None where none is found."""
        used = {frozenset((t.first, t.second)) for t in self.terms} | {
            frozenset((c.first, c.second)) for c in self.causes
        }
        for _ in range(50):
            a, b = int(self.rng.choice(first)), int(self.rng.choice(second))
            if a == b or frozenset((a, b)) in used:
                continue
            if self.join(a, b):
                return a, b
        return None

    def join(self, a: int, b: int) -> bool:
        """Puts two knobs into one component, unless it would become too large."""
        a, b = self._joined[a], self._joined[b]
        if a != b:
            if self._routes[a] * self._routes[b] > _COMPONENT:
                return False
            self._routes[a] *= self._routes[b]
            self._joined = [a if root == b else root for root in self._joined]
        return True

    def child(self, knob: int, parent: int) -> None:
        """Makes `knob` count only at some values of `parent`: at its default, or (one in three) at another value."""
        hidden = self.rng.random() < 1 / 3
        active: tuple[int, ...] = (self._other(parent),) if hidden else (self.defaults[parent],)
        for sibling in self.children:
            if sibling.parent == parent:
                active = sibling.active
        self.children.append(Child(knob, parent, active))
        self.names[knob] = f"{self.names[parent]}:{self.rng.choice(_PARTS)}_{len(self.children)}"
        self.join(knob, parent)

    def rest_inert(self, share: float) -> None:
        """That share of the knobs nothing was planted on never changes the program."""
        self.inert.update(self.take(round(share * len(self._unused))))

    def blueprint(
        self, terms: Sequence[Term], spec: Mapping[str, object], noise: float, costs: Costs, reference_ms: float
    ) -> Blueprint:
        """What was grown, with these terms, as the description of a landscape."""
        dims = []
        for name, cards, default in zip(self.names, self.cards, self.defaults, strict=True):
            values = ("on", "off") if cards == 2 else tuple(map(str, range(cards)))
            dims.append(Dimension(name, values, default))
        space = SearchSpace(dims)
        return Blueprint(
            space, terms, self.causes, costs, reference_ms, noise, self.children, frozenset(self.inert), spec=spec
        )
