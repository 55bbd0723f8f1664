"""Backends by name: what there is, why one cannot be used, third parties' files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpt_search.backends import registry
from gpt_search.backends.registry import availability, backend_names, load_backend
from gpt_search.backends.synthetic import SyntheticBackend
from gpt_search.domain.errors import InputError

_THIRD_PARTY = """
from __future__ import annotations
from dataclasses import dataclass
from gpt_search.backends.synthetic import SyntheticBackend

@dataclass
class Option:
    text: str

class Mine(SyntheticBackend):
    pass

class NoBackend:
    pass
"""


def test_names_and_what_can_be_used():
    assert backend_names() == ["onnxruntime", "synthetic", "tensorrt", "tensorrt-rtx", "xla"]
    assert availability("onnxruntime") is None
    assert availability("synthetic") is None
    assert availability('synthetic:{"seed": 1}') is None
    for name in ("xla",):
        assert availability(name) == f"the {name} backend is not in this version of gpt_search"
        with pytest.raises(InputError, match=f"backend '{name}' cannot be used: .* not in this version"):
            load_backend(name)


def test_options_follow_the_colon():
    backend = load_backend('synthetic:{"family": "null", "seed": 2, "knobs": 8}')
    assert isinstance(backend, SyntheticBackend)
    assert backend.landscape.spec()["family"] == "null"
    with pytest.raises(InputError, match="takes no options, got 'fast'"):
        load_backend("onnxruntime:fast")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("onnxrutime", "did you mean 'onnxruntime'"),
        ("", "there are onnxruntime"),
        ("tensor:x", "unknown backend 'tensor'"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, says):
    for ask in (load_backend, availability):
        with pytest.raises(InputError, match=says):
            ask(name)


def test_a_missing_package_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    assert availability("onnxruntime") == "onnxruntime, onnx is not installed; try: pip install 'onnxruntime onnx'"


def test_a_third_partys_file(tmp_path):
    file = tmp_path / "random.py"  # must not shadow the standard library's
    file.write_text(_THIRD_PARTY)
    assert availability(f"{file}:Mine") is None
    one = load_backend(f"{file}:Mine")
    two = load_backend(f'{file}:Mine:{{"family": "dense", "seed": 1}}')
    assert type(one) is type(two)
    assert two.landscape.spec()["family"] == "dense"
    assert str(tmp_path) not in sys.path
    assert sys.modules.get("random") is not sys.modules[type(one).__module__]


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (_THIRD_PARTY, "Mime", "no class 'Mime'; did you mean 'Mine'"),
        (_THIRD_PARTY, "NoBackend", "no backend: it has no capabilities, knob_database"),
        ("class Mine(:", "Mine", "cannot be loaded: SyntaxError"),
        ("import nothing_like_this", "Mine", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_wrong_file_says_why(tmp_path, text, name, says):
    file = tmp_path / "backend.py"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        load_backend(f"{file}:{name}")


def test_a_file_that_is_not_there(tmp_path):
    name = f"{tmp_path / 'none.py'}:Mine"
    assert availability(name) == f"there is no file {tmp_path / 'none.py'}"
    with pytest.raises(InputError, match="there is no file"):
        load_backend(name)


def test_asking_for_availability_loads_no_backend_library():
    code = (
        "import sys; from gpt_search.backends.registry import availability, backend_names; "
        "[availability(n) for n in backend_names()]; "
        "print([m for m in ('onnxruntime', 'onnx', 'tensorrt', 'jax', 'optuna') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
