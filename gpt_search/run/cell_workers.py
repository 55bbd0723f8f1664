"""Processes that run cells: a cell that crashes its process takes no other one along."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from gpt_search.domain.errors import InputError, StrategyError
from gpt_search.run.arena import Arena, open_task
from gpt_search.run.cell import run_cell
from gpt_search.run.experiment import Coordinates, Experiment
from gpt_search.store.cells import write_cell
from gpt_search.store.experiment import ExperimentFolder
from gpt_search.store.files import StorageError

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Finished(NamedTuple):
    """One cell that ended. error: why it failed, None where it is written. wall_s: how long it took."""

    cell: Coordinates
    error: str | None
    wall_s: float


def finish_cell(experiment: Experiment, folder: ExperimentFolder, where: Coordinates, arena: Arena) -> Finished:
    """Runs a cell and writes its file. Raises StorageError: then no other cell could be written either."""
    began = time.perf_counter()
    try:
        cell, spent = run_cell(experiment, where, arena)
    except StorageError:
        raise
    except (StrategyError, InputError) as error:
        return Finished(where, str(error), time.perf_counter() - began)
    except Exception as error:
        words = " ".join(str(error).split()) or "no message"
        return Finished(where, f"{type(error).__name__}: {words}", time.perf_counter() - began)
    wall_s = time.perf_counter() - began
    write_cell(folder.cells, cell, {"wall_s": wall_s, **spent})
    return Finished(where, None, wall_s)


def run_in_processes(
    experiment: Experiment, folder: ExperimentFolder, cells: Iterator[Coordinates], jobs: int
) -> Generator[Finished]:
    """Runs cells in `jobs` processes and gives each as it ends; `cells` is asked for the next one when one is free.

    What is running when the iterator is closed, or an exception passes, is killed: a cell is written whole or not.
    Raises StorageError when a cell cannot be written.
    """
    workers: list[_Worker] = []
    try:
        with _one_thread_each():
            for _ in range(jobs):
                where = next(cells, None)
                if where is None:
                    break
                workers.append(_Worker(experiment, folder))
                workers[-1].start(where)
        while busy := [w for w in workers if w.cell is not None]:
            ready = wait([w.connection for w in busy])
            for worker in [w for w in busy if w.connection in ready]:
                yield worker.result()
                where = next(cells, None)
                if where is None:
                    continue
                if not worker.alive:
                    workers.remove(worker)
                    worker.kill()
                    with _one_thread_each():
                        worker = _Worker(experiment, folder)
                    workers.append(worker)
                worker.start(where)
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    def __init__(self, experiment: Experiment, folder: ExperimentFolder) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, experiment, folder), daemon=True)
        with _interrupts_held():
            self._process.start()
        theirs.close()
        self.cell: Coordinates | None = None
        self.alive = True
        self._began = 0.0

    def start(self, cell: Coordinates) -> None:
        self.cell, self._began = cell, time.perf_counter()
        with suppress(OSError):  # it died; `result` says so
            self.connection.send(cell)

    def result(self) -> Finished:
        """What became of the cell; the connection has something to say. Raises StorageError."""
        assert self.cell is not None
        cell, self.cell = self.cell, None
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self._process.join()
            code = self._process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return Finished(cell, f"the process that ran it ended ({how})", time.perf_counter() - self._began)
        if isinstance(found, str):
            raise StorageError(found)
        assert isinstance(found, Finished)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _work(connection: Connection, experiment: Experiment, folder: ExperimentFolder) -> None:
    """The life of a worker: cells in, results out, until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout = sys.stderr  # what a strategy prints in here would lie between the lines, or the JSON, of the parent
    arenas: dict[str, Arena] = {}
    while True:
        try:
            where = connection.recv()
        except (EOFError, OSError):
            return
        answer: Finished | str
        try:
            if where.task not in arenas:
                arenas[where.task] = open_task(experiment.task(where.task))
            answer = finish_cell(experiment, folder, where, arenas[where.task])
        except StorageError as error:
            answer = str(error)
        except InputError as error:
            answer = Finished(where, str(error), 0.0)
        try:
            connection.send(answer)
        except OSError:
            return


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started in here is not reached by Ctrl-C before it ignores it: a mask is inherited.

    In this process an interrupt waits meanwhile.
    """
    resource_tracker.ensure_running()  # its own start would end the hold
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that are started in here use one thread each for linear algebra, as a study has one core."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    for name, value in before.items():
        if value is None:
            os.environ[name] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
