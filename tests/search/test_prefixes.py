from __future__ import annotations

import numpy as np
import pytest

from gpt_search import History, InputError, Phase, load_strategy, planted, simulate
from gpt_search.domain.budget import row_at
from gpt_search.search.prefixes import AsLive, Seen, charged, recommendations
from gpt_search.search.strategy import recommended_rows


def test_a_known_engine_is_not_timed_again() -> None:
    landscape = planted("inert", 1)
    measure = AsLive(landscape.measure)
    rng = np.random.default_rng(0)
    reference = measure(landscape.space.default, rng, Phase.TIME)
    same = landscape.space.default.copy()
    knob = int(landscape.inert.argmax())
    same[knob] = (same[knob] + 1) % landscape.space.cardinalities[knob]
    taken_over = measure(same, rng, Phase.TIME)
    assert taken_over.latency_ms == reference.latency_ms and "time" not in taken_over.cost_s
    again = measure(landscape.space.default, rng, Phase.TIME)  # the same route is timed longer
    assert again.latency_ms != reference.latency_ms and "time" in again.cost_s


def test_a_prefix_recommends_what_the_shorter_study_does() -> None:
    landscape = planted("sparse", 3, 40)
    measure = Seen(AsLive(landscape.measure))
    simulate(landscape.space, "sparse_random", measure, trials=None, builds=40, seed=1, noise=landscape.noise)
    builds, seconds = charged(measure.seen)
    ends = row_at("builds", builds, seconds, [10, 25, 40, 99]).tolist()
    found = recommendations(lambda: load_strategy("sparse_random"), landscape.space, measure.seen, ends, 0.012)
    assert sorted(found) == sorted(set(ends))
    for budget, end in zip([10, 25, 40], ends, strict=False):
        alone = Seen(AsLive(landscape.measure))
        done = simulate(
            landscape.space, "sparse_random", alone, trials=None, builds=budget, seed=1, noise=landscape.noise
        )
        assert len(done) == end + 1 and found[end] == done.recommended
        assert done.history.builds == builds[end]
        assert done.history.total_cost_s == pytest.approx(seconds[end])


def test_a_strategy_that_recommends_for_itself_is_made_anew_for_every_row() -> None:
    landscape = planted("sparse", 3, 12)
    measure, made = Seen(landscape.measure), []

    class Own:
        def __init__(self) -> None:
            made.append(self)
            self.calls = 0

        def propose(self, *_: object) -> None:
            return None

        def recommend(self, history: History, k: int) -> list[int]:
            self.calls += 1
            return recommended_rows(load_strategy("random"), history, k) if len(history) > 3 else []

    simulate(landscape.space, "random", measure, trials=6)
    found = recommendations(Own, landscape.space, measure.seen, [0, 5, 50])
    assert found[0] is None and set(found) == {0, 5, 6}
    assert len(made) == 3 and {o.calls for o in made} == {1}


def test_an_axis_that_is_none() -> None:
    with pytest.raises(InputError, match="not in 'hours'"):
        row_at("hours", [0], [0], [1])
