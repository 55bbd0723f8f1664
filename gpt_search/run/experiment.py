"""An experiment's file: tasks, strategies, seeds, budgets, and the statistical plan, as TOML.

Everything is checked before anything runs: unknown keys are errors, strategies are loaded, landscapes are grown, and
what is wrong ends as one line that names the place in the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_search.accuracy.gate import parse_tolerances
from gpt_search.accuracy.golden import GOLDEN_KINDS
from gpt_search.backends.registry import availability
from gpt_search.domain.budget import AXES, Budget
from gpt_search.domain.digest import digest_of_file
from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.landscape import planted
from gpt_search.domain.streams import seed_from
from gpt_search.measure.protocol import Protocol
from gpt_search.run.experiment_file import (
    Checkpoints,
    ExperimentFile,
    LiveTask,
    PlantedTask,
    SeedRange,
    StatisticsSection,
    TableTask,
    json_schema,
    read_sections,
)
from gpt_search.search.discovery import load_strategy
from gpt_search.search.strategy import Strategy
from gpt_search.workloads.catalogue import public_models, workload_options

_MAX_CELLS = 1_000_000


@dataclass(frozen=True)
class TaskPlan:
    """One task under its name; seed: of the landscape, for planted ones. folder: that relative paths count from."""

    name: str
    section: PlantedTask | TableTask | LiveTask
    folder: Path
    seed: int | str | None = None


@dataclass(frozen=True)
class StrategyPlan:
    """One strategy: the name in the results, the canonical spec, and the digest of its file."""

    name: str
    spec: str
    digest: str
    folder: Path

    def make(self) -> Strategy:
        """A fresh one. Raises InputError."""
        return load_strategy(self.spec, self.folder)


@dataclass(frozen=True)
class Coordinates:
    """One cell: which task, which strategy, which repeat."""

    task: str
    strategy: str
    seed: int


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    budget: of each study. checkpoints: by axis, ascending, those within the budget. axis: what the first budget counts.
    facts: everything that cells depend on, JSON-like; two experiments with equal facts have equal cells.
    """

    name: str
    path: Path
    tasks: tuple[TaskPlan, ...]
    strategies: tuple[StrategyPlan, ...]
    seeds: tuple[int, ...]
    budget: Budget
    axis: str
    checkpoints: Mapping[str, tuple[float, ...]]
    statistics: StatisticsSection
    wall_clock_s: float | None
    facts: Mapping[str, Any]

    @property
    def tested(self) -> tuple[float, ...]:
        """The budgets at which is tested, in units of `axis`, ascending."""
        return tuple(sorted(set(self.statistics.budgets or self.checkpoints[self.axis][-1:])))

    def cells(self) -> Iterator[Coordinates]:
        """All cells, repeat by repeat: whenever it stops, every strategy has had about as many."""
        for seed in self.seeds:
            for task in self.tasks:
                for strategy in self.strategies:
                    yield Coordinates(task.name, strategy.name, seed)

    def seed_of(self, cell: Coordinates) -> int:
        """The seed of a cell's study: from its coordinates alone, never from order."""
        return seed_from("experiment", self.name, cell.task, cell.strategy, cell.seed)

    def task(self, name: str) -> TaskPlan:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def strategy(self, name: str) -> StrategyPlan:
        """The strategy of that name."""
        return next(strategy for strategy in self.strategies if strategy.name == name)


