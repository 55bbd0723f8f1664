"""Figures of a study, by name: what `show --figure` draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_search.domain.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpt_search.domain.evaluation import Evaluation
    from gpt_search.run.show import StudyData

SUFFIXES = (".svg", ".pdf", ".png")


def _drift(rows: StudyData) -> Figure:
    from gpt_search.analysis import figures
    from gpt_search.analysis.curves import drift_table

    figure, ax = figures.new_figure()
    figures.drift(drift_table((r.trial, r.evaluation, r.clock_s) for r in rows.rows), ax)
    return figure


def _best(rows: StudyData) -> Figure:
    from gpt_search.analysis import figures
    from gpt_search.analysis.curves import history_curve

    figure, ax = figures.new_figure()
    figures.best_so_far(history_curve(rows.history), ax)
    return figure


def _accuracy(data: StudyData) -> Figure:
    from gpt_search.analysis import figures, figures_study
    from gpt_search.analysis.study_tables import accuracy_table

    table = accuracy_table(_plain(data), data.losses)
    if not table["speedup"].notna().any():
        raise InputError("no trial has both a loss and a latency; there is no accuracy to draw")
    figure, ax = figures.new_figure()
    figures_study.accuracy_latency(table, ax)
    return figure


def _cost(data: StudyData) -> Figure:
    from gpt_search.analysis import figures, figures_study
    from gpt_search.analysis.study_tables import cost_table

    table = cost_table(_plain(data))
    figure, ax = figures.new_figure(figures_study.cost_height(table))
    figures_study.cost(table, ax)
    return figure


def _timeline(data: StudyData) -> Figure:
    from gpt_search.analysis import figures, figures_study
    from gpt_search.analysis.study_tables import timeline_table

    table = timeline_table(_plain(data))
    figure, ax = figures.new_figure(figures_study.timeline_height(table))
    figures_study.timeline(table, ax)
    return figure


def _importance(data: StudyData) -> Figure:
    from gpt_search.analysis import figures, figures_study
    from gpt_search.analysis.importance_set import measure_importance

    table = measure_importance(data.history, ["sparse"]).knobs
    figure, ax = figures.new_figure(figures.importance_height(table))
    figures_study.importance_bars(table, ax)
    return figure


def _interactions(data: StudyData) -> Figure:
    from gpt_search.analysis import figures, figures_study
    from gpt_search.analysis.importance_set import measure_importance

    table = measure_importance(data.history, ["sparse", "mdi"], resamples=0).pairs
    figure, ax = figures.new_figure(figures_study.interaction_height(table))
    figures_study.interaction_map(table, ax)
    return figure


def _plain(data: StudyData) -> list[tuple[int, Evaluation, float]]:
    return [(row.trial, row.evaluation, row.clock_s) for row in data.rows]


FIGURES: dict[str, Callable[[StudyData], Figure]] = {
    "drift": _drift,
    "best": _best,
    "accuracy": _accuracy,
    "cost": _cost,
    "timeline": _timeline,
    "importance": _importance,
    "interactions": _interactions,
}
"""What can be drawn: name -> from a study's finished trials to a figure."""


def draw(name: str, study: str, storage: str, out: Path) -> None:
    """Draws one figure of a stored study into a file, of the kind that the suffix says.

    Raises InputError for an unknown name or suffix, a study without a timed reference, and a file that cannot be
    written.
    """
    if name not in FIGURES:
        raise InputError(f"no figure {name!r}{did_you_mean(name, FIGURES)} (there are {', '.join(FIGURES)})")
    if out.suffix.lower() not in SUFFIXES:
        got = f"ends in {out.suffix!r}" if out.suffix else "has no ending"
        raise InputError(f"--out {str(out)!r} {got}; a figure's file ends in one of {', '.join(SUFFIXES)}")
    from gpt_search.run.show import study_data

    figure = FIGURES[name](study_data(study, storage))
    from gpt_search.analysis.figures import write_figure

    try:
        write_figure(figure, out)
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be written: {error.strerror or error}") from None
