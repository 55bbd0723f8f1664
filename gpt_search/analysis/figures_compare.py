"""Figures of an experiment: strategies against each other. Each takes a table and Axes and returns the Axes.

A strategy has one colour, line style and marker in all figures, by its place in the sorted list of names, so no
meaning rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from gpt_search.analysis.figures import _legend_below, _reference_line, _require, short_label, style

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#595959", "#000000")
"""Okabe and Ito's colours; yellow is left out (too light for lines on white), dark grey added."""
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = "osD^vPX*<>hp"
UNITS = {"trials": "trials", "builds": "builds", "seconds": "time (s)"}
NAME_WIDTH = 26


def looks(strategies: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, line style and marker of each strategy, for `Axes.plot`; 48 differ by line and marker alone."""
    names = sorted({str(s) for s in strategies})
    return {
        name: {
            "color": PALETTE[i % len(PALETTE)],
            "ls": _LINES[(i // len(_MARKERS) + i) % len(_LINES)],
            "marker": _MARKERS[i % len(_MARKERS)],
        }
        for i, name in enumerate(names)
    }


def legend_height(count: int, columns: int = 3) -> float:
    """Inches that a legend of so many names takes below the Axes."""
    return 0.15 * -(-count // columns)


def anytime(
    table: pd.DataFrame,
    ax: Axes,
    *,
    unit: str = "builds",
    label: str = "regret of the recommended route (%)",
    chance: pd.DataFrame | None = None,
) -> Axes:
    """Draws the median over seeds against the budget, with its bootstrap band.

    table: `anytime.anytime_curves` of one task: columns strategy, budget, median, low, high. Axes are logarithmic
    where budgets, or values, span more than a factor of twenty; then zeros lie on the lower edge. chance: what the
    exact curve of random search says, columns budget and median; drawn in grey. Raises InputError when a column is
    missing.
    """
    _require(table, ("strategy", "budget", "median", "low", "high"))
    if chance is not None:
        _require(chance, ("budget", "median"))
    with style():
        floor = _value_scale(ax, table)
        _budget_scale(ax, table["budget"])
        shown = looks(table["strategy"])
        for place, (name, look) in enumerate(shown.items()):
            rows = table[table["strategy"].astype(str) == name].sort_values("budget")
            x = rows["budget"].to_numpy(np.float64)
            middle, low, high = (np.maximum(rows[c].to_numpy(np.float64), floor) for c in ("median", "low", "high"))
            ax.fill_between(x, low, high, color=look["color"], alpha=0.13, lw=0, zorder=1)
            ax.plot(x, middle, ms=3.6, mew=0, markevery=_spread(len(x), place), label=_name(name), zorder=3, **look)
        if chance is not None:
            low, high = ax.get_xlim()
            rows = chance[(chance["budget"] >= table["budget"].min()) & (chance["budget"] <= table["budget"].max())]
            y = np.maximum(rows["median"].to_numpy(np.float64), floor)
            ax.plot(rows["budget"], y, color="0.45", lw=2.2, alpha=0.6, zorder=2, label="chance (exact)")
            ax.set_xlim(low, high)
        ax.set_xlabel(UNITS.get(unit, unit))
        ax.set_ylabel(label)
        ax.grid(axis="y", lw=0.4, color="0.9")
        _legend_below(ax)
    return ax


def ecdf(table: pd.DataFrame, ax: Axes, *, unit: str = "builds", until: float | None = None) -> Axes:
    """Draws the share of (task, seed, target) triples that were reached by each budget.

    table: `targets.ecdf`, of one task or of the mean over tasks (task ""): columns strategy, budget, share. until: the
    largest budget that was spent; curves go on that far. Raises InputError when a column is missing.
    """
    _require(table, ("strategy", "budget", "share"))
    with style():
        end = float(until if until is not None else table["budget"].max())
        _budget_scale(ax, pd.Series([*table.loc[table["budget"] > 0, "budget"], end]))
        start = ax.get_xlim()[0]
        for place, (name, look) in enumerate(looks(table["strategy"]).items()):
            rows = table[table["strategy"].astype(str) == name].sort_values("budget")
            x = np.maximum(np.append(rows["budget"].to_numpy(np.float64), end), start)
            y = np.append(rows["share"].to_numpy(np.float64), rows["share"].iloc[-1])
            every = _spread(len(x), place)
            ax.step(x, y, where="post", ms=3.6, mew=0, markevery=every, label=_name(name), **look)
        ax.set_ylim(-0.02, 1.03)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f}"))
        ax.set_xlabel(UNITS.get(unit, unit))
        ax.set_ylabel("targets reached (%)")
        ax.grid(axis="y", lw=0.4, color="0.9")
        _legend_below(ax)
    return ax


def ranks(table: pd.DataFrame, ax: Axes, *, unit: str = "builds") -> Axes:
    """Draws the average rank over tasks against the budget, with its bootstrap band; 1, the best, on top.

    table: `ranks.average_ranks`: columns strategy, budget, rank, low, high. Raises InputError when one is missing.
    """
    _require(table, ("strategy", "budget", "rank", "low", "high"))
    with style():
        _budget_scale(ax, table["budget"])
        shown = looks(table["strategy"])
        for place, (name, look) in enumerate(shown.items()):
            rows = table[table["strategy"].astype(str) == name].sort_values("budget")
            x = rows["budget"].to_numpy(np.float64)
            low, high = (rows[c].to_numpy(np.float64) for c in ("low", "high"))
            if len(shown) <= 6:  # more bands would only be a stain
                ax.fill_between(x, low, high, color=look["color"], alpha=0.1, lw=0, zorder=1)
            ax.plot(x, rows["rank"], ms=3.6, mew=0, markevery=_spread(len(x), place), label=_name(name), **look)
        ax.set_ylim(len(shown) + 0.3, 0.7)
        ax.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        ax.set_xlabel(UNITS.get(unit, unit))
        ax.set_ylabel("average rank (1 is best)")
        ax.grid(axis="y", lw=0.4, color="0.9")
        _legend_below(ax)
    return ax


def critical_difference(
    table: pd.DataFrame, ax: Axes, *, difference: float, groups: Sequence[Sequence[str]] = ()
) -> Axes:
    """Draws average ranks on a line; bars join strategies that Nemenyi's test does not tell apart.

    table: columns strategy, rank. difference: the critical one, in ranks. groups: the bars (`ranks.Friedman.groups`).
    Source: J. Demsar, JMLR 7 (2006) 1-30, figure 1. For the height see `critical_difference_height`. Raises
    InputError when a column is missing.
    """
    _require(table, ("strategy", "rank"))
    with style():
        rows = table.sort_values("rank", kind="stable")
        names, rank = [str(s) for s in rows["strategy"]], rows["rank"].to_numpy(np.float64)
        k = len(names)
        at = dict(zip(names, rank, strict=True))
        # One unit of y is one line of text.
        top = 1.0 + 0.55 * len(groups)
        left = (k + 1) // 2
        bottom = top + left
        ax.plot([1, k], [0, 0], color="black", lw=0.9, clip_on=False)
        for tick in range(1, k + 1):
            ax.plot([tick, tick], [0, -0.22], color="black", lw=0.8, clip_on=False)
            ax.text(tick, -0.35, str(tick), ha="center", va="bottom", fontsize=7.5)
        for i, name in enumerate(names):
            first = i < left
            y = top + (i if first else k - 1 - i)
            end = 1 - 0.04 * (k - 1) if first else k + 0.04 * (k - 1)
            ax.plot([at[name], at[name], end], [0, y, y], color="black", lw=0.7, clip_on=False)
            shift = -0.01 * (k - 1) if first else 0.01 * (k - 1)
            text = f"{_name(name)} ({at[name]:.2f})"
            ax.text(end + shift, y, text, ha="right" if first else "left", va="center", fontsize=7.5)
        for level, group in enumerate(groups):
            ends = [at[name] for name in group]
            pad, y = 0.012 * (k - 1), 0.55 + 0.55 * level
            bar = [min(ends) - pad, max(ends) + pad]
            ax.plot(bar, [y, y], color="#0072B2", lw=3.2, solid_capstyle="butt", clip_on=False, zorder=3)
        ax.plot([1, 1 + difference], [-1.9, -1.9], color="black", lw=1.2, marker="|", ms=6, clip_on=False)
        ax.text(
            1 + difference / 2, -2.05, f"critical difference {difference:.2f}", ha="center", va="bottom", fontsize=7.5
        )
        room = 0.62 * (k - 1)
        ax.set_xlim(1 - room, k + room)
        ax.set_ylim(bottom, -3.0)
        ax.set_axis_off()
    return ax


def critical_difference_height(strategies: int, groups: int) -> float:
    """The height in inches for `critical_difference`."""
    return 0.17 * (4.2 + 0.55 * groups + (strategies + 1) // 2)


def speedups(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws bars of speed-up over the reference with intervals, one per workload, first on top.

    table: columns label, speedup, low, high (infinite or NaN where one build gives no interval), and optionally
    preliminary (drawn hatched). For the height see `bars_height`. Raises InputError when a column is missing.
    """
    _require(table, ("label", "speedup", "low", "high"))
    with style():
        value, low, high = (table[c].to_numpy(np.float64) for c in ("speedup", "low", "high"))
        few = table["preliminary"].to_numpy(bool) if "preliminary" in table else np.zeros(len(table), bool)
        bounded = np.isfinite(low) & np.isfinite(high)
        at = np.arange(len(table))
        for y, v, f in zip(at, value, few, strict=True):
            look: dict[str, Any] = {"fc": "white", "hatch": "////"} if f else {"fc": "#0072B2"}
            ax.barh(y, v - 1, left=1, height=0.58, ec="#0072B2", lw=0.8, **look)
        errors = np.stack([value - low, high - value])[:, bounded]
        ax.errorbar(value[bounded], at[bounded], xerr=errors, fmt="none", ecolor="black", elinewidth=1.0, capsize=2.5)
        ends = np.where(bounded, np.fmax(high, value), value)
        for y, v, end in zip(at, value, ends, strict=True):
            ax.annotate(
                f"{v:.3f}", (max(float(end), 1.0), y), (4, 0), textcoords="offset points", va="center", fontsize=7
            )
        _reference_line(ax, vertical=True)
        left = min(1.0, float(np.min(np.where(bounded, low, value), initial=1.0)))
        right = max(1.0, float(np.max(ends, initial=1.0)))
        span = max(right - left, 0.02)
        ax.set_xlim(left - 0.03 * span, right + 0.14 * span)
        ax.set_yticks(at, [short_label(str(n)) for n in table["label"]])
        ax.set_ylim(len(table) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        note = ";\nhatched: fewer than 5 builds" if few.any() else ""
        ax.set_xlabel(f"speed-up over the reference (95 % interval{note})")
        ax.grid(axis="x", lw=0.4, color="0.9")
    return ax


def bars_height(count: int) -> float:
    """The height in inches for `speedups` of so many bars."""
    return 0.75 + 0.27 * max(2, count)


def _name(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 9]}…{name[-8:]}"


def _spread(points: int, place: int) -> tuple[int, int] | int:
    """Where markers go: about six on a curve, shifted from curve to curve so that they do not hide each other."""
    step = max(1, points // 6)
    return (place % step, step) if step > 1 else 1


def _budget_scale(ax: Axes, budgets: pd.Series) -> None:
    positive = budgets[budgets > 0].astype(np.float64)
    low, high = float(positive.min()), float(positive.max())
    if high > 20 * low:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlim(low / 1.05, high * 1.05)
    else:
        width = high - low or high
        ax.set_xlim((0.0 if low < 0.3 * high else low - 0.03 * width), high + 0.02 * width)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _value_scale(ax: Axes, table: pd.DataFrame) -> float:
    """Logarithmic where it helps; the smallest value that can be drawn."""
    middle, high = table["median"].to_numpy(np.float64), table["high"].to_numpy(np.float64)
    positive = middle[middle > 0]
    if not positive.size or float(positive.max()) <= 20 * float(positive.min()):
        least, most = min(0.0, float(np.nanmin(table["low"]))), max(float(np.nanmax(high)), float(middle.max()), 1e-3)
        ax.set_ylim(least - 0.02 * (most - least), most + 0.06 * (most - least))
        return -np.inf
    largest = float(np.nanmax(high))
    floor = max(float(positive.min()) / 1.5, largest / 3000)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylim(floor / 1.1, largest * 1.2)
    return floor
