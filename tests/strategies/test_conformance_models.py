"""The strategies with a model pass the conformance suite."""

from __future__ import annotations

from gpt_search.search.discovery import strategy_names
from gpt_search.testing import StrategyConformance


class TestBandit(StrategyConformance):
    spec = "bandit"


class TestForest(StrategyConformance):
    spec = "forest"


class TestGp(StrategyConformance):
    spec = "gp"


class TestLive(StrategyConformance):
    spec = "live"


class TestLiveThatProbesFirst(StrategyConformance):
    spec = "live:probe=first"
    exhaustive = False  # every route is tried, but those that were only built are tried again


class TestScreening(StrategyConformance):
    spec = "screening"


class TestSparseLinear(StrategyConformance):
    spec = "sparse_linear"


class TestTpe(StrategyConformance):
    spec = "tpe"


def test_none_is_left_out() -> None:
    here = {c.spec for c in globals().values() if isinstance(c, type) and issubclass(c, StrategyConformance)}
    from test_conformance import MODELS

    assert here - {""} >= MODELS and set(strategy_names()) >= MODELS
