"""The synthetic backend: it is what its landscape says, and it refuses what it does not know."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.accuracy.losses import losses_of_pair
from gpt_search.backends.base import BuildError, BuildOptions, MemoryLimitError, TimingRequest
from gpt_search.backends.synthetic import SyntheticBackend, synthetic_golden, synthetic_workload
from gpt_search.backends.synthetic_failures import KINDS, SimulatedFailure, parse_failure
from gpt_search.domain.errors import InputError
from gpt_search.domain.landscape import planted
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route

SPEC = {"family": "infeasible", "seed": 3, "knobs": 18, "noise": 0.02}
LANDSCAPE = planted("infeasible", 3, 18, noise=0.02)
SPACE = LANDSCAPE.space
REQUEST = TimingRequest({}, seconds=0.02)


def made(**options) -> SyntheticBackend:
    return SyntheticBackend(json.dumps(SPEC | {"gentle": True} | options))


@pytest.fixture
def workload(tmp_path):
    return synthetic_workload(tmp_path, SPEC)


def engine_of(backend: SyntheticBackend, workload, codes: np.ndarray):
    return backend.build(workload, SPACE.route(codes), BuildOptions())


def test_knobs_are_those_of_the_landscape():
    database = made().knob_database()
    assert database.names == SPACE.names
    assert [database[n].values for n in SPACE.names] == list(SPACE.values)
    with_failures = made(fail_knob=True).knob_database()
    assert with_failures.names == (*SPACE.names, "fail")
    assert with_failures["fail"].default == "no"
    assert set(KINDS) < set(with_failures["fail"].values)


def test_every_route_behaves_as_planted(workload):
    backend, pair = made(), synthetic_golden(1)[0]
    seen = set()
    for seed in range(150):
        codes = SPACE.sample(np.random.default_rng(seed)) if seed % 3 else SPACE.codes_at(seed)
        truth = LANDSCAPE.truth(codes)
        seen.add(truth.outcome)
        try:
            engine = engine_of(backend, workload, codes)
            losses = losses_of_pair(engine.infer(pair.inputs), pair.outputs)["y"]
        except BuildError:
            assert truth.outcome is Outcome.BUILD_ERROR
            continue
        except SimulatedFailure as failure:
            assert failure.outcome is truth.outcome
            continue
        assert engine.fingerprint == truth.fingerprint
        for metric in ("l1", "lInf"):
            assert losses[metric] - LANDSCAPE.tolerance == pytest.approx(truth.violation, abs=1e-12)
        engine.simulate_round(seed, 0, "candidate")
        ratio = np.median(engine.time(REQUEST).samples_ms) / LANDSCAPE.reference_ms
        if truth.outcome is Outcome.OK:
            assert abs(math.log(ratio) - truth.log_ratio) < 6 * LANDSCAPE.noise
    assert {Outcome.OK, Outcome.ACCURACY, Outcome.BUILD_ERROR, Outcome.CRASH} <= seen


def test_samples_follow_from_their_address_alone(workload):
    one = engine_of(made(), workload, SPACE.default)
    two = engine_of(made(), workload, SPACE.default)

    def samples(engine, *address):
        engine.simulate_round(*address)
        return engine.time(REQUEST).samples_ms.tolist()

    assert samples(one, 1, 2, "candidate") == samples(two, 1, 2, "candidate")
    others = [(2, 2, "candidate"), (1, 3, "candidate"), (1, 2, "reference")]
    assert all(samples(one, 1, 2, "candidate") != samples(one, *a) for a in others)


def test_bounds_on_calls_are_kept(workload):
    engine = engine_of(made(), workload, SPACE.default)
    assert len(engine.time(TimingRequest({}, seconds=0.0, min_calls=7)).samples_ms) == 7
    assert len(engine.time(TimingRequest({}, seconds=10.0, max_calls=5)).samples_ms) == 5


def test_engines_can_be_saved_and_loaded(workload):
    backend = made()
    engine = engine_of(backend, workload, SPACE.default)
    assert backend.load(engine.save(), workload).fingerprint == engine.fingerprint
    for data in (b"", b"[]", b'{"synthetic": 3}', b"\xff"):
        with pytest.raises(BuildError, match="not an engine"):
            backend.load(data, workload)


def test_costs_are_the_landscapes_where_the_clock_is_simulated():
    route = SPACE.route(SPACE.default)
    assert made().simulate_trial(route, 1) is None
    cost = made(simulate_clock=True).simulate_trial(route, 1)
    assert cost == made(simulate_clock=True).simulate_trial(route, 1)
    assert cost != made(simulate_clock=True).simulate_trial(route, 2)
    assert set(cost) == {"start", "build", "gate", "time"}


def test_failures_on_demand_apply_to_the_routes_that_they_name(workload):
    knob = SPACE.names[0]
    changed = SPACE.values[0][1 - SPACE.default[0]]
    backend = made(fail={f"-{knob}={changed}": "build_error"})
    with pytest.raises(BuildError, match="on demand"):
        backend.build(workload, Route(((knob, changed),)), BuildOptions())
    assert backend.build(workload, SPACE.reference, BuildOptions()).fingerprint == LANDSCAPE.fingerprint(SPACE.default)
    in_gate = made(fail={"": "exception@gate"}).build(workload, SPACE.reference, BuildOptions())
    assert in_gate.fingerprint != LANDSCAPE.fingerprint(SPACE.default)
    with pytest.raises(RuntimeError, match="on demand"):
        in_gate.infer(synthetic_golden(1)[0].inputs)


def test_a_memory_overrun_without_a_limit_does_not_take_the_machine_down(workload):
    with pytest.raises(MemoryLimitError):
        made(fail={"": "memory"}).build(workload, SPACE.reference, BuildOptions())


@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3), st.sampled_from(["", "build", "gate", "time"]))
def test_failures_are_parsed(kinds, phase):
    text = "+".join(kinds) + (f"@{phase}" if phase else "")
    assert parse_failure(text) == {phase or "build": kinds}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("not json", "JSON object"),
        ("[1]", "not list"),
        ('{"famly": "sparse"}', "did you mean 'family'"),
        ('{"family": "sparce", "seed": 1}', "sparse"),
        ('{"gentle": "yes"}', "must be true or false"),
        ('{"drift": -1}', "from 0 to 1"),
        ('{"fail": ["segv"]}', "must be an object"),
        ('{"fail": {"": "segfault"}}', "unknown failure 'segfault'"),
        ('{"fail": {"": "segv@bild"}}', "phases are build, gate, time"),
        ('{"fail": {"-nothing=on": "segv"}}', "unknown knob 'nothing'"),
    ],
)
def test_options_that_are_wrong_are_refused_clearly(options, says):
    with pytest.raises(InputError, match=says):
        SyntheticBackend(options)


def test_a_fail_setting_with_a_wrong_value_is_refused():
    with pytest.raises(InputError, match="'purple' is not among"):
        made(fail={f"-{SPACE.names[0]}=purple": "segv"})


def test_the_workload_must_hold_the_same_landscape(tmp_path, workload):
    assert made().own_workload(workload.model)[0].digest == workload.digest
    pairs = made().own_workload(workload.model)[1](3)
    assert len(pairs) == 3
    other = synthetic_workload(tmp_path / "other", SPEC | {"seed": 4})
    with pytest.raises(InputError, match=r"another landscape than .*; give --backend 'synthetic:\{"):
        made().build(other, SPACE.reference, BuildOptions())
    other.model.write_text("{")
    with pytest.raises(InputError, match="not a synthetic workload"):
        made().own_workload(other.model)
    with pytest.raises(InputError, match="not a synthetic workload"):
        made().own_workload(tmp_path / "nothing.json")


def test_an_unknown_knob_in_a_route_is_a_build_error(workload):
    with pytest.raises(BuildError, match="nothing"):
        made().build(workload, Route((("nothing", "on"),)), BuildOptions())


def test_a_planted_gate_failure_is_known_from_the_truth():
    failing = {LANDSCAPE.truth(SPACE.sample(np.random.default_rng(i))).failed_in for i in range(200)}
    assert {Phase.BUILD, Phase.GATE, None} <= failing
