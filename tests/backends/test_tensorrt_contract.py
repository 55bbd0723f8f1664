"""Every TensorRT name that the backend uses exists, in the real bindings of TensorRT 11.4 and of TensorRT-RTX.

The bindings are asked, not remembered: mypy's `stubgen` imports them and writes down what each class has, with
the signatures that pybind11 put in; then mypy checks the backend's own files against that. So attributes,
methods, keywords, argument types and enum members all count, and they are found by reading the source.

TensorRT's native libraries are not on PyPI. Its bindings import once three libraries with the right names hold
the entry points that they link to; here those return null, which is enough to be asked what there is.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mypy.build
import pytest
from mypy.modulefinder import BuildSource
from mypy.nodes import MemberExpr, MypyFile, RefExpr
from mypy.options import Options
from mypy.types import AnyType, FunctionLike, Instance, ProperType, TypeType, get_proper_type

import gpt_search
from gpt_search.backends.tensorrt_options import FULL, RTX, not_of, option_words

BACKENDS = Path(gpt_search.__file__).parent / "backends"
LIBRARIES = ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser")
# Each returns null or 0.
ENTRY_POINTS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
_STUBGEN = "import sys; from mypy.stubgen import main; main(sys.argv[1:])"
_APART = 10_000
RTX_ONLY = "tensorrt_rtx"
"""Files that begin so use what only TensorRT-RTX has, and are checked against it alone."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheels are for Linux")


@dataclass(frozen=True)
class Api:
    """What a library's bindings have: a folder with their stubs, the names of all members, the version."""

    folder: Path
    members: frozenset[str]
    version: str


def sources(rtx: bool) -> list[Path]:
    found = sorted(BACKENDS.glob("tensorrt*.py"))
    return [p for p in found if rtx or not p.name.startswith(RTX_ONLY)]


def with_defaults_last(line: str) -> str:
    """A stub's `def` line that Python can read: in C++ a parameter without a default may follow one with it."""
    before, opened, rest = line.partition("(")
    inside, closed, after = rest.rpartition(") -> ")
    if not before.strip().startswith("def ") or not (opened and closed) or " = ..." not in inside:
        return line
    depth, parts = 0, [""]
    for character in inside:
        depth += (character in "[(") - (character in "])")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    first = next(i for i, part in enumerate(parts) if " = ..." in part)
    parts[first:] = [p if " = ..." in p or p.strip().startswith("*") else f"{p} = ..." for p in parts[first:]]
    return f"{before}({','.join(parts)}) -> {after}"


