"""Strategies compute with one BLAS thread, and whoever called them has as many as before afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg  # loads SciPy's own library
from threadpoolctl import threadpool_info, threadpool_limits

from gpt_search import History, Observation, Outcome, Proposal, SearchSpace, Streams, as_sampler, simulate
from gpt_search.domain.space import Dimension
from gpt_search.search import threads as module
from gpt_search.search.strategy import recommended_rows
from gpt_search.search.threads import OneBlasThread

SPACE = SearchSpace(Dimension(f"k{i}", ("a", "b"), 0) for i in range(4))


def threads() -> list[int]:
    assert scipy.linalg is not None
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


class Noting:
    """Notes how many threads BLAS has while it thinks."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        self.seen.append(threads())
        codes = space.sample(streams.trial(history.next_trial))
        return None if history.contains(codes) else Proposal(codes)

    def recommend(self, history: History, k: int) -> list[int]:
        self.seen.append(threads())
        return [0]


def measure(codes: np.ndarray, rng: np.random.Generator, until: object) -> Observation:
    return Observation(Outcome.OK, 1.0)


def a_study() -> None:
    before, strategy = threads(), Noting()
    assert max(before) > 1
    simulate(SPACE, strategy, measure, 10)
    assert len(strategy.seen) > 2 and all(set(seen) == {1} for seen in strategy.seen)
    assert threads() == before


def under_optuna_and_recommending() -> None:
    import optuna

    before, strategy = threads(), Noting()
    study = optuna.create_study(sampler=as_sampler(strategy, SPACE))
    study.optimize(lambda trial: float(trial.suggest_categorical("k0", ["a", "b"]) == "a"), 3)
    history = History(SPACE)
    history.append(0, SPACE.default, Observation(Outcome.OK, 1.0))
    recommended_rows(strategy, history)
    assert len(strategy.seen) >= 2 and all(set(seen) == {1} for seen in strategy.seen)
    assert threads() == before


def a_library_that_comes_later() -> None:
    loaded = [False]
    module._scipy_loaded = lambda: loaded[0]
    # The second context stands for a library that came with threads of its own.
    with OneBlasThread() as limited, threadpool_limits(2, "blas"):
        limited.cover()
        assert set(threads()) == {2}
        loaded[0] = True
        limited.cover()
        assert set(threads()) == {1}


@pytest.mark.parametrize("check", [a_study, under_optuna_and_recommending, a_library_that_comes_later])
def test_a_strategy_thinks_in_one_thread(check: Callable[[], None]) -> None:
    """In a process of its own: this one must not have BLAS threads, since other tests fork it."""
    code = f"import test_threads; test_threads.{check.__name__}()"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    env = os.environ | {"OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
