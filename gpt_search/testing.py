"""Conformance suites: what every strategy must hold, to be run on your own with pytest.

from gpt_search.testing import StrategyConformance

class TestMine(StrategyConformance):
    spec = "my_strategy.py:MyStrategy"
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from gpt_search.domain.budget import Budget
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome, Phase
from gpt_search.domain.space import Codes, Dimension, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.discovery import load_strategy
from gpt_search.search.loop import End, Trial, run_loop
from gpt_search.search.strategy import Proposal, Strategy
from gpt_search.search.threads import OneBlasThread

Measure = Callable[[Codes, int], Observation]

NOT_LEARNING = frozenset({"full", "fast", "random", "sparse_random", "qmc"})
"""Names of the strategies that come with gpt_search and do not look at results: they need not learn."""


class _Event(NamedTuple):
    """One line of a study's diary: a trial starts (observation None), or finishes."""

    trial: int
    codes: Codes
    until: Phase
    observation: Observation | None


def space_of(*cardinalities: int, pinned: int = 0) -> SearchSpace:
    """A space of knobs with so many values each, defaults spread over them, and some pinned knobs."""
    return SearchSpace(
        (Dimension(f"knob{i}", tuple(f"v{j}" for j in range(k)), i % k) for i, k in enumerate(cardinalities)),
        {f"pin{i}": "on" for i in range(pinned)},
    )


def bumpy(codes: Codes, trial: int) -> Observation:
    """A landscape with gains, interactions, failures of every kind, equal engines, and noise addressed by trial."""
    sum_ = sum(int(c) * (i + 1) for i, c in enumerate(codes.tolist()))
    cost = {"build": 0.5, "time": 0.25}
    kind = sum_ % 11
    if trial and kind == 3:
        return Observation((Outcome.BUILD_ERROR, Outcome.CRASH, Outcome.TIMEOUT, Outcome.MEMORY)[sum_ % 4], cost_s=cost)
    if trial and kind == 7:
        return Observation(Outcome.ACCURACY, None, 0.5 + sum_ % 3, f"engine{sum_}", cost)
    value = 2.0 + np.cos(sum_) + 0.05 * np.random.default_rng(trial).normal()
    return Observation(Outcome.OK, float(value), -0.5, f"engine{sum_ % 5}", cost, 0.05)


def all_equal(codes: Codes, trial: int) -> Observation:
    """Every route has the same latency."""
    return Observation(Outcome.OK, 1.0, -1.0)


def additive(codes: Codes, trial: int) -> Observation:
    """A third of the knobs help (4 to 6 %), a third harm as much, a third do nothing; 1 % of noise by trial."""
    value = math.exp(additive_truth(codes) + 0.01 * np.random.default_rng(trial).standard_normal())
    return Observation(Outcome.OK, value, -1.0, error_ms=0.01 * value)


