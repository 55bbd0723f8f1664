"""The commands with the TensorRT backends: early refusals, options, what can be planned without any library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tensorrt_models import mlp

from gpt_search.backends.base import BuildError, BuildOptions, Fingerprints
from gpt_search.backends.registry import load_backend
from gpt_search.backends.tensorrt_file import EngineFile
from gpt_search.backends.tensorrt_options import option_texts
from gpt_search.cli.common import build_options
from gpt_search.cli.main import cli
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Point, Workload
from gpt_search.execution.describe import Description, describe_backend
from gpt_search.execution.launcher import Worker, WorkerSpec
from gpt_search.run.export_cache import left_out, trtexec_command
from gpt_search.run.timing_cache import with_timing_cache

NO_GPU = shutil.which("nvidia-smi") is None


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    code = "from gpt_search.cli.main import main; main()"
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(not NO_GPU, reason="what a machine without a GPU says")
def test_tune_is_refused_early_where_engines_can_only_be_built(tmp_path: Path) -> None:
    model = mlp(tmp_path).model
    done = run(tmp_path, "tune", str(model), "--backend", "tensorrt-rtx")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    words = " ".join(done.stderr.split())
    assert "can build engines here, but a study also runs them" in words and "(CUDA error 35)" in words
    assert [p.name for p in tmp_path.iterdir()] == ["mlp.onnx"]  # nothing was begun


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("lunch=graph", "unknown TensorRT option 'lunch'; did you mean 'launch'?"),
        ("tf32=off", "these are knobs, not options: tf32 (knob -builder:tf32)"),
        ("timing_cache=none", "tensorrt-rtx has no option timing_cache: TensorRT-RTX times nothing while it builds"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_built(tmp_path: Path, option: str, says: str) -> None:
    done = run(tmp_path, "tune", str(mlp(tmp_path).model), "--backend", "tensorrt-rtx", "--option", option)
    assert done.returncode == 2 and says in " ".join(done.stderr.split())


def test_tune_without_tensorrt_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, "tune", str(mlp(tmp_path).model), "--backend", "tensorrt")
    assert done.returncode == 2
    words = " ".join(done.stderr.split())
    assert "TensorRT cannot be used here" in words and "pip install 'tensorrt-cu13>=11.1'" in words


def test_doctor_tells_what_is_there() -> None:
    report = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["backends"]
    assert report["tensorrt-rtx"]["usable"] and report["tensorrt-rtx"]["knobs"] >= 9
    assert report["tensorrt-rtx"]["fingerprints"] == "may_both"
    assert not report["tensorrt-rtx"]["build_uses_device"]
    if NO_GPU:
        assert "CUDA error 35" in report["tensorrt-rtx"]["cannot_run"]
        assert report["tensorrt"]["why_not"].startswith("TensorRT cannot be used here: ")


# -- options -----------------------------------------------------------------------------------
def test_options_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"profiles": [{"x": "1x16:4x16:8x16"}]}')
    assert build_options(["launch=stream", "max_aux_streams = 2", "plugins=a.so", f"@{file}"]) == {
        "launch": "stream",
        "max_aux_streams": 2,
        "plugins": "a.so",
        "profiles": [{"x": "1x16:4x16:8x16"}],
    }
    file.write_text("[1]")
    for given, says in (
        (["launch"], "not of the form NAME=VALUE"),
        (["=x"], "not of the form"),
        (["a=1", "a=2"], "given twice"),
        ([f"@{file}"], "holds no JSON object"),
        (["@nowhere.json"], "cannot be read"),
    ):
        with pytest.raises(InputError, match=says):
            build_options(given)


def test_a_worker_checks_options_and_tells_of_the_build(tmp_path: Path) -> None:
    found = describe_backend("tensorrt-rtx", {"compute_capability": "sm89"})
    assert found.options == {"compute_capability": ["8.9"]} and not found.frozen_cache
    assert (found.cannot_run is not None) == NO_GPU
    with Worker(WorkerSpec("tensorrt-rtx", mlp(tmp_path), options=found.options)) as worker:
        request = {"slot": "candidate", "route": [], "seed": 0}
        facts = worker.ask("build", request, timeout_s=60, phase="build").fields["facts"]
    assert len(facts["engine_digest"]) == 64 and facts["engine_bytes"] > 4000


# -- what applies a route in trtexec -------------------------------------------------------------
def test_trtexec_is_given_the_shapes_that_the_model_leaves_open_and_no_others(tmp_path: Path) -> None:
    """It refuses shapes of a model that has none to give."""
    (tmp_path / "open").mkdir()
    open_batch = mlp(tmp_path / "open", batch="n")
    points = tuple(Point(f"p{n}", float(n), {"x": (n, 16)}) for n in (2, 8, 1))

    def command(workload: Workload) -> str:
        settings = {"workload": workload.to_json(), "database": {"defaults": {"a": "1"}}, "options": {}}
        store: Any = SimpleNamespace(settings=settings)
        return trtexec_command(store, Route.parse("-a=2")).replace(str(tmp_path), "")

    assert command(mlp(tmp_path)) == "trtexec --onnx=/mlp.onnx --setBuildRoute=-a=2"
    assert command(open_batch) == "trtexec --onnx=/open/mlp.onnx --optShapes=x:4x16 --setBuildRoute=-a=2"
    shapes = "--minShapes=x:1x16 --optShapes=x:8x16 --maxShapes=x:8x16"
    spanned = command(replace(open_batch, points=points))
    assert spanned == f"trtexec --onnx=/open/mlp.onnx {shapes} --setBuildRoute=-a=2"


def test_options_that_trtexec_is_not_given_are_told() -> None:
    options = {"tf32": False, "workspace_mib": 64.0, "timing_cache_file": "/c", "timing_cache_digest": "0"}
    store: Any = SimpleNamespace(settings={"options": options})
    assert left_out(store) == "; the study's options are not in it, give them there too: tf32, workspace_mib"
    assert left_out(SimpleNamespace(settings={})) == ""  # type: ignore[arg-type]


# -- the frozen cache --------------------------------------------------------------------------
BACKEND = """
from pathlib import Path
from gpt_search.backends.synthetic import SyntheticBackend

