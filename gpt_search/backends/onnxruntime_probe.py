"""Checks the catalogue against the installed runtime, and tells which switches matter for a model.

The runtime takes unknown optimiser names without a word. What it has is learnt in two ways: its log
at verbosity 1 names every graph transformer that it ran and whether it changed the graph; a rewrite
rule, which the log does not name, is switched off on a model where it applies, and the graph must
change. Logs go to file descriptor 2, so this happens in a process of its own:
`python -m gpt_search.backends.onnxruntime_probe`.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpt_search.backends.base import BuildError
from gpt_search.backends.onnxruntime_catalogue import (
    NEEDS,
    RULE_PREFIX,
    RULES,
    SETTINGS,
    TRANSFORMER_PREFIX,
    TRANSFORMERS,
    Target,
    database_for,
)
from gpt_search.domain.route import Route

_RAN = re.compile(r"GraphTransformer (\S+) modified: (\d)")
_RULE_RUNNERS = ("Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer")
# Registered by every session to make a graph executable; they cannot be switched off.
_REQUIRED = frozenset(
    {
        "CastFloat16Transformer",
        "EnsureUniqueDQForNodeUnit",
        "InsertCastTransformer",
        "MemcpyTransformer",
        "RemoveDuplicateCastTransformer",
    }
)
# Names that the runtime puts together while running -> the part that its library holds.
_PART_OF = {
    "Level1_RuleBasedTransformer": "_RuleBasedTransformer",
    "Level2_RuleBasedTransformer": "_RuleBasedTransformer",
    "TransposeOptimizer_CPUExecutionProvider": "TransposeOptimizer_",
}
_TIMEOUT_S = 300


@dataclass(frozen=True)
class CatalogueReport:
    """What the installed runtime says about the catalogue.

    version: of the runtime. knobs: in the catalogue. missing: optimisers of the catalogue that this
    runtime does not have. unproven: rules that it names, but whose switch changed nothing on the
    model made for them. unlisted: transformers that ran and that the catalogue does not list.
    rejected: setting and value -> the runtime's message. ok: True when none of the first two nor
    `rejected` holds anything.
    """

    version: str
    knobs: int
    missing: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when every knob does what its help says on this runtime."""
        return not (self.missing or self.unproven or self.rejected)

    def lines(self) -> list[str]:
        """The report in sentences, for a terminal."""
        out = [f"ONNX Runtime {self.version}: {self.knobs} knobs"]
        if self.ok:
            out[0] += ", all confirmed by this runtime"
        for names, text in (
            (self.missing, "not in this runtime (renamed or removed), their switches would do nothing"),
            (self.unproven, "known by name, but the switch had no effect on the model made for it"),
            (self.unlisted, "run by this runtime, but not in the catalogue"),
        ):
            if names:
                out.append(f"{text}: {', '.join(names)}")
        out += [f"{setting} is refused: {why}" for setting, why in self.rejected.items()]
        return out

    def to_json(self) -> dict[str, Any]:
        """A JSON form that `CatalogueReport(**data)` reads back."""
        return {
            "version": self.version,
            "knobs": self.knobs,
            "missing": list(self.missing),
            "unproven": list(self.unproven),
            "unlisted": list(self.unlisted),
            "rejected": dict(self.rejected),
        }


@cache
def validate_catalogue() -> CatalogueReport:
    """Checks every knob against the installed runtime, in a process of its own; some seconds.

    Raises RuntimeError when that process fails.
    """
    data = _in_process(["--catalogue"])
    for key in ("missing", "unproven", "unlisted"):
        data[key] = tuple(data[key])
    return CatalogueReport(**data)


def live_knobs(model: str | Path) -> tuple[str, ...]:
    """Names of the switches (`rule:*`, `opt:*`) that change this model's graph, in catalogue order.

    The other settings are at their defaults. Source: the runtime's log for transformers; for rules,
    one build with each switched off. Raises RuntimeError when the model cannot be built.
    """
    return tuple(_in_process(["--live", str(Path(model).absolute())]))


def missing_optimizers(names: Iterable[str]) -> list[str]:
    """Which of these optimisers the runtime's library does not even name: a cheap guard for builds."""
    return [name for name in names if not _named_in_library(name)]


