"""An engine's fingerprint, from what TensorRT's engine inspector tells of it.

It may merge different programs, because the inspector shows a fused region as one layer, and split equal
ones, because the builder races tactics on the GPU: both rates are to be measured on rebuilds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpt_search.domain.digest import digest_of

_TENSOR_LISTS = frozenset({"Inputs", "Outputs"})
_MADE_UP_NUMBER = re.compile(r"(?<=_myl)\d+_\d+\b|\(Unnamed Layer\* \d+\)")


def fingerprint_of(inspected: str, run_part: Mapping[str, object]) -> str | None:
    """SHA-256 (hex) of the layers in execution order and of the run-time settings, or None.

    inspected: `EngineInspector.get_engine_information(LayerInformationFormat.JSON)`. Covered: type, tactic,
    formats, dimensions, parameters and stream of each layer, the model's nodes in it, how layers are connected,
    names of inputs and outputs of the engine. Not covered: names of layers and of tensors between them.
    run_part: settings that change speed without changing the engine, by name. None where the answer holds
    names of layers alone, as with profiling verbosity below DETAILED.
    """
    try:
        told = json.loads(inspected)
    except ValueError:
        return None
    layers = told.get("Layers") if isinstance(told, Mapping) else None
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, Mapping) for layer in layers):
        return None
    bindings = [str(b) for b in told.get("Bindings", [])]
    names = {name: f"binding:{name}" for name in bindings}
    normal = [_layer(layer, names) for layer in layers]
    return digest_of([normal, sorted(bindings), dict(run_part)])


def _layer(layer: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in sorted(layer):
        value = layer[key]
        if key in _TENSOR_LISTS and isinstance(value, list):
            out[key] = [_tensor(tensor, names) for tensor in value]
        elif key == "Metadata":  # the model's nodes that were fused here, in no particular order
            out[key] = sorted(part for part in re.split(r"[\x1e\x1f]|(?<=\])(?=\[)", str(value)) if part)
        elif key != "Name":
            out[key] = _normal(value)
    return out


def _tensor(tensor: Any, names: dict[str, str]) -> Any:
    if not isinstance(tensor, Mapping):
        return _normal(tensor)
    named = {k: _normal(v) for k, v in tensor.items() if k != "Name"}
    name = str(tensor.get("Name", ""))
    # By first appearance: which value it is stays, what the builder called it does not.
    named["Value"] = names.setdefault(name, str(len(names)))
    return named


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return _MADE_UP_NUMBER.sub("#", value)
    if isinstance(value, Mapping):
        return {str(k): _normal(v) for k, v in sorted(value.items())}
    if isinstance(value, list):
        return [_normal(v) for v in value]
    return value
