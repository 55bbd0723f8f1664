"""The trials of a study: started, finished and restored so that a kill loses none.

Order of writes. A trial starts with one operation: RUNNING, with all its parameters. It is finished
by its record (fsynced, the truth), the constraints `built` and `accuracy`, one JSON attribute, and
the tell, last. `restore` completes whatever a kill left of that order, and calling it again changes
nothing. Optuna is imported when a study is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gpt_search.domain.errors import listing
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Phase
from gpt_search.domain.space import Codes
from gpt_search.store.database import reading
from gpt_search.store.database import study_names as study_names
from gpt_search.store.files import StorageError
from gpt_search.store.location import DEFAULT_STORAGE as DEFAULT_STORAGE
from gpt_search.store.location import Location
from gpt_search.store.records import Record, RecordFile
from gpt_search.store.stored import StoredStudy

if TYPE_CHECKING:
    import optuna


class Row(NamedTuple):
    """One finished trial. clock_s: seconds that the study had run when it finished."""

    trial: int
    codes: Codes
    until: Phase
    evaluation: Evaluation
    clock_s: float


class Adopted(NamedTuple):
    """One trial that an earlier run started and did not finish: to be run again under its own number."""

    trial: int
    codes: Codes
    until: Phase


@dataclass(frozen=True)
class Restored:
    """What a study holds. rows: finished trials in completion order. adopted: unfinished ones, by number.

    clock_s: seconds that the study had run when its last trial finished, 0 where none has.
    """

    rows: list[Row]
    adopted: list[Adopted]
    clock_s: float


class StudyStore(StoredStudy):
    """One study with its trials and records. Made by `create_or_resume`, `open` or `read`; a context manager."""

    def __init__(self, location: Location, name: str, storage: optuna.storages.BaseStorage, records: RecordFile | None):
        """Not called by users: the class methods do."""
        super().__init__(location, name, storage, records)
        self._running: dict[int, tuple[int, Codes, Phase]] = {}
        self._next: int | None = None
        self._finished = 0

    def restore(self) -> Restored:
        """All trials of the study; in a writable store, finishes those that a kill left between record and tell.

        Raises StorageError when records and trials do not belong together.
        """
        with reading(self.location):
            # Trials before records: of a study that is running, every finished trial then has its record.
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            records = self._records_by_trial(len(trials))
            rows: dict[int, Row] = {}
            adopted: list[Adopted] = []
            lost: list[int] = []
            for trial in trials:
                codes, until = self._read_trial(trial)
                record = records.get(trial.number)
                if record is not None:
                    if record.until is not until or record.route != str(self.space.route(codes)):
                        raise StorageError(
                            f"{self.record_path}: the record of trial {trial.number} is of another route than the "
                            f"trial in {self.location.shown}; database and records do not belong together"
                        )
                    rows[trial.number] = Row(trial.number, codes, until, record.evaluation, record.clock_s)
                elif trial.state.is_finished():
                    lost.append(trial.number)
                else:
                    adopted.append(Adopted(trial.number, codes, until))
            if lost:
                raise StorageError(
                    f"{self.record_path} lacks the records of finished trials ({listing(map(str, lost))}) of study "
                    f"{self.name!r}; restore that file from a copy, or start a new study"
                )
            if self.writable:
                for sequence, (number, record) in enumerate(records.items()):
                    if not trials[number].state.is_finished():
                        with self._writing():
                            self._complete(trials[number], record, sequence)
                ids = {t.number: t._trial_id for t in trials}
                self._running = {a.trial: (ids[a.trial], a.codes, a.until) for a in adopted}
                self._next, self._finished = len(trials), len(rows)
        in_order = [rows[number] for number in records]
        return Restored(in_order, adopted, max((r.clock_s for r in in_order), default=0.0))

    # -- trials -------------------------------------------------------------------------------------
    def start(self, trial: int, codes: Codes, until: Phase) -> None:
        """Stores a new trial as RUNNING, in one operation; does nothing for an adopted one.

        trial: the next number, 0 being the reference. Raises StorageError when it cannot be
        written, or when another program added trials; ValueError for a number out of turn.
        """
        self._check_writable()
        if self._next is None:
            self.restore()
        known = self._running.get(trial)
        if known is not None:
            if known[2] is not until or known[1].tolist() != codes.tolist():
                raise ValueError(f"trial {trial} is running with another route")
            return
        if trial != self._next:
            raise ValueError(f"trial {trial} is out of turn: the next one is {self._next}")
        template = self._parameters.running_trial(codes, until)
        with self._writing():
            trial_id = self._storage.create_new_trial(self._study_id, template)
            number = self._storage.get_trial_number_from_id(trial_id)
        if number != trial:
            raise StorageError(
                f"another program added trials to study {self.name!r} in {self.location.shown} (trial {trial} became "
                f"{number}); start a new study, and let nothing else write into it"
            )
        self._running[trial] = (trial_id, codes.copy(), until)
        self._next = trial + 1

    def finish(self, trial: int, evaluation: Evaluation, clock_s: float) -> None:
        """Stores the result of a running trial: the record first, the tell last.

        clock_s: seconds that the study has run. Raises StorageError when it cannot be written: the
        trial is then finished from its record, or run again, on resume. ValueError for a trial that
        is not running, and for an OK evaluation that was to be timed and has no latency.
        """
        from gpt_search.store.trials import state_and_value

        records = self._check_writable()
        if trial not in self._running:
            raise ValueError(f"trial {trial} is not running")
        trial_id, codes, until = self._running[trial]
        state_and_value(evaluation, until)  # refuses a contradiction before it becomes a record
        route = self.space.route(codes)
        record = Record(
            study=self.name,
            study_id=self._id,
            trial=trial,
            key={**self._key, "route": route.digest(self._defaults)},
            route=str(route),
            until=until,
            evaluation=evaluation,
            finished_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            clock_s=clock_s,
        )
        with self._writing():
            records.append(record)
            # From here on the trial is finished, whatever happens: a second record of it would be wrong.
            del self._running[trial]
            self._finished += 1
            self._complete(self._storage.get_trial(trial_id), record, self._finished - 1)

    def _complete(self, trial: optuna.trial.FrozenTrial, record: Record, sequence: int) -> None:
        """Writes what is missing of a recorded trial; every value follows from the record, so a kill is harmless."""
        from gpt_search.store.trials import SUMMARY, constraint_attributes, state_and_value, summary

        trial_id = trial._trial_id
        state, latency_ms = state_and_value(record.evaluation, record.until)
        with self._unsynced():
            for key, value in constraint_attributes(record.evaluation).items():
                if key not in trial.system_attrs:  # Optuna's rule: the first value of a constraint stays
                    self._storage.set_trial_system_attr(trial_id, key, value)
            if SUMMARY not in trial.user_attrs:
                self._storage.set_trial_user_attr(trial_id, SUMMARY, summary(record, sequence))
            self._storage.set_trial_state_values(trial_id, state, None if latency_ms is None else [latency_ms])

    # -- inside -------------------------------------------------------------------------------------
    @cached_property
    def _key(self) -> dict[str, str]:
        return {s: self.settings.digest_of(s) for s in ("workload", "database", "environment", "protocol")}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        database = self.settings.get("database")
        given = database.get("defaults", {}) if isinstance(database, Mapping) else {}
        return {**{d.name: d.values[d.default] for d in self.space.dimensions}, **given}

    def _records_by_trial(self, trials: int) -> dict[int, Record]:
        records: dict[int, Record] = {}
        for line in self._lines():
            if not isinstance(line, Record):
                continue
            if line.trial >= trials and not self.writable:
                continue  # started and finished since the trials were read
            if line.trial in records or not 0 <= line.trial < trials:
                what = "two records of" if line.trial in records else "a record of the unknown"
                raise StorageError(
                    f"{self.record_path} holds {what} trial {line.trial} of study {self.name!r} in "
                    f"{self.location.shown}; restore database and records from one copy"
                )
            records[line.trial] = line
        return records

    def _read_trial(self, trial: optuna.trial.FrozenTrial) -> tuple[Codes, Phase]:
        from optuna.trial import TrialState

        try:
            if trial.state is TrialState.WAITING:
                raise KeyError
            codes, until = self._parameters.read(trial.params, trial.user_attrs)
        except (KeyError, TypeError):
            raise StorageError(
                f"trial {trial.number} of study {self.name!r} in {self.location.shown} was added by another program; "
                "start a new study, and let nothing else write into it"
            ) from None
        return codes, until

    def _unsynced(self) -> AbstractContextManager[None]:
        # The record is on the disk, and everything else follows from it: it need not wait for the disk again.
        from gpt_search.store.journal import FastJournalStorage

        return self._storage.file.unsynced() if isinstance(self._storage, FastJournalStorage) else nullcontext()
