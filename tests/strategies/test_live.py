"""What is particular to `live`: fingerprints that tell, parents, and fingerprints that are wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpt_search import History, InputError, Observation, Outcome, Phase, load_strategy, simulate
from gpt_search.domain.landscape import planted
from gpt_search.testing import space_of

NOISE = 0.01


def test_group_tests_find_the_inert_knobs_without_timing() -> None:
    landscape = planted("inert", 3, 60)
    found = simulate(landscape.space, "live:probe=1", landscape.measure, 60, seed=1, noise=NOISE)
    strategy = load_strategy("live:probe=1")
    engines = strategy._engines_of(found.history)  # type: ignore[attr-defined]
    called_inert = {int(engines._knob[c]) for c in engines.tests}
    inert = set(np.flatnonzero(landscape.inert).tolist())
    assert len(called_inert & inert) > 0.6 * len(inert) and len(called_inert - inert) <= 1
    assert (found.history.cost("time")[1:] > 0).sum() < 20


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


@pytest.mark.parametrize("option", ["active=0", "failing=1", "slab=0", "exploit=0", "probe=-1"])
def test_options_are_checked(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        load_strategy(f"live:{option}")
