"""One cell of an experiment: one study of the largest budget, looked at after each of the smaller ones."""

from __future__ import annotations

import numpy as np

from gpt_search.domain.budget import row_at
from gpt_search.run.arena import Arena
from gpt_search.run.experiment import Coordinates, Experiment
from gpt_search.search.prefixes import Seen, charged, recommendations
from gpt_search.search.simulate import simulate
from gpt_search.search.strategy import Strategy
from gpt_search.store.cells import NONE, NOT_COMPUTED, Cell


def run_cell(experiment: Experiment, where: Coordinates, arena: Arena) -> tuple[Cell, dict[str, float]]:
    """Runs one study and returns its cell, and what is not part of the result: seconds that the strategy thought.

    The seed follows from the coordinates, so the cell is the same whatever ran before it, in whichever process.
    Raises StrategyError and InputError as `simulate` does, and what the strategy's constructor raises.
    """
    plan, seed = experiment.strategy(where.strategy), experiment.seed_of(where)

    def make() -> Strategy:
        return arena.strategy(plan.make())

    measure, budget = Seen(arena.study(seed)), experiment.budget
    done = simulate(
        arena.space,
        make(),
        measure,
        trials=budget.trials,
        seed=seed,
        builds=budget.builds,
        seconds=budget.seconds,
        noise=arena.noise,
    )
    history = done.history
    builds, seconds = charged(measure.seen)
    rows = {
        int(row) for axis, budgets in experiment.checkpoints.items() for row in row_at(axis, builds, seconds, budgets)
    }
    chosen = recommendations(make, arena.space, measure.seen, rows, arena.noise)
    recommended = np.full(len(history), NOT_COMPUTED, np.int32)
    for row, found in chosen.items():
        recommended[row] = NONE if found is None else found
    cell = Cell(
        task=where.task,
        strategy=where.strategy,
        seed=where.seed,
        trial=history.trial,
        builds=builds,
        seconds=seconds,
        outcome=history.outcome,
        until=history.until,
        value=history.value,
        truth=arena.truth(history.codes),
        route=history.route,
        recommended=recommended,
        timed=(history.cost("time") > 0).astype(np.int8),
        facts={
            **arena.facts(),
            "checkpoints": {axis: list(budgets) for axis, budgets in experiment.checkpoints.items()},
            "axis": experiment.axis,
            "end": done.end.name,
            "label": arena.label,
        },
    )
    return cell, {"proposals_s": float(done.proposal_seconds.sum())}
