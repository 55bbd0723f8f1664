"""A workload: a model file, its input shapes, and golden pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.digest import digest_of, digest_of_file

Array = NDArray[np.generic]


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class GoldenPair:
    """Inputs and the reference outputs that a correct engine must reproduce, by tensor name."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class Workload:
    """What is tuned.

    model: the model file. shapes: input name -> concrete shape, for every input of the model.
    external: files with the model's external weights, in a fixed order.
    name: for study names and reports; the model's stem by default.
    """

    model: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    external: tuple[Path, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Normalises the paths and the name."""
        object.__setattr__(self, "model", Path(self.model).absolute())
        object.__setattr__(self, "external", tuple(Path(p).absolute() for p in self.external))
        object.__setattr__(self, "shapes", {n: tuple(s) for n, s in self.shapes.items()})
        if not self.name:
            object.__setattr__(self, "name", self.model.stem)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes of the model and its external weights, and the shapes. Raises OSError."""
        files = [digest_of_file(p) for p in (self.model, *self.external)]
        return digest_of([files, {n: list(s) for n, s in self.shapes.items()}])

    def to_json(self) -> dict[str, object]:
        """A JSON-like form that `from_json` reads back."""
        return {
            "model": str(self.model),
            "shapes": {n: list(s) for n, s in self.shapes.items()},
            "external": [str(p) for p in self.external],
            "name": self.name,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """The workload that `to_json` described. Raises KeyError, TypeError or ValueError for another form."""
        return cls(
            Path(data["model"]),
            {str(n): tuple(int(x) for x in s) for n, s in dict(data["shapes"]).items()},
            tuple(Path(p) for p in data["external"]),
            str(data["name"]),
        )
