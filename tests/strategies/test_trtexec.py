"""full, fast and mixed follow trtexec's order and counts, checked against an independent enumeration."""

from __future__ import annotations

from itertools import islice
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_search import (
    History,
    InputError,
    Knob,
    KnobDatabase,
    Observation,
    Outcome,
    SearchSpace,
    Streams,
    load_strategy,
    parse_expression,
    simulate,
)
from gpt_search.domain.space import Dimension

Codes = tuple[int, ...]
EXAMPLE = KnobDatabase.of(
    "2.19.45",
    [Knob("conv_lowering", ("on", "off"), "on"), Knob("kgen:tiling", ("0", "1", "2"), "2")],
)
STREAMS = Streams(0)


def value_names(space: SearchSpace, routes: list[Codes]) -> list[Codes]:
    return [tuple(v[c] for v, c in zip(space.values, codes, strict=True)) for codes in routes]  # type: ignore[misc]


def listed_routes(spec: str, space: SearchSpace) -> list[Codes]:
    return [tuple(c.tolist()) for c in load_strategy(spec).routes(space)]  # type: ignore[attr-defined]


def tried(
    spec: str, space: SearchSpace, latency: dict[Codes, float | Outcome], trials: int | None = None
) -> list[Codes]:
    """The routes of a study in order, trial 0 first. A route without an entry takes 1 ms; an Outcome is a failure."""

    def measure(codes: np.ndarray, rng: np.random.Generator, until: object) -> Observation:
        value = latency.get(tuple(codes.tolist()), 1.0)
        return Observation(value) if isinstance(value, Outcome) else Observation(Outcome.OK, value)

    return [tuple(c) for c in simulate(space, spec, measure, trials).codes.tolist()]


# -- an independent enumeration: recursion and dictionaries instead of products and arrays -----------
def brute_full(counts: list[int]) -> list[Codes]:
    if not counts:
        return [()]
    return [(first, *rest) for first in range(counts[0]) for rest in brute_full(counts[1:])]


def brute_fast(counts: list[int], default: list[int]) -> list[Codes]:
    routes = [tuple(default)]
    knob = len(counts) - 1
    while knob >= 0:
        for value in range(counts[knob]):
            if value == default[knob]:
                continue
            routes.append(tuple(value if i == knob else d for i, d in enumerate(default)))
        knob -= 1
    return routes


def brute_phase_2(counts: list[int], default: list[int], positive: set[int]) -> list[Codes]:
    """The rows of `full` in which nothing but positive knobs differs from the baseline, in the order of `full`."""
    if not positive:
        return []
    return [
        tuple(code if i in positive else default[i] for i, code in enumerate(codes))
        for codes in brute_full([c if i in positive else 1 for i, c in enumerate(counts)])
    ]


@st.composite
def spaces(draw: st.DrawFn, strict: bool = True) -> SearchSpace:
    dimensions = []
    for i in range(draw(st.integers(0, 4))):
        count = draw(st.integers(1, 4))
        default = draw(st.integers(0, count - 1))
        listed = None
        if strict and count > 1 and draw(st.booleans()):
            default, listed = count - 1, count - 1  # the default was not listed: baseline only
        dimensions.append(Dimension(f"k{i}", tuple(f"v{j}" for j in range(count)), default, listed))
    return SearchSpace(dimensions)


def without_repeats(routes: list[Codes]) -> list[Codes]:
    return list(dict.fromkeys(routes))


# -- the worked example ----------------------------------------------------------------------------
@pytest.mark.parametrize("strict", [True, False])
def test_the_worked_example(strict: bool) -> None:
    space = parse_expression("-conv_lowering=[on|off] -kgen:tiling=[0|1|2]", EXAMPLE, strict=strict)
    fast = value_names(space, listed_routes("fast", space))
    full = value_names(space, listed_routes("full", space))
    assert fast == [("on", "2"), ("on", "0"), ("on", "1"), ("off", "2")]
    assert full == [("on", "0"), ("on", "1"), ("on", "2"), ("off", "0"), ("off", "1"), ("off", "2")]
    assert load_strategy("fast").count(space) == 4  # type: ignore[attr-defined]
    assert load_strategy("full").count(space) == 6  # type: ignore[attr-defined]
    # A study measures the reference first and then keeps to the order.
    assert value_names(space, tried("fast", space, {})) == fast
    assert value_names(space, tried("full", space, {})) == [("on", "2"), *(r for r in full if r != ("on", "2"))]


