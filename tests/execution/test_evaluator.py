"""From route to evaluation: outcomes, reuse, pairing, racing, costs, reproducibility, threads."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers_execution import (
    MARK,
    MEMORY_LIMIT,
    backend_name,
    backend_of,
    children,
    eventually,
    marked,
    settings,
)
from onnx import TensorProto, helper, numpy_helper

from gpt_search.accuracy.gate import Tolerances
from gpt_search.accuracy.golden import save_golden
from gpt_search.backends.base import Capabilities, Fingerprints, Placement
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.workload import GoldenPair, Workload
from gpt_search.execution import devices as module
from gpt_search.execution.evaluator import (
    Earlier,
    Evaluator,
    EvaluatorClosed,
    EvaluatorSettings,
    ReferenceFailed,
    Reuse,
)
from gpt_search.execution.launcher import Worker
from gpt_search.measure.paired import paired_estimate
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import Best, Decision, decide

GENTLE = backend_name(gentle=True)
LANDSCAPE = backend_of(GENTLE).landscape
SPACE = LANDSCAPE.space


def single_changes(outcome: Outcome, count: int = 1) -> list[np.ndarray]:
    found = [c for c in SPACE.neighbours(SPACE.default) if LANDSCAPE.outcome(c) is outcome]
    assert len(found) >= count
    return found[:count]


def made(folder: Path, name: str = GENTLE, **more) -> Evaluator:
    evaluator = Evaluator(settings(folder, name, **more), SPACE.reference)
    evaluator.reference_latency_ms = LANDSCAPE.reference_ms
    return evaluator


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with made(tmp_path_factory.mktemp("evaluator")) as evaluator:
        yield evaluator


@pytest.fixture
def mark(monkeypatch):
    monkeypatch.setenv(MARK, str(os.urandom(8).hex()))
    yield os.environ[MARK]
    for pid in marked(os.environ[MARK]):
        os.kill(pid, signal.SIGKILL)


# -- what becomes of a route -------------------------------------------------------------------
def test_every_route_gets_the_outcome_and_the_value_that_were_planted(shared):
    routes = [
        SPACE.default,
        *SPACE.neighbours(SPACE.default)[::2],
        *(SPACE.sample(np.random.default_rng(i)) for i in range(12)),
    ]
    seen = set()
    for number, codes in enumerate(routes):
        truth = LANDSCAPE.truth(codes)
        got = shared.evaluate(SPACE.route(codes), seed=number)
        seen.add(got.outcome)
        assert got.outcome is truth.outcome
        if truth.outcome in (Outcome.OK, Outcome.ACCURACY):
            assert got.violation == pytest.approx(truth.violation)
        else:
            assert got.message
            assert got.violation is None
        assert got.fingerprint == truth.fingerprint
        assert (got.latency_ms is not None) == (truth.outcome is Outcome.OK)
        if truth.outcome is Outcome.OK:
            assert abs(got.log_ratio - truth.log_ratio) < 6 * LANDSCAPE.noise
            assert got.latency_ms == pytest.approx(math.exp(got.log_ratio) * LANDSCAPE.reference_ms)
            assert got.error_ms == pytest.approx(got.latency_ms * got.log_ratio_error)
            assert paired_estimate(got.rounds)[:2] == (got.log_ratio, got.log_ratio_error)
        assert Evaluation.from_json(json.loads(json.dumps(got.to_json()))) == got
    assert {Outcome.OK, Outcome.ACCURACY, Outcome.BUILD_ERROR} <= seen


def test_phases_stop_where_they_are_told_to(shared):
    route = SPACE.route(single_changes(Outcome.OK)[0])
    build = shared.evaluate(route, Phase.BUILD)
    assert (build.outcome, build.losses, build.rounds) == (Outcome.OK, (), ())
    assert build.fingerprint is not None
    assert set(build.cost_s) >= {"start", "build"}
    assert not {"gate", "time"} & set(build.cost_s)
    gate = shared.evaluate(route, Phase.GATE)
    assert len(gate.losses) == 2
    assert set(gate.losses[0]["y"]) == {"l0", "l1", "l2", "lInf", "cos"}
    assert gate.latency_ms is None
    assert "time" not in gate.cost_s
    timed = shared.evaluate(route, Phase.TIME)
    assert {"start", "build", "gate", "time", "wait"} == set(timed.cost_s)
    assert (build.until, gate.until, timed.until) == tuple(Phase)


def test_infeasible_routes_are_pruned_before_timing_unless_asked_for(shared, tmp_path):
    route = SPACE.route(single_changes(Outcome.ACCURACY)[0])
    pruned = shared.evaluate(route)
    assert (pruned.outcome, pruned.rounds, pruned.latency_ms) == (Outcome.ACCURACY, (), None)
    assert pruned.violation > 0
    assert "time" not in pruned.cost_s
    with made(tmp_path, time_infeasible=True) as evaluator:
        timed = evaluator.evaluate(route)
    assert timed.outcome is Outcome.ACCURACY
    assert timed.rounds
    assert timed.latency_ms is not None
    assert "time" in timed.cost_s


@pytest.mark.parametrize("kind", ["nan", "shape", "missing"])
def test_spoiled_outputs_never_pass_whatever_the_tolerance(tmp_path, kind):
    given = settings(tmp_path, backend_name(fail={"": kind}))
    given = type(given)(**{**vars(given), "tolerances": Tolerances("lInf", 1e300)})
    with Evaluator(given, SPACE.reference) as evaluator:
        got = evaluator.evaluate(SPACE.reference, Phase.GATE)
    assert (got.outcome, got.violation) == (Outcome.ACCURACY, math.inf)


# -- workers -----------------------------------------------------------------------------------
def test_a_healthy_worker_is_reused_and_a_dead_one_replaced(tmp_path, mark, monkeypatch):
    pids: list[int] = []
    plain = Worker.ask

    def spy(self, kind, *args, **kwargs):
        if kind == "build":
            pids.append(self.pid)
        return plain(self, kind, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", spy)
    knob = SPACE.names[0]
    other = SPACE.values[0][1 - SPACE.default[0]]
    fail = {f"-{knob}={other}": "segv"}
    with made(tmp_path, backend_name(gentle=True, fail=fail)) as evaluator:
        good, bad = SPACE.reference, Route(((knob, other),))
        outcomes = [evaluator.evaluate(r, Phase.BUILD).outcome for r in (good, good, bad, good, good)]
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.CRASH, Outcome.OK, Outcome.OK]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4]
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("kind", "outcome", "phase"),
    [
        ("segv@gate", Outcome.CRASH, "gate"),
        ("hang@gate", Outcome.TIMEOUT, "gate"),
        ("garbage@gate", Outcome.CRASH, "gate"),
        ("exit@time", Outcome.CRASH, "time"),
        ("hang@time", Outcome.TIMEOUT, "time"),
        ("memory@time", Outcome.MEMORY, "time"),
        ("hang@build", Outcome.TIMEOUT, "build"),
    ],
)
def test_a_route_may_die_in_any_phase_and_the_next_one_is_fine(tmp_path, mark, kind, outcome, phase):
    knob, other = SPACE.names[0], SPACE.values[0][1 - SPACE.default[0]]
    name = backend_name(gentle=True, fail={f"-{knob}={other}": kind})
    limits = {"timeout_build_s": 1.5, "timeout_run_s": 1.5, "memory_limit_gb": MEMORY_LIMIT / 1e9}
    if outcome is Outcome.MEMORY:
        limits |= {"timeout_run_s": 60.0}
    with made(tmp_path, name, **limits) as evaluator:
        got = evaluator.evaluate(Route(((knob, other),)))
        assert got.outcome is outcome
        assert phase in got.message or outcome is Outcome.MEMORY
        assert got.cost_s[phase] > 0
        assert (got.fingerprint is None) == (phase == "build")
        assert evaluator.evaluate(SPACE.reference).outcome is Outcome.OK
    assert marked(mark) == []


def test_two_hundred_routes_leave_no_process_behind(tmp_path, mark):
    before = children()
    last = [
        f"-{n}={next(v for c, v in enumerate(v) if c != d)}"
        for n, v, d in zip(SPACE.names, SPACE.values, SPACE.default, strict=True)
    ]
    fail = {f"{last[0]} {last[1]}": "grandchild+segv", f"{last[2]} {last[3]}": "grandchild+exit", last[4]: "grandchild"}
    rng = np.random.default_rng(5)
    routes = [SPACE.route(c) for c in SPACE.neighbours(SPACE.default)]
    routes = [SPACE.route(SPACE.sample(rng)) for _ in range(12)] + routes * 8
    outcomes = set()
    with made(tmp_path, backend_name(gentle=True, fail=fail)) as evaluator:
        for route in routes[:200]:
            outcomes.add(evaluator.evaluate(route, Phase.GATE).outcome)
    assert len(routes) >= 200
    assert {Outcome.CRASH, Outcome.OK, Outcome.BUILD_ERROR} <= outcomes
    assert marked(mark) == []
    assert children() == before


# -- pairing -----------------------------------------------------------------------------------
def test_sides_alternate_and_the_idle_one_is_stopped(tmp_path, monkeypatch):
    log: list[tuple[str, int, str]] = []
    plain = Worker.ask

    def states() -> dict[int, str]:
        return {
            w.pid: Path(f"/proc/{w.pid}/stat").read_text().rpartition(")")[2].split()[0] for w in evaluator.pool.workers
        }

    def spy(self, kind, fields=None, *args, **kwargs):
        if kind == "time":
            others = {pid: state for pid, state in states().items() if pid != self.pid}
            log.append((fields["slot"], fields["round"], "".join(others.values())))
        return plain(self, kind, fields, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", spy)
    with made(tmp_path) as evaluator:
        got = evaluator.evaluate(SPACE.reference, seed=4)
    assert {others for _, _, others in log} == {"T"}
    rounds = [(slot, number) for slot, number, _ in log if number >= 0]
    for number, round_ in enumerate(got.rounds):
        order = [slot for slot, n in rounds if n == number]
        assert order == (["reference", "candidate"] if number % 2 else ["candidate", "reference"])
        assert round_.reference_first == bool(number % 2)
    assert len(rounds) == 2 * len(got.rounds)


def test_drift_that_both_sides_share_cancels(tmp_path):
    codes = single_changes(Outcome.OK, 3)[2]
    with made(tmp_path, backend_name(gentle=True, drift=0.3, noise=0.0)) as evaluator:
        evaluator.settings.workload.model.write_text(json.dumps(backend_of(backend_name(noise=0.0)).landscape.spec()))
        got = evaluator.evaluate(SPACE.route(codes), seed=2)
    levels = [np.median(r.candidate_ms) for r in got.rounds]
    assert max(levels) / min(levels) > 1.2
    assert got.log_ratio == pytest.approx(float(LANDSCAPE.true_log_ratio(codes)), abs=1e-9)


def test_a_route_that_is_clearly_worse_is_raced_out(shared):
    protocol = shared.settings.protocol
    got = shared.evaluate(SPACE.reference, best=Best(-1.0))
    assert got.raced
    assert len(got.rounds) == protocol.min_rounds
    assert got.outcome is Outcome.OK
    assert not shared.evaluate(SPACE.reference, best=Best(0.0)).raced
    late = shared.evaluate(SPACE.reference, best=Best(-1.0), trial=10**9)  # may spend next to nothing
    assert late.raced and len(late.rounds) > protocol.min_rounds


def test_both_engines_live_in_one_worker_where_the_backend_wants_that(tmp_path, monkeypatch):
    source = tmp_path / "same.py"
    source.write_text(
        "from dataclasses import replace\n"
        "from gpt_search.backends.base import Placement\n"
        "from gpt_search.backends.synthetic import SyntheticBackend\n"
        "class Same(SyntheticBackend):\n"
        "    capabilities = replace(SyntheticBackend.capabilities, placement=Placement.SAME_WORKER)\n"
        "    device_id = 'GPU-test'\n"
        "    def device_state(self):\n"
        "        return {'clock_mhz': 1980.0}\n"
    )
    options = GENTLE.partition(":")[2]
    with made(tmp_path, f"{source}:Same:{options}") as evaluator:
        got = evaluator.evaluate(SPACE.reference)
        assert len(evaluator.pool.workers) == 1
        assert evaluator.capabilities.placement is Placement.SAME_WORKER
        assert evaluator.pool.lock.device == "GPU-test"
    assert got.rounds[0].device == {"clock_mhz": 1980.0, "reference_clock_mhz": 1980.0}


# -- the reference -----------------------------------------------------------------------------
def test_the_reference_is_timed_against_itself_and_sets_the_scale(tmp_path):
    with Evaluator(settings(tmp_path), SPACE.reference) as evaluator:
        with pytest.raises(RuntimeError, match="reference latency is not known"):
            evaluator.evaluate(SPACE.reference)
        got = evaluator.evaluate_reference(seed=3)
        scale = evaluator.reference_latency_ms
        assert scale == got.latency_ms == np.median([np.median(r.reference_ms) for r in got.rounds])
        assert scale == pytest.approx(LANDSCAPE.reference_ms, rel=0.1)
        assert got.outcome is Outcome.OK
        assert got.log_ratio == 0.0
        assert got.log_ratio_error > 0
        assert paired_estimate(got.rounds).log_ratio != 0.0
        evaluator.evaluate(SPACE.reference, seed=9)
        assert evaluator.reference_latency_ms == scale


@pytest.mark.parametrize(
    ("kind", "outcome"), [("build_error", Outcome.BUILD_ERROR), ("segv", Outcome.CRASH), ("nan", Outcome.ACCURACY)]
)
def test_a_dead_or_inaccurate_reference_is_an_evaluation(tmp_path, kind, outcome):
    with Evaluator(settings(tmp_path, backend_name(fail={"": kind})), SPACE.reference) as evaluator:
        got = evaluator.evaluate_reference()
        assert got.outcome is outcome
        assert bool(got.losses) == (outcome is Outcome.ACCURACY)
        assert evaluator.reference_latency_ms is None


def _dying_reference(monkeypatch, deaths: int, at_round: int = 2) -> list[int]:
    """Kills the reference's worker in the middle of a round, that many times; returns the rounds it was asked for."""
    plain, asked = Worker.ask, []

    def spy(self, kind, fields=None, *args, **kwargs):
        if kind == "time" and fields["slot"] == "reference" and fields["round"] >= 0:
            asked.append(fields["round"])
            if fields["round"] == at_round and asked.count(at_round) <= deaths:
                os.kill(self.pid, signal.SIGKILL)
        return plain(self, kind, fields, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", spy)
    return asked


def test_a_worker_that_was_killed_while_it_had_nothing_to_do_is_no_fault_of_the_next_route(tmp_path, mark):
    with made(tmp_path) as evaluator:
        assert evaluator.evaluate(SPACE.reference).outcome is Outcome.OK
        before = [w for w in evaluator.pool.workers if w is not evaluator.pool.reference]
        assert before
        for worker in before:
            os.kill(worker.pid, signal.SIGKILL)
        assert eventually(lambda: not any(w.running for w in before))
        assert evaluator.evaluate(SPACE.reference).outcome is Outcome.OK
        assert not evaluator.pool.workers & set(before)
    assert marked(mark) == []


def test_a_reference_that_dies_in_a_round_is_restarted_and_the_round_repeated(tmp_path, mark, monkeypatch):
    with made(tmp_path) as evaluator:
        undisturbed = evaluator.evaluate(SPACE.reference, seed=11)
    asked = _dying_reference(monkeypatch, deaths=1)
    with made(tmp_path) as evaluator:
        got = evaluator.evaluate(SPACE.reference, seed=11)
    assert got.rounds == undisturbed.rounds
    assert asked.count(2) == 2
    assert got.outcome is Outcome.OK
    assert marked(mark) == []


def test_a_reference_that_dies_again_is_an_error_and_no_fault_of_the_route(tmp_path, mark, monkeypatch):
    _dying_reference(monkeypatch, deaths=2)
    with made(tmp_path) as evaluator, pytest.raises(ReferenceFailed, match="died by SIGKILL"):
        evaluator.evaluate(SPACE.reference)
    assert marked(mark) == []


def test_the_reference_is_built_and_warmed_up_once_and_again_when_told(tmp_path, monkeypatch):
    built: list[str] = []
    warm_ups: list[int] = []
    plain = Worker.ask

    def spy(self, kind, fields=None, *args, **kwargs):
        if kind == "build":
            built.append(fields["slot"])
        if kind == "time" and fields["slot"] == "reference" and fields["round"] < 0:
            warm_ups.append(fields["round"])
        return plain(self, kind, fields, *args, **kwargs)

    def evaluate() -> tuple[list[str], bool]:
        built.clear()
        warm_ups.clear()
        evaluator.evaluate(SPACE.reference)
        return list(built), warm_ups == [-1]

    monkeypatch.setattr(Worker, "ask", spy)
    with made(tmp_path) as evaluator:
        assert evaluate() == (["candidate", "reference"], False)
        assert evaluate() == (["candidate"], True)


# -- engines that are known --------------------------------------------------------------------
def test_an_engine_that_was_timed_already_is_not_timed_again(shared):
    first = shared.evaluate(SPACE.reference, seed=1)
    asked: list[str] = []

    def known(fingerprint: str):
        asked.append(fingerprint)
        return Earlier(7, first, Reuse.TAKE)

    got = shared.evaluate(SPACE.reference, known=known, seed=2)
    assert asked == [first.fingerprint]
    assert got.timed_as == 7
    assert (got.rounds, got.losses, got.latency_ms, got.violation) == (
        first.rounds,
        first.losses,
        first.latency_ms,
        first.violation,
    )
    assert not {"gate", "time"} & set(got.cost_s)
    again = shared.evaluate(SPACE.reference, known=lambda f: Earlier(7, got, Reuse.TAKE))
    assert (again.timed_as, again.borrowed, again.own_rounds) == (7, len(first.rounds), ())


def test_what_is_known_must_go_as_far_as_what_is_asked(shared):
    only_built = shared.evaluate(SPACE.reference, Phase.BUILD)
    only_gated = shared.evaluate(SPACE.reference, Phase.GATE)
    assert shared.evaluate(SPACE.reference, known=lambda f: Earlier(1, only_built, Reuse.TAKE)).timed_as is None
    timed = shared.evaluate(SPACE.reference, known=lambda f: Earlier(1, only_gated, Reuse.TAKE))
    assert timed.timed_as is None
    assert timed.rounds
    gated = shared.evaluate(SPACE.reference, Phase.GATE, known=lambda f: Earlier(1, timed, Reuse.TAKE))
    assert (gated.losses, gated.rounds, gated.latency_ms) == (timed.losses, (), None)


def test_too_few_samples_of_an_engine_are_extended_until_the_racing_rule_has_enough(shared):
    """One sequence of rounds, with the index of the trial that began it, however many trials took them."""
    route, other = (SPACE.route(c) for c in single_changes(Outcome.OK, 2))
    first = shared.evaluate(route, seed=1, trial=1)  # without anything to race against, a coarse error is enough
    best = Best(first.log_ratio, 0.0)
    assert first.log_ratio_error > shared.settings.protocol.contender_error
    more = shared.evaluate(other, best=best, known=lambda f: Earlier(1, first, Reuse.EXTEND), seed=2, trial=9)
    assert (more.timed_as, more.borrowed) == (1, len(first.rounds)) and more.rounds[: more.borrowed] == first.rounds
    assert more.own_rounds and "time" in more.cost_s and "gate" not in more.cost_s
    assert paired_estimate(more.rounds)[:2] == (more.log_ratio, more.log_ratio_error)
    protocol = shared.settings.protocol
    for n in range(more.borrowed, len(more.rounds)):
        assert decide(more.rounds[:n], best, protocol, 1) is Decision.CONTINUE
    assert decide(more.rounds, best, protocol, 1) is not Decision.CONTINUE
    # Enough of them, and they are taken over as they are, unless the route itself is to be timed again.
    same = shared.evaluate(route, best=best, known=lambda f: Earlier(1, more, Reuse.EXTEND), seed=3, trial=10)
    assert same.own_rounds == () and same.latency_ms == more.latency_ms and "time" not in same.cost_s
    added = shared.evaluate(route, best=best, known=lambda f: Earlier(1, more, Reuse.ADD), seed=4, trial=11)
    assert added.timed_as == 1 and len(added.own_rounds) >= protocol.min_rounds
    assert not {r.candidate_ms for r in added.own_rounds} & {r.candidate_ms for r in more.rounds}


def test_a_failed_engine_is_not_run_again(shared):
    route = SPACE.route(single_changes(Outcome.OK)[0])
    built = shared.evaluate(route, Phase.BUILD)
    in_gate = replace(built, outcome=Outcome.TIMEOUT, message="gate took 60 s")
    got = shared.evaluate(route, known=lambda f: Earlier(4, in_gate, Reuse.TAKE))
    assert got.outcome is Outcome.TIMEOUT and "trial 4" in got.message and "gate took 60 s" in got.message
    assert got.fingerprint == built.fingerprint and not {"gate", "time"} & set(got.cost_s)
    in_timing = replace(shared.evaluate(route, Phase.GATE), outcome=Outcome.CRASH, message="died")
    got = shared.evaluate(route, known=lambda f: Earlier(4, in_timing, Reuse.TAKE))
    assert got.outcome is Outcome.CRASH and got.violation == in_timing.violation
    assert shared.evaluate(route, Phase.GATE, known=lambda f: Earlier(4, in_timing, Reuse.TAKE)).outcome is Outcome.OK
    inaccurate = replace(shared.evaluate(route, Phase.GATE), outcome=Outcome.ACCURACY, violation=0.5)
    got = shared.evaluate(route, known=lambda f: Earlier(4, inaccurate, Reuse.TAKE))
    assert (got.outcome, got.violation) == (Outcome.ACCURACY, 0.5) and not {"gate", "time"} & set(got.cost_s)


def test_fingerprints_that_may_merge_lend_samples_and_nothing_else(tmp_path):
    """Every route goes through the gate itself; a spot check is timed in at least as many rounds as a build."""
    knob = SPACE.names[0]
    with made(tmp_path, backend_name(gentle=True, merge_knobs=[knob])) as evaluator:
        assert evaluator.capabilities.fingerprint is Fingerprints.MAY_MERGE
        first = evaluator.evaluate(SPACE.reference, seed=1)
        bad = replace(first, violation=0.5, outcome=Outcome.ACCURACY)
        got = evaluator.evaluate(SPACE.reference, known=lambda f: Earlier(7, bad, Reuse.TAKE), seed=2)
        assert got.timed_as == 7 and got.rounds == first.rounds and "gate" in got.cost_s and "time" not in got.cost_s
        assert got.outcome is Outcome.OK and got.violation == first.violation
        checked = evaluator.evaluate(SPACE.reference, known=lambda f: Earlier(7, first, Reuse.CHECK), seed=3)
        assert (checked.checks, checked.timed_as, checked.borrowed) == (7, None, 0)
        assert len(checked.rounds) >= evaluator.settings.protocol.build_rounds


# -- reproducibility ---------------------------------------------------------------------------
def test_evaluations_follow_from_the_route_and_the_seed_alone(shared, tmp_path):
    name = backend_name(gentle=True, simulate_clock=True)
    routes = [*SPACE.neighbours(SPACE.default)[:5], SPACE.sample(np.random.default_rng(1))]
    with made(tmp_path / "a", name) as evaluator:
        forward = [evaluator.evaluate(SPACE.route(c), seed=i) for i, c in enumerate(routes)]
    with made(tmp_path / "b", name) as evaluator:
        backward = [evaluator.evaluate(SPACE.route(c), seed=i) for i, c in reversed(list(enumerate(routes)))][::-1]
    assert forward == backward  # also across workers, and costs included: the clock is simulated
    assert shared.evaluate(SPACE.reference, seed=1).rounds != shared.evaluate(SPACE.reference, seed=2).rounds
    timed = [e for e in forward if e.rounds]
    assert timed
    for got in timed:
        starts = [r.started_s for r in got.rounds]
        assert starts == sorted(starts)
        assert starts[0] == 0.0


def test_a_simulated_clock_charges_what_the_landscape_says_even_for_a_real_death(tmp_path):
    some = (SPACE.sample(np.random.default_rng(i)) for i in range(1000))
    crash = next(c for c in some if LANDSCAPE.outcome(c) is Outcome.TIMEOUT)
    with made(tmp_path, backend_name(simulate_clock=True), timeout_build_s=0.3, timeout_run_s=0.3) as evaluator:
        got = evaluator.evaluate(SPACE.route(crash))
    assert got.outcome is Outcome.TIMEOUT
    limits = (LANDSCAPE.costs.build_limit, LANDSCAPE.costs.run_limit)
    assert got.cost_s["build"] in limits or got.cost_s["gate"] in limits
    assert "wait" not in got.cost_s


# -- threads and devices -----------------------------------------------------------------------
def test_builders_run_beside_each_other_and_are_timed_one_at_a_time(tmp_path, mark, monkeypatch):
    timing = threading.Lock()
    overlaps: list[str] = []
    plain = Worker.ask

    def spy(self, kind, *args, **kwargs):
        if kind != "time":
            return plain(self, kind, *args, **kwargs)
        if not timing.acquire(blocking=False):
            overlaps.append(kind)
        try:
            return plain(self, kind, *args, **kwargs)
        finally:
            timing.release()

    monkeypatch.setattr(Worker, "ask", spy)
    results: dict[int, Evaluation] = {}
    codes = SPACE.neighbours(SPACE.default)[:12]
    with made(tmp_path) as evaluator:

        def work(start: int) -> None:
            for i in range(start, len(codes), 3):
                results[i] = evaluator.evaluate(SPACE.route(codes[i]), seed=i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = [evaluator.evaluate(SPACE.route(c), seed=i) for i, c in enumerate(codes)]
    assert overlaps == []
    assert [results[i].rounds for i in range(len(codes))] == [e.rounds for e in alone]
    assert [results[i].outcome for i in range(len(codes))] == [e.outcome for e in alone]
    assert marked(mark) == []


def test_builds_that_use_the_device_take_its_lock_shared_and_timing_alone(tmp_path, monkeypatch):
    source = tmp_path / "user.py"
    source.write_text(
        "from dataclasses import replace\n"
        "from gpt_search.backends.synthetic import SyntheticBackend\n"
        "class User(SyntheticBackend):\n"
        "    capabilities = replace(SyntheticBackend.capabilities, build_uses_device=True)\n"
    )
    taken: list[tuple[str, bool]] = []
    plain = module.DeviceLock.hold

    def spy(self, *, shared=False, check=None):
        taken.append((self.device, shared))
        return plain(self, shared=shared, check=check)

    monkeypatch.setattr(module.DeviceLock, "hold", spy)
    with made(tmp_path, f"{source}:User:{GENTLE.partition(':')[2]}") as evaluator:
        evaluator.evaluate(SPACE.reference)
        assert taken == [("cpu", True), ("cpu", True), ("cpu", False)]
        evaluator.evaluate(SPACE.reference, Phase.BUILD)
    assert taken[3:] == [("cpu", True)]


def test_closing_ends_evaluations_in_other_threads(tmp_path, mark):
    evaluator = made(tmp_path, backend_name(fail={"": "hang"}))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            evaluator.evaluate(SPACE.reference)
        except EvaluatorClosed as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not evaluator.pool.workers:
        pass
    evaluator.close()
    thread.join(30)
    assert len(errors) == 1
    assert marked(mark) == []
    with pytest.raises(EvaluatorClosed):
        evaluator.evaluate(SPACE.reference)


# -- the rest ----------------------------------------------------------------------------------
def test_capabilities_and_environment_come_from_the_worker(shared):
    metrics = ("latency", "throughput")
    assert shared.capabilities == Capabilities(Fingerprints.EXACT, False, Placement.PAUSED_WORKER, metrics)
    assert shared.environment()["backend"] == "synthetic"


def test_the_protocol_bounds_the_rounds(tmp_path):
    protocol = Protocol(min_rounds=3, max_rounds=4, target_error=0.0, contender_error=0.0, warmup_seconds=0.0)
    with made(tmp_path, protocol=protocol) as evaluator:
        assert len(evaluator.evaluate(SPACE.reference).rounds) == 4


def test_a_real_compiler_goes_the_whole_way(tmp_path):
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=[8, 64])
    graph = helper.make_graph(nodes, "small", [value("x")], [value("y")], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "small.onnx")
    x = rng.standard_normal((8, 64)).astype(np.float32)
    wanted = np.maximum(x @ numpy_helper.to_array(weights), 0)
    save_golden(tmp_path / "golden.npz", [GoldenPair({"x": x}, {"y": wanted})], {})
    workload = Workload(tmp_path / "small.onnx", {"x": (8, 64)})
    given = EvaluatorSettings("onnxruntime", workload, tmp_path / "golden.npz", Tolerances("lInf", 1e-3))
    with Evaluator(given, Route(())) as evaluator:
        first = evaluator.evaluate_reference()
        assert first.outcome is Outcome.OK, first.message
        assert 0 < first.latency_ms < 1000
        changed = evaluator.evaluate(Route((("session:intra_threads", "1"),)))
        assert changed.outcome is Outcome.OK, changed.message
        assert changed.fingerprint != first.fingerprint
        assert len(changed.rounds) >= given.protocol.min_rounds
        copied = evaluator.evaluate(Route(()), known={first.fingerprint: Earlier(0, first, Reuse.TAKE)}.get)
        assert copied.timed_as == 0
    assert "onnxruntime" in evaluator.environment()
