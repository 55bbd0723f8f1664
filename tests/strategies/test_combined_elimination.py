"""Combined elimination makes exactly the changes that gain, in the paper's three ways."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_cases import Additive, few, space_of

from gpt_search import InputError, load_strategy, simulate


@pytest.mark.parametrize("elimination", ["combined", "batch", "iterative"])
def test_exactly_what_gains_is_changed_on_a_noiseless_additive_function(elimination: str) -> None:
    measure = Additive(few(30, 5, 8))
    done = simulate(space_of(*[2] * 30), f"combined_elimination:elimination={elimination}", measure, trials=1000)
    best = done.codes[np.argmin(done.latency_ms)]
    assert best.tolist() == [1] * 5 + [0] * 25
    assert done.recommended == int(np.argmin(done.latency_ms))
    # Step 1 of each pass measures the changes that are left; step 2 the gains but the first.
    passes = {"combined": 30 + 4 + 25, "batch": 30 + 1, "iterative": 30 + 29 + 28 + 27 + 26 + 25}
    assert len(done) - 1 == passes[elimination]


def test_the_best_of_several_values_is_taken() -> None:
    effects = np.array([[0, -0.02, -0.05], [0, 0.03, -0.01], [0, 0.01, 0.02]])
    done = simulate(space_of(3, 3, 3), "combined_elimination", Additive(effects), trials=100)
    assert done.codes[np.argmin(done.latency_ms)].tolist() == [2, 2, 0]


def test_a_gain_that_another_one_spoils_is_not_kept() -> None:
    class Exclusive(Additive):
        def truth(self, codes: np.ndarray) -> float:
            return super().truth(codes) + 0.2 * bool(codes[0] and codes[1])

    done = simulate(space_of(2, 2, 2), "combined_elimination", Exclusive(few(3, 2, 0)), trials=100)
    assert done.codes[np.argmin(done.latency_ms)].tolist() == [0, 1, 0]
    batch = simulate(space_of(2, 2, 2), "combined_elimination:elimination=batch", Exclusive(few(3, 2, 0)), trials=100)
    assert batch.codes[-1].tolist() == [1, 1, 0], "batch elimination makes both, unseen"


def test_what_fails_is_measured_once() -> None:
    done = simulate(space_of(*[2] * 12), "combined_elimination", Additive(few(12, 3, 2), failing=((9, 1),)), trials=200)
    assert done.codes[:, 9].sum() == 1
    assert done.codes[np.argmin(np.nan_to_num(done.latency_ms, nan=9))].tolist() == [1, 1, 1] + [0] * 9


def test_noise_alone_changes_less_the_more_deviations_are_asked_for() -> None:
    def changed(deviations: int, seed: int) -> int:
        measure = Additive(few(60, 0, 0), noise=0.01)
        spec = f"combined_elimination:deviations={deviations}"
        return int(simulate(space_of(*[2] * 60), spec, measure, trials=360, seed=seed).codes[-1].sum())

    for seed in range(3):
        assert changed(0, seed) > changed(3, seed)


def test_deviations_are_checked() -> None:
    with pytest.raises(InputError, match="deviations is -1"):
        load_strategy("combined_elimination:deviations=-1")
