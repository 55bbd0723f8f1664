import math

import numpy as np
import pytest

from gpt_search import InputError
from gpt_search.analysis import figures
from gpt_search.analysis.curves import drift_table
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase

RATIOS = [1.0, 0.95, 1.1, 0.9, 1.0, 3.0] * 5


def evaluation(trial: int, level, ratio: float, rounds: int = 5, **more) -> Evaluation:
    """Both sides at `level(seconds)`, the candidate `ratio` times that."""
    found = []
    for n in range(rounds):
        started = 10.0 * trial + n
        now = 2.0 * level(started)
        found.append(Round((ratio * now,) * 3, (now,) * 3, started))
    return Evaluation(Outcome.OK, Phase.TIME, latency_ms=2.0 * ratio, rounds=tuple(found), **more)


def study(level):
    return [(t, evaluation(t, level, r), 10.0 * t + 5) for t, r in enumerate(RATIOS)]


def drifting(seconds: float) -> float:
    return 1 + 0.001 * seconds


def test_the_correction_takes_the_drift_away_and_nothing_else():
    table = drift_table(study(drifting))
    trials = table.groupby("trial").first()
    assert trials["corrected_ms"].tolist() == pytest.approx([2 * r for r in RATIOS])
    shift = (trials["uncorrected_ms"] / trials["corrected_ms"]).to_numpy()[1:]
    assert shift.tolist() == pytest.approx([drifting(10 * t + 2) for t in range(1, len(RATIOS))])
    assert (np.diff(table["at_s"]) > 0).all()
    assert len(table) == 5 * len(RATIOS)
    assert table["reference_ms"].to_numpy() / 2 == pytest.approx(1 + 0.001 * (table["at_s"].to_numpy() - 1))


def test_a_session_that_starts_its_clock_anew_stays_in_order():
    rows = study(drifting)[:2]
    anew = evaluation(0, drifting, 0.9)  # its rounds start at 0 s again
    table = drift_table([*rows, (2, anew, 25.0)])
    assert table["at_s"].tolist()[-5:] == [21.0, 22.0, 23.0, 24.0, 25.0]


def test_what_was_not_timed_itself_is_left_out():
    rows = study(drifting)[:2]
    failed = Evaluation(Outcome.CRASH, Phase.TIME)
    taken = evaluation(0, drifting, 0.9, timed_as=1, borrowed=5)
    table = drift_table([*rows, (2, failed, 30.0), (3, taken, 31.0)])
    assert set(table["trial"]) == {0, 1}


def test_of_rounds_that_were_added_to_earlier_ones_only_these_are_shown_and_corrected():
    """The trial's value rests on rounds of another time too; the correction shown is that of its own rounds."""
    first = evaluation(1, drifting, 0.9)
    added = evaluation(3, drifting, 0.8)
    both = Evaluation(
        Outcome.OK, Phase.TIME, latency_ms=1.7, rounds=first.rounds + added.rounds, timed_as=1, borrowed=5
    )
    table = drift_table([(0, evaluation(0, drifting, 1.0), 5.0), (1, first, 15.0), (3, both, 35.0)])
    trials = table.groupby("trial")
    assert trials.size().tolist() == [5, 5, 5]
    assert trials["corrected_ms"].first().tolist() == pytest.approx([2.0, 1.8, 1.6])


def test_rounds_of_several_shape_points_are_on_one_scale():
    """One point takes ten times as long; without a scale of its own it would look like drift."""

    def at_both_points(ratio: float) -> Evaluation:
        rounds = [Round((ratio * ms,) * 3, (ms,) * 3, n, point=n % 2) for n, ms in enumerate([1.0, 10.0] * 3)]
        return Evaluation(Outcome.OK, Phase.TIME, latency_ms=math.sqrt(10) * ratio, rounds=tuple(rounds))

    table = drift_table([(0, at_both_points(1.0), 5.0), (1, at_both_points(0.9), 15.0)])
    assert table["reference_ms"].tolist() == pytest.approx([math.sqrt(10)] * 12)
    assert table["uncorrected_ms"].tolist()[-1] == pytest.approx(0.9 * math.sqrt(10))


@pytest.mark.parametrize(
    "rows", [[], [(0, Evaluation(Outcome.CRASH, Phase.TIME), 1.0)], [(1, evaluation(1, drifting, 1.0), 15.0)]]
)
def test_without_a_reference_there_is_nothing_to_tell(rows):
    with pytest.raises(InputError, match="drift is told against the reference"):
        drift_table(rows)


def test_the_figure_draws_the_table():
    _, ax = figures.new_figure()
    table = drift_table(study(drifting))
    assert figures.drift(table, ax) is ax
    lines = {line.get_label(): line for line in ax.lines}
    corrected = lines["value, corrected"].get_ydata()
    assert corrected[1:4].tolist() == pytest.approx([0.95, 1.1, 0.9])
    assert lines["value, uncorrected"].get_ydata()[1] == pytest.approx(0.95 * drifting(12))
    assert len(lines["reference, one round"].get_xdata()) == len(table)
    low, high = ax.get_ylim()
    assert low < min(corrected) and max(corrected) < high
    with pytest.raises(InputError, match="no column 'base_ms'"):
        figures.drift(table.drop(columns="base_ms"), ax)


def test_a_burst_and_a_slow_route_do_not_squeeze_the_rest():
    rows = [(t, evaluation(t, lambda s: 1 + 4.0 * (s == 100), 1.0 + 20 * (t == 9)), 10.0 * t + 5) for t in range(40)]
    _, ax = figures.new_figure()
    figures.drift(drift_table(rows), ax)
    low, high = ax.get_ylim()
    assert high - low < 0.1
    assert math.isclose(max(line.get_ydata().max() for line in ax.lines[1:]), high, rel_tol=0.05)
