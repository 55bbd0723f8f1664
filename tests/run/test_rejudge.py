from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from run_forks import fork_workers
from run_studies import NAME, config, contents, copy_study, own_locks, quick_workers

from gpt_search.accuracy.gate import Tolerances, judge
from gpt_search.backends.base import Fingerprints
from gpt_search.cli.main import cli
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.execution import launcher
from gpt_search.execution.devices import RUNTIME_VARIABLE
from gpt_search.measure.intervals import Verdict
from gpt_search.run.confirm import confirm
from gpt_search.run.export import export
from gpt_search.run.rejudge import FACT, Missing, _unknown, rejudge
from gpt_search.run.show import show
from gpt_search.run.tune import resume, tune
from gpt_search.store.study import Restored, Row, StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures

LOSSY: dict[str, Any] = {"family": "infeasible", "seed": 0, "knobs": 40, "noise": 0.004}
"""A fifth of the knobs fail, a third of them by a loss beyond the tolerance of 0.01 that is known."""
TRIALS = 50


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        fork_workers(patch)
        patch.setenv(RUNTIME_VARIABLE, str(folder / "locks"))
        tune(config(folder, "sparse_random", LOSSY, budget=Budget(trials=TRIALS)))
    return folder


@pytest.fixture
def study(searched: Path, tmp_path: Path, quick_workers: None) -> Iterator[str]:
    copy_study(searched, tmp_path / "copy")
    yield str(tmp_path / "copy" / "study.journal")


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a worker is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(launcher.Worker, "__init__", refuse)


def restored(storage: str, name: str = NAME) -> Restored:
    with StudyStore.read(storage, name) as store:
        return store.restore()


def losses(storage: str) -> dict[int, float]:
    """The true loss of every trial that has one."""
    found = {}
    for row in restored(storage).rows:
        if row.evaluation.losses:
            found[row.trial] = judge(row.evaluation.losses, Tolerances("lInf", 1.0)) + 1.0
    return found


def between(values: list[float], low: float) -> float:
    """A tolerance that about half of the values above `low` meet."""
    above = sorted({round(v, 12) for v in values if v > low and math.isfinite(v)})
    assert len(above) >= 2, "the landscape has too few known losses"
    middle = len(above) // 2
    return (above[middle - 1] + above[middle]) / 2


def test_a_looser_tolerance(study: str, nothing_is_built: None) -> None:
    """What missed the old one and meets the new one was never timed: said, not guessed."""
    known, source = losses(study), restored(study)
    limit = between(list(known.values()), 0.01)
    found = rejudge(NAME, study, [str(limit)])
    should = {t for t, loss in known.items() if 0.01 <= loss < limit}
    assert should and set(found.became_feasible) == should and found.became_infeasible == ()
    assert {u.trial for u in found.unknown} == should and {u.missing for u in found.unknown} == {Missing.TIMING}
    name = found.summary.study
    assert name == f"study-lInf-{limit:g}"
    made = restored(study, name)
    before, after = {r.trial: r for r in source.rows}, {r.trial: r for r in made.rows}
    assert [r.trial for r in made.rows] == [r.trial for r in source.rows]  # numbers and order
    for trial, row in after.items():
        old = before[trial].evaluation
        assert row.codes.tolist() == before[trial].codes.tolist() and row.clock_s == before[trial].clock_s
        if trial in should:
            # What is known: it was built and gated, and meets the tolerance. No latency is made up.
            assert row.until is Phase.GATE and row.evaluation.outcome is Outcome.OK
            assert row.evaluation.latency_ms is None and row.evaluation.rounds == ()
            assert row.evaluation.losses == old.losses and row.evaluation.violation == known[trial] - limit
        else:
            assert row.until is before[trial].until and row.evaluation.outcome is old.outcome
            changed = row.evaluation.violation if old.losses else old.violation
            assert row.evaluation == replace(old, violation=changed)
    # One build for each engine that is unknown waits to be made.
    engines = {before[t].evaluation.fingerprint for t in should}
    assert found.builds == len(engines) == len(made.adopted) <= len(should)
    assert {a.trial for a in made.adopted} == set(range(TRIALS + 1, TRIALS + 1 + len(engines)))
    assert {a.until for a in made.adopted} == {Phase.TIME}
    # The old study is untouched.
    assert [r.evaluation.outcome for r in restored(study).rows] == [r.evaluation.outcome for r in source.rows]


