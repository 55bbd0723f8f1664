"""How an evaluation is shown to Optuna: state, value, constraints, summary; and a trial's parameters as codes.

| evaluation | state | value | `built` | `accuracy` |
|---|---|---|---|---|
| OK, timed | COMPLETE | latency in ms | 0 | largest violation (< 0), 0 where not measured |
| OK, asked to stop before timing | PRUNED | none | 0 | as above |
| accuracy failure, timed or not | PRUNED | none | 0 | largest violation (> 0) |
| engine above a limit on its size or memory | PRUNED | none | 0 | as above |
| build error, crash, timeout, memory | FAIL | none | 1 | largest violation where measured, else 0 |

Where a study limits size or memory, each limit is a constraint of its own, `size` and `memory`: used / allowed - 1.

Optuna calls a trial feasible when every constraint is <= 0. So `built` is 0 when a usable engine
came of the route and 1 when not; an engine that crashes is none. A route that exactly meets its
tolerance is infeasible here, so its zero is stored as the smallest normal float. Infinity, which
not every storage and dashboard takes, is stored as 1e30. PRUNED is Optuna's word for a trial that
was stopped early, so `study.best_trial` is the fastest route that was timed and met every tolerance.

Imports Optuna: import this module only where a study is opened.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.store.records import Record

SUMMARY = "gpt_search"
UNTIL = "until"
LARGEST_VIOLATION = 1e30
SMALLEST_VIOLATION = sys.float_info.min


def state_and_value(evaluation: Evaluation, until: Phase) -> tuple[TrialState, float | None]:
    """The Optuna state of a finished trial, and its value in ms.

    Raises ValueError for an evaluation that contradicts itself: OK and asked to be timed, without a finite latency.
    """
    if evaluation.outcome is Outcome.OK:
        latency = evaluation.latency_ms
        if latency is not None and math.isfinite(latency):
            return TrialState.COMPLETE, float(latency)
        if until is Phase.TIME or latency is not None:
            raise ValueError(f"an OK evaluation until {until.name} with latency {latency}: it needs a finite one")
        return TrialState.PRUNED, None
    if evaluation.outcome in (Outcome.ACCURACY, Outcome.LIMIT):
        return TrialState.PRUNED, None
    return TrialState.FAIL, None


def constraints(evaluation: Evaluation) -> dict[str, float]:
    """The constraints of a finished trial, in writing order: `built`, `accuracy`, then the study's limits."""
    usable = evaluation.outcome in (Outcome.OK, Outcome.ACCURACY, Outcome.LIMIT)
    violation = evaluation.violation
    if violation is None:
        accuracy = 0.0
    elif math.isnan(violation):
        accuracy = LARGEST_VIOLATION
    else:
        accuracy = min(max(float(violation), -LARGEST_VIOLATION), LARGEST_VIOLATION)
        if 0 <= accuracy < SMALLEST_VIOLATION:
            accuracy = SMALLEST_VIOLATION
    if evaluation.outcome is Outcome.ACCURACY:
        accuracy = max(accuracy, SMALLEST_VIOLATION)
    excess = {name: min(x, LARGEST_VIOLATION) for name, x in evaluation.excess.items()}
    if evaluation.outcome is Outcome.LIMIT and max(excess.values(), default=0.0) <= 0:
        excess["limit"] = SMALLEST_VIOLATION  # whatever the reason: it must not look feasible
    return {"built": 0.0 if usable else 1.0, "accuracy": accuracy, **excess}


def constraint_attributes(evaluation: Evaluation) -> dict[str, float]:
    """The same constraints under the names by which Optuna stores them."""
    return dict(create_trial(state=TrialState.RUNNING, constraints=constraints(evaluation)).system_attrs)


def summary(record: Record, sequence: int) -> dict[str, Any]:
    """The JSON attribute of a finished trial: the record's key and what a reader of the study wants to see.

    sequence: how many trials had finished before it.
    """
    full = record.evaluation.to_json()
    names = ("outcome", "violation", "latency_ms", "error_ms", "fingerprint", "memory_bytes", "timed_as", "raced")
    return {
        "sequence": sequence,
        "key": dict(record.key),
        **{name: full[name] for name in (*names, "cost_s", "message")},
        "rounds": len(record.evaluation.rounds),
        "clock_s": record.clock_s,
        "finished_at": record.finished_at,
    }


class Parameters:
    """Code vectors of a space as Optuna parameters: one categorical per varying knob, its values as choices."""

    def __init__(self, space: SearchSpace) -> None:
        """For the trials of studies on `space`."""
        self.space = space
        self.distributions: dict[str, BaseDistribution] = {
            d.name: CategoricalDistribution(d.values) for d in space.dimensions
        }
        # Checked once: `create_trial` compares every distribution with itself, which takes most of its time.
        self._template = create_trial(
            state=TrialState.RUNNING,
            params={d.name: d.values[d.default] for d in space.dimensions},
            distributions=self.distributions,
        )
        self._codes = [{value: code for code, value in enumerate(values)} for values in space.values]

    def running_trial(self, codes: Codes, until: Phase) -> FrozenTrial:
        """A RUNNING trial with all its parameters, to be stored in one operation."""
        params = {n: v[c] for n, v, c in zip(self.space.names, self.space.values, codes.tolist(), strict=True)}
        trial = copy(self._template)
        trial.params = params
        trial.user_attrs = {UNTIL: until.name}
        trial.datetime_start = datetime.now()
        return trial

    def read(self, params: Mapping[str, Any], user_attrs: Mapping[str, Any]) -> tuple[Codes, Phase]:
        """Codes int16 (d,) and phase of a stored trial. Raises KeyError when it is none of ours."""
        if len(params) != len(self.space):
            raise KeyError("parameters")
        codes = [by_value[params[name]] for name, by_value in zip(self.space.names, self._codes, strict=True)]
        return np.asarray(codes, np.int16), Phase[user_attrs[UNTIL]]
