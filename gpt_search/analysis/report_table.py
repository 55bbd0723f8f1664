"""The report of a recorded table: what there is to find in a space, and which knobs matter there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from gpt_search.analysis import figures, figures_compare
from gpt_search.analysis.curves import CONFIDENCE_Z
from gpt_search.analysis.report import Block, Document, Facts, Picture, Section, Text, rough_count
from gpt_search.analysis.report import Table as Listing
from gpt_search.analysis.report_parts import accuracy_blocks, importance_blocks, settings_rows
from gpt_search.analysis.study_tables import with_front
from gpt_search.analysis.table_history import recorded_order, table_history, table_losses
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Outcome
from gpt_search.store.tables import Table

BARS = 8
FEW_BUILDS = 5
"""Fewer are preliminary, as in a confirmation."""


def table_report(table: Table, about: Mapping[str, Any]) -> Document:
    """The report of a table. about: what `gpt-search table info --json` says of it.

    Raises InputError where the table lacks the reference route, or that failed.
    """
    history = table_history(table)
    defaults = table.settings.get("database", {}).get("defaults") or {}
    changes = [str(table.route(row).changes(defaults)) or "(the default)" for row in recorded_order(table)]
    engines = engines_table(table, history, changes)
    routes = pd.DataFrame(
        {
            "trial": np.arange(len(history)),
            "speedup": np.where(history.feasible, history.value[0] / history.value, np.nan),
            "loss": np.asarray(table_losses(table), np.float64),
            "feasible": history.feasible,
        }
    )
    sections = [
        Section("Result", _result(table, about, engines)),
        Section("Fastest engines", _engines(engines)),
        # Recorded routes are all there are, or drawn uniformly; an import may be of a tuner that learns.
        Section("Knob importance", importance_blocks(history, "random" if table.paired else None)),
    ]
    accuracy = accuracy_blocks(with_front(routes[routes["loss"].notna()].reset_index(drop=True)))
    if accuracy:
        sections.append(Section("Accuracy against latency", accuracy))
    listed = pd.DataFrame(
        {
            "route": routes["trial"],
            "outcome": [Outcome(o).name for o in history.outcome.tolist()],  # type: ignore[call-arg]
            "speedup": routes["speedup"],
            "loss": routes["loss"],
            "changes": changes,
        }
    )
    caption = "Every recorded route, the reference first; loss is over its tolerance"
    sections.append(Section("Routes", [Listing("routes", caption, listed)]))
    sections.append(Section("Environment and settings", [Facts(settings_rows(table.settings.sections))]))
    return Document(f"Table {table.name}", f"{about['workload']}, {about['backend']}", sections)


def engines_table(table: Table, history: History, changes: list[str]) -> pd.DataFrame:
    """The feasible engines, fastest first.

    Columns: engine (1 is the fastest), speedup (over the reference, by the half of the rounds that is for the truth),
    low and high (95 %, rounds and builds; NaN where builds were not repeated), chosen (the same by the other half),
    builds, routes (that give this engine), changes (the fewest that do). history, changes: of `table_history`.
    """
    effect, order = table.between_builds, recorded_order(table)
    rows = []
    feasible = np.flatnonzero(history.feasible)
    for began in np.unique(history.samples[feasible]).tolist():
        alike = feasible[history.samples[feasible] == began].tolist()
        plain = min(alike, key=lambda trial: (int((history.codes[trial] != history.codes[0]).sum()), trial))
        timed = table.timed(order[plain])
        replayed = [table.estimate(table.replay_rounds(r)).log_ratio for r in timed]
        log_ratio, chosen = (0.0, 0.0) if began == 0 else (table.truth[order[plain]], float(np.mean(replayed)))
        error = math.nan
        if began == 0:
            error = 0.0  # by definition
        elif effect is not None:  # of its own builds, and of the reference beside each
            error = math.hypot(table.truth_error[order[plain]], effect.deviation * math.sqrt(2 / len(timed)))
        ratios = (log_ratio, log_ratio + CONFIDENCE_Z * error, log_ratio - CONFIDENCE_Z * error, chosen)
        rows.append((*(math.exp(-r) for r in ratios), len(timed), len(alike), changes[plain]))
    columns = ["speedup", "low", "high", "chosen", "builds", "routes", "changes"]
    found = pd.DataFrame(rows, columns=columns).sort_values("speedup", ascending=False, kind="stable")
    return found.assign(engine=np.arange(1, len(found) + 1))[["engine", *columns]].reset_index(drop=True)


def _result(table: Table, about: Mapping[str, Any], engines: pd.DataFrame) -> list[Block]:
    best = engines.iloc[int(engines["chosen"].to_numpy().argmax())]
    recorded = "every route of the space" if table.complete else f"{len(table):,} of {rough_count(table.space.size)}"
    outcomes = ", ".join(f"{n:,} {name.lower().replace('_', ' ')}" for name, n in about["outcomes"].items())
    rows = [
        ("its route", str(best["changes"])),
        ("recorded", f"{recorded}: {len(table):,} routes ({outcomes}), {len(table.row):,} builds"),
        ("engines", f"{len(engines):,} distinct ones that are feasible"),
        ("reference", f"{table.reference_ms:.4g} ms" + ("" if table.paired else "; samples are not paired")),
    ]
    effect = table.between_builds
    if effect is None:
        rows.append(("builds", "none was repeated: what builds differ by is not known"))
    else:
        low, high = (100 * math.sqrt(v) for v in (effect.low, effect.high))
        rows.append(
            (
                "builds",
                f"differ by {100 * effect.deviation:.2g} % (standard deviation; 95 %: {low:.2g} to {high:.2g} %)",
            )
        )
    headline = (
        f"{best['speedup']:.3f}x over the reference: one half of the timing rounds chose this engine as the fastest, "
        "the other half measured it."
        if best["chosen"] > 1
        else "No engine is faster than the reference."
    )
    return [Text(headline, "headline"), Facts(rows)]


def _engines(engines: pd.DataFrame) -> list[Block]:
    shown = engines.head(BARS)
    bars = shown.assign(label=[f"engine {n}" for n in shown["engine"]], preliminary=shown["builds"] < FEW_BUILDS)
    figure, ax = figures.new_figure(figures_compare.bars_height(len(bars)))
    figures_compare.speedups(bars, ax)
    caption = "Distinct feasible engines, fastest first: how many routes give each, and the one with the fewest changes"
    return [
        Picture(
            "speedups", "Speed-up of the fastest engines; that of the first of many is too good on average", figure
        ),
        Listing("engines", caption, engines),
    ]
