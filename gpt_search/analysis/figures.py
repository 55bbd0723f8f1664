"""Figures: each takes a table and Axes and returns the Axes. One style, made for print.

Colours are Okabe and Ito's, told apart by every kind of colour vision, and no meaning rests on
colour alone. Nothing here uses pyplot: figures need no display, and none stays in memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from gpt_search.domain.errors import InputError
from gpt_search.store.files import replace_file

BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#7F7F7F"
COLUMN_INCHES = 5.5
"""Width of a figure: a column of text, so that 8 pt in the figure are 8 pt on paper."""

Confirmed = tuple[float, float, float | None]
"""Low, estimate and high of a confirmed speed-up; high is infinite or None where one build gives no interval."""

_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 9,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.hashsalt": "gpt_search",  # equal figures give equal files
    "pdf.fonttype": 42,
}
_LABEL_WIDTH = 34


@contextmanager
def style() -> Iterator[None]:
    """The style of every figure, for the time of a `with` block: text sizes and the like are fixed on creation."""
    with rc_context(_STYLE):
        yield


def new_figure(height: float = 3.0, width: float = COLUMN_INCHES) -> tuple[Figure, Axes]:
    """A figure in this module's style with one Axes. height, width: inches."""
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.add_subplot()


def save_figure(figure: Figure, stem: str | Path) -> list[Path]:
    """Writes `stem.svg` and `stem.png` (300 dpi) and returns their paths; equal figures give equal files.

    Folders are made. Raises OSError when a file cannot be written.
    """
    base = Path(stem)
    base.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, date in (("svg", {"Date": None}), ("png", {"Software": None})):
        path = base.with_name(f"{base.name}.{suffix}")
        with style():
            figure.savefig(path, dpi=300, metadata=date, facecolor="white")
        written.append(path)
    return written


def write_figure(figure: Figure, path: Path) -> None:
    """Writes one file, of the kind that the suffix says: svg, pdf or png (300 dpi); equal figures give equal files.

    Raises OSError when it cannot be written.
    """
    metadata: dict[str, dict[str, Any]] = {
        ".svg": {"Date": None},
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "ModDate": None},
    }
    suffix = path.suffix.lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    with style():
        figure.savefig(drawn, format=suffix[1:], dpi=300, metadata=metadata[suffix], facecolor="white")
    replace_file(path, drawn.getvalue())


def best_so_far(table: pd.DataFrame, ax: Axes, *, confirmed: Confirmed | None = None) -> Axes:
    """Draws the best speed-up so far against trials, over the single trials.

    table: columns trial, speedup, feasible, best, low, high (`curves.best_so_far_table`).
    confirmed: low, estimate and high of the confirmed speed-up, drawn to the right of the last trial; one
    without an interval (high is infinite or None) as its estimate alone.

    Trials far below the curve are drawn on the lower edge, failed ones under it. Raises InputError
    when a column is missing.
    """
    _require(table, ("trial", "speedup", "feasible", "best", "low", "high"))
    with style():
        _draw_best_so_far(table, ax, confirmed)
    return ax


