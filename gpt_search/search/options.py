"""Options of a strategy: keyword parameters of its class, read from and written as text."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from gpt_search.domain.errors import InputError, did_you_mean, listing

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """One option: its name, what it takes, in words, and its default as text (None where it must be given)."""

    name: str
    type: str
    default: str | None


def options_of(cls: type[Any], who: str) -> tuple[Option, ...]:
    """The options of a strategy class, in the order of its parameters.

    Options are the parameters of `__init__` that can be given by keyword and whose annotation is made
    of int, float, bool, str, None and Literal. Raises InputError when another parameter has no default.
    """
    return tuple(
        Option(name, _words(annotation), None if default is _REQUIRED else _text(default))
        for name, (annotation, default) in _parameters(cls, who).items()
    )


def make(cls: type[Any], who: str, given: Mapping[str, str]) -> tuple[Any, str]:
    """An instance of `cls` with the options `given` as text, and its canonical spec, which begins with `who`.

    Raises InputError for an unknown option, a bad value, a missing one, or what the class refuses.
    """
    parameters = _parameters(cls, who)
    values: dict[str, object] = {}
    for name, text in given.items():
        if name not in parameters:
            allowed = f"its options: {listing(parameters)}" if parameters else "it has no options"
            raise InputError(f"strategy {who!r} has no option {name!r}{did_you_mean(name, parameters)} ({allowed})")
        annotation = parameters[name][0]
        try:
            values[name] = _parse(text, annotation)
        except ValueError:
            near = did_you_mean(text, [str(a) for a in _choices(annotation)])
            raise InputError(
                f"strategy {who!r}: option {name} is {text!r}; it takes {_words(annotation)}{near}"
            ) from None
    missing = [n for n, (_, default) in parameters.items() if default is _REQUIRED and n not in values]
    if missing:
        raise InputError(f"strategy {who!r} needs the option {missing[0]!r}, as in {who}:{missing[0]}=...")
    try:
        strategy = cls(**values)
    except ValueError as error:
        raise InputError(f"strategy {who!r}: {error}") from None
    except Exception as error:
        raise InputError(f"strategy {who!r} cannot be made: {type(error).__name__}: {error}") from None
    # Compared with the type: True is not 1 here, nor 2 the same as 2.0 under int | float.
    changed = {
        name: value
        for name, value in values.items()
        if (type(value), value) != (type(parameters[name][1]), parameters[name][1])
    }
    options = ",".join(f"{name}={_text(changed[name])}" for name in sorted(changed))
    return strategy, f"{who}:{options}" if options else who


def _parameters(cls: type[Any], who: str) -> dict[str, tuple[Any, Any]]:
    """Annotation and default of every parameter that can be an option."""
    if cls.__init__ is object.__init__:
        return {}
    found = {}
    for parameter in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = _annotation(cls, parameter)
        if parameter.kind is not parameter.POSITIONAL_ONLY and _supported(annotation):
            default = parameter.default
            # A float option with the default 3 is the number 3.0, as a text for it will be.
            if annotation is float and type(default) is int:
                default = float(default)
            found[parameter.name] = (annotation, default)
        elif parameter.default is _REQUIRED:
            raise InputError(
                f"strategy {who!r}: parameter {parameter.name!r} of {cls.__name__}.__init__ has no default, and no "
                "annotation of int, float, bool, str, None or Literal from which a text could be read"
            )
    return found


def _annotation(cls: type[Any], parameter: inspect.Parameter) -> Any:
    """The type of a parameter: its annotation, else the type of its default."""
    if parameter.annotation is parameter.empty:
        return type(parameter.default)
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        scope = getattr(inspect.unwrap(cls.__init__), "__globals__", {})
        return get_type_hints(alone, globalns=scope)[parameter.name]
    except Exception:  # an annotation that exists for type checkers only
        return object


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _choices(annotation: Any) -> list[Any]:
    return [c for m in _members(annotation) if get_origin(m) is Literal for c in get_args(m)]


def _supported(annotation: Any) -> bool:
    return all(m in (int, float, bool, str, type(None)) or get_origin(m) is Literal for m in _members(annotation))


def _parse(text: str, annotation: Any) -> object:
    """The value of a text. Raises ValueError. Of a union the strictest member that takes the text counts."""
    members = _members(annotation)
    for choice in _choices(annotation):
        if text == _text(choice):
            return choice
    if type(None) in members and text.casefold() == "none":
        return None
    for kind in (bool, int, float, str):
        if kind not in members:
            continue
        # In `bool | int` 1 is a number; alone, bool takes it.
        if kind is bool and int in members and text.isdigit():
            continue
        try:
            return _plain(text, kind)
        except ValueError:
            continue
    raise ValueError(text)


def _plain(text: str, kind: type) -> object:
    if kind is bool:
        if text.casefold() in _TRUE:
            return True
        if text.casefold() in _FALSE:
            return False
        raise ValueError(text)
    value: int | float | str = kind(text)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(text)
    return value


def _text(value: object) -> str:
    """The shortest text that `_parse` reads back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _words(annotation: Any) -> str:
    """An annotation for a message."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    words = []
    for member in _members(annotation):
        words += [_text(c) for c in get_args(member)] if get_origin(member) is Literal else [names[member]]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
