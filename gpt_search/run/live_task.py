"""A live task of an experiment: routes are built and timed on this machine, once for all studies.

Every route that some study asks for is built, gated and timed once, in a fixed number of rounds, and becomes a record
of the task's pool, which has the form of a table that is still being recorded. Studies replay the pool (`run.replay`):
each draws its own rounds, takes its own racing decisions, and is charged what the record cost. Half of the rounds are
kept for the truth. So there are as many independent builds behind all studies together as the pool has, which every
output says: two studies that like the same route like the same build of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.backends.registry import absolute_name
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.expression import parse_expression
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes
from gpt_search.domain.streams import seed_from
from gpt_search.execution.describe import describe_backend
from gpt_search.execution.evaluator import Earlier, Reuse
from gpt_search.execution.rounds import ReferenceFailed
from gpt_search.measure.protocol import Protocol
from gpt_search.run.config import TuneConfig
from gpt_search.run.experiment import TaskPlan
from gpt_search.run.experiment_file import LiveTask
from gpt_search.run.record import RecordConfig, table_settings
from gpt_search.run.replay import REFUSE, Replay, ReplayStudy
from gpt_search.run.setup import check, prepare, why_not_run
from gpt_search.search.simulate import Measure
from gpt_search.search.strategy import Strategy
from gpt_search.store.records import safe_name
from gpt_search.store.table_part import TablePart
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import load_table
from gpt_search.workloads.catalogue import public_model, write_workload


def tune_config(plan: TaskPlan, folder: Path) -> TuneConfig:
    """What `gpt-search tune` would be told. folder: where a generated model and golden data go."""
    section = plan.section
    assert isinstance(section, LiveTask)
    shapes: dict[str, tuple[int, ...]] = {}
    if section.public is not None:
        workload = public_model(section.public)
        model, shapes = workload.model, dict(workload.shapes)
    elif section.workload is not None:
        model = folder / f"{safe_name(plan.name)}.onnx"
        workload = write_workload(section.workload, model, **section.workload_options)
        shapes = dict(workload.shapes)
    else:
        assert section.model is not None
        model = plan.folder / section.model
    shapes |= {name: tuple(shape) for name, shape in section.shapes.items()}
    return TuneConfig(
        model=model,
        knobs=section.knobs,
        strategy="random",
        budget=Budget(trials=1),
        backend=section.backend,
        metric=section.metric,
        tolerances=section.tolerances,
        reference=section.reference,
        golden=None if section.golden is None else plan.folder / section.golden,
        shapes=shapes,
        storage=str(folder / f"{safe_name(plan.name)}.journal"),
        timeout_build_s=section.timeout_build_s,
        timeout_run_s=section.timeout_run_s,
        memory_limit_gb=section.memory_limit_gb,
        options=section.options,
        protocol=Protocol.from_json(section.protocol),
    )


def check_live(plan: TaskPlan) -> str | None:
    """Looks at a live task without running or writing a model: knobs, shapes, tolerances.

    Returns why it cannot run on this machine, in a sentence, or None where it can. Raises InputError for what is wrong
    with it on any machine, as far as this one has the compiler to tell.
    """
    section = plan.section
    assert isinstance(section, LiveTask)
    backend = absolute_name(section.backend)
    try:
        description = describe_backend(backend, section.options or None)
    except InputError as why:
        return str(why)
    if section.workload is not None:  # a model that is yet to be written, which may take a gigabyte
        parse_expression(section.knobs, description.database)
    else:
        check(tune_config(plan, Path.cwd()), description)
    return why_not_run(description, backend)


class LivePool:
    """A live task with its pool, for one process at a time; a context manager. See the module."""

    def __init__(self, plan: TaskPlan, folder: Path, said: Callable[[str], None] | None = None) -> None:
        """Prepares the model and measures the reference, unless the pool has it.

        folder: of the pool's files. said: told what is being built. Raises InputError for anything the user must
        mend, also where the pool was made with other settings.
        """
        section = plan.section
        assert isinstance(section, LiveTask)
        folder.mkdir(exist_ok=True)
        self._said, self._name = said, plan.name
        config = tune_config(plan, folder)
        self._prepared = prepare(config)
        self.space = self._prepared.space
        protocol = self._prepared.protocol
        rounds = replace(protocol, min_rounds=section.pool_rounds, max_rounds=section.pool_rounds)
        record = RecordConfig(config, folder / f"{safe_name(plan.name)}.jsonl", rounds=section.pool_rounds)
        with contextlib.ExitStack() as stack:
            self._part = stack.enter_context(TablePart(record.out, table_settings(self._prepared, record)))
            self._evaluator = stack.enter_context(self._prepared.evaluator(rounds))
            self._known: dict[str, tuple[int, Evaluation]] = {}
            self._shared = self._prepared.description.fingerprint.equal_is_same
            self._load()
            self._close = stack.pop_all()
        # From the reference's rounds alone, so that it is the same whatever else the pool holds.
        self.noise: float | None = self.replay.noise
        self.label = f"live: {self._prepared.workload.model.name} on {section.backend}; studies share builds and rounds"
        self.seconds_per_build: float | None = section.seconds_per_build

    def __enter__(self) -> LivePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its workers; what was measured stays."""
        self._close.close()

    # -- what a cell needs ---------------------------------------------------------------------
    def study(self, seed: int) -> Measure:
        """A replay that has missing routes measured."""
        return LiveStudy(self, seed).measure

    def strategy(self, strategy: Strategy) -> Strategy:
        """Itself: every route can be measured."""
        return strategy

    def truth(self, codes: Codes) -> NDArray[np.float64]:
        """From the half of the rounds that no study draws from."""
        return self.replay.true_log_ratio(codes)

    def facts(self) -> Mapping[str, Any]:
        """See `Cell.facts`. The best is not known: statistics take the best that any study tried."""
        return {
            "best": None,
            "best_known": False,
            "floor": self.replay.floor,
            "reference_ms": self.replay.reference_ms,
            "n_routes": self.space.size,
            "builds_behind": self.replay.builds_behind,
            "live": True,
        }

    # -- the pool ------------------------------------------------------------------------------
    def measured(self, codes: Codes) -> None:
        """Makes sure that the pool has the route."""
        if self.replay.table.find(codes) is None:
            self._append(codes, self._measure(codes))

    def _load(self) -> None:
        if self._part.table.find(self.space.default) is None:
            self._reference()
        self._refresh()
        table = self.replay.table
        self._evaluator.reference_latency_ms = table.reference_ms
        for record in range(len(table.columns.outcome)):
            if table.columns.source[record] == record:
                self._learn(record, table.evaluation(record))

    def _refresh(self) -> None:
        """A replay of what the pool holds now; what a study is charged does not depend on what was added."""
        self.replay = Replay(load_table(self._part.path, unfinished=True), REFUSE)
        started = self.replay.table.columns.cost.get("start", np.zeros(1))[0]
        self.replay.start_s = 0.0 if math.isnan(started) else float(started)

    def _reference(self) -> None:
        self._tell("reference")
        found = self._evaluator.evaluate_reference(seed=seed_from("pool", "reference"))
        if found.outcome is not Outcome.OK:
            self._part.remove()
            words = " ".join((found.message or found.outcome.explanation).split())
            raise InputError(f"the reference route cannot be measured ({found.outcome.name}): {words}")
        self._part.append(TableRecord(tuple(map(int, self.space.default)), 0, found))

    def _measure(self, codes: Codes) -> TableRecord:
        route = self.space.route(codes)
        self._tell(f"build {self._part.records}")
        taken: list[int] = []

        def known(fingerprint: str) -> Earlier | None:
            if not self._shared or fingerprint not in self._known:
                return None
            number, found = self._known[fingerprint]
            taken[:] = [number]
            return Earlier(number, found, Reuse.TAKE)

        seed = seed_from("pool", *map(int, codes))
        try:
            found = self._evaluator.evaluate(route, Phase.TIME, None, known, seed, self._part.records)
        except ReferenceFailed as failed:
            words = " ".join(failed.message.split())
            raise InputError(f"the reference engine failed twice in a row ({failed.outcome.name}): {words}") from None
        own = replace(found, rounds=()) if taken else found
        return TableRecord(tuple(map(int, codes)), 0, own, taken[0] if taken else None)

    def _append(self, codes: Codes, record: TableRecord) -> None:
        number = self._part.append(record)
        if record.taken_from is None:
            self._learn(number, record.evaluation)
        self._refresh()

    def _learn(self, number: int, found: Evaluation) -> None:
        if found.fingerprint is not None:
            self._known.setdefault(found.fingerprint, (number, found))

    def _tell(self, what: str) -> None:
        if self._said is not None:
            self._said(f"{self._name}: {what}")


class LiveStudy(ReplayStudy):
    """One study on a pool: routes that it lacks are measured first."""

    def __init__(self, pool: LivePool, seed: int) -> None:
        """pool: shared with the other studies. seed: of the study."""
        super().__init__(pool.replay, seed)
        self._pool = pool

    def measure(self, codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        """As `ReplayStudy.measure`. Raises InputError where the reference fails, StorageError where nothing is kept."""
        self._pool.measured(codes)
        self.replay = self._pool.replay
        return super().measure(codes, rng, until)
