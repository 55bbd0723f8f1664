"""Recording: a space, or a sample of it, measured into a table that stands in for the compiler afterwards.

First every route once: built, gated, and timed in a fixed number of rounds, so that no route knows of another. Where
equal fingerprints prove equal engines, an engine is timed once, and its other routes are taken from that. Then a few
routes again, spread over the range of latencies, each pass with workers and a reference build of its own: that tells
what builds differ by. Any number of routes are built at a time, one is timed.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpt_search.accuracy.gate import reference_misses
from gpt_search.backends.registry import file_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.execution.evaluator import Earlier, Evaluator, EvaluatorClosed, Known, Reuse, nothing_known
from gpt_search.execution.rounds import ReferenceFailed
from gpt_search.run.config import TuneConfig
from gpt_search.run.setup import Prepared, prepare
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_file import MIN_ROUNDS
from gpt_search.store.table_part import TablePart, refuse_other
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import Table, load_table

MOST_ROUTES = 1 << 20
"""Routes up to which a space may be recorded as a whole."""
DEFAULT_ROUNDS, DEFAULT_BUILDS, DEFAULT_SEVERAL = 40, 3, 12

Progress = Callable[[int, int, str], None]
"""Called with routes and further builds done, their total, and what was done last."""


@dataclass(frozen=True)
class RecordConfig:
    """One recording.

    tune: model, knobs, tolerance and the like; its strategy, budget, storage and study are not used. out: the table.
    routes: how many, drawn without replacement with the seed; None for all. rounds: of each timing. builds: of each
    of `several` routes.
    """

    tune: TuneConfig
    out: Path
    routes: int | None = None
    rounds: int = DEFAULT_ROUNDS
    builds: int = DEFAULT_BUILDS
    several: int = DEFAULT_SEVERAL

    def __post_init__(self) -> None:
        """Raises InputError for numbers that no recording could have."""
        for flag, value, low in (
            ("--routes", self.routes, 2),
            ("--rounds", self.rounds, 2 * MIN_ROUNDS),
            ("--builds", self.builds, 3),
            ("--several", self.several, 2),
        ):
            if value is not None and value < low:
                raise InputError(f"{flag} is {value}; it must be {low} or more")
        if not self.out.parent.is_dir():
            raise InputError(f"the folder {self.out.parent} does not exist; make it first")
        if not os.access(self.out.parent, os.W_OK | os.X_OK):  # else it is the scratch folder's study that fails
            raise InputError(f"the folder {self.out.parent} may not be written in; give --out another path")
        if self.out.is_dir():
            raise InputError(f"{self.out} is a folder; give the name of the table to write")

    @property
    def scratch(self) -> Path:
        """Where golden data lie while the recording lasts."""
        return self.out.with_name(self.out.name + ".records")


def record(config: RecordConfig, progress: Progress | None = None, note: Callable[[str], None] | None = None) -> Table:
    """Records a table, or goes on with one that was stopped; returns it. A whole one is returned as it is.

    Raises InputError for anything the user must mend, also for a table or a partial file of another recording;
    KeyboardInterrupt leaves a partial file that the same call goes on with.
    """
    prepared = prepare(replace(config.tune, storage=str(config.scratch.with_suffix(".golden")), strategy="random"))
    if note is not None:
        for text in prepared.space.notes:
            note(text)
    space = prepared.space
    if config.routes is not None and config.routes > space.size:
        raise InputError(f"--routes {config.routes}: the space has {space.size:,} routes; give `all`")
    if config.routes is None and space.size > MOST_ROUTES:
        raise InputError(
            f"the space has {space.size:,} routes, more than the {MOST_ROUTES:,} that are recorded as a whole; give "
            "--routes a number, or narrow --knobs"
        )
    settings = table_settings(prepared, config)
    if config.out.exists():
        table = load_table(config.out)
        refuse_other(config.out, table.settings, settings)
        shutil.rmtree(config.scratch, ignore_errors=True)
        return table
    with TablePart(config.out, settings) as part:
        recording = _Recording(prepared, config, part, progress)
        try:
            recording.run()
        except ReferenceFailed as failed:
            words = " ".join(failed.message.split())
            raise InputError(
                f"the reference engine failed twice in a row ({failed.outcome.name}): {words}. Nothing that was "
                "recorded is lost: remove the cause, and repeat the command"
            ) from None
        table = part.finish()
    shutil.rmtree(config.scratch, ignore_errors=True)
    return table


def table_settings(prepared: Prepared, config: RecordConfig) -> StudySettings:
    """The facts that all records share: those of a study, without its strategy and without this machine's paths."""
    sections: dict[str, Any] = {
        name: value for name, value in prepared.settings().sections.items() if name not in ("strategy", "seed")
    }
    workload = {**sections["workload"], "model": prepared.workload.model.name}
    sections["workload"] = workload | {"external": [p.name for p in prepared.workload.external]}
    sections["golden"] = {k: v for k, v in sections["golden"].items() if k != "path"}
    file = file_of(prepared.backend)
    if file is not None:
        sections["backend"] = prepared.backend.replace(str(file), Path(file).name)
    sections["weights"] = list(prepared.workload.weights)
    sections["recording"] = {
        "routes": config.routes or "all",
        "seed": prepared.seed,
        "rounds": config.rounds,
        "builds": config.builds,
        "several": config.several,
    }
    return StudySettings(sections).with_space(prepared.space)


