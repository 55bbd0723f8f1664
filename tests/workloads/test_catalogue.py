"""Workloads by name, their options, and public models in packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gpt_search.domain.errors import InputError
from gpt_search.workloads.catalogue import (
    public_model,
    public_models,
    workload_names,
    workload_options,
    workload_summary,
    write_workload,
)
from gpt_search.workloads.inspect import inspect_model


def test_names_options_and_help() -> None:
    assert "bert" in workload_names()
    for name in workload_names():
        assert workload_summary(name)
        options = workload_options(name)
        assert options and all(o.help and isinstance(o.default, o.kind) for o in options)


def test_options_may_come_as_text(tmp_path: Path) -> None:
    small = {"layers": "1", "hidden": "32", "heads": "2", "vocabulary": "20", "sequence": "8"}
    written = write_workload("bert", tmp_path / "a.onnx", **small)
    write_workload("bert", tmp_path / "b.onnx", **{k: int(v) for k, v in small.items()})
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    seen, _ = inspect_model(tmp_path / "a.onnx", written.shapes)
    assert seen.shapes == written.shapes and seen.digest == written.digest


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("bart", {}, "unknown workload 'bart'; did you mean 'bert'"),
        ("bert", {"layer": 2}, "no option 'layer'; did you mean 'layers'"),
        ("bert", {"layers": "two"}, "'two', not a whole number"),
        ("bert", {"hidden": 10, "heads": 3}, "not a multiple"),
    ],
)
def test_mistakes(name: str, options: dict[str, int | str], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        write_workload(name, tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_workload("bert", tmp_path, layers=1, hidden=8, heads=1)
    with pytest.raises(InputError, match="does not exist"):
        write_workload("bert", tmp_path / "no" / "m.onnx", layers=1, hidden=8, heads=1)


def test_unknown_or_missing_public_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="did you mean 'rapidocr-cls'"):
        public_model("rapidocr-cl")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="rapidocr-onnxruntime, which is not installed: pip install"):
        public_model("rapidocr-cls")


@pytest.mark.parametrize("name", public_models())
def test_public_models_can_be_read(name: str) -> None:
    try:
        workload = public_model(name)
    except InputError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(str(error))
    seen, _ = inspect_model(workload.model, workload.shapes)
    assert seen.shapes == workload.shapes


def test_a_package_without_the_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rapidocr_onnxruntime").mkdir()
    (tmp_path / "rapidocr_onnxruntime" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="has no file models/"):
        public_model("rapidocr-det")
