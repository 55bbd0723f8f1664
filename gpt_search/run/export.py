"""Exporting what a study found: the winner's engine or route, or the records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from gpt_search.accuracy.gate import judge
from gpt_search.backends.registry import native_engine
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.route import Route
from gpt_search.execution.engines import ship_engine
from gpt_search.run.export_cache import export_cache, left_out, torch_tensorrt_setting, trtexec_command
from gpt_search.run.import_cache import SECTION, refuse_imported
from gpt_search.run.minimise import shipped_minimisation
from gpt_search.run.setup import Prepared
from gpt_search.run.ship import DEFAULT_PROCESSES, Confirmed, Step, ship_build
from gpt_search.run.show import history_of, nominate
from gpt_search.run.tune import prepared_for
from gpt_search.store.files import write_new_file
from gpt_search.store.study import StudyStore

FORMS = ("engine", "route", "record", "trtexec", "torch-tensorrt", "trtexec-cache")
PRINTED = ("trtexec", "torch-tensorrt")
"""Forms that are a line of text: what applies the winner's route in another program."""


@dataclass(frozen=True)
class Exported:
    """What was written. trial: of the exported route, None for records. note: what to know about it.

    facts: what the file beside an engine says, empty for the other forms. warnings: to be read before it is used.
    """

    path: Path
    form: str
    bytes: int
    trial: int | None
    route: str | None
    note: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def sidecar(out: Path) -> Path:
    """The JSON file that says what an exported engine is."""
    return out.with_name(f"{out.name}.json")


def export(
    study: str,
    storage: str,
    form: str,
    out: Path,
    processes: int = DEFAULT_PROCESSES,
    step: Step | None = None,
    continuable: bool = False,
) -> Exported:
    """Writes the study's engine, route or record to `out`, which must not exist.

    The route is the winner of the latest confirmation, minimised where it was; where none is confirmed to be
    faster, the reference; before any confirmation, the best nominated one. The engine is one of the builds that
    confirmed it (`run.ship`), in the compiler's own form, with its facts in `sidecar(out)`; the reference's is
    built anew, loaded in another process and gated there. processes, step: of an engine, as `ship_build` takes
    them. continuable: of a "trtexec-cache", as `export_cache` takes it. The forms `PRINTED` are for `applied`.

    Raises InputError for an unknown form or study, an existing file, a study with nothing to export, an engine
    before a confirmation, and as `ship_build`.
    """
    _check_form(form)
    if form in PRINTED:
        raise InputError(f"--as {form} is printed, not written: leave OUT away")
    if processes < 2:
        raise InputError(f"--processes {processes}: the file's own interval needs 2 or more")
    _check_free(out, form)
    with StudyStore.read(storage, study) as store:
        if form == "trtexec-cache":
            size, note = export_cache(store, out, continuable)
            return Exported(out, form, size, None, None, note)
        if form == "record":
            # The file appears with the first line, and its last line may be in the writing.
            data = store.record_path.read_bytes() if store.record_path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                raise InputError(f"study {study!r} has no record yet; continue it with `{store.resume_command}`")
            write_new_file(out, whole)
            lines = whole.count(b"\n")
            return Exported(out, form, len(whole), None, None, f"{lines} records, one JSON object a line")
        if form == "route":
            trial, route, note = _winner(store)
            text = (route + "\n").encode()
            write_new_file(out, text)
            return Exported(out, form, len(text), trial, route, note)
        return _engine(store, out, processes, step)


def applied(study: str, storage: str, form: str) -> tuple[str, int, str]:
    """What applies the winner's route in another program: the text, the trial, and what it rests on.

    form: "trtexec", for a command, or "torch-tensorrt", for an argument of `torch_tensorrt.compile`. The route is that
    of `export`. Raises InputError for another form, and for a study whose knobs are not TensorRT's.
    """
    _check_form(form)
    if form not in PRINTED:
        raise InputError(f"--as {form} is written to a file: name it")
    with StudyStore.read(storage, study) as store:
        backend = store.settings["backend"]
        if backend != "tensorrt":
            raise InputError(
                f"--as {form}: study {study!r} is of the backend {backend!r}, whose knobs TensorRT does not have"
            )
        trial, route, note = _winner(store)
        text = trtexec_command if form == "trtexec" else torch_tensorrt_setting
        return text(store, Route.parse(route)), trial, note + left_out(store)


