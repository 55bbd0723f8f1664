"""Re-judging: a study's records under other tolerances, or another statistic, as a new study; nothing is built.

Losses of every metric, raw samples and fingerprints are in the records, so feasibility and ranking follow
from them. What the records do not hold is said to be unknown, and what would have to be built to know:

- a route that missed the old tolerance and meets the new one was never timed;
- a route whose timing was stopped early, because it was clearly worse than one that the new
  tolerance refuses (or only by the old statistic), is not clearly worse than what is left;
- a route with too few samples for the new statistic (`rejudge_timing`);
- a route whose losses were never recorded cannot be judged.

In the new study such a route keeps what is known of it (a trial that went as far as its losses, or
its short timing), and one trial for each unknown engine waits, unfinished, to be run first by `resume`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpt_search.accuracy.gate import Tolerances, check_outputs, judge, parse_tolerances, reference_misses
from gpt_search.backends.base import Fingerprints
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.workload import Workload
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Decision, Field, decide
from gpt_search.run.import_cache import refuse_imported
from gpt_search.run.rejudge_timing import retimed, retimed_protocol
from gpt_search.run.result import StudySummary
from gpt_search.run.show import summarise
from gpt_search.store.study import Restored, Row, StudyStore

FACT = "rejudged"
"""The fact of the new study that says where it comes from."""


class Missing(enum.Enum):
    """What the records do not hold of a route."""

    TIMING = "it missed the old tolerance, so it was never timed"
    ROUNDS = "its timing was stopped early, and as judged now it is not clearly slower"
    LOSSES = "its losses were not recorded"
    SAMPLES = "its samples are too few for the new statistic"

    @property
    def explanation(self) -> str:
        """One line for reports."""
        return self.value


@dataclass(frozen=True)
class Unknown:
    """A route whose place is unknown. same_as: the trial of an equal engine that is built for it, None for its own."""

    trial: int
    changes: str
    missing: Missing
    same_as: int | None

    def to_json(self) -> dict[str, Any]:
        """A JSON-like form."""
        return {
            "trial": self.trial,
            "changes": self.changes,
            "missing": self.missing.name,
            "reason": self.missing.explanation,
            "builds": 1 if self.same_as is None else 0,
            "same_as": self.same_as,
        }


@dataclass(frozen=True)
class Rejudged:
    """The new study. summary: of it. became_feasible, became_infeasible: trial numbers, in order.

    unknown: what the records do not tell, in trial order. builds: how many would tell.
    """

    source: str
    old: Tolerances
    new: Tolerances
    old_timing: str
    new_timing: str
    summary: StudySummary
    became_feasible: tuple[int, ...]
    became_infeasible: tuple[int, ...]
    unknown: tuple[Unknown, ...]

    @property
    def builds(self) -> int:
        """Builds that are needed before nothing is unknown: one for each unknown engine."""
        return sum(u.same_as is None for u in self.unknown)


def rejudge(
    study: str,
    storage: str,
    tolerances: Sequence[str] = (),
    metric: str | None = None,
    study_out: str | None = None,
    timing: str | None = None,
) -> Rejudged:
    """Makes a new study from the records of another one, judged by other tolerances or timed by another statistic.

    tolerances: texts as in `--tolerance`, none for the study's own. metric: by default the study's own. timing:
    the statistic, likewise. study_out: name of the new study, by default STUDY-METRIC-TOLERANCE, and the timing where
    it is another. Nothing is built. Trials keep their numbers, routes and samples; unfinished
    ones stay unfinished. Confirmations are not taken over: they are of the old study's winner.

    Raises InputError for an unknown study, one without a reference, tolerances that the reference misses
    or that name unknown outputs, a statistic that the samples do not tell, and a new study that exists already.
    """
    with StudyStore.read(storage, study) as source:
        restored = source.restore()
        if not restored.rows or restored.rows[0].evaluation.latency_ms is None:
            raise InputError(f"study {study!r} has no timed reference yet; continue it with `{source.resume_command}`")
        old = Tolerances.from_json(source.settings["tolerance"])
        refuse_imported(source.settings, study)
        same = not tolerances and metric in (None, old.metric)
        new = old if same else _tolerances(tolerances, metric or old.metric, restored)
        before_timing = Protocol.from_json(source.settings["protocol"])
        protocol = retimed_protocol(before_timing, timing or before_timing.timing)
        if new == old and protocol == before_timing:
            raise InputError(
                f"study {study!r} is judged by exactly this already; give another --tolerance, --metric or --timing"
            )
        weights = Workload.from_json(source.settings["workload"]).weights
        rows, missing = _judged(restored, new, protocol, weights, retime=protocol != before_timing)
        settings = source.settings.with_section("tolerance", new.to_json())
        settings = settings.with_section("protocol", protocol.to_json())
        facts = {name: source.attr(name) for name in ("budget", "builders")}
        origin = {"study": study, "study_id": source.id, "trials": len(rows), "tolerance": old.to_json()}
        tail = "" if protocol == before_timing else f"-{protocol.timing}"
        if tail:
            origin["timing"] = before_timing.timing
        name = study_out or (f"{study}{tail}" if new == old else f"{study}-{new.metric}-{new.default:g}{tail}")
        defaults = dict(source.settings["database"]["defaults"])
        space = source.space
    texts = {r.trial: str(space.route(r.codes).changes(defaults)) for r in rows}
    unknown = _unknown(rows, missing, texts, Fingerprints[settings["fingerprint"]])
    if name == study:
        raise InputError(f"--study-out {name!r} is the study itself; choose another name")
    with StudyStore.create_or_resume(storage, name, settings, space) as target:
        if not target.created and target.attr(FACT) != origin | {"complete": False}:
            raise InputError(f"study {name!r} in {target.location.shown} exists already; choose another --study-out")
        target.set_attr(FACT, origin | {"complete": False})  # one that was stopped here is gone on with
        for fact, value in facts.items():
            if value is not None:
                target.set_attr(fact, value)
        _write(target, rows, restored, [u.trial for u in unknown if u.same_as is None])
        target.set_attr(FACT, origin | {"complete": True})
        summary = summarise(target)
    before = {r.trial: r.evaluation.outcome for r in restored.rows}
    after = {r.trial: r.evaluation.outcome for r in rows}
    changed = [t for t in sorted(before) if before[t] is not after[t]]
    return Rejudged(
        source=study,
        old=old,
        new=new,
        old_timing=before_timing.timing,
        new_timing=protocol.timing,
        summary=summary,
        became_feasible=tuple(t for t in changed if after[t] is Outcome.OK),
        became_infeasible=tuple(t for t in changed if after[t] is Outcome.ACCURACY),
        unknown=unknown,
    )


def _tolerances(texts: Sequence[str], metric: str, restored: Restored) -> Tolerances:
    new = parse_tolerances(texts, metric)
    reference = restored.rows[0].evaluation
    check_outputs(new, [*reference.losses[0]])
    try:
        misses = reference_misses(reference.losses, new)
    except KeyError:
        raise InputError(
            f"the records hold no {metric} losses; the study has to be run again to judge by them"
        ) from None
    if misses is not None:
        raise InputError(misses)
    return new


def _judged(
    restored: Restored, new: Tolerances, protocol: Protocol, weights: tuple[float, ...], *, retime: bool
) -> tuple[list[Row], dict[int, Missing]]:
    """The rows under the new tolerances and statistic, and what is missing, by trial."""
    rows: list[Row] = []
    missing: dict[int, Missing] = {}
    timed: list[Row] = restored.rows
    lacking: frozenset[int] = frozenset()
    if retime:
        timed, lacking = retimed(timed, protocol, weights)
    for row in timed:
        judged, lacks = _judged_row(row, new)
        rows.append(judged)
        if lacks is not None:
            missing[row.trial] = lacks
        elif row.trial in lacking and judged.evaluation.outcome is Outcome.OK:
            missing[row.trial] = Missing.SAMPLES
    race = Field(protocol, weights)
    longest: dict[int, Evaluation] = {}  # of each sequence of samples, by the trial that began it
    for row in rows:
        found = row.evaluation
        if found.own_rounds:  # an engine's samples count once, for the trial that began them
            race.learn(_began(row), found.rounds, feasible=found.outcome is Outcome.OK)
            longest[_began(row)] = found
    for row in rows:
        began = _began(row)
        engine = longest.get(began)
        if row.evaluation.outcome is not Outcome.OK or engine is None or not engine.raced:
            continue
        if decide(engine.rounds, race.best, protocol, began, weights) is not Decision.CLEARLY_WORSE:
            missing[row.trial] = Missing.ROUNDS
    return rows, missing


def _began(row: Row) -> int:
    """The trial that began the samples of this one."""
    return row.trial if row.evaluation.timed_as is None else row.evaluation.timed_as


def _judged_row(row: Row, new: Tolerances) -> tuple[Row, Missing | None]:
    found = row.evaluation
    if found.outcome not in (Outcome.OK, Outcome.ACCURACY):
        # It failed in another way; where that was after the gate, its losses are judged anew, to no other outcome.
        if found.losses:
            return row._replace(evaluation=replace(found, violation=judge(found.losses, new))), None
        return row, None
    if not found.losses:
        if found.outcome is Outcome.OK and row.until is Phase.BUILD:
            return row, None  # asked for a build only: nothing is missing
        # It was built; whether it meets a tolerance is not known.
        known = Evaluation(
            Outcome.OK,
            Phase.BUILD,
            fingerprint=found.fingerprint,
            memory_bytes=found.memory_bytes,
            cost_s=found.cost_s,
        )
        return row._replace(evaluation=known, until=Phase.BUILD), Missing.LOSSES
    violation = judge(found.losses, new)
    outcome = Outcome.OK if violation < 0 else Outcome.ACCURACY
    judged = replace(found, outcome=outcome, violation=violation)
    if outcome is Outcome.OK and row.until is Phase.TIME and found.latency_ms is None:
        return row._replace(evaluation=replace(judged, until=Phase.GATE), until=Phase.GATE), Missing.TIMING
    return row._replace(evaluation=judged), None


def _unknown(
    rows: Sequence[Row], missing: Mapping[int, Missing], changes: Mapping[int, str], kind: Fingerprints
) -> tuple[Unknown, ...]:
    """The routes to build; those of one engine need one build, where equal fingerprints prove that it is one."""
    engines: dict[str, int] = {}
    found = []
    for row in sorted(rows, key=lambda r: r.trial):
        if row.trial not in missing:
            continue
        same_as = None
        if row.evaluation.fingerprint is not None and kind.equal_is_same:
            first = engines.setdefault(row.evaluation.fingerprint, row.trial)
            same_as = None if first == row.trial else first
        found.append(Unknown(row.trial, changes[row.trial], missing[row.trial], same_as))
    return tuple(found)


def _write(target: StudyStore, rows: Sequence[Row], restored: Restored, to_build: Sequence[int]) -> None:
    """Trials with their old numbers, finished in the old order; then one unfinished trial for each engine to build."""
    by_number = {r.trial: (r.codes, r.until) for r in rows} | {a.trial: (a.codes, a.until) for a in restored.adopted}
    earlier = target.restore()
    finished = {r.trial for r in earlier.rows}
    started = finished | {a.trial for a in earlier.adopted}
    waiting = {len(by_number) + i: (by_number[trial][0], Phase.TIME) for i, trial in enumerate(to_build)}
    for number, (codes, until) in sorted((by_number | waiting).items()):
        if number not in started:
            target.start(number, codes, until)
    for row in rows:
        if row.trial not in finished:
            target.finish(row.trial, row.evaluation, row.clock_s)


def tolerance_text(tolerances: Tolerances) -> str:
    """`cos 0.001, logits 0.01`: metric and limit, and those of single outputs."""
    more = "".join(f", {output} {limit:g}" for output, limit in tolerances.by_output.items())
    return f"{tolerances.metric} {tolerances.default:g}{more}"
