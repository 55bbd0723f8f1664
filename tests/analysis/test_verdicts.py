"""Sentences say what the tests say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_tables import simulated, table

from gpt_search.analysis.comparisons import paired_comparisons
from gpt_search.analysis.ranks import friedman
from gpt_search.analysis.regret import regret_table
from gpt_search.analysis.summary import summarise_comparison
from gpt_search.analysis.verdicts import findings, none_recommended, p_text, power_sentences, rank_sentence
from gpt_search.domain.errors import InputError


def sentence(frame: pd.DataFrame, control: str = "c", **options: object) -> str:
    (found,) = findings(paired_comparisons(frame, control, **options))  # type: ignore[arg-type]
    return found.sentence


BETTER, CONTROL = [-0.5] * 10, [-0.4] * 10
MIXED = [-0.4, -0.39, -0.41, -0.4, -0.38, -0.42, -0.4, -0.4, -0.41, -0.39]


def test_one_task() -> None:
    text = sentence(table({("t", "a"): BETTER, ("t", "c"): CONTROL}))
    assert text == "a beats c at 100 builds on 1 of 1 task (Holm p = 0.002, A12 = 1.00, mean 9.5 % faster)."
    text = sentence(table({("t", "a"): CONTROL, ("t", "c"): BETTER}))
    assert text == "a is worse than c at 100 builds on 1 of 1 task (Holm p = 0.002, A12 = 0.00, mean 11 % slower)."
    text = sentence(table({("t", "a"): MIXED, ("t", "c"): CONTROL}))
    assert text == "a is not distinguishable from c at 100 builds on the one task (smallest Holm p = 1)."


def test_several_tasks() -> None:
    studies = {("t", "a"): BETTER, ("u", "a"): [-0.6] * 10, ("v", "a"): [-0.3] * 10, ("w", "a"): MIXED}
    frame = table(studies | {(task, "c"): CONTROL for task in "tuvw"})
    assert sentence(frame) == (
        "a beats c at 100 builds on 2 of 4 tasks (Holm p at most 0.0079, A12 = 1.00, mean 9.5 to 18 % faster); "
        "it is worse on 1 (Holm p = 0.0079, A12 = 0.00, mean 11 % slower); not distinguishable on 1 (w)."
    )


def test_p_values_too_small_to_tell_apart() -> None:
    studies = {(task, "a"): BETTER * 2 for task in "tu"} | {(task, "c"): CONTROL * 2 for task in "tu"}
    text = sentence(table(studies))
    assert text == "a beats c at 100 builds on 2 of 2 tasks (Holm p < 0.0001 on each, A12 = 1.00, mean 9.5 % faster)."


def test_all_tied() -> None:
    frame = table({(task, s): CONTROL for task in "tu" for s in "ac"})
    expected = "a is not distinguishable from c at 100 builds on any of 2 tasks (smallest Holm p = 1)."
    assert sentence(frame) == expected


def test_missing_studies_are_told() -> None:
    studies = {("t", "a"): BETTER, ("t", "c"): CONTROL, ("u", "c"): CONTROL}
    frame = table(studies)
    text = sentence(frame[~((frame["strategy"] == "a") & (frame["seed"] == 0))])
    assert "no pair of studies on 1 (u)" in text and "1 of 10 pairs lack a study" in text
    only = table({("t", "a"): BETTER, ("u", "c"): CONTROL})
    assert sentence(only) == "a cannot be compared with c at 100 builds: no seed of any task has both."


def test_a_win_within_the_floor_is_told() -> None:
    frame = table({("t", "a"): [-0.401] * 10, ("t", "c"): CONTROL})
    assert sentence(frame).endswith("; on 1 (t) the difference is within the noise floor of one measurement.")


@given(st.integers(0, 10_000), st.integers(2, 14), st.floats(0, 0.4))
@settings(max_examples=20, deadline=None)
def test_no_sentence_claims_what_no_test_showed(seed: int, seeds: int, gone: float) -> None:
    frame = simulated({"a": 0, "b": 3, "c": 0}, tasks=3, seeds=seeds, seed=seed)
    kept = np.random.default_rng(seed).random(len(frame)) >= gone
    kept[[0, -1]] = True  # a control and another strategy there must be
    frame = frame[kept].reset_index(drop=True)
    if set(frame["strategy"]) < {"a", "c"}:
        return
    rows = paired_comparisons(frame, "c", resamples=50)
    for found in findings(rows):
        mine = rows[rows["strategy"] == found.strategy]
        assert len(found.better) + len(found.worse) + len(found.same) + len(found.no_data) == len(mine)
        shown = mine[(mine["holm"] <= 0.05)]
        assert set(found.better) | set(found.worse) == set(shown["task"])
        assert ("beats" in found.sentence) == bool(found.better)
        assert ("worse" in found.sentence) == bool(found.worse)
        assert "nan" not in found.sentence


def test_p_values_never_look_smaller_than_they_are() -> None:
    assert p_text(0.05) == "= 0.05" and p_text(0.0501) == "= 0.051" and p_text(0.0499) == "= 0.05"
    assert p_text(1.0) == "= 1" and p_text(0.996) == "= 1" and p_text(0.00010001) == "= 0.00011"
    assert p_text(0.0) == "< 0.0001" and p_text(0.00332) == "= 0.0034"


def test_too_few_seeds_are_told_beforehand() -> None:
    few = paired_comparisons(simulated({"a": 9, "b": 9, "c": -9}, tasks=2, seeds=5), "c")
    assert set(few["outcome"]) == {"not distinguishable"}
    (text,) = power_sentences(few, 0.05)
    assert text == (
        "At 100 builds no difference can be shown: 5 pairs of studies give p = 0.062 at best, and Holm's adjustment is "
        "over 4 comparisons; 8 seeds are the fewest that can."
    )
    enough = paired_comparisons(simulated({"a": 9, "b": 9, "c": -9}, tasks=2, seeds=8), "c")
    assert power_sentences(enough, 0.05) == [] and set(enough["outcome"]) == {"better"}


def test_ranks_over_tasks() -> None:
    frame = simulated({"a": 6, "b": 6, "c": 0}, tasks=12, seeds=10, seed=3)
    result = friedman(frame, 100)
    text = rank_sentence(result)
    assert text.startswith("Over 12 tasks at 100 builds the strategies differ (Friedman test")
    first, second = result.ranks.index[:2]
    assert f"{first} ({result.ranks[first]:.2f}) ranks better than c (3.00)" in text
    assert f"the best, {first}, is not distinguishable from {second}" in text
    none = rank_sentence(friedman(simulated({"a": 0, "b": 0, "c": 0}, tasks=12, seeds=10), 100))
    assert "not distinguishable" in none and "better" not in none


def test_studies_without_a_recommendation() -> None:
    frame = table({("t", "a"): [np.nan, -0.1], ("t", "b"): [-0.1, -0.1]})
    assert none_recommended(regret_table(frame)) == [
        "a recommended nothing in 1 of 2 studies at 100 builds; the reference counts for them."
    ]


@pytest.mark.parametrize("axis", ["trials", "seconds"])
def test_the_axis_is_named(axis: str) -> None:
    rows = paired_comparisons(table({("t", "a"): BETTER, ("t", "c"): CONTROL}), "c")
    assert f"at 100 {axis}" in findings(rows, axis)[0].sentence


def test_what_failed_altogether_counts_against_every_claim() -> None:
    """Six pairs give p = 0.031: enough for one comparison, not for one of two that were declared."""
    frame = table({("t", "a"): [-0.5] * 6, ("t", "c"): [-0.4] * 6})
    assert "a beats c" in " ".join(summarise_comparison(frame, "c").sentences)
    for declared in ({"strategies": ("a", "b", "c")}, {"tasks": ("t", "u")}):
        summary = summarise_comparison(frame, "c", **declared)  # type: ignore[arg-type]
        text = " ".join(summary.sentences)
        assert "a beats c" not in text and "a is not distinguishable from c" in text
        assert len(summary.tables["comparisons"]) == 2 and (summary.tables["comparisons"]["outcome"] == "no data").any()
    text = " ".join(summarise_comparison(frame, "c", strategies=("a", "b", "c")).sentences)
    assert "b has no finished study" in text and "b cannot be compared with c" in text


def test_a_control_without_a_study_is_named() -> None:
    frame = table({("t", "a"): BETTER, ("t", "b"): CONTROL})
    summary = summarise_comparison(frame, "c", strategies=("a", "b", "c"))
    assert summary.sentences[0] == "The control c has no finished study, so no strategy was tested against it."
    with pytest.raises(InputError, match="'c'"):
        summarise_comparison(frame, "c")
