"""A workload: a model file, its input shapes, and golden pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.digest import digest_of, digest_of_file

Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class GoldenPair:
    """Inputs and the reference outputs that a correct engine must reproduce, by tensor name."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


class Point(NamedTuple):
    """One shape point of a dynamic model. weight: more than 0, relative to the sum of all; shapes: of every input."""

    name: str
    weight: float
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """What is tuned.

    model: the model file. shapes: input name -> concrete shape, for every input of the model.
    external: files with the model's external weights, in a fixed order.
    name: for study names and reports; the model's stem by default.
    points: two or more shape points that the engine has to serve, each gated and timed; empty where `shapes` is all.
    With points, `shapes` is those of the first.
    """

    model: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    external: tuple[Path, ...] = ()
    name: str = ""
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        """Normalises the paths and the name. Raises ValueError for one point, equal names or shapes, wrong weights."""
        object.__setattr__(self, "model", Path(self.model).absolute())
        object.__setattr__(self, "external", tuple(Path(p).absolute() for p in self.external))
        object.__setattr__(self, "shapes", {n: tuple(s) for n, s in self.shapes.items()})
        if not self.name:
            object.__setattr__(self, "name", self.model.stem)
        points = tuple(Point(p.name, float(p.weight), {n: tuple(s) for n, s in p.shapes.items()}) for p in self.points)
        object.__setattr__(self, "points", points)
        if points:
            shapes = [tuple(sorted(p.shapes.items())) for p in points]
            if len(points) < 2 or len({p.name for p in points}) < len(points) or len(set(shapes)) < len(points):
                raise ValueError("shape points are two or more, with different names and shapes")
            if not all(math.isfinite(p.weight) and p.weight > 0 for p in points):
                raise ValueError("the weight of a shape point is more than 0, and finite")
            object.__setattr__(self, "shapes", points[0].shapes)

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the points; (1.0,) where `shapes` is all."""
        return tuple(p.weight for p in self.points) or (1.0,)

    @property
    def all_shapes(self) -> tuple[Mapping[str, tuple[int, ...]], ...]:
        """The shapes of every point, in order."""
        return tuple(p.shapes for p in self.points) or (self.shapes,)

    def point_of(self, pair: GoldenPair) -> int | None:
        """The number of the point whose shapes the pair's inputs have; 0 without points, None for no point."""
        if not self.points:
            return 0
        given = {n: np.shape(a) for n, a in pair.inputs.items()}
        for number, point in enumerate(self.points):
            if all(given.get(n, s) == s for n, s in point.shapes.items()):
                return number
        return None

    def pair_at(self, point: int, pairs: Sequence[GoldenPair]) -> GoldenPair:
        """The first golden pair of a point: what is timed there. Raises ValueError where it has none."""
        for pair in pairs:
            if self.point_of(pair) == point:
                return pair
        raise ValueError(f"no golden pair has the shapes of point {point}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes of the model and its external weights, the shapes, and the points. Raises OSError."""
        files = [digest_of_file(p) for p in (self.model, *self.external)]
        shapes = {n: list(s) for n, s in self.shapes.items()}
        return digest_of([files, shapes, self._points_json()] if self.points else [files, shapes])

    def to_json(self) -> dict[str, object]:
        """A JSON-like form that `from_json` reads back."""
        return {
            "model": str(self.model),
            "shapes": {n: list(s) for n, s in self.shapes.items()},
            "external": [str(p) for p in self.external],
            "name": self.name,
            **({"points": self._points_json()} if self.points else {}),
        }

    def _points_json(self) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "weight": p.weight, "shapes": {n: list(s) for n, s in p.shapes.items()}}
            for p in self.points
        ]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """The workload that `to_json` described. Raises KeyError, TypeError or ValueError for another form."""
        return cls(
            Path(data["model"]),
            _shapes(data["shapes"]),
            tuple(Path(p) for p in data["external"]),
            str(data["name"]),
            tuple(Point(str(p["name"]), float(p["weight"]), _shapes(p["shapes"])) for p in data.get("points", ())),
        )


def _shapes(data: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {str(n): tuple(int(x) for x in s) for n, s in dict(data).items()}
