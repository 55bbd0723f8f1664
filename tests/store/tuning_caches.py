"""Tuning caches as the programs write them: TensorRT 11.1's trtexec, and Torch-TensorRT, which adds a partition key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEFAULTS = "-conv_lowering=on -kgen:tiling=2 -copy_ppg=off"
EXPRESSION = "-conv_lowering=[on|off] -kgen:tiling=[0|1|2]"


def header(**changes: Any) -> dict[str, Any]:
    """A header of trtexec; a change to None leaves the key out."""
    found: dict[str, Any] = {
        "tuner_version": "2.19.45",
        "accuracy_algorithm": "cos",
        "accuracy_parameter": {"atol": 1e-05, "rtol": 1e-05, "epsilon": 0.01},
        "searching_algorithm": "fast",
        "command_line": "trtexec --onnx=model.onnx '--tuneBuildRoutes=-conv_lowering=[on|off] -kgen:tiling=[0|1|2]'",
        "default_build_route": DEFAULTS,
        "tuning_expr": EXPRESSION,
        "files": {"onnx": "/models/model.onnx"},
        "argv": ["trtexec", "--onnx=/models/model.onnx"],
        **changes,
    }
    return {k: v for k, v in found.items() if v is not None}


def torch_header() -> dict[str, Any]:
    """A header of Torch-TensorRT."""
    return header(
        command_line=None,
        files=None,
        argv=None,
        partition_key="abcd1234abcd1234",
        user_tuning_cache_file="/t/tune.jsonl",
    )


def row(number: int, tiling: int, lowering: str = "on", **changes: Any) -> dict[str, Any]:
    """A row as both programs write it."""
    return {
        "iter": number,
        "build_route": f"-conv_lowering={lowering} -kgen:tiling={tiling}",
        "crash": False,
        "error_message": "",
        "accuracy_loss": {"y": 0.001},
        "gpu_time": 0.0125,
        **changes,
    }


CRASH = {"crash": True, "error_message": "missing tuning result file", "accuracy_loss": None, "gpu_time": None}


def write(path: Path, *lines: Any, end: str = "\n") -> Path:
    """Writes objects as JSON, and text as it is."""
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + end)
    return path
