"""From what the user asked for to what a study needs: workload, golden data, space, settings.

The same pieces are made twice: by `tune` from its options, and by `resume` from what the study
stored; both end in `StudySettings`, and whatever differs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpt_search.accuracy.gate import Tolerances, check_outputs, parse_tolerances
from gpt_search.accuracy.golden import golden_digest
from gpt_search.backends.base import BuildOptions, timing_refusal
from gpt_search.backends.registry import absolute_name
from gpt_search.domain.errors import InputError
from gpt_search.domain.expression import parse_expression
from gpt_search.domain.limits import Limits
from gpt_search.domain.space import SearchSpace
from gpt_search.domain.workload import Workload
from gpt_search.execution.describe import Description, describe_backend
from gpt_search.execution.evaluator import Evaluator, EvaluatorSettings
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.statistic import Statistic
from gpt_search.run.config import AUTO, TuneConfig, default_strategy
from gpt_search.run.golden import prepare_golden, stored_golden
from gpt_search.run.timing_cache import with_timing_cache
from gpt_search.search.discovery import load_strategy, relative_file
from gpt_search.search.strategy import Strategy
from gpt_search.store.location import Location, locate
from gpt_search.store.settings import StudySettings
from gpt_search.workloads.model import Model, describe_model


@dataclass(frozen=True)
class Prepared:
    """Everything that a study needs and that must not change while it lasts.

    strategy_folder: where a strategy file with a relative path lies, None for every other strategy.
    """

    space: SearchSpace
    strategy: Strategy
    strategy_folder: Path | None
    description: Description
    workload: Workload
    golden: Path
    golden_kind: str
    tolerances: Tolerances
    protocol: Protocol
    seed: int
    backend: str
    options: Mapping[str, object]
    timeout_build_s: float
    timeout_run_s: float
    memory_limit_gb: float | None
    time_infeasible: bool
    limits: Limits = field(default_factory=Limits)

    @property
    def statistic(self) -> Statistic:
        """What sums up the samples, over the workload's shape points."""
        return self.protocol.statistic(self.workload.weights)

    def settings(self) -> StudySettings:
        """The study's settings; equal settings mean that trials are comparable."""
        database, golden = self.description.database, golden_digest(stored_golden(self.golden)[0])
        return StudySettings(
            {
                "backend": self.backend,
                "workload": {"digest": self.workload.digest, **self.workload.to_json()},
                "golden": {"digest": golden, "kind": self.golden_kind, "path": str(self.golden)},
                "tolerance": self.tolerances.to_json(),
                "database": {
                    "tuner_version": database.tuner_version,
                    "digest": database.digest,
                    "defaults": database.defaults,
                },
                "environment": self.description.environment,
                "fingerprint": self.description.fingerprint.name,
                "protocol": self.protocol.to_json(),
                "strategy": {
                    "spec": strategy_spec(self.strategy),
                    "digest": getattr(self.strategy, "source_digest", None),
                    "path": None if self.strategy_folder is None else str(self.strategy_folder),
                },
                "seed": self.seed,
                "options": dict(self.options),
                "limits": {
                    "timeout_build_s": self.timeout_build_s,
                    "timeout_run_s": self.timeout_run_s,
                    "memory_gb": self.memory_limit_gb,
                },
                "time_infeasible": self.time_infeasible,
                **({"constraints": self.limits.to_json()} if self.limits else {}),
            }
        )

    def evaluator_settings(self, protocol: Protocol | None = None) -> EvaluatorSettings:
        """What the evaluator and its workers are told; `protocol` in place of the study's own."""
        return EvaluatorSettings(
            backend=self.backend,
            workload=self.workload,
            golden=self.golden,
            tolerances=self.tolerances,
            protocol=protocol or self.protocol,
            options=BuildOptions(self.options),
            defaults=self.description.database.defaults,
            timeout_build_s=self.timeout_build_s,
            timeout_run_s=self.timeout_run_s,
            memory_limit_gb=self.memory_limit_gb,
            time_infeasible=self.time_infeasible,
            limits=self.limits,
        )

    def evaluator(self, protocol: Protocol | None = None) -> Evaluator:
        """A fresh evaluator; `protocol` in place of the study's own. Close it."""
        return Evaluator(self.evaluator_settings(protocol), self.space.reference)


def why_not_run(description: Description, backend: str) -> str | None:
    """Why engines can be built here but not run, so that nothing could be gated or timed; None where they can."""
    if description.cannot_run is None:
        return None
    return (
        f"the backend {backend!r} can build engines here, but a study also runs them: {description.cannot_run}. "
        "`gpt-search knobs` and `gpt-search plan` work here"
    )


