"""Histories: append-only, with pending rows, constant-time look-ups, and views that stay valid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import History, Observation, Outcome, Phase, SearchSpace
from gpt_search.domain.space import Dimension

SPACE = SearchSpace([Dimension(n, ("x", "y", "z"), 0) for n in "abc"])


def codes(*values: int) -> np.ndarray:
    return np.asarray(values, np.int16)


@dataclass
class Step:
    codes: tuple[int, ...]
    until: Phase
    seen: Observation


numbers = st.none() | st.floats(0.1, 9.0)
steps = st.builds(
    Step,
    st.tuples(*[st.integers(0, 2)] * 3),
    st.sampled_from(Phase),
    st.builds(
        Observation,
        st.sampled_from(Outcome),
        numbers,
        numbers,
        st.none() | st.sampled_from("pqr"),
        st.dictionaries(st.sampled_from(["start", "build", "gate", "time"]), st.floats(0, 5)),
        numbers,
        st.none() | st.integers(0, 9),
        st.integers(0, 99),
    ),
)


def nan(value: float | None) -> float:
    return math.nan if value is None else value


# -- what the rows say --------------------------------------------------------------------------------------
@given(st.lists(steps, max_size=30), st.data())
def test_a_history_is_what_a_plain_list_would_be(given_steps: list[Step], data: st.DataObject) -> None:
    """Trials start in order, finish in any order; the model is a list of finished (trial, step)."""
    history, model, pending = History(SPACE), [], {}
    waiting = list(enumerate(given_steps))
    while waiting or pending:
        if waiting and (not pending or data.draw(st.booleans())):
            trial, step = waiting.pop(0)
            assert history.next_trial == trial
            history.start(trial, codes(*step.codes), step.until)
            pending[trial] = step
        else:
            trial = data.draw(st.sampled_from(sorted(pending)))
            assert history.finish(trial, pending[trial].seen) == len(model)
            model.append((trial, pending.pop(trial)))
        assert history.pending_trials == tuple(sorted(pending)) and history.n_pending == len(pending)
        assert history.pending.tolist() == [list(pending[t].codes) for t in sorted(pending)]
        assert history.pending.shape == (len(pending), 3)
        done = [s.codes for _, s in model]
        for row in {*done, *(s.codes for s in pending.values()), (2, 2, 2)}:
            running = row in [s.codes for s in pending.values()]
            assert history.is_pending(codes(*row)) == running
            assert history.contains(codes(*row)) == (running or row in done)
            assert history.rows_of(codes(*row)) == tuple(i for i, d in enumerate(done) if d == row)
    done = [s.codes for _, s in model]
    seen = [s.seen for _, s in model]
    assert len(history) == len(model)
    assert history.codes.tolist() == [list(c) for c in done]
    assert history.trial.tolist() == [t for t, _ in model]
    assert history.until.tolist() == [s.until for _, s in model]
    assert history.outcome.tolist() == [o.outcome for o in seen]
    np.testing.assert_equal(history.value, [nan(o.latency_ms) for o in seen])
    np.testing.assert_equal(history.error, [nan(o.error_ms) for o in seen])
    np.testing.assert_equal(history.violation, [nan(o.violation) for o in seen])
    assert history.feasible.tolist() == [o.outcome is Outcome.OK and o.latency_ms is not None for o in seen]
    prints = list(dict.fromkeys(o.fingerprint for o in seen if o.fingerprint is not None))
    assert history.fingerprint.tolist() == [-1 if o.fingerprint is None else prints.index(o.fingerprint) for o in seen]
    distinct = list(dict.fromkeys(done))
    assert history.route.tolist() == [distinct.index(c) for c in done] and history.n_routes == len(distinct)
    assert history.samples.tolist() == [t if s.seen.timed_as is None else s.seen.timed_as for t, s in model]
    assert history.rounds.tolist() == [o.rounds for o in seen]
    for phase in ("start", "build", "gate", "time", "other"):
        assert history.cost(phase).tolist() == [o.cost_s.get(phase, 0.0) for o in seen]
        assert (phase in history.phases_of_cost) == any(phase in o.cost_s for o in seen)
    assert history.total_cost_s == pytest.approx(sum(sum(o.cost_s.values()) for o in seen[1:]))
    assert history.builds == sum(not o.cost_s or "build" in o.cost_s for o in seen[1:])
    settled = {s.codes for _, s in model if s.until is Phase.TIME or s.seen.outcome is not Outcome.OK}
    assert history.settled == len(settled)
    assert history.summary() == {o.name: n for o in Outcome if (n := [s.outcome for s in seen].count(o))}

    # Rebuilt from its rows it is the same history.
    rebuilt = History(SPACE)
    for trial, step in model:
        rebuilt.append(trial, codes(*step.codes), step.seen, step.until)
    for column in (
        "codes",
        "value",
        "error",
        "violation",
        "outcome",
        "until",
        "fingerprint",
        "trial",
        "route",
        "samples",
        "rounds",
    ):
        np.testing.assert_array_equal(getattr(rebuilt, column), getattr(history, column))
    for name in ("settled", "builds", "total_cost_s", "n_routes", "next_trial", "phases_of_cost"):
        assert getattr(rebuilt, name) == getattr(history, name)


def test_an_empty_history_has_empty_columns() -> None:
    history = History(SPACE, noise=0.01)
    assert len(history) == 0 and history.next_trial == 0 and history.noise == 0.01 and history.reference == 0
    assert history.codes.shape == (0, 3) and history.pending.shape == (0, 3)
    assert history.codes.dtype == history.pending.dtype == np.int16
    assert history.cost("build").shape == (0,) and history.summary() == {}
    assert not history.contains(codes(0, 0, 0)) and history.rows_of(codes(0, 0, 0)) == ()


# -- growth ---------------------------------------------------------------------------------------------------
def test_growing_keeps_old_views_and_every_row() -> None:
    space = SearchSpace([Dimension(f"k{i}", ("x", "y"), 0) for i in range(12)])
    history = History(space)
    views, copies = [], []
    for t in range(1000):
        seen = Observation(
            Outcome(t % 6), float(t) if t % 6 == 0 else None, None, f"f{t % 7}", {"build": t, f"p{t // 400}": 1}
        )
        history.append(t, space.codes_at(t), seen)
        if t in (0, 10, 63, 64, 200, 511, 512):
            columns = (history.codes, history.value, history.outcome, history.fingerprint, history.cost("build"))
            views.append(columns)
            copies.append([c.copy() for c in columns])
    for seen_then, kept in zip(views, copies, strict=True):
        for view, copy in zip(seen_then, kept, strict=True):
            np.testing.assert_array_equal(view, copy)
            np.testing.assert_array_equal(view, copy)
    assert [space.index_of(c) for c in history.codes] == list(range(1000))
    assert np.isnan(history.value).sum() == sum(t % 6 != 0 for t in range(1000))
    assert history.cost("build").sum() == sum(range(1000)) and history.cost("p1").sum() == 400
    assert history.cost("p2")[:800].sum() == 0 and history.fingerprint.max() == 6
    assert np.isnan(history.error).all() and np.isnan(history.violation).all()


# -- pending rows -----------------------------------------------------------------------------------------------
def test_one_route_may_be_pending_twice() -> None:
    history = History(SPACE)
    row = codes(1, 0, 0)
    history.start(0, row, Phase.TIME)
    history.start(1, row, Phase.BUILD)
    history.finish(0, Observation(Outcome.OK, 1.0))
    assert history.is_pending(row) and history.has_pending(1) and not history.has_pending(0)
    history.finish(1, Observation(Outcome.OK))
    assert not history.is_pending(row) and history.contains(row) and history.rows_of(row) == (0, 1)


def test_trial_numbers_are_used_once() -> None:
    history = History(SPACE)
    history.start(0, codes(0, 0, 0), Phase.TIME)
    with pytest.raises(ValueError, match="trial 0 is already pending"):
        history.start(0, codes(1, 0, 0), Phase.TIME)
    with pytest.raises(KeyError):
        history.finish(7, Observation(Outcome.OK))
    assert history.next_trial == 1 and history.finish(0, Observation(Outcome.OK)) == 0


def test_a_build_only_look_does_not_settle_a_route() -> None:
    history = History(SPACE)
    history.append(0, codes(0, 0, 0), Observation(Outcome.OK, 1.0))
    history.append(1, codes(1, 0, 0), Observation(Outcome.OK), Phase.BUILD)
    assert history.settled == 1
    history.append(2, codes(1, 0, 0), Observation(Outcome.OK), Phase.GATE)
    assert history.settled == 1
    history.append(3, codes(1, 0, 0), Observation(Outcome.OK, 2.0), Phase.TIME)
    history.append(4, codes(2, 0, 0), Observation(Outcome.CRASH), Phase.BUILD)
    assert history.settled == 3


# -- read-only --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grown", [False, True])
def test_what_is_handed_out_cannot_be_written_to(grown: bool) -> None:
    history = History(SPACE)
    for trial in range(100 if grown else 1):
        history.append(trial, codes(0, 0, 0), Observation(Outcome.OK, 1.0, cost_s={"build": 1.0}))
    names = ("codes", "value", "error", "violation", "outcome", "until", "fingerprint", "trial", "route")
    for array in (*(getattr(history, name) for name in names), history.cost("build")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert history.value[0] == 1.0