def test_a_default_that_was_not_listed() -> None:
    text = "-conv_lowering=[off] -kgen:tiling=[1|0]"
    strict = parse_expression(text, EXAMPLE, strict=True)
    assert value_names(strict, listed_routes("full", strict)) == [("off", "1"), ("off", "0")]
    assert value_names(strict, listed_routes("fast", strict)) == [("on", "2"), ("on", "1"), ("on", "0"), ("off", "2")]
    assert load_strategy("full").count(strict) == 2  # type: ignore[attr-defined]
    assert load_strategy("fast").count(strict) == 4  # type: ignore[attr-defined]
    assert len(tried("full", strict, {})) == 3  # the reference, which trtexec's full would not measure, and two
    extended = parse_expression(text, EXAMPLE)
    assert load_strategy("full").count(extended) == 6  # type: ignore[attr-defined]
    assert load_strategy("fast").count(extended) == 4  # type: ignore[attr-defined]


# -- full and fast ---------------------------------------------------------------------------------
@given(spaces())
def test_full_is_the_whole_product(space: SearchSpace) -> None:
    counts = space.listed.tolist()
    expected = brute_full(counts)
    assert listed_routes("full", space) == expected
    assert load_strategy("full").count(space) == len(expected) == prod(counts)  # type: ignore[attr-defined]
    assert tried("full", space, {}) == without_repeats([tuple(space.default.tolist()), *expected])


@given(spaces())
def test_fast_is_every_single_change(space: SearchSpace) -> None:
    expected = brute_fast(space.listed.tolist(), space.default.tolist())
    assert listed_routes("fast", space) == expected
    assert load_strategy("fast").count(space) == len(expected)  # type: ignore[attr-defined]
    assert tried("fast", space, {}) == expected


def test_full_is_lazy_at_any_size() -> None:
    space = SearchSpace(Dimension(f"k{i}", ("a", "b"), 0) for i in range(200))
    assert load_strategy("full").count(space) == 2**200  # type: ignore[attr-defined]
    first = list(islice(load_strategy("full").routes(space), 5))  # type: ignore[attr-defined]
    assert [space.index_of(c) for c in first] == [0, 1, 2, 3, 4]
    assert len(tried("full", space, {}, trials=300)) == 301


def test_a_failure_does_not_stop_an_enumeration() -> None:
    space = SearchSpace([Dimension("a", ("0", "1", "2"), 0), Dimension("b", ("0", "1"), 0)])
    failures: dict[Codes, float | Outcome] = {c: Outcome.CRASH for c in brute_full([3, 2]) if c != (0, 0)}
    assert tried("full", space, failures) == brute_full([3, 2])
    assert tried("fast", space, failures) == brute_fast([3, 2], [0, 0])


# -- mixed -----------------------------------------------------------------------------------------
@given(spaces(), st.data())
@settings(max_examples=150)
def test_mixed_is_fast_and_then_the_product_over_the_knobs_that_gained(space: SearchSpace, data: st.DataObject) -> None:
    counts, default = space.listed.tolist(), space.default.tolist()
    phase_1 = brute_fast(counts, default)
    values = st.one_of(st.sampled_from([0.5, 0.9, 1.0, 1.5]), st.sampled_from([Outcome.ACCURACY, Outcome.TIMEOUT]))
    latency = {route: data.draw(values) for route in phase_1[1:]}
    gains = [r for r, v in latency.items() if not isinstance(v, Outcome) and v < 1.0]
    positive = {i for r in gains for i, (c, d) in enumerate(zip(r, default, strict=True)) if c != d}
    phase_2 = brute_phase_2(counts, default, positive) if len(gains) > 1 else []
    # What phase 2 finds must not change which knobs take part in it.
    surprises: dict[Codes, float | Outcome] = {r: data.draw(values) for r in phase_2 if r != phase_1[0]}
    assert tried("mixed", space, surprises | latency) == without_repeats(phase_1 + phase_2)

    strategy = load_strategy("mixed")
    assert strategy.count(space) is None  # type: ignore[attr-defined]
    assert strategy.count_phase_1(space) == len(phase_1)  # type: ignore[attr-defined]
    history = History(space)
    for number, route in enumerate(phase_1):
        assert strategy.count(space, history) is None  # type: ignore[attr-defined]
        value = latency.get(route, 1.0)
        observation = Observation(value) if isinstance(value, Outcome) else Observation(Outcome.OK, value)
        history.append(number, np.array(route, np.int16), observation)
    assert strategy.count(space, history) == len(phase_1) + len(phase_2)  # type: ignore[attr-defined]


