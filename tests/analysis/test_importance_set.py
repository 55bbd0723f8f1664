import math

import numpy as np
import pytest

from gpt_search import InputError, Observation, Outcome
from gpt_search.analysis.importance_data import Trials, adaptivity, trials_of
from gpt_search.analysis.importance_optuna import METHODS as OPTUNA
from gpt_search.analysis.importance_optuna import optuna_importance
from gpt_search.analysis.importance_set import METHODS, measure_importance
from gpt_search.analysis.importance_sparse import interactions, sparse_effects
from gpt_search.domain.history import History
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.testing import NOT_LEARNING

# Twelve knobs: their numbers in alphabetical order are not their order, which measures must not mix up.
SPACE = SearchSpace([Dimension(f"knob:{i}", ("off", "on", "auto"), 0) for i in range(12)])
LOSS, GAIN, TOGETHER = math.log(1.10), math.log(0.8), math.log(0.9)


def truth(codes: np.ndarray) -> np.ndarray:
    """Knob 2 gains 20 % when on, knob 11 loses 10 % when auto, 3 and 4 gain another 10 % when both are on."""
    both = (codes[:, 3] == 1) & (codes[:, 4] == 1)
    return GAIN * (codes[:, 2] == 1) + LOSS * (codes[:, 11] == 2) + TOGETHER * both


def random_trials(n: int, seed: int = 0, noise: float = 0.01) -> Trials:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, (n, len(SPACE))).astype(np.int16)
    codes[0] = 0
    y = truth(codes) + np.r_[0.0, rng.normal(0, noise, n - 1)]
    return Trials(SPACE, codes, y, np.arange(len(SPACE)))


def history_of(trials: Trials) -> History:
    history = History(SPACE)
    for i, (codes, y) in enumerate(zip(trials.codes, trials.y, strict=True)):
        history.append(i, codes, Observation(Outcome.OK, 5.0 * math.exp(y), error_ms=0.01))
    return history


def test_sparse_linear_finds_the_effects_and_their_sizes():
    fit = sparse_effects(random_trials(300), resamples=40)
    table = fit.effects.set_index(["knob", "value"])
    for key, ratio in ((("knob:2", "on"), 0.8), (("knob:11", "auto"), 1.1)):
        row = table.loc[key]
        assert row["low"] <= ratio <= row["high"] and row["selected"] == 1.0
        assert row["high"] - row["low"] < 0.05
    assert fit.importance.argmax() == 2 and fit.importance.sum() == pytest.approx(1.0)
    assert fit.explained > 0.9 and fit.resampled.shape == (40, 12)


def few_engines(seed: int, deviation: float = 0.03) -> Trials:
    """256 routes of which five knobs decide what engine they give: 32 engines, each off by an error of its own."""
    rng = np.random.default_rng(seed)
    codes = np.zeros((256, len(SPACE)), np.int16)
    codes[:, :8] = np.arange(256)[:, None] >> np.arange(8) & 1
    engine = codes[:, :5] @ (1 << np.arange(5))
    y = GAIN * (codes[:, 2] == 1) + rng.normal(0, deviation, 32)[engine]
    return Trials(SPACE, codes, y, np.arange(8), engine.astype(np.intp))


def test_routes_of_one_engine_are_no_independent_data() -> None:
    wrong = {"as engines": [0, 0], "as routes": [0, 0]}
    for seed in range(12):
        trials = few_engines(seed)
        for name, given in (("as engines", trials), ("as routes", trials._replace(engine=None))):
            table = sparse_effects(given, 40, seed).effects
            table = table[table["knob"] != "knob:2"]
            wrong[name][0] += int(((table["low"] > 1) | (table["high"] < 1)).sum())
            wrong[name][1] += int((interactions(given, np.arange(5))["holm"] < 0.05).sum())
    # Of 84 effects that are nought, and of 12 families of pairs that do nothing together.
    assert wrong["as engines"][0] <= 12 and wrong["as engines"][1] <= 3
    assert wrong["as routes"][0] >= 25 and wrong["as routes"][1] >= 20  # what the errors would be


def test_a_history_knows_which_routes_share_an_engine() -> None:
    history = History(SPACE)
    for i, (code, timed_as) in enumerate([(0, None), (1, None), (2, 1), (3, None)]):
        codes = np.zeros(len(SPACE), np.int16)
        codes[0], codes[1] = code % 3, code // 3
        seen = Observation(Outcome.OK, 5.0 + i, fingerprint=str(i), error_ms=0.01, timed_as=timed_as, rounds=5)
        history.append(i, codes, seen)
    assert trials_of(history).engines.tolist() == [0, 1, 1, 2]


def test_intervals_of_sparse_effects_cover_what_is_zero_and_what_is_not():
    covered = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 2, (80, 12)).astype(np.int16)
        y = GAIN * (codes[:, 2] == 1) + rng.normal(0, 0.02, 80)
        table = sparse_effects(Trials(SPACE, codes, y, np.arange(12)), 60, seed).effects.set_index("knob")
        for name, ratio in (("knob:2", 0.8), ("knob:0", 1.0), ("knob:7", 1.0)):
            covered.append(table.loc[name, "low"] <= ratio <= table.loc[name, "high"])
    assert np.mean(covered) > 0.85


