"""The table format: what is written comes back, and a line that is not as it was written is named."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.measure.paired import estimate_of, log_ratio_of, section_log_ratios
from gpt_search.measure.protocol import Protocol
from gpt_search.store.files import StorageError
from gpt_search.store.sealed import Sealer, compressed, read_sealed, sealed_file
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_file import environment_digest, header, statistic_of, write_table
from gpt_search.store.table_record import TableRecord, rounds_from_json, rounds_to_json
from gpt_search.store.tables import load_table

SPACE = SearchSpace([Dimension("a", ("0", "1", "2"), 0), Dimension("b", ("x", "y"), 1)])
FACTS = StudySettings({"environment": {"cpu": "this one"}, "fingerprint": "EXACT", "workload": {"name": "w"}})
FACTS = FACTS.with_space(SPACE)

samples = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5).map(tuple)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
rounds = st.builds(
    Round,
    samples,
    samples,
    started_s=st.floats(0, 1e6),
    reference_first=st.booleans(),
    device=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=2),
    launch=st.sampled_from(["call", "graph"]),
)
losses = st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False)))
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(st.text(max_size=4).filter(lambda k: k != "end"), jsons, min_size=1, max_size=4)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    outcome = draw(st.sampled_from(Outcome))
    timed = outcome is Outcome.OK or (outcome is Outcome.ACCURACY and draw(st.booleans()))
    return Evaluation(
        outcome,
        Phase.TIME,
        losses=tuple(draw(st.lists(losses, max_size=2))),
        violation=draw(st.none() | st.floats(allow_nan=False)),
        rounds=tuple(draw(st.lists(rounds, min_size=4, max_size=9))) if timed else (),
        fingerprint=draw(st.sampled_from([None, "f", "g"])),
        memory_bytes=draw(st.none() | st.integers(1, 1 << 50)),
        engine_bytes=draw(st.none() | st.integers(1, 1 << 50)),
        excess=draw(st.dictionaries(st.sampled_from(["size", "memory"]), finite)),
        cost_s=draw(st.dictionaries(st.sampled_from(["start", "build", "gate", "time", "wait"]), st.floats(0, 1e5))),
        build=draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
        message=draw(st.none() | st.text(min_size=1, max_size=5)),
        notes=tuple(draw(st.lists(st.text(max_size=4), max_size=2))),
    )


@st.composite
def tables(draw: st.DrawFn) -> list[TableRecord]:
    """Records of distinct routes and builds, some taken from earlier ones of the same engine."""
    keys = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=8, unique=True
        )
    )
    records: list[TableRecord] = []
    for a, b, build in keys:
        found = draw(evaluations())
        sources = [
            i
            for i, r in enumerate(records)
            if r.taken_from is None
            and r.evaluation.fingerprint is not None
            and r.evaluation.fingerprint == found.fingerprint
            and (r.evaluation.rounds or found.outcome is not Outcome.OK)
        ]
        taken = draw(st.sampled_from([None, *sources]))
        if taken is not None:
            found = Evaluation(**{**found.__dict__, "rounds": ()})
        records.append(TableRecord((a, b), build, found, taken, draw(st.integers(1, 3))))
    return records


def table_file(folder: Path, records: list[TableRecord], name: str = "t.jsonl", facts: StudySettings = FACTS) -> Path:
    path = folder / name
    path.unlink(missing_ok=True)
    write_table(path, facts, records)
    return path


def timed(codes: tuple[int, ...], build: int = 0, log_ratio: float = 0.0, n: int = 8, **more: Any) -> TableRecord:
    """A record of n rounds around a log-ratio."""
    found = [Round((math.exp(log_ratio + 0.001 * (i % 3 - 1)),), (1.0,), 0.1 * i) for i in range(n)]
    cost = {"build": 1.0, "gate": 0.5, "time": 2.0}
    return TableRecord(codes, build, Evaluation(Outcome.OK, Phase.TIME, rounds=tuple(found), cost_s=cost, **more))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(tables(), st.sampled_from(["t.jsonl", "t.jsonl.zst"]))
def test_what_is_written_comes_back(tmp_path: Path, records: list[TableRecord], name: str) -> None:
    table = load_table(table_file(tmp_path, records, name))
    table.check_samples()
    assert table.settings == FACTS and table.space == SPACE
    assert len(table.row) == len(records)
    for i, record in enumerate(records):
        source = i if record.taken_from is None else record.taken_from
        expected = records[source].evaluation.rounds
        assert table.evaluation(i) == Evaluation(**{**record.evaluation.__dict__, "rounds": expected})
        assert table.columns.codes[i].tolist() == list(record.codes)
        assert int(table.columns.build[i]) == record.build
        assert int(table.columns.source[i]) == source
        assert table.outcome(i) is record.evaluation.outcome
        assert table.all_rounds(i).tolist() == [log_ratio_of(r) for r in expected]
        row = table.find(np.array(record.codes, np.int16))
        assert row == int(table.row[i]) and i in table.records(row)
        for phase, column in table.columns.cost.items():
            assert np.array_equal(column[i], record.evaluation.cost_s.get(phase, math.nan), equal_nan=True)
    assert len(table) == len({r.codes for r in records})
    assert table.complete == (len(table) == 6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(bodies, min_size=1, max_size=5), st.data())
def test_any_damage_is_found_and_its_line_named(
    tmp_path: Path, lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    path = tmp_path / "sealed"
    whole = sealed_file(lines)
    path.write_bytes(whole)
    assert [body for _, body, _ in read_sealed(path)] == lines
    rows = whole.splitlines(keepends=True)
    kind = data.draw(st.sampled_from(["byte", "cut", "remove", "twice", "swap", "add"]))
    at = data.draw(st.integers(0, len(rows) - 1))
    damaged, first = list(rows), at + 1
    if kind == "byte":
        place = data.draw(st.integers(0, len(rows[at]) - 2))
        other = data.draw(st.integers(0, 255).filter(lambda b: b not in (rows[at][place], 10)))
        damaged[at] = rows[at][:place] + bytes([other]) + rows[at][place + 1 :]
    elif kind == "cut":
        damaged[at:] = [rows[at][: data.draw(st.integers(0, len(rows[at]) - 1))]]
        first = at + bool(damaged[at])
    elif kind == "remove":
        del damaged[at]
        first = min(at + 1, len(rows) - 1)
    elif kind == "twice":
        damaged.insert(at, rows[at])
        first = at + 2
    elif kind == "add":
        damaged.append(rows[at])
        first = len(rows) + 1
    else:
        damaged[at - 1], damaged[at] = rows[at], rows[at - 1]
        first = min(at - 1 if at else len(rows) - 1, at) + 1
    if damaged == rows:
        return
    path.write_bytes(b"".join(damaged))
    with pytest.raises(StorageError) as error:
        list(read_sealed(path))
    text = str(error.value)
    assert f"line {first}" in text or (first == 0 and "is empty" in text), (kind, text)


def test_a_file_that_is_still_written_is_read_up_to_its_torn_line(tmp_path: Path) -> None:
    sealer = Sealer()
    lines = [sealer.seal({"n": i}) for i in range(3)]
    path = tmp_path / "part"
    path.write_bytes(b"".join(lines)[:-5])
    found = list(read_sealed(path, unfinished=True))
    assert [body["n"] for _, body, _ in found] == [0, 1]
    more = Sealer(found[-1][2])
    path.write_bytes(b"".join(lines[:2]) + more.seal({"n": 7}) + more.end(3))
    assert [body["n"] for _, body, _ in read_sealed(path)] == [0, 1, 7]


def test_compressed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [timed((a, b), log_ratio=0.01 * a) for a in range(3) for b in range(2)]
    plain, packed = table_file(tmp_path, records), table_file(tmp_path, records, "t.jsonl.zst")
    assert packed.stat().st_size < plain.stat().st_size / 2
    assert load_table(packed).digest == load_table(plain).digest
    cut = tmp_path / "cut.jsonl.zst"
    cut.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"cut\.jsonl\.zst"):
        load_table(cut)
    cut.write_bytes(b"no Zstandard at all")
    with pytest.raises(StorageError, match="no whole Zstandard file"):
        load_table(cut)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"needs the package zstandard.*pip install"):
        load_table(packed)
    with pytest.raises(InputError, match="needs the package zstandard"):
        compressed(packed, b"")


def resealed(path: Path, change: Any) -> Path:
    """The file with its bodies changed and sealed anew: what another program might write."""
    found = [body for _, body, _ in read_sealed(path)]
    change(found)
    path.write_bytes(sealed_file(found))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[2].update(environment="another"), "line 3 .*another environment"),
        (lambda b: b[2].update(route=[3, 0]), "line 3 .*no route of the table's space"),
        (lambda b: b[2].update(route=[99999, 0]), "line 3 is not a record"),
        (lambda b: b[2].update(route=[0, 1]), "line 3 .*build 0 of its route is in line 2 already"),
        (lambda b: b[2].pop("outcome"), "line 3 .*outcome"),
        (lambda b: b[2].update(outcome="FINE"), "line 3 .*FINE"),
        (lambda b: b[2].pop("rounds"), "line 3 .*feasible and has no rounds"),
        (lambda b: b[2]["rounds"].update(log_ratio=[0.1]), "line 3 .*1 rounds; 4 are the fewest"),
        (lambda b: b[2]["rounds"].update(log_ratio=["x"] * 4), "line 3 is not a record"),
        (lambda b: b[2].update(taken_from=5), "line 3 .*record 5"),
        (lambda b: (b[2].pop("rounds"), b[2].update(taken_from=0)), "line 3 .*another engine"),
        (lambda b: b[0].update(format="x"), "line 1: format 'x'"),
        (lambda b: b[0].update(version=9), "version 9"),
        (lambda b: b[0]["facts"]["space"].pop("spec"), "line 1: no search space"),
        (lambda b: b.clear(), "no header"),
    ],
)
def test_what_contradicts_the_table_is_named_with_its_line(tmp_path: Path, change: Any, message: str) -> None:
    records = [timed((0, 1), fingerprint="f"), timed((1, 0), fingerprint="g")]
    with pytest.raises(StorageError, match=message):
        load_table(resealed(table_file(tmp_path, records), change))


def test_log_ratios_that_are_not_those_of_the_samples(tmp_path: Path) -> None:
    path = table_file(tmp_path, [timed((0, 1))])
    load_table(path).check_samples()
    wrong = resealed(path, lambda b: b[1]["rounds"].update(log_ratio=[0.0] * 7 + [0.5]))
    with pytest.raises(StorageError, match="line 2: its log-ratios"):
        load_table(wrong).check_samples()
    broken = resealed(path, lambda b: b[1]["rounds"].update(candidate="1 2;x"))
    with pytest.raises(StorageError, match="line 2: its samples cannot be read"):
        load_table(broken).check_samples()


def test_no_table_at_all(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        load_table(tmp_path / "none.jsonl")
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"kind": "evaluation"}) + "\n")
    with pytest.raises(StorageError, match="line 1 is not a line of a table"):
        load_table(path)
    path.write_text("")
    with pytest.raises(StorageError, match="is empty"):
        load_table(path)
    table_file(tmp_path, [timed((0, 1))])
    with pytest.raises(InputError, match="exists"):
        write_table(tmp_path / "t.jsonl", FACTS, [])


# -- what a table says ---------------------------------------------------------------------------
def test_truth_and_replay_share_no_round_and_both_orders_are_in_each(tmp_path: Path) -> None:
    table = load_table(table_file(tmp_path, [timed((0, 1), n=11)]))
    truth, replay = table.truth_rounds(0), table.replay_rounds(0)
    all_rounds = table.all_rounds(0)
    assert truth.tolist() == all_rounds[[0, 1, 4, 5, 8, 9]].tolist()
    assert replay.tolist() == all_rounds[[2, 3, 6, 7, 10]].tolist()


def test_truth_best_and_reference(tmp_path: Path) -> None:
    failed = TableRecord((2, 1), 0, Evaluation(Outcome.CRASH, Phase.TIME, cost_s={"build": 1.0}))
    flaky = TableRecord((2, 0), 1, Evaluation(Outcome.CRASH, Phase.TIME, cost_s={"build": 1.0}))
    records = [
        timed((0, 1), log_ratio=0.02),
        timed((1, 1), log_ratio=-0.1),
        timed((1, 1), 1, log_ratio=-0.2),
        failed,
        timed((2, 0), log_ratio=-0.5),
        flaky,
    ]
    table = load_table(table_file(tmp_path, records))
    assert table.reference == 0 and table.truth[0] == 0.0  # by definition, whatever its rounds say
    assert table.truth[1] == pytest.approx(-0.15, abs=0.002)
    assert np.isnan(table.truth[2]) and np.isnan(table.truth[3])  # a route that failed once is not recommended
    assert table.best == 1
    assert table.route(1)["a"] == "1"
    assert not table.complete and len(table) == 4
    one = estimate_of(table.truth_rounds(1)).error
    assert table.truth_error[1] == pytest.approx(one / math.sqrt(2))


def test_no_reference_and_nothing_feasible(tmp_path: Path) -> None:
    table = load_table(table_file(tmp_path, [timed((1, 1))]))
    with pytest.raises(InputError, match="does not hold the reference route"):
        table.reference  # noqa: B018
    crash = TableRecord((0, 1), 0, Evaluation(Outcome.CRASH, Phase.TIME, cost_s={"build": 1.0}))
    table = load_table(table_file(tmp_path, [crash]))
    with pytest.raises(InputError, match="the reference route is CRASH"):
        table.reference  # noqa: B018
    with pytest.raises(InputError, match="no route of the table is feasible"):
        table.best  # noqa: B018


def test_build_effect_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    routes = [(a, b) for a in range(3) for b in range(2)]
    shared = [0.0, 0.3, -0.2]  # the reference's build of each pass: no difference between routes
    records = []
    for build in range(3):
        for a, b in routes:
            off = shared[build] + 0.01 * rng.standard_normal()
            records.append(timed((a, b), build, log_ratio=off, n=40))
    effect = load_table(table_file(tmp_path, records)).between_builds
    assert effect is not None and (effect.routes, effect.builds) == (6, 3)
    assert effect.low < 0.01**2 < effect.high
    assert effect.deviation < 0.02
    assert load_table(table_file(tmp_path, records[:6])).between_builds is None


def test_sections_of_a_mean_over_points(tmp_path: Path) -> None:
    protocol = Protocol.for_timing("mean").to_json()
    facts = StudySettings({**FACTS.sections, "protocol": protocol, "weights": [1.0, 3.0]})
    found = tuple(Round((1.0 + 0.1 * i, 1.2), (1.0, 1.1), point=i % 2) for i in range(10))
    record = TableRecord((0, 1), 0, Evaluation(Outcome.OK, Phase.TIME, rounds=found))
    table = load_table(table_file(tmp_path, [record], facts=facts))
    table.check_samples()
    assert table.rounds(0) == found
    assert table.all_rounds(0).tolist() == section_log_ratios(found, statistic_of(facts)) and len(found) == 10
    assert len(table.all_rounds(0)) == 5
    assert table.estimate(table.all_rounds(0)).log_ratio == pytest.approx(table.all_rounds(0).mean())


@given(st.lists(rounds, min_size=1, max_size=4))
def test_rounds_in_columns(found: list[Round]) -> None:
    text = json.dumps(rounds_to_json(found))
    assert rounds_from_json(json.loads(text)) == tuple(found)


def test_header_and_environment() -> None:
    assert header(FACTS)["facts"]["space"]["digest"] == SPACE.digest
    assert len(environment_digest(FACTS)) == 12
