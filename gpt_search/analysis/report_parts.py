"""Parts that the reports of a study and of a table share: knob importance, accuracy against latency, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from gpt_search.analysis import figures, figures_study
from gpt_search.analysis.importance_set import METHODS, Importance, measure_importance
from gpt_search.analysis.report import Block, Picture, Table, Text
from gpt_search.domain.history import History

SHOWN_KNOBS = 12


def importance_blocks(history: History, strategy: str | None) -> list[Block]:
    """Which knobs matter, by every method. strategy: as for `importance_data.adaptivity`."""
    found = measure_importance(history, strategy=strategy)
    blocks: list[Block] = []
    if found.adaptive.warning is not None:
        blocks.append(Text(found.adaptive.warning[0].upper() + found.adaptive.warning[1:], "warning"))
    if found.left_out:
        left = ", ".join(found.left_out)
        blocks.append(Text(f"Too few routes, or no effect, for: {left} ({found.routes} distinct feasible routes)."))
    for method in METHODS:
        rows = found.knobs[found.knobs["method"] == method]
        if not (rows["importance"] > 0).any():
            continue
        shown = rows[rows["importance"] > 0].head(SHOWN_KNOBS)
        figure, ax = figures.new_figure(figures.importance_height(shown, SHOWN_KNOBS))
        figures_study.importance_bars(rows, ax, limit=SHOWN_KNOBS)
        blocks.append(Picture(f"importance_{method.replace('-', '_')}", _sentence(METHODS[method]), figure))
    blocks += _tables(found)
    return blocks or [Text("No knob was changed in a route that could be timed.")]


def _sentence(text: str) -> str:
    """With a capital, but for fANOVA, whose name has a small letter."""
    return text if text.startswith("fANOVA") else text[:1].upper() + text[1:]


def _tables(found: Importance) -> list[Block]:
    blocks: list[Block] = []
    if len(found.stability):
        caption = "Stability: how the order of the first 10 knobs fares in bootstrap resamples of the trials"
        blocks.append(Table("stability", caption, found.stability))
    if len(found.effects):
        caption = (
            "Sparse-linear effects: latency with a value over latency at the default, all other knobs equal, 95 % "
            f"intervals; the model explains {100 * found.explained:.0f} % of the variance of held-out routes"
        )
        blocks.append(Table("effects", caption, found.effects))
    if len(found.singles):
        caption = "One-at-a-time: the reference with one knob changed, 95 % intervals"
        blocks.append(Table("single_changes", caption, found.singles))
    if len(found.pairs):
        figure, ax = figures.new_figure(figures_study.interaction_height(found.pairs))
        figures_study.interaction_map(found.pairs, ax)
        blocks.append(Picture("interactions", "Interactions among the screened knobs", figure))
        caption = "Interactions: latency with both values over what the two alone give; all intervals together at 95 %"
        blocks.append(Table("interactions", caption, found.pairs))
    if len(found.knobs):
        blocks.append(Table("importance", "Importance of every knob by every method", found.knobs))
    return blocks


def accuracy_blocks(table: pd.DataFrame) -> list[Block]:
    """Losses against speed-ups; nothing where no timed route has a loss. table: see `accuracy_table`."""
    if not table["speedup"].notna().any():
        return []
    figure, ax = figures.new_figure()
    figures_study.accuracy_latency(table, ax)
    caption = "Loss over its tolerance against speed-up; what lies above the dashed line is refused"
    return [Picture("accuracy", caption, figure)]


def settings_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings that say what the results hold for, one leaf a row; knobs and digests of long lists by length."""
    shown = (
        "environment",
        "protocol",
        "tolerance",
        "golden",
        "workload",
        "database",
        "limits",
        "options",
        "fingerprint",
    )
    rows: list[tuple[str, str]] = []
    for section in shown:
        value = settings.get(section)
        if isinstance(value, Mapping):
            rows += [(f"{section}: {key}", _leaf(v)) for key, v in value.items() if v not in (None, {}, [])]
        elif value is not None:
            rows.append((section, _leaf(value)))
    return rows


def _leaf(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > 400:
        size = f"{len(value)} entries" if isinstance(value, (Mapping, list)) else f"{len(text)} characters"
        return f"{text[:300]} ... ({size})"
    return text
