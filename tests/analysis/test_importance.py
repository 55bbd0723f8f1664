import math

import numpy as np
import pytest

from gpt_search import InputError, Observation, Outcome, simulate
from gpt_search.analysis.importance import COLUMNS, PED_ANOVA_TRIALS, knob_importance
from gpt_search.domain.history import History
from gpt_search.domain.space import Dimension, SearchSpace

SPACE = SearchSpace([Dimension(f"knob:{i}", ("off", "on", "auto"), 0) for i in range(8)])
# log-latency by knob and code: knob 2 gains 20 % when on, knob 5 loses 10 % when auto, the others do nothing.
EFFECT = np.zeros((8, 3))
EFFECT[2, 1], EFFECT[5, 2] = math.log(0.8), math.log(1.1)
AT = np.arange(8)


def measure(noise: float, fails=lambda codes: False):
    def evaluate(codes, rng, until):
        if fails(codes):
            return Observation(Outcome.CRASH)
        value = 5.0 * math.exp(EFFECT[AT, codes].sum() + rng.normal(0, noise))
        return Observation(Outcome.OK, value, -1.0, error_ms=max(noise, 1e-4) * value)

    return evaluate


def study(strategy: str, trials: int, noise: float = 0.01, **kwargs) -> History:
    return simulate(SPACE, strategy, measure(noise, **kwargs), trials=trials, seed=3).history


def test_single_changes_are_read_directly():
    table = knob_importance(study("fast", 100))
    assert tuple(table.columns) == COLUMNS
    assert table["knob"].tolist()[:2] == ["knob:2", "knob:5"]
    assert set(table["method"]) == {"single change"}
    first = table.iloc[0]
    assert (
        first["value"] == "on" and first["low"] < 0.8 < first["high"] and first["ratio"] == pytest.approx(0.8, rel=0.05)
    )
    assert table["importance"].sum() == pytest.approx(1.0)
    assert table["importance"][0] > 0.5 > table["importance"][2]


def test_mean_effects_average_the_other_knobs_out():
    table = knob_importance(study("random", 90))
    assert (table["method"] == "mean effect").all()
    assert table["knob"][0] == "knob:2" and table["value"][0] == "on"
    assert table["low"][0] < 0.8 < table["high"][0]


def test_intervals_of_mean_effects_cover_the_truth():
    covered = []
    for seed in range(40):
        history = simulate(SPACE, "random", measure(0.02), trials=60, seed=seed).history
        table = knob_importance(history).set_index("knob")
        for name, number in (("knob:2", 2), ("knob:0", 0)):
            row = table.loc[name]
            code = SPACE.values[number].index(row["value"])
            covered.append(row["low"] <= math.exp(EFFECT[number, code]) <= row["high"])
    # 95 % intervals; for knob:0 the larger of two noisy effects is shown, which misses somewhat more often.
    assert np.mean(covered) > 0.85


def test_many_trials_are_read_by_ped_anova():
    table = knob_importance(study("random", PED_ANOVA_TRIALS + 200))
    assert (table["method"] == "PED-ANOVA").all()
    assert table["knob"][0] == "knob:2"
    assert table["importance"].sum() == pytest.approx(1.0)
    assert table["ratio"][0] == pytest.approx(0.8, rel=0.05)


def test_a_large_effect_that_is_uncertain_does_not_outrank_a_certain_one():
    history = History(SPACE)
    rows = [((), 1.0, 0.01), ((0,), 0.8, 0.01), ((1,), 1.5, 1.5)]
    for trial, (changed, value, error) in enumerate(rows):
        codes = SPACE.default.copy()
        codes[list(changed)] = 1
        history.append(trial, codes, Observation(Outcome.OK, value, error_ms=error))
    assert knob_importance(history)["knob"].tolist() == ["knob:0", "knob:1"]


def test_failures_are_counted_and_a_knob_that_always_fails_has_no_ratio():
    table = knob_importance(study("fast", 100, fails=lambda codes: codes[4] != 0)).set_index("knob")
    assert table.loc["knob:4", "failed"] == 1.0
    assert math.isnan(table.loc["knob:4", "ratio"])
    assert table.loc["knob:4", "method"] == "none" and table.loc["knob:4", "trials"] == 0
    assert table.loc["knob:3", "failed"] == 0.0


def test_nothing_changed_gives_an_empty_table():
    history = History(SPACE)
    history.append(0, SPACE.default, Observation(Outcome.OK, 1.0))
    table = knob_importance(history)
    assert len(table) == 0 and tuple(table.columns) == COLUMNS


def test_without_errors_one_trial_gives_a_ratio_and_no_interval():
    history = History(SPACE)
    history.append(0, SPACE.default, Observation(Outcome.OK, 2.0))
    changed = SPACE.default.copy()
    changed[0] = 1
    history.append(1, changed, Observation(Outcome.OK, 1.0))
    row = knob_importance(history).iloc[0]
    assert row["ratio"] == pytest.approx(0.5) and math.isnan(row["low"]) and row["importance"] == 0


def test_a_study_without_a_timed_reference_is_refused():
    with pytest.raises(InputError, match="reference"):
        knob_importance(History(SPACE))
    history = History(SPACE)
    history.append(0, SPACE.default, Observation(Outcome.CRASH))
    with pytest.raises(InputError, match="reference"):
        knob_importance(history)
