"""Every strategy that is discovered passes the conformance suite."""

from __future__ import annotations

from gpt_search.search.discovery import strategy_names
from gpt_search.testing import StrategyConformance

for _name in strategy_names():
    _title = "Test" + _name.title().replace("_", "")
    globals()[_title] = type(_title, (StrategyConformance,), {"spec": _name, "__module__": __name__})


class TestMixedWithMargin(StrategyConformance):
    spec = "mixed:margin=0.2"


class TestSparseRandomWithSingleChanges(StrategyConformance):
    spec = "sparse_random:mean=1"