class Built:
    fingerprint = memory_bytes = None

    def close(self):
        pass

class Caching(SyntheticBackend):
    frozen_cache = True

    def build(self, workload, route, options):
        path = Path(options.values["timing_cache_file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(route))
        return Built()
"""


def test_a_study_freezes_the_cache_of_its_reference(tmp_path: Path) -> None:
    (tmp_path / "caching.py").write_text(BACKEND)
    backend = f"{tmp_path / 'caching.py'}:Caching"
    workload, reference = mlp(tmp_path), Route.parse("-a=1 -b=on")

    def options(given: dict[str, object]) -> dict[str, object]:
        told = Description(KnobDatabase("1", ()), {}, Fingerprints.MAY_BOTH, options=given, frozen_cache=True)
        return dict(with_timing_cache(backend, told, workload, reference, tmp_path / "caches", 60))

    frozen = options({"launch": "graph"})
    path = Path(str(frozen["timing_cache_file"]))
    assert path.read_text() == "-a=1 -b=on" and path.parent == tmp_path / "caches"
    assert frozen["launch"] == "graph" and len(str(frozen["timing_cache_digest"])) == 64
    written = path.stat().st_mtime_ns
    assert options({"launch": "graph"}) == frozen and path.stat().st_mtime_ns == written
    assert options({"launch": "stream"})["timing_cache_file"] != frozen["timing_cache_file"]
    assert options({"timing_cache": "none"}) == {"timing_cache": "none"}
    assert set(options({"timing_cache": "shared"})) == {"timing_cache", "timing_cache_file"}
    with pytest.raises(InputError, match="the option timing_cache_file is set by gpt-search itself"):
        options(frozen)


# -- planning ----------------------------------------------------------------------------------
def test_a_recorded_database_is_planned_with_on_any_machine(tmp_path: Path) -> None:
    rows = [
        line.split("\t")
        for line in (Path(__file__).parents[1] / "data" / "tensorrt_11_1_0_knobs.tsv").read_text().splitlines()
        if not line.startswith("#")
    ]
    options = [
        {"option": f"-{r[0]}", "allowed_values": f"-{r[0]}={r[1]}", "default_value": r[2]} for r in rows if len(r) == 3
    ]
    file = tmp_path / "knobs.json"
    file.write_text(json.dumps({"tuner_version": "2.19.45", "tuner_options": options}))
    result = CliRunner().invoke(
        cli, ["plan", "--knobs", "-*=[*]", "--database", str(file), "--strategy", "fast", "--limit", "2", "--json"]
    )
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["knobs"] == 195 and plan["count"] > 195 and len(plan["routes"]) == 2


def test_the_onnxruntime_backend_still_refuses_options(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="has no build options; given: launch"):
        load_backend("onnxruntime").build(mlp(tmp_path), Route(()), BuildOptions({"launch": "graph"}))


def test_the_documentation_lists_every_option_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tensorrt.md").read_text(encoding="utf-8")
    rows = text.partition("| option | default | what |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert rows == [f"| `{name}` | {default} | {what} ({when}) |" for name, default, when, what in option_texts()]
    for other in ("tensorrt_running.md", "trtexec.md", "measurement.md#shape-points"):
        assert f"]({other})" in text


def test_the_documented_snippet_builds_and_saves(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tensorrt.md").read_text(encoding="utf-8")
    [snippet] = [part.partition("```")[0] for part in text.split("```python")[1:]]
    mlp(tmp_path).model.rename(tmp_path / "model.onnx")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, env=environment, check=True, timeout=120)
    assert EngineFile.from_bytes((tmp_path / "model.engine").read_bytes()).options.builder_optimization_level == 5
