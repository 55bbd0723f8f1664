"""An order-invariant digest of an ONNX graph: a Merkle hash over values.

A value's hash covers how it is computed, down to the bytes of the weights; neither the order of
nodes nor the names of intermediate values count, since the runtime chooses both anew in every build.
Source of the idea: R. C. Merkle, "A digital signature based on a conventional encryption function", 1987.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def graph_digest(model: Any, folder: Path | None = None) -> str:
    """SHA-256 (hex) of an `onnx.ModelProto`'s program.

    Covered: operators with domain, attributes and subgraphs, how values are connected, weights by
    type, shape and content, the graph's inputs (name, type, shape) and outputs (name), operator sets,
    the model's own functions. Not covered: order and names of nodes, names of intermediate values,
    documentation, metadata. folder: where external weights lie.

    Raises ValueError when the graph has a cycle or reads a value that nothing makes.
    """
    opsets = sorted((o.domain, o.version) for o in model.opset_import)
    functions = sorted(
        _hash(b"function", *(str(x).encode() for x in (f.domain, f.name)), _function(f)) for f in model.functions
    )
    return _hash(b"model", repr(opsets).encode(), *functions, _graph(model.graph, {}, folder, top=True)).hex()


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:  # the length first: otherwise two splits of one text would be equal
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _function(function: Any) -> bytes:
    values: dict[str, bytes] = {n: _hash(b"parameter", str(i).encode()) for i, n in enumerate(function.input)}
    nodes = _nodes(function.node, values, None)
    return _hash(*nodes, b"outputs", *(values[n] for n in function.output))


def _graph(graph: Any, outer: Mapping[str, bytes], folder: Path | None, top: bool = False) -> bytes:
    values: dict[str, bytes] = dict(outer)
    inputs = []
    weights = {t.name: _tensor(t, folder) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        weights[sparse.values.name] = _hash(
            b"sparse", _tensor(sparse.values, folder), _tensor(sparse.indices, folder), repr(list(sparse.dims)).encode()
        )
    for position, value in enumerate(graph.input):
        if value.name in weights:
            continue
        # In a subgraph the position is the interface; in the model itself the name is.
        name = value.name if top else str(position)
        values[value.name] = _hash(b"input", name.encode(), _type(value.type))
        inputs.append(values[value.name])
    values.update(weights)
    nodes = _nodes(graph.node, values, folder)
    outputs = [_hash(o.name.encode() if top else b"", values[o.name]) for o in graph.output]
    return _hash(
        b"inputs", *sorted(inputs), b"weights", *sorted(weights.values()), b"nodes", *nodes, b"outputs", *outputs
    )


def _nodes(nodes: Any, values: dict[str, bytes], folder: Path | None) -> list[bytes]:
    """Hashes of the nodes, sorted; fills `values` with the hash of every output."""
    hashes = []
    waiting = list(nodes)
    while waiting:
        later = []
        for node in waiting:
            if all(not n or n in values for n in node.input) and _captures_known(node, values):
                h = _node(node, values, folder)
                hashes.append(h)
                for i, output in enumerate(node.output):
                    if output:
                        values[output] = _hash(h, str(i).encode())
            else:
                later.append(node)
        if len(later) == len(waiting):
            missing = next(n for node in later for n in [*node.input, "?"] if n and n not in values)
            raise ValueError(f"value {missing!r} is read but never made")
        waiting = later
    return sorted(hashes)


def _captures_known(node: Any, values: Mapping[str, bytes]) -> bool:
    """True when every outer value that the node's subgraphs read is known already."""
    return all(name in values for attribute in node.attribute for g in _subgraphs(attribute) for name in _free(g))


def _subgraphs(attribute: Any) -> list[Any]:
    return ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)


def _free(graph: Any) -> set[str]:
    """Names that a subgraph reads from outside."""
    made = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    made |= {s.values.name for s in graph.sparse_initializer} | {o for node in graph.node for o in node.output}
    read = {n for node in graph.node for n in node.input if n} | {o.name for o in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in _subgraphs(attribute):
                read |= _free(inner)
    return read - made


def _node(node: Any, values: Mapping[str, bytes], folder: Path | None) -> bytes:
    attributes = sorted(_hash(a.name.encode(), _attribute(a, values, folder)) for a in node.attribute)
    operator = _hash(node.op_type.encode(), _domain(node.domain).encode(), getattr(node, "overload", "").encode())
    present = bytes(bool(o) for o in node.output).rstrip(b"\0")
    return _hash(operator, *attributes, b"in", *(values[n] if n else b"" for n in node.input), b"out", present)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _attribute(attribute: Any, values: Mapping[str, bytes], folder: Path | None) -> bytes:
    graphs = [_graph(g, values, folder) for g in _subgraphs(attribute)]
    if graphs:
        return _hash(b"graphs", *graphs)
    tensors = ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors)
    if tensors:
        return _hash(b"tensors", *(_tensor(t, folder) for t in tensors))
    plain = type(attribute)()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    return bytes(plain.SerializeToString(deterministic=True))


def _type(kind: Any) -> bytes:
    plain = type(kind)()
    plain.CopyFrom(kind)
    plain.ClearField("denotation")
    return bytes(plain.SerializeToString(deterministic=True))


def _tensor(tensor: Any, folder: Path | None) -> bytes:
    import onnx
    from onnx import numpy_helper

    head = repr((tensor.data_type, list(tensor.dims))).encode()
    if tensor.data_type == onnx.TensorProto.STRING:
        return _hash(b"tensor", head, *tensor.string_data)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        array = numpy_helper.to_array(tensor, str(folder) if folder else "")
        return _hash(b"tensor", head, array.tobytes())
    if tensor.HasField("raw_data"):
        return _hash(b"tensor", head, tensor.raw_data)
    return _hash(b"tensor", head, numpy_helper.to_array(tensor).tobytes())
