"""A table in place of the compiler: what a replay tells, charges, and refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt_search.domain.errors import InputError, StrategyError
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.history import History
from gpt_search.domain.landscape import planted
from gpt_search.domain.landscape_model import Landscape
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes, Dimension, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.run.planted_table import planted_table
from gpt_search.run.replay import Replay
from gpt_search.run.restrict import Restricted
from gpt_search.search.discovery import load_strategy
from gpt_search.search.loop import End
from gpt_search.search.strategy import Proposal
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_file import write_table
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import Table, load_table

Make = Callable[..., Table]


@pytest.fixture(scope="module")
def dense() -> Landscape:
    return planted("dense", 0, 7)


@pytest.fixture(scope="module")
def failing() -> Landscape:
    return planted("infeasible", 4, 20)


@pytest.fixture(scope="module")
def table_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Tables of landscapes, each written once."""
    known: dict[str, Table] = {}

    def make(landscape: Landscape, routes: int | Codes | None = None, **more: Any) -> Table:
        key = repr((landscape.spec(), routes if isinstance(routes, int) else routes is None, more))
        if key not in known:
            path = tmp_path_factory.mktemp("table") / "planted.jsonl"
            planted_table(path, landscape, routes, **more)
            known[key] = load_table(path)
        return known[key]

    return make


@pytest.fixture(scope="module")
def failures(failing: Landscape) -> Codes:
    """Routes near the default of a space that is too large for a table: they fail in every way."""
    rng, space = np.random.default_rng(0), failing.space
    routes = [*space.neighbours(space.default)]
    inert = int(np.flatnonzero(failing.inert)[0])
    for codes in space.neighbours(space.default):
        codes[inert] = 1 - space.default[inert]
        routes.append(codes)
    for _ in range(400):
        changed = rng.random(len(space)) < 0.15
        routes.append(np.where(changed, space.sample(rng), space.default).astype(np.int16))
    return np.array(routes)


class Given:
    """Proposes these routes, one after the other."""

    def __init__(self, *routes: Codes, until: Phase = Phase.TIME) -> None:
        self.routes, self.until = routes, until

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        number = history.next_trial - 1
        return Proposal(self.routes[number], self.until) if number < len(self.routes) else None


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def first(table: Table, outcome: Outcome) -> Codes:
    return table.codes[[table.outcome(int(r)) for r in table.first].index(outcome)]


def test_values_are_around_the_truth_with_errors_that_hold(dense: Landscape, table_of: Make) -> None:
    """Many seeds of one route: the errors that are reported are those that values have, builds included."""
    table = table_of(dense, 60, rounds=40, between=0.0, noise=0.01)
    replay = Replay(table, "restrict", rounds=8)
    z = []
    for row in range(1, 60):
        if not np.isfinite(table.truth[row]):
            continue
        study = replay.study(row)
        study.measure(table.codes[0], generator(row), Phase.TIME)
        found = study.measure(table.codes[row], generator(1000 + row), Phase.TIME)
        assert found.latency_ms is not None and found.error_ms is not None and found.rounds == 8
        z.append(
            (math.log(found.latency_ms / table.reference_ms) - table.truth[row]) / (found.error_ms / found.latency_ms)
        )
    # The truth has an error of its own: 20 rounds against 8.
    assert 0.7 < float(np.std(z)) / math.sqrt(1 + 8 / 20) < 1.4
    assert abs(float(np.mean(z))) < 0.5


def test_the_build_effect_is_added_to_each_trial(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, 40, between=0.03, noise=0.002, several=20, builds=3)
    effect = table.between_builds
    assert effect is not None and effect.low < 0.03**2 < effect.high
    replay = Replay(table, "restrict")
    row = int(np.flatnonzero(np.isfinite(table.truth))[1])
    values = []
    for seed in range(60):
        study = replay.study(seed)
        study.measure(table.codes[0], generator(seed), Phase.TIME)
        values.append(math.log(study.measure(table.codes[row], generator(500 + seed), Phase.TIME).latency_ms or 0.0))
    assert float(np.std(values)) == pytest.approx(effect.deviation, rel=0.35)
    assert replay.noise >= effect.deviation and replay.floor > 1.96 * effect.deviation


