"""The sections of an experiment's file, as pydantic models, and what is wrong with a file in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpt_search.domain.errors import InputError, did_you_mean, listing

_NAME = (
    "one line of at most 100 characters that does not begin with a blank, and has no slashes and no control characters"
)
Name = Annotated[
    str, Field(pattern=r"^[^\s/\\\x00-\x1f\x7f-\x9f][^/\\\x00-\x1f\x7f-\x9f]*$", max_length=100, description=_NAME)
]
"""Shown in tables and figures: one line, without slashes, and nothing that a terminal obeys."""

_PATH = "a path, as text"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class SeedRange(_Section):
    """Seeds first, first + 1, ..., count of them."""

    count: int = Field(ge=1)
    first: int = Field(default=0, ge=0)


class BudgetTable(_Section):
    """The budget of a study: whichever is spent first. The reference route is not charged."""

    trials: int | None = Field(default=None, ge=1)
    builds: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class Checkpoints(_Section):
    """Budgets after which each study is looked at, by what they count."""

    trials: list[int] | None = None
    builds: list[int] | None = None
    seconds: list[float] | None = None


class ExperimentSection(_Section):
    """What all tasks and strategies share.

    seeds: a count (from 0 on), a list, or {count, first}. budget: of each study. budgets: checkpoints; a list counts
    the first of trials, builds and seconds that `budget` gives. wall_clock_s: no cell is started
    after that many seconds of one run.
    """

    name: Name
    seeds: Annotated[int, Field(ge=1)] | list[int] | SeedRange = Field(
        description="a count of 1 or more, a list of seeds of 0 or more, or {count = N, first = N}"
    )
    budget: BudgetTable
    budgets: list[float] | Checkpoints | None = Field(
        default=None,
        description="a list of numbers, or one for each of {trials = [...], builds = [...], seconds = [...]}",
    )
    wall_clock_s: float | None = Field(default=None, gt=0)


class PlantedTask(_Section):
    """A planted landscape, or several of one family: see `gpt_search.planted`."""

    kind: Literal["planted"]
    family: str
    seed: int | str | None = Field(default=None, description="a whole number or text")
    seeds: list[int | str] | None = Field(default=None, description="a list of whole numbers or texts")
    knobs: int | None = None
    noise: float | None = None
    name: Name | None = Field(default=None, description=_NAME)

    @model_validator(mode="after")
    def _one_of(self) -> PlantedTask:
        if (self.seed is None) == (self.seeds is None):
            raise ValueError("give either seed (one landscape) or seeds (a list of them)")
        return self


class TableTask(_Section):
    """A recorded table, replayed: see `gpt-search record`. policy: what stands for routes that it lacks."""

    kind: Literal["table"]
    file: Path = Field(strict=False, description=_PATH)
    policy: str | None = None
    rounds: int | None = Field(default=None, ge=2)
    name: Name | None = Field(default=None, description=_NAME)


class LiveTask(_Section):
    """A model that is built and timed on this machine, through a pool that all studies share.

    model: an ONNX file; or workload: one that gpt_search writes, with options; or public: one inside an installed
    package. The rest as for `gpt-search tune`. pool_rounds: timing rounds taken of every route, half of them for the
    studies to draw from, half for the truth. protocol: settings of the measurement protocol, and what is timed: timing,
    streams, host_copies. seconds_per_build: only for the estimate of --dry-run.
    """

    kind: Literal["live"]
    name: Name
    model: Path | None = Field(default=None, strict=False, description=_PATH)
    workload: str | None = None
    workload_options: dict[str, int | str] = Field(default_factory=dict)
    public: str | None = None
    backend: str = "onnxruntime"
    knobs: str = "-*=[*]"
    shapes: dict[str, list[Annotated[int, Field(ge=1)]]] = Field(default_factory=dict)
    metric: str = "cos"
    tolerance: float | dict[str, float] | None = Field(default=None, description="a number, or one for each output")
    reference: str = "onnxruntime-fp32"
    golden: Path | None = Field(default=None, strict=False, description=_PATH)
    pool_rounds: int = Field(default=40, ge=8)
    timeout_build_s: float = Field(default=600.0, gt=0)
    timeout_run_s: float = Field(default=60.0, gt=0)
    memory_limit_gb: float | None = Field(default=None, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)
    protocol: dict[str, float | str | bool] = Field(default_factory=dict)
    seconds_per_build: float | None = Field(default=None, gt=0)

    @property
    def tolerances(self) -> tuple[str, ...]:
        """As `gpt-search tune --tolerance` takes them."""
        if isinstance(self.tolerance, dict):
            return tuple(f"{name}={value}" for name, value in self.tolerance.items())
        return () if self.tolerance is None else (str(self.tolerance),)

    @model_validator(mode="after")
    def _one_model(self) -> LiveTask:
        given = [key for key in ("model", "workload", "public") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of model, workload and public, not {' and '.join(given) or 'none'}")
        if self.workload is None and self.workload_options:
            raise ValueError("workload_options go with workload")
        return self


class StrategySection(_Section):
    """One strategy: its spec, further options, and the name that tables and figures show (by default the spec)."""

    spec: str
    name: Name | None = Field(default=None, description=_NAME)
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="a table of options, each true, false, a finite number or text"
    )


class StatisticsSection(_Section):
    """The statistical plan. control: the strategy that each other one is compared with; without one nothing is tested.

    budgets: those at which is tested, counted as the experiment's list of budgets; by default the largest alone.
    alpha: family-wise error. family: what Holm's adjustment is over, the comparisons of one budget or all of them.
    """

    control: str | None = None
    alpha: float = Field(default=0.05, gt=0, lt=1)
    budgets: list[float] | None = None
    family: Literal["budget", "all"] = "budget"


AnyTask = Annotated[PlantedTask | TableTask | LiveTask, Field(discriminator="kind")]


class ExperimentFile(_Section):
    """The whole file."""

    experiment: ExperimentSection
    task: list[AnyTask] = Field(min_length=1)
    strategy: list[StrategySection] = Field(min_length=1)
    statistics: StatisticsSection = Field(default_factory=lambda: StatisticsSection())


def read_sections(form: Mapping[str, Any]) -> ExperimentFile:
    """The sections of a file. Raises InputError: the first thing that is wrong, where it is, and what is allowed."""
    try:
        return ExperimentFile.model_validate(form)
    except ValidationError as error:
        raise InputError(_explained(error)) from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of an experiment's file, for editors that check TOML."""
    schema = ExperimentFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _explained(error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    # A mistyped key is unknown, and the right one missing: the unknown one says more.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    section, keys, model = _place(first["loc"])
    kind, got = first["type"], first.get("input")
    if kind == "extra_forbidden":
        key, known = str(first["loc"][-1]), list(model.model_fields)
        return f"{' '.join([section, *keys])}: there is no key {key!r}{did_you_mean(key, known)} ({listing(known, 30)})"
    if kind == "missing":
        if len(first["loc"]) == 1:  # a whole section
            brackets = "[[{}]]" if first["loc"][0] in _REPEATED else "[{}]"
            return f"there is no section {brackets.format(first['loc'][0])}; an experiment has at least one"
        return f"{section}: {first['loc'][-1]!r} is missing"
    if len(first["loc"]) == 1 and first["loc"][0] in _REPEATED:
        name = first["loc"][0]
        return f"{section}: write [[{name}]], in double brackets, before every {name}; there may be several"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        if kind == "union_tag_not_found":
            return f"{section}: 'kind' is missing; it is one of {', '.join(_KINDS)}"
        tag = str(first["ctx"]["tag"])
        return f"{section}: unknown kind {tag!r}{did_you_mean(tag, _KINDS)} ({', '.join(_KINDS)})"
    words = first["msg"].removeprefix("Value error, ")
    if kind in ("model_type", "dict_type"):  # pydantic names its own class, or Python's
        words = "it must be a table of keys and values"
    if not keys:
        return f"{section}: {words}"
    # Of a key of the user's own, as in shapes.x, the field is the table that it stands in.
    field = next((model.model_fields[key] for key in reversed(keys) if key in model.model_fields), None)
    if field is not None and field.description:
        words = f"it must be {field.description}"
    shown = f"is {got!r}" if not isinstance(got, BaseModel) else "is wrong"
    return f"{section} {'.'.join(keys)} {shown}; {words[:1].lower()}{words[1:]}"


def _place(loc: Sequence[int | str]) -> tuple[str, list[str], type[BaseModel]]:
    """The section in words, the keys in it that lead to the place, and the model that the last of them belongs to."""
    parts = list(loc)
    name = str(parts.pop(0)) if parts else "the file"
    section, model = f"[{name}]", ExperimentFile.model_fields.get(name)
    inside: type[BaseModel] = _MODELS.get(name, ExperimentFile) if model is not None else ExperimentFile
    if model is None:
        return "the file", [], ExperimentFile
    if parts and isinstance(parts[0], int):
        section = f"{name} {int(parts.pop(0)) + 1}"
        if name == "task" and parts and str(parts[0]) in _KINDS:
            kind = str(parts.pop(0))
            section, inside = f"{section} ({kind})", _KINDS[kind]
    keys: list[str] = []
    for part in parts:
        # What is no key names the branch of a union, or a place in a list.
        table = inside.model_fields.get(keys[-1]) if keys else None
        if isinstance(part, str) and table is not None and get_origin(table.annotation) is dict:
            keys.append(part)
        elif isinstance(part, str) and part in inside.model_fields:
            keys.append(part)
            inside = _section_in(inside.model_fields[part].annotation, parts) or inside
    return section, keys, inside


def _section_in(annotation: Any, parts: Sequence[int | str]) -> type[BaseModel] | None:
    """The table that a key holds; where it may hold other things too, only when that branch is meant."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        tables = [a for a in get_args(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        return next((a for a in tables if a.__name__ in parts), None)
    return None


_KINDS: dict[str, type[BaseModel]] = {"planted": PlantedTask, "table": TableTask, "live": LiveTask}
_REPEATED = ("task", "strategy")
"""The sections of which there are several."""
_MODELS: dict[str, type[BaseModel]] = {
    "experiment": ExperimentSection,
    "strategy": StrategySection,
    "statistics": StatisticsSection,
}
