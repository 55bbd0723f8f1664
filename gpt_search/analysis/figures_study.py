"""Figures of one study beside its curve and its drift. Each takes a table and Axes and returns the Axes.

The tables are made in `gpt_search.analysis.study_tables` and `gpt_search.analysis.importance_set`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from gpt_search.analysis.figures import (
    BLUE,
    GREY,
    RED,
    _knob_axis,
    _legend_below,
    _require,
    short_label,
    style,
)

PHASES: dict[str, tuple[str, str]] = {
    "start": ("#BBBBBB", ""),
    "build": ("#0072B2", ""),
    "gate": ("#E69F00", "////"),
    "time": ("#009E73", "...."),
}
"""Colour and hatching of the phases of a trial."""
_OTHER = ("#CC79A7", "xxxx")
_LABELS = {"start": "worker start", "build": "build", "gate": "accuracy", "time": "timing"}


def importance_bars(table: pd.DataFrame, ax: Axes, *, limit: int = 12) -> Axes:
    """Draws importance by one method as bars, with intervals where there are any, the first knobs on top.

    table: rows of one method of `Importance.knobs`: columns knob, importance, low, high. limit: how many knobs. For
    the height see `figures.importance_height`. Raises InputError when a column is missing.
    """
    _require(table, ("knob", "importance", "low", "high"))
    with style():
        rows = table[table["importance"] > 0].sort_values("importance", ascending=False, kind="stable").head(limit)
        if not len(rows):
            ax.text(0.5, 0.5, "no knob has an effect", ha="center", va="center", transform=ax.transAxes)
            ax.set_axis_off()
            return ax
        at = np.arange(len(rows))
        share, low, high = (100 * rows[c].to_numpy(np.float64) for c in ("importance", "low", "high"))
        ax.barh(at, share, height=0.6, color=BLUE)
        there = np.isfinite(low) & np.isfinite(high)
        errors = np.maximum(np.stack([share - low, high - share]), 0)[:, there]
        ax.errorbar(share[there], at[there], xerr=errors, fmt="none", ecolor="black", elinewidth=1.0, capsize=2.5)
        end = np.where(there, np.fmax(high, share), share)
        for y, s, e in zip(at, share, end, strict=True):
            ax.annotate(f"{s:.1f}", (float(e), y), (4, 0), textcoords="offset points", va="center", fontsize=7)
        _knob_axis(ax, at, [short_label(str(k)) for k in rows["knob"]])
        ax.set_xlim(0, 1.12 * max(float(end.max()), 1.0))
        interval = ", 95 % interval" if there.any() else ""
        ax.set_xlabel(f"importance (% of what the method explains{interval})")
        ax.grid(axis="x", lw=0.4, color="0.9")
        left_out = len(table) - len(rows)
        if left_out:
            ax.set_title(f"the first {len(rows)} of {len(table)} knobs", loc="left", color="0.35", fontsize=8)
    return ax


def interaction_map(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws interactions as a heat map: what two values do together beyond their effects alone, in per cent.

    table: `importance_sparse.interactions`: columns first, first_value, second, second_value, ratio, holm. Numbers
    stand in the cells; those in bold are certain (Holm p < 0.05). Cells without enough routes are empty. For the
    height see `interaction_height`. Raises InputError when a column is missing.
    """
    _require(table, ("first", "first_value", "second", "second_value", "ratio", "holm"))
    with style():
        names: list[str] = []
        for side in ("first", "second"):
            for knob, value in zip(table[side], table[f"{side}_value"], strict=True):
                text = f"{knob}={value}"
                if text not in names:
                    names.append(text)
        if len(names) < 2:
            ax.text(0.5, 0.5, "no pair of knobs to look at", ha="center", va="center", transform=ax.transAxes)
            ax.set_axis_off()
            return ax
        place = {name: i for i, name in enumerate(names)}
        k = len(names)
        cells, certain = np.full((k, k), np.nan), np.zeros((k, k), bool)
        for row in list[Any](table.itertuples(index=False)):
            i, j = place[f"{row.second}={row.second_value}"], place[f"{row.first}={row.first_value}"]
            cells[max(i, j), min(i, j)] = 100 * (row.ratio - 1)
            certain[max(i, j), min(i, j)] = row.holm < 0.05
        grid = cells[1:, :-1]
        most = max(float(np.nanmax(np.abs(grid), initial=0.0)), 1.0)  # less than 1 % stays pale
        # Vector cells, not an image: an image would be blurred in print. Blue is faster, red slower.
        norm = TwoSlopeNorm(0.0, -most, most)
        ax.pcolormesh(np.ma.masked_invalid(grid), cmap="RdBu_r", norm=norm, edgecolors="white", lw=1.0)
        for (i, j), value in np.ndenumerate(grid):
            if np.isfinite(value):
                strong = abs(value) > 0.62 * most
                weight = "bold" if certain[i + 1, j] else "normal"
                # Not plain black and white: those follow the page's colours where a report is dark.
                ink = "#FEFEFE" if strong else "#010101"
                ax.text(
                    j + 0.5, i + 0.5, f"{value:+.1f}", ha="center", va="center", fontsize=7, color=ink, weight=weight
                )
        labels = [short_label(n, 24) for n in names]
        ax.set_yticks(np.arange(k - 1) + 0.5, labels[1:], linespacing=1.1)
        ax.set_xticks(
            np.arange(k - 1) + 0.5, labels[:-1], rotation=40, ha="right", rotation_mode="anchor", linespacing=1.0
        )
        ax.set_ylim(k - 1, 0)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_title(
            "latency with both / what their effects alone give, - 1 (%)\nbelow 0: faster together; bold: Holm p < 0.05",
            loc="left",
            fontsize=8,
        )
    return ax


