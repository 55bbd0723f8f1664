"""The real knob database of TensorRT 11.1.0, rebuilt from the facts in tests/data."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from gpt_search import KnobDatabase

FACTS = Path(__file__).parents[1] / "data" / "tensorrt_11_1_0_knobs.tsv"


def tensorrt_json() -> str:
    """The JSON that TensorRT's builder gives, without the help texts."""
    lines = [line.split("\t") for line in FACTS.read_text().splitlines() if not line.startswith("#")]
    [version] = [fields[1] for fields in lines if len(fields) == 2]
    options = [
        {"option": f"-{name}", "allowed_values": f"-{name}={allowed}", "default_value": default, "help": ""}
        for name, allowed, default in (fields for fields in lines if len(fields) == 3)
    ]
    return json.dumps({"tuner_version": version, "tuner_options": options})


@cache
def tensorrt() -> KnobDatabase:
    """The 209 knobs of TensorRT 11.1.0."""
    return KnobDatabase.from_json(tensorrt_json())