def test_importance_of_sparse_effects_does_not_depend_on_how_often_a_value_was_tried():
    rng = np.random.default_rng(1)
    codes = (rng.random((600, 12)) < np.where(np.arange(12) == 2, 0.1, 0.5)).astype(np.int16)
    y = 0.1 * codes[:, 2] + 0.1 * codes[:, 5] + rng.normal(0, 0.002, 600)
    share = sparse_effects(Trials(SPACE, codes, y, np.arange(12)), 0).importance
    assert share[2] == pytest.approx(share[5], rel=0.1)


def test_an_interaction_is_found_and_others_are_not():
    table = interactions(random_trials(500), np.array([2, 3, 4, 11]))
    found = table[table["holm"] < 0.01]
    assert found[["first", "second"]].to_numpy().tolist() == [["knob:3", "knob:4"]]
    row = found.iloc[0]
    assert (row["first_value"], row["second_value"]) == ("on", "on")
    assert row["low"] < 0.9 < row["high"] or row["ratio"] == pytest.approx(0.9, abs=0.02)
    assert len(table) == 6 and (table["holm"] >= table["p"]).all()


def test_pairs_that_no_route_has_are_not_known():
    trials = random_trials(60)
    keep = ~((trials.codes[:, 3] == 1) & (trials.codes[:, 2] > 0)) & (trials.codes[:, 3] < 2) & (trials.codes[:, 2] < 2)
    few = Trials(SPACE, trials.codes[keep], trials.y[keep], trials.varied)
    row = interactions(few, np.array([2, 3])).iloc[0]
    assert math.isnan(row["ratio"]) and math.isnan(row["holm"]) and row["trials"] == 0


@pytest.mark.parametrize("method", OPTUNA)
def test_optunas_measures_are_given_to_the_right_knobs(method):
    trials = random_trials(250, noise=0.001)
    for knobs in (None, [11, 2, 0, 7, 10]):
        found = optuna_importance(trials.codes, trials.y, [3] * 12, method, knobs)
        assert sorted(found, key=found.__getitem__)[-1] == 2, found
        assert sum(found.values()) == pytest.approx(1.0)
    assert optuna_importance(trials.codes, np.zeros(250), [3] * 12, method) == dict.fromkeys(range(12), 0.0)


def test_all_measures_agree_on_a_clear_case_and_say_how_stable_they_are():
    found = measure_importance(history_of(random_trials(200)), strategy="random")
    assert not found.adaptive.adaptive and found.adaptive.warning is None
    assert found.left_out == () and found.routes == 200
    for method in ("sparse", "mdi", "fanova", "ped-anova"):
        rows = found.knobs[found.knobs["method"] == method]
        assert rows["knob"].iloc[0] == "knob:2", method
        assert rows["importance"].sum() == pytest.approx(1.0)
    sparse = found.knobs[found.knobs["method"] == "sparse"].iloc[0]
    assert sparse["rank"] == sparse["rank_low"] == sparse["rank_high"] == 1
    assert sparse["low"] <= sparse["importance"] <= sparse["high"]
    assert found.stability["method"].tolist() == ["sparse", "ped-anova"]
    assert found.stability["top_kept"].between(0, 1).all()
    again = measure_importance(history_of(random_trials(200)), strategy="random")
    assert again.knobs.equals(found.knobs) and again.pairs.equals(found.pairs)


def test_resamples_may_be_asked_for_and_methods_chosen():
    history = history_of(random_trials(60))
    found = measure_importance(history, ["mdi"], resamples=3)
    assert set(found.knobs["method"]) == {"mdi"} and found.stability["resamples"].tolist() == [3]
    assert found.knobs["rank_low"].notna().any()
    with pytest.raises(InputError, match="did you mean 'mdi'"):
        measure_importance(history, ["mdii"])


def test_too_few_routes_leave_out_what_they_cannot_feed():
    found = measure_importance(history_of(random_trials(8)))
    assert set(found.left_out) == set(METHODS) - {"single"}
    assert len(found.effects) == 0
    history = History(SPACE)
    history.append(0, SPACE.default, Observation(Outcome.OK, 1.0))
    assert len(measure_importance(history).knobs) == 0
    with pytest.raises(InputError, match="reference"):
        trials_of(History(SPACE))


def test_an_adaptive_study_is_warned_about_by_name_and_by_its_data():
    trials = random_trials(200)
    steady = history_of(trials)
    for name in ("qmc:x=1", *NOT_LEARNING):
        assert adaptivity(steady, name).warning is None
    assert adaptivity(steady).shift_p > 0.01 and not adaptivity(steady).adaptive
    named = adaptivity(steady, "tpe")
    assert named.adaptive and named.warning is not None and "sparse-linear" in named.warning
    codes = trials.codes.copy()
    codes[100:, 2] = 1  # the second half has learnt
    learnt = adaptivity(history_of(Trials(SPACE, codes, trials.y, trials.varied)))
    assert learnt.adaptive and learnt.shift_p < 0.01
    assert learnt.warning is not None and "second half" in learnt.warning
