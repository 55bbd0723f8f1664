"""The accuracy gate: tolerances, and whether losses stay below them."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from gpt_search.accuracy.losses import METRICS
from gpt_search.domain.errors import InputError, did_you_mean, listing

PairLosses = Mapping[str, Mapping[str, float]]

DEFAULT_TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"l0": 1e-2, "l1": 1e-3, "l2": 1e-6, "lInf": 1e-2, "cos": 1e-3}
)
"""Tolerance by metric where the user gives none; for l1, l2 and lInf they suit outputs of the order of 1."""


@dataclass(frozen=True)
class Tolerances:
    """The limits that losses must stay below, for one metric.

    metric: one of `METRICS`. default: for outputs that are not named. by_output: output name -> limit.
    """

    metric: str
    default: float
    by_output: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises InputError for an unknown metric, or a limit that is not positive and finite."""
        check_metric(self.metric)
        for where, value in (("", self.default), *((f" for output {n!r}", v) for n, v in self.by_output.items())):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"the tolerance{where} is {value}; it must be a positive, finite number")
        object.__setattr__(self, "by_output", dict(self.by_output))

    def of(self, output: str) -> float:
        """The limit for one output."""
        return self.by_output.get(output, self.default)

    def to_json(self) -> dict[str, object]:
        """A JSON-like form that `from_json` reads back."""
        return {"metric": self.metric, "default": self.default, "by_output": dict(self.by_output)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tolerances:
        """The tolerances that `to_json` described. Raises KeyError, TypeError, ValueError for another form."""
        by_output = {str(n): float(v) for n, v in data["by_output"].items()}
        return cls(str(data["metric"]), float(data["default"]), by_output)


class Worst(NamedTuple):
    """The output that is nearest to its limit, or furthest beyond it."""

    pair: int
    output: str
    loss: float
    tolerance: float

    @property
    def violation(self) -> float:
        """loss - tolerance, infinity where the loss is not finite; feasible when < 0."""
        return self.loss - self.tolerance if math.isfinite(self.loss) else math.inf

    @property
    def share(self) -> float:
        """loss / tolerance: 1 is the limit; infinity where the loss is not finite."""
        if not math.isfinite(self.loss):
            return math.inf
        if self.tolerance > 0:
            return self.loss / self.tolerance
        return 0.0 if self.loss <= 0 else math.inf


def check_metric(metric: str) -> str:
    """The metric. Raises InputError for an unknown one."""
    if metric not in METRICS:
        raise InputError(
            f"unknown metric {metric!r}; the metrics are {', '.join(METRICS)}{did_you_mean(metric, METRICS)}"
        )
    return metric


def parse_tolerances(texts: Iterable[str], metric: str) -> Tolerances:
    """Reads the values of `--tolerance`: `0.01` for all outputs, `OUTPUT=0.01` for one.

    An output's name may hold `=` and `:`; the last `=` counts. Without a general value, that of
    `DEFAULT_TOLERANCES` is taken. Raises InputError for what is not a positive, finite number, and
    for a value given twice.
    """
    check_metric(metric)
    default: float | None = None
    by_output: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = math.nan if "_" in number else float(number)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise InputError(
                f"--tolerance {text}: {number.strip()!r} is not a positive, finite number; "
                "write for example 0.01 or OUTPUT=0.01"
            )
        if not equals:
            if default is not None:
                raise InputError(f"--tolerance {text}: a tolerance for all outputs was already given ({default:g})")
            default = value
        elif not name:
            raise InputError(f"--tolerance {text}: there is no output name before '='")
        elif name in by_output:
            raise InputError(f"--tolerance {text}: output {name!r} already has a tolerance ({by_output[name]:g})")
        else:
            by_output[name] = value
    return Tolerances(metric, DEFAULT_TOLERANCES[metric] if default is None else default, by_output)


def check_outputs(tolerances: Tolerances, output_names: Collection[str]) -> None:
    """Raises InputError where a tolerance names an output that the model does not have."""
    for name in tolerances.by_output:
        if name not in output_names:
            raise InputError(
                f"--tolerance {name}=...: the model has no output {name!r}; its outputs are "
                f"{listing(output_names)}{did_you_mean(name, output_names)}"
            )


def worst(losses: Sequence[PairLosses], tolerances: Tolerances) -> Worst:
    """The output with the largest violation over all golden pairs: (pair, output, loss, tolerance).

    Of several equal ones the first. Raises ValueError when there is nothing to judge: no pairs, or
    a pair without outputs, is not a pass.
    """
    found: Worst | None = None
    for number, pair in enumerate(losses):
        if not pair:
            raise ValueError(f"golden pair {number} has no losses, so the engine cannot be judged")
        for output, by_metric in pair.items():
            here = Worst(number, output, by_metric[tolerances.metric], tolerances.of(output))
            if found is None or here.violation > found.violation:
                found = here
    if found is None:
        raise ValueError("there are no losses, so the engine cannot be judged")
    return found


def judge(losses: Sequence[PairLosses], tolerances: Tolerances) -> float:
    """The violation: the largest loss - tolerance over all pairs and outputs.

    Feasible when < 0: a loss equal to its tolerance fails, as in trtexec. Infinity where a loss is
    not finite. Raises ValueError when there is nothing to judge.
    """
    return worst(losses, tolerances).violation


def reference_misses(losses: Sequence[PairLosses], tolerances: Tolerances) -> str | None:
    """Why the reference route itself is infeasible and what to do, in one line; None where it is feasible.

    Every output that misses is named with a tolerance that it would meet.
    """
    found = worst(losses, tolerances)
    if found.violation < 0:
        return None
    metric = tolerances.metric
    where = f"output {found.output!r} (golden pair {found.pair})"
    if not math.isfinite(found.loss):
        return (
            f"not even the reference route has a finite {metric} loss on {where}: its output is missing, holds NaN "
            "or infinity, or has another shape or type than the reference data; check --golden and --shape"
        )
    largest: dict[str, float] = {}
    for pair in losses:
        for output, by_metric in pair.items():
            largest[output] = max(largest.get(output, 0.0), by_metric[metric])
    missing = {output: loss for output, loss in largest.items() if loss >= tolerances.of(output)}
    flags = " ".join(f"--tolerance {_quoted(o)}={suggested_tolerance(loss):g}" for o, loss in missing.items())
    more = f" ({len(missing)} outputs miss theirs)" if len(missing) > 1 else ""
    return (
        f"not even the reference route meets the tolerance: {where} has {metric} loss {found.loss:.3g}, the tolerance "
        f"is {found.tolerance:g}{more}; use {flags}, or another --metric or --reference"
    )


def suggested_tolerance(loss: float) -> float:
    """A tolerance of two digits about half above a positive, finite loss."""
    return min(float(f"{1.5 * loss:.1e}"), sys.float_info.max)


def _quoted(name: str) -> str:
    """A name as it can be typed in a shell."""
    return shlex.quote(name)
