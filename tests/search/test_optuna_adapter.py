"""Samplers as strategies: purity, resuming, learning, failures, duplicates, refusals."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import optuna
import pytest

from gpt_search import (
    History,
    InputError,
    Observation,
    OptunaStrategy,
    Outcome,
    Phase,
    SearchSpace,
    SimulationResult,
    Streams,
    simulate,
)
from gpt_search.domain.space import Codes, Dimension
from gpt_search.testing import StrategyConformance

# Small generations, so that 50 trials hold several of them.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("TPESampler", {}),
    ("RandomSampler", {}),
    ("QMCSampler", {"scramble": True}),
    ("NSGAIISampler", {"population_size": 8}),
    ("CmaEsSampler", {}),
    ("CmaEsSampler", {"with_margin": True}),
    ("CmaEsSampler", {"lr_adapt": True, "popsize": 6}),
]
REPLAYED = CASES[3:]
by_case = pytest.mark.parametrize(("name", "options"), CASES, ids=[n + "".join(o) for n, o in CASES])
OUTCOMES = tuple(Outcome)


def make_space(*counts: int) -> SearchSpace:
    return SearchSpace(Dimension(f"k{i:02}", tuple(map(str, range(k))), i % k) for i, k in enumerate(counts))


MIXED = make_space(2, 3, 2, 1, 2, 4, 2, 2, 2, 2)
BINARY = make_space(*[2] * 20)
EFFECTS = np.random.default_rng(1).normal(0.0, 0.05, 20)


def additive(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
    return Observation(Outcome.OK, float(np.exp(EFFECTS[: len(codes)] @ codes)))


def failing(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
    """A quarter of the routes crash, an eighth miss a tolerance, some not even measurably."""
    if codes[0] == 1 and codes[2] == 1:
        return Observation(Outcome.CRASH)
    if codes[4] == 1 and codes[6] == 1:
        return Observation(Outcome.ACCURACY, violation=math.inf if codes[7] else 0.01 * (1 + codes[5]))
    return additive(codes, rng, until)


def observation(history: History, row: int) -> Observation:
    value, violation = float(history.value[row]), float(history.violation[row])
    return Observation(
        OUTCOMES[int(history.outcome[row])],
        None if math.isnan(value) else value,
        None if math.isnan(violation) else violation,
    )


def prefix(history: History, n: int) -> History:
    """The first n rows, in a new history."""
    out = History(history.space)
    for row in range(n):
        out.append(int(history.trial[row]), history.codes[row].copy(), observation(history, row))
    return out


def run(name: str, options: dict[str, Any], trials: int, measure: Any = failing, seed: int = 3) -> SimulationResult:
    space = MIXED if measure is failing else BINARY
    return simulate(space, OptunaStrategy(name, **options), measure, trials=trials, seed=seed)


# -- a pure function of space, history and streams ---------------------------------------------------
@by_case
def test_resumed_equals_uninterrupted(name: str, options: dict[str, Any]) -> None:
    whole = run(name, options, 50)
    assert len(whole) == 51
    assert not (run(name, options, 50, seed=4).codes == whole.codes).all()
    for cut in (3, 25, 49):
        resumed, strategy = prefix(whole.history, cut), OptunaStrategy(name, **options)
        for t in range(cut, min(cut + 12, 51)):
            proposal = strategy.propose(MIXED, resumed, Streams(3))
            assert proposal is not None
            assert proposal.codes.tolist() == whole.codes[t].tolist(), (cut, t)
            resumed.append(t, proposal.codes, observation(whole.history, t))


@by_case
def test_any_number_of_builders_resumes_exactly(name: str, options: dict[str, Any]) -> None:
    """Up to three trials run at once and finish in random order; a fresh object continues like the old one."""
    rng = np.random.default_rng(0)
    strategy, streams = OptunaStrategy(name, **options), Streams(3)
    history = History(MIXED)
    history.append(0, MIXED.default, failing(MIXED.default, rng, Phase.TIME))
    waits = 0
    while history.next_trial < 28:
        proposal = strategy.propose(MIXED, history, streams)
        if rng.random() < 0.3:  # a resume at this point
            rebuilt = prefix(history, len(history))
            for number, codes in zip(history.pending_trials, history.pending, strict=True):
                rebuilt.start(number, codes, Phase.TIME)
            again = OptunaStrategy(name, **options).propose(MIXED, rebuilt, Streams(3))
            assert (again and again.codes.tolist()) == (proposal and proposal.codes.tolist())
        if proposal is not None:
            assert not history.contains(proposal.codes)
            history.start(history.next_trial, proposal.codes, Phase.TIME)
        waits += proposal is None
        if history.n_pending == 3 or proposal is None:
            assert history.n_pending, "None with nothing pending would end the study"
            number = int(rng.choice(history.pending_trials))
            codes = history.pending[history.pending_trials.index(number)]
            history.finish(number, failing(codes, rng, Phase.TIME))
    assert bool(waits) == ((name, options) in REPLAYED)


@by_case
def test_one_object_serves_any_history(name: str, options: dict[str, Any]) -> None:
    """Asked twice, for another history, with other streams, and the first again: always as a fresh object answers."""
    history = run(name, options, 20).history
    strategy = OptunaStrategy(name, **options)
    seeds: list[tuple[int, int | str]] = [(0, 3), (0, 3), (1, 3), (2, 3), (2, 5), (0, 5), (0, "3"), (0, 3)]
    histories = [prefix(history, 14), prefix(history, 14), prefix(history, 8)]
    for h, seed in seeds:
        fresh = OptunaStrategy(name, **options).propose(MIXED, prefix(history, len(histories[h])), Streams(seed))
        asked = strategy.propose(MIXED, histories[h], Streams(seed))
        assert fresh is not None and asked is not None
        assert asked.codes.tolist() == fresh.codes.tolist()


def test_an_interrupted_proposal_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("CmaEsSampler", {}, 30)
    strategy, history = OptunaStrategy("CmaEsSampler"), prefix(whole.history, 20)
    strategy.propose(MIXED, history, Streams(3))

    def interrupt(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    history.append(20, whole.codes[20], observation(whole.history, 20))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(optuna.samplers.CmaEsSampler, "sample_relative", interrupt)
        strategy.propose(MIXED, history, Streams(3))
    proposal = strategy.propose(MIXED, history, Streams(3))
    assert proposal is not None
    assert proposal.codes.tolist() == whole.codes[21].tolist()


@by_case
def test_histories_of_other_origin_are_learnt_from_too(name: str, options: dict[str, Any]) -> None:
    """Rows that the sampler did not propose, some of them not timed or timed twice, are no error."""
    rng = np.random.default_rng(2)
    history = History(MIXED)
    history.append(0, MIXED.default, additive(MIXED.default, rng, Phase.TIME))
    for t in range(1, 30):
        codes = history.codes[t - 1].copy() if t % 7 == 0 else MIXED.sample(rng)
        until = Phase.BUILD if t % 3 == 0 else Phase.TIME
        seen = Observation(Outcome.OK) if until == Phase.BUILD else failing(codes, rng, until)
        history.append(t, codes, seen, until)
    proposal = OptunaStrategy(name, **options).propose(MIXED, history, Streams(0))
    assert proposal is not None
    assert MIXED.holds(proposal.codes) and not history.contains(proposal.codes)


def test_cma_with_margin_is_told_the_point_that_was_evaluated() -> None:
    """Every proposal is altered before it is evaluated; what is told must round to the evaluated codes."""
    history, strategy = History(BINARY), OptunaStrategy("CmaEsSampler", with_margin=True, popsize=5)
    codes = BINARY.default
    for t in range(16):
        history.append(t, codes, additive(codes, np.random.default_rng(), Phase.TIME))
        proposal = strategy.propose(BINARY, history, Streams(0))
        assert proposal is not None
        codes = proposal.codes.copy()
        codes[t % 5] ^= 1
    session = strategy._session
    assert session is not None
    told = [t for t in session.mirror._study.get_trials() if "x_for_tell" in t.system_attrs]
    assert len(told) == 15
    for trial, evaluated in zip(told, history.codes[1:], strict=True):
        assert list(trial.params.values()) == evaluated.tolist()
        assert (np.array(trial.system_attrs["x_for_tell"]) > 0.5).tolist() == (evaluated == 1).tolist()


def test_gaussian_process() -> None:
    pytest.importorskip("torch")
    space = make_space(2, 3, 2, 2, 2, 2, 2, 2)
    whole = simulate(space, OptunaStrategy("GPSampler", n_startup_trials=6), failing, trials=12, seed=3)
    assert {Outcome.OK, Outcome.CRASH} <= set(whole.outcome)
    for cut in (3, 8, 11):
        resumed = OptunaStrategy("GPSampler", n_startup_trials=6).propose(space, prefix(whole.history, cut), Streams(3))
        assert resumed is not None
        assert resumed.codes.tolist() == whole.codes[cut].tolist()


class TestNsga2Conforms(StrategyConformance):
    trials = 30

    def make(self) -> OptunaStrategy:
        return OptunaStrategy("NSGAIISampler", population_size=8)


class TestCmaEsConforms(StrategyConformance):
    trials = 30

    def make(self) -> OptunaStrategy:
        return OptunaStrategy("CmaEsSampler")


# -- learning ----------------------------------------------------------------------------------------
def share_of_gain(result: SimulationResult, rows: slice) -> float:
    """How much of the possible gain in log-latency the rows have, on average: 0.5 is random."""
    log = np.log(result.latency_ms[rows])
    worst, best = EFFECTS[EFFECTS > 0].sum(), EFFECTS[EFFECTS < 0].sum()
    return float((worst - log.mean()) / (worst - best))


@pytest.mark.parametrize(
    ("name", "options", "trials"),
    [
        ("TPESampler", {}, 80),
        ("NSGAIISampler", {"population_size": 20}, 160),
        ("CmaEsSampler", {}, 120),
        ("CmaEsSampler", {"with_margin": True}, 120),
    ],
)
def test_learns_an_additive_function(name: str, options: dict[str, Any], trials: int) -> None:
    result = run(name, options, trials, additive)
    random = run("RandomSampler", {}, trials, additive)
    late = slice(trials - 30, None)
    assert abs(share_of_gain(random, late) - 0.5) < 0.1
    assert share_of_gain(result, late) > 0.75
    assert share_of_gain(result, late) > share_of_gain(result, slice(1, 21)) + 0.1


@pytest.mark.parametrize("bad", [Observation(Outcome.CRASH), Observation(Outcome.ACCURACY, violation=0.1)])
@pytest.mark.parametrize(
    ("name", "options", "trials"),
    [("TPESampler", {}, 80), ("NSGAIISampler", {"population_size": 16}, 120), ("CmaEsSampler", {}, 120)],
)
def test_failing_region_is_avoided(name: str, options: dict[str, Any], trials: int, bad: Observation) -> None:
    """All but an eighth of the space fails: where three knobs are at their default."""

    def measure(codes: Codes, rng: np.random.Generator, until: Phase) -> Observation:
        return bad if (codes[:3] != BINARY.default[:3]).any() else additive(codes, rng, until)

    result = run(name, options, trials, measure, seed=2)
    failed = result.outcome != Outcome.OK
    assert failed[1:11].mean() > 0.5, "the start must meet the region"
    assert failed[-40:].mean() < 0.3  # 0.4 to 0.9 when failures are hidden from the sampler


# -- duplicates --------------------------------------------------------------------------------------
@by_case
def test_every_route_is_proposed_once(name: str, options: dict[str, Any]) -> None:
    space = make_space(2, 2, 1, 3, 2)
    strategy = OptunaStrategy(name, **options)
    result = simulate(space, strategy, additive, trials=100, seed=1)
    assert len(result) == space.size == len({c.tobytes() for c in result.codes})
    assert strategy.propose(space, result.history, Streams(1)) is None


def test_space_of_one_route_or_one_knob() -> None:
    for name, options in CASES:
        assert len(simulate(make_space(1, 1), OptunaStrategy(name, **options), additive, trials=5)) == 1
        assert len(simulate(make_space(1, 5), OptunaStrategy(name, **options), additive, trials=9)) == 5


def test_pending_routes_count_as_tried() -> None:
    space = make_space(2, 2)
    history = History(space)
    history.append(0, space.default, Observation(Outcome.OK, 1.0))
    for t, codes in enumerate(space.neighbours(space.default), 1):
        history.start(t, codes, Phase.TIME)
    last = OptunaStrategy("RandomSampler").propose(space, history, Streams(0))
    assert last is not None
    assert (last.codes == 1 - space.default).all()
    history.start(3, last.codes, Phase.TIME)
    assert OptunaStrategy("RandomSampler").propose(space, history, Streams(0)) is None


# -- refusals ----------------------------------------------------------------------------------------
class TPESampler(optuna.samplers.TPESampler):
    """Somebody's own sampler under a known name."""


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        ("GridSampler", {}, "'GridSampler' cannot be used .* known samplers: TPESampler"),
        (optuna.samplers.BruteForceSampler, {}, "'BruteForceSampler' cannot be used"),
        ("TPEsampler", {}, "did you mean 'TPESampler'"),
        (TPESampler, {}, "'TPESampler' cannot be used"),
        (optuna.samplers.RandomSampler(), {}, "pass the class or its name"),
        (7, {}, "'int' cannot be used"),
        ("TPESampler", {"n_startup": 3}, "no option 'n_startup' .* did you mean 'n_startup_trials'"),
        ("TPESampler", {"seed": 3}, "no option 'seed'"),
        ("TPESampler", {"n_ei_candidates": 0}, "n_ei_candidates=0 .* at least 1"),
        ("TPESampler", {"n_ei_candidates": True}, "expected a whole number"),
        ("NSGAIISampler", {"crossover_prob": 1.5}, "at least 0 and at most 1"),
        ("NSGAIISampler", {"mutation_prob": "x"}, "expected a number"),
        ("QMCSampler", {"qmc_type": "lattice"}, "one of sobol, halton"),
        ("QMCSampler", {"scramble": 1}, "true or false"),
        ("CmaEsSampler", {"use_separable_cma": True, "with_margin": True}, "takes one of"),
    ],
)
def test_refused_with_one_clear_line(sampler: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        OptunaStrategy(sampler, **options)
    assert "\n" not in str(error.value)


def test_gaussian_process_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt_search.search.optuna_adapter.find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs torch"):
        OptunaStrategy("GPSampler")


def test_class_and_name_are_the_same() -> None:
    assert repr(OptunaStrategy(optuna.samplers.TPESampler)) == repr(OptunaStrategy("TPESampler"))
    assert repr(OptunaStrategy("QMCSampler", qmc_type="halton")) == "OptunaStrategy('QMCSampler', qmc_type='halton')"


# -- manners -----------------------------------------------------------------------------------------
def test_quiet_and_leaves_the_log_level_alone(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    run("CmaEsSampler", {}, 20)
    run("TPESampler", {}, 20)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert capfd.readouterr() == ("", "")


def test_optuna_is_imported_by_the_first_proposal_only() -> None:
    program = (
        "import sys, gpt_search; gpt_search.OptunaStrategy('TPESampler'); gpt_search.as_sampler;"
        "assert 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
