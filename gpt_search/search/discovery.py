"""Finding strategies and making them from text: `tpe`, `mixed:margin=0.02`, `my_strategy.py:MyStrategy:x=1`.

Strategies live one per file in `strategies/`: the checkout's folder where it lies beside the
package, else the copy inside the package; other packages add theirs with the entry point group
`gpt_search.strategies`. The folder never enters `sys.path`: a file called random.py must not hide
the standard library's. A file becomes the module `gpt_search_strategies.<stem>`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.search.options import Option, make, options_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from gpt_search.search.strategy import Strategy

PACKAGE = "gpt_search_strategies"
ENTRY_POINTS = "gpt_search.strategies"
_FILE_SPEC = re.compile(r"(?s)(?P<path>.+?\.py)(?::(?P<name>[A-Za-z_]\w*))?(?::(?P<options>[^:]*=.*)|:)?")
_NEEDED = "; a strategy is a class with a method propose(self, space, history, streams)"
# Modules by file and digest: the same text gives the same classes, an edited file gives new ones.
_loaded: dict[tuple[Path, str], ModuleType] = {}


class StrategyInfo(NamedTuple):
    """What a list of strategies shows.

    summary: the first line of the docstring. options: what a spec may set. source: the citation in
    the docstring, or None. problem: why the strategy cannot be loaded, or None; a broken one does
    not hide the others.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    source: str | None
    problem: str | None = None


def load_strategy(spec: str, folder: str | Path | None = None) -> Strategy:
    """Makes a strategy from its spec.

    spec: `name`, `name:option=value,option=value`, `file.py:Class` or `file.py:Class:option=value`.
        Options are keyword parameters of the class.
    folder: where a relative file is looked for; by default the working directory.

    The strategy carries `spec` (the canonical text: options that are not at their default, sorted) and
    `source_digest` (SHA-256 of the file's bytes), so that a resumed study can tell that it changed.

    Raises InputError for an unknown strategy or option, a bad value, and a file that does not load.
    """
    file, name, options = _split(spec)
    if file is not None:
        cls, digest = _class_in(Path(folder or "") / file, name or None)
        base = f"{file}:{cls.__name__}"
    else:
        cls, digest = _named(name)
        base = name
    strategy, canonical = make(cls, base, options)
    try:
        strategy.spec = canonical
        strategy.source_digest = digest
    except AttributeError:
        raise InputError(
            f"strategy {base!r}: class {cls.__name__} does not let the attributes 'spec' and 'source_digest' be set; "
            "it must not be frozen, and with __slots__ it needs both names"
        ) from None
    return strategy  # type: ignore[no-any-return]


def relative_file(spec: str) -> bool:
    """True when a spec names a file by a path that depends on the working directory."""
    file = _split(spec)[0]
    return file is not None and not Path(file).is_absolute()


def strategy_names() -> list[str]:
    """The names that `load_strategy` knows, sorted. Imports no strategy."""
    return sorted({*_files(), *_entry_points()})


def strategy_info(name: str | None = None) -> list[StrategyInfo]:
    """What is known of one strategy, or of all, sorted by name.

    name: a spec without options: a known name, `file.py` or `file.py:Class`. Raises InputError for an unknown one.
    """
    if name is not None:
        file, word, options = _split(name)
        if options:
            raise InputError(f"{name!r} sets options; leave them out to see which ones there are")
        cls = _named(word)[0] if file is None else _class_in(Path(file), word or None)[0]
        return [_describe(word if file is None else f"{file}:{cls.__name__}", cls)]
    found = []
    for each in strategy_names():
        try:
            found.append(_describe(each, _named(each)[0]))
        except InputError as error:
            found.append(StrategyInfo(each, "", (), None, str(error)))
    return found


def folder() -> Path:
    """The folder with the strategies: the checkout's, else the one inside the package."""
    package = Path(__file__).resolve().parent.parent
    beside = package.parent / "strategies"
    # site-packages may hold a folder of that name that is somebody else's; a checkout has a pyproject.toml.
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    return package / "_strategies"


# -- specs ---------------------------------------------------------------------------------------
def _split(spec: str) -> tuple[str | None, str, dict[str, str]]:
    """File (or None), name (of the class in the file, or of the strategy), options as text."""
    match = _FILE_SPEC.fullmatch(spec.strip())
    if match is not None:
        file, name, text = match["path"], match["name"] or "", match["options"] or ""
    else:
        file = None
        name, _, text = spec.strip().partition(":")
        if not name:
            raise InputError(f"the strategy {spec!r} has no name; known: {listing(strategy_names(), 30)}")
    options: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"strategy {spec!r}: {part.strip()!r} is not of the form option=value")
        if key in options:
            raise InputError(f"strategy {spec!r} sets option {key!r} twice")
        options[key] = value.strip()
    return file, name, options


