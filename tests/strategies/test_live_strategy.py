"""What is particular to `live`: fingerprints that tell, parents, and fingerprints that are wrong."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest

from gpt_search import History, InputError, Observation, Outcome, Phase, load_strategy, simulate
from gpt_search.domain.landscape import planted
from gpt_search.testing import space_of

NOISE = 0.01


def test_group_tests_find_the_inert_knobs_before_anything_is_timed() -> None:
    landscape = planted("inert", 3, 60)
    found = simulate(landscape.space, "live:probe=first", landscape.measure, 80, seed=1, noise=landscape.noise)
    history = found.history
    first = int(np.flatnonzero(history.until[1:] == Phase.TIME)[0]) + 1
    assert (history.until[1:first] == Phase.BUILD).any() and (history.until[1:first] == Phase.GATE).any()
    assert not (history.until[first:] == Phase.BUILD).any(), "all was known"
    timed = history.codes[first : first + 10]
    assert not (timed != landscape.space.default)[:, np.asarray(landscape.inert)].any()
    assert found.recommended is not None
    gain = -float(landscape.true_log_ratio(found.codes[found.recommended]))
    assert gain > 0.7 * -landscape.best_log_ratio


def test_probing_comes_first_where_a_timing_costs_much_more_than_a_build() -> None:
    landscape = planted("inert", 3, 60)

    def until(build: float, time: float) -> int:
        def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
            found = landscape.measure(codes, rng, until)
            cost = {"build": build, "time": time}
            return found._replace(cost_s={phase: cost[phase] for phase in found.cost_s if phase in cost})

        return int(simulate(landscape.space, "live", measure, 1, seed=1).history.until[1])

    assert until(1.0, 10.0) == Phase.BUILD
    assert until(10.0, 1.0) == Phase.TIME


def test_an_accuracy_failure_is_no_failed_build() -> None:
    """What fails at the gate was built: it clears its changes of failures of the build, and not the other way round."""
    space = space_of(2, 2, 2)  # defaults 0, 1, 0
    history = History(space)
    rows = (
        ([0, 1, 0], Observation(Outcome.OK, 1.0, -1.0, "a"), Phase.TIME),
        ([1, 0, 0], Observation(Outcome.BUILD_ERROR), Phase.TIME),
        ([1, 1, 1], Observation(Outcome.ACCURACY, None, 1.0, "b"), Phase.TIME),
    )
    for codes, observation, until in rows:
        history.append(history.next_trial, np.asarray(codes, np.int16), observation, until)
    live = importlib.import_module("gpt_search_strategies.live")
    x = live._features(history, *live._changes(space))
    build = live._blame(x, history, np.full(3, 0.1)).build
    assert build[1] > 0.8, "the build's failure is knob 1's, as knob 0 was built since"
    assert build[0] < 0.1 and build[2] < 0.1


def test_gains_are_found_with_few_timings_where_most_knobs_are_inert() -> None:
    landscape = planted("inert", 3, 60)
    found = simulate(landscape.space, "live", landscape.measure, 100, seed=1, noise=landscape.noise)
    assert found.recommended is not None
    gain = -float(landscape.true_log_ratio(found.codes[found.recommended]))
    assert gain > 0.6 * -landscape.best_log_ratio


def _told(history: History, *rows: tuple[list[int], str]) -> History:
    for codes, mark in rows:
        history.append(history.next_trial, np.asarray(codes, np.int16), Observation(Outcome.OK, 1.0, -1.0, mark))
    return history


def test_parents_are_learnt_from_fingerprints() -> None:
    space = space_of(2, 2, 2, 2)  # defaults 0, 1, 0, 1
    strategy = load_strategy("live")
    # Knob 2 counts alone, and not where knob 0 was changed too; knob 3 counts only where knob 0 was changed.
    history = _told(
        History(space),
        ([0, 1, 0, 1], "reference"),
        ([0, 1, 1, 1], "2"),
        ([1, 1, 0, 1], "0"),
        ([1, 1, 1, 1], "0"),
        ([0, 1, 0, 0], "reference"),
        ([1, 1, 0, 0], "03"),
    )
    engines = strategy._engines_of(history)  # type: ignore[attr-defined]
    assert set(engines.links) == {(2, 0), (3, 0)}
    assert engines.live(4)[2] > 0.5 and engines.live(4)[3] > 0.5, "a child is not given up"


def test_a_knob_that_fingerprints_do_not_show_is_found_by_its_timing() -> None:
    """Equal fingerprints of different engines: the change is doubted, not given up."""
    space = space_of(*[2] * 30)
    best = (space.default[:3] + 1) % 2

    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        changed = codes[:3] == best
        value = float(np.exp(-0.06 * changed.sum() + NOISE * rng.standard_normal()))
        visible = codes.copy()
        visible[0] = 0  # as if the fingerprint did not cover what knob 0 does
        return Observation(Outcome.OK, value, -1.0, visible.tobytes().hex(), {}, value * NOISE)

    found = simulate(space, "live", measure, 120, seed=0, noise=NOISE)
    assert found.recommended is not None
    assert (found.codes[found.recommended][:3] == best).all()


def test_fingerprints_that_always_differ_are_noticed_and_ignored() -> None:
    """The reference is rebuilt, once; then timing alone counts."""
    landscape, numbers = planted("sparse", 5, 40), itertools.count()

    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        found = landscape.measure(codes, rng, until)
        return found if found.fingerprint is None else found._replace(fingerprint=f"build{next(numbers)}")

    found = simulate(landscape.space, "live", measure, 120, seed=0, noise=landscape.noise)
    history = found.history
    again = history.rows_of(landscape.space.default)
    assert len(again) == 2 and history.until[again[1]] == Phase.BUILD
    assert history.n_routes == len(history) - 1
    engines = load_strategy("live")._engines_of(history)  # type: ignore[attr-defined]
    assert engines.splits and len(set(engines.live(len(landscape.space)))) == 1
    assert found.recommended is not None
    gain = -float(landscape.true_log_ratio(found.codes[found.recommended]))
    assert gain > 0.5 * -landscape.best_log_ratio


def test_the_cause_of_a_failure_is_avoided_and_not_only_its_route() -> None:
    space = space_of(*[2] * 40)
    bad, effects = {3, 17}, np.random.default_rng(1).normal(0.0, 0.02, 40)

    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        changed = set(np.flatnonzero(codes != space.default).tolist())
        if changed & bad:
            return Observation(Outcome.CRASH)
        value = np.exp(effects @ (codes != space.default) + NOISE * rng.standard_normal())
        return Observation(Outcome.OK, float(value), -1.0)

    found = simulate(space, "live", measure, 120, seed=0, noise=NOISE)
    failed = found.outcome != Outcome.OK
    changes = (found.codes != space.default).sum(axis=1)
    by_chance = (1 - (1 - len(bad) / 40) ** changes).sum()
    assert failed.sum() < 0.5 * by_chance, "routes of as many random changes"


@pytest.mark.parametrize("option", ["active=0", "failing=1", "slab=0", "exploit=0", "probe=second"])
def test_options_are_checked(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"live:{option}")


def test_a_small_space_is_timed_to_the_end_though_its_routes_were_built_before() -> None:
    """What was only probed is timed before the study ends."""
    space = space_of(2, 2, 2)

    def measure(codes: np.ndarray, rng: np.random.Generator, until: Phase) -> Observation:
        value = 1.0 if until == Phase.TIME else None
        return Observation(Outcome.OK, value, -1.0, codes.tobytes().hex(), {"build": 1.0, "time": 100.0})

    found = simulate(space, "live", measure, 60, seed=0, noise=NOISE)
    timed = found.history.codes[found.history.until == Phase.TIME]
    assert (found.history.until == Phase.BUILD).any()
    assert len({codes.tobytes() for codes in timed}) == space.size
