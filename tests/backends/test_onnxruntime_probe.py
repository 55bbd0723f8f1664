"""The catalogue against the installed runtime, and which switches are live."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from gpt_search.backends import onnxruntime_probe as probe
from gpt_search.backends.onnxruntime_catalogue import NEEDS, RULES, SETTINGS, TRANSFORMERS, database_for, optimizer_of
from gpt_search.backends.onnxruntime_zoo import RULE_MODELS
from gpt_search.workloads.catalogue import write_workload


def test_every_knob_is_confirmed_by_the_installed_runtime() -> None:
    report = probe.validate_catalogue()
    assert report.ok, "\n".join(report.lines())
    assert report.knobs == len(RULES) + len(TRANSFORMERS) + len(SETTINGS) >= 115
    assert probe.CatalogueReport(**report.to_json()).lines() == report.lines()


def test_a_renamed_or_unknown_optimiser_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe.TRANSFORMERS, "SkipLayerNormFusionOfOldDays", "Gone.")
    monkeypatch.setitem(probe.RULES, "RuleThatNeverWas", "Gone.")
    monkeypatch.setitem(probe.RULES, "SkipLayerNormFusion", "Exists, but is no rule.")
    monkeypatch.setitem(RULE_MODELS, "SkipLayerNormFusion", RULE_MODELS["EliminateIdentity"])
    monkeypatch.delitem(probe.TRANSFORMERS, "GatherToSliceFusion")
    database_for.cache_clear()
    try:
        report = probe._catalogue()
    finally:
        monkeypatch.undo()
        database_for.cache_clear()
    assert not report.ok
    assert report.missing == ("SkipLayerNormFusionOfOldDays", "RuleThatNeverWas")
    assert report.unproven == ("SkipLayerNormFusion",)
    assert report.unlisted == ("GatherToSliceFusion",)
    text = "\n".join(report.lines())
    assert "renamed or removed" in text and "RuleThatNeverWas" in text


def test_a_value_that_the_runtime_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = next(s for s in SETTINGS if s.name == "session:minimal_build_optimizations")
    monkeypatch.setitem(setting.sends, "save", "save")  # type: ignore[index]  # its mapping is a dict
    database_for.cache_clear()
    try:
        report = probe._catalogue()
    finally:
        monkeypatch.undo()
        database_for.cache_clear()
    assert list(report.rejected) == ["session:minimal_build_optimizations=save"]
    assert not report.ok


def test_live_knobs_of_an_encoder(tmp_path: Path) -> None:
    workload = write_workload("bert", tmp_path / "b.onnx", layers=1, hidden=32, heads=2, vocabulary=50, sequence=8)
    live = probe.live_knobs(workload.model)
    fusions = ("LayerNormFusionL2", "SkipLayerNormFusion", "GeluFusionL2", "BiasGeluFusion", "AttentionFusion")
    assert {f"opt:{n}" for n in fusions} <= set(live)
    assert "opt:NchwcTransformer" not in live
    assert list(live) == [n for n in database_for("").names if n in live]


def test_live_knobs_of_a_model_for_a_rule(tmp_path: Path) -> None:
    path = tmp_path / "rule.onnx"
    path.write_bytes(RULE_MODELS["GemmSumFusion"]())
    assert "rule:GemmSumFusion" in probe.live_knobs(path)
    assert "rule:GemmTransposeFusion" not in probe.live_knobs(path)


def test_a_model_that_cannot_be_built_gives_the_reason(tmp_path: Path) -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    value = helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("y", 1, [1])
    graph = helper.make_graph([node], "g", [value[0]], [value[1]])
    onnx.save(helper.make_model(graph, ir_version=8), str(tmp_path / "bad.onnx"))
    with pytest.raises(RuntimeError, match="NoSuchOperator"):
        probe.live_knobs(tmp_path / "bad.onnx")


def test_every_rule_has_a_model_and_every_need_a_knob() -> None:
    assert set(RULE_MODELS) == set(RULES)
    database = database_for("")
    for name, (setting, value) in NEEDS.items():
        assert value in database[setting].values
        assert name in RULES or name in TRANSFORMERS


def test_optimiser_names_of_knobs() -> None:
    assert optimizer_of("rule:ConvAddFusion") == "ConvAddFusion"
    assert optimizer_of("opt:SkipLayerNormFusion") == "SkipLayerNormFusion"
    assert optimizer_of("session:graph_level") is None