def _check_free(out: Path, form: str) -> None:
    """Before anything is built. Raises InputError where `out` cannot become a new file."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; give the name of the file to write")
    for path in (out, sidecar(out)) if form == "engine" else (out,):
        if path.exists():
            raise InputError(f"{path} exists already; choose another name, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.parent}")


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise InputError(f"--as {form}: unknown form{did_you_mean(form, FORMS)}; it is one of {', '.join(FORMS)}")


def _engine(store: StudyStore, out: Path, processes: int, step: Step | None) -> Exported:
    refuse_imported(store.settings, store.name)
    confirmations = store.confirmations()
    if not confirmations:
        raise InputError(
            f"study {store.name!r} has no confirmed build to ship; run `{store.command('confirm')}` first (--as route "
            "writes the best route that it nominates)"
        )
    prepared = prepared_for(store)
    warnings: tuple[str, ...] = ()
    source = _confirmed(store, confirmations[-1])
    if source is None:
        trial, route, note = _winner(store)
        data, facts = _default(prepared, route), {"trial": trial, "route": route, "note": note}
        note += "; built anew, reloaded and within tolerance"
    else:
        trial, route = source.trial, source.route
        shipped = ship_build(store, prepared, source, processes, step)
        data, facts, warnings = shipped.data, dict(shipped.facts), shipped.warnings
        note = f"{source.note}; build {facts['build']} of {facts['builds']}, reloaded and within tolerance"
    data = native_engine(prepared.backend, data)
    facts = {
        "study": store.name,
        "storage": store.location.shown,
        "file": out.name,
        "options": dict(prepared.options),
        **facts,
        "sha256": sha256(data).hexdigest(),
        "bytes": len(data),
    }
    write_new_file(out, data)
    try:
        write_new_file(sidecar(out), json.dumps(facts, indent=1, allow_nan=False).encode() + b"\n")
    except BaseException:
        out.unlink(missing_ok=True)
        raise
    return Exported(out, "engine", len(data), trial, route, note, facts, warnings)


def _default(prepared: Prepared, route: str) -> bytes:
    """An engine of the reference route."""
    engine = ship_engine(prepared.evaluator_settings(), Route.parse(route))
    violation = judge(engine.losses, prepared.tolerances)
    if not violation < 0:
        beyond = f"by {violation:.3g}" if math.isfinite(violation) else "with outputs that are not finite"
        raise InputError(f"the rebuilt engine misses the tolerance {beyond}; nothing was written")
    return engine.data


def _confirmed(store: StudyStore, confirmation: Mapping[str, Any]) -> Confirmed | None:
    """What is to be shipped; None where that is the default."""
    if confirmation["winner"] is None or confirmation["verdict"] != "FASTER":
        return None
    trial, number = int(confirmation["winner"]["trial"]), int(confirmation["number"])
    shorter = shipped_minimisation(store.minimisations(), confirmation)
    if shorter is not None:
        kept, all_ = len(shorter["kept"]), len(shorter["kept"]) + len(shorter["removed"])
        note = f"minimised to {kept} of its {all_} changes, and confirmed again"
        return Confirmed(trial, str(shorter["route"]), number, shorter["speedup"], shorter["headline"], note)
    route = str(confirmation["winner"]["route"])
    return Confirmed(trial, route, number, confirmation["speedup"], confirmation["stage_2"], "confirmed")


def _winner(store: StudyStore) -> tuple[int, str, str]:
    """Trial, route and what it rests on."""
    confirmations = store.confirmations()
    if confirmations:
        found = _confirmed(store, confirmations[-1])
        if found is not None:
            return found.trial, found.route, found.note
        reason = confirmations[-1]["reason"]
        return 0, str(store.space.reference), f"the reference route: {reason}, so keep the default"
    restored = store.restore()
    nominees = nominate(store, restored, history_of(store, restored), None, 1)
    if not nominees:
        raise InputError(f"study {store.name!r} has no feasible route yet; continue it with `{store.resume_command}`")
    best = nominees[0]
    if best.trial == 0:
        return 0, best.route, "the reference route: no route was timed faster"
    how = "run `gpt-search confirm` first" if store.settings.get(SECTION) is None else "its study was imported"
    return best.trial, best.route, f"not confirmed: {how}"
