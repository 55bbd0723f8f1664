import json
import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.accuracy.gate import (
    DEFAULT_TOLERANCES,
    Tolerances,
    check_outputs,
    judge,
    parse_tolerances,
    reference_misses,
    suggested_tolerance,
    worst,
)
from gpt_search.accuracy.losses import METRICS
from gpt_search.domain.errors import InputError

_limits = st.floats(min_value=1e-300, max_value=1e300)
_names = st.text(min_size=1)


def losses(**by_output: float) -> dict[str, dict[str, float]]:
    return {o: {**dict.fromkeys(METRICS, 0.0), "l1": x} for o, x in by_output.items()}


@given(st.sampled_from(METRICS), _limits, st.dictionaries(_names, _limits))
def test_round_trips(metric: str, default: float, by_output: dict[str, float]) -> None:
    """Through JSON, and through the texts of the command line, whatever the names hold."""
    tolerances = Tolerances(metric, default, by_output)
    assert Tolerances.from_json(json.loads(json.dumps(tolerances.to_json()))) == tolerances
    texts = [repr(default), *(f"{n}={x!r}" for n, x in by_output.items())]
    assert parse_tolerances(texts, metric) == tolerances


def test_names_with_equals_and_colons() -> None:
    found = parse_tolerances(["a=b:0=1e-3", ".5"], "l1")
    assert found == Tolerances("l1", 0.5, {"a=b:0": 1e-3})
    assert (found.of("a=b:0"), found.of("a")) == (1e-3, 0.5)


def test_without_a_general_value() -> None:
    for metric in METRICS:
        assert parse_tolerances([], metric).default == DEFAULT_TOLERANCES[metric]
    assert parse_tolerances(["y=2"], "cos").of("other") == DEFAULT_TOLERANCES["cos"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["0"], "'0' is not a positive, finite number"),
        (["-1"], "positive"),
        (["nan"], "positive"),
        (["y=inf"], "positive"),
        (["y="], "positive"),
        (["1e999"], "positive"),
        (["1_0"], "positive"),
        (["y"], "OUTPUT=0.01"),
        (["y:0.1"], "OUTPUT=0.01"),
        (["=0.1"], "no output name"),
        (["0.1", "0.2"], r"0.2: a tolerance for all outputs was already given \(0.1\)"),
        (["y=0.1", "y=0.1"], "'y' already has"),
    ],
)
def test_what_cannot_be_read(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_tolerances(texts, "l1")


def test_unknown_metric() -> None:
    with pytest.raises(InputError, match="did you mean 'lInf'"):
        parse_tolerances([], "linf")
    with pytest.raises(InputError, match="l0, l1, l2, lInf, cos"):
        Tolerances("mse", 1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_limits_must_be_positive_and_finite(value: float) -> None:
    with pytest.raises(InputError, match="positive"):
        Tolerances("l1", value)
    with pytest.raises(InputError, match="output 'y'"):
        Tolerances("l1", 1.0, {"y": value})


def test_unknown_output_names_the_nearest() -> None:
    tolerances = parse_tolerances(["logit=0.1"], "l1")
    with pytest.raises(InputError, match=r"outputs are logits, pooled; did you mean 'logits'"):
        check_outputs(tolerances, ["logits", "pooled"])
    check_outputs(parse_tolerances(["logits=0.1"], "l1"), ["logits", "pooled"])


def test_the_largest_violation_over_pairs_and_outputs() -> None:
    tolerances = Tolerances("l1", 0.1, {"z": 1.0})
    found = worst([losses(y=0.05, z=0.5), losses(y=0.09, z=0.9)], tolerances)
    assert found == (1, "y", 0.09, 0.1)
    assert judge([losses(y=0.05, z=0.5), losses(y=0.09, z=0.9)], tolerances) == 0.09 - 0.1
    assert worst([losses(y=0.05, z=1.5), losses(y=0.3, z=0.9)], tolerances) == (0, "z", 1.5, 1.0)


def test_only_the_chosen_metric_counts() -> None:
    assert judge([losses(y=5.0)], Tolerances("l2", 1.0)) == -1.0


def test_equal_fails() -> None:
    assert judge([losses(y=0.1)], Tolerances("l1", 0.1)) == 0


@given(st.floats(0, 1e300), _limits)
def test_feasible_exactly_when_below(loss: float, limit: float) -> None:
    assert (judge([losses(y=loss)], Tolerances("l1", limit)) < 0) == (loss < limit)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_infeasible_wherever_it_stands(bad: float) -> None:
    for pairs in ([losses(y=bad, z=0.0)], [losses(y=0.0, z=bad)], [losses(y=9.0), losses(y=bad), losses(y=9.0)]):
        assert judge(pairs, Tolerances("l1", 1e300)) == math.inf


def test_nothing_to_judge_is_no_pass() -> None:
    for nothing in ([], [{}], [losses(y=0.0), {}]):
        with pytest.raises(ValueError, match="cannot be judged"):
            judge(nothing, Tolerances("l1", 1.0))


def test_a_reference_within_its_tolerance() -> None:
    assert reference_misses([losses(y=0.05)], Tolerances("l1", 0.1)) is None


def test_a_tolerance_that_the_reference_misses_names_output_loss_flag_and_value() -> None:
    found = [losses(y=0.2, ok=0.0, **{"a b": 0.5}), losses(y=0.3, ok=0.0, **{"a b": 0.4})]
    text = reference_misses(found, Tolerances("l1", 0.1, {"a b": 0.3}))
    assert text is not None
    assert "\n" not in text
    assert "output 'a b' (golden pair 0)" in text or "output 'y' (golden pair 1)" in text
    # Following the advice makes the reference feasible.
    words = shlex.split(text[text.index("--tolerance ") : text.index(", or another")])
    assert words[::2] == ["--tolerance"] * 2
    assert reference_misses(found, parse_tolerances(words[1::2], "l1")) is None


def test_a_reference_without_a_finite_loss_cannot_be_helped_by_a_tolerance() -> None:
    text = reference_misses([losses(y=math.inf)], Tolerances("l1", 0.1))
    assert text is not None
    assert "--tolerance" not in text
    assert "'y'" in text and "--golden" in text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_suggested_tolerance_is_above_the_loss_and_short(loss: float) -> None:
    found = suggested_tolerance(loss)
    assert 1.4 * loss < found < 1.6 * loss
    assert float(f"{found:g}") == found
