"""Planted landscapes: their truth is exact, their noise is what they say, and they are the same everywhere."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_search import InputError, Outcome, Phase, Proposal, SearchSpace, Streams, planted, simulate
from gpt_search.domain.blueprint import Blueprint, Cause, Child, Costs, Term
from gpt_search.domain.landscape_model import Landscape
from gpt_search.domain.space import Dimension
from gpt_search.search.landscapes import FAMILIES, planted_from_spec

COSTS = Costs(start=1.0, build=2.0, gate=3.0, time=4.0, build_limit=50.0, run_limit=60.0)
EVERY_FAMILY = pytest.mark.parametrize("family", list(FAMILIES))


def all_codes(space: SearchSpace) -> np.ndarray:
    return np.asarray(list(itertools.product(*(range(c) for c in space.cardinalities.tolist()))), np.int16)


def sampled(landscape: Landscape, n: int, changes: int = 4) -> np.ndarray:
    """Routes with a few changes from the reference: uniform ones nearly all fail at 195 knobs."""
    rng = np.random.default_rng(7)
    codes = np.repeat(landscape.space.default[None, :], n, axis=0)
    for row in codes:
        for knob in rng.integers(0, len(landscape.space), rng.integers(0, changes + 1)):
            row[knob] = rng.integers(0, landscape.space.cardinalities[knob])
    return codes


# -- the truth ------------------------------------------------------------------------------------
@EVERY_FAMILY
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("knobs", [6, 9])
def test_the_best_route_is_the_one_that_enumeration_finds(family: str, seed: int, knobs: int) -> None:
    landscape = planted(family, seed, knobs)
    every = all_codes(landscape.space)
    values = landscape.true_log_ratio(every)
    assert landscape.best_log_ratio == pytest.approx(np.nanmin(values), abs=1e-15)
    assert landscape.true_log_ratio(landscape.best_codes) == landscape.best_log_ratio
    assert landscape.outcome(landscape.best_codes) is Outcome.OK


@EVERY_FAMILY
def test_the_reference_is_feasible_and_neutral(family: str) -> None:
    landscape = planted(family, "some seed")
    truth = landscape.truth(landscape.space.default)
    assert truth.outcome is Outcome.OK and truth.failed_in is None
    assert truth.log_ratio == 0.0 == landscape.true_log_ratio(landscape.space.default)
    assert truth.violation < 0


@EVERY_FAMILY
def test_no_route_nearby_beats_the_best(family: str) -> None:
    landscape = planted(family, 3)
    values = landscape.true_log_ratio(landscape.space.neighbours(landscape.best_codes))
    assert np.nanmin(values) >= landscape.best_log_ratio - 1e-12


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "null"])
def test_gains_are_realistic(family: str) -> None:
    gains = [1 - math.exp(planted(family, seed).best_log_ratio) for seed in range(12)]
    assert min(gains) > 0.08 and max(gains) < 0.40
    assert len(set(gains)) == len(gains)


def test_nothing_matters_in_the_null_family() -> None:
    landscape = planted("null", 5)
    codes = np.stack([landscape.space.sample(np.random.default_rng(i)) for i in range(50)])
    assert not landscape.true_log_ratio(codes).any()
    assert landscape.effects == () and landscape.best_log_ratio == 0.0
    assert np.array_equal(landscape.best_codes, landscape.space.default)
    assert len({landscape.fingerprint(c) for c in codes}) == 50  # the engines differ all the same


@EVERY_FAMILY
def test_one_route_and_many_routes_agree(family: str) -> None:
    landscape = planted(family, 11)
    codes = sampled(landscape, 60)
    together = landscape.true_log_ratio(codes)
    assert together.shape == (60,)
    for row, value in zip(codes, together.tolist(), strict=True):
        truth = landscape.truth(row)
        assert landscape.true_log_ratio(row) == pytest.approx(value, abs=1e-15, nan_ok=True)
        assert truth.log_ratio == pytest.approx(value, abs=1e-12, nan_ok=True)
        assert math.isnan(value) == (truth.outcome is not Outcome.OK) == (landscape.outcome(row) is not Outcome.OK)


@EVERY_FAMILY
def test_the_effects_explain_every_single_change(family: str) -> None:
    landscape = planted(family, 2)
    space = landscape.space
    hidden = {child for child, parent in landscape.children}
    alone = {(e.knobs[0], e.values[0]): e for e in landscape.effects if len(e.knobs) == 1}
    for codes in space.neighbours(space.default):
        [knob] = np.flatnonzero(codes != space.default)
        name, value = space.names[knob], space.values[knob][codes[knob]]
        if name in hidden:
            continue
        effect = alone.get((name, value))
        truth = landscape.truth(codes)
        if effect is None:
            assert truth.log_ratio == 0.0
        else:
            assert truth.outcome is effect.outcome
            assert truth.log_ratio == pytest.approx(effect.log_ratio, nan_ok=True)


def test_sparse_has_the_described_numbers() -> None:
    landscape = planted("sparse", 8)
    mains: dict[str, list[float]] = {}
    for e in landscape.effects:
        if e.outcome is Outcome.OK and len(e.knobs) == 1:
            mains.setdefault(e.knobs[0], []).append(e.log_ratio)
    assert len(landscape.space) == 195 and landscape.noise == 0.012
    assert sum(min(v) < 0 for v in mains.values()) == 10
    assert sum(min(v) > 0 for v in mains.values()) == 18
    assert sum(len(e.knobs) == 2 for e in landscape.effects) == 8
    failing = [e.outcome for e in landscape.effects if e.outcome is not Outcome.OK]
    assert len(failing) == 9 and len(set(failing)) == 4
    hard = planted("sparse_hard", 8)
    assert hard.noise == 0.024
    assert sum(e.log_ratio > 0 and len(e.knobs) == 1 for e in hard.effects) >= 36


def test_four_knobs_in_five_are_inert_in_the_inert_family() -> None:
    landscape = planted("inert", 1)
    assert landscape.inert.sum() == 156
    reference = landscape.fingerprint(landscape.space.default)
    for codes in landscape.space.neighbours(landscape.space.default):
        [knob] = np.flatnonzero(codes != landscape.space.default)
        assert (landscape.fingerprint(codes) == reference) == bool(landscape.inert[knob])


def test_every_way_to_fail_is_in_the_infeasible_family() -> None:
    landscape = planted("infeasible", 4)
    failing = [e for e in landscape.effects if e.outcome is not Outcome.OK]
    assert {e.outcome for e in failing} == set(Outcome) - {
        Outcome.OK,
        Outcome.LIMIT,
    }  # a limit is the user's, not a landscape's
    assert {len(e.knobs) for e in failing} == {1, 2}
    violations = [t.violation for t in map(landscape.truth, sampled(landscape, 400)) if t.outcome is Outcome.ACCURACY]
    assert min(violations) > 0 and max(violations) > 3 * min(violations)


def test_children_of_a_switched_off_parent_do_not_count() -> None:
    landscape = planted("hierarchical", 6)
    space, position = landscape.space, {n: i for i, n in enumerate(landscape.space.names)}
    assert len(landscape.children) > 50
    assert any(parent in dict(landscape.children) for _, parent in landscape.children)  # three generations
    switched = 0
    for child, parent in landscape.children:
        assert child.startswith(f"{parent}:")
        live_at = set()
        for code in range(int(space.cardinalities[position[parent]])):
            without = space.default.copy()
            without[position[parent]] = code
            with_child = without.copy()
            with_child[position[child]] = (space.default[position[child]] + 1) % space.cardinalities[position[child]]
            if landscape.fingerprint(with_child) != landscape.fingerprint(without):
                live_at.add(code)
            elif not math.isnan(landscape.true_log_ratio(without)):
                assert landscape.true_log_ratio(with_child) == landscape.true_log_ratio(without)
        if parent not in dict(landscape.children):
            assert len(live_at) == 1
            switched += 1
    assert switched > 30


# -- a landscape made by hand ------------------------------------------------------------------------
def made(**changes: object) -> Landscape:
    """Knobs a to e; c is a's child, d is c's child, e is inert; b=1 with c=1 fails, b=2 misses the tolerance."""
    space = SearchSpace([Dimension(n, tuple("xyz"), 0) for n in "abcde"])
    fields: dict[str, object] = {
        "space": space,
        "terms": [
            Term(0, None, np.array([0.0, 0.1, 0.2])),
            Term(2, None, np.array([0.0, -0.3, -0.4])),
            Term(3, None, np.array([0.0, -0.5, 0.0]), np.array([0.0, 0.002, 0.0])),
            Term(1, 3, np.array([[0, 0, 0], [0, 0.05, 0], [0, 0, 0]], float)),
        ],
        "causes": [
            Cause(1, 1, 2, 1, Outcome.CRASH, Phase.GATE),
            Cause(1, 2, None, 0, Outcome.ACCURACY, Phase.GATE, 0.03),
            Cause(2, 2, None, 0, Outcome.TIMEOUT, Phase.BUILD),
        ],
        "costs": COSTS,
        "reference_ms": 5.0,
        "noise": 0.01,
        "children": [Child(2, 0, (1,)), Child(3, 2, (1, 2))],
        "inert": frozenset({4}),
    }
    return Landscape(Blueprint(**{**fields, **changes}))  # type: ignore[arg-type]


def codes(*values: int) -> np.ndarray:
    return np.asarray(values, np.int16)


def test_a_hand_made_landscape_is_what_its_blueprint_says() -> None:
    landscape = made()
    assert landscape.true_log_ratio(codes(0, 1, 1, 1, 0)) == 0.0  # c is off, and so are d and the crash
    assert landscape.true_log_ratio(codes(1, 0, 1, 0, 0)) == pytest.approx(-0.2)
    assert landscape.true_log_ratio(codes(1, 0, 1, 1, 2)) == pytest.approx(-0.7)
    assert landscape.true_log_ratio(codes(1, 0, 0, 1, 0)) == pytest.approx(0.1)  # d is off where c is at x
    assert landscape.best_codes.tolist() == [1, 0, 1, 1, 0]
    assert landscape.best_log_ratio == pytest.approx(-0.7)
    crash = landscape.truth(codes(1, 1, 1, 0, 0))
    assert (crash.outcome, crash.failed_in) == (Outcome.CRASH, Phase.GATE) and crash.fingerprint is not None
    hang = landscape.truth(codes(1, 2, 2, 0, 0))  # also misses the tolerance, but never gets so far
    assert (hang.outcome, hang.failed_in, hang.fingerprint) == (Outcome.TIMEOUT, Phase.BUILD, None)
    assert math.isnan(hang.violation)
    off = landscape.truth(codes(1, 2, 1, 1, 0))
    assert off.outcome is Outcome.ACCURACY
    assert off.violation == pytest.approx(0.001 + 0.03 + 0.002 - 0.01)
    assert landscape.truth(codes(1, 0, 1, 1, 0)).violation == pytest.approx(0.001 + 0.002 - 0.01)


def test_fingerprints_are_equal_exactly_where_the_program_is() -> None:
    landscape = made()

    def program(c: np.ndarray) -> tuple[int, ...]:
        a, b, child, grandchild, _ = c.tolist()
        child = child if a == 1 else 0
        return a, b, child, grandchild if child in (1, 2) else 0

    by_print: dict[str, set[tuple[int, ...]]] = {}
    for c in all_codes(landscape.space):
        by_print.setdefault(landscape.fingerprint(c), set()).add(program(c))
    assert all(len(programs) == 1 for programs in by_print.values())
    assert len(by_print) == len({program(c) for c in all_codes(landscape.space)})


def test_the_best_is_exact_for_a_hand_made_landscape_too() -> None:
    landscape = made(causes=[Cause(2, 1, 3, 1, Outcome.MEMORY, Phase.BUILD)])
    assert landscape.best_log_ratio == np.nanmin(landscape.true_log_ratio(all_codes(landscape.space)))
    assert landscape.best_codes.tolist() == [1, 0, 2, 1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terms": [Term(4, None, np.zeros(3))]}, "inert knob"),
        ({"terms": [Term(0, None, np.ones(3))]}, "not 0 at the reference"),
        ({"terms": [Term(0, None, np.zeros(3), np.array([0, -1.0, 0]))]}, "negative loss"),
        ({"terms": [Term(0, None, np.zeros(3), np.array([0, 0.0095, 0]))]}, "the tolerance is"),
        ({"causes": [Cause(0, 0, None, 0, Outcome.CRASH, Phase.BUILD)]}, "on the reference"),
        ({"causes": [Cause(4, 1, None, 0, Outcome.CRASH, Phase.BUILD)]}, "inert knob"),
        ({"causes": [Cause(0, 1, None, 0, Outcome.ACCURACY, Phase.GATE, 0.001)]}, "at least the tolerance"),
        ({"children": [Child(4, 0, (1,))]}, "is inert"),
        ({"children": [Child(2, 0, (1,)), Child(2, 1, (1,))]}, "two parents"),
        ({"children": [Child(3, 2, (1,)), Child(2, 0, (1,))]}, "after its own children"),
    ],
)
def test_a_blueprint_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes)


# -- measuring ----------------------------------------------------------------------------------------
def test_measuring_honours_until_and_charges_the_phases_reached() -> None:
    landscape = made(noise=0.0)
    rng = np.random.default_rng(0)
    good = codes(1, 0, 1, 1, 0)
    built = landscape.measure(good, rng, Phase.BUILD)
    assert built.outcome is Outcome.OK and set(built.cost_s) == {"start", "build"}
    assert built.latency_ms is None and built.violation is None
    gated = landscape.measure(good, rng, Phase.GATE)
    assert set(gated.cost_s) == {"start", "build", "gate"}
    assert gated.latency_ms is None and gated.violation == pytest.approx(-0.007)
    timed = landscape.measure(good, rng, Phase.TIME)
    assert set(timed.cost_s) == {"start", "build", "gate", "time"}
    assert timed.latency_ms == pytest.approx(5 * math.exp(-0.7)) and timed.error_ms == 0.0
    assert built.fingerprint == gated.fingerprint == timed.fingerprint == landscape.fingerprint(good)


def test_failures_cost_up_to_the_failing_phase_and_timeouts_cost_the_limit() -> None:
    landscape = made()
    rng = np.random.default_rng(0)
    hang = landscape.measure(codes(1, 0, 2, 0, 0), rng, Phase.TIME)
    assert hang.outcome is Outcome.TIMEOUT and dict(hang.cost_s) == {"start": 1.0, "build": 50.0}
    assert hang.fingerprint is None and hang.latency_ms is None
    assert landscape.measure(codes(1, 1, 1, 0, 0), rng, Phase.BUILD).outcome is Outcome.OK
    crash = landscape.measure(codes(1, 1, 1, 0, 0), rng, Phase.GATE)
    assert crash.outcome is Outcome.CRASH and crash.fingerprint is not None and crash.cost_s["gate"] < COSTS.gate
    miss = landscape.measure(codes(0, 2, 0, 0, 0), rng, Phase.TIME)
    assert miss.outcome is Outcome.ACCURACY and miss.latency_ms is None and miss.violation == pytest.approx(0.021)
    assert set(miss.cost_s) == {"start", "build", "gate"}
    slow = made(causes=[Cause(1, 1, None, 0, Outcome.TIMEOUT, Phase.GATE)])
    assert slow.measure(codes(0, 1, 0, 0, 0), rng, Phase.TIME).cost_s["gate"] == 60.0


@EVERY_FAMILY
def test_a_measurement_tells_the_truth_plus_noise(family: str) -> None:
    landscape = planted(family, 9)
    streams = Streams(3)
    residuals = []
    for number, row in enumerate(sampled(landscape, 200, changes=2)):
        truth = landscape.truth(row)
        seen = landscape.measure(row, streams.trial(number), Phase.TIME)
        assert seen == landscape.measure(row, streams.trial(number), Phase.TIME)
        assert seen.outcome is truth.outcome and seen.fingerprint == truth.fingerprint
        if not math.isnan(truth.violation):
            assert seen.violation == truth.violation
        if truth.outcome is Outcome.OK:
            assert seen.latency_ms is not None and seen.error_ms == pytest.approx(seen.latency_ms * landscape.noise)
            residuals.append(math.log(seen.latency_ms / landscape.reference_ms) - truth.log_ratio)
    assert len(residuals) > 50
    spread = landscape.noise / math.sqrt(len(residuals))
    assert abs(np.mean(residuals)) < 5 * spread
    assert np.std(residuals) == pytest.approx(landscape.noise, rel=0.3)


def test_the_noise_can_be_chosen_and_does_not_change_the_truth() -> None:
    quiet, loud = planted("sparse", 1, 30, noise=0), planted("sparse", 1, 30, noise=0.2)
    assert quiet.noise == 0.0 and loud.noise == 0.2
    assert quiet.space == loud.space and quiet.effects[0] == loud.effects[0]
    assert quiet.best_log_ratio == loud.best_log_ratio
    row = quiet.best_codes
    [seen] = {quiet.measure(row, np.random.default_rng(i), Phase.TIME).latency_ms for i in range(5)}
    assert seen == pytest.approx(quiet.reference_ms * math.exp(quiet.best_log_ratio))


def test_simulate_takes_a_landscape_as_it_is() -> None:
    landscape = planted("sparse", 3, 12)

    class OneByOne:
        def propose(self, space, history, streams):  # type: ignore[no-untyped-def]
            rows = space.neighbours(space.default)
            return Proposal(rows[len(history) - 1]) if len(history) <= len(rows) else None

    result = simulate(landscape.space, OneByOne(), landscape.measure, trials=100)
    assert len(result) == 1 + len(landscape.space.neighbours(landscape.space.default))
    truth = landscape.true_log_ratio(result.codes)
    assert np.array_equal(np.isnan(truth), np.isnan(result.latency_ms))
    assert np.nanmax(np.abs(np.log(result.latency_ms / landscape.reference_ms) - truth)) < 6 * landscape.noise


# -- the same everywhere --------------------------------------------------------------------------------
@EVERY_FAMILY
def test_another_process_grows_the_same_landscape(family: str) -> None:
    landscape = planted(family, "x:1", noise=0.5)
    spec = json.dumps(landscape.spec())
    code = (
        "import sys, json; from gpt_search.domain.landscape import planted_from_spec\n"
        "l = planted_from_spec(json.loads(sys.argv[1]))\n"
        "print(json.dumps([l.space.digest, l.best_log_ratio, l.best_codes.tolist(), l.reference_ms, l.noise,"
        " list(l.costs), l.fingerprint(l.best_codes), repr(l.effects)]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, spec],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "17"},
    ).stdout
    assert json.loads(told) == [
        landscape.space.digest,
        landscape.best_log_ratio,
        landscape.best_codes.tolist(),
        landscape.reference_ms,
        landscape.noise,
        list(landscape.costs),
        landscape.fingerprint(landscape.best_codes),
        repr(landscape.effects),
    ]


@given(
    family=st.sampled_from(list(FAMILIES)),
    seed=st.integers(-(2**70), 2**70) | st.text(max_size=5),
    knobs=st.integers(6, 40),
)
@settings(max_examples=25, deadline=None)
def test_any_seed_and_size_grows_a_sound_landscape(family: str, seed: int | str, knobs: int) -> None:
    if family == "dense":
        knobs = min(knobs, 12)
    landscape = planted(family, seed, knobs)
    space = landscape.space
    assert len(space) == knobs and space.size >= 2**knobs
    assert landscape.database().defaults == dict(zip(space.names, space.reference.values(), strict=True))
    assert -0.8 < landscape.best_log_ratio <= 0.0
    assert planted_from_spec(landscape.spec()).space == space
    for row in space.neighbours(space.default):
        landscape.measure(row, np.random.default_rng(0), Phase.TIME)
    if family not in ("null", "hierarchical"):  # a gain may hide behind a parent that costs more
        assert landscape.best_log_ratio < 0


def test_a_landscape_stays_what_it_was_in_earlier_versions() -> None:
    """Results of studies on landscapes are compared over years: a change of this number must be on purpose."""
    landscape = planted("sparse", 0)
    assert landscape.space.digest[:16] == "d5f4103333368f20"
    assert landscape.best_log_ratio == pytest.approx(-0.2687634928924326)


def test_seeds_families_and_sizes_differ() -> None:
    digests = {
        planted(family, seed, knobs).space.digest
        for family in ("sparse", "null")
        for seed in (0, 1, "0")
        for knobs in (20, 21)
    }
    assert len(digests) == 12


# -- bad input --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sparce", 0), "unknown landscape family 'sparce'; did you mean 'sparse'"),
        (("sparse", 0, 2), "6 to 4000 knobs, not 2"),
        (("dense", 0, 40), "6 to 12 knobs, not 40"),
        (("sparse", 0, 12.5), "knobs, not 12.5"),
        (("sparse", 0, True), "knobs, not True"),
        (("sparse", 0.5), "whole number or text, not 0.5"),
    ],
)
def test_bad_arguments_say_what_is_allowed(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planted(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [-0.1, 2, math.nan, "much"])
def test_bad_noise_is_refused(noise: object) -> None:
    with pytest.raises(InputError, match="relative standard deviation"):
        planted("sparse", 0, noise=noise)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "got nothing"),
        ({"family": "sparse"}, "'family' and 'seed'"),
        ({"family": "sparse", "seed": 0, "size": 3}, "got family, seed, size"),
        ({"family": 3, "seed": 0}, "unknown landscape family 3"),
        ({"family": "sparse", "seed": 1.5}, "whole number or text, not 1.5"),
    ],
)
def test_a_bad_spec_says_what_is_wrong(spec: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        planted_from_spec(spec)
