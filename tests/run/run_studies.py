"""What the tests of this folder share: small studies on planted landscapes, and what must be equal in two of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from run_forks import fork_workers

from gpt_search.backends.synthetic import SyntheticBackend, synthetic_workload
from gpt_search.domain.budget import Budget
from gpt_search.domain.landscape import Landscape
from gpt_search.execution.describe import Description, describe_backend
from gpt_search.execution.devices import RUNTIME_VARIABLE
from gpt_search.measure.protocol import Protocol
from gpt_search.run import setup
from gpt_search.run.config import TuneConfig
from gpt_search.run.result import Status
from gpt_search.store.records import Record, read_records
from gpt_search.store.study import StudyStore

NAME = "study"
SPEC: dict[str, Any] = {"family": "hierarchical", "seed": 4, "knobs": 20, "noise": 0.004}
"""Feasible routes, accuracy failures and build errors among them, and gains of up to 5 %."""
FAILING: dict[str, Any] = {"family": "infeasible", "seed": 4, "knobs": 20, "noise": 0.004}
"""Every outcome but a memory overrun within 50 trials of sparse_random."""
PROTOCOL = Protocol(
    round_seconds=0.01,
    max_rounds=9,
    build_rounds=9,
    alpha=0.5,
    warmup_seconds=0.0,
    warmup_limit_seconds=0.01,
    target_error=0.003,
    contender_error=0.001,
)
"""Short, with errors and an alpha at which the racing rule has something to decide in so few rounds."""


HUNGRY = '''
"""A strategy that everything it may see decides on: what a resumed study sees must be equal to the last bit."""
import hashlib

import numpy as np

from gpt_search import Phase, Proposal


class Hungry:
    def propose(self, space, history, streams):
        h = history
        columns = [h.codes, h.value, h.error, h.violation, h.outcome, h.until, h.fingerprint, h.trial, h.route]
        columns += [h.cost(phase) for phase in sorted(h.phases_of_cost)]
        numbers = (h.noise, h.builds, h.settled, h.total_cost_s, h.n_pending, h.next_trial)
        assert h.noise and not h.n_pending
        seen = hashlib.sha256(b"".join(c.tobytes() for c in columns) + repr(numbers).encode())
        rng = np.random.default_rng([*seen.digest(), int(streams.trial(h.next_trial).integers(1 << 30))])
        codes = h.codes[rng.integers(len(h))].copy()  # a known route, changed in no, one or two places
        for knob in rng.integers(len(space), size=rng.integers(3)):
            codes[knob] = rng.integers(space.cardinalities[knob])
        return Proposal(codes, Phase(int(rng.choice([1, 2, 3], p=[0.1, 0.2, 0.7]))))
'''


def hungry(folder: Path) -> str:
    """Writes the strategy into a file, and returns its spec."""
    path = folder / "hungry.py"
    path.write_text(HUNGRY)
    return f"{path}:Hungry"


def backend_name(spec: Mapping[str, Any] = SPEC, **options: Any) -> str:
    return "synthetic:" + json.dumps({**spec, "gentle": True, "simulate_clock": True, **options})


def landscape_of(spec: Mapping[str, Any] = SPEC) -> Landscape:
    return SyntheticBackend(json.dumps(spec)).landscape


def config(folder: Path, strategy: str = "random", spec: Mapping[str, Any] = SPEC, **more: Any) -> TuneConfig:
    """A study of 50 trials named "study" in `folder`/study.journal; the model lies there too, written when missing."""
    model = folder / "model.json"
    if not model.exists():
        synthetic_workload(folder, spec)
    given: dict[str, Any] = {
        "model": model,
        "strategy": strategy,
        "budget": Budget(trials=50),
        "seed": 3,
        "backend": backend_name(spec),
        "metric": "lInf",
        "tolerances": (str(landscape_of(spec).tolerance),),
        "storage": str(folder / "study.journal"),
        "study": NAME,
        "protocol": PROTOCOL,
    }
    return TuneConfig(**(given | more))


_descriptions: dict[str, Description] = {}


def remembered_description(name: str, options: Mapping[str, object] | None = None) -> Description:
    """`describe_backend`, which starts a worker, once for each backend where there are no options."""
    if options:
        return describe_backend(name, options)
    if name not in _descriptions:
        _descriptions[name] = describe_backend(name)
    return _descriptions[name]


@pytest.fixture
def own_locks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device locks of this test are its own: it neither waits for other users of the device nor makes them wait."""
    monkeypatch.setenv(RUNTIME_VARIABLE, str(tmp_path_factory.mktemp("locks")))


@pytest.fixture
def quick_workers(own_locks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked (see `ForkedPopen`), a backend that was asked what it is need not say so again, and nobody
    waits for the disk: the kernel keeps what was written when a process dies; only a power cut would need it."""
    fork_workers(monkeypatch)
    monkeypatch.setattr(setup, "describe_backend", remembered_description)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def records_path(folder: Path, name: str = NAME) -> Path:
    return folder / "study.records" / f"{name}.jsonl"


def contents(folder: Path, name: str = NAME) -> dict[str, Any]:
    """Everything that must be equal, bit for bit, in an uninterrupted and an interrupted run."""
    with StudyStore.read(folder / "study.journal", name) as store:
        restored = store.restore()
        trials = store.study.get_trials(deepcopy=False)
        records = [line.to_json() for line in read_records(store.record_path) if isinstance(line, Record)]
    for line in records:
        for key in ("study", "study_id", "finished_at", "clock_s"):
            del line[key]
    summaries = []
    for trial in trials:
        summary = dict(trial.user_attrs.get("gpt_search", {}))
        for key in ("finished_at", "clock_s"):
            summary.pop(key, None)
        summaries.append(json.dumps(summary))
    return {
        "adopted": restored.adopted,
        "order": [row.trial for row in restored.rows],
        "records": [json.dumps(line) for line in records],
        "trials": [(t.number, t.state.name, t.values, t.params, t.constraints) for t in trials],
        "summaries": summaries,
    }


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Says where two studies part, in place of two large dictionaries."""
    assert found.keys() == expected.keys()
    for key in expected:
        for number, (one, other) in enumerate(zip(found[key], expected[key], strict=False)):
            assert one == other, f"{what}: {key}, entry {number}"
        assert len(found[key]) == len(expected[key]), f"{what}: {key}"


def copy_study(source: Path, target: Path) -> None:
    """What a kill at this very moment would leave: the journal and the records, as the kernel has them."""
    target.mkdir()
    shutil.copy(source / "study.journal", target)
    shutil.copytree(source / "study.records", target / "study.records")


class Stopped(Exception):
    """What `stop_after` raises."""


def stop_after(trial: int) -> Callable[[Status], None]:
    """A progress callback that ends a study right after that trial has finished."""

    def progress(status: Status) -> None:
        if status.trial == trial:
            raise Stopped

    return progress
