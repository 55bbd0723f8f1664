"""Optuna's samplers as strategies, and strategies as Optuna's samplers.

A sampler keeps its memory in the study it is asked in, so the adapter keeps a study in memory, a
*mirror*, that holds the rows of the history, and asks a freshly made sampler, seeded from the
trial's own stream, in it. Two kinds of samplers need two ways of filling the mirror:

- *Fed* samplers (TPE, GP, QMC, random) read nothing but parameters and values. The finished rows
  are added in completion order and pending ones are shown as running.
- *Replayed* samplers (NSGA-II, CMA-ES) keep their state (generation, parents, covariance) in
  attributes of the trials they were asked for, and learn nothing from trials they were not asked
  for. What a sampler attached to ask t is kept for row t; a resumed study asks again, in order, to
  get it back. Rows are added one generation at a time, in trial order, when the whole generation
  has finished, so that ask t depends on the trials before its generation alone: a resumed study
  continues exactly as an uninterrupted one with any number of builders.

A failure is shown in the form that the sampler understands (`_Session.show`).
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gpt_search.domain.errors import InputError, did_you_mean, listing
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.strategy import Proposal, Strategy

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from gpt_search.search.optuna_mirror import Mirror

_ASKS = 8  # how often a sampler is asked before another untried route is taken


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
    """A sampler that the adapter knows. lead: for replayed ones, trials before the first generation."""

    options: Mapping[str, _Range | _Choice]
    learns: bool = True
    asks: int = _ASKS
    lead: int | None = None


# Only options that keep a sampler a function of its seed and the rows; the seed is the adapter's.
_KNOWN: Mapping[str, _Known] = {
    "TPESampler": _Known({"n_startup_trials": _Range(int), "n_ei_candidates": _Range(int, 1)}),
    # A second ask would refit the same Gaussian process: seconds, for the same maximum.
    "GPSampler": _Known({"n_startup_trials": _Range(int), "deterministic_objective": _Range(bool)}, asks=1),
    "QMCSampler": _Known({"qmc_type": _Choice(("sobol", "halton")), "scramble": _Range(bool)}, learns=False, asks=1),
    "RandomSampler": _Known({}, learns=False),
    "NSGAIISampler": _Known(
        {
            "population_size": _Range(int, 2),
            "mutation_prob": _SHARE,
            "crossover_prob": _SHARE,
            "swapping_prob": _SHARE,
        },
        lead=0,
    ),
    # The first trial is drawn at random by Optuna: here it is the reference.
    "CmaEsSampler": _Known(
        {
            "popsize": _Range(int, 4),
            "use_separable_cma": _Range(bool),
            "with_margin": _Range(bool),
            "lr_adapt": _Range(bool),
        },
        lead=1,
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
        self._session: _Fed | _Replayed | None = None

    def __repr__(self) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"OptunaStrategy({self.sampler!r}{options})"

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The sampler's suggestion, or the nearest untried route; None when all were tried, or while it must wait."""
        if _tried(history) >= space.size:
            return None
        session = self._session
        if session is None or not session.continues(space, history, streams):
            make = _Fed if self._known.lead is None else _Replayed
            session = self._session = make(self.sampler, self._known, self.options, space, history, streams)
        codes = session.suggest(history, streams)
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


