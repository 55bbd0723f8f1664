"""What an experiment would cost, before and while it runs."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from gpt_search.run.arena import describe_live, open_task
from gpt_search.run.experiment import Coordinates, Experiment, TaskPlan
from gpt_search.run.experiment_file import LiveTask
from gpt_search.store.cells import file_name
from gpt_search.store.experiment import check_folder


@dataclass
class Pace:
    """How long cells take, learnt from those that finished."""

    jobs: int
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, cell: Coordinates, wall_s: float) -> None:
        """Takes in a cell that finished."""
        self.seconds[cell.task, cell.strategy].append(wall_s)

    def left(self, cells: Mapping[tuple[str, str], int]) -> float | None:
        """Seconds that so many cells of each task and strategy take; None before any has finished."""
        if not self.seconds:
            return None
        by_strategy: dict[str, list[float]] = defaultdict(list)
        for (_, strategy), found in self.seconds.items():
            by_strategy[strategy] += found
        overall = fmean(s for found in self.seconds.values() for s in found)
        total = 0.0
        for key, count in cells.items():
            known = self.seconds.get(key) or by_strategy.get(key[1])
            total += count * (fmean(known) if known else overall)
        return total / self.jobs


@dataclass(frozen=True)
class TaskCost:
    """What one task of an experiment costs. label: what it is. builds: charged at most, over all its studies, None
    where the budget is not in builds or trials; seconds: charged at most, None where unknown; live: whether those are
    spent on this machine, or simulated."""

    task: str
    label: str
    cells: int
    finished: int
    builds: int | None
    seconds: float | None
    live: bool


@dataclass(frozen=True)
class Plan:
    """What an experiment would do. wall_s: estimate for the cells that are left; None before any has finished."""

    tasks: tuple[TaskCost, ...]
    wall_s: float | None

    @property
    def cells(self) -> int:
        """All of them."""
        return sum(task.cells for task in self.tasks)

    @property
    def finished(self) -> int:
        """Those that are there."""
        return sum(task.finished for task in self.tasks)


def plan(experiment: Experiment, out: str | Path | None = None, jobs: int | None = None) -> Plan:
    """What `compare` would do; nothing is run or written. out: the folder, for what is finished in it.

    Raises InputError when a task cannot be searched on any machine, or the folder is of another experiment.
    """
    folder = None if out is None else check_folder(out, experiment.facts)
    left: dict[tuple[str, str], int] = defaultdict(int)
    finished: dict[str, int] = defaultdict(int)
    pace = Pace(jobs or os.cpu_count() or 1)
    for cell in experiment.cells():
        if folder is not None and folder.has(cell.task, cell.strategy, cell.seed):
            finished[cell.task] += 1
            run = json.loads((folder.cells / file_name(cell.task, cell.strategy, cell.seed)).read_bytes())["run"]
            pace.learn(cell, float(run["wall_s"]))
        else:
            left[cell.task, cell.strategy] += 1
    per_task = len(experiment.seeds) * len(experiment.strategies)
    return Plan(
        tuple(_cost(experiment, task, per_task, finished[task.name]) for task in experiment.tasks), pace.left(left)
    )


def _cost(experiment: Experiment, task: TaskPlan, cells: int, finished: int) -> TaskCost:
    budget, section = experiment.budget, task.section
    each = min((b for b in (budget.trials, budget.builds) if b is not None), default=None)
    live = isinstance(section, LiveTask)
    if isinstance(section, LiveTask):
        label, per_build = describe_live(task), section.seconds_per_build
    else:
        arena = open_task(task)
        label, per_build = arena.label, arena.seconds_per_build
    seconds = None if each is None or per_build is None else each * per_build
    if budget.seconds is not None:
        seconds = budget.seconds if seconds is None else min(seconds, budget.seconds)
    return TaskCost(
        task.name,
        label,
        cells,
        finished,
        None if each is None else each * cells,
        None if seconds is None else seconds * cells,
        live,
    )
