"""Strategies are found, made from text, and refused with one clear line."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import InputError, load_strategy
from gpt_search.search import discovery
from gpt_search.search.discovery import relative_file, strategy_info, strategy_names
from gpt_search.search.options import make, options_of

BUILT_IN = {"full", "fast", "mixed", "random", "sparse_random"}
MINE = '''
"""My strategies."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal, Optional
from gpt_search import Proposal

class Mine:
    """Tries what I like.

    Source: my
    own idea.
    """

    def __init__(self, size: int = 3, rate: float = 0.5, warm: bool = False, name: str = "a",
                 kind: Literal["slow", "fast"] = "slow", limit: Optional[int] = None,
                 margin: float | Literal["auto"] = 0.1, *, tail: int | None = 2, other: dict | None = None) -> None:
        self.got = dict(size=size, rate=rate, warm=warm, name=name, kind=kind, limit=limit, margin=margin, tail=tail)

    def propose(self, space, history, streams):
        return None

class _Helper:
    def propose(self, space, history, streams):
        return None

class NotAStrategy:
    pass
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def refused(spec: str) -> str:
    with pytest.raises(InputError) as caught:
        load_strategy(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- names and listing -----------------------------------------------------------------------------
def test_the_built_in_strategies_are_listed_with_what_they_cite() -> None:
    assert set(strategy_names()) >= BUILT_IN and strategy_names() == sorted(strategy_names())
    infos = {i.name: i for i in strategy_info()}
    assert set(infos) == set(strategy_names())
    for name in BUILT_IN:
        assert infos[name].problem is None and infos[name].summary.endswith(".") and infos[name].source
    assert infos["mixed"].options == (("margin", "a number or auto", "0.0"),)
    assert "JMLR" in str(infos["random"].source) and "trtexec" in str(infos["full"].source)
    assert strategy_info("random") == [infos["random"]]
    with pytest.raises(InputError, match="did you mean 'random'"):
        strategy_info("randon")


def test_every_strategy_loads_and_says_what_it_is() -> None:
    for name in strategy_names():
        strategy: Any = load_strategy(name)
        file = discovery.folder() / f"{name}.py"
        assert strategy.spec == name and callable(strategy.propose)
        assert strategy.source_digest == hashlib.sha256(file.read_bytes()).hexdigest()
        assert type(strategy).__module__ == f"gpt_search_strategies.{name}"
        assert type(strategy) is type(load_strategy(name)) and strategy is not load_strategy(name)


def test_importing_and_listing_loads_no_optuna_and_leaves_the_path_alone() -> None:
    script = (
        "import sys; path = list(sys.path)\n"
        "from gpt_search.search.discovery import strategy_names, strategy_info, load_strategy\n"
        "assert 'numpy' not in sys.modules and 'importlib.metadata' not in sys.modules, 'discovery is not cheap'\n"
        "strategy_names(); assert 'numpy' not in sys.modules\n"
        "strategy_info(); load_strategy('random')\n"
        "import random; assert hasattr(random, 'getrandbits'), random\n"
        "assert path == sys.path\n"
        "assert not {'optuna', 'matplotlib', 'onnxruntime'} & set(sys.modules), set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_package_data_is_used_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "gpt_search"
    (package / "search").mkdir(parents=True)
    (package / "_strategies").mkdir()
    (package / "_strategies" / "packed.py").write_text("class Packed:\n    def propose(self, s, h, t): return None\n")
    (package.parent / "strategies").mkdir()  # somebody else's package of that name
    monkeypatch.setattr(discovery, "__file__", str(package / "search" / "discovery.py"))
    assert discovery.folder() == package / "_strategies"
    assert "packed" in strategy_names() and "random" not in strategy_names()
    (package.parent / "pyproject.toml").touch()
    assert discovery.folder() == package.parent / "strategies"


def test_a_broken_file_in_the_folder_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.py").write_text("x = (\n")
    (tmp_path / "good.py").write_text("class Good:\n    '''Good.'''\n    def propose(self, s, h, t): return None\n")
    (tmp_path / "_private.py").write_text("1 / 0")
    monkeypatch.setattr(discovery, "folder", lambda: tmp_path)
    assert strategy_names() == ["bad", "good"]
    bad, good = strategy_info()
    assert "line 1" in str(bad.problem) and good.problem is None and good.summary == "Good."


# -- files -----------------------------------------------------------------------------------------
def test_a_file_of_ones_own(mine: Path) -> None:
    strategy: Any = load_strategy(f"{mine}:Mine")
    assert strategy.spec == f"{mine}:Mine"
    assert strategy.source_digest == hashlib.sha256(MINE.encode()).hexdigest()
    assert type(strategy).__module__ == "gpt_search_strategies.mine"
    assert sys.modules["gpt_search_strategies.mine"].Mine is type(strategy)
    assert load_strategy(str(mine)).spec == f"{mine}:Mine"  # type: ignore[attr-defined]
    assert load_strategy(f"{mine}:size=4").got["size"] == 4  # type: ignore[attr-defined]


def test_the_path_stays_as_given(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    assert load_strategy("./mine.py:Mine:size=4").spec == "./mine.py:Mine:size=4"  # type: ignore[attr-defined]


def test_a_relative_file_is_looked_for_in_the_folder(mine: Path) -> None:
    strategy = load_strategy(f"{mine.name}:Mine", mine.parent)
    assert strategy.spec == f"{mine.name}:Mine"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="cannot read the strategy file"):
        load_strategy(f"{mine.name}:Mine", mine.parent.parent)
    assert relative_file(f"{mine.name}:Mine") and relative_file(f"{mine.name}:Mine:a=1")
    assert not relative_file(f"{mine}:Mine") and not relative_file("random") and not relative_file("tpe:startup=3")


def test_an_edited_file_is_loaded_anew(mine: Path) -> None:
    first: Any = load_strategy(f"{mine}:Mine")
    mine.write_text(MINE.replace("size: int = 3", "size: int = 9"))
    second: Any = load_strategy(f"{mine}:Mine")
    assert (first.got["size"], second.got["size"]) == (3, 9)
    assert first.source_digest != second.source_digest


def test_a_file_named_like_a_built_in_does_not_replace_it(tmp_path: Path) -> None:
    ours = type(load_strategy("random"))
    (tmp_path / "random.py").write_text("class Random:\n    def propose(self, space, history, streams): return None\n")
    theirs = type(load_strategy(f"{tmp_path / 'random.py'}:Random"))
    assert theirs is not ours and theirs.__module__ != ours.__module__
    assert type(load_strategy("random")) is ours and sys.modules[ours.__module__].Random is ours


def test_dataclasses_work_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Data:\n"
        "    size: int = 3\n    def propose(self, space, history, streams): return None\n"
    )
    strategy: Any = load_strategy(f"{path}:Data:size=5")
    assert strategy.size == 5 and strategy.spec == f"{path}:Data:size=5"


def test_the_class_named_like_the_file_is_taken_among_several(tmp_path: Path) -> None:
    body = "    def propose(self, space, history, streams): return None\n"
    path = tmp_path / "two_step.py"
    path.write_text(f"class Other:\n{body}class TwoStep:\n{body}")
    assert type(load_strategy(str(path))).__name__ == "TwoStep"
    path.write_text(f"class Other:\n{body}class Another:\n{body}")
    assert "several strategies (Other, Another)" in refused(str(path))
    assert type(load_strategy(f"{path}:Other")).__name__ == "Other"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("import os\nclass Mine\n    pass\n", 2, "expected ':'"),
        ("import os\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("def f():\n    raise KeyError('x')\n\nf()\n", 2, "KeyError: 'x'"),
        ("import no_such_module_at_all\n", 1, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("x = 1\n", 1, "it defines no public class"),
        ("x = 1\nclass Mine:\n    pass\n", 2, "class Mine has no method 'propose'"),
        ("x = 1\nclass Mine:\n    propose = 3\n", 2, "class Mine has no method 'propose'"),
        ("from gpt_search import Strategy\n", 1, "it defines no public class"),
        ("x = '\0'\n", 1, "null bytes"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_broken_file_is_one_line_with_its_place(tmp_path: Path, text: str, line: int, what: str, named: bool) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    message = refused(f"{path}:Mine" if named else str(path))
    assert str(path) in message
    if named and "no public class" in what:
        assert "defines no class 'Mine'" in message
    else:
        assert f"line {line}" in message and what in message


def test_other_bad_specs(mine: Path) -> None:
    assert "did you mean 'sparse_random'" in refused("sparse-random")
    assert "file.py:Class" in refused("nothing-like-it")
    assert "has no name" in refused("") and "has no name" in refused(":x=1")
    assert "cannot read the strategy file 'nowhere/x.py': No such file" in refused("nowhere/x.py:X")
    assert "defines no class 'Mien'; did you mean 'Mine'?" in refused(f"{mine}:Mien")
    assert "line 27: class NotAStrategy has no method" in refused(f"{mine}:NotAStrategy")
    assert "'margin' is not of the form option=value" in refused("mixed:margin")
    assert "sets option 'margin' twice" in refused("mixed:margin=0.1,margin=0.2")


def test_a_file_that_does_not_run_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "half_done.py"
    path.write_text("class HalfDone:\n    def propose(self, space, history, streams): return None\n\n1 / 0\n")
    assert "line 4" in refused(str(path)) and "gpt_search_strategies.half_done" not in sys.modules
    path.write_text(path.read_text().replace("1 / 0", ""))
    whole = type(load_strategy(str(path)))
    path.write_text("1 / 0\n")
    assert "line 1" in refused(str(path)) and sys.modules["gpt_search_strategies.half_done"].HalfDone is whole


# -- options ---------------------------------------------------------------------------------------
def test_options_are_read_by_their_annotations(mine: Path) -> None:
    text = "size=7,rate=2,warm=yes,name=b c,kind=fast,limit=8,margin=auto,tail=none"
    strategy: Any = load_strategy(f"{mine}:Mine:{text}")
    assert strategy.got == {
        "size": 7, "rate": 2.0, "warm": True, "name": "b c", "kind": "fast", "limit": 8, "margin": "auto", "tail": None
    }  # fmt: skip
    assert type(strategy.got["rate"]) is float
    expected = "kind=fast,limit=8,margin=auto,name=b c,rate=2.0,size=7,tail=none,warm=true"
    assert strategy.spec == f"{mine}:Mine:{expected}"
    again: Any = load_strategy(strategy.spec)
    assert again.got == strategy.got and again.spec == strategy.spec


def test_options_at_their_default_do_not_count(mine: Path) -> None:
    spec = f"{mine}:Mine:size=3,rate=5e-1,warm=off,limit=none,margin=0.10,tail=2"
    assert load_strategy(spec).spec == f"{mine}:Mine"  # type: ignore[attr-defined]


def test_bad_options(mine: Path) -> None:
    base = f"{mine}:Mine"
    assert "no option 'sise'; did you mean 'size'? (its options: size, rate" in refused(f"{base}:sise=3")
    plain = mine.parent / "plain.py"
    plain.write_text("class Plain:\n    def propose(self, space, history, streams): return None\n")
    assert "(it has no options)" in refused(f"{plain}:Plain:x=1")
    assert "option size is '2.5'; it takes a whole number" in refused(f"{base}:size=2.5")
    assert "option rate is 'nan'; it takes a number" in refused(f"{base}:rate=nan")
    assert "option warm is 'perhaps'; it takes true or false" in refused(f"{base}:warm=perhaps")
    assert "it takes slow or fast; did you mean 'fast'?" in refused(f"{base}:kind=fest")
    assert "it takes a whole number or none" in refused(f"{base}:limit=")
    assert "it takes a number or auto; did you mean 'auto'?" in refused(f"{base}:margin=autp")
    assert "no option 'other'" in refused(f"{base}:other=1")  # a dictionary cannot be given as text


class Needs:
    """Needs."""

    def __init__(self, size: int, hidden: "NoSuchType | None" = None) -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
        if size < 0:
            raise ValueError("size must not be negative")
        self.size = 1 / size


def test_required_options_and_refusals_of_the_class() -> None:
    with pytest.raises(InputError, match="needs the option 'size', as in x:size="):
        make(Needs, "x", {})
    with pytest.raises(InputError, match=r"cannot be made: ZeroDivisionError"):
        make(Needs, "x", {"size": "0"})
    with pytest.raises(InputError, match="strategy 'x': size must not be negative"):
        make(Needs, "x", {"size": "-1"})

    class Awkward:
        def __init__(self, table: dict[str, int]) -> None: ...

    with pytest.raises(InputError, match=r"parameter 'table' of Awkward\.__init__ has no default"):
        make(Awkward, "x", {})

    @dataclass(frozen=True)
    class Plain:
        size: int = 1

    assert options_of(Plain, "x") == (("size", "a whole number", "1"),)


def test_a_frozen_class_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "frozen.py"
    path.write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Frozen:\n"
        "    def propose(self, space, history, streams): return None\n"
    )
    assert "must not be frozen" in refused(f"{path}:Frozen")


class Everything:
    """Everything."""

    def __init__(
        self, i: int = 0, f: float = 0.0, b: bool = False, n: int | None = None, m: int | float = 1, g: bool | int = 0
    ) -> None:
        self.values = (i, f, b, n, m, g)


@given(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.none() | st.integers(),
    st.integers() | st.floats(allow_nan=False), st.integers(),
)  # fmt: skip
def test_the_canonical_text_reads_back(i: int, f: float, b: bool, n: int | None, m: float, g: int) -> None:
    given_text = dict(zip("ifbnmg", map(str, (i, f, b, n, m, g)), strict=True))
    first, spec = make(Everything, "x", given_text)
    assert first.values == (i, f, b, n, m, g)
    assert list(map(type, first.values)) == list(map(type, (i, f, b, n, m, g)))
    options = dict(part.split("=") for part in spec.partition(":")[2].split(",") if part)
    second, again = make(Everything, "x", options)
    assert second.values == first.values and again == spec
    assert list(options) == sorted(options)


# -- entry points ----------------------------------------------------------------------------------
class Packaged:
    """A strategy of another package."""

    def propose(self, space: object, history: object, streams: object) -> None: ...


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> None:
        raise ImportError("no module named 'gone'")

    points = {
        "packaged": SimpleNamespace(name="packaged", value="p:Packaged", load=lambda: Packaged),
        "gone": SimpleNamespace(name="gone", value="gone:X", load=raises),
        "number": SimpleNamespace(name="number", value="p:three", load=lambda: 3),
        "random": SimpleNamespace(name="random", value="p:Packaged", load=lambda: Packaged),
    }
    monkeypatch.setattr(discovery, "_entry_points", lambda: points)
    assert {"packaged", "gone", *BUILT_IN} <= set(strategy_names())
    strategy: Any = load_strategy("packaged")
    assert isinstance(strategy, Packaged) and strategy.spec == "packaged"
    assert strategy.source_digest == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert "(entry point gone:X) cannot be loaded: ImportError: no module named 'gone'" in refused("gone")
    assert "(entry point p:three) is not a class" in refused("number")
    assert not isinstance(load_strategy("random"), Packaged)  # ours wins
