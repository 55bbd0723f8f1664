"""Exporting what a study found: the winner's engine or route, or the records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gpt_search.accuracy.gate import judge
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.route import Route
from gpt_search.execution.engines import ship_engine
from gpt_search.run.minimise import shipped_minimisation
from gpt_search.run.show import history_of, nominate
from gpt_search.run.tune import prepared_for
from gpt_search.store.files import write_new_file
from gpt_search.store.study import StudyStore

FORMS = ("engine", "route", "record")


@dataclass(frozen=True)
class Exported:
    """What was written. trial: of the exported route, None for records. note: what to know about it."""

    path: Path
    form: str
    bytes: int
    trial: int | None
    route: str | None
    note: str


def export(study: str, storage: str, form: str, out: Path) -> Exported:
    """Writes the study's engine, route or record to `out`, which must not exist.

    The route is the winner of the latest confirmation, minimised where it was, else the best nominated
    one. An engine is built anew, saved, loaded again in another process and gated there before it is written.
    Raises InputError for an unknown form or study, an existing file, or a study with nothing to export.
    """
    if form not in FORMS:
        raise InputError(f"--as {form}: unknown form{did_you_mean(form, FORMS)}; it is one of {', '.join(FORMS)}")
    if out.exists():
        raise InputError(f"{out} exists already; choose another name, or remove it")
    with StudyStore.read(storage, study) as store:
        if form == "record":
            # The file appears with the first line, and its last line may be in the writing.
            data = store.record_path.read_bytes() if store.record_path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                raise InputError(f"study {study!r} has no record yet; continue it with `{store.resume_command}`")
            write_new_file(out, whole)
            lines = whole.count(b"\n")
            return Exported(out, form, len(whole), None, None, f"{lines} records, one JSON object a line")
        trial, route, note = _winner(store)
        if form == "route":
            text = (route + "\n").encode()
            write_new_file(out, text)
            return Exported(out, form, len(text), trial, route, note)
        prepared = prepared_for(store)
        engine = ship_engine(prepared.evaluator_settings(), Route.parse(route))
        violation = judge(engine.losses, prepared.tolerances)
        if not violation < 0:
            beyond = f"by {violation:.3g}" if math.isfinite(violation) else "with outputs that are not finite"
            raise InputError(f"the rebuilt engine misses the tolerance {beyond}; nothing was written")
        write_new_file(out, engine.data)
        return Exported(out, form, len(engine.data), trial, route, f"{note}; reloaded and within tolerance")


def _winner(store: StudyStore) -> tuple[int, str, str]:
    """Trial, route and what it rests on."""
    for confirmation in reversed(store.confirmations()):
        if confirmation["winner"] is None or confirmation["verdict"] != "FASTER":
            reference = str(store.space.reference)
            return 0, reference, f"the reference route: {confirmation['reason']}"
        winner = confirmation["winner"]
        shorter = shipped_minimisation(store.minimisations(), confirmation)
        if shorter is not None:
            kept, all_ = len(shorter["kept"]), len(shorter["kept"]) + len(shorter["removed"])
            note = f"minimised to {kept} of its {all_} changes, and confirmed again"
            return int(winner["trial"]), str(shorter["route"]), note
        return int(winner["trial"]), str(winner["route"]), "confirmed"
    restored = store.restore()
    nominees = nominate(store, restored, history_of(store, restored), None, 1)
    if not nominees:
        raise InputError(f"study {store.name!r} has no feasible route yet; continue it with `{store.resume_command}`")
    best = nominees[0]
    if best.trial == 0:
        return 0, best.route, "the reference route: no route was timed faster"
    return best.trial, best.route, "not confirmed: run `gpt-search confirm` first"
