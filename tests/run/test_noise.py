from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from run_studies import (
    NAME,
    PROTOCOL,
    SPEC,
    Stopped,
    backend_name,
    config,
    hungry,
    own_locks,
    quick_workers,
    stop_after,
)

from gpt_search.cli.main import cli
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Round
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.variance import Components
from gpt_search.run.config import TuneConfig
from gpt_search.run.noise import calibrated_noise, floor_key, measure_noise, stored_noise
from gpt_search.run.setup import prepare
from gpt_search.run.show import history_of, show
from gpt_search.run.tune import resume, tune
from gpt_search.store.floors import find_floor, save_floor
from gpt_search.store.location import locate
from gpt_search.store.study import StudyStore

__all__ = ["own_locks", "quick_workers"]  # fixtures

BUILD, PROCESS = 0.03, 0.02
NOISY: dict[str, Any] = {"build_noise": BUILD, "process_noise": PROCESS}


def noisy(folder: Path, **more: Any) -> TuneConfig:
    return config(folder, backend=backend_name(SPEC, **NOISY), **more)


def floor_of(folder: Path, noise: float, **more: Any) -> None:
    """A stored floor that fits the study of `config(folder)`."""
    key = floor_key(prepare(config(folder, **more)))
    save_floor(locate(str(folder / "study.journal")), key, {"noise": noise, "measured_at": "then"})


def fact(folder: Path) -> Any:
    with StudyStore.read(folder / "study.journal", NAME) as store:
        return store.attr("noise")


# -- measuring -------------------------------------------------------------------------------------
def test_the_planted_components_are_found(tmp_path: Path, quick_workers: None) -> None:
    steps: list[tuple[int, int, str]] = []
    floor, path = measure_noise(noisy(tmp_path), 8, 2, 10, lambda *step: steps.append(step))
    parts = floor.components
    # Each of the two sides draws its own: variances of the log-ratio are twice those planted.
    for part, truth in ((parts.rebuilds, 2 * BUILD**2), (parts.processes, 2 * PROCESS**2)):
        assert part.low < truth < part.high and part.low > 0
    assert 0 < parts.samples.deviation < 0.01
    assert floor.noise == parts.total.deviation
    assert [s[:2] for s in steps] == [(i, 8 * 3) for i in range(8 * 3)]
    assert path.parent == tmp_path / "study.records" / "noise"
    stored = find_floor(locate(str(tmp_path / "study.journal")), floor_key(prepare(noisy(tmp_path))))
    assert stored == json.loads(json.dumps(floor.to_json()))
    assert stored is not None and Components.from_json(stored["components"]) == parts
    rounds = stored["rounds_ms"]
    assert len(rounds) == 8 and all(len(r) == 2 and all(len(p) == 10 for p in r) for r in rounds)


def test_a_build_is_the_same_in_all_its_processes(tmp_path: Path, quick_workers: None) -> None:
    """It reaches them as bytes: what differs between builds only, differs between no two processes of one."""
    spec = SPEC | {"noise": 1e-4}
    given = config(tmp_path, spec=spec, backend=backend_name(spec, build_noise=0.05))
    parts = measure_noise(given, 3, 2, 10)[0].components
    assert parts.processes.high < 0.001**2 < 0.01**2 < parts.rebuilds.low