def interaction_height(table: pd.DataFrame) -> float:
    """The height in inches for `interaction_map` of that table."""
    return 1.7 + 0.3 * len(set(table["first"]) | set(table["second"]))


def accuracy_latency(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws loss against latency of every trial that has both, with the line beyond which routes are refused.

    table: `study_tables.accuracy_table`: columns trial, speedup, loss (over its tolerance: 1 is the limit), feasible,
    best (the fastest route that none beats in both: the front). Losses of 0 lie on the lower edge. Raises InputError
    when a column is missing.
    """
    _require(table, ("trial", "speedup", "loss", "feasible", "front"))
    with style():
        rows = table[np.isfinite(table["speedup"])]
        loss, speed = rows["loss"].to_numpy(np.float64), rows["speedup"].to_numpy(np.float64)
        finite = loss[np.isfinite(loss) & (loss > 0)]
        least = float(finite.min(initial=1.0)) if finite.size else 0.1
        most = float(finite.max(initial=1.0)) if finite.size else 1.0
        low, high = max(least / 2, 1e-9), min(max(most, 1.0) * 2, 1e6)
        y = np.clip(np.nan_to_num(loss, nan=high, posinf=high), low, high)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ok, front = rows["feasible"].to_numpy(bool), rows["front"].to_numpy(bool)
        first = rows["trial"].to_numpy() == 0
        plain = ok & ~first
        ax.axhspan(1.0, high * 1.5, color=RED, alpha=0.07, lw=0)
        ax.axhline(1.0, color=RED, lw=1.1, ls=(0, (4, 2)), label="tolerance")
        ax.plot(speed[plain], y[plain], "o", ms=3.2, mfc="none", mec=GREY, mew=0.8, label="within the tolerance")
        if (~ok & ~first).any():
            ax.plot(speed[~ok & ~first], y[~ok & ~first], "x", ms=3.8, color=RED, mew=0.9, label="refused")
        order = np.argsort(speed[front], kind="stable")
        ax.plot(speed[front][order], y[front][order], "-D", ms=3.4, lw=0.9, color=BLUE, mew=0, label="best trade-offs")
        if first.any():
            ax.plot(speed[first], y[first], "*", ms=8, color="black", mew=0, label="reference")
        ax.axvline(1.0, color="black", lw=0.7, ls=(0, (1, 2)))
        ax.set_ylim(low / 1.5, high * 1.5)
        ax.set_xlabel("speed-up over the reference (faster to the right)")
        ax.set_ylabel("loss / its tolerance")
        ax.grid(lw=0.4, color="0.92")
        _legend_below(ax)
    return ax


def cost(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws where the time went: one stacked bar per group of trials, by phase.

    table: `study_tables.cost_table`: columns group, phase, seconds, trials. For the height see `cost_height`. Raises
    InputError when a column is missing.
    """
    _require(table, ("group", "phase", "seconds", "trials"))
    with style():
        groups = list(dict.fromkeys(table["group"].astype(str)))
        unit, name = _unit(float(table.groupby("group")["seconds"].sum().max()) if len(table) else 1.0)
        left = np.zeros(len(groups))
        for phase in dict.fromkeys(table["phase"].astype(str)):
            color, hatch = PHASES.get(phase, _OTHER)
            rows = table[table["phase"] == phase].set_index("group")["seconds"]
            width = np.array([float(rows.get(g, 0.0)) / unit for g in groups])
            ax.barh(
                range(len(groups)),
                width,
                left=left,
                height=0.6,
                color=color,
                hatch=hatch,
                ec="white",
                lw=0.4,
                label=_LABELS.get(phase, phase),
            )
            left += width
        count = table.groupby("group")["trials"].first()
        for y, (group, end) in enumerate(zip(groups, left, strict=True)):
            n = int(count[group])
            text = f"{end:.3g} {name}, {n} trial{'' if n == 1 else 's'}"
            ax.annotate(text, (end, y), (4, 0), textcoords="offset points", va="center", fontsize=7)
        ax.set_yticks(range(len(groups)), groups)
        ax.set_ylim(len(groups) - 0.4, -0.6)
        ax.set_xlim(0, 1.3 * max(float(left.max(initial=0.0)), 1e-9))
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(f"time ({name})")
        ax.grid(axis="x", lw=0.4, color="0.9")
        _legend_below(ax)
    return ax


def cost_height(table: pd.DataFrame) -> float:
    """The height in inches for `cost` of that table."""
    return 1.0 + 0.3 * max(2, table["group"].nunique())


def timeline(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draws what ran when: a row for each trial that ran at the same time as others, phases one after the other.

    table: `study_tables.timeline_table`: columns lane, phase, start_s, end_s, failed. Raises InputError when a column
    is missing.
    """
    _require(table, ("lane", "phase", "start_s", "end_s", "failed"))
    with style():
        unit, name = _unit(float(table["end_s"].max()) if len(table) else 1.0)
        for phase in dict.fromkeys(table["phase"].astype(str)):
            rows = table[table["phase"] == phase]
            color, _ = PHASES.get(phase, _OTHER)
            start = rows["start_s"].to_numpy(np.float64) / unit
            width = rows["end_s"].to_numpy(np.float64) / unit - start
            ax.barh(rows["lane"], width, left=start, height=0.72, color=color, lw=0, label=_LABELS.get(phase, phase))
        failed = table[table["failed"]]
        if len(failed):
            at = failed.groupby(["lane", "trial"])["end_s"].max().reset_index()
            ax.plot(at["end_s"] / unit, at["lane"], "x", ms=3.6, color=RED, mew=1.0, label="failed", ls="none")
        lanes = int(table["lane"].max()) + 1 if len(table) else 1
        ax.set_xlim(left=0)
        ax.set_yticks(range(lanes), [str(i + 1) for i in range(lanes)])
        ax.set_ylim(lanes - 0.4, -0.6)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=8))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.set_xlabel(f"time since the study began ({name})")
        ax.set_ylabel("trials at a time")
        _legend_below(ax)
    return ax


def timeline_height(table: pd.DataFrame) -> float:
    """The height in inches for `timeline` of that table."""
    return 1.1 + 0.24 * (int(table["lane"].max()) + 1 if len(table) else 1)


def _unit(seconds: float) -> tuple[float, str]:
    if seconds > 3 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds > 300 else (1.0, "s")
