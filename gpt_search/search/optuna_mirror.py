"""A study in memory in which Optuna's samplers see the rows of a history.

Imports Optuna: everything else in the package imports this module on first use only.
"""

from __future__ import annotations

import copy
import datetime
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from gpt_search.domain.space import Codes, SearchSpace

_NOW = datetime.datetime(2000, 1, 1)  # times of the mirrored trials: no sampler reads them, and equal rows stay equal


class _Row(FrozenTrial):
    """A trial whose dictionaries are never written to, so that the storage's deep copy may share them.

    Copying 209 parameters and distributions is 10 ms, most of what recording a trial costs.
    codes: int16, of the knobs that have more than one value.
    """

    codes: Codes

    def __deepcopy__(self, memo: object) -> _Row:
        return copy.copy(self)


class _Storage(InMemoryStorage):
    """Keeps what a sampler attaches to the trial it was asked for beside the trial.

    The asked trial itself is dropped (see `Mirror.ask`); CMA-ES attaches its whole state, which
    should not stay in memory once per ask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attached: dict[str, Any] = {}

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self.attached[key] = value


class _TPESampler(TPESampler):
    """Optuna's sampler, reading the routes as arrays.

    Optuna looks up every parameter of every trial in every proposal, half of its time at 209 x 1000.
    Should a later Optuna not call this method, proposals stay the same and only slow down.
    """

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: dict[str, BaseDistribution], study: Study
    ) -> dict[str, np.ndarray]:
        codes = np.array([t.codes for t in trials if isinstance(t, _Row)], np.int64)
        return dict(zip(search_space, codes.reshape(len(trials), len(search_space)).T, strict=True))


class _QMCSampler(QMCSampler):
    """Optuna's sampler, at a given position of its sequence instead of the next of a stored counter."""

    def __init__(self, position: int, **options: Any) -> None:
        super().__init__(**options)
        self._position = position

    def _find_sample_id(self, study: Study, search_space: dict[str, BaseDistribution]) -> int:
        return self._position


# name -> (seed of the trial, seed of the study, position: number of trials proposed before, options) -> sampler
_MAKERS: dict[str, Callable[[int, int, int, Mapping[str, Any]], BaseSampler]] = {
    "TPESampler": lambda seed, _study, _position, options: _TPESampler(seed=seed, **options),
    "GPSampler": lambda seed, _study, _position, options: GPSampler(seed=seed, **options),
    # A scramble is drawn once per study; the trials are points of one sequence.
    "QMCSampler": lambda _seed, study, position, options: _QMCSampler(position, seed=study, **options),
    "RandomSampler": lambda seed, _study, _position, options: RandomSampler(seed=seed, **options),
    "NSGAIISampler": lambda seed, _study, _position, options: NSGAIISampler(seed=seed, **options),
    "CmaEsSampler": lambda seed, _study, _position, options: CmaEsSampler(seed=seed, **options),
}


def make_sampler(name: str, seed: int, study_seed: int, position: int, options: Mapping[str, Any]) -> BaseSampler:
    """A fresh sampler: what it proposes depends on its seed and on the mirrored rows alone.

    seed: of this trial. study_seed: the same for all trials of a study. position: how many trials
    were proposed before this one. options: of the sampler's constructor.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _MAKERS[name](seed, study_seed, position, options)


class Mirror:
    """An Optuna study in memory, over the knobs that have more than one value, coded as integers."""

    def __init__(self, space: SearchSpace, *, integer_codes: bool) -> None:
        """integer_codes: knobs as integer ranges, for samplers that ignore categorical parameters."""
        self._storage = _Storage()
        # Optuna announces every new study on its logger, whose level is one for the whole process.
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))
        try:
            self._study = optuna.create_study(storage=self._storage, direction="minimize")
        finally:
            optuna.logging.set_verbosity(verbosity)
        self._default = space.default
        self.free: NDArray[np.intp] = np.flatnonzero(space.cardinalities > 1)
        self._names = [space.names[i] for i in self.free]
        counts = [len(space.values[i]) for i in self.free]
        kinds: list[BaseDistribution] = [
            IntDistribution(0, k - 1) if integer_codes else CategoricalDistribution(range(k)) for k in counts
        ]
        self._distributions: dict[str, BaseDistribution] = dict(zip(self._names, kinds, strict=True))

    def show(
        self,
        codes: Codes,
        state: TrialState,
        value: float | None = None,
        constraint: float | None = None,
        attached: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a trial. constraint: feasible when <= 0. attached: what `ask` gave back for this trial."""
        known = codes[self.free]
        row = _Row(
            number=-1,
            trial_id=-1,
            state=state,
            value=value,
            datetime_start=_NOW,
            datetime_complete=_NOW if state.is_finished() else None,
            params=dict(zip(self._names, known.tolist(), strict=True)),
            distributions=self._distributions,
            user_attrs={},
            system_attrs=dict(attached or {}),
            intermediate_values={},
        )
        row.codes = known
        if constraint is not None:
            row.set_constraint("failed", constraint)
        self._study.add_trial(row)

    def ask(self, sampler: BaseSampler, pending: Codes | None = None) -> tuple[Codes, dict[str, Any]]:
        """What the sampler suggests, int16 (d,), and what it attached to the trial it was asked for.

        pending: int16 (p, d), shown as running for the time of this call. Neither they nor the
        asked trial stay: they are told as FAIL, which every sampler ignores. So the study holds the
        shown rows and nothing else, however often it was asked.
        """
        study = self._study
        study.sampler = sampler
        first = len(study.get_trials(deepcopy=False))
        for codes in pending if pending is not None else ():
            self.show(codes, TrialState.RUNNING)
        # The ask also renews the list of trials that `sample_relative` reads.
        asked = study.ask().number
        frozen = study.get_trials(deepcopy=False)[asked]
        self._storage.attached = {}
        params = sampler.sample_relative(study, frozen, self._distributions)
        suggested = self._default.copy()
        for i, (name, distribution) in zip(self.free, self._distributions.items(), strict=True):
            # Samplers leave out what they draw at random: start-up trials, mutated parameters.
            suggested[i] = (
                params[name] if name in params else sampler.sample_independent(study, frozen, name, distribution)
            )
        for number in range(first, asked + 1):
            study.tell(number, state=TrialState.FAIL)
        return suggested, self._storage.attached
