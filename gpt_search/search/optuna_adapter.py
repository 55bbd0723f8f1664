"""Optuna's samplers as strategies, and strategies as Optuna's samplers.

How a sampler is asked so that a study can be resumed without stored state: `optuna_sessions`.
How a study's trials become a history: `optuna_sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.history import History
from gpt_search.domain.space import SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.optuna_sessions import Fed, Habits, Replayed
from gpt_search.search.strategy import Proposal, Strategy
from gpt_search.search.untried import nearest_untried, tried

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class _Range(NamedTuple):
    """What an option may be: an int or a float between low and high, or a bool."""

    kind: type
    low: float = 0.0
    high: float = math.inf

    def __str__(self) -> str:
        if self.kind is bool:
            return "true or false"
        what = "a whole number" if self.kind is int else "a number"
        return f"{what} of at least {self.low:g}" + ("" if self.high == math.inf else f" and at most {self.high:g}")

    def holds(self, value: object) -> bool:
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        allowed = int if self.kind is int else (int, float)
        return isinstance(value, allowed) and self.low <= value <= self.high


class _Choice(NamedTuple):
    """What an option may be: one of these texts."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(self.values)

    def holds(self, value: object) -> bool:
        return value in self.values


_SHARE = _Range(float, 0, 1)


class _Known(NamedTuple):
    """A sampler that the adapter knows: the options it takes, and its habits."""

    options: Mapping[str, _Range | _Choice]
    habits: Habits = Habits()


# Only options that keep a sampler a function of its seed and the rows; the seed is the adapter's.
_KNOWN: Mapping[str, _Known] = {
    "TPESampler": _Known({"n_startup_trials": _Range(int), "n_ei_candidates": _Range(int, 1)}),
    # A second ask would refit the same Gaussian process: seconds, for the same maximum.
    "GPSampler": _Known({"n_startup_trials": _Range(int), "deterministic_objective": _Range(bool)}, Habits(asks=1)),
    "QMCSampler": _Known(
        {"qmc_type": _Choice(("sobol", "halton")), "scramble": _Range(bool)}, Habits(learns=False, asks=1)
    ),
    "RandomSampler": _Known({}, Habits(learns=False)),
    "NSGAIISampler": _Known(
        {
            "population_size": _Range(int, 2),
            "mutation_prob": _SHARE,
            "crossover_prob": _SHARE,
            "swapping_prob": _SHARE,
        },
        Habits(lead=0),
    ),
    # The first trial is drawn at random by Optuna: here it is the reference.
    "CmaEsSampler": _Known(
        {
            "popsize": _Range(int, 4),
            "use_separable_cma": _Range(bool),
            "with_margin": _Range(bool),
            "lr_adapt": _Range(bool),
        },
        Habits(lead=1),
    ),
}


class OptunaStrategy:
    """A strategy that asks one of Optuna's samplers.

    Known samplers: TPESampler, GPSampler (needs torch; about 20 knobs at most, its cost grows
    steeply), QMCSampler, RandomSampler, NSGAIISampler and CmaEsSampler. CmaEsSampler works on the
    codes as integers and is separable unless `with_margin` or `lr_adapt` is set.

    Routes already tried are asked for again, a few times; then the nearest untried route is taken:
    a random single change of the last suggestion, and when all of those were tried a route drawn
    uniformly from the untried ones. The strategy ends when every route was tried.

    NSGAIISampler and CmaEsSampler work in generations: with several builders the next generation
    waits (None) until the last trial of the one before has finished.

    Sources: Akiba et al., "Optuna", KDD 2019; the papers of each sampler are in Optuna's documentation.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, sampler: str | type, **options: bool | int | float | str) -> None:
        """sampler: the name or the class of a known sampler; options: of its constructor, see the error for which.

        Raises InputError for a sampler or an option that the adapter does not know, or a value
        that the option does not take.
        """
        name = sampler if isinstance(sampler, str) else getattr(sampler, "__name__", type(sampler).__name__)
        ours = isinstance(sampler, str) or str(getattr(sampler, "__module__", "")).startswith("optuna.samplers")
        if isinstance(sampler, type | str) and name in _KNOWN and ours:
            self._known = _KNOWN[name]
        elif name in _KNOWN and ours:
            raise InputError(f"got a {name} object; pass the class or its name with the options beside it")
        else:
            raise InputError(
                f"sampler {name!r} cannot be used as a strategy: it may keep state that a resumed study would lose; "
                f"known samplers: {listing(_KNOWN)}{did_you_mean(name, _KNOWN)}"
            )
        if name == "GPSampler" and find_spec("torch") is None:
            raise InputError("GPSampler needs torch, which is not installed; run: pip install torch")
        self.sampler = name
        self.options: dict[str, bool | int | float | str] = dict(options)
        for option, value in options.items():
            allowed = self._known.options.get(option)
            if allowed is None:
                raise InputError(
                    f"{name} has no option {option!r} here; known options: "
                    f"{listing(self._known.options) or 'none'}{did_you_mean(option, self._known.options)}"
                )
            if not allowed.holds(value):
                raise InputError(f"option {option}={value!r} of {name}: expected {allowed}")
        if name == "CmaEsSampler":
            chosen = [o for o in ("use_separable_cma", "with_margin", "lr_adapt") if options.get(o)]
            if len(chosen) > 1:
                raise InputError(f"CmaEsSampler takes one of {' and '.join(chosen)}, not both")
            if not chosen:
                self.options.setdefault("use_separable_cma", True)
        self._session: Fed | Replayed | None = None

    def __repr__(self) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"OptunaStrategy({self.sampler!r}{options})"

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The sampler's suggestion, or the nearest untried route; None when all were tried, or while it must wait."""
        if tried(history) >= space.size:
            return None
        session = self._session
        if session is None or not session.continues(space, history, streams):
            make = Fed if self._known.habits.lead is None else Replayed
            session = make(self.sampler, self._known.habits, self.options, space, history, streams)
        self._session = None  # a session that was interrupted half-way is not used again
        codes = session.suggest(history, streams)
        self._session = session
        if codes is None:
            return None
        if history.contains(codes):
            rng = streams.trial(history.next_trial, f"optuna:{self.sampler}:untried")
            codes = nearest_untried(space, history, codes, rng)
        return Proposal(codes)


def as_sampler(
    strategy: Strategy | str, space: SearchSpace, seed: int | str = 0, noise: float | None = None
) -> BaseSampler:
    """A sampler for a plain `study.optimize` that proposes what the strategy proposes.

    strategy: a Strategy, or a spec for `load_strategy`. space: the knobs; the objective asks for
    them with `trial.suggest_categorical(name, values)`, values as in the space. seed: of the
    streams; a study that is loaded again with the same seed continues, it does not repeat.
    noise: relative standard deviation of one value, or None where unknown.

    The details of the correspondence are documented at `StrategySampler`. Raises what
    `load_strategy` raises.
    """
    from gpt_search.search.optuna_sampler import StrategySampler

    if isinstance(strategy, str):
        from gpt_search.search.discovery import load_strategy

        strategy = load_strategy(strategy)
    return StrategySampler(strategy, space, seed, noise)