def test_failures_are_reproduced(failing: Landscape, failures: Codes, table_of: Make) -> None:
    table = table_of(failing, failures)
    replay = Replay(table, "restrict")
    seen = set()
    for row in range(1, len(table), 3):
        codes, study = table.codes[row], replay.study()
        truth = failing.truth(codes)
        study.measure(table.codes[0], generator(), Phase.TIME)
        for until in Phase:
            found = replay.study().measure(codes, generator(row), until)
            failed = truth.failed_in is not None and truth.failed_in <= until
            assert found.outcome is (truth.outcome if failed else Outcome.OK)
            assert (found.latency_ms is not None) == (until is Phase.TIME and truth.outcome is Outcome.OK)
            if truth.failed_in is not Phase.BUILD:
                assert found.fingerprint == truth.fingerprint
            if truth.outcome is Outcome.ACCURACY and until is not Phase.BUILD:
                assert found.violation == truth.violation
            # Nothing is charged after the failing phase, nor after the one that was asked for.
            last = min(until, truth.failed_in or until)
            names = {Phase.BUILD: {"build"}, Phase.GATE: {"build", "gate"}, Phase.TIME: {"build", "gate", "time"}}
            assert set(found.cost_s) - {"start"} == names[last]
        seen.add((truth.outcome, truth.failed_in))
    assert {outcome for outcome, _ in seen} >= {Outcome.OK, Outcome.ACCURACY, Outcome.BUILD_ERROR, Outcome.CRASH}


def test_costs_are_the_recorded_ones(dense: Landscape, table_of: Make) -> None:
    table, costs = table_of(dense), dense.costs
    found = Replay(table, rounds=20).study().measure(table.codes[1], generator(), Phase.TIME)
    assert found.cost_s["build"] == costs.build and found.cost_s["gate"] == costs.gate
    assert found.cost_s["start"] == costs.start  # the first trial of a study starts a worker
    # 40 rounds, 0.04 s apart: 20 of them are 0.8 s less.
    assert found.cost_s["time"] == pytest.approx(costs.time - 20 * 0.04)


def test_a_worker_that_died_is_started_again(failing: Landscape, failures: Codes, table_of: Make) -> None:
    table = table_of(failing, failures)
    study = Replay(table, "restrict").study()
    starts = [
        study.measure(codes, generator(i), Phase.TIME).cost_s["start"]
        for i, codes in enumerate([table.codes[0], first(table, Outcome.CRASH), table.codes[0], table.codes[0]])
    ]
    assert [s > 0 for s in starts] == [True, False, True, False]


def same_engine(table: Table, landscape: Landscape) -> tuple[Codes, Codes]:
    """Two feasible routes of one engine, which is not the reference's."""
    by_print = {landscape.fingerprint(table.codes[0]): table.codes[0]}
    for codes in table.codes[np.isfinite(table.truth)]:
        fingerprint = landscape.fingerprint(codes)
        if fingerprint in by_print and (codes != table.codes[0]).any():
            found = by_print[fingerprint]
            if (found != table.codes[0]).any():
                return found, codes
        by_print.setdefault(fingerprint, codes)
    raise AssertionError("no engine has two routes")


def test_equal_engines_share_rounds_within_a_study(failing: Landscape, failures: Codes, table_of: Make) -> None:
    table = table_of(failing, failures)
    one, other = same_engine(table, failing)
    study = Replay(table, "restrict").study()
    study.measure(table.codes[0], generator(), Phase.TIME)
    mine = study.measure(one, generator(1), Phase.TIME)
    theirs = study.measure(other, generator(2), Phase.TIME)
    assert mine.timed_as is None and theirs.timed_as == 1
    assert "gate" not in theirs.cost_s and theirs.violation == mine.violation
    assert theirs.rounds >= mine.rounds
    # Proposed again, a route adds rounds of the recorded ones, never one twice, and no more than there are.
    counts = [study.measure(other, generator(3 + i), Phase.TIME).rounds for i in range(10)]
    row = table.find(other)
    assert row is not None and counts == sorted(counts)
    assert counts[-1] == counts[-2] == len(Replay(table, "restrict").pool(row))
    alone = Replay(table, "restrict").study(1)
    alone.measure(table.codes[0], generator(), Phase.TIME)
    assert alone.measure(other, generator(2), Phase.TIME).timed_as is None


