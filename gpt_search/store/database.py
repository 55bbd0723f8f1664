"""Opening a study database, and its errors in one clear line. Optuna is imported when a database is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_search.store.files import StorageError
from gpt_search.store.location import DEFAULT_STORAGE, Location, locate

if TYPE_CHECKING:
    import optuna


def study_names(url: str | Path = DEFAULT_STORAGE) -> list[str]:
    """The names of all studies in a database, in order of creation. Raises InputError."""
    location = locate(url)
    location.check(must_exist=True)
    with reading(location):
        return [s.study_name for s in open_storage(location, writable=False).get_all_studies()]


def find_study(storage: optuna.storages.BaseStorage, name: str) -> int | None:
    """The id of a study, or None when the database has none of that name."""
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        return None


def open_storage(location: Location, writable: bool) -> optuna.storages.BaseStorage:
    """Optuna's storage for a location; a journal that is opened for reading is left as it is, torn tail included."""
    import optuna

    from gpt_search.store.journal import open_journal

    if location.url is None:
        assert location.path is not None
        return open_journal(location.path, writable)
    return optuna.storages.get_storage(location.url)


@contextmanager
def reading(location: Location) -> Iterator[None]:
    """`database_errors`, with Optuna's INFO messages kept off stderr."""
    from gpt_search.store.journal import quiet

    with database_errors(location), quiet():
        yield


@contextmanager
def database_errors(location: Location) -> Iterator[None]:
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
