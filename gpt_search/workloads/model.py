"""What is known of the model to be tuned before it is built, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt_search.backends.registry import load_backend
from gpt_search.domain.errors import InputError
from gpt_search.domain.workload import GoldenPair, Point, Workload
from gpt_search.workloads.inspect import inspect_model, output_specs

Specs = Mapping[str, tuple[Any, Sequence[int | str | None] | None]]


@dataclass(frozen=True)
class Model:
    """A workload with what its golden data must look like.

    inputs, outputs: name -> (element type, shape); outputs None where the backend does not tell.
    golden: makes that many golden pairs, for backends that bring their own; None for model files.
    """

    workload: Workload
    inputs: Specs
    outputs: Specs | None
    golden: Callable[[int], list[GoldenPair]] | None = None


def describe_model(
    backend: str,
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    own_workload: bool = False,
    points: Sequence[Point] = (),
) -> Model:
    """The model file as a workload of that backend; nothing is executed. Raises InputError.

    points: of a dynamic model, in place of `shapes`.

    own_workload: whether the backend has the method `own_workload(path) -> (Workload, golden)`, with which it
    brings its own form of model; every other one takes ONNX. Only such a backend is loaded into this process:
    what a backend does to its process (folder, descriptors, output, forks) is a worker's matter.
    """
    if own_workload:
        own = load_backend(backend).own_workload  # type: ignore[attr-defined]
        if shapes:
            raise InputError(f"--shape has no meaning for the backend {backend.partition(':')[0]!r}; leave it out")
        if points:
            raise InputError(f"--point has no meaning for the backend {backend.partition(':')[0]!r}; leave it out")
        workload, golden = own(path)
        return Model(workload, {}, None, golden)
    if points:
        return _at_points(path, points)
    workload, inputs = inspect_model(path, shapes)
    return Model(workload, {i.name: (i.dtype, i.shape) for i in inputs}, output_specs(path))


def _at_points(path: Path, points: Sequence[Point]) -> Model:
    """The workload with every input's shape at every point. Of one point it is the workload of its shapes."""
    whole: list[Point] = []
    for point in points:
        try:
            workload, inputs = inspect_model(path, point.shapes)
        except InputError as error:
            raise InputError(f"--point {point.name!r}: {error}") from None
        whole.append(point._replace(shapes=workload.shapes))
        for other in whole[:-1]:
            if other.shapes == workload.shapes:
                raise InputError(f"--point: {other.name!r} and {point.name!r} have the same shapes; leave out one")
    if len(whole) > 1:
        workload = replace(workload, points=tuple(whole))
    specs: dict[str, tuple[Any, Sequence[int | str | None] | None]] = {}
    for each in inputs:
        sizes = list(zip(*(p.shapes[each.name] for p in whole), strict=True))
        specs[each.name] = (each.dtype, tuple(s[0] if len(set(s)) == 1 else None for s in sizes))
    return Model(workload, specs, output_specs(path))
