import math

from gpt_search.domain.limits import Limits, excess_text


def test_excess_is_relative_and_infinite_where_nothing_is_known() -> None:
    limits = Limits(size_mb=2, memory_mb=10)
    assert limits.excess(1_000_000, 20_000_000) == {"size": -0.5, "memory": 1.0}
    assert limits.excess(2_000_000, None) == {"size": 0.0, "memory": math.inf}
    assert Limits(size_mb=2).excess(None, None) == {"size": math.inf}
    assert Limits().excess(1, 1) == {} and not Limits() and limits
    assert Limits(**limits.to_json()) == limits


def test_what_is_above_its_limit_is_told() -> None:
    assert excess_text({"size": -0.5, "memory": 0.0}) == ""
    assert excess_text({"size": 0.25}) == "the engine's size is 25 % above its limit"
    assert "memory is not known" in excess_text({"memory": math.inf, "size": -1.0})
