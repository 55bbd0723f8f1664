"""Additive functions, with and without failures, for tests of single strategies."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpt_search import Observation, Outcome, Phase, SearchSpace
from gpt_search.domain.space import Dimension


def space_of(*cardinalities: int) -> SearchSpace:
    """Knobs with so many values each, all defaults at code 0."""
    return SearchSpace(Dimension(f"k{i}", tuple(map(str, range(k))), 0) for i, k in enumerate(cardinalities))


class Additive:
    """log(latency) is the sum of one number per knob and code; some values fail; noise is relative and addressed."""

    def __init__(self, effects: NDArray[np.float64], noise: float = 0.0, failing: tuple[tuple[int, int], ...] = ()):
        """effects: (knobs, most values). failing: (knob, code)."""
        self.effects, self.noise, self.failing = effects, noise, failing

    def truth(self, codes: NDArray[np.int16]) -> float:
        return float(self.effects[np.arange(len(codes)), codes].sum())

    def __call__(self, codes: NDArray[np.int16], rng: np.random.Generator, until: Phase) -> Observation:
        luck = rng.standard_normal()
        if any(codes[k] == c for k, c in self.failing):
            return Observation(Outcome.CRASH, cost_s={"build": 1.0})
        value = math.exp(self.truth(codes) + self.noise * luck)
        return Observation(Outcome.OK, value, -1.0, None, {"build": 1.0}, self.noise * value or None)


def few(knobs: int, helpful: int, harmful: int) -> NDArray[np.float64]:
    """Two-valued knobs: the first ones help by 3 to 6 %, the next ones harm by as much, the rest do nothing."""
    effects = np.zeros((knobs, 2))
    effects[:helpful, 1] = -np.linspace(0.03, 0.06, helpful)
    effects[helpful : helpful + harmful, 1] = np.linspace(0.03, 0.06, harmful)
    return effects
