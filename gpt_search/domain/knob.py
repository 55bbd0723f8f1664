"""Knobs and the knob database: one JSON form for every backend.

The form is TensorRT's (`IBuilderConfig.all_build_routes`):
`{"tuner_version": ..., "tuner_options": [{"option", "allowed_values", "default_value", "help"}]}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.json_text import parse_json

_INTEGER_TYPES = frozenset({"int", "int32_t", "int64_t"})
_INTEGER = re.compile(r"[+-]?[0-9]+")


def unwritable(value: str) -> str | None:
    """Why a value cannot be written in an expression or a route, or None when it can."""
    if not value or any(c.isspace() or c in "[]|" for c in value):
        return f"{value!r} is empty or contains white space or one of [ ] |"
    return None


@dataclass(frozen=True, slots=True)
class Knob:
    """One compiler setting.

    name: without the leading dash; may contain colons (`kgen:codegen:cuda_tile`).
    values: the allowed values of a closed knob; for an open-ended one the compiler's examples, if any.
    default: the value that the compiler uses when the knob is left out.
    open_ended: True when the compiler takes values beyond `values`; such a knob can only be used
        with values that the user lists.
    integer: for an open-ended knob, True when every value but the default must be a whole number; always so
        when its examples all are. The default is the compiler's own word and stands, whatever it is ("auto").
    """

    name: str
    values: tuple[str, ...]
    default: str
    help: str = ""
    open_ended: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        """Raises InputError when the knob contradicts itself."""
        if not self.name or any(c.isspace() or c in "=[]|*?@" for c in self.name):
            raise InputError(f"knob name {self.name!r} is empty or contains white space or one of = [ ] | * ? @")
        for value in self.values:
            if (why := unwritable(value)) is not None:
                raise InputError(f"knob {self.name!r}: the value {why}")
        if len(set(self.values)) != len(self.values):
            raise InputError(f"knob {self.name!r} lists a value twice: {'|'.join(self.values)}")
        if "..." in self.values:
            raise InputError(f"knob {self.name!r} lists '...', which stands for values beyond the list")
        whole = bool(self.values) and all(_INTEGER.fullmatch(v) for v in self.values)
        if self.integer and self.values and not whole:
            raise InputError(f"knob {self.name!r} takes whole numbers, but lists {'|'.join(self.values)}")
        # The JSON form cannot say otherwise, and a database must survive being written and read.
        object.__setattr__(self, "integer", self.open_ended and (self.integer or whole))
        if self.open_ended:
            return
        if not self.values:
            raise InputError(f"knob {self.name!r} has no allowed values; a closed knob needs at least one")
        if self.default not in self.values:
            raise InputError(
                f"knob {self.name!r} has default {self.default!r}, which is not among its values "
                f"{'|'.join(self.values)}"
            )

    def check(self, value: str) -> str | None:
        """Why `value` is not allowed, or None when it is."""
        if self.open_ended:
            if self.integer and value != self.default and not _INTEGER.fullmatch(value):
                return f"{value!r} is not a whole number"
            return unwritable(value)
        if value in self.values:
            return None
        return f"{value!r} is not among {'|'.join(self.values)}{did_you_mean(value, self.values)}"

    @property
    def allowed(self) -> str:
        """The allowed values in TensorRT's notation, without the name."""
        if not self.open_ended:
            return f"[{'|'.join(self.values)}]"
        if self.values:
            return f"[{'|'.join(self.values)}|...]"
        return "int" if self.integer else "..."


def _knob_from_entry(position: int, entry: Any) -> Knob:
    where = f"tuner_options[{position}]"
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} is {type(entry).__name__}, expected an object")
    for key in ("option", "allowed_values", "default_value"):
        if not isinstance(entry.get(key), str):
            raise InputError(f"{where} has no text field {key!r}; fields given: {', '.join(map(str, entry)) or 'none'}")
    option, allowed = entry["option"], entry["allowed_values"]
    if not option.startswith("-"):
        raise InputError(f"{where}: option {option!r} does not start with '-'")
    prefix = f"{option}="
    if not allowed.startswith(prefix):
        raise InputError(f"{where}: allowed_values {allowed!r} does not start with {prefix!r}")
    spec = allowed[len(prefix) :]
    name, default, help_text = option[1:], entry["default_value"], str(entry.get("help") or "")
    if not spec or spec == "[]":
        raise InputError(f"{where}: allowed_values {allowed!r} allows nothing")
    if spec.startswith("[") and spec.endswith("]"):
        listed = spec[1:-1].split("|")
        return Knob(name, tuple(v for v in listed if v != "..."), default, help_text, "..." in listed)
    return Knob(name, (), default, help_text, True, spec in _INTEGER_TYPES)


@dataclass(frozen=True)
class KnobDatabase:
    """All knobs of one compiler version, in the compiler's order.

    Source of the JSON form: TensorRT's `IBuilderConfig.all_build_routes`.
    """

    tuner_version: str
    knobs: tuple[Knob, ...]
    _by_name: Mapping[str, Knob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises InputError when a name appears twice."""
        by_name: dict[str, Knob] = {}
        for knob in self.knobs:
            if knob.name in by_name:
                raise InputError(f"the knob database names {knob.name!r} twice")
            by_name[knob.name] = knob
        object.__setattr__(self, "_by_name", by_name)

    @classmethod
    def from_json(cls, text: str) -> KnobDatabase:
        """Reads TensorRT's JSON form. Raises InputError naming the entry that is wrong."""
        if not text.strip():
            raise InputError("the knob database is empty: this compiler build does not support build routes")
        try:
            data = parse_json(text)
        except ValueError as error:
            raise InputError(f"the knob database is not JSON: {error}") from None
        if not isinstance(data, Mapping) or not isinstance(data.get("tuner_options"), list):
            raise InputError("the knob database needs an object with a list 'tuner_options'")
        version = data.get("tuner_version")
        if not isinstance(version, str):
            raise InputError("the knob database has no text field 'tuner_version'")
        return cls(version, tuple(_knob_from_entry(i, e) for i, e in enumerate(data["tuner_options"])))

    def to_json(self) -> str:
        """TensorRT's JSON form; `from_json` gives back an equal database."""
        options = [
            {
                "option": f"-{k.name}",
                "allowed_values": f"-{k.name}={k.allowed}",
                "default_value": k.default,
                "help": k.help,
            }
            for k in self.knobs
        ]
        return json.dumps({"tuner_version": self.tuner_version, "tuner_options": options}, indent=1, ensure_ascii=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over version, names, values and defaults; help texts do not count."""
        return digest_of([self.tuner_version, [[k.name, k.allowed, k.default] for k in self.knobs]])

    @property
    def names(self) -> tuple[str, ...]:
        """Knob names in database order."""
        return tuple(self._by_name)

    @property
    def defaults(self) -> dict[str, str]:
        """The default of every knob."""
        return {k.name: k.default for k in self.knobs}

    def __len__(self) -> int:
        return len(self.knobs)

    def __iter__(self) -> Iterator[Knob]:
        return iter(self.knobs)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Knob:
        """The knob of that name. Raises InputError with the nearest name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise InputError(
                f"unknown knob {name!r}{did_you_mean(name, self._by_name)} "
                f"({len(self)} knobs in version {self.tuner_version})"
            ) from None

    @staticmethod
    def of(tuner_version: str, knobs: Iterable[Knob]) -> KnobDatabase:
        """A database from knobs made in Python."""
        return KnobDatabase(tuner_version, tuple(knobs))
