"""Running an experiment: the cells that are not finished yet, in parallel processes, into a folder."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_search import __version__
from gpt_search.run.arena import check_task, named
from gpt_search.run.cell_workers import Finished, finish_cell, run_in_processes
from gpt_search.run.compare_plan import Pace
from gpt_search.run.experiment import Coordinates, Experiment, TaskPlan
from gpt_search.run.experiment_file import LiveTask
from gpt_search.store.experiment import ExperimentFolder, open_folder

if TYPE_CHECKING:
    from gpt_search.run.live_task import LivePool


@dataclass(frozen=True)
class CompareStatus:
    """After each cell. done: finished cells, earlier runs' included; left_s: seconds to go, None while unknown."""

    last: Finished
    done: int
    failed: int
    total: int
    left_s: float | None


@dataclass(frozen=True)
class CompareResult:
    """What a run left. earlier: cells that were finished before; ran: that this run finished; left: not started,
    because the wall-clock cap was reached; failures: cells that failed, with the reason."""

    folder: Path
    total: int
    earlier: int
    ran: int
    left: int
    failures: tuple[Finished, ...]
    wall_s: float


def compare(
    experiment: Experiment,
    out: str | Path,
    jobs: int | None = None,
    progress: Callable[[CompareStatus], None] | None = None,
    started: Callable[[int, int], None] | None = None,
    building: Callable[[str], None] | None = None,
) -> CompareResult:
    """Runs the cells that the folder lacks. A cell that fails is recorded, and the others go on.

    jobs: processes; by default as many as there are cores. progress: called after every cell. started: called once
    with the number of cells in all, and of those that were finished before. building: told what a live task builds.

    Cells of live tasks come last, one at a time, so that nothing else runs while they are timed.

    Raises InputError when the folder is of another experiment; StorageError when it cannot be written. Whatever
    interrupts it, finished cells stay.
    """
    began = time.monotonic()
    for task in experiment.tasks:
        check_task(task)
    about = {
        "name": experiment.name,
        "axis": experiment.axis,
        "gpt_search": __version__,
        "statistics": experiment.statistics.model_dump(),
        "tested": list(experiment.tested),
        "strategies": [strategy.name for strategy in experiment.strategies],
        "tasks": [task.name for task in experiment.tasks],
        "wall_clock_s": experiment.wall_clock_s,
    }
    with open_folder(out, experiment.facts, about) as folder:
        cells = list(experiment.cells())
        waiting = [c for c in cells if not folder.has(c.task, c.strategy, c.seed)]
        earlier = len(cells) - len(waiting)
        if started is not None:
            started(len(cells), earlier)
        jobs = min(jobs or os.cpu_count() or 1, max(1, len(waiting)))
        pace, ran, failures = Pace(jobs), 0, list[Finished]()
        remaining: dict[tuple[str, str], int] = defaultdict(int)
        for cell in waiting:
            remaining[cell.task, cell.strategy] += 1
        limit_s = math.inf if experiment.wall_clock_s is None else experiment.wall_clock_s
        given = _Given(waiting, began + limit_s)
        with closing(_all_cells(experiment, folder, given, jobs, building)) as results:
            for found in results:
                remaining[found.cell.task, found.cell.strategy] -= 1
                if found.error is None:
                    ran += 1
                    pace.learn(found.cell, found.wall_s)
                else:
                    failures.append(found)
                    folder.fail(*_key(found.cell), found.error)
                if progress is not None:
                    left_s = pace.left(remaining)
                    if left_s is not None:
                        left_s = min(left_s, max(0.0, began + limit_s - time.monotonic()))
                    progress(CompareStatus(found, earlier + ran, len(failures), len(cells), left_s))
    return CompareResult(Path(out), len(cells), earlier, ran, given.left, tuple(failures), time.monotonic() - began)


class _Given:
    """The cells that are left, handed out until the time is up."""

    def __init__(self, cells: list[Coordinates], until: float) -> None:
        """until: on the monotonic clock."""
        self.cells, self.until = cells, until
        self.left = len(cells)

    def of(self, tasks: set[str]) -> Iterator[Coordinates]:
        """Those of some tasks, in order."""
        for cell in self.cells:
            if cell.task in tasks:
                if time.monotonic() >= self.until:
                    return
                self.left -= 1
                yield cell


def _all_cells(
    experiment: Experiment,
    folder: ExperimentFolder,
    given: _Given,
    jobs: int,
    building: Callable[[str], None] | None,
) -> Generator[Finished]:
    """Simulated tasks in processes; then live ones, which have the machine to themselves."""
    live = [task for task in experiment.tasks if isinstance(task.section, LiveTask)]
    simulated = {task.name for task in experiment.tasks} - {task.name for task in live}
    waiting = [task for task in live if any(cell.task == task.name for cell in given.cells)]
    for task in waiting:  # golden data and reference: what is wrong with them must not show after hours of other cells
        _pool(task, folder, building).close()
    yield from run_in_processes(experiment, folder, given.of(simulated), jobs)
    for task in waiting:
        if time.monotonic() >= given.until:
            break
        with _pool(task, folder, building) as pool:
            for cell in given.of({task.name}):
                yield finish_cell(experiment, folder, cell, pool)


def _pool(task: TaskPlan, folder: ExperimentFolder, building: Callable[[str], None] | None) -> LivePool:
    from gpt_search.run.live_task import LivePool

    with named(task):
        return LivePool(task, folder.path / "pools", building)


def _key(cell: Coordinates) -> tuple[str, str, int]:
    return cell.task, cell.strategy, cell.seed
