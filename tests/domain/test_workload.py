"""Workloads: names, digests, and their JSON form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt_search import Workload


def test_a_workload_survives_json(tmp_path: Path) -> None:
    workload = Workload(tmp_path / "m.onnx", {"x": (1, 3), "s": ()}, (tmp_path / "w.bin",), "mine")
    again = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload and again.shapes["x"] == (1, 3) and again.external == (tmp_path / "w.bin",)


def test_paths_become_absolute_and_the_name_is_the_stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload = Workload(Path("sub/model.onnx"))
    assert workload.model == tmp_path / "sub" / "model.onnx" and workload.name == "model"


def test_the_digest_covers_bytes_and_shapes_but_neither_name_nor_place(tmp_path: Path) -> None:
    model, weights, copy = tmp_path / "m.onnx", tmp_path / "w.bin", tmp_path / "copy.onnx"
    for path, data in ((model, b"model"), (weights, b"weights"), (copy, b"model")):
        path.write_bytes(data)
    digest = Workload(model, {"x": (1,), "y": (2,)}, (weights,)).digest
    assert Workload(copy, {"y": (2,), "x": (1,)}, (weights,), "other").digest == digest
    assert Workload(model, {"x": (2,), "y": (2,)}, (weights,)).digest != digest
    assert Workload(model, {"x": (1,), "y": (2,)}).digest != digest
    weights.write_bytes(b"other weights")
    assert Workload(model, {"x": (1,), "y": (2,)}, (weights,)).digest != digest
    with pytest.raises(OSError, match=r"gone\.onnx"):
        _ = Workload(tmp_path / "gone.onnx").digest


@pytest.mark.parametrize("change", [{"shapes": 3}, {"external": None}, {"model": None}, {"shapes": {"x": ["a"]}}])
def test_another_form_is_refused(change: dict[str, object]) -> None:
    data = {"model": "m", "shapes": {}, "external": [], "name": "n", **change}
    with pytest.raises((KeyError, TypeError, ValueError)):
        Workload.from_json(data)
    with pytest.raises(KeyError):
        Workload.from_json({})
