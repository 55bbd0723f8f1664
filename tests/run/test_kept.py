"""Which build of a confirmation is shipped, and which are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.run.kept import Keeper, kept_names, nearest_to_median
from gpt_search.run.rebuild import Rebuilt
from gpt_search.store.engines import EngineFiles

FINITE = st.floats(-1, 1)


def test_the_median_build_and_of_two_the_slower() -> None:
    assert nearest_to_median([-0.3, -0.1, -0.2]) == [2, 1, 0]
    assert nearest_to_median([-0.4, -0.1, -0.3, -0.2])[:2] == [3, 2]
    assert nearest_to_median([-0.1]) == [0]


@given(st.lists(FINITE, min_size=1, max_size=9))
def test_every_build_has_its_turn_and_a_middle_one_the_first(x: list[float]) -> None:
    order = nearest_to_median(x)
    assert sorted(order) == list(range(len(x)))
    assert x[order[0]] == sorted(x)[len(x) // 2]  # of an even number, the slower one in the middle


def test_the_median_build_s_own_timing_is_not_biased_as_the_fastest_one_s_is() -> None:
    """Builds that differ by noise alone: what the chosen build's own timing says, against the truth, 0."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4000, 7))
    chosen = np.array([row[nearest_to_median(row.tolist())[0]] for row in x])
    assert abs(chosen.mean()) < 0.03  # standard error 0.007
    assert -1.45 < x.min(axis=1).mean() < -1.25


def rebuilt(name: str | None, log_ratio: float, outcome: Outcome = Outcome.OK) -> Rebuilt:
    return Rebuilt(outcome, Phase.TIME, log_ratio=log_ratio, engine=name)


def test_what_is_farthest_from_the_median_goes_first(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path / "engines")
    keeper = Keeper(files, limit=25)
    builds = []
    for i, x in enumerate([0.0, 0.5, 0.1, 0.2]):
        builds.append(rebuilt(keeper.keep(bytes([i]) * 10), x))
        keeper.shrink(builds)
    assert [e.engine in files for e in builds] == [False, False, True, True]  # the median is 0.15
    assert len(list(files.folder.iterdir())) == 2


def test_one_build_stays_whatever_its_size_and_equal_ones_count_once(tmp_path: Path) -> None:
    files = EngineFiles(tmp_path / "engines")
    keeper = Keeper(files, limit=5)
    builds = [rebuilt(keeper.keep(b"0123456789"), x) for x in (0.0, 0.1)]
    keeper.shrink(builds)
    assert builds[0].engine == builds[1].engine and builds[0].engine in files
    other = Keeper(files, limit=5)
    other.keep(b"9876543210")
    other.shrink([rebuilt(None, 0.0, Outcome.ACCURACY)])  # nothing that was timed: nothing to go by
    assert len(list(files.folder.iterdir())) == 2


def test_only_what_may_be_shipped_is_kept() -> None:
    builds = [{"engine": "a"}, {"engine": None}, {}]
    faster = {"verdict": "FASTER", "stage_2": builds}
    assert kept_names(faster) == {"a"}
    assert kept_names(faster | {"verdict": "NOT_DISTINGUISHABLE"}) == set() == kept_names(None)
    shorter = {"verdict": "FASTER", "headline": [{"engine": "b"}]}
    assert kept_names(faster, shorter) == {"a", "b"}
    assert kept_names(faster, shorter | {"verdict": "SLOWER"}) == {"a"}
