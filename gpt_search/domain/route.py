"""A build route: one value per knob, written `-name=value -name=value ...`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError


@dataclass(frozen=True)
class Route(Mapping[str, str]):
    """Knob values in writing order; knobs that are left out are at the compiler's default."""

    items_in_order: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        """Raises InputError when a knob appears twice."""
        if len(self._values) != len(self.items_in_order):
            names = [n for n, _ in self.items_in_order]
            twice = next(n for n in names if names.count(n) > 1)
            raise InputError(f"the route sets knob {twice!r} twice")

    @cached_property
    def _values(self) -> dict[str, str]:
        return dict(self.items_in_order)

    @classmethod
    def parse(cls, text: str) -> Route:
        """Reads `-name=value -name=value ...`; white space separates. Raises InputError."""
        items = []
        for token in text.split():
            name, equals, value = token.partition("=")
            if not name.startswith("-") or len(name) < 2 or not equals or not value or value.startswith("["):
                raise InputError(f"route token {token!r} is not of the form -name=value")
            items.append((name[1:], value))
        return cls(tuple(items))

    def __str__(self) -> str:
        return " ".join(f"-{name}={value}" for name, value in self.items_in_order)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self.items_in_order))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Route):
            return self._values == other._values
        return NotImplemented

    def changes(self, defaults: Mapping[str, str]) -> Route:
        """The knobs that differ from `defaults`, in writing order: the shortest equal route."""
        return Route(tuple((n, v) for n, v in self.items_in_order if defaults.get(n) != v))

    def digest(self, defaults: Mapping[str, str]) -> str:
        """SHA-256 of the route's meaning: equal for routes that differ only in spelled-out defaults or order."""
        return digest_of(sorted(self.changes(defaults).items_in_order))