@pytest.mark.parametrize(
    ("given", "message"),
    [((1, 2, 10), "--rebuilds 1"), ((2, 1, 10), "--processes 1"), ((2, 2, 5), "--rounds is 5"), ((2, 2, 12), "12")],
)
def test_too_few_are_refused(tmp_path: Path, given: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_noise(config(tmp_path), *given)


def test_a_reference_that_fails_is_told(tmp_path: Path, quick_workers: None) -> None:
    for kind, outcome in (("build_error", "BUILD_ERROR"), ("exit@time", "CRASH")):
        failing = config(tmp_path, backend=backend_name(SPEC, fail={"": kind}))
        with pytest.raises(InputError, match=rf"reference route cannot be measured \({outcome}\)"):
            measure_noise(failing, 2, 2, 10)


def test_the_command(tmp_path: Path, quick_workers: None) -> None:
    args = ["noise", str(noisy(tmp_path).model), "--backend", backend_name(SPEC, **NOISY), "--rebuilds", "2"]
    args += ["--rounds", "10", "--storage", str(tmp_path / "study.journal")]
    text = CliRunner().invoke(cli, args)
    assert text.exit_code == 0, text.output
    for word in ("between samples", "between processes", "between builds", "confirm --rebuilds", "300 s", "stored"):
        assert word in text.output
    done = CliRunner().invoke(cli, [*args, "--json", "--budget", "1e-3"])
    found = json.loads(done.stdout)
    assert found["budget"] == {"seconds": 1e-3, "plan": None}
    assert found["noise"] > 0 and Path(found["file"]).is_file()
    detected = [c["detectable"] for c in found["confirmations"]]
    assert detected == sorted(detected, reverse=True) and detected[-1] > 1
    refused = CliRunner().invoke(cli, [*args, "--processes", "1"])
    assert refused.exit_code == 2 and "2 or more" in refused.output


def test_the_command_tells_how_often_fingerprints_split_one_engine(tmp_path: Path, quick_workers: None) -> None:
    backend = backend_name(SPEC, split=1.0, **NOISY)
    args = ["noise", str(noisy(tmp_path).model), "--backend", backend, "--rebuilds", "2", "--rounds", "10"]
    done = CliRunner().invoke(cli, [*args, "--storage", str(tmp_path / "study.journal")])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert (
        "the fingerprints of 2 of 2 [16 %, 1e+02 %] pairs of builds differ; 4 builds of the one route gave 4" in words
    )


# -- what a study is told --------------------------------------------------------------------------
def rounds_of(log_ratios: list[float]) -> list[Round]:
    return [Round((math.exp(x),), (1.0,)) for x in log_ratios]


def test_calibration_is_the_larger_of_error_and_offset() -> None:
    rng = np.random.default_rng(0)
    found = [calibrated_noise(rounds_of((0.02 * rng.standard_normal(15)).tolist()), Protocol()) for _ in range(300)]
    # A median of 5 normal values has 0.536 of their deviation.
    assert float(np.median([x for x in found if x is not None])) == pytest.approx(0.02 * 0.536, rel=0.15)
    assert calibrated_noise(rounds_of([0.1, 0.101, 0.099, 0.1, 0.1]), Protocol()) == pytest.approx(0.1)
    assert calibrated_noise(rounds_of([0.1]), Protocol()) is None


def test_a_stored_floor_that_fits_is_used_and_only_that(tmp_path: Path, quick_workers: None) -> None:
    floor_of(tmp_path, 0.0123)
    found = tune(config(tmp_path, budget=Budget(trials=2)))
    assert found.noise == {"value": 0.0123, "source": "floor", "measured_at": "then"}
    other = Protocol.from_json({**PROTOCOL.to_json(), "max_rounds": 11})
    found = tune(config(tmp_path, budget=Budget(trials=2), study="other", protocol=other))
    assert found.noise is not None and found.noise["source"] == "calibration"


def test_a_floor_holds_for_one_reference_route(tmp_path: Path, quick_workers: None) -> None:
    one, two = prepare(config(tmp_path)).space.dimensions[:2]
    all_at_default = floor_key(prepare(config(tmp_path)))
    for value in two.values:
        key = floor_key(prepare(config(tmp_path, knobs=f"-{one.name}=[*] -{two.name}={value}")))
        assert (key == all_at_default) == (value == two.values[two.default])


def test_without_a_floor_trial_0_calibrates_and_the_study_keeps_it(tmp_path: Path, quick_workers: None) -> None:
    tune(config(tmp_path, budget=Budget(trials=3)))
    with StudyStore.read(tmp_path / "study.journal", NAME) as store:
        restored = store.restore()
        assert stored_noise(store) == calibrated_noise(restored.rows[0].evaluation.rounds, PROTOCOL)
        assert history_of(store, restored).noise == stored_noise(store)
    before = fact(tmp_path)
    assert before["source"] == "calibration" and before["value"] > 0
    floor_of(tmp_path, 0.5)
    resume(NAME, str(tmp_path / "study.journal"), Budget(trials=5))
    assert fact(tmp_path) == before and show(NAME, str(tmp_path / "study.journal")).noise == before


def test_a_resumed_study_sees_the_same_noise(tmp_path: Path, quick_workers: None) -> None:
    """Every decision of this strategy depends on it; the floor vanishes meanwhile."""
    routes = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        floor_of(folder, 0.0123)
        given = config(folder, hungry(tmp_path), budget=Budget(trials=12))
        if name == "stopped":
            with pytest.raises(Stopped):
                tune(given, stop_after(4))
            for path in (folder / "study.records" / "noise").iterdir():
                path.unlink()
        tune(given)
        with StudyStore.read(folder / "study.journal", NAME) as store:
            routes.append([row.codes.tolist() for row in store.restore().rows])
    assert routes[0] == routes[1]


def test_killed_between_trial_0_and_its_noise(tmp_path: Path, quick_workers: None, monkeypatch: Any) -> None:
    from gpt_search.store.stored import StoredStudy

    set_attr = StoredStudy.set_attr

    def dies(self: StoredStudy, name: str, value: Any) -> None:
        if name == "noise":
            raise Stopped
        set_attr(self, name, value)

    given = config(tmp_path, budget=Budget(trials=2))
    with monkeypatch.context() as patch:
        patch.setattr(StoredStudy, "set_attr", dies)
        with pytest.raises(Stopped):
            tune(given)
    assert fact(tmp_path) is None
    tune(given)
    assert fact(tmp_path)["source"] == "calibration"


def test_mixed_with_margin_auto_goes_by_the_floor(tmp_path: Path, quick_workers: None) -> None:
    """A floor so high that nothing gains leaves phase 1 alone; a low one lets real gains through, resumed too."""
    ended = {}
    for noise in (0.2, 1e-4):
        folder = tmp_path / str(noise)
        folder.mkdir()
        floor_of(folder, noise)
        given = config(folder, "mixed:margin=auto", budget=Budget(trials=40))
        with pytest.raises(Stopped):
            tune(given, stop_after(10))
        ended[noise] = tune(given).trials
    assert ended[0.2] < ended[1e-4]


# -- the file --------------------------------------------------------------------------------------
def test_a_damaged_floor_is_told(tmp_path: Path, quick_workers: None) -> None:
    floor_of(tmp_path, 0.01)
    (path,) = (tmp_path / "study.records" / "noise").iterdir()
    for text in ("{", "[]", '{"format": 99, "key": {}, "floor": {}}'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"is not a noise floor.*gpt-search noise"):
            tune(config(tmp_path, budget=Budget(trials=1)))