@cache
def _named_in_library(name: str) -> bool:
    """True when the name stands in the library at all (milliseconds; no proof, but a rename shows)."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    libraries = sorted(folder.glob("onnxruntime_pybind11_state*")) + sorted(folder.glob("*onnxruntime*.dll"))
    if not libraries:
        raise BuildError(f"cannot find ONNX Runtime's library in {folder} to check optimiser names")
    # Linkers merge tails and compilers inline short texts, so nothing is known about the bytes around it.
    wanted = _PART_OF.get(name, name).encode()
    for library in libraries:
        with (
            library.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            if text.find(wanted) >= 0:
                return True
    return False


def _in_process(arguments: Sequence[str]) -> Any:
    command = [sys.executable, "-m", "gpt_search.backends.onnxruntime_probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-3:]
        raise RuntimeError(f"the probe of ONNX Runtime ended with {done.returncode}: {' '.join(tail)}")
    return json.loads(done.stdout.splitlines()[-1])


# -- inside that process -------------------------------------------------------------------------
def transformers_run(model: str | bytes, route: str = "") -> dict[str, bool]:
    """Transformers that ran while a session was made -> whether they changed the graph.

    Redirects file descriptor 2 meanwhile: for a process of its own only.
    """
    import onnxruntime

    from gpt_search.backends.onnxruntime_settings import Settings

    settings = Settings.of(Route.parse(route), database_for(onnxruntime.__version__))
    options = settings.session_options()
    options.log_severity_level, options.log_verbosity_level = 0, 1
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            onnxruntime.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(settings.disabled) or None,
                enable_fallback=0,
            )
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        text = log.read().decode(errors="replace")
    ran: dict[str, bool] = {}
    for name, modified in _RAN.findall(text):
        ran[name] = ran.get(name, False) or modified != "0"
    return ran


def _graph_of(model: str | bytes, disabled: Sequence[str] = (), route: str = "") -> str:
    """Digest of the optimised graph."""
    import onnx
    import onnxruntime

    from gpt_search.backends.onnxruntime_fingerprint import graph_digest
    from gpt_search.backends.onnxruntime_settings import Settings

    settings = Settings.of(Route.parse(route), database_for(onnxruntime.__version__))
    with tempfile.TemporaryDirectory() as folder:
        options = settings.session_options()
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(disabled), enable_fallback=0
        )
        return graph_digest(onnx.load(str(path), load_external_data=False), path.parent)


def _live(model: str) -> list[str]:
    ran = transformers_run(model)
    live = {TRANSFORMER_PREFIX + n for n, changed in ran.items() if changed and n in TRANSFORMERS}
    if any(ran.get(runner, False) for runner in _RULE_RUNNERS):
        default = _graph_of(model)
        live |= {RULE_PREFIX + n for n in RULES if _graph_of(model, [n]) != default}
    return [k.name for k in database_for("").knobs if k.name in live]


def _catalogue() -> CatalogueReport:
    import onnxruntime

    from gpt_search.backends.onnxruntime_settings import Settings
    from gpt_search.backends.onnxruntime_zoo import RULE_MODELS, anything

    database = database_for(onnxruntime.__version__)
    model = anything()
    needed = " ".join(f"-{name}={value}" for name, value in sorted(set(NEEDS.values())))
    ran = set(transformers_run(model)) | set(transformers_run(model, needed))
    missing = [n for n in TRANSFORMERS if n not in ran] + missing_optimizers(RULES)
    unproven = []
    for name in RULES:
        if name in missing:
            continue
        setting, value = NEEDS.get(name, ("", ""))
        route = f"-{setting}={value}" if setting else ""
        example = RULE_MODELS[name]()
        # Folding would do the same work on some of the models.
        if _graph_of(example, [name, "ConstantFolding"], route) == _graph_of(example, ["ConstantFolding"], route):
            unproven.append(name)
    rejected = {}
    for knob_setting in SETTINGS:
        for sent in knob_setting.sends:
            if knob_setting.target is Target.PASS:
                continue
            try:
                options = Settings.of(Route(((knob_setting.name, sent),)), database).session_options()
                onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
            except Exception as error:
                rejected[f"{knob_setting.name}={sent}"] = str(error)
    unlisted = sorted(ran - set(TRANSFORMERS) - _REQUIRED)
    return CatalogueReport(
        onnxruntime.__version__, len(database), tuple(missing), tuple(unproven), tuple(unlisted), rejected
    )


def _main(arguments: Sequence[str]) -> None:
    if arguments[0] == "--catalogue":
        print(json.dumps(_catalogue().to_json()))
    elif arguments[0] == "--live":
        print(json.dumps(_live(arguments[1])))
    else:
        raise SystemExit(f"unknown argument {arguments[0]!r}")


if __name__ == "__main__":
    _main(sys.argv[1:])
