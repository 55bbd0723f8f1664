"""A recorded table as a task of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.space import Codes
from gpt_search.run.experiment import TaskPlan
from gpt_search.run.experiment_file import TableTask
from gpt_search.run.replay import Replay
from gpt_search.search.chance import best_of_draws
from gpt_search.search.simulate import Measure
from gpt_search.search.strategy import Strategy
from gpt_search.store.tables import load_table

_DRAWS = 60
"""Points of the curve of random search, on a logarithmic scale."""


class Replayed:
    """A table in place of the compiler, by the rules of a live study (see `run.replay`)."""

    def __init__(self, plan: TaskPlan) -> None:
        """Raises InputError: no such table, a broken one, routes missing without a policy, no feasible route."""
        section = plan.section
        assert isinstance(section, TableTask)
        self._replay = Replay(load_table(plan.folder / section.file), section.policy, section.rounds)
        self._best = self._replay.best  # where no route is feasible this raises, before anything runs
        self.space = self._replay.space
        self.noise: float | None = self._replay.noise
        self.label = self._replay.label
        costs = self._replay.table.columns.cost
        known = [np.nansum(column) for name, column in costs.items() if name != "wait"]
        rows = len(self._replay.table.columns.outcome)
        self._chance = _random_search(self._replay)
        self.seconds_per_build: float | None = float(sum(known)) / rows if rows else None

    def study(self, seed: int) -> Measure:
        """A replay that knows no engine yet."""
        return self._replay.study(seed).measure

    def strategy(self, strategy: Strategy) -> Strategy:
        """Confined to the recorded routes where the policy says so."""
        return self._replay.strategy(strategy)

    def truth(self, codes: Codes) -> NDArray[np.float64]:
        """From the half of the samples that no replay draws from."""
        return self._replay.true_log_ratio(codes)

    def facts(self) -> Mapping[str, Any]:
        """See `Cell.facts`."""
        return {
            "best": self._best,
            "best_known": self._replay.best_known,
            "floor": self._replay.floor,
            "reference_ms": self._replay.reference_ms,
            "n_routes": len(self._replay.table),
            "builds_behind": self._replay.builds_behind,
            **({} if self._chance is None else {"random_search": self._chance}),
        }


def _random_search(replay: Replay) -> dict[str, list[float]] | None:
    """The exact curve of random search without replacement: the true best that k draws have met, as log-ratios.

    Keys: draws (whole numbers, ascending, closer together where there are few), expected, q25, median, q75. None for a
    table that lacks routes: nobody knows what a draw among those would find.
    """
    table = replay.table
    if not table.complete or len(table) < 2:
        return None
    others = np.delete(table.truth, table.reference)
    draws = np.unique(np.geomspace(1, len(others), _DRAWS).round().astype(np.int64))
    columns = best_of_draws(others, draws).round(9).T.tolist()
    return {"draws": draws.tolist(), **dict(zip(("expected", "q25", "median", "q75"), columns, strict=True))}
