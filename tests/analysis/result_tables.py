"""Tables of results made up for tests, with the columns of `gpt_search.analysis.cells.frame`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike


def table(
    studies: Mapping[tuple[str, str], ArrayLike],
    *,
    budget: float = 100,
    best: float = -1.0,
    floor: float = 0.01,
    reference_ms: float = 10.0,
    tried: Mapping[tuple[str, str], ArrayLike] | None = None,
) -> pd.DataFrame:
    """One row per seed. studies: by (task, strategy) the recommended log-ratios of seeds 0, 1, ...; NaN: none."""
    parts = []
    for (task, strategy), values in studies.items():
        recommended = np.asarray(values, np.float64)
        seen = recommended if tried is None else np.asarray(tried[task, strategy], np.float64)
        parts.append(
            pd.DataFrame(
                {
                    "task": task,
                    "strategy": strategy,
                    "seed": np.arange(len(recommended)),
                    "budget": budget,
                    "recommended": recommended,
                    "tried": seen,
                    "minimum": recommended,
                    "best": best,
                    "floor": floor,
                    "reference_ms": reference_ms,
                    "timed": 10,
                    "failures": 0,
                }
            )
        )
    out = pd.concat(parts, ignore_index=True)
    return out.astype({"task": "category", "strategy": "category"})


def simulated(
    strategies: Mapping[str, float],
    *,
    tasks: int = 4,
    seeds: int = 12,
    budgets: ArrayLike = (100,),
    seed: int = 0,
    levels: int = 12,
    **facts: float,
) -> pd.DataFrame:
    """Studies that end at one of a few routes, as on a table: many ties, skewed. strategies: name -> shift in levels.

    Every budget has its own independent draws, so that budgets can serve as repeats of a simulation.
    """
    rng = np.random.default_rng(seed)
    at = np.asarray(budgets, np.float64)
    studies = {
        (f"task{t:02d}", name): -np.clip(rng.geometric(0.25, (seeds, at.size)) + shift, 0, levels) / levels * 0.9
        for t in range(tasks)
        for name, shift in strategies.items()
    }
    out = table({key: values.ravel() for key, values in studies.items()}, **facts)
    return out.assign(seed=out["seed"] // at.size, budget=at[out["seed"] % at.size])