def test_a_failed_engine_is_not_run_again(tmp_path: Path) -> None:
    space = SearchSpace([Dimension("a", ("0", "1", "2"), 0), Dimension("b", ("x", "y"), 0)])
    facts = StudySettings({"environment": {}, "fingerprint": "EXACT"}).with_space(space)
    rounds = tuple(Round((1.0 + 0.01 * i,), (1.0,), 0.1 * i) for i in range(8))

    def record(codes: tuple[int, ...], outcome: Outcome, taken: int | None = None, **more: Any) -> TableRecord:
        return TableRecord(codes, 0, Evaluation(outcome, Phase.TIME, **more), taken)

    built, gated, timed = {"build": 1.0}, {"build": 1.0, "gate": 2.0}, {"build": 1.0, "gate": 2.0, "time": 4.0}
    records = [
        record((0, 0), Outcome.OK, rounds=rounds, fingerprint="f", cost_s=timed, violation=-1.0),
        record((1, 0), Outcome.CRASH, fingerprint="g", cost_s=gated),
        record((1, 1), Outcome.CRASH, 1, fingerprint="g", cost_s=built),
        record((2, 0), Outcome.TIMEOUT, fingerprint="h", cost_s=timed, violation=-1.0),
        record((2, 1), Outcome.TIMEOUT, 3, fingerprint="h", cost_s=built, violation=-1.0),
        record((0, 1), Outcome.LIMIT, fingerprint="i", cost_s=built, excess={"size": 0.5}),
    ]
    write_table(tmp_path / "t.jsonl", facts, records)
    table = load_table(tmp_path / "t.jsonl")

    def measure(*rows: int, until: Phase = Phase.TIME) -> list[Observation]:
        study = Replay(table).study()
        return [study.measure(table.codes[row], generator(row), until) for row in rows]

    def costs(found: list[Observation]) -> list[set[str]]:
        return [set(f.cost_s) - {"start"} for f in found]

    found = measure(0, 1, 2, 1)
    assert [f.outcome.name for f in found] == ["OK", "CRASH", "CRASH", "CRASH"]
    assert costs(found)[1:] == [{"build", "gate"}, {"build"}, {"build", "gate"}]  # the failed route itself is run again
    assert costs(measure(0, 2, 1))[1:] == [{"build", "gate"}, {"build"}]  # whichever route comes first
    assert costs(measure(0, 4, 3))[1:] == [{"build", "gate", "time"}, {"build"}]
    gate = measure(0, 3, until=Phase.GATE)[1]
    assert gate.outcome is Outcome.OK and gate.violation == -1.0 and gate.latency_ms is None
    limited = measure(0, 5)[1]
    assert limited.outcome is Outcome.LIMIT and limited.violation == 0.5


def test_without_fingerprints_every_route_is_timed(failing: Landscape, failures: Codes, table_of: Make) -> None:
    table = table_of(failing, failures, fingerprint="NONE")
    one, other = same_engine(table, failing)
    study = Replay(table, "restrict").study()
    found = [study.measure(c, generator(i), Phase.TIME) for i, c in enumerate([table.codes[0], one, other])]
    assert all(f.timed_as is None and f.fingerprint is None and "time" in f.cost_s for f in found)


def test_racing_draws_more_of_what_may_be_best(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, rounds=120)
    result = Replay(table).simulate("random", 100, 3)
    rounds, values = result.history.rounds[1:], result.history.value[1:]
    slow = values > np.nanquantile(values, 0.7)
    assert rounds[slow].mean() < rounds[~slow].mean()
    assert rounds.max() <= 60


def test_a_study_depends_on_its_seed_alone(dense: Landscape, table_of: Make) -> None:
    replay = Replay(table_of(dense))
    one, again, other = (replay.simulate("sparse_random", 40, seed).history for seed in (5, 5, 6))
    for name in ("codes", "value", "error", "rounds", "samples"):
        assert np.array_equal(getattr(one, name), getattr(again, name), equal_nan=True)
    assert not np.array_equal(one.value, other.value)
    assert one.total_cost_s == again.total_cost_s
    assert one.noise == replay.noise


def test_truth_best_and_label(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, rounds=40, noise=0.002)
    replay = Replay(table)
    expected = np.asarray(dense.true_log_ratio(table.codes))
    assert np.allclose(replay.true_log_ratio(table.codes), expected, atol=0.006)
    assert replay.best == pytest.approx(dense.best_log_ratio, abs=0.006) and replay.best_known
    assert "every" not in replay.label and f"{len(table):,} of {table.space.size:,} routes" in replay.label
    assert replay.builds_behind >= len({dense.fingerprint(c) for c in table.codes[expected == expected]})


# -- tables that lack routes ---------------------------------------------------------------------
def test_a_missing_route_needs_a_policy(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, 50)
    with pytest.raises(InputError, match=rf"lacks {table.space.size - 50:,} of .*restrict.*refuse.*surrogate"):
        Replay(table)
    with pytest.raises(InputError, match="did you mean 'restrict'"):
        Replay(table, "restrikt")
    with pytest.raises(InputError, match="leave the policy 'surrogate' out"):
        Replay(table_of(dense), "surrogate")
    with pytest.raises(InputError, match="2 rounds or more"):
        Replay(table, "restrict", rounds=1)
    study = Replay(table, "restrict").study()
    missing = next(c for c in map(table.space.codes_at, range(table.space.size)) if table.find(c) is None)
    with pytest.raises(InputError, match="does not hold"):
        study.measure(missing, generator(), Phase.TIME)


