"""A study in its Optuna storage and record file: create, resume, restore, and finish trials so that a kill loses none.

Order of writes. A trial starts with one operation: RUNNING, with all its parameters. It is finished
by its record (fsynced, the truth), the constraints `built` and `accuracy`, one JSON attribute, and
the tell, last. `restore` completes whatever a kill left of that order, and calling it again changes
nothing. Optuna is imported when a study is opened.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.store.files import StorageError
from gpt_search.store.location import DEFAULT_STORAGE as DEFAULT_STORAGE
from gpt_search.store.location import Location, locate
from gpt_search.store.records import Confirmation, Record, RecordFile, read_records
from gpt_search.store.settings import StudySettings, differences

if TYPE_CHECKING:
    import optuna

    from gpt_search.store.trials import Parameters

_FORMAT = 1
_MARK = "gpt_search"
_SECTION = "gpt_search:"
_FACT = "gpt_search_fact:"
_MOST_DIFFERENCES = 8


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


def study_names(url: str | Path = DEFAULT_STORAGE) -> list[str]:
    """The names of all studies in a database, in order of creation. Raises InputError."""
    location = locate(url)
    location.check(must_exist=True)
    with _reading(location):
        return [s.study_name for s in _open_storage(location, writable=False).get_all_studies()]


class StudyStore:
    """One study: its settings, its trials, its records. Made by `create_or_resume`, `open` or `read`.

    settings, space: of the study, as stored. created: True when this call made the study. A context
    manager; `close` gives the study free for other processes.
    """

    def __init__(self, location: Location, name: str, storage: optuna.storages.BaseStorage, records: RecordFile | None):
        """Not called by users: the class methods do."""
        self.name = name
        self.location = location
        self.created = False
        self.settings = StudySettings({})
        self._storage = storage
        self._records = records
        self._study_id = -1
        self._id = ""
        self._running: dict[int, tuple[int, Codes, Phase]] = {}
        self._next: int | None = None
        self._finished = 0

    # -- opening ---------------------------------------------------------------------------------
    @classmethod
    def create_or_resume(cls, url: str | Path, name: str, settings: StudySettings, space: SearchSpace) -> StudyStore:
        """The study `name`, made with these settings, or continued when it has the same ones.

        Raises InputError listing the differences when it exists with other settings, and
        StorageError when another process runs it or the database cannot be used.
        """
        location = locate(url)
        path = location.record_file(name)
        location.check(must_exist=False)
        with _reading(location):
            storage = _open_storage(location, writable=True)
            self = cls(location, name, storage, RecordFile(path, name))
            try:
                self._load_or_create(settings.with_space(space))
            except BaseException:
                self.close()
                raise
        return self

    @classmethod
    def open(cls, url: str | Path, name: str) -> StudyStore:
        """An existing study, to be continued with its stored settings.

        Raises InputError for an unknown database or study (with the nearest name), and
        StorageError when another process runs it.
        """
        return cls._open(url, name, writable=True)

    @classmethod
    def read(cls, url: str | Path, name: str) -> StudyStore:
        """An existing study, to look at: no lock, nothing is written, also while another process runs it."""
        return cls._open(url, name, writable=False)

    @classmethod
    def _open(cls, url: str | Path, name: str, writable: bool) -> StudyStore:
        location = locate(url)
        path = location.record_file(name)
        location.check(must_exist=True)
        with _reading(location):
            storage = _open_storage(location, writable)
            if _find(storage, name) is None:
                names = [s.study_name for s in storage.get_all_studies()]
                known = f"it has: {listing(names)}" if names else "it has no studies"
                raise InputError(f"no study {name!r} in {location.shown}{did_you_mean(name, names)} ({known})")
            self = cls(location, name, storage, RecordFile(path, name) if writable else None)
            try:
                if not self._load():
                    raise InputError(
                        f"study {name!r} in {location.shown} has no settings of gpt-search: it was made by another "
                        "program, or killed while being made (then run the same `gpt-search tune` again)"
                    )
            except BaseException:
                self.close()
                raise
        return self

    def _load_or_create(self, wanted: StudySettings) -> None:
        if not self._load():
            self._create(wanted)
            return
        found = differences(self.settings, wanted)
        if found:
            more = len(found) - _MOST_DIFFERENCES
            text = "; ".join(found[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
            raise InputError(
                f"study {self.name!r} in {self.location.shown} exists with other settings: {text}. Choose another "
                f"--study name, or continue it as it is with `{self.resume_command}`"
            )

    def _load(self) -> bool:
        """Reads the settings; False when the study does not exist or was never completely made."""
        found = _find(self._storage, self.name)
        if found is None:
            return False
        attributes = self._storage.get_study_user_attrs(found)
        mark = attributes.get(_MARK)
        if mark is None:
            return False
        if mark["format"] != _FORMAT:
            raise StorageError(
                f"study {self.name!r} has format {mark['format']}, this version of gpt-search reads {_FORMAT}; "
                "use the version that made it"
            )
        self._study_id, self._id = found, mark["id"]
        self.settings = StudySettings({s: attributes.get(_SECTION + s) for s in mark["sections"]})
        if self.settings.digest != mark["digest"]:
            changed = [s for s, d in mark["digests"].items() if self.settings.digest_of(s) != d]
            raise StorageError(
                f"the settings of study {self.name!r} in {self.location.shown} were changed by another program"
                f" ({listing(changed) or 'a section without digest'}); restore them, or start a new study"
            )
        return True

    def _create(self, settings: StudySettings) -> None:
        from optuna.study import StudyDirection

        assert self._records is not None
        storage = self._storage
        found = _find(storage, self.name)
        if found is not None:
            # Killed while being made: no mark, no trials, nothing but our sections. Anything else is not ours.
            foreign = [a for a in storage.get_study_user_attrs(found) if not a.startswith(_SECTION)]
            directions = storage.get_study_directions(found)
            if foreign or directions != [StudyDirection.MINIMIZE] or storage.get_n_trials(found):
                raise InputError(
                    f"study {self.name!r} in {self.location.shown} exists and was made by another program; "
                    "choose another --study name"
                )
        if next(self._records.read(), None) is not None:
            raise StorageError(
                f"{self._records.path} holds records of another study named {self.name!r} (deleted, or in another "
                "database beside this one); move that file away, or choose another --study name"
            )
        with self._writing(), _reading(self.location):
            if found is None:
                found = storage.create_new_study([StudyDirection.MINIMIZE], self.name)
            self._study_id, self._id = found, uuid.uuid4().hex
            for section, value in settings.sections.items():
                storage.set_study_user_attr(found, _SECTION + section, value)
            # The mark is written last: a study without it was never completely made.
            mark = {
                "format": _FORMAT,
                "id": self._id,
                "digest": settings.digest,
                "sections": list(settings.sections),
                "digests": {s: settings.digest_of(s) for s in settings.sections},
            }
            storage.set_study_user_attr(found, _MARK, mark)
        self.settings = settings
        self.created = True

    # -- what is stored -----------------------------------------------------------------------------
    @property
    def space(self) -> SearchSpace:
        """The search space, from the stored settings."""
        return self._parameters.space

    @property
    def writable(self) -> bool:
        """True until `close`; False for `read`."""
        return self._records is not None

    @property
    def study(self) -> optuna.Study:
        """The Optuna study, for reading (`best_trial`, plots); trials are started and finished through the store."""
        import optuna

        with _reading(self.location):
            return optuna.load_study(
                study_name=self.name, storage=self._storage, sampler=optuna.samplers.RandomSampler()
            )

    @property
    def record_path(self) -> Path:
        """The study's record file."""
        return self.location.record_file(self.name)

    @property
    def resume_command(self) -> str:
        """The command line that continues this study."""
        return f"gpt-search resume {shlex.quote(self.name)} --storage {shlex.quote(self.location.shown)}"

    def attr(self, name: str, default: Any = None) -> Any:
        """A small fact that `set_attr` stored, or `default`."""
        return self._storage.get_study_user_attrs(self._study_id).get(_FACT + name, default)

    def set_attr(self, name: str, value: Any) -> None:
        """Stores a small JSON-like fact of the study (the reference latency). Raises StorageError."""
        self._check_writable()
        with self._writing():
            self._storage.set_study_user_attr(self._study_id, _FACT + name, value)

    def append_confirmation(self, data: Mapping[str, Any]) -> None:
        """Stores one JSON-like confirmation result as a record line. Raises StorageError."""
        records = self._check_writable()
        with self._writing():
            records.append(Confirmation(self.name, self._id, data))

    def confirmations(self) -> list[dict[str, Any]]:
        """All confirmation results, in writing order."""
        return [dict(line.data) for line in self._lines() if isinstance(line, Confirmation)]

    def restore(self) -> Restored:
        """All trials of the study; in a writable store, finishes those that a kill left between record and tell.

        Raises StorageError when records and trials do not belong together.
        """
        with _reading(self.location):
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
    def _parameters(self) -> Parameters:
        from gpt_search.store.trials import Parameters

        return Parameters(SearchSpace.from_spec(self.settings["space"]["spec"]))

    @cached_property
    def _key(self) -> dict[str, str]:
        return {s: self.settings.digest_of(s) for s in ("workload", "database", "environment", "protocol")}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        database = self.settings.get("database")
        given = database.get("defaults", {}) if isinstance(database, Mapping) else {}
        return {**{d.name: d.values[d.default] for d in self.space.dimensions}, **given}

    def _lines(self) -> Iterator[Record | Confirmation]:
        path = self.record_path
        if self._records is None and not path.exists():
            return
        for line in read_records(path):
            if line.study_id != self._id:
                raise StorageError(
                    f"{path} holds records of another study named {line.study!r} (deleted, or in another database "
                    "beside this one); database and records do not belong together"
                )
            yield line

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

    def _check_writable(self) -> RecordFile:
        if self._records is None:
            raise ValueError("this study is open for reading only, or closed")
        return self._records

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Adds to an error of the storage how to go on."""
        try:
            with _database_errors(self.location):
                yield
        except StorageError as error:
            raise StorageError(
                f"{error}. Nothing that was finished is lost: remove the cause, then `{self.resume_command}`"
            ) from None

    def discard(self) -> None:
        """Deletes the study and its records, and closes the store: for one that ended before its first trial.

        Raises ValueError when a trial other than the reference was started.
        """
        records = self._check_writable()
        if self._storage.get_n_trials(self._study_id) > 1:
            raise ValueError(f"study {self.name!r} has trials; it is not discarded")
        with self._writing():
            self._storage.delete_study(self._study_id)
            records.clear()
        self.close()

    def close(self) -> None:
        """Gives the study free for other processes; the store cannot be written afterwards."""
        if self._records is not None:
            self._records.close()
            self._records = None
        self._storage.remove_session()

    def __enter__(self) -> StudyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _find(storage: optuna.storages.BaseStorage, name: str) -> int | None:
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        return None


def _open_storage(location: Location, writable: bool) -> optuna.storages.BaseStorage:
    import optuna

    from gpt_search.store.journal import open_journal

    if location.url is None:
        assert location.path is not None
        return open_journal(location.path, writable)
    return optuna.storages.get_storage(location.url)


@contextmanager
def _reading(location: Location) -> Iterator[None]:
    """`_database_errors`, with Optuna's INFO messages kept off stderr."""
    from gpt_search.store.journal import quiet

    with _database_errors(location), quiet():
        yield


@contextmanager
def _database_errors(location: Location) -> Iterator[None]:
    """Turns Optuna's and the database's errors into one clear line."""
    from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UpdateFinishedTrialError:
        raise StorageError(f"another program finished a running trial in {location.shown}") from None
    except (StorageInternalError, SQLAlchemyError) as error:
        cause = str(error.__cause__ or error).splitlines()[0]
        raise StorageError(f"the study database {location.shown} cannot be used: {cause}") from None