def three_knobs() -> SearchSpace:
    return SearchSpace(Dimension(name, ("0", "1", "2")[: 2 + (name == "c")], 0) for name in "abc")


def test_mixed_needs_more_than_one_gain() -> None:
    space = three_knobs()
    assert len(tried("mixed", space, {(1, 0, 0): 0.5})) == 5
    assert tried("mixed", space, {(1, 0, 0): 0.5, (0, 0, 2): 0.5})[5:] == [(1, 0, 1), (1, 0, 2)]


def test_mixed_a_failed_route_is_never_a_gain_however_fast() -> None:
    space = three_knobs()

    def measure(codes: np.ndarray, rng: np.random.Generator, until: object) -> Observation:
        if codes[2] == 1:
            return Observation(Outcome.ACCURACY, 0.01, 1.0)  # timed all the same
        return Observation(Outcome.OK, 0.5 if codes[0] else 1.0)

    assert len(simulate(space, "mixed", measure, None)) == 5


def test_mixed_margin() -> None:
    space = three_knobs()
    latency: dict[Codes, float | Outcome] = {(1, 0, 0): 0.99, (0, 1, 0): 0.97, (0, 0, 1): 0.90}
    assert len(tried("mixed", space, latency)) == 5 + 12 - 5
    assert tried("mixed:margin=0.02", space, latency)[5:] == [(0, 1, 1), (0, 1, 2)]
    assert len(tried("mixed:margin=0.05", space, latency)) == 5
    assert len(tried("mixed:margin=0.1", space, latency)) == 5  # a gain is strictly below the limit
    for bad in ("1", "-0.1", "inf"):
        with pytest.raises(InputError, match="margin is"):
            load_strategy(f"mixed:margin={bad}")


def test_mixed_margin_auto_is_three_deviations_of_the_measured_noise() -> None:
    space = three_knobs()
    latency: dict[Codes, float | Outcome] = {(1, 0, 0): 0.99, (0, 1, 0): 0.97, (0, 0, 1): 0.90}

    def measure(codes: np.ndarray, rng: np.random.Generator, until: object) -> Observation:
        value = latency.get(tuple(codes.tolist()), 1.0)
        assert isinstance(value, float)
        return Observation(Outcome.OK, value)

    for noise, margin in ((0.0, 0.0), (0.02 / 3, 0.02), (0.05 / 3, 0.05)):
        found = simulate(space, "mixed:margin=auto", measure, None, noise=noise)
        whole = [tuple(c) for c in found.codes.tolist()]
        assert whole == tried(f"mixed:margin={margin}", space, latency)
        for at in range(1, len(whole) + 1):  # a fresh object that sees a part of the history goes on alike
            history = History(space, noise)
            for number, route in enumerate(whole[:at]):
                history.append(number, np.array(route, np.int16), measure(np.array(route), STREAMS.trial(0), None))
            proposal = load_strategy("mixed:margin=auto").propose(space, history, STREAMS)
            assert (tuple(proposal.codes.tolist()) if proposal else None) == (whole[at] if at < len(whole) else None)
    huge = simulate(space, "mixed:margin=auto", measure, None, noise=5.0)
    assert len(huge.codes) == 5  # nothing gains
    assert load_strategy("mixed:margin=auto").spec == "mixed:margin=auto"  # type: ignore[attr-defined]


def test_mixed_margin_auto_without_a_measured_noise_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="margin=auto needs the noise"):
        tried("mixed:margin=auto", three_knobs(), {}, 3)
    with pytest.raises(InputError, match="a number or auto"):
        load_strategy("mixed:margin=aut")


