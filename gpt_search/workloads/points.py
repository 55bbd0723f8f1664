"""Shape points of a dynamic model, as the user declares them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import Point
from gpt_search.workloads.inspect import parse_shapes

_HEAD = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(@(?P<weight>\S+))?")


def parse_points(texts: Sequence[str], common: Mapping[str, tuple[int, ...]] | None = None) -> tuple[Point, ...]:
    """Reads `NAME@WEIGHT INPUT=1x128 INPUT=...` texts, one per point.

    Words are separated by white space. The weight may be left out (1), and the name with it (point1, point2, ...).
    common: shapes of inputs that every point has, unless it gives its own. Raises InputError for anything else.
    """
    points: list[Point] = []
    for number, text in enumerate(texts, start=1):
        words = text.split()
        name, weight = f"point{number}", 1.0
        if words and "=" not in words[0]:
            found = _HEAD.fullmatch(words[0])
            if found is None:
                raise InputError(
                    f"--point {text!r}: {words[0]!r} is neither NAME@WEIGHT (NAME of letters, digits, '_', '.', '-') "
                    "nor INPUT=1x128"
                )
            name, words = found["name"], words[1:]
            if found["weight"] is not None:
                weight = _weight(found["weight"], text)
        if not words:
            raise InputError(f"--point {text!r} gives no shape; write --point 'NAME@WEIGHT INPUT=1x128 ...'")
        points.append(Point(name, weight, {**(common or {}), **parse_shapes(words, "--point")}))
    names = [p.name for p in points]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--point: two points are called {name!r}; give each a name of its own")
    return tuple(points)


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"--point {where!r}: the weight {text!r} is not a number above 0")
    return weight