def additive_truth(codes: Codes) -> float:
    """log(latency) of `additive` without noise: every knob that is not at `space_of`'s default counts by its place."""
    changed = [i for i, c in enumerate(codes.tolist()) if c != i % _ADDITIVE[i % len(_ADDITIVE)]]
    return sum((-0.04 - 0.01 * (i % 3), 0.04 + 0.01 * (i % 3), 0.0)[i // 2 % 3] for i in changed)


_ADDITIVE = (2, 2, 2, 2, 2, 3)


class StrategyConformance:
    """What a strategy must hold. Subclass it in a test file, set `spec`, or override `make`.

    What a strategy claims is read from its class, where it may say `exhaustive = True` (it ends only after
    every route of the space was tried), `repeats = True` (it proposes tried routes again, to time
    them longer) and `learns = False` (it does not look at results); all may be set here instead.
    """

    spec: ClassVar[str] = ""
    exhaustive: ClassVar[bool | None] = None
    repeats: ClassVar[bool | None] = None
    learns: ClassVar[bool | None] = None
    trials: ClassVar[int] = 50
    seed: ClassVar[int | str] = "conformance"

    def make(self) -> Strategy:
        """A fresh strategy object."""
        assert self.spec, "set `spec` on the subclass, or override make()"
        return load_strategy(self.spec)

    def setup_method(self) -> None:
        """One BLAS thread, as in a study: sums of several threads may be rounded otherwise, and are no longer equal."""
        import scipy.linalg  # noqa: F401  its library is limited only if it is loaded

        self._threads = OneBlasThread()
        self._threads.__enter__()

    def teardown_method(self) -> None:
        """As many threads as before."""
        self._threads.__exit__()

    # -- helpers -------------------------------------------------------------------------------
    def _claims(self, what: str, default: bool = False) -> bool:
        set_here = getattr(self, what)
        return bool(getattr(self.make(), what, default) if set_here is None else set_here)

    def _rebuilt(self, space: SearchSpace, events: list[_Event]) -> History:
        """A new history from a diary, as a study is rebuilt from its storage."""
        history = History(space)
        finished = {e.trial for e in events if e.observation is not None}
        for event in events:
            if event.observation is not None:
                history.append(event.trial, event.codes.copy(), event.observation, event.until)
        for event in events:
            if event.observation is None and event.trial not in finished:
                history.start(event.trial, event.codes.copy(), event.until)
        return history

    def _run(
        self, space: SearchSpace, measure: Measure, trials: int, history: History | None = None
    ) -> tuple[History, End, list[_Event]]:
        """Runs or continues a study with a fresh strategy object."""
        history = History(space) if history is None else history
        events: list[_Event] = []

        def on_finish(trial: Trial, observation: Observation) -> None:
            events.append(_Event(trial.number, trial.codes, trial.until, observation))

        end = run_loop(
            space,
            self.make(),
            history,
            Streams(self.seed),
            Budget(trials=trials),
            lambda trial: measure(trial.codes, trial.number),
            on_finish=on_finish,
        )
        self._check_rows(space, history)
        return history, end, events

    def _check_rows(self, space: SearchSpace, history: History) -> None:
        assert ((history.codes >= 0) & (history.codes < space.cardinalities)).all(), "a route outside the space"
        if not self._claims("repeats"):
            assert history.n_routes == len(history), "a route was tried twice; skip those that history.contains()"

    def _workers(self, space: SearchSpace, measure: Measure, trials: int, workers: int) -> Iterator[list[_Event]]:
        """Four workers whose trials end out of order; yields the diary after each step."""
        strategy, streams, history = self.make(), Streams(self.seed), History(space)
        order = np.random.default_rng(5)
        events: list[_Event] = []
        running: dict[int, Proposal] = {}

        def finish(trial: int) -> None:
            proposal = running.pop(trial)
            observation = measure(proposal.codes, trial)
            history.finish(trial, observation)
            events.append(_Event(trial, proposal.codes, proposal.until, observation))

        def start(proposal: Proposal) -> None:
            proposal = proposal._replace(codes=proposal.codes.copy())
            trial = history.next_trial
            history.start(trial, proposal.codes, proposal.until)
            running[trial] = proposal
            events.append(_Event(trial, proposal.codes, proposal.until, None))

        start(Proposal(space.default))
        finish(0)
        while history.next_trial <= trials:
            proposal = strategy.propose(space, history, streams) if len(running) < workers else None
            if proposal is None:
                if not running:
                    break
                finish(int(order.choice(sorted(running))))
                continue
            assert space.holds(space.check(proposal.codes)), "a route outside the space"
            assert not history.is_pending(proposal.codes), "a pending route was proposed again"
            start(proposal)
            yield events
        self._check_rows(space, history)

    def _assert_same(self, one: Proposal | None, other: Proposal | None, when: str) -> None:
        if one is None or other is None:
            assert one is other, f"{when}: {one} and {other} differ"
        else:
            assert one.until == other.until and np.array_equal(one.codes, other.codes), f"{when}: proposals differ"

    # -- determinism ---------------------------------------------------------------------------
    def test_equal_arguments_give_equal_proposals(self) -> None:
        """Two fresh objects agree, and asking twice changes nothing."""
        space = space_of(2, 3, 2, 4, 2, 2, 3, 2)
        history, _, _ = self._run(space, bumpy, 20)
        used = self.make()
        first = used.propose(space, history, Streams(self.seed))
        self._assert_same(first, used.propose(space, history, Streams(self.seed)), "asked twice")
        self._assert_same(first, self.make().propose(space, history, Streams(self.seed)), "a fresh object")

    def test_an_object_that_served_another_study_gives_the_same_proposals(self) -> None:
        """A cache belongs to one history."""
        space, other = space_of(2, 3, 2, 4, 2, 2), space_of(3, 2, 2, 2)
        history, _, _ = self._run(space, bumpy, 12)
        elsewhere, _, _ = self._run(other, bumpy, 7)
        used = self.make()
        used.propose(other, elsewhere, Streams("another"))
        wanted = self.make().propose(space, history, Streams(self.seed))
        self._assert_same(used.propose(space, history, Streams(self.seed)), wanted, "after another study")

    def test_a_resumed_study_equals_an_uninterrupted_one(self) -> None:
        """Resumed at trials 3, 25 and 49 of 50 with a fresh object and a rebuilt history."""
        space = space_of(2, 3, 2, 4, 2, 2, 3, 2, 2)
        whole, end, events = self._run(space, bumpy, self.trials)
        for at in sorted({3, 25, 49, len(whole) // 2} & set(range(1, len(whole)))):
            resumed, resumed_end, _ = self._run(space, bumpy, self.trials, self._rebuilt(space, events[: at + 1]))
            assert np.array_equal(resumed.codes, whole.codes), f"resumed at trial {at}, the study went another way"
            assert np.array_equal(resumed.until, whole.until) and resumed_end is end

    def test_through_storage_equals_in_memory(self) -> None:
        """Each stretch of trials goes on from what a study file holds, and gives what one run in memory gives."""
        from gpt_search.store.settings import StudySettings
        from gpt_search.store.study import StudyStore

        space, trials = space_of(2, 3, 2, 4, 2, 2, 3, 2, 2), 24
        whole, _, _ = self._run(space, bumpy, trials)
        with tempfile.TemporaryDirectory() as folder:
            url = Path(folder) / "study.journal"
            for until in (1, 7, 8, trials):
                with StudyStore.create_or_resume(
                    url, "conformance", StudySettings({"seed": str(self.seed)}), space
                ) as s:
                    history = History(s.space)
                    for row in s.restore().rows:
                        history.append(row.trial, row.codes, row.evaluation.observation(), row.until)
                    run_loop(
                        s.space,
                        self.make(),
                        history,
                        Streams(self.seed),
                        Budget(trials=until),
                        lambda trial: bumpy(trial.codes, trial.number),
                        on_start=lambda trial, s=s: s.start(trial.number, trial.codes, trial.until),  # type: ignore[misc]
                        on_finish=lambda trial, o, s=s: s.finish(trial.number, _evaluation(o, trial.until), 0.0),  # type: ignore[misc]
                    )
            assert np.array_equal(history.codes, whole.codes), "read back from storage, the study went another way"
            assert np.array_equal(history.until, whole.until)

    def test_four_workers_never_share_a_route_and_can_be_resumed(self) -> None:
        """Pending routes are not proposed again, and a fresh object agrees in the middle of it."""
        space = space_of(2, 3, 2, 4, 2, 2, 3, 2)
        for step, events in enumerate(self._workers(space, bumpy, self.trials, workers=4)):
            if step in (5, 21, 40):
                # Everything but the last start was known when the last proposal was made.
                history = self._rebuilt(space, events[:-1])
                again = self.make().propose(space, history, Streams(self.seed))
                self._assert_same(again, Proposal(events[-1].codes, events[-1].until), f"four workers, step {step}")

    def test_the_global_random_state_is_neither_used_nor_changed(self) -> None:
        """All randomness comes from the streams."""
        space = space_of(2, 3, 2, 4, 2, 2)
        saved = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            routes = []
            for seed in (1, 2):
                random.seed(seed)
                np.random.seed(seed)  # noqa: NPY002
                before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
                routes.append(self._run(space, bumpy, 25)[0].codes)
                assert random.getstate() == before[0], "Python's global random state changed"
                assert repr(np.random.get_state()) == before[1], "numpy's global random state changed"  # noqa: NPY002
            assert np.array_equal(routes[0], routes[1]), "the proposals depend on a global random state"
        finally:
            random.setstate(saved[0])
            np.random.set_state(saved[1])  # noqa: NPY002

    def test_the_history_and_the_space_are_not_changed(self) -> None:
        """A strategy reads; the loop writes."""
        space = space_of(2, 3, 2, 4, 2, 2)
        _, _, events = self._run(space, bumpy, 15)
        pending = [_Event(len(events), space.codes_at(space.size - 1), Phase.TIME, None)]
        history = self._rebuilt(space, events + pending)
        columns = ("codes", "value", "error", "violation", "outcome", "until", "fingerprint", "trial", "route")
        before = {name: getattr(history, name).copy() for name in columns}
        waiting, spec = history.pending.copy(), space.spec()
        proposal = self.make().propose(space, history, Streams(self.seed))
        for name in columns:
            assert np.array_equal(before[name], getattr(history, name), equal_nan=before[name].dtype.kind == "f"), (
                f"history.{name} changed"
            )
        assert np.array_equal(waiting, history.pending), "history.pending changed"
        assert space.spec() == spec, "the space changed"
        if proposal is not None:
            assert not np.shares_memory(proposal.codes, history.codes), "the proposal is a view of the history"

    # -- spaces --------------------------------------------------------------------------------
    def test_one_knob(self) -> None:
        """A space of one knob with five values."""
        history, end, _ = self._run(space_of(5), bumpy, 20)
        assert len(history) <= 6 or self._claims("repeats")
        assert end in (End.SPACE, End.STRATEGY, End.TRIALS)

    def test_one_value(self) -> None:
        """Knobs with a single value: only the reference exists."""
        space = space_of(1, 1)
        history, end, _ = self._run(space, bumpy, 5)
        assert len(history) == 1 and end is End.SPACE
        self._asked_at_the_end(space, history)

    def test_no_knobs(self) -> None:
        """A space without varying knobs: only the reference exists."""
        space = space_of(pinned=2)
        history, end, _ = self._run(space, bumpy, 5)
        assert len(history) == 1 and end is End.SPACE
        self._asked_at_the_end(space, history)

    def _asked_at_the_end(self, space: SearchSpace, history: History) -> None:
        """`simulate` does not ask in a space that is used up; others may."""
        proposal = self.make().propose(space, history, Streams(self.seed))
        assert proposal is None or (self._claims("repeats") and space.holds(proposal.codes))

    def test_209_knobs(self) -> None:
        """As many knobs as TensorRT has: sizes of 2^200 are not enumerated."""
        history, end, _ = self._run(space_of(*(2 + (i % 10 == 0) for i in range(209))), bumpy, 12)
        assert len(history) == 13 and end is End.TRIALS

    def test_pinned_knobs_change_nothing(self) -> None:
        """Pins are the loop's business."""
        free, _, _ = self._run(space_of(2, 3, 2, 2), bumpy, 12)
        pinned, _, _ = self._run(space_of(2, 3, 2, 2, pinned=3), bumpy, 12)
        assert np.array_equal(free.codes, pinned.codes)

    # -- landscapes ----------------------------------------------------------------------------
    def test_everything_fails(self) -> None:
        """Every route but the reference fails, in each of the ways there are."""
        space = space_of(2, 3, 2, 4, 2)
        for outcome in Outcome:
            if outcome is Outcome.OK:
                continue
            violation = 1.0 if outcome is Outcome.ACCURACY else None
            fails = Observation(outcome, None, violation)
            self._run(space, lambda _, trial, fails=fails: fails if trial else Observation(Outcome.OK, 1.0), 15)  # type: ignore[misc]

    def test_everything_is_equal(self) -> None:
        """No gradient to follow: it still goes on."""
        _, end, _ = self._run(space_of(2, 3, 2, 4, 2), all_equal, 15)
        assert end in (End.TRIALS, End.STRATEGY, End.SPACE)

    def test_it_learns(self) -> None:
        """On an additive function the last 50 of 300 trials beat the first 50 clearly, noise left out.

        A strategy that ends earlier is judged by the two halves of its trials.
        """
        if self.spec.partition(":")[0] in NOT_LEARNING or not self._claims("learns", default=True):
            import pytest

            pytest.skip(f"{self.spec or type(self.make()).__name__} does not look at results")
        space = space_of(*(_ADDITIVE * 4))
        history, _, _ = self._run(space, additive, 300)
        timed = history.codes[1:][history.until[1:] == Phase.TIME]
        truth = np.array([additive_truth(codes) for codes in timed])
        assert len(truth) >= 20, f"only {len(truth)} routes were timed"
        most = min(50, len(truth) // 2)
        first, last = truth[:most], truth[-most:]
        error = math.sqrt((first.var() + last.var()) / most)
        assert last.mean() < first.mean() - max(0.01, 3 * error), (
            f"the last {most} routes have a mean log-latency of {last.mean():.3f}, the first of {first.mean():.3f}"
        )

    # -- the end -------------------------------------------------------------------------------
    def test_a_small_space_is_used_up_exactly_once(self) -> None:
        """Strategies that claim `exhaustive` try every route once, whatever the outcomes, and then end."""
        if not self._claims("exhaustive"):
            import pytest

            pytest.skip("the strategy does not claim to be exhaustive")
        space = space_of(2, 3, 1, 2, 4)
        for measure in (bumpy, all_equal):
            history, end, _ = self._run(space, measure, space.size * 3)
            assert history.n_routes == len(history) == space.size, "not every route was tried exactly once"
            assert end is End.SPACE
            assert self.make().propose(space, history, Streams(self.seed)) is None
        last: list[_Event] = []
        for events in self._workers(space, bumpy, space.size * 3, workers=4):
            last = events
        assert len({e.codes.tobytes() for e in last}) == space.size, "four workers did not use the space up"


def _evaluation(seen: Observation, until: Phase) -> Evaluation:
    """An evaluation of which a strategy would see this."""
    return Evaluation(
        seen.outcome,
        until,
        violation=seen.violation,
        latency_ms=seen.latency_ms,
        error_ms=seen.error_ms,
        fingerprint=seen.fingerprint,
        cost_s=seen.cost_s,
    )
