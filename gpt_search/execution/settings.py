"""What every evaluation of a study has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpt_search.accuracy.gate import Tolerances
from gpt_search.backends.base import BuildOptions
from gpt_search.domain.limits import Limits
from gpt_search.domain.workload import Workload
from gpt_search.execution.launcher import WorkerSpec
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.statistic import Statistic


@dataclass(frozen=True)
class EvaluatorSettings:
    """What every evaluation of a study has in common.

    backend: name for `load_backend`. golden: file of golden pairs. defaults: knob defaults, for routes
    in messages and records. timeout_build_s: for a build. timeout_run_s: for the gate, and for one
    turn of timing. memory_limit_gb: in units of 10^9 bytes, for a worker and all that it starts,
    interpreter and libraries included (see `worker` and `launcher`); None for no limit.
    limits: on what an engine may take. time_infeasible: routes that miss a tolerance are timed too. log_dir: for the
    workers' logs.
    """

    backend: str
    workload: Workload
    golden: Path
    tolerances: Tolerances
    protocol: Protocol = field(default_factory=Protocol)
    options: BuildOptions = field(default_factory=BuildOptions)
    defaults: Mapping[str, str] = field(default_factory=dict)
    timeout_build_s: float = 600.0
    timeout_run_s: float = 60.0
    memory_limit_gb: float | None = None
    limits: Limits = field(default_factory=Limits)
    time_infeasible: bool = False
    log_dir: Path | None = None

    @property
    def statistic(self) -> Statistic:
        """What sums up the samples, over the workload's shape points."""
        return self.protocol.statistic(self.workload.weights)

    def worker_spec(self) -> WorkerSpec:
        """What the workers are told."""
        limit = None if self.memory_limit_gb is None else int(self.memory_limit_gb * 1e9)
        return WorkerSpec(self.backend, self.workload, self.golden, self.options.values, limit, self.log_dir)
