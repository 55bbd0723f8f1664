"""The report of one study: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gpt_search.analysis import figures, figures_compare, figures_study
from gpt_search.analysis.curves import drift_table, history_curve
from gpt_search.analysis.report import Block, Document, Facts, Picture, Section, Sentences, Table, Text, rough_count
from gpt_search.analysis.report_parts import accuracy_blocks, importance_blocks, settings_rows
from gpt_search.analysis.study_tables import Rows, accuracy_table, cost_table, timeline_table, trials_table
from gpt_search.domain.history import History

_DEFAULT = "(the default)"


class StudyFacts(NamedTuple):
    """What a report is made from.

    summary: the JSON form of the study's summary (as `show --json`). settings: the study's settings by section. rows:
    finished trials. history: what a strategy would see. changes: of each row, the route without what is at its
    default. losses: of each row, the largest loss over its tolerance, NaN where not measured.
    """

    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: Rows
    history: History
    changes: Sequence[str]
    losses: Sequence[float]


def study_report(facts: StudyFacts) -> Document:
    """The report of a study. It may be running, and may have nothing but failures: then it says that."""
    summary = facts.summary
    timed = bool(len(facts.history)) and bool(facts.history.feasible[0])
    sections = [Section("Result", _result(summary)), Section("What was tuned", _tuned(facts))]
    confirmation = _confirmation(summary)
    if confirmation:
        sections.append(Section("Confirmation", confirmation))
    minimised = _minimisation(summary)
    if minimised:
        sections.append(Section("Minimisation", minimised))
    if timed:
        sections.append(Section("Search", _search(facts)))
        sections.append(Section("Knob importance", importance_blocks(facts.history, str(facts.summary["strategy"]))))
        accuracy = accuracy_blocks(accuracy_table(facts.rows, facts.losses))
        if accuracy:
            sections.append(Section("Accuracy against latency", accuracy))
        sections.append(Section("Drift of the machine", _drift(facts)))
    if facts.rows:
        sections.append(Section("Cost", _cost(facts)))
        table = trials_table(facts.rows, facts.changes, facts.losses)
        sections.append(Section("Trials", [Table("trials", "Every finished trial; loss is over its tolerance", table)]))
    sections.append(Section("Environment and settings", [Facts(settings_rows(facts.settings))]))
    return Document(f"Study {summary['study']}", f"{summary['model']}, {summary['backend']}", sections)


# -- the answer --------------------------------------------------------------------------------------
def _result(summary: Mapping[str, Any]) -> list[Block]:
    latest = summary["confirmations"][-1] if summary["confirmations"] else None
    blocks: list[Block] = []
    if latest is not None and latest["winner"] is not None and latest["speedup"] is not None:
        few = ", preliminary: fewer than 5 builds" if latest["preliminary"] else ""
        answer = "" if latest["verdict"] == "FASTER" else " Keep the default."
        blocks.append(Text(f"Confirmed: {_interval(latest['speedup'])}{few}: {latest['reason']}.{answer}", "headline"))
        if latest.get("trials") != summary["trials"]:
            blocks.append(Text("More trials have finished since this was confirmed; confirm again.", "warning"))
    elif latest is not None:
        blocks.append(Text(f"Nothing is confirmed: {latest['reason']}. Keep the default.", "headline"))
    else:
        blocks.append(Text("Not confirmed. What a search times itself is a nomination, not a result.", "headline"))
    best = summary["nominees"][0] if summary["nominees"] else None
    if best is not None and best["trial"] != 0 and best["speedup"] > 1:
        rows = [
            ("nominated", f"trial {best['trial']}: {best['latency_ms']:.4g} ms, {best['speedup']:.3f}x by the search"),
            ("route", best["changes"] or "(the default)"),
        ]
        if best.get("accuracy"):
            rows.append(("accuracy", _loss(best["accuracy"], summary["metric"])))
        blocks.append(Facts(rows))
    elif best is not None:
        blocks.append(Text("The search timed no route faster than the default."))
    if summary["reference"] == "default-engine":
        blocks.append(
            Text(
                "Golden outputs come from the default engine: losses say how routes differ from it, not who is right.",
                "warning",
            )
        )
    return blocks


def _engines(identity: Mapping[str, Any]) -> str:
    """Engines against routes, and how often the fingerprints that tell engines apart were found to err."""
    if identity["fingerprints"] == "NONE":
        return f"{identity['routes']} routes tried, {identity['timed']} timed; the backend does not tell engines apart"
    text = (
        f"{identity['engines']} distinct for {identity['routes']} routes tried and the reference; {identity['timed']} "
        f"timed, {identity['merged']} took over the samples of an equal engine"
    )
    checked, rebuilt = identity["checked"], identity["rebuilt"]
    if checked["tried"]:
        text += f"; {checked['tried']} of those timed all the same, {checked['events']} differ"
    if rebuilt["tried"]:
        text += f"; {rebuilt['events']} of {rebuilt['tried']} pairs of builds of one route have different fingerprints"
    return text


def _tuned(facts: StudyFacts) -> list[Block]:
    summary = facts.summary
    outcomes = ", ".join(f"{n} {name.lower().replace('_', ' ')}" for name, n in summary["outcomes"].items())
    rows = [
        ("model", str(summary["model"])),
        ("backend", str(summary["backend"])),
        ("search space", f"{summary['knobs']} knobs, {rough_count(summary['routes'])} routes"),
        ("strategy", f"{summary['strategy']}, seed {summary['seed']}"),
        ("trials", f"{summary['trials']} ({outcomes or 'none finished'})"),
        ("time", f"{summary['seconds']:.4g} s" + (f"; {summary['end']}" if summary["end"] else "")),
        ("engines", _engines(summary["identity"])),
    ]
    if summary["reference_ms"] is not None:
        rows.append(("reference", f"{summary['reference_ms']:.4g} ms ({summary['timing']['statistic']})"))
    if summary["reference_accuracy"]:
        rows.append(("its accuracy", _loss(summary["reference_accuracy"], summary["metric"])))
    noise = summary["noise"]
    if noise is not None and noise["value"] is not None:
        where = "the stored floor" if noise["source"] == "floor" else "the reference's own rounds"
        rows.append(("noise", f"{100 * noise['value']:.2g} % (standard deviation of one value), from {where}"))
    if summary["imported"]:
        rows.append(("imported from", str(summary["imported"])))
    return [Facts(rows)]


def _confirmation(summary: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    bars: list[tuple[str, float, float, float, bool]] = []
    for data in summary["confirmations"]:
        if data["winner"] is None or data["speedup"] is None:
            continue
        found, claimed = data["speedup"], float(data["winner"]["speedup"])
        off = 100 * (claimed / found["estimate"] - 1)
        more = "more" if off > 0 else "less"
        blocks.append(
            Facts(
                [
                    (f"confirmation {data['number']}", f"trial {data['winner']['trial']}: {_interval(found)}"),
                    ("claimed", f"{claimed:.3f}x by the search's own timing: {abs(off):.1f} % {more} than confirmed"),
                    ("latency", f"{data['latency_ms']:.4g} ms against {data['reference_ms']:.4g} ms"),
                    ("verdict", f"{data['reason']}, at a one-sided level of {50 * (1 - found['level']):g} %"),
                ]
            )
        )
        trial = data["winner"]["trial"]
        bars.append((f"trial {trial}, claimed by the search", claimed, np.nan, np.nan, True))
        high = np.inf if found["high"] is None else found["high"]
        bars.append((f"trial {trial}, confirmed", found["estimate"], found["low"], high, bool(data["preliminary"])))
        stage = [
            (int(t), i["estimate"], i["low"], _none(i["high"]), i["n"]) if i else (int(t), None, None, None, 0)
            for t, i in (data.get("stage_1_intervals") or {}).items()
        ]
        if stage:
            table = pd.DataFrame(stage, columns=["trial", "speedup", "low", "high", "builds"])
            caption = "Stage 1: fresh builds of the nominated routes; its intervals hold together at 95 %"
            blocks.append(Table(f"stage_1_{data['number']}", caption, table))
    if bars:
        table = pd.DataFrame(bars, columns=["label", "speedup", "low", "high", "preliminary"])
        claimed_rows = table["low"].isna() & table["label"].str.endswith("search")
        figure, ax = figures.new_figure(figures_compare.bars_height(len(table)))
        # A claim is no estimate with an interval: it is hatched, as what rests on too few builds is.
        figures_compare.speedups(table.assign(preliminary=table["preliminary"] | claimed_rows), ax)
        ax.set_xlabel("speed-up over the reference (95 % interval;\nhatched: claimed, or fewer than 5 builds)")
        blocks.append(Picture("speedups", "Claimed and confirmed speed-up", figure))
    return blocks


def _minimisation(summary: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for data in summary["minimisations"][-1:]:
        if data["route"] is None:
            return [Text(str(data["reason"]))]
        rows = [
            ("kept", f"{len(data['kept'])} changes of trial {data['winner']['trial']}, {len(data['removed'])} removed")
        ]
        if data["speedup"] is not None:
            rows.append(("speed-up", f"{_interval(data['speedup'])}: {data['reason']}"))
        rows += [("route", data["changes"] or "(the default)"), ("builds", str(data["builds"]))]
        blocks.append(Facts(rows))
        changes = [
            (
                c["knob"],
                c["value"],
                "kept",
                c["why"].lower().replace("_", " "),
                *((100 * (w["estimate"] - 1), 100 * (w["low"] - 1)) if (w := c.get("worth")) else (np.nan, np.nan)),
            )
            for c in data["kept"]
        ] + [
            (c["knob"], c["value"], "removed", c["why"].lower().replace("_", " "), np.nan, np.nan)
            for c in data["removed"]
        ]
        columns = ["knob", "value", "what", "why", "worth_percent", "at_least"]
        caption = "Changes of the winner, and how much slower the route is without each kept one (%)"
        blocks.append(Table("minimisation", caption, pd.DataFrame(changes, columns=columns)))
        if data["notes"]:
            blocks.append(Sentences([str(n) for n in data["notes"]]))
    return blocks


# -- what it rests on --------------------------------------------------------------------------------
def _search(facts: StudyFacts) -> list[Block]:
    confirmed = None
    for data in facts.summary["confirmations"]:
        if data["speedup"] is not None:
            found = data["speedup"]
            confirmed = (found["low"], found["estimate"], found["high"])
    figure, ax = figures.new_figure()
    figures.best_so_far(history_curve(facts.history), ax, confirmed=confirmed)
    caption = "Best speed-up so far; the best of many noisy values is too good on average, so it is confirmed"
    nominees = pd.DataFrame(
        [
            (
                n["trial"],
                n["latency_ms"],
                n["speedup"],
                100 * (n["ratio_error"] or np.nan),
                n["changes"] or "(the default)",
            )
            for n in facts.summary["nominees"]
        ],
        columns=["trial", "latency_ms", "speedup", "error_percent", "changes"],
    )
    return [Picture("best", caption, figure), Table("nominees", "Nominated routes, best first", nominees)]


def _drift(facts: StudyFacts) -> list[Block]:
    try:
        table = drift_table(facts.rows)
    except ValueError as error:
        return [Text(str(error))]
    figure, ax = figures.new_figure()
    figures.drift(table, ax)
    return [Picture("drift", "The reference through the whole run, and what pairing made of every value", figure)]


def _cost(facts: StudyFacts) -> list[Block]:
    blocks: list[Block] = []
    table = cost_table(facts.rows)
    if len(table) and float(table["seconds"].sum()) > 0:
        figure, ax = figures.new_figure(figures_study.cost_height(table))
        figures_study.cost(table, ax)
        blocks.append(Picture("cost", "Where the time went, by outcome and phase; without the reference", figure))
        blocks.append(Table("cost", "The same in seconds", table))
    lanes = timeline_table(facts.rows)
    if len(lanes):
        figure, ax = figures.new_figure(figures_study.timeline_height(lanes))
        figures_study.timeline(lanes, ax)
        caption = (
            "What ran when. Records hold ends and lengths of phases, so phases are drawn without a gap up to the end "
            "of their trial; rows say what ran at the same time, not which worker it was"
        )
        blocks.append(Picture("timeline", caption, figure))
    return blocks or [Text("No costs are recorded.")]


# -- words -------------------------------------------------------------------------------------------
def _interval(found: Mapping[str, Any]) -> str:
    high = "inf" if found["high"] is None else f"{found['high']:.3f}"
    builds = f"{found['n']} build{'' if found['n'] == 1 else 's'}"
    return f"{found['estimate']:.3f}x [{found['low']:.3f}, {high}] ({100 * found['level']:g} %, {builds})"


def _loss(accuracy: Mapping[str, Any], metric: str) -> str:
    loss = accuracy["loss"]
    shown = loss if isinstance(loss, str) else f"{loss:.3g}"
    return f"{metric} loss {shown} of {accuracy['tolerance']:g} allowed (output {accuracy['output']!r})"


def _none(value: float | None) -> float:
    return np.inf if value is None else float(value)