def _draw_best_so_far(table: pd.DataFrame, ax: Axes, confirmed: Confirmed | None) -> None:
    trial, speedup, best = (table[c].to_numpy(np.float64) for c in ("trial", "speedup", "best"))
    low, high = (table[c].to_numpy(np.float64) for c in ("low", "high"))
    ok = table["feasible"].to_numpy(bool)
    last = float(trial[-1])
    low_of_all, high_of_all = 1.0, float(max(best.max(), np.nanmax(high, initial=1.0)))
    if confirmed is not None:
        bounded = confirmed[2] is not None and np.isfinite(confirmed[2])
        ends = [float(x) for x in confirmed if x is not None] if bounded else [confirmed[1]]
        low_of_all, high_of_all = min(low_of_all, *ends), max(high_of_all, *ends)
    # What is interesting lies above 1; slow trials may take as much room again, and at least 10 %.
    floor = max(float(np.min(speedup[ok], initial=1.0)), 1.0 - max(high_of_all - 1.0, 0.1))
    floor = min(floor, low_of_all)
    room = 0.06 * (high_of_all - floor) + 0.005
    ax.set_ylim(floor - 2.2 * room, high_of_all + room)
    _reference_line(ax, vertical=False)
    ax.step(trial, best, where="post", color=BLUE, zorder=3, label="best so far")
    ax.fill_between(trial, low, high, step="post", color=BLUE, alpha=0.18, lw=0, label="its 95 % interval")
    shown, under = ok & (speedup >= floor), ok & (speedup < floor)
    failed = ~ok
    ax.plot(trial[shown], speedup[shown], "o", ms=3, mfc="none", mec=GREY, mew=0.7, label="one trial")
    if under.any():
        ax.plot(trial[under], np.full(under.sum(), floor), "v", ms=3, color=GREY, mew=0, label="slower, off the scale")
    if failed.any():
        ax.plot(
            trial[failed], np.full(failed.sum(), floor - 1.4 * room), "x", ms=3.5, color=RED, mew=0.9, label="failed"
        )
    if confirmed is not None:
        _draw_confirmed(ax, last, confirmed)
    ax.set_xlim(-0.02 * max(last, 1.0), last * (1.08 if confirmed is not None else 1.02) or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    ax.set_xlabel("trial (0 is the reference)")
    ax.set_ylabel("speed-up over the reference")
    ax.grid(axis="y", lw=0.4, color="0.9")
    _legend_below(ax)


def _draw_confirmed(ax: Axes, last: float, confirmed: Confirmed) -> None:
    low, estimate, high = confirmed
    x = [last + 0.04 * max(last, 1.0)]
    if high is None or not np.isfinite(high):
        ax.plot(x, [estimate], "s", ms=4, color=ORANGE, label="confirmed, no interval")
        return
    ax.errorbar(
        x,
        [estimate],
        yerr=[[estimate - low], [high - estimate]],
        fmt="s",
        ms=4,
        color=ORANGE,
        ecolor=ORANGE,
        capsize=3,
        lw=1.4,
        label="confirmed, 95 % interval",
    )


def drift(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws the reference through the whole run, and what correcting each value by its own rounds did.

    table: columns of `curves.drift_table`. Everything is drawn relative to the reference of trial 0.

    Each trial is a vertical line from its uncorrected value to the corrected one. Rounds and trials far off the
    rest are drawn on the edge; the scale is logarithmic where it spans more than a factor of two. Raises
    InputError when a column is missing.
    """
    _require(table, ("trial", "at_s", "reference_ms", "uncorrected_ms", "corrected_ms", "base_ms"))
    with style():
        _draw_drift(table, ax)
    return ax


def _draw_drift(table: pd.DataFrame, ax: Axes) -> None:
    at, reference = table["at_s"].to_numpy(np.float64), (table["reference_ms"] / table["base_ms"]).to_numpy(np.float64)
    by_trial = table.groupby("trial", sort=False)
    middle = by_trial["at_s"].median().to_numpy(np.float64)
    base = by_trial["base_ms"].first()
    level = (by_trial["reference_ms"].median() / base).to_numpy(np.float64)
    before = (by_trial["uncorrected_ms"].first() / base).to_numpy(np.float64)
    after = (by_trial["corrected_ms"].first() / base).to_numpy(np.float64)
    # A burst in one round must not squeeze everything else into a line, nor may routes many times slower.
    values = np.concatenate([before, after])
    near = values[values < 2 * max(float(level.max()), 1.0)]  # the drift is the subject
    low = min(float(np.quantile(reference, 0.02)), float(np.min(near, initial=1.0)), 1.0)
    high = max(float(np.quantile(reference, 0.9)), float(level.max()), float(np.max(near, initial=1.0)))
    room = (high / low) ** 0.05 * 1.001
    low, high = low / room, high * room
    if high > 2 * low:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(low / room, high * room)
    _reference_line(ax, vertical=False)
    before, after, reference = (np.clip(x, low, high) for x in (before, after, reference))
    ax.plot(at, reference, ".", ms=2.5, color=GREY, mew=0, alpha=0.7, label="reference, one round")
    ax.step(middle, np.clip(level, low, high), where="mid", color="black", lw=0.8, label="reference, median of a trial")
    ax.vlines(middle, before, after, color=BLUE, lw=0.5, alpha=0.6)
    ax.plot(middle, before, "o", ms=3.5, mfc="white", mec=ORANGE, mew=0.9, label="value, uncorrected")
    ax.plot(middle, after, "o", ms=2.6, color=BLUE, mew=0, label="value, corrected")
    ax.margins(x=0.02)
    ax.set_xlabel("time since the study began (s)")
    ax.set_ylabel("latency / reference of trial 0")
    ax.grid(axis="y", lw=0.4, color="0.9")
    _legend_below(ax)


def importance(table: pd.DataFrame, ax: Axes, *, limit: int = 12) -> Axes:
    """Draws the most important knobs of a study.

    table: `importance.knob_importance`. limit: how many knobs. With PED-ANOVA: bars of importance.
    Otherwise: latency ratio of the strongest value of each knob with its 95 % interval, against 1.0.

    The figure's height should grow with the number of knobs: `importance_height(table)`. Raises
    InputError when a column is missing.
    """
    _require(table, ("knob", "value", "importance", "ratio", "low", "high", "trials", "method"))
    with style():
        if not len(table):
            ax.text(0.5, 0.5, "no knob was changed", ha="center", va="center", transform=ax.transAxes)
            ax.set_axis_off()
        elif (table["method"] == "PED-ANOVA").all():
            _draw_shares(table.head(limit), ax)
        else:
            _draw_ratios(table[table["ratio"].notna()].head(limit), ax)
        left_out = len(table) - min(limit, len(table))
        if left_out:
            ax.set_title(f"the first {limit} of {len(table)} knobs", loc="left", color="0.35", fontsize=8)
    return ax


def importance_height(table: pd.DataFrame, limit: int = 12) -> float:
    """The height in inches for `importance` of that table."""
    return 1.0 + 0.28 * max(2, min(limit, len(table)))


def _draw_shares(table: pd.DataFrame, ax: Axes) -> None:
    at = np.arange(len(table))
    share = 100 * table["importance"].to_numpy(np.float64)
    ax.barh(at, share, height=0.62, color=BLUE)
    for y, value in zip(at, share, strict=True):
        ax.annotate(f"{value:.1f}", (value, y), (3, 0), textcoords="offset points", va="center", fontsize=7)
    _knob_axis(ax, at, [short_label(k) for k in table["knob"]])
    ax.set_xlim(0, 1.1 * max(float(share.max()), 1.0))
    ax.set_xlabel("importance for reaching the best tenth (%, PED-ANOVA)")
    ax.grid(axis="x", lw=0.4, color="0.9")


def _draw_ratios(table: pd.DataFrame, ax: Axes) -> None:
    at = np.arange(len(table))
    ratio, low, high = (table[c].to_numpy(np.float64) for c in ("ratio", "low", "high"))
    _reference_line(ax, vertical=True)
    labels = {"single change": "this change alone", "mean effect": "mean over the trials with it"}
    methods = [m for m in labels if (table["method"] == m).any()]
    for method in methods:
        chosen = (table["method"] == method).to_numpy()
        errors = np.nan_to_num(np.stack([ratio - low, high - ratio])[:, chosen])
        ax.errorbar(
            ratio[chosen],
            at[chosen],
            xerr=errors,
            fmt="o" if method == "single change" else "D",
            ms=4,
            color=BLUE,
            ecolor=BLUE,
            capsize=2,
            lw=1.0,
            label=labels[method],
        )
    _limit_ratios(ax, ratio, low, high)
    for y, trials in zip(at, table["trials"], strict=True):
        ax.annotate(f"{trials}", (1.01, y), xycoords=ax.get_yaxis_transform(), va="center", fontsize=7, color="0.35")
    ax.annotate("trials", (1.01, 1.0), (0, 4), "axes fraction", "offset points", fontsize=7, color="0.35")
    _knob_axis(ax, at, [short_label(f"{k}={v}") for k, v in zip(table["knob"], table["value"], strict=True)])
    how = f"{labels[methods[0]]}, " if len(methods) == 1 else ""
    ax.set_xlabel(f"latency / latency at the default value\n({how}95 % interval; below 1 is faster)")
    ax.grid(axis="x", lw=0.4, color="0.9")
    if len(methods) > 1:
        _legend_below(ax, inches=0.58, side="right", handles=ax.containers)


def _limit_ratios(ax: Axes, ratio: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Limits that show every estimate and 1.0; a wide interval may leave the picture."""
    seen = np.append(ratio, 1.0)
    span = max(float(np.ptp(seen)), 0.02)
    left = max(float(np.nanmin(np.append(low, seen))), float(seen.min()) - 0.6 * span)
    right = min(float(np.nanmax(np.append(high, seen))), float(seen.max()) + 0.6 * span)
    ax.set_xlim(left - 0.04 * span, right + 0.04 * span)


def short_label(name: str, width: int = _LABEL_WIDTH) -> str:
    """A knob's name for an axis: at most two lines of about `width` characters, broken at a separator.

    What does not fit in two lines loses its middle, never its end: the end tells knobs apart.
    """
    if len(name) <= width:
        return name
    if len(name) > 2 * width:
        keep = 2 * width - 1
        name = f"{name[: keep // 3]}…{name[-(keep - keep // 3) :]}"
    at = range(max(1, len(name) - width), width + 1)
    cuts = [i for i in at if name[i - 1] in ":_.=-" or name[i] == "…" or (name[i - 1].islower() and name[i].isupper())]
    cut = min(cuts, key=lambda i: abs(2 * i - len(name)), default=(len(name) + 1) // 2)
    return f"{name[:cut]}\n{name[cut:]}"


def _knob_axis(ax: Axes, at: np.ndarray, labels: list[str]) -> None:
    """Names from top to bottom, the first on top."""
    ax.set_yticks(at, labels, linespacing=1.15)
    ax.set_ylim(len(at) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)


def _reference_line(ax: Axes, *, vertical: bool) -> None:
    draw = ax.axvline if vertical else ax.axhline
    draw(1.0, color="black", lw=0.9, ls=(0, (4, 2)), zorder=1.5, label="reference")
    axis = ax.xaxis if vertical else ax.yaxis
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.4g}"))


def _legend_below(ax: Axes, inches: float = 0.42, side: str = "left", **options: Any) -> None:
    """A legend under the axis label, at a distance in inches: a share of the height would move with the layout.

    side: the edge of the Axes that it is aligned with, "left" or "right".
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    ax.legend(
        loc="upper left" if side == "left" else "upper right",
        bbox_to_anchor=(0.0 if side == "left" else 1.0, 0.0),
        bbox_transform=ax.transAxes + ScaledTranslation(0.0, -inches, figure.dpi_scale_trans),
        ncols=3,
        borderaxespad=0,
        columnspacing=1.2,
        **options,
    )


def _require(table: pd.DataFrame, columns: tuple[str, ...]) -> None:
    missing = [c for c in columns if c not in table.columns]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}; it has: {', '.join(map(str, table.columns)) or 'none'}"
        )