def load_experiment(path: str | Path) -> Experiment:
    """Reads and checks an experiment's file. Raises InputError: one line, before anything runs."""
    path = Path(path)
    try:
        form = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the experiment {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read the experiment {path}: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is no TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply") from None
    try:
        return _checked(path, read_sections(form))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


# -- what pydantic does not check ------------------------------------------------------------------
def _checked(path: Path, file: ExperimentFile) -> Experiment:
    seeds = _seeds(file.experiment.seeds)
    given = file.experiment.budget
    axes = [axis for axis in AXES if getattr(given, axis) is not None]
    if not axes:
        raise InputError(f"[experiment] budget is empty; give {' or '.join(AXES)}, as in budget = {{ builds = 100 }}")
    axis = axes[0]
    budget = Budget(given.trials, given.builds, given.seconds)
    checkpoints = _checkpoints(file.experiment.budgets, budget, axis)
    tasks, strategies = _tasks(path, file), _strategies(path, file)
    count = len(seeds) * len(tasks) * len(strategies)
    if count > _MAX_CELLS:
        raise InputError(f"the experiment has {count:,} cells; {_MAX_CELLS:,} is the most, so split it")
    statistics = file.statistics
    names = [strategy.name for strategy in strategies]
    if statistics.control is not None and statistics.control not in names:
        raise InputError(
            f"[statistics] control is {statistics.control!r}, which is no strategy of this experiment"
            f"{did_you_mean(statistics.control, names)}; they are {listing(names, 30)}"
        )
    for tested in statistics.budgets or ():
        if tested not in checkpoints[axis]:
            raise InputError(
                f"[statistics] budgets has {tested:g} {axis}, which is not among the budgets that are looked at "
                f"({listing(f'{b:g}' for b in checkpoints[axis])})"
            )
    facts = {
        "name": file.experiment.name,
        "seeds": list(seeds),
        "budget": {name: getattr(given, name) for name in axes},
        "budgets": {name: list(found) for name, found in checkpoints.items()},
        "tasks": {task.name: _task_facts(task) for task in tasks},
        "strategies": {s.name: {"spec": s.spec, "file": s.digest} for s in strategies},
    }
    return Experiment(
        file.experiment.name,
        path,
        tasks,
        strategies,
        seeds,
        budget,
        axis,
        checkpoints,
        statistics,
        file.experiment.wall_clock_s,
        facts,
    )


def _seeds(given: int | list[int] | SeedRange) -> tuple[int, ...]:
    if isinstance(given, int):
        given = SeedRange(count=given)
    if isinstance(given, SeedRange):
        if given.count > _MAX_CELLS:  # before they are made: a slip of the keys would fill the memory
            raise InputError(
                f"[experiment] seeds is a count of {given.count:,}; an experiment has at most {_MAX_CELLS:,} cells, "
                "so give fewer"
            )
        _check_seed(given.first + given.count - 1)
        return tuple(range(given.first, given.first + given.count))
    if not given:
        raise InputError("[experiment] seeds is an empty list; give at least one, or a count")
    for place, seed in enumerate(given):
        _check_seed(seed)
        if seed in given[:place]:
            raise InputError(f"[experiment] seeds has {seed} twice; a repeated seed gives the same study again")
    return tuple(given)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"[experiment] seeds has {seed}; a seed is 0 or more, and below 2^63")


def _checkpoints(given: list[float] | Checkpoints | None, budget: Budget, axis: str) -> dict[str, tuple[float, ...]]:
    """Ascending, by axis; the budget itself is always among those of its axis."""
    lists: dict[str, list[float]] = {}
    if isinstance(given, Checkpoints):
        lists = {name: list(found) for name in AXES if (found := getattr(given, name)) is not None}
    elif given is not None:
        lists = {axis: list(given)}
    for name, found in lists.items():
        for place, value in enumerate(found):
            where = f"[experiment] budgets has {value:g} {name}"
            if value <= 0:
                raise InputError(f"{where}; a budget is more than 0")
            if value in found[:place]:
                raise InputError(f"{where} twice")
            most = getattr(budget, name)
            if most is not None and value > most:
                raise InputError(f"{where}, more than the budget of {most:g}")
            if name != "seconds" and value != int(value):
                raise InputError(f"{where}; {name} are whole numbers")
    if axis not in lists:
        most = float(getattr(budget, axis))
        lists[axis] = [b for b in _ROUND if b < most and (b >= 5 or most < 20)]
    out = {}
    for name, found in lists.items():
        limit = getattr(budget, name)
        values = sorted({*found, *([] if limit is None else [limit])})
        out[name] = tuple(float(v) if name == "seconds" else int(v) for v in values)
    return {name: out[name] for name in AXES if name in out}


_ROUND = [m * 10**e for e in range(9) for m in (1, 2, 5)]


