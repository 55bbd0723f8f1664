"""Optuna's NSGA-II: a generational genetic algorithm, with failures ranked by how badly they fail.

With one objective, non-dominated sorting is sorting. Each generation holds `population` trials, drawn by
crossover and mutation from the best of the generations before; the first one is uniform. Mutation resets a knob
uniformly, so routes change half of all knobs from the start: this is the yardstick that users of Optuna know,
and `genetic` is what a genetic algorithm for this setting looks like.

Good at: a yardstick; budgets of thousands. Bad at: a few hundred builds of routes whose defaults are good: the
first generation alone costs `population` builds far from the reference.

Source: Deb, Pratap, Agarwal and Meyarivan, "A fast and elitist multiobjective genetic algorithm: NSGA-II", IEEE
Trans. Evol. Comput. 6, 2002, section III (and VI for constraints); the implementation is Optuna's `NSGAIISampler`, with
uniform crossover and uniform mutation in place of the paper's operators.
"""

from __future__ import annotations

from typing import ClassVar

from gpt_search import History, InputError, OptunaStrategy, Proposal, SearchSpace, Streams


class Nsga2:
    """Optuna's NSGA-II, asked again and told its own trials on resume.

    population: trials per generation. crossover: chance of a child having two parents. swap: chance of a
    knob coming from the second one. mutation: chance of a knob being drawn anew; none for 1 / knobs.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(
        self, population: int = 20, crossover: float = 0.9, swap: float = 0.5, mutation: float | None = None
    ) -> None:
        """Raises InputError unless population >= 2 and the chances are between 0 and 1."""
        if population < 2:
            raise InputError(f"population is {population}; a generation has at least 2 trials")
        chances = {"crossover": crossover, "swap": swap} | ({} if mutation is None else {"mutation": mutation})
        for name, chance in chances.items():
            if not 0 <= chance <= 1:
                raise InputError(f"{name} is {chance}; a chance is between 0 and 1")
        own = {} if mutation is None else {"mutation_prob": mutation}
        self._optuna = OptunaStrategy(
            "NSGAIISampler", population_size=population, crossover_prob=crossover, swapping_prob=swap, **own
        )

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The sampler's suggestion, or the nearest untried route; None when all were tried, or between generations."""
        return self._optuna.propose(space, history, streams)
