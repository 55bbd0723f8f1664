"""The search space: the knobs that vary, with the values to try, and the pinned ones.

It holds factors, never their product: every operation is O(number of knobs), also at 2^200 routes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route

Codes = NDArray[np.int16]
_INT16 = np.dtype(np.int16)

MAX_VALUES = int(np.iinfo(np.int16).max)
"""Values that one knob may have in a space: codes are int16."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One varying knob.

    values: the values to try; a value's position is its code.
    default: the code of the knob's default, which is always among the values.
    listed: how many leading values an enumeration covers; less than `len(values)` only where
        trtexec's grammar is followed to the letter and the default was not listed.
    """

    name: str
    values: tuple[str, ...]
    default: int
    listed: int | None = None

    def __post_init__(self) -> None:
        """Raises InputError when the dimension contradicts itself."""
        if not self.values:
            raise InputError(f"knob {self.name!r} has no values to try")
        if len(set(self.values)) != len(self.values):
            raise InputError(f"knob {self.name!r} lists a value twice: {'|'.join(self.values)}")
        if not 0 <= self.default < len(self.values):
            raise InputError(f"knob {self.name!r}: default code {self.default} is outside 0..{len(self.values) - 1}")
        if len(self.values) > MAX_VALUES:
            raise InputError(f"knob {self.name!r} has {len(self.values)} values; at most {MAX_VALUES} are supported")
        if self.listed is not None and not 1 <= self.listed <= len(self.values):
            raise InputError(f"knob {self.name!r}: {self.listed} listed values of {len(self.values)}")


class SearchSpace:
    """The knobs that vary and the pinned ones, in expression order.

    A route of the space is worked on as a *code vector*: int16 of shape (d,), one code per varying
    knob, code i meaning `values[knob][i]`.

    size: number of routes, a Python int. names: d knob names. values: d tuples of values.
    cardinalities: int16 (d,), read-only. default: int16 (d,), the reference route, read-only.
    pinned: values of the pinned knobs. notes: what the parser wants the user to know.
    """

    def __init__(
        self, dimensions: Iterable[Dimension], pinned: Mapping[str, str] | None = None, notes: Sequence[str] = ()
    ) -> None:
        """Raises InputError when a knob appears twice."""
        self.dimensions: tuple[Dimension, ...] = tuple(dimensions)
        self.pinned: dict[str, str] = dict(pinned or {})
        self.notes: tuple[str, ...] = tuple(notes)
        self.names: tuple[str, ...] = tuple(d.name for d in self.dimensions)
        if len(set(self.names) | set(self.pinned)) != len(self.names) + len(self.pinned):
            raise InputError("a knob appears twice in the search space")
        self.values: tuple[tuple[str, ...], ...] = tuple(d.values for d in self.dimensions)
        counts = [len(v) for v in self.values]
        self.cardinalities: Codes = _frozen(counts)
        self.default: Codes = _frozen([d.default for d in self.dimensions])
        self.listed: Codes = _frozen([len(d.values) if d.listed is None else d.listed for d in self.dimensions])
        self.size: int = math.prod(counts)
        self._scale = np.asarray(counts, np.float64)
        self._limits = np.asarray(counts, np.uint16)

    def __len__(self) -> int:
        """Number of varying knobs, d."""
        return len(self.dimensions)

    def __repr__(self) -> str:
        return f"SearchSpace({len(self)} knobs, {self.size} routes, {len(self.pinned)} pinned)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SearchSpace) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def spec(self) -> dict[str, object]:
        """The ordered JSON form that `digest` covers; `from_spec` reads it back."""
        return {
            "dimensions": [
                [d.name, list(d.values), d.default, len(d.values) if d.listed is None else d.listed]
                for d in self.dimensions
            ],
            "pinned": [[n, v] for n, v in self.pinned.items()],
        }

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> SearchSpace:
        """The space that `spec()` described. Raises InputError when the form is wrong."""
        try:
            dims = [Dimension(n, tuple(v), d, listed) for n, v, d, listed in spec["dimensions"]]
            pinned = dict(spec["pinned"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"not a search space: {error}") from None
        return cls(dims, pinned)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the ordered spec: knobs, values, order, defaults and pins."""
        return digest_of(self.spec())

    # -- routes and codes --------------------------------------------------------------------
    def check(self, codes: Codes) -> Codes:
        """`codes` as int16 (d,). Raises InputError when it is not a code vector of this space."""
        array = np.asarray(codes)
        if array.shape != (len(self),) or array.dtype.kind not in "iu":
            raise InputError(
                f"a code vector of this space is int16 of shape ({len(self)},); got "
                f"{array.dtype} of shape {array.shape}"
            )
        bad = np.flatnonzero((array < 0) | (array >= self.cardinalities))
        if bad.size:
            i = int(bad[0])
            raise InputError(
                f"code {int(array[i])} for knob {self.names[i]!r} is outside 0..{int(self.cardinalities[i]) - 1}"
            )
        return array.astype(np.int16, copy=False)

    def route(self, codes: Codes) -> Route:
        """The route of a code vector: every varying knob and every pin."""
        varying = tuple((n, v[c]) for n, v, c in zip(self.names, self.values, codes.tolist(), strict=True))
        return Route(varying + tuple(self.pinned.items()))

    def codes(self, route: Route | str) -> Codes:
        """The code vector of a route; knobs that the route leaves out are at their default, pins at their pin.

        Raises InputError when the route sets a knob or a value that the space does not hold.
        """
        given = Route.parse(route) if isinstance(route, str) else route
        position = {n: i for i, n in enumerate(self.names)}
        out = self.default.copy()
        for name, value in given.items_in_order:
            if name in position:
                i = position[name]
                if value not in self.values[i]:
                    raise InputError(f"{value!r} for knob {name!r} is not among {'|'.join(self.values[i])}")
                out[i] = self.values[i].index(value)
            elif self.pinned.get(name) != value:
                pin = self.pinned.get(name)
                raise InputError(
                    f"knob {name!r} is pinned to {pin!r} in this space, the route sets {value!r}"
                    if pin is not None
                    else f"knob {name!r} is not in this space"
                )
        return out

    @property
    def reference(self) -> Route:
        """The reference route: every varying knob at its default, pins kept."""
        return self.route(self.default)

    def codes_at(self, index: int) -> Codes:
        """The code vector number `index` (0 <= index < size) in mixed-radix order, the last knob fastest."""
        if not 0 <= index < self.size:
            raise IndexError(f"route index {index} is outside 0..{self.size - 1}")
        out = np.empty(len(self), np.int16)
        for i in range(len(self) - 1, -1, -1):
            index, out[i] = divmod(index, len(self.values[i]))
        return out

    def route_at(self, index: int) -> Route:
        """The route number `index` (0 <= index < size) in mixed-radix order, the last knob fastest."""
        return self.route(self.codes_at(index))

    def index_of(self, route: Route | str | Codes) -> int:
        """The inverse of `route_at`, for a route or a code vector. Raises InputError."""
        codes = self.codes(route) if isinstance(route, Route | str) else self.check(route)
        index = 0
        for values, code in zip(self.values, codes.tolist(), strict=True):
            index = index * len(values) + code
        return index

    def neighbours(self, codes: Codes) -> Codes:
        """All code vectors one change away: int16 of shape (sum(cardinality - 1), d), knob by knob, value order."""
        rows = []
        for i, count in enumerate(self.cardinalities.tolist()):
            for code in range(count):
                if code != codes[i]:
                    rows.append((i, code))
        out = np.repeat(np.asarray(codes, np.int16)[None, :], len(rows), axis=0)
        if rows:
            where, what = np.asarray(rows).T
            out[np.arange(len(rows)), where] = what
        return out

    def sample(self, rng: np.random.Generator) -> Codes:
        """One code vector, uniform over the space."""
        return (rng.random(len(self.names)) * self._scale).astype(np.int16)

    def holds(self, codes: object) -> bool:
        """True when `codes` is an int16 (d,) array with every code in range: the cheap form of `check`."""
        if not isinstance(codes, np.ndarray) or codes.dtype != _INT16 or codes.shape != self.default.shape:
            return False
        # As unsigned numbers negative codes are large too; looking for a zero byte is 3 x faster than all().
        return b"\0" not in np.less(codes.view(np.uint16), self._limits).tobytes()


def _frozen(values: Sequence[int]) -> Codes:
    array = np.asarray(values, np.int16)
    array.flags.writeable = False
    return array
