"""The tasks of an experiment, opened: a space, what measures its routes, and what is true of them.

A task is made once in every process that needs it; what belongs to one study alone is made by `study`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.errors import InputError
from gpt_search.domain.landscape import planted
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.run.experiment import TaskPlan
from gpt_search.run.experiment_file import LiveTask, PlantedTask, TableTask
from gpt_search.search.prefixes import AsLive
from gpt_search.search.simulate import Measure
from gpt_search.search.strategy import Strategy

Floats = NDArray[np.float64]


class Arena(Protocol):
    """What a cell needs of its task.

    space: what is searched. noise: relative standard deviation of one value, as strategies are told it. label: one
    line on where values come from, for every output. seconds_per_build: what a trial is charged, about, None where
    unknown.
    """

    space: SearchSpace
    noise: float | None
    label: str
    seconds_per_build: float | None

    def study(self, seed: int) -> Measure:
        """What measures the routes of one study, as `simulate` wants it: called once for each trial, in order."""
        ...

    def strategy(self, strategy: Strategy) -> Strategy:
        """The strategy as it searches this task."""
        ...

    def truth(self, codes: Codes) -> Floats:
        """log(latency / reference) of routes, float64 (n,), NaN where infeasible or unknown. codes: int16 (n, d)."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What a cell says of its task (see `Cell.facts`)."""
        ...


def open_task(plan: TaskPlan) -> Arena:
    """The task, ready to be searched; not for live ones, whose pool belongs to one process (`run.live_task`).

    Raises InputError, with the task's name.
    """
    with named(plan):
        if isinstance(plan.section, TableTask):
            from gpt_search.run.table_task import Replayed

            return Replayed(plan)
        return Planted(plan)


def check_task(plan: TaskPlan) -> None:
    """Raises InputError, with the task's name, when the task cannot be searched; before any cell runs."""
    if not isinstance(plan.section, LiveTask):
        open_task(plan)
    elif (why := why_not_live(plan)) is not None:
        raise InputError(f"task {plan.name!r}: {why}")


def why_not_live(plan: TaskPlan) -> str | None:
    """As `check_live`; its errors with the task's name."""
    from gpt_search.run.live_task import check_live

    with named(plan):
        return check_live(plan)


@contextmanager
def named(plan: TaskPlan) -> Iterator[None]:
    """Puts the task's name into the errors of what is done for it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"task {plan.name!r}: {error}") from None


class Planted:
    """A planted landscape, measured as a live study measures: a known engine is not timed again."""

    def __init__(self, plan: TaskPlan) -> None:
        """Raises InputError for a landscape that cannot be grown."""
        section = plan.section
        assert isinstance(section, PlantedTask) and plan.seed is not None
        self._landscape = planted(section.family, plan.seed, section.knobs, noise=section.noise)
        self.space = self._landscape.space
        self.noise: float | None = self._landscape.noise
        costs = self._landscape.costs
        self.seconds_per_build: float | None = costs.start + costs.build + costs.gate + costs.time
        self.label = f"planted landscape {section.family}, seed {plan.seed}: simulated, the truth is known"

    def study(self, seed: int) -> Measure:
        """A measure that knows no engine yet."""
        return AsLive(self._landscape.measure)

    def strategy(self, strategy: Strategy) -> Strategy:
        """Itself."""
        return strategy

    def truth(self, codes: Codes) -> Floats:
        """Exact."""
        return np.asarray(self._landscape.true_log_ratio(codes), np.float64)

    def facts(self) -> Mapping[str, Any]:
        """See `Cell.facts`. The floor is that of one value, 1.96 standard deviations."""
        return {
            "best": float(self._landscape.best_log_ratio),
            "best_known": True,
            "floor": 1.96 * self._landscape.noise,
            "reference_ms": float(self._landscape.reference_ms),
            "n_routes": self.space.size,
            "builds_behind": None,
        }


def describe_live(plan: TaskPlan) -> str:
    """One line on a live task; as for `why_not_live`."""
    section = plan.section
    assert isinstance(section, LiveTask)
    what = section.workload or section.public or section.model
    shapes = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in section.shapes.items())
    tolerance = "default" if section.tolerance is None else section.tolerance
    limits = f"{section.metric} within {tolerance}"
    why = why_not_live(plan)
    can = "" if why is None else f"; {why}"
    return f"live: {what}{f' ({shapes})' if shapes else ''} on {section.backend}, {limits}{can}"
