import contextlib
import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search.cli.errors import Stopped, run_guarded
from gpt_search.cli.interrupts import came, forget, interrupted_once
from gpt_search.cli.live import LiveProgress, clock_text, speedup_text, status_line, stoppable
from gpt_search.domain.budget import Budget
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.run.result import Status


def status(**changes):
    evaluation = changes.pop("evaluation", Evaluation(Outcome.OK, Phase.TIME, latency_ms=2.0))
    values = {
        "trial": 7,
        "finished": 7,
        "best_trial": 3,
        "best_ratio": 0.8,
        "feasible": 6,
        "clock_s": 61.0,
        "left_s": 754.0,
        "used": 0.07,
        "reference_ms": 2.5,
    }
    return Status(evaluation=evaluation, **(values | changes))


def test_the_line_of_a_trial():
    assert status_line(status(), Budget(trials=100)) == (
        "trial   7/100: 1.250x    best 1.250x (#3)  ok 86%  used 7%  12:34 left"
    )
    assert status_line(status(left_s=None), Budget(seconds=60)) == (
        "trial 7: 1.250x    best 1.250x (#3)  ok 86%  used 7%"
    )


def test_a_failure_and_a_probe_are_named():
    failed = status(evaluation=Evaluation(Outcome.BUILD_ERROR, Phase.TIME))
    assert "trial 7/9: build error  best" in status_line(failed, Budget(trials=9))
    probe = status(evaluation=Evaluation(Outcome.OK, Phase.BUILD))
    assert "build only" in status_line(probe, Budget(trials=9))


@given(
    st.integers(1, 10**9),
    st.integers(0, 10**9),
    st.floats(1e-9, 1e9),
    st.floats(1e-9, 1e9),
    st.sampled_from(Outcome),
    st.none() | st.floats(0, 1e9),
    st.floats(0, 1),
    st.booleans(),
)
def test_a_line_is_never_longer_than_80_columns(trial, best, ratio, latency_ms, outcome, left_s, used, in_trials):
    evaluation = Evaluation(outcome, Phase.TIME, latency_ms=latency_ms if outcome is Outcome.OK else None)
    now = status(
        trial=trial,
        finished=trial,
        best_trial=best,
        best_ratio=ratio,
        evaluation=evaluation,
        left_s=left_s,
        used=used,
        feasible=trial // 2,
    )
    line = status_line(now, Budget(trials=trial) if in_trials else Budget(seconds=1.0))
    assert len(line) <= 80 and line.startswith("trial ") and "\n" not in line
    assert " best " in line and " ok " in line
    if trial < 10**5 and ratio > 1e-5:
        assert re.search(r" used \d+%", line) and (left_s is None or line.endswith(" left"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (42, "0:42"), (723, "12:03"), (3723, "1:02:03"), (90000, "25:00:00")]
)
def test_clock(seconds, text):
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("speedup", "text"),
    [(0.0421, "0.042x"), (1.0384, "1.038x"), (9.9996, "10.00x"), (12.345, "12.35x"), (123.4, "123x"), (5e7, "5e+07x")],
)
def test_speedup(speedup, text):
    assert speedup_text(speedup) == text


def test_plain_lines_fit_and_notes_fold(capsys):
    live = LiveProgress(Budget(trials=1))
    with live:
        live.preparing("nothing that a reader of plain lines needs")
        live.compiling("tactics", 3, 8)
        live.note("word " * 40)
        live.step(0, 7, "x" * 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("note: word") and lines[1].startswith("      word")
    assert lines[-1].startswith("confirming: build 1/7 (xxx") and lines[-1].endswith("...")
    assert max(map(len, lines)) <= 80


def test_a_reference_without_a_value_gets_no_line(capsys):
    live = LiveProgress(Budget(trials=1))
    missed = Evaluation(Outcome.ACCURACY, Phase.TIME)
    live.progress(status(trial=0, evaluation=missed, reference_ms=float("nan")))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_becomes_the_command_to_go_on_with(number, code):
    live = LiveProgress(None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, stoppable(live):
        live.continue_command = "gpt-search resume s"
        signal.raise_signal(number)
    assert (stopped.value.command, stopped.value.code) == ("gpt-search resume s", code)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_before_there_is_a_study_passes_through():
    with pytest.raises(KeyboardInterrupt), stoppable(LiveProgress(None)):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended, stoppable(LiveProgress(None)):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def lose(number):
    """A signal in the middle of what swallows all exceptions, as the import of compiled modules may."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


@pytest.fixture
def once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted_once()
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_whose_exception_got_lost_stops_at_the_next_step(number, code, once):
    live = LiveProgress(None)
    with pytest.raises(Stopped) as stopped, stoppable(live):
        live.continue_command = "gpt-search resume s"
        lose(number)
        live.step(0, 3, "stage 1")
        pytest.fail("went on")
    assert stopped.value.code == code and came() is None
    with stoppable(live):  # the next run knows nothing of it
        live.step(0, 3, "stage 1")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_error_that_a_signal_caused_gives_way_to_it(number, code, once):
    live = LiveProgress(None)
    with pytest.raises(Stopped) as stopped, stoppable(live):
        live.continue_command = "gpt-search resume s"
        lose(number)
        raise ImportError("numpy.core.multiarray failed to import")
    assert stopped.value.code == code


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_so_it_does_before_there_is_a_study(number, kind, once):
    with pytest.raises(kind), stoppable(LiveProgress(None)):
        lose(number)
        raise ImportError("numpy.core.multiarray failed to import")


def test_an_error_that_ctrl_c_caused_in_any_command_gives_way_to_it(once, capsys):
    def run():
        lose(signal.SIGINT)
        raise ImportError("numpy.core.multiarray failed to import")

    with pytest.raises(SystemExit) as ended:
        run_guarded(run, [])
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err
    forget()


def test_an_error_without_a_signal_stays_what_it_is():
    with pytest.raises(ImportError), stoppable(LiveProgress(None)):
        raise ImportError("there is no such module")
