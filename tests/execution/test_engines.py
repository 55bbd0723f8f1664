"""Engines outside of a study: what is shipped was loaded again and judged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpt_search.accuracy.gate import Tolerances, judge
from gpt_search.accuracy.golden import save_golden
from gpt_search.backends.synthetic import synthetic_golden, synthetic_workload
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.execution.engines import infer_with, ship_engine
from gpt_search.execution.evaluator import EvaluatorSettings
from gpt_search.execution.launcher import WorkerFailed

SPEC = {"family": "null", "seed": 1, "knobs": 6}
DEFAULTS = Route(())


def _backend(**more: object) -> str:
    return f"synthetic:{json.dumps(SPEC | more)}"


def _settings(folder: Path, backend: str) -> EvaluatorSettings:
    golden = folder / "golden.npz"
    save_golden(golden, synthetic_golden(), {})
    return EvaluatorSettings(backend, synthetic_workload(folder, SPEC), golden, Tolerances("l1", 1e-3))


def test_outputs_of_a_route_for_each_set_of_inputs(tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, SPEC)
    outputs = infer_with(_backend(), workload, DEFAULTS, [{"x": np.zeros(16)}, {"x": np.ones(16)}])
    assert [float(o["y"].mean()) for o in outputs] == pytest.approx([1.0, 2.0])
    with pytest.raises(WorkerFailed, match="refuses this route"):
        infer_with(_backend(fail={"": "build_error"}), workload, DEFAULTS, [])


def test_a_shipped_engine_is_judged_after_it_was_loaded_again(tmp_path: Path) -> None:
    settings = _settings(tmp_path, _backend())
    engine = ship_engine(settings, DEFAULTS)
    assert json.loads(engine.data)["synthetic"] == []
    assert judge(engine.losses, settings.tolerances) < 0
    spoiled = ship_engine(_settings(tmp_path, _backend(fail={"": "nan"})), DEFAULTS)
    assert not judge(spoiled.losses, settings.tolerances) < 0


def test_an_engine_that_cannot_be_made_is_the_users_to_know(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be exported: .*refuses this route"):
        ship_engine(_settings(tmp_path, _backend(fail={"": "build_error"})), DEFAULTS)
    with pytest.raises(InputError, match=r"cannot be exported: .*SIGSEGV|cannot be exported: .*segmentation"):
        ship_engine(_settings(tmp_path, _backend(fail={"": "segv"})), DEFAULTS)