# -- sessions: what is derived from a prefix of one history ----------------------------------------
class _Session:
    """A mirror of one history, and the samplers asked in it."""

    def __init__(
        self,
        name: str,
        known: _Known,
        options: Mapping[str, Any],
        space: SearchSpace,
        history: History,
        streams: Streams,
    ) -> None:
        from gpt_search.search.optuna_mirror import Mirror

        self.name = name
        self.known = known
        self.options = dict(options)
        self.space = space
        self._history = weakref.ref(history)
        self._seed = (type(streams.seed), streams.seed)
        self.mirror: Mirror = Mirror(space, integer_codes=name == "CmaEsSampler")
        self._feasible: float | None = None

    def continues(self, space: SearchSpace, history: History, streams: Streams) -> bool:
        """True when the session was derived from a prefix of this history.

        A history only grows, so the object itself is the proof; a rebuilt one starts a new session.
        """
        return (
            self._history() is history
            and (self.space is space or self.space == space)
            and self._seed == (type(streams.seed), streams.seed)
        )

    def suggest(self, history: History, streams: Streams) -> Codes | None:
        """The suggestion for `history.next_trial`, tried before or not; None while it must wait."""
        raise NotImplementedError

    def asked(
        self, t: int, streams: Streams, known: Callable[[Codes], bool], pending: Codes | None = None
    ) -> tuple[Codes, dict[str, Any]]:
        """Asks for trial t until the suggestion is a new one, a few times at most."""
        from gpt_search.search.optuna_mirror import make_sampler

        seed = int(streams.trial(t, f"optuna:{self.name}").integers(2**32))
        study_seed = int(streams.trial(0, f"optuna:{self.name}:study").integers(2**32))
        # Trial 0 is the reference: the first proposal is trial 1, at position 0 of a sequence.
        sampler = make_sampler(self.name, seed, study_seed, max(t - 1, 0), self.options)
        codes, attached = self.mirror.ask(sampler, pending)
        for _ in range(self.known.asks - 1):
            if not known(codes):
                break
            codes, attached = self.mirror.ask(sampler, pending)
        return codes, attached

    def show(self, history: History, row: int, attached: Mapping[str, Any] | None = None) -> None:
        """Adds a finished row to the mirror, a failure in the form that the sampler understands.

        A row that was feasible and not timed says nothing about speed: it is left out.
        """
        from optuna.trial import TrialState

        value: float | None = float(history.value[row])
        if value is not None and math.isnan(value):
            value = None
        failed = failure(int(history.outcome[row]), float(history.violation[row]))
        if failed == 0:
            if value is None:
                return
            self._feasible = value
        codes = history.codes[row]
        if self.name == "TPESampler":
            # TPE ranks by constraint first and needs no value; without the constraint, PRUNED would rank as feasible.
            if failed:
                self.mirror.show(codes, TrialState.PRUNED, None, failed)
            else:
                self.mirror.show(codes, TrialState.COMPLETE, value)
        elif self.name == "GPSampler":
            # The GP reads COMPLETE trials only, models the constraint by its own process, with zero as the
            # limit, and wants it on all of them. A failure must not tilt the model of the speed: it gets
            # the last feasible value before it.
            value = value if value is not None else self._feasible
            if value is not None:
                self.mirror.show(codes, TrialState.COMPLETE, value, failed or -1.0)
        else:
            # NSGA-II and CMA-ES count COMPLETE trials only and compare values by rank, so any number above
            # all latencies is a rank behind all of them, the smaller failure first. CMA-ES has no constraints.
            value = sys.float_info.max * failed if failed else value
            constraint = failed if self.name == "NSGAIISampler" else None
            self.mirror.show(codes, TrialState.COMPLETE, value, constraint, attached)


class _Fed(_Session):
    """For samplers that read nothing but parameters, values and constraints."""

    _rows = 0

    def suggest(self, history: History, streams: Streams) -> Codes | None:
        if not self.known.learns:
            return self.asked(history.next_trial, streams, history.contains)[0]
        for row in range(self._rows, len(history)):
            self.show(history, row)
        self._rows = len(history)
        pending = history.pending if history.n_pending else None
        return self.asked(history.next_trial, streams, history.contains, pending)[0]


