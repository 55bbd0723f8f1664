"""Engines against routes in whole studies: samples that are extended, merges that are checked, builds that split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_studies import (
    NAME,
    PROTOCOL,
    assert_equal,
    backend_name,
    config,
    contents,
    copy_study,
    landscape_of,
    own_locks,
    quick_workers,
)

from gpt_search.backends.base import Fingerprints
from gpt_search.domain.budget import Budget
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.execution.evaluator import Reuse
from gpt_search.measure.paired import paired_estimate
from gpt_search.measure.sequential import Field
from gpt_search.run import engines as module
from gpt_search.run.confirm import confirm
from gpt_search.run.engines import Engines
from gpt_search.run.rejudge import rejudge
from gpt_search.run.result import Status
from gpt_search.run.show import history_of, show
from gpt_search.run.tune import resume, tune
from gpt_search.search.strategy import pooled
from gpt_search.store.study import Restored, StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures

SPACE = landscape_of().space


def rounds(ratio: float, n: int = 9, seed: int = 0) -> tuple[Round, ...]:
    draws = np.random.default_rng(seed).normal(1.0, 0.002, n)
    return tuple(Round((float(ratio * x),), (1.0,)) for x in draws)


def timed(fingerprint: str, ratio: float = 1.0, n: int = 9, seed: int = 0, **more: Any) -> Evaluation:
    given: dict[str, Any] = {"violation": -1.0, "rounds": rounds(ratio, n, seed), "latency_ms": ratio, **more}
    return Evaluation(Outcome.OK, Phase.TIME, fingerprint=fingerprint, **given)


def route(number: int) -> np.ndarray:
    return SPACE.route_at(number) if not hasattr(SPACE, "codes_at") else SPACE.codes_at(number)


# -- what is done with an engine that is known ---------------------------------------------------
def asked(engines: Engines, trial: int, number: int, fingerprint: str) -> tuple[int, Reuse] | None:
    found = engines.known(trial, route(number))(fingerprint)
    return None if found is None else (found.trial, found.reuse)


def test_proven_engines_share_one_sequence_that_one_trial_at_a_time_adds_to() -> None:
    engines = Engines(PROTOCOL, Fingerprints.EXACT, 1)
    engines.learn(0, route(0), timed("reference"))
    engines.learn(1, route(1), timed("e"))
    assert asked(engines, 2, 2, "new") is None
    assert asked(engines, 2, 2, "reference") == (0, Reuse.TAKE)  # 0 by definition: nothing to learn
    assert asked(engines, 2, 0, "reference") == (0, Reuse.NOTHING)
    assert asked(engines, 2, 2, "e") == (1, Reuse.EXTEND)
    assert asked(engines, 3, 3, "e") == (1, Reuse.TAKE), "trial 2 may be adding to them"
    assert asked(engines, 3, 1, "e") == (1, Reuse.NOTHING), "timed again, though trial 2 may be adding to them"
    both = rounds(1.0, 9) + rounds(1.0, 4, 7)
    engines.learn(2, route(2), timed("e", rounds=both, timed_as=1, borrowed=9))
    assert asked(engines, 4, 1, "e") == (1, Reuse.ADD)
    found = engines.known(4, route(4))("e")
    assert found is not None and found.found.rounds == both


def test_failures_are_shared_and_only_the_same_route_gets_another_chance() -> None:
    engines = Engines(PROTOCOL, Fingerprints.MAY_SPLIT, 1)
    engines.learn(0, route(0), timed("reference"))
    engines.learn(1, route(1), Evaluation(Outcome.CRASH, Phase.TIME, fingerprint="e"))
    assert asked(engines, 2, 2, "e") == (1, Reuse.TAKE)
    assert asked(engines, 2, 1, "e") is None
    engines.learn(2, route(1), timed("e"))
    assert asked(engines, 3, 3, "e") == (2, Reuse.EXTEND), "it ran after all"


def test_equal_engines_spend_one_share_of_alpha() -> None:
    """The race knows one sequence, all of its rounds, and the index of the trial that began it."""
    engines, expected = Engines(PROTOCOL, Fingerprints.EXACT, 1), Field(PROTOCOL)
    engines.learn(0, route(0), timed("reference"))
    engines.learn(3, route(1), timed("e", 0.9))
    both = rounds(0.9, 9) + rounds(0.9, 9, 5)
    engines.learn(8, route(2), timed("e", rounds=both, timed_as=3, borrowed=9))
    engines.learn(9, route(3), timed("e", rounds=both, timed_as=3, borrowed=18))  # taken over: nothing new
    expected.learn(0, rounds(1.0), feasible=True)
    expected.learn(3, both, feasible=True)
    assert engines.race.best == expected.best


def test_suggested_engines_lend_their_samples_and_mix_them_never() -> None:
    engines = Engines(PROTOCOL, Fingerprints.MAY_MERGE, 1)
    engines.learn(0, route(0), timed("reference"))
    engines.learn(1, route(1), timed("e"))
    answers = [asked(engines, trial, 2, "e") for trial in range(2, 2002)]
    assert set(answers) == {(1, Reuse.TAKE), (1, Reuse.CHECK)}
    assert 150 < answers.count((1, Reuse.CHECK)) < 250, "about a tenth"
    again = Engines(PROTOCOL, Fingerprints.MAY_MERGE, 1)
    again.learn(1, route(1), timed("e"))
    assert [asked(again, trial, 2, "e") for trial in range(2, 2002)] == answers, "addressed by seed and trial"
    assert asked(engines, 2, 1, "e") == (1, Reuse.ADD), "one route, one engine"
    engines.learn(2, route(2), timed("e", rounds=rounds(1.0), timed_as=1, borrowed=9))
    assert asked(engines, 3, 2, "e") is None, "timed again: by itself"
    # A check that finds a difference: the fingerprint is trusted no more.
    engines.learn(4, route(3), timed("e", 1.1, checks=1))
    (check,) = engines.checks
    assert check.difference.significant and check.difference.log_ratio == pytest.approx(np.log(1.1), abs=0.01)
    assert engines.distrusted == {"e"} and asked(engines, 5, 9, "e") is None
    assert asked(engines, 5, 3, "e") == (4, Reuse.ADD), "its own samples are still its own"


# -- whole studies -------------------------------------------------------------------------------
SCRIPTED = '''
"""Takes a random step from a route that was timed, asks for one again now and then: many routes of few engines."""
import numpy as np

from gpt_search import Phase, Proposal


class Walk:
    def propose(self, space, history, streams):
        rng = streams.trial(history.next_trial)
        if rng.random() < 0.15:
            return Proposal(history.codes[rng.integers(len(history))].copy(), Phase.TIME)
        codes = history.codes[rng.integers(max(1, len(history) // 2))].copy()
        for knob in rng.integers(len(space), size=2):
            codes[knob] = rng.integers(space.cardinalities[knob])
        return Proposal(codes, Phase.TIME)
'''


FEW = '''
"""Random routes that differ from the reference in these knobs alone, none twice."""
from gpt_search import Phase, Proposal

KNOBS = {knobs!r}


class Few:
    def propose(self, space, history, streams):
        rng = streams.trial(history.next_trial)
        for _ in range(1000):
            codes = space.default.copy()
            for name in KNOBS:
                knob = space.names.index(name)
                codes[knob] = rng.integers(space.cardinalities[knob])
            if not history.contains(codes):
                return Proposal(codes, Phase.TIME)
        return None
'''


def few(folder: Path, knobs: list[str]) -> str:
    path = folder / "few.py"
    path.write_text(FEW.format(knobs=knobs))
    return f"{path}:Few"


def walk(folder: Path) -> str:
    path = folder / "walk.py"
    path.write_text(SCRIPTED)
    return f"{path}:Walk"


def restored(folder: Path) -> Restored:
    with StudyStore.read(folder / "study.journal", NAME) as store:
        return store.restore()


def test_samples_of_an_engine_are_extended_recorded_and_the_same_after_a_resume(
    tmp_path: Path, quick_workers: None
) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    strategy = walk(tmp_path)

    def progress(status: Status) -> None:
        if status.trial in (15, 40):
            copy_study(folder, tmp_path / f"at {status.trial}")

    summary = tune(config(folder, strategy, budget=Budget(trials=60)), progress)
    rows = restored(folder).rows
    by_trial = {row.trial: row.evaluation for row in rows}
    longest: dict[int, tuple[Round, ...]] = {}
    automatic = asked_for = 0
    seen: set[bytes] = set()
    for row in rows:
        found, again = row.evaluation, row.codes.tobytes() in seen
        seen.add(row.codes.tobytes())
        if found.timed_as is None:
            if found.rounds:
                longest[row.trial] = found.rounds
            continue
        began = by_trial[found.timed_as]
        assert began.timed_as is None and began.fingerprint == found.fingerprint
        assert found.rounds[: found.borrowed] == longest[found.timed_as], "all earlier samples, each once"
        if found.own_rounds:
            assert paired_estimate(found.rounds).log_ratio == found.log_ratio and "time" in found.cost_s
            longest[found.timed_as] = found.rounds
            asked_for, automatic = asked_for + again, automatic + (not again)
            assert not again or len(found.own_rounds) >= PROTOCOL.min_rounds
        else:
            assert "time" not in found.cost_s and not (again and found.timed_as != 0)
    assert asked_for, "a route was asked for again"
    assert summary.engines.extended == automatic + asked_for and summary.engines.merged > summary.engines.extended
    assert summary.engines.engines == len({e.fingerprint for e in by_trial.values() if e.fingerprint is not None})
    assert summary.engines.routes == len({r.codes.tobytes() for r in rows[1:]}) < 60
    # All routes of an engine have one estimate: that of all of its rounds.
    with StudyStore.read(folder / "study.journal", NAME) as store:
        history = history_of(store, store.restore())
    reference_ms = by_trial[0].latency_ms
    assert reference_ms is not None
    checked = 0
    for first, value, _ in zip(*pooled(history), strict=True):
        rows_of = history.rows_of(history.codes[first])
        sequences = set(history.samples[list(rows_of)].tolist())
        if len(sequences) == 1 and 0 not in sequences:
            (sequence,) = sequences
            assert value == pytest.approx(reference_ms * np.exp(paired_estimate(longest[sequence]).log_ratio))
            checked += 1
    assert checked > 5
    for at in (15, 40):
        copy = tmp_path / f"at {at}"
        resume(NAME, str(copy / "study.journal"))
        assert_equal(contents(copy), contents(folder), f"resumed at trial {at}")


def test_rejudging_races_with_all_samples_of_an_engine(tmp_path: Path, quick_workers: None) -> None:
    tune(config(tmp_path, walk(tmp_path), budget=Budget(trials=40)))
    found = rejudge(NAME, str(tmp_path / "study.journal"), ["0.9"], study_out="lax")
    with StudyStore.read(tmp_path / "study.journal", "lax") as store:
        again = store.restore()
    old = {row.trial: row.evaluation for row in restored(tmp_path).rows}
    assert any(e.borrowed and e.own_rounds for e in old.values())
    for row in again.rows:
        before = old[row.trial]
        assert (row.evaluation.rounds, row.evaluation.borrowed) == (before.rounds, before.borrowed)
    assert found.summary.engines.extended == show(NAME, str(tmp_path / "study.journal")).engines.extended


def effects() -> tuple[list[str], list[str]]:
    """Knobs no change of which makes another engine, and those every change of which does, by 1 % or more."""
    landscape = landscape_of()
    inert: dict[str, bool] = {}
    live: dict[str, bool] = {}
    for codes in landscape.space.neighbours(landscape.space.default):
        name = landscape.space.names[int((codes != landscape.space.default).argmax())]
        same = landscape.fingerprint(codes) == landscape.fingerprint(landscape.space.default)
        effect = float(landscape.true_log_ratio(codes))
        inert[name] = inert.get(name, True) and same
        live[name] = live.get(name, True) and not same and abs(effect) > 0.01
    return [n for n, yes in inert.items() if yes], [n for n, yes in live.items() if yes]


def merging(
    folder: Path, knobs: list[str], monkeypatch: pytest.MonkeyPatch, trials: int = 30, seen: Sequence[str] = ()
) -> Any:
    """A study of routes in knobs that its fingerprints do not see, and some that they do; a third of the merges is
    checked, not a tenth."""
    monkeypatch.setattr(module, "CHECKED_SHARE", 0.34)
    folder.mkdir(exist_ok=True)
    backend = backend_name(merge_knobs=knobs)
    return tune(config(folder, few(folder, [*knobs, *seen]), backend=backend, budget=Budget(trials=trials)))


def test_true_merges_are_checked_and_none_is_called_false(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inert, _ = effects()
    counts = merging(tmp_path, inert[:6], monkeypatch).engines
    assert counts.fingerprints == "MAY_MERGE" and counts.merged >= 10
    assert counts.checked.tried >= 3 and counts.checked.events == counts.doubtful == 0
    assert counts.least is not None and 0 < counts.least < 0.05


def test_planted_false_merges_are_found_and_trusted_no_more(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is reported is compared with the landscape, which knows every engine."""
    _, live = effects()
    assert live
    folder = tmp_path / "whole"
    counts = merging(folder, live[:3], monkeypatch, 60, live[3:7]).engines
    landscape, rows = landscape_of(), restored(folder).rows
    codes = {row.trial: row.codes for row in rows}
    planted = [r for r in rows if r.evaluation.checks is not None]
    false = [
        r.trial
        for r in planted
        if abs(landscape.true_log_ratio(r.codes) - landscape.true_log_ratio(codes[r.evaluation.checks])) > 0.0
    ]
    assert counts.checked.tried == len(planted) >= 3
    assert 1 <= counts.checked.events <= len(false)
    # From then on, routes with that fingerprint are timed by themselves.
    distrusted: set[str] = set()
    kind = Fingerprints.MAY_MERGE
    engines = Engines(PROTOCOL, kind, 3)
    with StudyStore.read(folder / "study.journal", NAME) as store:
        engines.between = module_between(store)
    for row in rows:
        found = row.evaluation
        assert found.fingerprint not in distrusted or found.timed_as is None or found.own_rounds
        engines.learn(row.trial, row.codes, found)
        distrusted = set(engines.distrusted)
    doubtful = sum(
        r.evaluation.fingerprint in distrusted and r.evaluation.timed_as is not None and not r.evaluation.own_rounds
        for r in rows
    )
    assert distrusted and counts.doubtful == doubtful
    # Where a difference is well above what can be seen, it is seen.
    for check in engines.checks:
        true = landscape.true_log_ratio(codes[check.trial]) - landscape.true_log_ratio(codes[check.against])
        assert abs(check.difference.log_ratio - true) < 0.02
        assert check.difference.significant or abs(true) < check.difference.least + 0.02
    assert show(NAME, str(folder / "study.journal")).engines == counts