def _tasks(path: Path, file: ExperimentFile) -> tuple[TaskPlan, ...]:
    folder = path.parent
    found: list[TaskPlan] = []
    for number, section in enumerate(file.task, 1):
        try:
            found += _expanded(section, folder)
        except InputError as error:
            raise InputError(f"task {number} ({section.kind}): {error}") from None
    names = [task.name for task in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"two tasks are named {name!r}; give one of them another name")
    return tuple(found)


def _expanded(section: PlantedTask | TableTask | LiveTask, folder: Path) -> list[TaskPlan]:
    if isinstance(section, PlantedTask):
        seeds = [section.seed] if section.seeds is None else section.seeds
        if not seeds:
            raise InputError("seeds is an empty list; give at least one")
        base = section.name or section.family
        plans = []
        for place, seed in enumerate(seeds):
            assert seed is not None
            if seed in seeds[:place]:
                raise InputError(f"seeds has {seed!r} twice; a repeated seed gives the same landscape again")
            planted(section.family, seed, section.knobs, noise=section.noise)  # raises for what is out of range
            name = section.name if section.name is not None and len(seeds) == 1 else f"{base}-{seed}"
            plans.append(TaskPlan(name, section, folder, seed))
        return plans
    if isinstance(section, TableTask):
        file = folder / section.file
        if not file.is_file():
            raise InputError(f"there is no table {file}; record one with gpt-search record")
        name = section.name or section.file.name.partition(".")[0]
        # Part of the name, so that no table, figure or file can show results under a policy without saying so.
        return [TaskPlan(name if section.policy is None else f"{name} ({section.policy})", section, folder)]
    _check_live(section, folder)
    return [TaskPlan(section.name, section, folder)]


def _check_live(section: LiveTask, folder: Path) -> None:
    """What can be told without the backend or a build."""
    for key in ("model", "golden"):
        given = getattr(section, key)
        if given is not None and not (folder / given).exists():
            raise InputError(f"{key} is {str(given)!r}, and there is no such file (looked in {folder})")
    if section.workload is not None:
        known = [option.name for option in workload_options(section.workload)]
        for name in section.workload_options:
            _one_of(f"option of workload {section.workload!r}", name, known)
    if section.public is not None:
        _one_of("public model", section.public, public_models())
    availability(section.backend)  # raises for an unknown name
    fewest = 4 * Protocol.from_json(section.protocol).min_rounds
    if section.pool_rounds < fewest:
        raise InputError(
            f"pool_rounds is {section.pool_rounds}; it must be {fewest} or more: half of them are for the truth, and "
            "of the others a study draws min_rounds or more, so that studies differ"
        )
    parse_tolerances(section.tolerances, section.metric)
    _one_of("reference", section.reference, list(GOLDEN_KINDS))


def _one_of(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise InputError(f"unknown {what} {name!r}{did_you_mean(name, known)} ({listing(known, 30)})")


def _strategies(path: Path, file: ExperimentFile) -> tuple[StrategyPlan, ...]:
    found: list[StrategyPlan] = []
    for number, section in enumerate(file.strategy, 1):
        spec = section.spec
        for key, value in section.options.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            spec += f"{',' if '=' in spec.rpartition(':')[2] else ':'}{key}={text}"
        try:
            strategy = load_strategy(spec, path.parent)
        except InputError as error:
            raise InputError(f"strategy {number}: {error}") from None
        canonical, digest = str(strategy.spec), str(strategy.source_digest)  # type: ignore[attr-defined]
        found.append(StrategyPlan(section.name or canonical, canonical, digest, path.parent))
    names = [strategy.name for strategy in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"two strategies are named {name!r}; give one of them a name of its own")
    return tuple(found)


def _task_facts(task: TaskPlan) -> dict[str, Any]:
    found: dict[str, Any] = task.section.model_dump(
        mode="json", exclude={"seeds", "name", "seed", "seconds_per_build"}, exclude_defaults=True
    )
    found["kind"] = task.section.kind
    if task.seed is not None:
        found["seed"] = task.seed
    for key in ("file", "model", "golden"):
        given = getattr(task.section, key, None)
        if given is not None and (task.folder / given).is_file():
            found[f"{key}_digest"] = digest_of_file(task.folder / given)
    return found


__all__ = ["Coordinates", "Experiment", "StrategyPlan", "TaskPlan", "json_schema", "load_experiment"]
