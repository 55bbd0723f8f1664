"""What a worker's environment holds, and what makes records comparable."""

from __future__ import annotations

from pathlib import Path

from gpt_search.execution.environment import cpu_model, environment, import_paths, usable_cpus, worker_environment


def test_a_worker_gets_what_compilers_read_and_nothing_else():
    parent = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "OMP_NUM_THREADS": "2",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PYTHONPATH": "/somewhere",
        "PYTHONSTARTUP": "/x",
    }
    got = worker_environment(parent)
    assert got["CUDA_VISIBLE_DEVICES"] == "1"
    assert got["OMP_NUM_THREADS"] == "2"
    assert got["PYTHONHASHSEED"] == "0"
    assert not {"AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONSTARTUP"} & set(got)
    assert worker_environment({})["PATH"]


def test_the_environment_is_sorted_and_the_backend_wins():
    got = environment({"onnxruntime": "1.0", "cpu": "mine"})
    assert list(got) == sorted(got)
    assert got["cpu"] == "mine"
    assert got["onnxruntime"] == "1.0"
    assert got["cpus"] == str(usable_cpus())
    assert all(isinstance(v, str) and v for v in got.values())
    assert cpu_model()


def test_import_paths_are_absolute():
    assert import_paths()
    assert all(Path(p).is_absolute() for p in import_paths())