def _files() -> dict[str, Path]:
    return {path.stem: path for path in folder().glob("[!_]*.py")}


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _named(name: str) -> tuple[type[Any], str]:
    """The class of a named strategy, and the digest of its file."""
    files = _files()
    if name in files:
        return _class_in(files[name], None)
    points = _entry_points()
    if name not in points:
        known = sorted({*files, *points})
        raise InputError(
            f"unknown strategy {name!r}{did_you_mean(name, known)} (known: {listing(known, 30)}; "
            "a file of your own is given as file.py:Class)"
        )
    try:
        cls = points[name].load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"strategy {name!r} (entry point {points[name].value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(cls, type) or not callable(getattr(cls, "propose", None)):
        raise InputError(f"strategy {name!r} (entry point {points[name].value}) is not a class with a method 'propose'")
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls, hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


# -- files ---------------------------------------------------------------------------------------
def _class_in(path: Path, name: str | None) -> tuple[type[Any], str]:
    """The strategy class in a file, and the digest of the file."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the strategy file {str(path)!r}: {error.strerror or error}") from None
    digest = hashlib.sha256(source).hexdigest()
    module = _module(path, source, digest)
    own = {n: c for n, c in vars(module).items() if isinstance(c, type) and c.__module__ == module.__name__}
    if name is not None:
        if name not in own:
            raise InputError(
                f"strategy file {str(path)!r} defines no class {name!r}{did_you_mean(name, own)} "
                f"(it defines: {listing(own) or 'none'})"
            )
        if not callable(getattr(own[name], "propose", None)):
            raise InputError(
                f"strategy file {str(path)!r}, line {_line_of(source, name)}: "
                f"class {name} has no method 'propose'{_NEEDED}"
            )
        return own[name], digest
    able = {n: c for n, c in own.items() if not n.startswith("_") and callable(getattr(c, "propose", None))}
    camel = path.stem.replace("_", " ").title().replace(" ", "")
    by_stem = [c for n, c in able.items() if n.casefold() == camel.casefold()]
    if len(by_stem) == 1:
        return by_stem[0], digest
    if len(able) == 1:
        return next(iter(able.values())), digest
    if not able:
        public = [n for n in own if not n.startswith("_")]
        where = f", line {_line_of(source, public[0])}" if public else ", line 1"
        what = f"class {public[0]} has no method 'propose'" if public else "it defines no public class"
        raise InputError(f"strategy file {str(path)!r}{where}: {what}{_NEEDED}")
    raise InputError(
        f"strategy file {str(path)!r} defines several strategies ({listing(able)}); name one, as in "
        f"{path.name}:{next(iter(able))}"
    )


def _module(path: Path, source: bytes, digest: str) -> ModuleType:
    """The module of a strategy file, run once for each text of it."""
    where = path.resolve()
    if (where, digest) in _loaded:
        return _loaded[where, digest]
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise InputError(f"strategy file {str(path)!r}, line {error.lineno or 1}: {error.msg}") from None
    except ValueError as error:  # a zero byte
        raise InputError(f"strategy file {str(path)!r}, line 1: {error}") from None
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE, "Strategies that were loaded from files.")
        package.__path__ = []
        sys.modules[PACKAGE] = package
    name = f"{PACKAGE}.{path.stem}"
    if path.stem in (files := _files()) and files[path.stem].resolve() != where:
        name += f"_{digest[:8]}"  # a user's random.py must not replace ours
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = PACKAGE
    # Before it runs: dataclasses, for one, look their module up while the class is being made.
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise InputError(
            f"strategy file {str(path)!r}, line {_failing_line(error, str(path))}: {type(error).__name__}: {error}"
        ) from None
    setattr(sys.modules[PACKAGE], name.rpartition(".")[2], module)
    _loaded[where, digest] = module
    return module


def _failing_line(error: BaseException, file: str) -> int:
    """The last line of `file` in the traceback."""
    line, traceback = 1, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _line_of(source: bytes, name: str) -> int:
    """The line on which a class is defined, 1 where that is not at the top level."""
    import ast

    found = [n.lineno for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name]
    return found[-1] if found else 1


# -- descriptions --------------------------------------------------------------------------------
def _describe(name: str, cls: type[Any]) -> StrategyInfo:
    own = cls.__dict__.get("__doc__") or ""
    of_module = sys.modules[cls.__module__].__doc__ or ""
    summary = (own.strip() or of_module.strip()).partition("\n")[0]
    return StrategyInfo(name, summary, options_of(cls, name), _source(own) or _source(of_module))


def _source(docstring: str) -> str | None:
    """The paragraph that begins with `Source:`, in one line."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        text = " ".join(paragraph.split())
        if text.startswith("Source:"):
            return text.removeprefix("Source:").strip()
    return None


__all__ = ["Option", "StrategyInfo", "folder", "load_strategy", "relative_file", "strategy_info", "strategy_names"]
