"""A backend that brings golden data of its own: what the user says about golden data is not silently ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt_search.backends.synthetic import synthetic_workload
from gpt_search.domain.errors import InputError
from gpt_search.run.config import TuneConfig
from gpt_search.run.setup import prepare

SPEC = {"family": "null", "seed": 0, "knobs": 6}


def _config(folder: Path, **more: object) -> TuneConfig:
    fields = {
        "model": synthetic_workload(folder, SPEC).model,
        "backend": f"synthetic:{json.dumps(SPEC)}",
        "storage": str(folder / "study.journal"),
    }
    return TuneConfig(**(fields | more))  # type: ignore[arg-type]


def test_its_own_golden_data_are_used(tmp_path: Path) -> None:
    prepared = prepare(_config(tmp_path))
    assert prepared.golden_kind == "backend"
    assert prepared.golden.is_file()


@pytest.mark.parametrize(
    "more",
    [
        {"reference": "default-engine"},
        {"reference": "files", "golden": Path("golden.npz")},
        {"golden": Path("float32.onnx")},
    ],
    ids=["default-engine", "files", "float32 model"],
)
def test_other_golden_data_are_refused(tmp_path: Path, more: dict[str, object]) -> None:
    with pytest.raises(
        InputError, match="'synthetic' brings golden data of its own; leave --reference and --golden out"
    ):
        prepare(_config(tmp_path, **more))
    assert not (tmp_path / "study.records").exists()
