"""A strategy as an Optuna sampler, for a plain `study.optimize`.

Imports Optuna: `optuna_adapter.as_sampler` imports this module on first use only.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import BaseStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from gpt_search.domain.errors import InputError
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.loop import checked_codes
from gpt_search.search.strategy import Strategy, blamed
from gpt_search.search.threads import OneBlasThread
from gpt_search.search.untried import uniform_untried

_ROUTE = "gpt_search:route"
_OUTCOMES = tuple(Outcome)


class StrategySampler(BaseSampler):
    """Proposes what a strategy proposes; the study's trials are its history.

    - The first trial is the reference route. In a study that has other trials already, the next one
      is, unless one of them was. The study ends with an InputError when the reference fails.
    - COMPLETE is OK, its value the latency. A constraint above 0 makes it a failure: BUILD_ERROR
      when it is called `built`, else ACCURACY with the largest constraint as the violation. PRUNED
      is the same, and ACCURACY without a constraint. FAIL, and a value that is not finite, is CRASH.
    - RUNNING trials are pending, those of other processes too, and those that a killed process left.
    - A trial of another origin (enqueued, added) counts once it has finished, with its own
      parameters, knobs that it does not have at their default; it is left out when a value is not
      of the space.
    - Parameters that are not in the space are drawn at random, from streams of their own.
    - How far a proposal wants to go (`Proposal.until`) is not known to an objective: every trial
      counts as evaluated to the end.
    - When the strategy has nothing left, `study.stop()` is called; the trial that was being started
      is the last one and gets the reference route again. With `study.ask()`, which cannot be
      stopped, a warning says so.
    - With `n_jobs` above 1, trials that are asked for before the reference has finished, or while
      the strategy waits for a pending trial, get a route drawn uniformly from the untried ones.

    Randomness is addressed by the trial's number, so a study that is loaded again does not repeat
    its start, and `reseed_rng`, which Optuna calls in each thread, does nothing.
    """

    def __init__(self, strategy: Strategy, space: SearchSpace, seed: int | str = 0, noise: float | None = None) -> None:
        """See `as_sampler`."""
        self._strategy = strategy
        self._space = space
        self._noise = noise
        self._streams = Streams(seed)
        self._distributions: dict[str, BaseDistribution] = {
            n: CategoricalDistribution(v) for n, v in zip(space.names, space.values, strict=True) if len(v) > 1
        }
        self._lock = threading.RLock()
        self._view: _View | None = None

    def reseed_rng(self) -> None:
        """Does nothing: threads share the sampler, and its streams are addressed by trial."""

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Raises InputError unless the study minimises one value."""
        if list(study.directions) != [StudyDirection.MINIMIZE]:
            asked = ", ".join(d.name.lower() for d in study.directions)
            raise InputError(
                f"this sampler minimises a latency, the study's directions are: {asked}; "
                "create the study with direction='minimize'"
            )

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every knob with more than one value; Optuna itself fills in the others."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values of the route that the strategy proposes for this trial.

        Raises StrategyError when the proposal is not a route of the space or is pending, and
        InputError when the reference route failed, so that there is nothing to compare with.
        """
        if not search_space:
            return {}
        with self._lock:
            codes = self._next(study, trial)
            # As Optuna's own samplers do: parameters are stored one by one while the objective asks for them, and
            # other threads and processes must know the whole route at once.
            study._storage.set_trial_system_attr(trial._trial_id, _ROUTE, _text_of(codes, self._space))
            assert self._view is not None
            self._view.asked.add(trial.number)
        values = zip(self._space.names, self._space.values, codes.tolist(), strict=True)
        return {name: choices[code] for name, choices, code in values if name in search_space}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value for a parameter that is not in the space."""
        with self._lock:
            seed = int(self._streams.trial(trial.number, f"independent:{param_name}").integers(2**32))
        return RandomSampler(seed=seed).sample_independent(study, trial, param_name, param_distribution)

    def _next(self, study: Study, trial: FrozenTrial) -> Codes:
        space = self._space
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        view = self._view
        if view is None or not view.update(study, trials):
            view = self._view = _View(study, space, self._noise, view.asked if view and view.of(study) else set())
            view.update(study, trials)
        if not view.has_reference:
            return space.default
        history = view.history
        if not len(history):
            return self._any_untried(history, trial)
        if math.isnan(history.value[0]):
            raise InputError(
                f"the reference route (trial {int(history.trial[0])}) failed: "
                f"{_OUTCOMES[int(history.outcome[0])].explanation}; "
                "it must be measurable before others can be compared with it"
            )
        with OneBlasThread(), blamed(self._strategy, "propose"):
            proposal = self._strategy.propose(space, history, self._streams)
        if proposal is not None:
            return checked_codes(proposal, space, history, self._strategy)
        if any(number in view.asked for number in history.pending_trials):
            return self._any_untried(history, trial)
        try:
            study.stop()
        except RuntimeError:  # asked for outside of study.optimize
            warnings.warn("the strategy has nothing left to propose: the reference route again", stacklevel=2)
        return space.default

    def _any_untried(self, history: History, trial: FrozenTrial) -> Codes:
        """A route for a trial that cannot wait; the reference again when there is no untried one."""
        try:
            return uniform_untried(self._space, history, self._streams.trial(trial.number, "untried"))
        except ValueError:
            return self._space.default