def routes_to_record(space: SearchSpace, routes: int | None, seed: int) -> list[Codes]:
    """The reference, then the others in random order, so that drift falls on no part of the space."""
    rng = Streams(seed_from(seed, "record")).trial(0)
    count = (space.size if routes is None else routes) - 1
    if space.size <= MOST_ROUTES:
        numbers = np.delete(np.arange(space.size), space.index_of(space.default))
        return [space.default, *(space.codes_at(int(i)) for i in rng.permutation(numbers)[:count])]
    found = {space.default.tobytes(): space.default}
    while len(found) <= count:
        codes = space.sample(rng)
        found.setdefault(codes.tobytes(), codes)
    return list(found.values())


class _Identity:
    """Which engines were timed, for any number of builders: one that is being timed is waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[str, tuple[int, Evaluation]] = {}
        self._busy: set[str] = set()
        self._closed = False

    def learn(self, number: int, found: Evaluation) -> None:
        """A record with an engine of its own, or the failure to time one."""
        with self._changed:
            if found.fingerprint is not None:
                self._busy.discard(found.fingerprint)
                self._known.setdefault(found.fingerprint, (number, found))
            self._changed.notify_all()

    def ask(self, job: _Job) -> Known:
        """What the evaluator asks; the job is told what its route is taken from."""

        def known(fingerprint: str) -> Earlier | None:
            with self._changed:
                while fingerprint in self._busy and not self._closed:
                    self._changed.wait()
                if self._closed:
                    raise EvaluatorClosed
                if fingerprint not in self._known:
                    self._busy.add(fingerprint)
                    return None
                job.taken_from, found = self._known[fingerprint]
                return Earlier(job.taken_from, found, Reuse.TAKE)

        return known

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass
class _Job:
    """One build of one route. number: in the order of its pass."""

    codes: Codes
    build: int
    number: int
    taken_from: int | None = None


class _Recording:
    """One run of a recording, on top of what earlier ones left."""

    def __init__(self, prepared: Prepared, config: RecordConfig, part: TablePart, progress: Progress | None) -> None:
        self._prepared, self._config, self._part, self._progress = prepared, config, part, progress
        self._protocol = replace(prepared.protocol, min_rounds=config.rounds, max_rounds=config.rounds)
        table = part.table
        self._session = 1 + max((int(b.get("session", 1)) for b in table.columns.bodies), default=0)
        self._done = {(c.tobytes(), int(b)) for c, b in zip(table.columns.codes, table.columns.build, strict=True)}
        self._shared = prepared.description.fingerprint.equal_is_same
        # What the choice of the routes to build again rests on: of each timed record of the first pass its estimate.
        self._estimates: list[tuple[float, Codes]] = []
        self._routes = routes_to_record(prepared.space, config.routes, prepared.seed)
        self._total = len(self._routes) + (config.builds - 1) * config.several
        self._finished = len(table.row)

    def run(self) -> None:
        table, identity = self._part.table, _Identity()
        for record in range(len(table.row)):
            if table.columns.build[record] == 0 and table.columns.source[record] == record:
                found = table.evaluation(record)
                identity.learn(record, found)
                self._remember(table.columns.codes[record], found)
        with self._evaluator() as evaluator:
            if self._finished:
                evaluator.reference_latency_ms = table.reference_ms
            else:
                self._record_reference(evaluator, identity)
            jobs = [_Job(codes, 0, i) for i, codes in enumerate(self._routes)]
            self._pass(evaluator, jobs, identity)
            latency_ms = evaluator.reference_latency_ms
        again = self._again()
        self._total = len(self._routes) + (self._config.builds - 1) * len(again)
        for build in range(1, self._config.builds):
            rng = Streams(seed_from(self._prepared.seed, "record", build)).trial(0)
            jobs = [_Job(again[i], build, n) for n, i in enumerate(rng.permutation(len(again)))]
            if all((job.codes.tobytes(), build) in self._done for job in jobs):
                continue
            with self._evaluator() as evaluator:
                evaluator.reference_latency_ms = latency_ms
                self._pass(evaluator, jobs, None)

    def _evaluator(self) -> Evaluator:
        return self._prepared.evaluator(self._protocol)

    def _seed(self, job: _Job) -> int:
        return seed_from(self._prepared.seed, "record", job.build, job.number)

    def _record_reference(self, evaluator: Evaluator, identity: _Identity) -> None:
        job = _Job(self._prepared.space.default, 0, 0)
        found = evaluator.evaluate_reference(seed=self._seed(job))
        if found.outcome is not Outcome.OK:
            self._part.remove()
            shutil.rmtree(self._config.scratch, ignore_errors=True)
            message = None
            if found.outcome is Outcome.ACCURACY:
                message = reference_misses(found.losses, self._prepared.tolerances)
            words = " ".join((found.message or found.outcome.explanation).split())
            raise InputError(message or f"the reference route cannot be measured ({found.outcome.name}): {words}")
        self._append(job, found, identity)

    def _pass(self, evaluator: Evaluator, jobs: Iterable[_Job], identity: _Identity | None) -> None:
        """Evaluates what is not done yet, with as many builders as were asked for. identity: None for no sharing."""
        todo = iter([job for job in jobs if (job.codes.tobytes(), job.build) not in self._done])
        shared = identity if self._shared else None

        def evaluate(job: _Job) -> Evaluation:
            known = nothing_known if shared is None else shared.ask(job)
            route = self._prepared.space.route(job.codes)
            return evaluator.evaluate(route, Phase.TIME, None, known, self._seed(job))

        builders = self._config.tune.builders
        if builders <= 1:
            for job in todo:
                self._append(job, evaluate(job), identity)
            return
        pool = ThreadPoolExecutor(builders, thread_name_prefix="builder")
        running: dict[Future[Evaluation], _Job] = {}
        try:
            while True:
                for job in _up_to(todo, builders - len(running)):
                    running[pool.submit(evaluate, job)] = job
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    self._append(running.pop(future), future.result(), identity)
        finally:
            if identity is not None:
                identity.close()
            pool.shutdown(wait=False, cancel_futures=True)

    def _append(self, job: _Job, found: Evaluation, identity: _Identity | None) -> None:
        own = found if job.taken_from is None else replace(found, rounds=())
        codes = tuple(map(int, job.codes))
        number = self._part.append(TableRecord(codes, job.build, own, job.taken_from, self._session))
        self._done.add((job.codes.tobytes(), job.build))
        self._finished += 1
        if identity is not None and job.taken_from is None:
            identity.learn(number, found)
            self._remember(job.codes, found)
        if self._progress is not None:
            said = "the same engine" if job.taken_from is not None else found.outcome.name.lower().replace("_", " ")
            self._progress(self._finished, self._total, said)

    def _remember(self, codes: Codes, found: Evaluation) -> None:
        if found.outcome is Outcome.OK and found.rounds and (codes != self._prepared.space.default).any():
            self._estimates.append((_log_ratio(self._part.table, found), codes))

    def _again(self) -> list[Codes]:
        """The routes to build again: the reference, and one drawn from each of several parts, by latency."""
        found = sorted(self._estimates, key=lambda e: (e[0], e[1].tobytes()))
        rng = Streams(seed_from(self._prepared.seed, "again")).trial(0)
        strata = np.array_split(np.arange(len(found)), min(self._config.several - 1, len(found)) or 1)
        return [self._prepared.space.default, *(found[int(rng.choice(s))][1] for s in strata if len(s))]


def _log_ratio(table: Table, found: Evaluation) -> float:
    from gpt_search.measure.paired import section_log_ratios

    return table.estimate(np.array(section_log_ratios(found.rounds, table.statistic))).log_ratio


def _up_to(jobs: Iterator[_Job], count: int) -> list[_Job]:
    return [job for _, job in zip(range(count), jobs, strict=False)]