@pytest.mark.parametrize(
    "spec", ["random", "sparse_random", "full", "fast", "mixed", "tpe", "genetic", "nsga2", "cmaes"]
)
def test_restricted_strategies_try_recorded_routes_alone(dense: Landscape, table_of: Make, spec: str) -> None:
    table = table_of(dense, 40)
    replay = Replay(table, "restrict")
    try:
        strategy = load_strategy(spec)
    except InputError:
        pytest.skip(f"there is no strategy {spec!r} here")
    result = replay.simulate(strategy, 60, 1)
    assert all(table.find(codes) is not None for codes in result.codes)
    assert len(np.unique(result.codes, axis=0)) > 10
    assert result.recommended is not None and "restrict" in replay.label


def test_restriction_takes_the_nearest_untried_route(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, 30)
    missing = [c for c in map(table.space.codes_at, range(table.space.size)) if table.find(c) is None][:35]
    strategy = Restricted(Given(table.codes[3], *missing), table.codes)
    replay = Replay(table, "restrict")
    result = replay.simulate(strategy, 100)
    assert result.codes[1].tolist() == table.codes[3].tolist()
    tried = [result.codes[0], result.codes[1]]
    for wanted, got in zip(missing, result.codes[2:], strict=False):
        untried = [c for c in table.codes if not any((c == t).all() for t in tried)]
        assert (got != wanted).sum() == min((c != wanted).sum() for c in untried)
        tried.append(got)
    assert len(result) == len(table) and result.end is End.STRATEGY
    assert strategy.projected == len(table) - 2


def test_errors_of_a_restricted_strategy_are_its_own(dense: Landscape, table_of: Make) -> None:
    class Raises:
        def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
            raise RuntimeError("no more ideas")

    class Wrong:
        def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
            return Proposal(np.full(len(space), 99, np.int16))

    table = table_of(dense, 40)
    for strategy, words in ((Raises(), "strategy Raises failed in propose"), (Wrong(), "strategy Wrong: code 99")):
        with pytest.raises(StrategyError, match=words) as raised:
            Restricted(strategy, table.codes).propose(table.space, History(table.space), Streams(1))
        assert "Restricted" not in str(raised.value)


def test_refused_routes_cost_nothing_and_are_failures(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, 50)
    replay = Replay(table, "refuse")
    missing = next(c for c in map(table.space.codes_at, range(table.space.size)) if table.find(c) is None)
    result = replay.simulate(Given(missing, table.codes[2]), 10)
    assert result.outcome[1] is Outcome.BUILD_ERROR and result.history.cost("build")[1] == 0.0
    assert math.isnan(replay.true_log_ratio(missing[None])[0])
    assert "refuse" in replay.label


def test_a_surrogate_answers_for_every_route(dense: Landscape, table_of: Make) -> None:
    table = table_of(dense, 150)
    replay = Replay(table, "surrogate")
    result = replay.simulate("random", 50, 2)
    assert any(table.find(codes) is None for codes in result.codes)
    truth = replay.true_log_ratio(result.codes)
    assert truth[0] == 0.0
    timed = np.isfinite(result.latency_ms)
    off = np.log(result.latency_ms[timed] / replay.reference_ms) - truth[timed]
    assert float(np.abs(off).max()) < 0.05 and float(np.abs(off[1:]).max()) > 0
    assert "surrogate" in replay.label and "R2" in replay.label
    all_routes = np.array([table.space.codes_at(i) for i in range(table.space.size)])
    assert replay.best_known and replay.best == pytest.approx(np.nanmin(replay.true_log_ratio(all_routes)))
    forest = replay.surrogate._ratio  # type: ignore[union-attr]
    by_library = forest.predict(replay.surrogate._features(all_routes[:50]))  # type: ignore[union-attr]
    assert np.allclose(np.diff(by_library), np.diff(replay.true_log_ratio(all_routes[:50])))
    real = np.asarray(dense.true_log_ratio(all_routes))
    assert np.corrcoef(replay.true_log_ratio(all_routes), real)[0, 1] > 0.6


def test_a_surrogate_of_failures(failing: Landscape, failures: Codes, table_of: Make) -> None:
    table = table_of(failing, failures)
    replay = Replay(table, "surrogate")
    result = replay.simulate("random", 60, 2)
    assert set(result.outcome) - {Outcome.OK}
    assert result.outcome[0] is Outcome.OK
    for outcome, latency in zip(result.outcome, result.latency_ms, strict=True):
        assert math.isnan(latency) == (outcome is not Outcome.OK)


def test_a_surrogate_needs_enough_routes(dense: Landscape, table_of: Make) -> None:
    with pytest.raises(InputError, match="a surrogate is fitted to 30 or more"):
        Replay(table_of(dense, 20), "surrogate")


def test_observations_are_what_strategies_may_see(dense: Landscape, table_of: Make) -> None:
    found = Replay(table_of(dense)).study().measure(dense.space.default, generator(), Phase.TIME)
    assert isinstance(found, Observation)
    assert found.latency_ms == pytest.approx(table_of(dense).reference_ms)