def described(module: str, folder: Path, libraries: Path | None) -> Api:
    """Imports the bindings in a process of its own, and writes their stubs as the package `tensorrt`."""
    environment = dict(os.environ)
    if libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    native = f"{module}.{module.removesuffix('_bindings')}"
    for command in (
        [sys.executable, "-c", _STUBGEN, "--inspect-mode", "-m", native, "-o", str(folder / "raw")],
        [sys.executable, "-c", f"import {module}; print({module}.__version__)"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "raw" / native.replace(".", "/")).with_suffix(".pyi").read_text().splitlines()
    text = "\n".join(with_defaults_last(line) for line in lines)
    # What pybind11's signatures leave out: callbacks get whole numbers, Dims stands for any sequence of sizes, in
    # both directions, and host memory is a buffer.
    text = text.replace("typing.SupportsInt", "int")
    text = re.sub(r"(?<=[a-z]): Dims(?=[,)])", ": Dims | collections.abc.Sequence[int]", text)
    text = re.sub(
        r"^class Dims:$", r"\g<0>\n    def __iter__(self) -> collections.abc.Iterator[int]: ...", text, flags=re.M
    )
    text = re.sub(
        r"^class IHostMemory:$", r"\g<0>\n    def __buffer__(self, flags: int) -> memoryview: ...", text, flags=re.M
    )
    tree = list(ast.walk(ast.parse(text)))
    members = {n.name for n in tree if isinstance(n, ast.FunctionDef)}
    members |= {n.target.id for n in tree if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for name, content in (
        ("tensorrt", text + "\n__version__: str\n"),
        ("tensorrt_rtx", "from tensorrt import *\nfrom tensorrt import __version__ as __version__\n"),
    ):
        package = folder / "stubs" / name
        package.mkdir(parents=True)
        (package / "__init__.pyi").write_text(content)
    return Api(folder / "stubs", frozenset(m for m in members if not m.startswith("_")), done.stdout.strip())


@pytest.fixture(scope="module")
def stub_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None and not os.environ.get("CI"):
        pytest.skip("needs a C compiler")
    assert compiler is not None, "no C compiler: .ci/run installs one"
    folder = tmp_path_factory.mktemp("libraries")
    source = folder / "entry_points.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in ENTRY_POINTS))
    for library in LIBRARIES:
        target = f"{library}.so.11"
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{target}", "-o", str(folder / target), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def full(stub_libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Api:
    return described("tensorrt_bindings", tmp_path_factory.mktemp("full"), stub_libraries)


@pytest.fixture(scope="module")
def rtx(tmp_path_factory: pytest.TempPathFactory) -> Api:
    return described("tensorrt_rtx_bindings", tmp_path_factory.mktemp("rtx"), None)


class _OneModule(ast.NodeTransformer):
    """The library is chosen at run time and handed around as `trt`; for the check it is the module of that name."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg("_given", node.annotation) if node.arg == "trt" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr == "_trt" and isinstance(node.value, ast.Name) and node.value.id == "self":
            # Where it is kept, nothing is used.
            return ast.copy_location(ast.Name("_kept" if isinstance(node.ctx, ast.Store) else "trt", node.ctx), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "trt":
            return ast.copy_location(ast.Pass(), node)
        return node


def as_checked(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_OneModule().visit(ast.parse(text))))


def _owner(kind: ProperType | None) -> str | None:
    if isinstance(kind, TypeType):
        kind = get_proper_type(kind.item)
    if isinstance(kind, FunctionLike) and kind.is_type_obj():
        return str(kind.type_object().fullname)
    return str(kind.type.fullname) if isinstance(kind, Instance) else None


@dataclass(frozen=True)
class Report:
    errors: list[str]
    used: set[str]
    unknown: list[str]


def check(api: Api, texts: dict[str, str]) -> Report:
    """mypy's errors in these files (name -> text), the members that they use, and uses on values of unknown type."""
    options = Options()
    options.ignore_missing_imports = True
    options.export_types = True
    options.incremental = False
    options.follow_imports = "silent"
    options.follow_imports_for_stubs = True
    options.mypy_path = [str(api.folder), str(BACKENDS.parents[1])]
    heavy = ("gpt_search.search", "optuna", "pandas", "matplotlib", "scipy", "onnx", "cuda", "pynvml", "ml_dtypes")
    options.per_module_options = {p: {"follow_imports": "skip"} for name in heavy for p in (name, f"{name}.*")}
    options.process_incomplete_features(error_callback=print, warning_callback=print)
    # An expression knows its line, not its file: each file gets lines of its own, far from all others.
    names = list(texts)
    built = [
        BuildSource(f"{name}.py", f"contract_{name}", "\n" * (_APART * (i + 1)) + texts[name])
        for i, name in enumerate(names)
    ]
    result = mypy.build.build(built, options)
    used: set[str] = set()
    unknown: set[str] = set()
    for node in result.types:
        place, line = divmod(node.line, _APART)
        if not isinstance(node, MemberExpr) or place == 0:
            continue
        if isinstance(node.expr, RefExpr) and isinstance(node.expr.node, MypyFile):
            if node.expr.node.fullname in ("tensorrt", "tensorrt_rtx"):
                used.add(node.name)
            continue
        base = get_proper_type(result.types.get(node.expr))
        owner = _owner(base)
        if owner is not None and owner.startswith(("tensorrt.", "tensorrt_rtx.")):
            used.add(f"{owner.partition('.')[2]}.{node.name}")
        elif isinstance(base, AnyType) and node.name in api.members:
            unknown.add(f"{names[place - 1]}: {texts[names[place - 1]].splitlines()[line - 1].strip()}")
    errors = []
    for error in result.errors:
        name, _, rest = error.partition(".py:")
        # What a variable of ours may hold is the matter of the type check of the whole package.
        if name in texts and ": error:" in rest and "[assignment]" not in rest:
            line = int(rest.partition(":")[0]) % _APART
            errors.append(f"{name}: {rest.partition(': ')[2]}: {texts[name].splitlines()[line - 1].strip()}")
    return Report(errors, used, sorted(unknown))


WRONG = {
    "config.build_rout = 'x'": 'has no attribute "build_rout"',
    "config.set_flag(trt.BuilderFlag.FP16)": 'has no attribute "FP16"',
    "config.set_timing_cache(config.create_timing_cache(b''), ignore=False)": 'keyword argument "ignore"',
    "config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)": 'Missing positional argument "pool_size"',
    "config.set_flag(trt.MemoryPoolType.WORKSPACE)": "incompatible type",
    "trt.OnnxParserr": 'has no attribute "OnnxParserr"',
    "self._trt.Runtime(trt.ILogger()).deserialise(b'')": 'has no attribute "deserialise"',
}
UNKNOWN = "from typing import Any\ndef f(config: Any) -> None:\n    config.build_route = 'x'\n"


def with_mistakes() -> dict[str, str]:
    """Files with one mistake each, which the check must see beside the real ones."""
    head = "import tensorrt as trt\nclass A:\n    def f(self, trt: object, config: trt.IBuilderConfig) -> None:\n"
    return {f"wrong{i}": as_checked(f"{head}        {line}\n") for i, line in enumerate(WRONG)} | {"unknown": UNKNOWN}


def checked(api: Api, rtx: bool) -> Report:
    """The real files, after the mistakes were all found and taken out of the report."""
    mistakes = with_mistakes()
    real = {p.stem: as_checked(p.read_text(encoding="utf-8")) for p in sources(rtx)}
    report = check(api, mistakes | real)
    for i, (line, says) in enumerate(WRONG.items()):
        found = [e for e in report.errors if e.startswith(f"wrong{i}: ")]
        assert any(says in e for e in found), (line, found)
    assert "unknown: config.build_route = 'x'" in report.unknown
    return Report(
        [e for e in report.errors if e.partition(":")[0] in real],
        report.used,
        [u for u in report.unknown if u.partition(":")[0] in real],
    )


def overrides(text: str) -> set[tuple[str, str]]:
    """(class of the library, method) for what our classes derived from its interfaces define: it calls them by name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = [b.attr for b in node.bases if isinstance(b, ast.Attribute) and re.fullmatch("I[A-Z].*", b.attr)]
            methods = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            found |= {(base, method) for base in bases for method in methods}
    return found


def check_overrides(bindings: str, rtx: bool) -> None:
    """A misspelt callback is no error anywhere else: the library would call the default of its own instead.

    pybind11 describes an interface's methods or leaves them out (IOutputAllocator's); it looks callbacks up by
    names that are in the extension module.
    """
    origin = importlib.util.find_spec(bindings)
    assert origin is not None and origin.origin is not None
    (extension,) = Path(origin.origin).parent.glob("tensorrt*.so")
    words = extension.read_bytes()

    def unknown(found: set[tuple[str, str]]) -> list[str]:
        return [f"{base}.{method}" for base, method in sorted(found) if f"\0{method}\0".encode() not in words]

    wrong = "class A(trt.IProgressMonitor):\n    def phase_finished(self): ...\n    def phase_start(self): ...\n"
    assert unknown(overrides(wrong)) == ["IProgressMonitor.phase_finished"]
    ours = set[tuple[str, str]]().union(*(overrides(p.read_text(encoding="utf-8")) for p in sources(rtx)))
    assert ours >= {("IOutputAllocator", "notify_shape"), ("IProgressMonitor", "phase_finish"), ("ILogger", "log")}
    assert unknown(ours) == []


def check_words(api: Api, library: str) -> None:
    """The words that options take are looked up in the library's enumerations when they are used, not before."""
    text = (api.folder / "tensorrt" / "__init__.pyi").read_text()
    classes = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}
    found = {option: words for option, words in option_words().items() if option not in not_of(library)}
    assert len(found) >= 3
    for option, words in found.items():
        body = classes[words.enum].body
        members = {n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        assert {w.upper() for w in words.words} <= members, option


def test_every_name_exists_in_tensorrt_11_4(full: Api) -> None:
    assert full.version == "11.4.0.106"
    report = checked(full, rtx=False)
    assert report.errors == []
    assert report.unknown == []
    # Not a list to be kept: that the check sees what the backend certainly uses.
    check_words(full, FULL)
    check_overrides("tensorrt_bindings", rtx=False)
    assert report.used >= {"Builder", "IBuilderConfig.build_route", "OnnxParser.parse_from_file"}
    assert len(report.used) > 80, sorted(report.used)


def test_every_name_exists_in_tensorrt_rtx(rtx: Api) -> None:
    report = checked(rtx, rtx=True)
    assert report.errors == []
    assert report.unknown == []
    check_words(rtx, RTX)
    check_overrides("tensorrt_rtx_bindings", rtx=True)
    assert report.used >= {"IBuilderConfig.set_compute_capability", "CudaGraphStrategy"}
