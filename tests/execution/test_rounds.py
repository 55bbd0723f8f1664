"""What a comparison agrees on between its two sides: how calls are launched, and which rounds are taken again."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from helpers_execution import backend_name, settings
from test_evaluator import SPACE

from gpt_search.domain.outcome import Outcome
from gpt_search.execution import rounds
from gpt_search.execution.evaluator import Evaluator

# Builds number 1 and 2 are the reference twice (trial 0), 3 and on are candidates.
SOURCE = """
from dataclasses import replace
from gpt_search.backends.base import Placement
from gpt_search.backends.synthetic import SyntheticBackend

class Engine:
    def __init__(self, inner, backend, number):
        self._inner, self._backend, self._number = inner, backend, number
    def __getattr__(self, name):
        return getattr(self._inner, name)
    def time(self, request):
        settings = self._backend.settings
        can = "stream" if self._number in settings.get("streams_only", ()) else "graph"
        launch = can if request.launch is None else min(can, request.launch, key=["stream", "graph"].index)
        if settings.get("stubborn"):
            launch = can
        note = "its shapes depend on data" if can == "stream" else ""
        self._backend.turns += request.warmup_calls  # rounds have one such call, warm-up turns none
        hot = request.warmup_calls and self._backend.turns in settings.get("again", ())
        again = "throttled: thermal" if hot else ""
        device = {"throttled": float(bool(again or settings.get("hot")))}
        return replace(self._inner.time(request), launch=launch, launch_note=note, again=again, device=device)

class Launching(SyntheticBackend):
    capabilities = replace(SyntheticBackend.capabilities, placement=Placement.SAME_WORKER)
    settings = SETTINGS
    built = turns = 0
    def build(self, workload, route, options):
        self.built += 1
        return Engine(super().build(workload, route, options), self, self.built)
"""


@contextmanager
def made(folder, **options):
    source = folder / "launching.py"
    source.write_text(SOURCE.replace("SETTINGS", repr(options)))
    plain = backend_name(gentle=True)
    name = f"{source}:Launching:{plain.partition(':')[2]}"
    with Evaluator(settings(folder, name), SPACE.reference) as evaluator:
        yield evaluator


def launches(evaluation):
    return {r.launch for r in evaluation.rounds}


def test_sides_that_can_be_launched_alike_are_and_nothing_is_noted(tmp_path):
    with made(tmp_path) as evaluator:
        got = evaluator.evaluate_reference()
    assert got.outcome is Outcome.OK and launches(got) == {"graph"} and got.notes == ()


@pytest.mark.parametrize(("number", "who"), [(1, "candidate"), (2, "reference")])
def test_one_side_that_cannot_be_captured_puts_both_on_streams_and_marks_the_route(tmp_path, number, who):
    with made(tmp_path, streams_only=[number]) as evaluator:
        got = evaluator.evaluate_reference()
    assert got.outcome is Outcome.OK and launches(got) == {"stream"}
    assert got.notes == (f"both sides were launched as 'stream': for the {who}, its shapes depend on data",)
    assert len(got.rounds) >= 5  # the round whose sides differed is no pair, and is not among them


def test_two_sides_that_cannot_be_captured_agree_without_a_note(tmp_path):
    with made(tmp_path, streams_only=[1, 2]) as evaluator:
        got = evaluator.evaluate_reference()
    assert launches(got) == {"stream"} and got.notes == ()


def test_the_next_route_is_launched_as_usual_again(tmp_path):
    with made(tmp_path, streams_only=[3]) as evaluator:
        found = [evaluator.evaluate_reference(), *(evaluator.evaluate(SPACE.reference, seed=s) for s in (1, 2))]
    assert [launches(f) for f in found] == [{"graph"}, {"stream"}, {"graph"}]
    assert [len(f.notes) for f in found] == [0, 1, 0]


def test_a_backend_that_goes_on_launching_them_differently_is_an_error(tmp_path):
    with (
        made(tmp_path, streams_only=[1], stubborn=True) as evaluator,
        pytest.raises(RuntimeError, match="launched differently"),
    ):
        evaluator.evaluate_reference()


def test_rounds_that_a_backend_wants_again_are_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "AGAIN_PAUSE_S", 0.0)
    with made(tmp_path, again=range(3, 7)) as evaluator:
        got = evaluator.evaluate_reference()
    (note,) = got.notes
    assert note == "a round was left out and taken again: throttled: thermal (2 times)"
    assert all(r.device["throttled"] == 0 for r in got.rounds)


def test_after_too_many_repeats_rounds_stand_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "AGAIN_PAUSE_S", 0.0)
    monkeypatch.setattr(rounds, "AGAIN_LIMIT", 3)
    with made(tmp_path, again=range(100_000)) as evaluator:
        got = evaluator.evaluate_reference()
    assert got.notes[0] == "a round was left out and taken again: throttled: thermal (3 times)"
    assert got.notes[1].startswith("a round was kept although the limit")
    assert len(got.rounds) >= 5 and got.rounds[0].device["throttled"] == 1


def test_throttled_rounds_that_are_kept_are_counted(tmp_path):
    with made(tmp_path, hot=True) as evaluator:
        got = evaluator.evaluate_reference()
    assert got.notes == (f"a round was throttled and kept ({len(got.rounds)} times)",)
