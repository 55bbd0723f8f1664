"""Reading a study: what was tried, what it nominates, what was confirmed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpt_search.accuracy.gate import Tolerances, Worst
from gpt_search.backends.base import Fingerprints
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import note_counts
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Phase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.measure.protocol import Protocol
from gpt_search.run.engines import EngineCounts, Engines, count_engines
from gpt_search.run.noise import FACT, noise_between_builds, rebuilt_reference, stored_noise
from gpt_search.run.result import Nominee, StudySummary, timing_json, worst_of
from gpt_search.search.discovery import load_strategy
from gpt_search.search.strategy import Strategy, pooled, recommend, recommended_rows
from gpt_search.store.settings import StudySettings
from gpt_search.store.study import Restored, Row, StudyStore

DEFAULT_TOP = 3


def show(study: str, storage: str, top: int = DEFAULT_TOP) -> StudySummary:
    """The summary of a stored study; needs no lock, so it may be called while the study runs.

    top: how many routes to nominate. Raises InputError for an unknown study or storage.
    """
    with StudyStore.read(storage, study) as store:
        return summarise(store, top=top)


class Rows(NamedTuple):
    """A study's finished trials in completion order, the history that a strategy would see, and the strategy's spec."""

    rows: list[Row]
    history: History
    strategy: str


def finished_rows(study: str, storage: str) -> Rows:
    """The finished trials of a stored study, which may be running. Raises InputError for an unknown one."""
    with StudyStore.read(storage, study) as store:
        restored = store.restore()
        return Rows(restored.rows, history_of(store, restored), str(store.settings["strategy"]["spec"]))


class StudyData(NamedTuple):
    """All that a report of a study says: its summary, settings by section, and finished trials in completion order.

    changes: of each trial, the route without what is at its default. losses: of each trial, the largest loss over its
    tolerance (1 is the limit), infinity where none can be given, NaN where not measured.
    """

    summary: StudySummary
    settings: Mapping[str, Any]
    rows: list[Row]
    history: History
    changes: list[str]
    losses: list[float]


def study_data(study: str, storage: str, top: int = DEFAULT_TOP) -> StudyData:
    """A stored study, which may be running, with all its trials. Raises InputError for an unknown one."""
    with StudyStore.read(storage, study) as store:
        restored = store.restore()
        defaults = dict(store.settings["database"]["defaults"])
        tolerances = Tolerances.from_json(store.settings["tolerance"])
        return StudyData(
            summarise(store, top=top),
            store.settings.sections,
            restored.rows,
            history_of(store, restored),
            [str(store.space.route(row.codes).changes(defaults)) for row in restored.rows],
            [_share(worst_of(row.evaluation, tolerances)) for row in restored.rows],
        )


def _share(found: Worst | None) -> float:
    return math.nan if found is None else found.share


def summarise(store: StudyStore, strategy: Strategy | None = None, top: int = DEFAULT_TOP) -> StudySummary:
    """The summary of an open study. strategy: whose nominations count; by default the stored one."""
    restored = store.restore()
    history = history_of(store, restored)
    settings = store.settings
    tolerances = Tolerances.from_json(settings["tolerance"])
    reference = restored.rows[0].evaluation if restored.rows else None
    counts = history.summary()
    if len(history):
        counts = {k: v - (k == restored.rows[0].evaluation.outcome.name) for k, v in counts.items()}
    counts_of_engines = engine_counts(store, restored)
    return StudySummary(
        study=store.name,
        storage=store.location.shown,
        model=settings["workload"]["model"],
        backend=settings["backend"],
        strategy=settings["strategy"]["spec"],
        seed=settings["seed"],
        knobs=len(store.space),
        routes=store.space.size,
        trials=max(0, len(history) - 1),
        outcomes={k: v for k, v in counts.items() if v},
        engines=counts_of_engines,
        reference_ms=None if reference is None else reference.latency_ms,
        reference_worst=None if reference is None else worst_of(reference, tolerances),
        nominees=tuple(nominate(store, restored, history, strategy, top)),
        clock_s=restored.clock_s,
        unfinished=len(restored.adopted),
        end=store.attr("end") if not restored.adopted else None,
        golden_kind=settings["golden"]["kind"],
        metric=tolerances.metric,
        timing=timing_json(_protocol(settings)),
        confirmations=tuple(store.confirmations()),
        noise=store.attr(FACT),
        minimisations=tuple(store.minimisations()),
        imported=(settings.get("imported") or {}).get("program"),
        noted=sum(bool(row.evaluation.notes) for row in restored.rows),
        notes=note_counts(row.evaluation.notes for row in restored.rows),
    )


def _protocol(settings: StudySettings) -> Protocol:
    """A tuning cache, which a study may be imported from, has one mean a route and no protocol."""
    return Protocol.for_timing("mean") if settings.get("imported") else Protocol.from_json(settings["protocol"])


def engine_counts(store: StudyStore, restored: Restored) -> EngineCounts:
    """Engines against routes, and how often the backend's fingerprints erred, as far as the study can tell."""
    kind = Fingerprints[store.settings["fingerprint"]]
    engines = Engines(Protocol(), kind, store.settings["seed"])
    if kind.equal_may_differ:
        weights = Workload.from_json(store.settings["workload"]).weights
        engines = Engines(Protocol.from_json(store.settings["protocol"]), kind, store.settings["seed"], weights)
        engines.between = noise_between_builds(store)
        for row in restored.rows:
            engines.learn(row.trial, row.codes, row.evaluation)
    codes = {row.trial: row.codes.tobytes() for row in restored.rows}
    rebuilds: dict[bytes, list[str]] = {}
    for confirmation in store.confirmations():
        built = [(int(trial), found) for trial, found in confirmation["stage_1"].items()]
        if confirmation["winner"] is not None:
            built.append((confirmation["winner"]["trial"], confirmation["stage_2"]))
        for trial, found in built:
            prints = [e["fingerprint"] for e in found if e["fingerprint"] is not None]
            rebuilds.setdefault(codes[trial], []).extend(prints)
    return count_engines(restored.rows, engines, rebuilds, rebuilt_reference(store))


