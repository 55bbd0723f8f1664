"""Running a strategy against a function instead of a compiler, by the rules of a live study."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.budget import Budget
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.search.loop import End, Trial, run_loop
from gpt_search.search.strategy import Strategy, recommended_rows

Measure = Callable[[Codes, np.random.Generator, Phase], Observation]


@dataclass(frozen=True)
class SimulationResult:
    """What a simulated study learnt; n rows in completion order, row 0 is the reference.

    codes int16 (n, d); latency_ms float64 (n,), NaN where none; outcome (n,), members of `Outcome`;
    violation float64 (n,), NaN where not measured; until (n,), members of `Phase`; cost_s float64
    (n,), all phases added; recommended: a row, or None where nothing is feasible;
    proposal_seconds float64 (n,), wall time of each proposal; end: why the study ended.
    """

    codes: Codes
    latency_ms: NDArray[np.float64]
    outcome: NDArray[np.object_]
    violation: NDArray[np.float64]
    until: NDArray[np.object_]
    cost_s: NDArray[np.float64]
    recommended: int | None
    proposal_seconds: NDArray[np.float64]
    end: End
    history: History

    def __len__(self) -> int:
        return len(self.codes)


_OUTCOMES: NDArray[np.object_] = np.empty(len(Outcome), dtype=object)
_OUTCOMES[:] = list(Outcome)
_PHASES: NDArray[np.object_] = np.empty(len(Phase) + 1, dtype=object)
_PHASES[1:] = list(Phase)


def simulate(
    space: SearchSpace,
    strategy: Strategy | str,
    measure: Measure,
    trials: int | None = 200,
    seed: int | str = 0,
    *,
    builds: int | None = None,
    seconds: float | None = None,
    noise: float | None = None,
) -> SimulationResult:
    """Runs `strategy` on `measure` with the loop, budget, duplicate and seeding rules of a live study.

    strategy: a Strategy, or a spec for `load_strategy`.
    measure(codes, rng, until): codes int16 (d,); rng addressed by the trial, so equal trials get
        equal noise whatever the strategy did before; until, how far to go. Called for the
        reference first, which is not charged.
    trials, builds, seconds: the budget; seconds are those that `measure` reports as cost.
    noise: relative standard deviation of one value, as a live study measures it, or None.

    Raises StrategyError when the strategy breaks its contract, ValueError for a feasible route whose
    latency is not positive and finite, and what `measure` raises.
    """
    if isinstance(strategy, str):
        from gpt_search.search.discovery import load_strategy

        chosen: Strategy = load_strategy(strategy)
    else:
        chosen = strategy
    history = History(space, noise)
    streams = Streams(seed)
    # A seed of its own: no purpose that a strategy may name gives it the numbers of the noise.
    noise_of = Streams(seed_from(seed, "measure")).trial
    proposal_s: list[float] = []

    def evaluate(trial: Trial) -> Observation:
        proposal_s.append(trial.proposal_s)
        found = measure(trial.codes, noise_of(trial.number), trial.until)
        value = found.latency_ms
        if found.outcome is Outcome.OK and value is not None and (value <= 0 or value == math.inf):
            raise ValueError(
                f"measure gave trial {trial.number} the latency {value} ms; it must be positive and finite"
            )
        return found

    end = run_loop(space, chosen, history, streams, Budget(trials, builds, seconds), evaluate)
    rows = recommended_rows(chosen, history) if len(history) else []
    total: Any = sum((history.cost(p) for p in history.phases_of_cost), np.zeros(len(history)))
    return SimulationResult(
        codes=history.codes.copy(),
        latency_ms=history.value.copy(),
        outcome=_OUTCOMES[history.outcome],
        violation=history.violation.copy(),
        until=_PHASES[history.until],
        cost_s=total,
        recommended=rows[0] if rows else None,
        proposal_seconds=np.asarray(proposal_s),
        end=end,
        history=history,
    )
