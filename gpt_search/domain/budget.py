"""The budget of a study: in trials, builds or seconds, whichever is spent first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt_search.domain.errors import InputError

AXES = ("trials", "builds", "seconds")
"""What a budget may count."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a study; None means no limit. The reference (trial 0) is not charged.

    trials: proposals started. builds: engines built, build-only probes included.
    seconds: the study's clock (live, the wall time since the reference has finished; in simulation,
        the recorded cost); a trial that has started when the time is up is finished.
    """

    trials: int | None = None
    builds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Raises InputError for a negative limit."""
        for name in ("trials", "builds", "seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InputError(f"the budget in {name} is {value}; it must be 0 or more")

    def spent(self, trials: int, builds: int, seconds: float) -> str | None:
        """The name of the limit that is reached, or None while there is budget left."""
        if self.trials is not None and trials >= self.trials:
            return "trials"
        if self.builds is not None and builds >= self.builds:
            return "builds"
        if self.seconds is not None and seconds >= self.seconds:
            return "seconds"
        return None


def row_at(axis: str, builds: ArrayLike, seconds: ArrayLike, budgets: ArrayLike) -> NDArray[np.intp]:
    """The last row that a study of each budget has: int (b,). builds, seconds: (n,), charged so far.

    axis "trials": row number b; "builds": the first row with b builds, after which the loop stops; "seconds": the last
    row that had finished by then. A study that ended before stays as it ended. Raises InputError for another axis.
    """
    builds, seconds = np.asarray(builds), np.asarray(seconds)
    wanted = np.asarray(budgets, np.float64)
    if axis == "trials":
        found = wanted.astype(np.intp)
    elif axis == "builds":
        found = np.searchsorted(builds, wanted, "left")
    elif axis == "seconds":
        found = np.searchsorted(seconds, wanted, "right") - 1
    else:
        raise InputError(f"a budget is counted in trials, builds or seconds, not in {axis!r}")
    return np.clip(found, 0, len(builds) - 1)
