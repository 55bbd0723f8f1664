"""The noise floor: how much timings of one and the same route differ, and what that allows to detect.

`measure_noise` times the reference against itself on fresh builds and in fresh processes. A study
takes its `history.noise` from a floor that fits, else from the A/A rounds of its own trial 0, once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation, Round, note_counts
from gpt_search.domain.streams import seed_from
from gpt_search.execution.launcher import WorkerFailed
from gpt_search.execution.replicas import TimedPair, build_pair, time_pair
from gpt_search.execution.rounds import ReferenceFailed
from gpt_search.measure.intervals import Share, share
from gpt_search.measure.paired import Sections, latency_of, paired_estimate
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.statistic import MEDIAN, Statistic
from gpt_search.measure.variance import (
    Components,
    Costs,
    Plan,
    best_plan,
    detectable,
    rebuilds_for,
    variance_components,
)
from gpt_search.run.config import TuneConfig
from gpt_search.run.setup import Prepared, prepare
from gpt_search.store.floors import find_floor, save_floor
from gpt_search.store.location import locate
from gpt_search.store.study import StudyStore

DEFAULT_REBUILDS, DEFAULT_PROCESSES, DEFAULT_ROUNDS = 6, 2, 15
GAINS = (1.005, 1.01, 1.02)
"""Speed-ups for which the repeats are told."""
CONFIRMATIONS = (5, 7, 10, 20, 40)
"""Rebuilds of a confirmation for which the smallest detectable speed-up is told."""
MAX_PROCESSES = 8
FACT = "noise"
"""The study fact that holds what `history.noise` is, and where it is from."""

Step = Callable[[int, int, str], None]


@dataclass(frozen=True)
class NoiseFloor:
    """A measured floor.

    components: variances of the log-ratio of the reference to itself, at the three levels; a sample is the
    estimate from `min_rounds` rounds. noise: relative standard deviation of one value: one sample, in one
    process, of one build. costs: seconds; confirm_samples: that a confirmation takes of each build. fingerprints: of
    both builds of each pair. notes: what a reader must know about how the rounds were taken, and of how many processes.
    """

    model: str
    backend: str
    reference: str
    rebuilds: int
    processes: int
    rounds: int
    min_rounds: int
    confirm_samples: float
    components: Components
    costs: Costs
    reference_ms: float
    rounds_ms: tuple[tuple[tuple[Mapping[str, Any], ...], ...], ...]
    fingerprints: tuple[tuple[str | None, str | None], ...]
    measured_at: str
    notes: Mapping[str, int]

    @property
    def noise(self) -> float:
        """What a study is told as `history.noise`."""
        return self.components.total.deviation

    @property
    def split(self) -> Share:
        """How often the two builds of a pair had different fingerprints; of none tried where the backend gives none."""
        return _split(self.fingerprints)

    def confirmation(self, rebuilds: int) -> Plan:
        """What `confirm --rebuilds N` detects, and the seconds of its second stage."""
        found = detectable(self.components, rebuilds, 1, self.confirm_samples)
        one = self.costs.rebuild_s + self.costs.process_s + self.confirm_samples * self.costs.sample_s
        return Plan(rebuilds, 1, round(self.confirm_samples), rebuilds * one, found)

    def rebuilds_for(self, speedup: float) -> int | None:
        """The `--rebuilds` with which a confirmation detects a speed-up; None where no number does."""
        return rebuilds_for(self.components, speedup, 1, self.confirm_samples)

    def plan(self, seconds: float) -> Plan | None:
        """The best use of a budget, over rebuilds, processes and rounds; None where it is too small for 5 rebuilds."""
        return best_plan(self.components, self.costs, seconds, MAX_PROCESSES)

    def to_json(self) -> dict[str, Any]:
        """What is stored: `noise` and `components` are what a study reads; `rounds_ms` is what they come from."""
        return {
            "model": self.model,
            "backend": self.backend,
            "reference": self.reference,
            "measured_at": self.measured_at,
            "rebuilds": self.rebuilds,
            "processes": self.processes,
            "rounds": self.rounds,
            "min_rounds": self.min_rounds,
            "reference_ms": self.reference_ms,
            "noise": self.noise,
            "components": self.components.to_json(),
            "costs": {
                "rebuild_s": self.costs.rebuild_s,
                "process_s": self.costs.process_s,
                "sample_s": self.costs.sample_s,
            },
            "fingerprints": [list(pair) for pair in self.fingerprints],
            "notes": dict(self.notes),
            "split": self.split.to_json(),
            "rounds_ms": [[list(process) for process in rebuild] for rebuild in self.rounds_ms],
        }


def measure_noise(
    config: TuneConfig,
    rebuilds: int = DEFAULT_REBUILDS,
    processes: int = DEFAULT_PROCESSES,
    rounds: int = DEFAULT_ROUNDS,
    step: Step | None = None,
) -> tuple[NoiseFloor, Path]:
    """Measures the floor of a model's reference route and stores it beside the records; returns it and its file.

    config: as for `tune`; its strategy and budget are not used. rebuilds: pairs of fresh builds; processes: of
    each; rounds: in each process, a multiple of the protocol's `min_rounds`. step(done, total, what): called
    before each build pair and process.

    Raises InputError for numbers too small to tell the levels apart, and when the route cannot be built or run.
    """
    few = config.protocol.min_rounds
    if rebuilds < 2 or processes < 2:
        raise InputError(
            f"--rebuilds {rebuilds} --processes {processes}: both must be 2 or more, or what differs between them "
            "cannot be told apart"
        )
    if rounds < 2 * few or rounds % few:
        raise InputError(
            f"--rounds is {rounds}; it must be a multiple of {few}, at least {2 * few}: a sample is made of {few}"
        )
    prepared = prepare(config)
    timed, prints, build_s = _replicas(prepared, rebuilds, processes, rounds, step)
    all_processes = [process for rebuild in timed for process in rebuild]
    every_round = [r for process in all_processes for r in process.rounds]
    samples = [[_samples(p.rounds, few, prepared.statistic) for p in rebuild] for rebuild in timed]
    floor = NoiseFloor(
        model=str(prepared.workload.model),
        backend=prepared.backend,
        reference=str(prepared.space.reference),
        rebuilds=rebuilds,
        processes=processes,
        rounds=rounds,
        min_rounds=few,
        confirm_samples=prepared.protocol.build_rounds / few,
        components=variance_components(samples),
        costs=Costs(
            build_s,
            fmean(p.process_s for p in all_processes),
            few * fmean(p.round_s * len(p.rounds) / rounds for p in all_processes),
        ),
        reference_ms=latency_of(every_round, "reference", prepared.statistic),
        rounds_ms=tuple(tuple(tuple(map(_round_json, p.rounds)) for p in rebuild) for rebuild in timed),
        fingerprints=prints,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=note_counts(p.notes for p in all_processes),
    )
    return floor, save_floor(locate(config.storage), floor_key(prepared), floor.to_json())


def _replicas(
    prepared: Prepared, rebuilds: int, processes: int, rounds: int, step: Step | None
) -> tuple[list[list[TimedPair]], tuple[tuple[str | None, str | None], ...], float]:
    """The timed processes of each rebuild, the fingerprints of both builds, and the mean seconds of a rebuild."""
    # No round is saved: a process that looks precise early would otherwise have fewer.
    protocol = replace(prepared.protocol, min_rounds=rounds, max_rounds=rounds)
    settings, route = prepared.evaluator_settings(protocol), prepared.space.reference
    total, done, session = rebuilds * (1 + processes), 0, time.monotonic()
    found: list[list[TimedPair]] = []
    build_s, prints = [], []

    def tell(what: str) -> None:
        nonlocal done
        if step is not None:
            step(done, total, what)
        done += 1

    try:
        for i in range(rebuilds):
            tell(f"build {i + 1}")
            seeds = [seed_from(prepared.seed, "noise", i, side) for side in ("candidate", "reference")]
            pair = build_pair(settings, route, (seeds[0], seeds[1]))
            build_s.append(pair.seconds)
            prints.append(pair.fingerprints)
            found.append([])
            for j in range(processes):
                tell(f"build {i + 1}, process {j + 1}")
                seed = seed_from(prepared.seed, "noise", i, j)
                found[-1].append(time_pair(settings, pair, seed, lambda: time.monotonic() - session))
    except (WorkerFailed, ReferenceFailed) as failed:
        words = " ".join(failed.message.split())
        raise InputError(f"the reference route cannot be measured ({failed.outcome.name}): {words}") from None
    return found, tuple(prints), fmean(build_s)


def _samples(rounds: Sequence[Round], few: int, statistic: Statistic) -> list[float]:
    """Estimates from `few` consecutive sections each: what a study estimates a value by, at the least."""
    found: list[float] = []
    sections, chunk = Sections(statistic), list[Round]()
    for round_ in rounds:
        chunk.append(round_)
        if sections.add(round_) and len(sections.log_ratios) % few == 0:
            found.append(paired_estimate(chunk, statistic).log_ratio)
            chunk = []
    return found


def _round_json(found: Round) -> dict[str, Any]:
    return {
        "candidate_ms": median(found.candidate_ms),
        "reference_ms": median(found.reference_ms),
        "started_s": found.started_s,
        "reference_first": found.reference_first,
    }


# -- what a study is told ------------------------------------------------------------------------
def floor_key(prepared: Prepared) -> dict[str, str]:
    """What a floor holds for: workload, environment, protocol, and the reference route with its pinned knobs."""
    settings = prepared.settings()
    key = {section: settings.digest_of(section) for section in ("workload", "environment", "protocol")}
    route = prepared.space.reference.digest(prepared.description.database.defaults)
    return {**key, "reference": route}


def settle_noise(store: StudyStore, prepared: Prepared, reference: Evaluation, *, fresh: bool) -> float | None:
    """The study's `history.noise`: settled when trial 0 is known, stored once, and from then on the stored one.

    reference: trial 0, timed. fresh: whether no other trial has finished yet; a floor that was stored
    after a study began is not for that study. None where the A/A rounds cannot tell.
    """
    fact = store.attr(FACT)
    if fact is None:
        floor = find_floor(store.location, floor_key(prepared)) if fresh else None
        if floor is not None:
            fact = {
                "value": floor["noise"],
                "source": "floor",
                "measured_at": floor["measured_at"],
            }
            if "components" in floor:
                fact["between_builds"] = _between_builds(Components.from_json(floor["components"]))
            if "fingerprints" in floor:
                fact["fingerprints"] = floor["fingerprints"]
        else:
            fact = {
                "value": calibrated_noise(reference.rounds, prepared.protocol, prepared.statistic),
                "source": "calibration",
            }
        store.set_attr(FACT, fact)
    return stored_noise(store)


def _between_builds(components: Components) -> float:
    """Relative standard deviation between two builds of one engine, each in a process of its own."""
    return math.sqrt(components.rebuilds.variance + components.processes.variance)


def noise_between_builds(store: StudyStore) -> float:
    """What one engine's log-ratio differs by from build to build, each in its process: a standard deviation.

    From a stored floor its two upper levels; else all of `history.noise`, which is no less. 0 where nothing is known.
    """
    fact = store.attr(FACT) or {}
    found = fact.get("between_builds", fact.get("value"))
    return 0.0 if found is None else float(found)


def rebuilt_reference(store: StudyStore) -> Share | None:
    """How often the two builds of a pair of the noise floor had different fingerprints; None without a floor."""
    pairs = (store.attr(FACT) or {}).get("fingerprints")
    return None if pairs is None else _split(pairs)


def _split(pairs: Sequence[Sequence[str | None]]) -> Share:
    known = [pair for pair in pairs if None not in pair]
    return share(sum(one != other for one, other in known), len(known))


def stored_noise(store: StudyStore) -> float | None:
    """The study's `history.noise` as it was settled; None before that."""
    fact = store.attr(FACT)
    return None if fact is None or fact["value"] is None else float(fact["value"])


def calibrated_noise(rounds: Sequence[Round], protocol: Protocol, statistic: Statistic = MEDIAN) -> float | None:
    """The relative standard deviation of one value, from the A/A rounds of one pair of processes.

    The larger of two: the standard error that `min_rounds` rounds would have, and how far the
    reference lies off itself. The first knows nothing of builds and processes, and the second is one draw of
    everything; a floor measured with `gpt-search noise` knows both. None for fewer than two rounds.
    """
    if len(rounds) < 2:
        return None
    found = paired_estimate(rounds, statistic)
    return max(found.error * math.sqrt(found.rounds / protocol.min_rounds), abs(found.log_ratio))
