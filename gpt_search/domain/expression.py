"""The expression language of trtexec's tuner, with gpt_search's extensions.

trtexec's grammar: tokens separated by spaces outside brackets, `-knob=value` pins a knob,
`-knob=[a|b|c]` varies it. Extensions (off with `strict=True`): any white space separates; an
explicit list on an open-ended knob; `-knob=[*]` for all allowed values; globs in names
(`-mha_fusion:*=[*]`); `@file`; the default is appended to a list that lacks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.knob import Knob, KnobDatabase, unwritable
from gpt_search.domain.space import MAX_VALUES, Dimension, SearchSpace

_GLOB = re.compile(r"[*?]")
_WHITE = re.compile(r"\s")
_COMMENT = re.compile(r"(?m)(?:(?<=\s)|^)#.*$")


class ExpressionError(InputError):
    """An expression that cannot be read: the message names the token and its column (from 1)."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    column: int
    line: int
    source: str | None

    def place(self, offset: int = 0) -> str:
        """Where character `offset` of the token stands: a value may be on a later line than its name."""
        before = self.text[:offset]
        line, column = self.line + before.count("\n"), self.column + offset
        if "\n" in before:
            column = len(before) - before.rindex("\n")
        where = f"column {column}" if line == 1 and self.source is None else f"line {line}, column {column}"
        return where if self.source is None else f"{self.source}, {where}"

    def fail(self, why: str, offset: int = 0) -> ExpressionError:
        return ExpressionError(f"{self.place(offset)}: {self.text!r}: {why}")

    def offset_of(self, number: int) -> int:
        """Where value `number` of the token's list begins."""
        opening = self.text.index("[") + 1
        parts = self.text[opening:].split("|", number + 1)
        return opening + sum(len(p) + 1 for p in parts[:number]) + len(parts[number]) - len(parts[number].lstrip())


def _split(text: str, strict: bool, source: str | None) -> Iterator[_Token]:
    """Tokens with their place. White space inside brackets belongs to the token, as in trtexec."""
    start: int | None = None
    depth = 0
    line, line_start = 1, 0
    token_line, token_column = 1, 1

    def separates(c: str) -> bool:
        return c == " " if strict else c.isspace()

    for i, c in enumerate(text):
        if start is None and not separates(c):
            start, token_line, token_column = i, line, i - line_start + 1
        if start is not None:
            if c == "[":
                depth += 1
            elif c == "]":
                depth = max(0, depth - 1)
            elif depth == 0 and separates(c):
                yield _Token(text[start:i], token_column, token_line, source)
                start = None
        if c == "\n":
            line, line_start = line + 1, i + 1
    if start is not None:
        yield _Token(text[start:], token_column, token_line, source)


def _tokens(text: str, strict: bool, folder: Path, chain: tuple[Path, ...] = ()) -> Iterator[_Token]:
    """The tokens of a text, with `@file` replaced by the file's; chain: the files that led here."""
    for token in _split(text, strict, str(chain[-1]) if chain else None):
        if strict or not token.text.startswith("@"):
            yield token
            continue
        path = folder / token.text[1:]
        try:
            itself = any(path.samefile(earlier) for earlier in chain)
            content = "" if itself else path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            reason = "no file has such a name"  # "a\0b"
            if isinstance(error, OSError | UnicodeDecodeError):
                reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error.strerror)
            raise token.fail(f"cannot read the expression file {str(path)!r}: {reason}") from None
        if itself:
            raise token.fail(f"the file {str(path)!r} includes itself")
        # Comments become spaces, so that lines and columns still count from the file as written.
        content = _COMMENT.sub(lambda m: " " * len(m.group()), content)
        yield from _tokens(content, strict, path.parent, (*chain, path))


def parse_expression(
    text: str, database: KnobDatabase, *, strict: bool = False, folder: str | Path = "."
) -> SearchSpace:
    """Reads an expression into a search space.

    text: tokens `-knob=value` and `-knob=[a|b]`, and the extensions in this module's docstring.
    strict: trtexec's grammar to the letter (a knob named twice stays an error: trtexec takes it,
        but which of the two counts is not defined).
    folder: what `@file` paths are relative to.

    The order of knobs is token order; a glob expands in database order. Raises ExpressionError
    with the column, what is allowed and the nearest name.
    """
    dimensions: list[Dimension] = []
    pinned: dict[str, str] = {}
    notes: list[str] = []
    seen: dict[str, _Token] = {}
    for token in _tokens(text, strict, Path(folder)):
        name, values = _parse_token(token, strict)
        for knob in _match(token, name, values, database, strict, notes):
            if knob.name in seen:
                first = seen[knob.name]
                raise token.fail(f"knob {knob.name!r} was already named by {first.text!r} at {first.place()}")
            seen[knob.name] = token
            if isinstance(values, str):
                _check(token, knob, values, len(name) + 2, strict)
                pinned[knob.name] = values
            else:
                dimensions.append(_dimension(token, knob, values, strict, notes))
    if not seen:
        raise ExpressionError(
            "the expression names no knob; write for example '-name=[*]' (`gpt-search knobs` lists them)"
        )
    return SearchSpace(dimensions, pinned, notes)