def runnable(description: Description, backend: str) -> Description:
    """The description. Raises InputError for `why_not_run`."""
    if (why := why_not_run(description, backend)) is not None:
        raise InputError(why)
    return description


def strategy_spec(strategy: Strategy) -> str:
    """The spec that `load_strategy` put on it, or the class's name for one made in Python."""
    spec = getattr(strategy, "spec", None)
    return spec if isinstance(spec, str) else f"{type(strategy).__module__}:{type(strategy).__qualname__}"


@dataclass(frozen=True)
class Checked:
    """What is known of a study before any model has run. backend: its name, with the whole path of a file."""

    backend: str
    tolerances: Tolerances
    location: Location
    description: Description
    space: SearchSpace
    strategy: Strategy
    model: Model


def check(config: TuneConfig, description: Description | None = None) -> Checked:
    """Everything that can be said against the options without running the model. Raises InputError for it.

    description: of the backend, where it has been asked already.
    """
    named = None if config.strategy == AUTO else load_strategy(config.strategy)
    backend = absolute_name(config.backend)
    tolerances = parse_tolerances(config.tolerances, config.metric)
    location = locate(config.storage)
    location.check(must_exist=False)
    description = description or describe_backend(backend, config.options or None)
    protocol = config.protocol
    if (refusal := timing_refusal(description.metrics, protocol.streams, protocol.host_copies)) is not None:
        raise InputError(f"the backend {backend.partition(':')[0]!r} cannot time so. {refusal}")
    space = parse_expression(config.knobs, description.database, strict=config.strict_trtexec)
    strategy = load_strategy(default_strategy(space)) if named is None else named
    model = describe_model(backend, config.model, config.shapes, description.own_workload, config.points)
    if model.outputs is not None:
        check_outputs(tolerances, list(model.outputs))
    return Checked(backend, tolerances, location, description, space, strategy, model)


def prepare(config: TuneConfig) -> Prepared:
    """What `tune` needs, from its options. Raises InputError for anything that the user must mend.

    Cheap checks come first, so that a typo does not wait for a model to run.
    """
    given = check(config)
    backend, records, reference = given.backend, given.location.records, given.space.reference
    description, workload = runnable(given.description, backend), given.model.workload
    options = with_timing_cache(
        backend, description, workload, reference, records / "timing_caches", config.timeout_build_s
    )
    config = replace(config, options=options)
    golden = prepare_golden(config, given.model, records / "golden", reference, backend, description.environment)
    return Prepared(
        space=given.space,
        strategy=given.strategy,
        strategy_folder=Path.cwd() if relative_file(config.strategy) else None,
        description=description,
        workload=workload,
        golden=golden.path,
        golden_kind=golden.kind,
        tolerances=given.tolerances,
        protocol=config.protocol,
        seed=config.seed,
        backend=backend,
        options=config.options,
        timeout_build_s=config.timeout_build_s,
        timeout_run_s=config.timeout_run_s,
        memory_limit_gb=config.memory_limit_gb,
        time_infeasible=config.time_infeasible,
        limits=config.limits,
    )


def prepare_stored(stored: StudySettings, space: SearchSpace) -> Prepared:
    """What `resume` needs, from a study's settings, looked at anew: files, versions, strategy.

    Compare `.settings()` with the stored ones before going on. Raises InputError when the model or
    the golden data are no longer there.
    """
    workload = Workload.from_json(stored["workload"])
    for file in (workload.model, *workload.external):
        if not file.is_file():
            raise InputError(f"the study's model file {str(file)!r} is no longer there; put it back to go on")
    golden = Path(stored["golden"]["path"])
    if not golden.is_file():
        raise InputError(
            f"the study's golden data {str(golden)!r} are no longer there; put the file back, or run `gpt-search tune` "
            "with the options of the first run, which makes it again"
        )
    limits: Mapping[str, Any] = stored["limits"]
    folder = stored["strategy"].get("path")
    return Prepared(
        space=space,
        strategy=load_strategy(stored["strategy"]["spec"], folder),
        strategy_folder=None if folder is None else Path(folder),
        description=runnable(describe_backend(stored["backend"], stored["options"] or None), stored["backend"]),
        workload=workload,
        golden=golden,
        golden_kind=stored["golden"]["kind"],
        tolerances=Tolerances.from_json(stored["tolerance"]),
        protocol=Protocol.from_json(stored["protocol"]),
        seed=stored["seed"],
        backend=stored["backend"],
        options=stored["options"],
        timeout_build_s=limits["timeout_build_s"],
        timeout_run_s=limits["timeout_run_s"],
        memory_limit_gb=limits["memory_gb"],
        time_infeasible=stored["time_infeasible"],
        limits=Limits(**stored.get("constraints", {})),
    )