def history_of(store: StudyStore, restored: Restored) -> History:
    """The history that a strategy would see of a stored study."""
    history = History(store.space, stored_noise(store))
    for row in restored.rows:
        history.append(row.trial, row.codes, row.evaluation.observation(), row.until)
    return history


def nominate(
    store: StudyStore, restored: Restored, history: History, strategy: Strategy | None, top: int
) -> list[Nominee]:
    """The best `top` routes, best first, one per engine; the reference among them where it belongs.

    Equal fingerprints count as one engine only where they prove it.
    strategy: whose `recommend` counts; by default the stored one, or the common rule when that
    cannot be loaded any more (a file that is gone).
    """
    if not len(history) or math.isnan(float(history.value[0])):
        return []
    rows = _recommended(store, history, strategy)
    tolerances = Tolerances.from_json(store.settings["tolerance"])
    reference_ms = float(history.value[0])
    names = [p["name"] for p in store.settings["workload"].get("points", ())]
    defaults = dict(store.settings["database"]["defaults"])
    found: list[Nominee] = []
    proven = Fingerprints[store.settings["fingerprint"]].equal_is_same
    engines: set[str] = set()
    timings = {int(history.route[row]): (value, error) for row, value, error in zip(*pooled(history), strict=True)}
    for row in rows:
        evaluation, codes = restored.rows[row].evaluation, restored.rows[row].codes
        if restored.rows[row].until is not Phase.TIME or evaluation.latency_ms is None:
            continue
        if proven and evaluation.fingerprint is not None:
            # A route that gives the reference's engine is no news, whatever its own timing says.
            same = evaluation.fingerprint == restored.rows[0].evaluation.fingerprint
            if evaluation.fingerprint in engines or (same and history.route[row] != history.route[0]):
                continue
            engines.add(evaluation.fingerprint)
        latency_ms, ratio_error = evaluation.latency_ms, evaluation.log_ratio_error
        if (pool := timings.get(int(history.route[row]))) is not None and pool[0] != latency_ms:
            # Timed more than once, or its engine was: all samples count, as they did when it was recommended.
            latency_ms, ratio_error = float(pool[0]), float(pool[1] / pool[0])
        route: Route = store.space.route(codes)
        found.append(
            Nominee(
                trial=restored.rows[row].trial,
                route=str(route),
                changes=str(route.changes(defaults)),
                latency_ms=latency_ms,
                ratio=latency_ms / reference_ms,
                ratio_error=ratio_error if ratio_error is not None else math.nan,
                worst=worst_of(evaluation, tolerances),
                fingerprint=evaluation.fingerprint,
                notes=evaluation.notes,
                points={p: math.exp(x) for p, x in zip(names, evaluation.point_log_ratios, strict=False)},
            )
        )
        if len(found) == top:
            break
    return found


def _recommended(store: StudyStore, history: History, strategy: Strategy | None) -> list[int]:
    # All of them: several routes may stand for one engine, and only one of those is nominated.
    if strategy is None:
        try:
            strategy = load_strategy(store.settings["strategy"]["spec"], store.settings["strategy"].get("path"))
        except InputError:
            return recommend(history, len(history))
    return recommended_rows(strategy, history, len(history))
