"""Workloads: names, digests, and their JSON form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gpt_search import Workload
from gpt_search.domain.workload import GoldenPair, Point


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


POINTS = (Point("short", 1.0, {"x": (1, 8)}), Point("long", 3.0, {"x": (1, 64)}))


def test_points_survive_json_and_count_in_the_digest(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"model")
    plain, several = Workload(model, {"x": (1, 8)}), Workload(model, points=POINTS)
    assert several.shapes == {"x": (1, 8)} and several.weights == (1.0, 3.0) and plain.weights == (1.0,)
    assert Workload.from_json(json.loads(json.dumps(several.to_json()))) == several
    assert "points" not in plain.to_json()
    heavier = Workload(model, points=(POINTS[0], POINTS[1]._replace(weight=4.0)))
    assert len({plain.digest, several.digest, heavier.digest}) == 3


def test_a_pair_belongs_to_the_point_whose_shapes_it_has(tmp_path: Path) -> None:
    several = Workload(tmp_path / "m.onnx", points=POINTS)
    pairs = [GoldenPair({"x": np.zeros((1, n))}, {}) for n in (64, 8, 8, 9)]
    assert [several.point_of(p) for p in pairs] == [1, 0, 0, None]
    assert several.pair_at(0, pairs) is pairs[1] and several.pair_at(1, pairs) is pairs[0]
    with pytest.raises(ValueError, match="point 1"):
        several.pair_at(1, pairs[1:])
    assert Workload(tmp_path / "m.onnx", {"x": (3,)}).pair_at(0, pairs) is pairs[0]


@pytest.mark.parametrize(
    "wrong",
    [
        POINTS[:1],
        (POINTS[0], POINTS[0]._replace(name="other")),
        (POINTS[0], POINTS[1]._replace(name="short")),
        (POINTS[0], POINTS[1]._replace(weight=0.0)),
        (POINTS[0], POINTS[1]._replace(weight=math.nan)),
    ],
)
def test_wrong_points_are_refused(tmp_path: Path, wrong: tuple[Point, ...]) -> None:
    with pytest.raises(ValueError, match="point"):
        Workload(tmp_path / "m.onnx", points=wrong)