def module_between(store: StudyStore) -> float:
    from gpt_search.run.noise import noise_between_builds

    return noise_between_builds(store)


def test_a_study_with_checks_goes_on_as_if_never_interrupted(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, live = effects()
    monkeypatch.setattr(module, "CHECKED_SHARE", 0.34)
    folder = tmp_path / "whole"
    folder.mkdir()

    def progress(status: Status) -> None:
        if status.trial == 25:
            copy_study(folder, tmp_path / "copy")

    backend = backend_name(merge_knobs=live, split=0.1)
    settings = config(folder, walk(tmp_path), backend=backend, budget=Budget(trials=50))
    assert tune(settings, progress).engines.fingerprints == "MAY_BOTH"
    resume(NAME, str(tmp_path / "copy" / "study.journal"))
    assert_equal(contents(tmp_path / "copy"), contents(folder), "resumed")


def test_the_rate_of_splits_is_that_of_independent_pairs_of_builds(tmp_path: Path, quick_workers: None) -> None:
    """Half of the builds get a fingerprint of their own, so three in four pairs differ; confirmations count too."""
    backend = backend_name(split=0.5)
    settings = config(tmp_path, walk(tmp_path), backend=backend, budget=Budget(trials=40))
    before = tune(settings).engines
    assert before.fingerprints == "MAY_SPLIT" and before.rebuilt.tried > 0
    confirm(NAME, settings.storage, top=2, rebuilds=5)
    with StudyStore.read(settings.storage, NAME) as store:
        built: dict[bytes, list[str]] = {}
        codes = {row.trial: row.codes.tobytes() for row in store.restore().rows}
        for row in store.restore().rows:
            if row.evaluation.fingerprint is not None:
                built.setdefault(row.codes.tobytes(), []).append(row.evaluation.fingerprint)
        (confirmation,) = store.confirmations()
    more = {int(t): es for t, es in confirmation["stage_1"].items()}
    for trial, found in more.items():
        built[codes[trial]] += [e["fingerprint"] for e in found]
    built[codes[confirmation["winner"]["trial"]]] += [e["fingerprint"] for e in confirmation["stage_2"]]
    pairs = [(b[i], b[i + 1]) for b in built.values() for i in range(0, len(b) - 1, 2)]
    after = show(NAME, settings.storage).engines.rebuilt
    assert (after.events, after.tried) == (sum(a != b for a, b in pairs), len(pairs))
    assert after.tried > before.rebuilt.tried and after.low < 0.75 < after.high


def test_the_summary_counts_engines_in_json(tmp_path: Path, quick_workers: None) -> None:
    found = json.loads(json.dumps(tune(config(tmp_path, budget=Budget(trials=8))).to_json()))
    identity = found["identity"]
    assert found["engines"] == identity["engines"] and identity["fingerprints"] == "EXACT"
    assert identity["routes"] == 8 and identity["timed"] + identity["merged"] <= 8 + identity["extended"]
