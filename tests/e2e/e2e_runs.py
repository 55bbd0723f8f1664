"""The command line as its users run it: a process of its own, on tiny models made here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from gpt_search.cli.main import cli

TIMEOUT_S = 240  # the machine may be busy with other work
COMMAND = [sys.executable, "-m", "gpt_search"]
FLOAT = TensorProto.FLOAT


def environment() -> dict[str, str]:
    """This process's, without what decides on the width of lines."""
    return {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "GPT_SEARCH_TRACEBACK")}


def run(
    *args: str, cwd: Path, before: Callable[[], None] | None = None, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """`gpt-search ARGS` in `cwd`, its output captured; its exit code is checked unless `code` is None."""
    done = subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=before,
    )
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def inside(*args: str) -> Result:
    """`gpt-search ARGS` in this process, which saves loading everything again."""
    return CliRunner().invoke(cli, list(args), prog_name="gpt-search")


def save(path: Path, nodes: list, inputs: dict, outputs: dict, weights: dict) -> Path:
    """An ONNX model. inputs, outputs: name -> (element type, shape). weights: name -> array."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def mlp(path: Path, rows: int | str = 2, width: int = 16) -> Path:
    """Input x, outputs hidden and y: two matrix multiplications."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((width, width)).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w1"], ["y"]),
    ]
    return save(
        path, nodes, {"x": (FLOAT, [rows, width])}, {n: (FLOAT, [rows, width]) for n in ("hidden", "y")}, weights
    )


def conv(path: Path) -> Path:
    """Input image, output features: convolution, batch normalisation, relu, pooling."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) / 3}
    weights |= {n: np.full(4, v, np.float32) for n, v in (("scale", 1.5), ("bias", 0.1), ("mean", 0.2), ("var", 0.7))}
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["features"]),
    ]
    return save(path, nodes, {"image": (FLOAT, [1, 3, 8, 8])}, {"features": (FLOAT, [1, 4, 1, 1])}, weights)


def foldable(path: Path, width: int = 96, depth: int = 12) -> Path:
    """Nearly all of the work is on constants: a compiler that folds them is many times faster."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((width, width)) / width**0.5).astype(np.float32) for i in range(depth)}
    nodes, last = [], "w0"
    for i in range(1, depth):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"]))
        last = f"p{i}"
    nodes.append(helper.make_node("MatMul", ["x", last], ["y"]))
    return save(path, nodes, {"x": (FLOAT, [1, width])}, {"y": (FLOAT, [1, width])}, weights)


UNOPTIMISED = '''
"""ONNX Runtime, but a compiler that optimises nothing by default: there is something to find on any machine."""

import json

from gpt_search.backends.onnxruntime import OnnxRuntimeBackend
from gpt_search.domain.knob import KnobDatabase


class Unoptimised(OnnxRuntimeBackend):
    def knob_database(self):
        found = json.loads(super().knob_database().to_json())
        for entry in found["tuner_options"]:
            if entry["option"] == "-session:graph_level":
                entry["default_value"] = "disable"
        return KnobDatabase.from_json(json.dumps(found))
'''
