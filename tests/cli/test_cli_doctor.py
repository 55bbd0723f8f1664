import inspect
import json
import sys
from importlib import metadata

import pytest
from click.testing import CliRunner

from gpt_search.backends.registry import backend_names
from gpt_search.cli import doctor
from gpt_search.cli.main import cli
from gpt_search.execution import worker


@pytest.fixture(scope="module")
def report():
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_required_packages_have_their_installed_version(report):
    packages = report["packages"]
    assert packages["optuna"] == {
        "needs": packages["optuna"]["needs"],
        "extra": "",
        "version": metadata.version("optuna"),
        "state": "ok",
    }
    assert {"numpy", "click", "onnxruntime"} <= {n for n, p in packages.items() if not p["extra"]}
    assert packages["tensorrt-cu13"]["extra"] == "tensorrt"
    assert "pytest" not in packages


def test_every_backend_is_usable_or_says_why_not(report):
    assert list(report["backends"]) == backend_names()
    for entry in report["backends"].values():
        assert entry["usable"] or entry["why_not"]
    assert report["backends"]["onnxruntime"]["knobs"] >= 115
    assert report["backends"]["onnxruntime"]["catalogue"]["ok"]
    assert report["backends"]["synthetic"]["fingerprints"] == "exact"


def test_the_memory_limit_that_is_tried_is_that_of_the_workers(report):
    assert "memory limit (RLIMIT_DATA)" in report["workers"]
    assert "resource.setrlimit(resource.RLIMIT_DATA" in inspect.getsource(worker)


def test_what_workers_rest_on_is_tried(report):
    if sys.platform == "linux":
        assert set(report["workers"].values()) == {"works"}


def test_a_broken_backend_is_reported_and_hides_no_other(monkeypatch):
    from gpt_search.backends import registry

    def broken(name):
        raise ImportError("libfoo.so: no such file")

    monkeypatch.setattr(registry, "load_backend", broken)
    found = doctor._backends()
    assert list(found) == backend_names()
    assert found["onnxruntime"] == {"usable": False, "why_not": "ImportError: libfoo.so: no such file"}


def test_what_fails_is_quoted():
    with pytest.raises(RuntimeError, match="refused"):
        doctor._run_probe("raise SystemExit('refused')")
    assert doctor._tried(lambda: doctor._run_probe("raise SystemExit('refused')")) == "does not work: refused"


def test_gpus_as_nvidia_smi_lists_them(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 9.0, 143771 MiB, Enabled'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert doctor._gpus()["gpu 0"]["compute_cap"] == "9.0"
    tool.write_text("#!/bin/sh\necho 'driver mismatch' >&2; exit 9\n")
    assert doctor._gpus() == {"nvidia": "nvidia-smi failed: driver mismatch"}
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no GPU found" in doctor._gpus()["nvidia"]


def test_the_text_fits_in_80_columns():
    result = CliRunner().invoke(cli, ["doctor"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    too_long = [line for line in result.stdout.splitlines() if len(line) > 80]
    assert not [line for line in too_long if " " in line.strip() and "executable" not in line], too_long
    for section in ("python", "packages", "backends", "cpu", "disk", "workers", "gpus"):
        assert section in result.stdout.splitlines()
