"""What the adapter derives from a prefix of one history: a mirror, and what its sampler attached to it.

A sampler keeps its memory in the study it is asked in, so a session keeps a study in memory, a
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

A failure is shown in the form that the sampler understands (`Session.show`).
"""

from __future__ import annotations

import math
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams

if TYPE_CHECKING:
    from gpt_search.search.optuna_mirror import Mirror


class Habits(NamedTuple):
    """How a sampler wants to be treated.

    learns: whether it reads the rows at all. asks: how often it is asked before another untried
    route is taken. lead: for replayed samplers, the trials before the first generation; None for fed ones.
    """

    learns: bool = True
    asks: int = 8
    lead: int | None = None


class Session(ABC):
    """A mirror of one history, and the samplers asked in it."""

    def __init__(
        self,
        name: str,
        habits: Habits,
        options: Mapping[str, Any],
        space: SearchSpace,
        history: History,
        streams: Streams,
    ) -> None:
        from gpt_search.search.optuna_mirror import Mirror

        self.name = name
        self.habits = habits
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

    @abstractmethod
    def suggest(self, history: History, streams: Streams) -> Codes | None:
        """The suggestion for `history.next_trial`, tried before or not; None while it must wait."""

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
        for _ in range(self.habits.asks - 1):
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


class Fed(Session):
    """For samplers that read nothing but parameters, values and constraints."""

    _rows = 0

    def suggest(self, history: History, streams: Streams) -> Codes | None:
        """The suggestion for `history.next_trial`, tried before or not; never None."""
        if not self.habits.learns:
            return self.asked(history.next_trial, streams, history.contains)[0]
        for row in range(self._rows, len(history)):
            self.show(history, row)
        self._rows = len(history)
        pending = history.pending if history.n_pending else None
        return self.asked(history.next_trial, streams, history.contains, pending)[0]


class Replayed(Session):
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
        """The suggestion for `history.next_trial`, tried before or not; None while an earlier generation is running."""
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
        lead = self.habits.lead or 0
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


def failure(outcome: int, violation: float) -> float:
    """How badly a route failed, in 0 .. 1: 0 is feasible, 1 no usable engine.

    A missed tolerance is 1 - 1 / (1 + violation): at most 1, and larger for a larger violation
    (NaN or infinity count as 1). Everything else, no outputs at all, is 1. outcome: a value of `Outcome`.
    """
    if outcome == Outcome.OK:
        return 0.0
    if outcome not in (Outcome.ACCURACY, Outcome.LIMIT) or math.isnan(violation) or violation == math.inf:
        return 1.0
    excess = max(violation, 0.0)
    # Each step rounds without changing the order, which excess / (1 + excess) does not.
    return max(1.0 - 1.0 / (1.0 + excess), sys.float_info.epsilon)  # a loss equal to its tolerance fails as well