class _View:
    """The history of one study, brought up to date from its trials.

    Finished trials come in the order of their completion, the reference first; nothing is finished
    before the reference is.
    """

    def __init__(self, study: Study, space: SearchSpace, noise: float | None, asked: set[int]) -> None:
        self._storage: BaseStorage = study._storage
        self._study_id = study._study_id
        self._space = space
        self.history = History(space, noise)
        self.asked = asked  # numbers of the trials that this process asked for
        self.has_reference = False
        self._known: dict[int, tuple[Codes, bool]] = {}  # trial number -> codes, finished

    def of(self, study: Study) -> bool:
        """True when this is a view of that study."""
        return self._storage is study._storage and self._study_id == study._study_id

    def update(self, study: Study, trials: Sequence[FrozenTrial]) -> bool:
        """Takes in what is new. False when the trials are no continuation, and a new view must be made."""
        if not self.of(study):
            return False
        new: list[tuple[FrozenTrial, Codes]] = []
        last = max(self._known, default=-1)
        for trial in trials:
            known = self._known.get(trial.number)
            if known is not None and known[1]:
                continue
            codes = _codes_of(trial, self._space)
            if codes is None:
                if known is not None:
                    return False
                continue
            if known is None and trial.number < last:
                return False  # strategies count on trial numbers that only grow
            if known is not None and (codes != known[0]).any():
                return False  # other parameters than announced, by an enqueued trial
            new.append((trial, codes))
        if len(self.history):
            self._start(new)
            self._finish(new)
        else:
            self._begin(new)
        return True

    def _begin(self, new: Sequence[tuple[FrozenTrial, Codes]]) -> None:
        """Takes a finished trial of the reference route as row 0, and until there is one, all others as pending."""
        references = [t for t, codes in new if (codes == self._space.default).all()]
        own = [t for t in references if t.number in self.asked]
        # One that another process left unfinished may never finish, and one that failed there may succeed here:
        # this process then measures the reference itself.
        usable = [t for t in references if observation_of(t).latency_ms is not None]
        first = next(iter(usable), None) or next((t for t in own if t.state.is_finished()), None)
        self.has_reference = bool(first or own)
        self._start(new)
        if first is not None:
            self._finish([n for n in new if n[0] is first])
            self._finish([n for n in new if n[0] is not first])

    def _start(self, new: Sequence[tuple[FrozenTrial, Codes]]) -> None:
        for trial, codes in new:
            if trial.number not in self._known:
                self.history.start(trial.number, codes, Phase.TIME)
                self._known[trial.number] = (codes, False)

    def _finish(self, new: Sequence[tuple[FrozenTrial, Codes]]) -> None:
        finished = [(t, c) for t, c in new if t.state.is_finished()]
        for trial, codes in sorted(finished, key=lambda n: (n[0].datetime_complete, n[0].number)):
            self.history.finish(trial.number, observation_of(trial))
            self._known[trial.number] = (codes, True)


def observation_of(trial: FrozenTrial) -> Observation:
    """What a strategy may see of an Optuna trial once it has finished; the rules are in `StrategySampler`."""
    broken: Mapping[str, float] = {k: v for k, v in trial.constraints.items() if v > 0}
    value = trial.value if trial.state == TrialState.COMPLETE else None
    if trial.state == TrialState.FAIL or (value is not None and not math.isfinite(value)):
        return Observation(Outcome.CRASH)
    if "built" in broken:
        return Observation(Outcome.BUILD_ERROR)
    violation = max(trial.constraints.values(), default=None)
    if broken or trial.state == TrialState.PRUNED:
        return Observation(Outcome.ACCURACY, value, violation if broken else None)
    return Observation(Outcome.OK, value, trial.constraints.get("accuracy"))


def _text_of(codes: Codes, space: SearchSpace) -> str:
    """A route as short text (databases take 2045 characters): the space's digest, and the route's index in it."""
    return f"{space.digest[:16]}:{space.index_of(codes):x}"


def _codes_of(trial: FrozenTrial, space: SearchSpace) -> Codes | None:
    """The route of a trial, or None where it is not known (yet) or not of the space."""
    digest, _, index = str(trial.system_attrs.get(_ROUTE, "")).partition(":")
    proposed = digest == space.digest[:16]
    given = [(i, trial.params[name]) for i, name in enumerate(space.names) if name in trial.params]
    if not proposed and not (given and trial.state.is_finished()):
        return None
    codes = space.codes_at(int(index, 16)) if proposed else space.default.copy()
    for i, value in given:
        if value not in space.values[i]:
            return None
        codes[i] = space.values[i].index(value)
    return codes