def test_a_tighter_tolerance(study: str, nothing_is_built: None) -> None:
    """Samples stay with routes that are out now, and the ranking is of those that are left."""
    known, source = losses(study), restored(study)
    best = show(NAME, study).nominees[0]
    limit = known[best.trial]  # equal to its tolerance is a miss
    assert limit > known[0]
    found = rejudge(NAME, study, [f"{limit!r}"], study_out="tight")
    out = {t for t, loss in known.items() if limit <= loss < 0.01}
    assert set(found.became_infeasible) == out and best.trial in out and found.became_feasible == ()
    made = {r.trial: r.evaluation for r in restored(study, "tight").rows}
    for row in source.rows:
        assert made[row.trial].rounds == row.evaluation.rounds
        assert made[row.trial].latency_ms == row.evaluation.latency_ms
    left = [r for r in source.rows if r.evaluation.outcome is Outcome.OK and r.trial not in out]
    fastest = min(left, key=lambda r: r.evaluation.latency_ms or math.inf)
    first = found.summary.nominees[0]  # by the shrunken estimate, of engines that are left
    assert first.trial not in out and first.latency_ms < 1.003 * (fastest.evaluation.latency_ms or 0.0)
    with StudyStore.read(study, "tight") as store:
        states = {t.number: t.state.name for t in store.study.get_trials(deepcopy=False)}
        assert {states[t] for t in out} == {"PRUNED"} and store.study.best_trial.number == fastest.trial
        assert store.attr(FACT)["study"] == NAME and store.attr(FACT)["complete"] is True


