"""Figures of a study, by name: what `show --figure` draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpt_search.domain.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpt_search.run.show import Rows

SUFFIXES = (".svg", ".pdf", ".png")


def _drift(rows: Rows) -> Figure:
    from gpt_search.analysis import figures
    from gpt_search.analysis.curves import drift_table

    figure, ax = figures.new_figure()
    figures.drift(drift_table((r.trial, r.evaluation, r.clock_s) for r in rows.rows), ax)
    return figure


def _best(rows: Rows) -> Figure:
    from gpt_search.analysis import figures
    from gpt_search.analysis.curves import history_curve

    figure, ax = figures.new_figure()
    figures.best_so_far(history_curve(rows.history), ax)
    return figure


FIGURES: dict[str, Callable[[Rows], Figure]] = {"drift": _drift, "best": _best}
"""What can be drawn: name -> from a study's finished trials to a figure."""


def draw(name: str, study: str, storage: str, out: Path) -> None:
    """Draws one figure of a stored study into a file, of the kind that the suffix says.

    Raises InputError for an unknown name or suffix, a study without a timed reference, and a file that cannot be
    written.
    """
    if name not in FIGURES:
        raise InputError(f"no figure {name!r}{did_you_mean(name, FIGURES)}; there are: {', '.join(FIGURES)}")
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {str(out)!r} ends in {out.suffix or 'nothing'!r}; a figure is {', '.join(SUFFIXES)}")
    from gpt_search.run.show import finished_rows

    figure = FIGURES[name](finished_rows(study, storage))
    from gpt_search.analysis.figures import write_figure

    try:
        write_figure(figure, out)
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be written: {error.strerror or error}") from None
