"""What is particular to local search, annealing, the genetic algorithm, low-discrepancy points and NSGA-II."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_cases import Additive, few, space_of

from gpt_search import InputError, SimulationResult, load_strategy, planted, simulate
from gpt_search.search.discovery import strategy_names

SPACE = space_of(*[2] * 40)


def share(done: SimulationResult, measure: Additive) -> float:
    assert done.recommended is not None
    return measure.truth(done.codes[done.recommended]) / float(measure.effects.min(axis=1).sum())


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [("local_search", 0.8), ("annealing", 0.7), ("genetic", 0.8), ("local_search:improvement=best", 0.3)],
)
def test_most_of_a_noisy_additive_gain_is_found(spec: str, wanted: float) -> None:
    found = []
    for seed in range(5):
        measure = Additive(few(40, 8, 8), noise=0.012, failing=((30, 1), (31, 1)))
        found.append(share(simulate(SPACE, spec, measure, trials=160, seed=seed, noise=0.012), measure))
    assert np.mean(found) > wanted, found


@pytest.mark.parametrize("spec", ["local_search", "annealing", "genetic"])
def test_a_cause_of_failure_is_hardly_met_again(spec: str) -> None:
    done = simulate(SPACE, spec, Additive(few(40, 8, 8), 0.01, failing=((30, 1), (31, 1), (32, 1))), trials=300)
    assert done.codes[:, 30:33].sum() <= 8 and (done.codes[:, 30:33].sum(axis=0) > 0).any()


def test_local_search_looks_at_single_changes_first() -> None:
    done = simulate(SPACE, "local_search", Additive(few(40, 0, 40)), trials=40)
    assert (done.codes[1:].sum(axis=1) == 1).all(), "nothing gains: every look is at the reference's neighbours"
    assert (done.codes.sum(axis=0) == 1).all()


def test_local_search_keeps_a_gain_at_once_or_the_best_of_all() -> None:
    first = simulate(SPACE, "local_search", Additive(few(40, 3, 0)), trials=40).codes
    assert first.sum(axis=1).max() == 4 and first[-1, :3].sum() == 3
    best = simulate(SPACE, "local_search:improvement=best", Additive(few(40, 3, 0)), trials=42).codes
    assert (best[1:41].sum(axis=1) == 1).all() and (best[41:, 2] == 1).all()


def test_local_search_escapes_by_kicks() -> None:
    class Trap(Additive):
        """Two changes that harm alone and gain together."""

        def truth(self, codes: np.ndarray) -> float:
            return 0.02 * float(codes[:2].sum()) - 0.2 * bool(codes[0] and codes[1])

    done = simulate(space_of(*[2] * 8), "local_search:kick=2", Trap(np.zeros((8, 2))), trials=150)
    assert np.nanmin(done.latency_ms) < 0.9


def test_annealing_follows_the_noise() -> None:
    """Small losses are accepted where the noise is large, and hardly where it is small."""
    harmful = few(40, 0, 40) / 4
    carried = [
        simulate(SPACE, "annealing:start=1,end=1", Additive(harmful, noise), trials=200, seed=3).codes[100:].sum(axis=1)
        for noise in (0.0005, 0.02)
    ]
    assert carried[1].mean() > carried[0].mean() + 2


def test_genetic_starts_at_the_reference_and_tries_every_value_early() -> None:
    done = simulate(SPACE, "genetic", Additive(few(40, 4, 4), 0.01), trials=60)
    assert done.codes[1:10].sum(axis=1).mean() < 8
    assert (done.codes.sum(axis=0) > 0).all()


def test_qmc_points_are_balanced_alone_and_in_pairs() -> None:
    done = simulate(space_of(*[2] * 195), "qmc", Additive(np.zeros((195, 2))), trials=512)
    codes = done.codes[1:].astype(int)
    assert (codes.sum(axis=0) == 256).all() and (codes[:64].sum(axis=0) == 32).all()
    correlation = np.abs(np.corrcoef(codes.T)) - np.eye(195)
    assert correlation.max() < 1e-9, "every pair takes each of its four combinations 128 times"


def test_qmc_with_a_mean_changes_all_knobs_about_equally_often() -> None:
    space = space_of(*[2, 2, 3, 4] * 40)
    codes = simulate(space, "qmc:mean=5", Additive(np.zeros((160, 4))), trials=512).codes[1:]
    assert (codes > 0).sum(axis=1).mean() == pytest.approx(5, abs=0.5)
    assert (codes > 0).sum(axis=0).min() >= 8 and (codes > 0).sum(axis=0).max() <= 24
    assert {1, 2, 3} <= set(codes[:, 3::4].ravel().tolist())


def test_nsga2_learns_and_resumes() -> None:
    space, measure = space_of(*[2] * 15), Additive(few(15, 8, 7), failing=((14, 1),))
    whole = simulate(space, "nsga2:population=10", measure, trials=120, seed=2)
    value = np.nan_to_num(whole.latency_ms, nan=2.0)
    assert np.mean(value[-40:]) < np.mean(value[1:41]) - 0.05
    assert simulate(space, load_strategy("nsga2:population=10"), measure, trials=60, seed=2).codes.tolist() == (
        whole.codes[:61].tolist()
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("local_search:looks=0", "looks is 0"),
        ("local_search:deviations=-1", "deviations is -1"),
        ("annealing:start=0.1", "start >= end"),
        ("annealing:halving=0", "halving is 0"),
        ("genetic:population=1", "population is 1"),
        ("genetic:crossover=2", "crossover is 2"),
        ("genetic:mutations=0", "mutations is 0"),
        ("genetic:reversion=-1", "reversion is -1"),
        ("catcma:changes=0", "changes is 0"),
        ("cmaes:population=2", "population is 2"),
        ("qmc:mean=0", "mean is 0"),
        ("nsga2:swap=3", "swap is 3"),
        ("nsga2:population=1", "population is 1"),
    ],
)
def test_options_are_checked(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_strategy(spec)


def test_a_planted_landscape_at_full_size() -> None:
    """A smoke test of the aim; the figures are in docs/strategies.md."""
    assert {"local_search", "annealing", "genetic"} <= set(strategy_names())
    landscape = planted("sparse", 5)
    done = simulate(landscape.space, "genetic", landscape.measure, trials=200, seed=1, noise=landscape.noise)
    assert done.recommended is not None
    assert float(landscape.true_log_ratio(done.codes[done.recommended])) < 0.4 * landscape.best_log_ratio
