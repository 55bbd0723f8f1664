"""The fingerprint: what of the inspector's answer counts. The answers have the inspector's form, made up here."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gpt_search.backends.tensorrt_fingerprint import fingerprint_of


def tensor(name: str, kind: str = "Half") -> dict[str, Any]:
    return {"Name": name, "Dimensions": [1, 8, 16], "Format/Datatype": kind}


TOLD: dict[str, Any] = {
    "Layers": [
        {
            "Name": "__myl_MulAdd_myl0_1",
            "LayerType": "kgen",
            "Inputs": [tensor("x")],
            "Outputs": [tensor("__myln_k_arg__bb1_4")],
            "TacticName": "__myl_MulAdd_0x3f21",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: mul]\x1f[ONNX Layer: add]",
        },
        {
            "Name": "proj_myl0_2",
            "LayerType": "gemm",
            "Inputs": [tensor("__myln_k_arg__bb1_4")],
            "Outputs": [tensor("y", "Float")],
            "TacticName": "sm90_xmma_gemm_f16f16",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: proj]",
        },
    ],
    "Bindings": ["x", "y"],
}


def of(told: Any, **run_part: object) -> str | None:
    return fingerprint_of(json.dumps(told), run_part)


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    told = copy.deepcopy(TOLD)
    place: Any = told
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return told


def test_names_that_the_builder_makes_up_do_not_count() -> None:
    told = copy.deepcopy(TOLD)
    told["Layers"][0]["Name"] = "__myl_MulAdd_myl7_12"
    told["Layers"][0]["Outputs"][0]["Name"] = told["Layers"][1]["Inputs"][0]["Name"] = "__myln_k_arg__bb9_9"
    told["Layers"][0]["Metadata"] = "[ONNX Layer: add]\x1f[ONNX Layer: mul]"
    assert of(told) == of(TOLD) is not None


@pytest.mark.parametrize(
    "told",
    [
        changed(["Layers", 0, "TacticName"], "__myl_MulAdd_0x3f22"),
        changed(["Layers", 1, "TacticName"], "sm90_xmma_gemm_f16f16_v2"),
        changed(["Layers", 1, "LayerType"], "conv"),
        changed(["Layers", 1, "StreamId"], 1),
        changed(["Layers", 1, "Outputs", 0, "Format/Datatype"], "Half"),
        changed(["Layers", 1, "Inputs", 0, "Name"], "x"),
        changed(["Layers", 0, "Metadata"], "[ONNX Layer: mul]"),
        changed(["Layers"], TOLD["Layers"][::-1]),
        changed(["Bindings"], ["x"]),
    ],
)
def test_what_runs_counts(told: dict[str, Any]) -> None:
    assert of(told) != of(TOLD)


def test_run_time_settings_count() -> None:
    assert len({of(TOLD), of(TOLD, cuda_graph_strategy="disabled"), of(TOLD, cuda_graph_strategy="x")}) == 3


@pytest.mark.parametrize("told", [{"Layers": ["a", "b"], "Bindings": []}, {"Layers": []}, {}, [], "x"])
def test_an_answer_without_details_gives_none(told: Any) -> None:
    assert of(told) is None


def test_an_answer_that_is_not_json_gives_none() -> None:
    assert fingerprint_of("Layers: a", {}) is None
