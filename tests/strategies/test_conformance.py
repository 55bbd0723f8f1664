"""Every strategy that is discovered passes the conformance suite."""

from __future__ import annotations

from gpt_search import load_strategy
from gpt_search.search.discovery import strategy_names
from gpt_search.testing import NOT_LEARNING, StrategyConformance

for _name in strategy_names():
    _title = "Test" + _name.title().replace("_", "")
    globals()[_title] = type(_title, (StrategyConformance,), {"spec": _name, "__module__": __name__})


class TestMixedWithMargin(StrategyConformance):
    spec = "mixed:margin=0.2"
    learns = False  # no single change of the conformance suite's additive function gains so much


class TestLiveThatProbesFirst(StrategyConformance):
    spec = "live:probe=first"
    exhaustive = False  # every route is tried, but those that were only built are tried again


class TestSparseRandomWithSingleChanges(StrategyConformance):
    spec = "sparse_random:mean=1"


def test_who_need_not_learn_is_said_by_name() -> None:
    for name in set(strategy_names()) - NOT_LEARNING:
        assert getattr(load_strategy(name), "learns", True), f"{name} exempts itself"