def test_a_timing_that_was_cut_short_for_a_route_that_is_out_now(study: str, nothing_is_built: None) -> None:
    """The same records, as if the best had been far ahead: without it, what was raced against it is open again."""
    source = restored(study)
    known = losses(study)
    best = show(NAME, study).nominees[0]
    raced = [r.trial for r in source.rows if r.evaluation.raced and r.evaluation.outcome is Outcome.OK]
    assert raced, "the search raced nothing"
    # Judged by a tolerance under which everything stays as it is, racing decisions stand.
    assert rejudge(NAME, study, ["0.0099999"], study_out="same").unknown == ()
    path = Path(study).parent / "study.records" / f"{NAME}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    loser = next(line for line in lines if line["trial"] == raced[0])["evaluation"]
    kept = loser["rounds"][:5]
    for round_, ratio in zip(kept, (0.9, 1.1, 0.92, 1.08, 0.97), strict=True):  # too noisy to be clearly worse
        round_["candidate_ms"] = [x * ratio for x in round_["reference_ms"]]
    loser["rounds"] = kept
    loser["losses"] = [{o: dict.fromkeys(by, 0.0) for o, by in p.items()} for p in loser["losses"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    limit = min(v for t, v in known.items() if v > known[0]) if best.trial else 0.005
    found = rejudge(NAME, study, [f"{limit!r}"], study_out="tight")
    by_trial = {u.trial: u for u in found.unknown}
    assert by_trial[raced[0]].missing is Missing.ROUNDS and by_trial[raced[0]].same_as is None
    made = {r.trial: r for r in restored(study, "tight").rows}
    assert made[raced[0]].until is Phase.TIME and len(made[raced[0]].evaluation.rounds) == 5  # what was measured stays


def test_the_new_study_is_a_study_like_any_other(study: str, tmp_path: Path) -> None:
    """Through the commands: rejudge, show, resume (which builds what is unknown first), confirm, export."""

    def run(*args: str) -> str:
        done = CliRunner().invoke(cli, list(args), prog_name="gpt-search")
        assert done.exit_code == 0, done.output
        return done.stdout

    known = losses(study)
    limit = between(list(known.values()), 0.01)
    found = json.loads(
        run("rejudge", NAME, "--storage", study, "--tolerance", str(limit), "--study-out", "loose", "--json")
    )
    assert found["study"] == "loose" and found["builds_needed"] >= 1
    assert [u["builds"] for u in found["unknown"]].count(1) == found["builds_needed"]
    assert {u["missing"] for u in found["unknown"]} == {"TIMING"} and found["summary"]["trials"] == TRIALS
    assert found["summary"]["unfinished"] == found["builds_needed"]
    text = " ".join(run("show", "loose", "--storage", study).split())
    assert f"{found['builds_needed']} unfinished" in text
    summary = resume("loose", study, Budget(trials=TRIALS))
    rows = {r.trial: r.evaluation for r in restored(study, "loose").rows}
    first = {u["trial"] for u in found["unknown"] if u["builds"]}
    assert len(rows) == TRIALS + 1 + len(first) and summary.unfinished == 0
    with StudyStore.read(study, "loose") as store:
        made = {str(store.space.route(r.codes)): r for r in store.restore().rows if r.trial > TRIALS}
        for trial in first:
            route = next(str(store.space.route(r.codes)) for r in store.restore().rows if r.trial == trial)
            assert made[route].evaluation.outcome is Outcome.OK and made[route].evaluation.latency_ms is not None
            assert made[route].evaluation.fingerprint == rows[trial].fingerprint
    # More of the strategy's own trials, then the end as ever.
    assert resume("loose", study, Budget(trials=TRIALS + len(first) + 3)).trials == TRIALS + len(first) + 3
    result = confirm("loose", study, top=1, rebuilds=5)
    assert result.verdict in set(Verdict) and show("loose", study).confirmations
    done = export("loose", study, "route", tmp_path / "route")
    assert (tmp_path / "route").read_text() == f"{done.route}\n"
    assert show(NAME, study).confirmations == ()


def test_what_the_command_says(study: str, nothing_is_built: None) -> None:
    known = losses(study)
    limit = between(list(known.values()), 0.01)
    done = CliRunner().invoke(
        cli, ["rejudge", NAME, "--storage", study, "--tolerance", f"{limit}", "--metric", "l1"], prog_name="gpt-search"
    )
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert f"judged by l1 {limit:g} in place of lInf 0.01" in text and "nothing was built" in text
    assert "unknown, needs " in text and "never timed; needs 1 build" in text
    assert f"gpt-search resume study-l1-{limit:g} --storage" in text
    assert max(len(line) for line in done.stdout.splitlines() if "--storage" not in line and "/" not in line) <= 80


def test_a_stopped_one_is_gone_on_with(study: str, nothing_is_built: None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = losses(study)
    limit = str(between(list(known.values()), 0.01))
    whole = rejudge(NAME, study, [limit], study_out="whole")
    real, left = StudyStore.finish, [12]

    def stop(self: StudyStore, *args: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(StudyStore, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            rejudge(NAME, study, [limit], study_out="stopped")
    again = rejudge(NAME, study, [limit], study_out="stopped")
    assert again.unknown == whole.unknown
    one, two = (contents(Path(study).parent, n) for n in ("whole", "stopped"))
    for name in ("order", "records", "trials"):
        assert one[name] == two[name], name


def test_what_cannot_be_rejudged(study: str, tmp_path: Path, nothing_is_built: None) -> None:
    # What is not given stays the study's own, and never becomes the default of `tune`.
    for given in ({"tolerances": ["0.01"]}, {}, {"metric": "lInf"}, {"timing": "median"}):
        with pytest.raises(InputError, match="is judged by exactly this already; give another --tolerance, --metric"):
            rejudge(NAME, study, **given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not even the reference route meets the tolerance"):
        rejudge(NAME, study, ["1e-12"])
    with pytest.raises(InputError, match=r"the model has no output 'z'"):
        rejudge(NAME, study, ["z=0.1"])
    with pytest.raises(InputError, match="unknown metric 'l3'"):
        rejudge(NAME, study, ["0.1"], metric="l3")
    with pytest.raises(InputError, match="is the study itself; choose another name"):
        rejudge(NAME, study, ["0.1"], study_out=NAME)
    with pytest.raises(InputError, match="no study 'stud'"):
        rejudge("stud", study, ["0.1"])
    assert rejudge(NAME, study, ["0.02"], study_out="new").summary.study == "new"
    with pytest.raises(InputError, match=r"study 'new' in .* exists already; choose another --study-out"):
        rejudge(NAME, study, ["0.02"], study_out="new")
    with pytest.raises(InputError, match=r"exists with other settings: tolerance\.default"):
        rejudge(NAME, study, ["0.03"], study_out="new")
    with StudyStore.read(study, "new") as store:
        assert store.settings["tolerance"] == {"metric": "lInf", "default": 0.02, "by_output": {}}


@pytest.mark.parametrize(("kind", "builds"), [("EXACT", 1), ("MAY_SPLIT", 1), ("MAY_MERGE", 2), ("MAY_BOTH", 2)])
def test_one_build_for_two_routes_only_where_their_engine_is_proven_to_be_one(kind: str, builds: int) -> None:
    alike = Evaluation(Outcome.OK, Phase.BUILD, fingerprint="same")
    rows = [Row(t, np.array([t], np.int16), Phase.TIME, alike, 0.0) for t in (1, 2)]
    missing = dict.fromkeys((1, 2), Missing.LOSSES)
    found = _unknown(rows, missing, {1: "a", 2: "b"}, Fingerprints[kind])
    assert sum(u.same_as is None for u in found) == builds
