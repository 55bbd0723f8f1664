"""Every strategy that is discovered passes the conformance suite; those with a model in a file of their own.

Files are what the runner spreads over its processes, and the models take most of the time.
"""

from __future__ import annotations

from gpt_search import load_strategy
from gpt_search.search.discovery import strategy_names
from gpt_search.testing import NOT_LEARNING, StrategyConformance

MODELS = frozenset({"bandit", "forest", "gp", "live", "screening", "sparse_linear", "tpe"})

for _name in strategy_names():
    if _name in MODELS:
        continue
    _title = "Test" + _name.title().replace("_", "")
    globals()[_title] = type(_title, (StrategyConformance,), {"spec": _name, "__module__": __name__})


class TestMixedWithMargin(StrategyConformance):
    spec = "mixed:margin=0.2"
    learns = False  # no single change of the conformance suite's additive function gains so much


class TestSparseRandomWithSingleChanges(StrategyConformance):
    spec = "sparse_random:mean=1"


def test_who_need_not_learn_is_said_by_name() -> None:
    for name in set(strategy_names()) - NOT_LEARNING:
        assert getattr(load_strategy(name), "learns", True), f"{name} exempts itself"