def test_mixed_phase_2_waits_for_pending_trials_of_phase_1() -> None:
    space, strategy = three_knobs(), load_strategy("mixed")
    history = History(space)
    history.append(0, space.default, Observation(Outcome.OK, 1.0))
    for number in range(1, 5):
        proposal = strategy.propose(space, history, STREAMS)
        assert proposal is not None
        history.start(number, proposal.codes, proposal.until)
    for number in (4, 1, 2):
        assert strategy.propose(space, history, STREAMS) is None
        history.finish(number, Observation(Outcome.OK, 0.5))
    assert strategy.propose(space, history, STREAMS) is None
    history.finish(3, Observation(Outcome.CRASH))  # b=1: no gain
    proposal = strategy.propose(space, history, STREAMS)
    assert proposal is not None and proposal.codes.tolist() == [1, 0, 1]


def test_mixed_resumed_anywhere_keeps_its_knobs() -> None:
    space = three_knobs()
    latency: dict[Codes, float | Outcome] = {(1, 0, 0): 0.9, (0, 0, 2): 0.9, (1, 0, 1): 0.1, (1, 0, 2): 9.0}
    whole = tried("mixed", space, latency)
    assert len(whole) == 7
    for at in range(1, 8):
        history = History(space)
        for number, route in enumerate(whole[:at]):
            value = latency.get(route, 1.0)
            assert isinstance(value, float)
            history.append(number, np.array(route, np.int16), Observation(Outcome.OK, value))
        proposal = load_strategy("mixed").propose(space, history, STREAMS)
        assert (tuple(proposal.codes.tolist()) if proposal else None) == (whole[at] if at < 7 else None)


def test_mixed_the_first_trial_of_a_change_decides() -> None:
    """A route that is timed again later, out of order, does not change phase 2."""
    space = three_knobs()
    history = History(space)
    history.append(0, space.default, Observation(Outcome.OK, 1.0))
    values = {1: 1.5, 2: 0.5, 3: 1.5, 4: 0.5}
    routes = brute_fast([2, 2, 3], [0, 0, 0])
    history.append(9, np.array(routes[1], np.int16), Observation(Outcome.OK, 0.1))  # a later trial, finished first
    for number, value in values.items():
        history.append(number, np.array(routes[number], np.int16), Observation(Outcome.OK, value))
    assert load_strategy("mixed").gains(space, history) == [(2, 2), (0, 1)]  # type: ignore[attr-defined]


# -- what trtexec does not have ---------------------------------------------------------------------
@settings(max_examples=50)
@given(spaces())
def test_with_the_first_knob_fastest_full_finds_the_same_routes_mirrored(space: SearchSpace) -> None:
    mirrored = [tuple(reversed(c)) for c in brute_full(list(reversed(space.listed.tolist())))]
    assert listed_routes("full:fastest=first", space) == mirrored
    assert sorted(mirrored) == sorted(listed_routes("full", space))


@settings(max_examples=50)
@given(spaces())
def test_fast_walks_the_knobs_from_the_first_too(space: SearchSpace) -> None:
    reference, *changes = brute_fast(space.listed.tolist(), space.default.tolist())
    by_knob = sorted(changes, key=lambda c: [a != b for a, b in zip(c, reference, strict=True)].index(True))
    assert listed_routes("fast:knobs=first_first", space) == [reference, *by_knob]


def test_shuffled_knobs_are_in_one_order_for_each_study() -> None:
    space = SearchSpace(Dimension(f"k{i}", ("a", "b", "c"), 0) for i in range(6))
    all_changes = set(brute_fast([3] * 6, [0] * 6))
    orders = set()
    for seed in range(20):
        routes = simulate(
            space, "fast:knobs=shuffled", lambda codes, rng, until: Observation(Outcome.OK, 1.0), seed=seed
        )
        found = [tuple(c) for c in routes.codes.tolist()]
        assert set(found) == all_changes and len(found) == len(all_changes)
        knobs = [next(i for i, code in enumerate(codes) if code) for codes in found[1:]]
        assert knobs[::2] == knobs[1::2]  # both values of a knob come one after the other
        orders.add(tuple(knobs))
    assert len(orders) > 15


@pytest.mark.parametrize("spec", ["full:fastest=middle", "fast:knobs=random", "random:keep=1", "random:keep=-0.1"])
def test_options_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(InputError, match=r"fastest|knobs|keep|allowed|below 1"):
        load_strategy(spec)
