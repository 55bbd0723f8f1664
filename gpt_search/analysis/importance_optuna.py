"""Optuna's importance measures, on trials of ours.

PED-ANOVA: Watanabe, Bansal and Hutter, IJCAI 2023: which knobs decide whether a route is among the best tenth.
fANOVA: Hutter, Hoos and Leyton-Brown, "An efficient approach for assessing hyperparameter importance", ICML 2014:
the part of a forest's variance that one knob alone explains. Its cost grows with knobs times leaves, so it is worked
out for the knobs that a forest on all of them puts first.
Mean decrease impurity: how much a random forest's splits on a knob lower the squared error (Breiman 2001).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHODS = ("ped-anova", "fanova", "mdi")
FANOVA_TREES, FANOVA_DEPTH = 16, 6
MDI_TREES = 32


def optuna_importance(
    codes: NDArray[np.int16],
    value: NDArray[np.float64],
    cardinalities: Sequence[int],
    method: str,
    knobs: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[int, float]:
    """Importance by knob number, at least 0, adding up to 1 (all 0 where nothing is explained).

    codes: (n, d). value: (n,), smaller is better. knobs: which to look at, by default all that vary. method: one of
    `METHODS`. fANOVA and mean decrease fit forests of their own to just these knobs. Raises ValueError for another.
    """
    from optuna.importance import (
        FanovaImportanceEvaluator,
        MeanDecreaseImpurityImportanceEvaluator,
        PedAnovaImportanceEvaluator,
    )

    varied = np.flatnonzero((codes != codes[0]).any(axis=0)) if len(codes) else np.empty(0, np.intp)
    wanted = varied.tolist() if knobs is None else sorted(set(knobs) & set(varied.tolist()))
    if not wanted or float(np.ptp(value)) == 0:
        return dict.fromkeys(wanted, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental features; few trials in the best tenth
        evaluator: Any
        if method == "ped-anova":
            evaluator = PedAnovaImportanceEvaluator()
        elif method == "fanova":
            evaluator = FanovaImportanceEvaluator(n_trees=FANOVA_TREES, max_depth=FANOVA_DEPTH, seed=seed)
        elif method == "mdi":
            evaluator = MeanDecreaseImpurityImportanceEvaluator(n_trees=MDI_TREES, seed=seed)
        else:
            raise ValueError(f"unknown method {method!r}; there are: {', '.join(METHODS)}")
        found = evaluator.evaluate(_study(codes, value, cardinalities, wanted), params=[_name(k) for k in wanted])
    total = float(sum(found.values()))
    return {k: float(found[_name(k)]) / total if total > 0 else 0.0 for k in wanted}


def _name(knob: int) -> str:
    """Named by number, as names of knobs may be anything; in alphabetical order, because mean decrease impurity of
    Optuna 5.0 gives importances to the wrong parameters when `params` is in another.
    """
    return f"{knob:09d}"


def _study(
    codes: NDArray[np.int16], value: NDArray[np.float64], cardinalities: Sequence[int], knobs: Sequence[int]
) -> Any:
    """An Optuna study that holds these trials.

    `Study.add_trials` checks and copies every distribution of every trial: 4.8 s for 209 knobs x 1000 trials, so the
    trials are handed out as they are.
    """
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.trial import FrozenTrial, create_trial

    class Shared(CategoricalDistribution):
        """All trials share one object for a knob: the same object is equal without comparing its choices."""

        def __eq__(self, other: Any) -> bool:
            return self is other or bool(super().__eq__(other))

        __hash__ = CategoricalDistribution.__hash__

    class Held(optuna.Study):
        """A study of trials that are in no storage."""

        held: list[FrozenTrial]

        def get_trials(self, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
            """All of them; each is COMPLETE."""
            return self.held

    names = [_name(k) for k in knobs]
    kinds: dict[str, BaseDistribution] = {_name(k): Shared(range(int(cardinalities[k]))) for k in knobs}
    template = create_trial(params=dict.fromkeys(names, 0), distributions=kinds, value=0.0)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        empty = optuna.create_study()
        study = Held(empty.study_name, empty._storage)
    finally:
        optuna.logging.set_verbosity(before)
    study.held = []
    for number, (row, y) in enumerate(zip(codes[:, list(knobs)].tolist(), value.tolist(), strict=True)):
        trial = copy(template)
        trial.number = trial._trial_id = number
        trial.params = dict(zip(names, row, strict=True))
        trial.value = y
        study.held.append(trial)
    return study
