"""What the user asked for: the settings of one tuning run, before anything is looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpt_search.accuracy.golden import DEFAULT_ENGINE, FILES, GOLDEN_KINDS, ONNXRUNTIME_FP32
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.limits import Limits
from gpt_search.domain.space import SearchSpace
from gpt_search.domain.workload import Point
from gpt_search.measure.protocol import Protocol

DEFAULT_KNOBS = "-*=[*]"
DEFAULT_TRIALS = 100


AUTO = "auto"
MANY_KNOBS = 20


def default_strategy(space: SearchSpace) -> str:
    """For a space that no strategy was named for: `live` with more than MANY_KNOBS knobs that can change, else `tpe`.

    By what both find within 100 builds (docs/studies.md): the same on average at 20 knobs, and at 195 `live` finds
    twice as much; on a table of real engines with ten knobs `tpe` ends closer to the best.
    """
    return "live" if int((space.cardinalities > 1).sum()) > MANY_KNOBS else "tpe"


@dataclass(frozen=True)
class TuneConfig:
    """One tuning run.

    model: the model file. knobs: an expression (see `parse_expression`); all closed knobs by default.
    strategy: a spec for `load_strategy`; `AUTO` for `default_strategy` of the space. tolerances: texts as in
    `--tolerance`. reference: where golden outputs come from. golden: the user's golden data for "files", or the float32
    model that "onnxruntime-fp32" runs in place of a quantised one. shapes: input name -> concrete shape. points: of a
    dynamic model, in place of `shapes`; each is gated and timed.
    storage: path or Optuna URL. study: name, or None for one made from model, strategy and seed.
    builders: routes built at the same time. memory_limit_gb: per worker, 10^9 bytes.
    limits: on an engine's size and memory, as constraints.
    pairs: number of golden pairs to make, at each point. confirm: whether to confirm the winner at the end.
    """

    model: Path
    knobs: str = DEFAULT_KNOBS
    strategy: str = AUTO
    budget: Budget = field(default_factory=lambda: Budget(trials=DEFAULT_TRIALS))
    seed: int = 0
    backend: str = "onnxruntime"
    metric: str = "cos"
    tolerances: tuple[str, ...] = ()
    reference: str = ONNXRUNTIME_FP32
    golden: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    storage: str = "./gpt_search.journal"
    study: str | None = None
    builders: int = 1
    timeout_build_s: float = 600.0
    timeout_run_s: float = 60.0
    memory_limit_gb: float | None = None
    limits: Limits = field(default_factory=Limits)
    pairs: int = 2
    time_infeasible: bool = False
    strict_trtexec: bool = False
    protocol: Protocol = field(default_factory=Protocol)
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InputError for values that no model or backend could make right."""
        if self.reference not in GOLDEN_KINDS:
            raise InputError(
                f"--reference {self.reference}: unknown kind{did_you_mean(self.reference, GOLDEN_KINDS)}; "
                f"the kinds are {', '.join(GOLDEN_KINDS)}"
            )
        if self.reference == FILES and self.golden is None:
            raise InputError("--reference files needs --golden PATH: an .npz file, or a folder of golden pairs")
        if self.reference == DEFAULT_ENGINE and self.golden is not None:
            raise InputError("--golden has no meaning with --reference default-engine; leave one of them out")
        for flag, value in (
            ("--builders", self.builders),
            ("--timeout-build", self.timeout_build_s),
            ("--timeout-run", self.timeout_run_s),
            ("--memory-limit", self.memory_limit_gb),
            ("--max-engine-size", self.limits.size_mb),
            ("--max-memory", self.limits.memory_mb),
            ("the number of golden pairs", self.pairs),
        ):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{flag} is {value}; it must be more than 0, and finite")
        if self.seed < 0:
            raise InputError(f"--seed is {self.seed}; it must be 0 or more")
        if self.budget.trials is None and self.budget.builds is None and self.budget.seconds is None:
            raise InputError("the study has no budget; give --trials, --builds or --seconds")

    @property
    def study_name(self) -> str:
        """The study's name: the given one, or one made from model, strategy and seed."""
        return self.study if self.study is not None else f"{self.model.stem}-{self.strategy}-{self.seed}"
