"""A study in its database and record file: its making, its settings, and small facts about it.

A study is marked as made by its last attribute, so one whose making was cut short is made again;
before it is taken away it is marked as discarded, so that this too can be cut short.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.space import SearchSpace
from gpt_search.store.database import database_errors, find_study, open_storage, reading
from gpt_search.store.engines import EngineFiles
from gpt_search.store.files import StorageError
from gpt_search.store.location import Location, locate
from gpt_search.store.records import Confirmation, Line, Minimisation, RecordFile, check_new_name, read_records
from gpt_search.store.settings import StudySettings, differences

if TYPE_CHECKING:
    import optuna

    from gpt_search.store.trials import Parameters

_FORMAT = 1
_MARK = "gpt_search"
_DISCARDED = "discarded"
_SECTION = "gpt_search:"
_FACT = "gpt_search_fact:"
_MOST_DIFFERENCES = 8


class StoredStudy:
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

    # -- opening ---------------------------------------------------------------------------------
    @classmethod
    def create_or_resume(cls, url: str | Path, name: str, settings: StudySettings, space: SearchSpace) -> Self:
        """The study `name`, made with these settings, or continued when it has the same ones.

        Raises InputError listing the differences when it exists with other settings, and
        StorageError when another process runs it or the database cannot be used.
        """
        location = locate(url)
        path = location.record_file(name)
        check_new_name(name)
        location.check(must_exist=False)
        with reading(location):
            storage = open_storage(location, writable=True)
            self = cls(location, name, storage, RecordFile(path, name))
            try:
                self._load_or_create(settings.with_space(space))
            except BaseException:
                self.close()
                raise
        return self

    @classmethod
    def open(cls, url: str | Path, name: str) -> Self:
        """An existing study, to be continued with its stored settings.

        Raises InputError for an unknown database or study (with the nearest name), and
        StorageError when another process runs it.
        """
        return cls._open(url, name, writable=True)

    @classmethod
    def read(cls, url: str | Path, name: str) -> Self:
        """An existing study, to look at: no lock, nothing is written, also while another process runs it."""
        return cls._open(url, name, writable=False)

    @classmethod
    def _open(cls, url: str | Path, name: str, writable: bool) -> Self:
        location = locate(url)
        path = location.record_file(name)
        location.check(must_exist=True)
        with reading(location):
            storage = open_storage(location, writable)
            if find_study(storage, name) is None:
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
        found = find_study(self._storage, self.name)
        if found is None:
            return False
        attributes = self._storage.get_study_user_attrs(found)
        mark = attributes.get(_MARK)
        if mark is None or mark == _DISCARDED:
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
        found = find_study(storage, self.name)
        if found is not None and storage.get_study_user_attrs(found).get(_MARK) == _DISCARDED:
            with self._writing(), reading(self.location):  # killed while being discarded
                self._remove(found, self._records)
            found = None
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
        with self._writing(), reading(self.location):
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
    def id(self) -> str:
        """The random id of this very study: what its records carry."""
        return self._id

    @property
    def writable(self) -> bool:
        """True until `close`; False for `read`."""
        return self._records is not None

    @property
    def study(self) -> optuna.Study:
        """The Optuna study, for reading (`best_trial`, plots); trials are started and finished through the store."""
        import optuna

        with reading(self.location):
            return optuna.load_study(
                study_name=self.name, storage=self._storage, sampler=optuna.samplers.RandomSampler()
            )

    @property
    def record_path(self) -> Path:
        """The study's record file."""
        return self.location.record_file(self.name)

    @property
    def engines(self) -> EngineFiles:
        """The engines that are kept beside the records."""
        return EngineFiles(self.record_path.with_suffix(".engines"))

    @property
    def resume_command(self) -> str:
        """The command line that continues this study."""
        return self.command("resume")

    def command(self, name: str) -> str:
        """The command line `gpt-search NAME STUDY --storage URL` of this study."""
        return f"gpt-search {name} {shlex.quote(self.name)} --storage {shlex.quote(self.location.shown)}"

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

    def append_minimisation(self, data: Mapping[str, Any]) -> None:
        """Stores one JSON-like minimisation result as a record line. Raises StorageError."""
        records = self._check_writable()
        with self._writing():
            records.append(Minimisation(self.name, self._id, data))

    def minimisations(self) -> list[dict[str, Any]]:
        """All minimisation results, in writing order."""
        return [dict(line.data) for line in self._lines() if isinstance(line, Minimisation)]

    # -- inside -------------------------------------------------------------------------------------
    @cached_property
    def _parameters(self) -> Parameters:
        from gpt_search.store.trials import Parameters

        return Parameters(SearchSpace.from_spec(self.settings["space"]["spec"]))

    def _lines(self) -> Iterator[Line]:
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

    def _check_writable(self) -> RecordFile:
        if self._records is None:
            raise ValueError("this study is open for reading only, or closed")
        return self._records

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Adds to an error of the storage how to go on."""
        try:
            with database_errors(self.location):
                yield
        except StorageError as error:
            if not self.settings.sections:  # still being made: `resume` would find no settings to go on with
                raise StorageError(f"{error}. Remove the cause, then run the same command again") from None
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
            # One write decides, and whatever a kill leaves of the rest is removed when the name is used again.
            self._storage.set_study_user_attr(self._study_id, _MARK, _DISCARDED)
            self._remove(self._study_id, records)
        self.close()

    def _remove(self, study_id: int, records: RecordFile) -> None:
        """Takes a discarded study away, the records first: without their study nobody would know whose they are."""
        records.clear()
        self._storage.delete_study(study_id)

    def close(self) -> None:
        """Gives the study free for other processes; the store cannot be written afterwards."""
        if self._records is not None:
            self._records.close()
            self._records = None
        self._storage.remove_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