class _Replayed(_Session):
    """For samplers that keep their state in the trials they were asked for.

    Trials are counted in the order of their numbers. Generation g holds the asks
    lead + g * population ... lead + (g + 1) * population - 1.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: list[tuple[Codes, dict[str, Any]]] = []
        self._tried: set[bytes] = set()
        self._shown = 0
        if self.name == "CmaEsSampler":
            # Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772, equation 48: also cmaes' default.
            default = 4 + math.floor(3 * math.log(max(len(self.mirror.free), 1)))
            self._population = int(self.options.setdefault("popsize", default))
            if len(self.mirror.free) == 1:
                self.options["use_separable_cma"] = False  # Optuna ignores it for one knob, with a warning
        else:
            self._population = int(self.options.get("population_size", 50))  # Optuna's default

    def suggest(self, history: History, streams: Streams) -> Codes | None:
        t, n = history.next_trial, len(history)
        order = np.argsort(np.concatenate([history.trial, history.pending_trials]), kind="stable")
        if (order[: self._generation_start(t)] >= n).any():
            return None  # a trial of an earlier generation is pending
        codes = np.concatenate([history.codes, history.pending])[order]
        while len(self._asked) <= t:
            now = len(self._asked)
            while self._shown < self._generation_start(now):
                self._show(history, int(order[self._shown]), self._shown)
                self._shown += 1
            if now:
                self._tried.add(codes[now - 1].tobytes())
            self._asked.append(self.asked(now, streams, lambda c: c.tobytes() in self._tried))
        return self._asked[t][0]

    def _generation_start(self, t: int) -> int:
        lead = self.known.lead or 0
        return 0 if t < lead else t - (t - lead) % self._population

    def _show(self, history: History, row: int, t: int) -> None:
        """Shows trial t with what was attached to its ask, made to fit what was evaluated instead."""
        suggested, attached = self._asked[t]
        if t != self._generation_start(t):
            # All asks of a generation carry the same optimizer, up to megabytes: its first row is enough.
            attached = {k: v for k, v in attached.items() if ":optimizer" not in k}
        if "x_for_tell" in attached:
            # CMA-ES with margin is told the point behind the codes; where a code was changed afterwards that is the
            # code itself, on the scale 0 .. 1. Hamano et al., "CMA-ES with Margin", GECCO 2022, section 3.1.
            free = self.mirror.free
            codes = history.codes[row][free]
            scaled = codes / (self.space.cardinalities[free] - 1)
            attached = attached | {
                "x_for_tell": np.where(codes != suggested[free], scaled, attached["x_for_tell"]).tolist()
            }
        self.show(history, row, attached)
        self._asked[t] = (suggested, {})


# -- failures and duplicates -----------------------------------------------------------------------
def failure(outcome: int, violation: float) -> float:
    """How badly a route failed, in 0 .. 1: 0 is feasible, 1 no usable engine.

    A missed tolerance is violation / (1 + violation): less than 1, and larger for a larger violation
    (NaN or infinity count as 1). Everything else, no outputs at all, is 1. outcome: a value of `Outcome`.
    """
    if outcome == Outcome.OK:
        return 0.0
    if outcome != Outcome.ACCURACY or math.isnan(violation) or violation == math.inf:
        return 1.0
    excess = max(violation, 0.0)
    return max(excess / (1.0 + excess), sys.float_info.epsilon)  # a loss equal to its tolerance fails as well


def _tried(history: History) -> int:
    """Number of distinct routes that are finished or pending."""
    if not history.n_pending:
        return history.n_routes
    return history.n_routes + len({c.tobytes() for c in history.pending if not history.rows_of(c)})


def nearest_untried(space: SearchSpace, history: History, near: Codes, rng: np.random.Generator) -> Codes:
    """A route that was not tried: a random single change of `near`, else uniform over all untried routes.

    Raises ValueError when every route was tried.
    """
    around = space.neighbours(near)
    for i in rng.permutation(len(around)):
        if not history.contains(around[i]):
            codes: Codes = around[i]
            return codes
    return uniform_untried(space, history, rng)


def uniform_untried(space: SearchSpace, history: History, rng: np.random.Generator) -> Codes:
    """A route drawn uniformly from those that were not tried. Raises ValueError when every route was tried."""
    tried = sorted({space.index_of(c) for c in (*history.codes, *history.pending)})
    left = space.size - len(tried)
    if not left:
        raise ValueError("every route of the space was tried")
    # 64 bits more than needed: the bias of the remainder is below 2^-64.
    index = int.from_bytes(rng.bytes(left.bit_length() // 8 + 9), "little") % left
    for taken in tried:
        if taken > index:
            break
        index += 1
    return space.codes_at(index)