def _parse_token(token: _Token, strict: bool) -> tuple[str, str | list[str]]:
    """The name, and either the pinned value or the list of values."""
    text = token.text
    if not text.startswith("-"):
        raise token.fail("a token starts with '-', as in -name=value or -name=[a|b]")
    name, equals, rest = text.partition("=")
    if not equals:
        raise token.fail("has no '='; write -name=value or -name=[a|b]")
    name = name[1:]
    at = len(name) + 2
    if not name:
        raise token.fail("has no knob name before '='", 1)
    if not rest:
        raise token.fail("has no value after '='", at)
    opening, closing = rest.find("["), rest.find("]")
    if opening < 0 and closing < 0:
        return name, rest
    if opening < 0:
        raise token.fail("has a ']' without a '['", at + closing)
    if opening > 0:
        raise token.fail(f"has text {rest[:opening]!r} before the bracket; write -{name}=[a|b]", at)
    if closing < 0:
        raise token.fail("has a '[' without a ']'", at)
    if closing != len(rest) - 1:
        raise token.fail(f"has text {rest[closing + 1 :]!r} after the bracket", at + closing + 1)
    inner = rest[1:closing]
    if "[" in inner:
        raise token.fail("has a '[' inside the brackets", at + 1 + inner.index("["))
    values = inner.split("|") if strict else [v.strip() for v in inner.split("|")]
    if values == [""]:
        raise token.fail("has an empty list; write the values to try, as in [a|b]", at)
    met: set[str] = set()
    for i, value in enumerate(values):
        if not value:
            raise token.fail("has an empty value in its list", token.offset_of(i))
        if value in met:
            raise token.fail(f"lists {value!r} twice", token.offset_of(i))
        met.add(value)
    if len(values) > MAX_VALUES:
        raise token.fail(f"lists {len(values)} values; at most {MAX_VALUES} are supported", at)
    return name, values


def _match(
    token: _Token, name: str, values: str | list[str], database: KnobDatabase, strict: bool, notes: list[str]
) -> list[Knob]:
    if strict or not _GLOB.search(name):
        if name not in database:
            raise token.fail(
                f"unknown knob {name!r}{did_you_mean(name, database.names)} "
                f"({len(database)} knobs in version {database.tuner_version})",
                1,
            )
        return [database[name]]
    pattern = _pattern(name)
    found = [k for k in database if pattern.fullmatch(k.name)]
    if not found:
        raise token.fail(f"no knob matches {name!r} ({len(database)} knobs in version {database.tuner_version})", 1)
    closed = [k for k in found if not k.open_ended]
    skipped = [k.name for k in found if k.open_ended]
    if skipped:
        notes.append(f"{token.text}: skips the open-ended knobs {listing(skipped)}; list their values to use them")
    if not closed:
        raise token.fail(f"matches open-ended knobs only ({listing(skipped)}); name one and list its values", 1)
    return closed


def _pattern(glob: str) -> re.Pattern[str]:
    """`*` for any characters, `?` for one. Atomic groups: no backtracking, however many stars there are."""
    head, *parts = ("".join("." if c == "?" else re.escape(c) for c in part) for part in glob.split("*"))
    if not parts:
        return re.compile(head)
    middle = "".join(f"(?>.*?{part})" for part in parts[:-1] if part)
    return re.compile(f"{head}{middle}.*{parts[-1]}")


def _check(token: _Token, knob: Knob, value: str, offset: int, strict: bool) -> None:
    if strict and knob.open_ended:
        # trtexec takes a pinned open-ended value as it is; a tab or newline in it was meant to separate tokens.
        why = (
            f"{value!r} contains white space; trtexec separates tokens by spaces only" if _WHITE.search(value) else None
        )
    else:
        why = knob.check(value)
        if why is not None and "|" in value:
            why = f"several values need brackets: -{knob.name}=[{value}]"
    if why is not None:
        raise token.fail(f"knob {knob.name!r}: {why}", offset)


def _dimension(token: _Token, knob: Knob, values: list[str], strict: bool, notes: list[str]) -> Dimension:
    if values == ["*"] and not strict:
        if knob.open_ended:
            raise token.fail(
                f"knob {knob.name!r} is open-ended ({knob.allowed}): list the values to try, as in [0|1|2]"
            )
        values = list(knob.values)
    elif knob.open_ended and strict:
        raise token.fail(
            f"knob {knob.name!r} is open-ended ({knob.allowed}): trtexec takes no list for it, only one value"
        )
    for i, value in enumerate(values):
        if (why := knob.check(value)) is not None:
            raise token.fail(f"knob {knob.name!r}: {why}", token.offset_of(i))
    listed = len(values)
    if knob.default in values:
        return Dimension(knob.name, tuple(values), values.index(knob.default))
    if (why := unwritable(knob.default)) is not None or listed == MAX_VALUES:
        raise token.fail(f"knob {knob.name!r}: its default cannot be added to the list: {why or 'it is full'}")
    notes.append(
        f"{token.text}: the default {knob.default!r} of knob {knob.name!r} was not listed and "
        + ("serves as the baseline only" if strict else "is added as a value")
    )
    return Dimension(knob.name, (*values, knob.default), listed, listed if strict else None)
