"""The backends by name: what there is, what can be used here, and why not."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gpt_search.backends.base import Backend
from gpt_search.domain.errors import InputError, did_you_mean

_ATTRIBUTES = ("capabilities", "knob_database", "environment", "build", "load")


@dataclass(frozen=True)
class _Entry:
    """One backend: how to load it (None: not in this version), and the packages it needs with the extra's name.

    needs: names of modules; "a|b" is a or b. native: of `Engine.save`'s bytes, the compiler's own part.
    """

    load: Callable[[str], Backend] | None
    needs: tuple[str, ...] = ()
    extra: str = ""
    takes_options: bool = False
    native: Callable[[bytes], bytes] | None = None


def _onnxruntime(options: str) -> Backend:
    from gpt_search.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend()


def _synthetic(options: str) -> Backend:
    from gpt_search.backends.synthetic import SyntheticBackend

    return SyntheticBackend(options)


def _tensorrt(name: str) -> Callable[[str], Backend]:
    def load(options: str) -> Backend:
        from gpt_search.backends.tensorrt import TensorRTBackend

        return TensorRTBackend(name)

    return load


def _plan(data: bytes) -> bytes:
    from gpt_search.backends.tensorrt_file import plan_of

    return plan_of(data)


_ENTRIES = {
    "onnxruntime": _Entry(_onnxruntime, ("onnxruntime", "onnx")),
    "synthetic": _Entry(_synthetic, takes_options=True),
    "tensorrt": _Entry(_tensorrt("tensorrt"), ("tensorrt|tensorrt_bindings",), "tensorrt", native=_plan),
    "tensorrt-rtx": _Entry(_tensorrt("tensorrt-rtx"), ("tensorrt_rtx|tensorrt_rtx_bindings",), "rtx", native=_plan),
    "xla": _Entry(None, ("jax",), "xla"),
}
_FILE = re.compile(r"^(?P<path>.+\.py):(?P<name>[A-Za-z_]\w*)(?::(?P<options>.*))?$", re.DOTALL)


def backend_names() -> list[str]:
    """The names of the backends that come with gpt_search, usable here or not."""
    return list(_ENTRIES)


def availability(name: str) -> str | None:
    """Why a backend cannot be used here, or None when it can; loads no backend library.

    name: as for `load_backend`. Raises InputError for an unknown name.
    """
    if (file := _FILE.match(name)) is not None:
        return None if Path(file["path"]).is_file() else f"there is no file {file['path']}"
    plain = name.partition(":")[0]
    entry = _entry(plain)
    if entry.load is None:
        return f"the {plain} backend is not in this version of gpt_search"
    missing = [
        p.partition("|")[0] for p in entry.needs if all(importlib.util.find_spec(m) is None for m in p.split("|"))
    ]
    if missing:
        where = f"gpt-search[{entry.extra}]" if entry.extra else " ".join(missing)
        return f"{', '.join(missing)} is not installed; try: pip install '{where}'"
    return None


def absolute_name(name: str) -> str:
    """The name with the path of a third party's file made absolute: it means the same in every folder."""
    file = _FILE.match(name)
    return name if file is None else f"{Path(file['path']).absolute()}{name[file.end('path') :]}"


def file_of(name: str) -> Path | None:
    """The file of a third party's backend, None for a backend that comes with gpt_search."""
    file = _FILE.match(name)
    return None if file is None else Path(file["path"])


def native_engine(name: str, data: bytes) -> bytes:
    """A saved engine as the compiler itself reads it, without what gpt_search keeps beside it.

    name: as for `load_backend`. data: from `Engine.save`. Loads no backend library.
    Raises BuildError for damaged bytes.
    """
    entry = _ENTRIES.get(name.partition(":")[0])
    return data if entry is None or entry.native is None else entry.native(data)


def load_backend(name: str) -> Backend:
    """The backend of that name, ready for use.

    name: one of `backend_names()`, with options after a colon where it takes any
    (`synthetic:{"family": "sparse", "seed": 1}`), or `path/to/file.py:Class` for a third party's, whose
    class is called with the text after a second colon, or without arguments where there is none.

    Raises InputError for an unknown name, a backend that cannot be used here, options that are
    wrong, and a file or class that is not there or is no backend.
    """
    if (file := _FILE.match(name)) is not None:
        return _from_file(Path(file["path"]), file["name"], file["options"])
    plain, _, options = name.partition(":")
    entry = _entry(plain)
    why = availability(plain)
    if why is not None or entry.load is None:
        raise InputError(f"backend {plain!r} cannot be used: {why}")
    if options and not entry.takes_options:
        raise InputError(f"backend {plain!r} takes no options, got {options!r}")
    return entry.load(options)


def _entry(plain: str) -> _Entry:
    entry = _ENTRIES.get(plain)
    if entry is None:
        raise InputError(
            f"unknown backend {plain!r}{did_you_mean(plain, _ENTRIES)} (there are {', '.join(_ENTRIES)}, "
            "and path/to/file.py:Class)"
        )
    return entry


def _from_file(path: Path, class_name: str, options: str | None) -> Backend:
    path = path.absolute()
    if not path.is_file():
        raise InputError(f"there is no file {path} to load backend {class_name!r} from")
    # Under a name of its own and before it runs, so that dataclasses and pickles in it find their module.
    module_name = f"gpt_search_backend_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise InputError(f"{path} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise InputError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    made = getattr(module, class_name, None)
    if not isinstance(made, type):
        classes = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module_name]
        raise InputError(
            f"{path} has no class {class_name!r}{did_you_mean(class_name, classes)}; "
            f"it has {', '.join(classes) or 'none'}"
        )
    backend = made() if options is None else made(options)
    lacking = [a for a in _ATTRIBUTES if not hasattr(backend, a)]
    if lacking:
        raise InputError(f"{class_name} in {path} is no backend: it has no {', '.join(lacking)}")
    return backend  # type: ignore[no-any-return]
