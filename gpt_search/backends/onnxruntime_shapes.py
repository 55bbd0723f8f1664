"""Symbolic dimensions of ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt_search.backends.base import BuildError
from gpt_search.domain.workload import Workload


def dimension_name(dim: Any) -> str | None:
    """The name of a symbolic dimension (an `onnx` Dimension), None where it has none.

    Exporters also write "?" for every unknown dimension: that is no name, since one name is one size.
    """
    name = str(dim.dim_param)
    return name if any(c.isalnum() for c in name) else None


def free_dimensions(workload: Workload) -> dict[str, int]:
    """Named symbolic dimension of the model's inputs -> its size under the workload's shapes.

    A dimension that differs between the workload's shape points has no size, and is left out.

    Raises BuildError when the workload gives one name two sizes.
    """
    import onnx

    graph = onnx.load(str(workload.model), load_external_data=False).graph
    by_point = [_sizes(graph, shapes) for shapes in workload.all_shapes]
    return {name: size for name, size in by_point[0].items() if all(p.get(name) == size for p in by_point)}


def _sizes(graph: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    weights = {t.name for t in graph.initializer}
    for value in graph.input:
        if value.name in weights or value.name not in shapes:
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=False):
            name = dimension_name(dim)
            if name is not None and sizes.setdefault(name, size) != size:
                raise BuildError(f"dimension {name!r} has two sizes in the workload: {sizes[name]} and {size}")
    return sizes
