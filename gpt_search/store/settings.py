"""The settings of a study: what must not change when it is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpt_search.domain.digest import digest_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.space import SearchSpace

# Beside a digest that is equal, these only say where the content lay or how it was called.
_WHEREABOUTS = frozenset({"path", "paths", "file", "files", "model", "external", "name"})
_MISSING = object()
_LONGEST_VALUE = 60
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class StudySettings:
    """Named sections of JSON-like values: space, database, workload, environment, protocol, strategy, seed, ...

    Any names may be used. Conventions: a section that stands for a file's content has a `digest`
    leaf, beside which `path`, `paths`, `file`, `files`, `model`, `external` and `name` do not
    count as long as the digests are equal; `space` is {"spec", "digest"} and is added by the store;
    `database` may have `defaults` (knob -> default value), which route digests are taken against.
    """

    sections: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Takes a deep copy in JSON form. Raises InputError when it has none (NaN, infinity, an object)."""
        try:
            copy = json.loads(json.dumps(dict(self.sections), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"study settings must be JSON-like: {error}") from None
        object.__setattr__(self, "sections", copy)

    def __getitem__(self, section: str) -> Any:
        return self.sections[section]

    def get(self, section: str, default: Any = None) -> Any:
        """A section, or `default` where the study has none."""
        return self.sections.get(section, default)

    def with_section(self, section: str, value: Any) -> StudySettings:
        """The same settings with one section set."""
        return StudySettings({**self.sections, section: value})

    def with_space(self, space: SearchSpace) -> StudySettings:
        """The same settings with the section `space` made from a search space."""
        return self.with_section("space", {"digest": space.digest, "spec": space.spec()})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all sections."""
        return digest_of(self.sections)

    def digest_of(self, section: str) -> str:
        """The section's own `digest` leaf where it has one, else the SHA-256 of its value; "" for a missing section."""
        if section not in self.sections:
            return ""
        value = self.sections[section]
        own = value.get("digest") if isinstance(value, Mapping) else None
        return own if isinstance(own, str) else digest_of(value)


def differences(stored: StudySettings, wanted: StudySettings) -> list[str]:
    """What differs, one line per leaf (`tolerance.default: stored 0.01, now 0.02`); empty when nothing does."""
    lines: list[str] = []
    for name in dict.fromkeys([*stored.sections, *wanted.sections]):
        old, new = stored.sections.get(name, _MISSING), wanted.sections.get(name, _MISSING)
        if name == "space" and isinstance(old, Mapping) and isinstance(new, Mapping) and old != new:
            lines.extend(_space_differences(old, new))
        else:
            lines.extend(_leaves(name, old, new))
    return lines


def _leaves(name: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        same_content = "digest" in old and old["digest"] == new.get("digest")
        for key in dict.fromkeys([*old, *new]):
            if same_content and key in _WHEREABOUTS:
                continue
            yield from _leaves(f"{name}.{key}", old.get(key, _MISSING), new.get(key, _MISSING))
    elif not _same(old, new):
        yield f"{name}: stored {_shown(old)}, now {_shown(new)}"


def _same(old: Any, new: Any) -> bool:
    # JSON knows one kind of number; True, which equals 1 in Python, is none.
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:12]}..."
    if len(text) <= _LONGEST_VALUE:
        return text
    # Long values that begin alike would look equal when cut: their digests do not.
    return f"{text[: _LONGEST_VALUE - 20]}... (digest {digest_of(value)[:8]})"


def _space_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    try:
        before, after = SearchSpace.from_spec(old["spec"]), SearchSpace.from_spec(new["spec"])
    except (KeyError, InputError):
        yield from _leaves("space", old, new)
        return
    one, two = ({d.name: d for d in s.dimensions} for s in (before, after))
    found = False
    for name in dict.fromkeys([*one, *before.pinned, *two, *after.pinned]):
        text_old, text_new = (
            f"{'|'.join(by[name].values)} (default {by[name].values[by[name].default]})"
            if name in by
            else f"pinned to {space.pinned[name]}"
            if name in space.pinned
            else "nothing"
            for by, space in ((one, before), (two, after))
        )
        if text_old != text_new:
            found = True
            yield f"space.{name}: stored {text_old}, now {text_new}"
    if not found and before != after:
        yield "space: the same knobs and values, but in another order or enumeration"
    elif not found and old.get("digest") != new.get("digest"):
        yield from _leaves("space.digest", old.get("digest"), new.get("digest"))
