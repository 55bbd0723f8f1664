"""A study and its confirmation as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpt_search.cli.common import approximate_count, print_wrapped
from gpt_search.cli.live import clock_text

if TYPE_CHECKING:
    from gpt_search.run.result import StudySummary

_LABEL = 11


def print_summary(summary: StudySummary) -> None:
    """What a study found, labels on the left; lines are folded at the terminal's width."""
    _row("study", f"{summary.study} in {summary.storage}")
    _row("model", f"{summary.model} ({summary.backend})")
    _row(
        "space",
        f"{summary.knobs} knobs, {approximate_count(summary.routes)} routes; "
        f"strategy {summary.strategy}, seed {summary.seed}",
    )
    counts = ", ".join(f"{n} {name.lower()}" for name, n in summary.outcomes.items())
    unfinished = f"; {summary.unfinished} unfinished" if summary.unfinished else ""
    _row(
        "trials",
        f"{summary.trials} ({counts or 'none finished'}){unfinished}; {summary.engines} distinct engines; "
        f"{clock_text(summary.clock_s)}" + (f"; {summary.end}" if summary.end else ""),
    )
    if summary.reference_ms is not None:
        _row("reference", f"{summary.reference_ms:.4g} ms{_loss(summary.reference_worst, summary.metric)}")
    if summary.golden_kind == "default-engine":
        _row("", "golden outputs come from the default engine: losses say how routes differ from it, not who is right")
    if not summary.nominees:
        return
    best = summary.nominees[0]
    if best.trial == 0 or best.ratio >= 1:
        _row("best", "the default: no route was timed faster")
        return
    _row(
        "best",
        f"trial {best.trial}: {best.latency_ms:.4g} ms, {1 / best.ratio:.3f}x by the search's own timing (a nomination)"
        f"{_loss(best.worst, summary.metric)}",
    )
    _row("route", best.changes or "(the default)")
    if summary.confirmations:
        print_confirmation(summary.confirmations[-1], summary.metric)


def print_confirmation(data: Mapping[str, Any], metric: str) -> None:
    """The headline: the confirmed speed-up with its interval, or that the default should be kept."""
    winner, speedup = data["winner"], data["speedup"]
    if winner is None or speedup is None:
        _row("confirmed", f"keep the default: {data['reason']}")
        return
    high = "inf" if speedup["high"] is None else f"{speedup['high']:.3f}"
    few = ", preliminary: fewer than 5 builds" if data["preliminary"] else ""
    _row(
        "confirmed",
        f"trial {winner['trial']}: {speedup['estimate']:.3f}x [{speedup['low']:.3f}, {high}] "
        f"({100 * speedup['level']:g} %, {speedup['n']} builds{few}): {data['reason']}",
    )
    _row(
        "",
        f"{data['latency_ms']:.4g} ms against {data['reference_ms']:.4g} ms; "
        f"the search claimed {winner['speedup']:.3f}x",
    )
    accuracy = data["accuracy"]
    if accuracy is not None:
        loss = accuracy["loss"]
        shown = loss if isinstance(loss, str) else f"{loss:.3g}"
        _row("accuracy", f"{metric} loss {shown} of {accuracy['tolerance']:g} allowed (output {accuracy['output']!r})")
    _row("route", winner["changes"] or "(the default)")


def _loss(worst: Any, metric: str) -> str:
    if worst is None:
        return ""
    return f"; {metric} loss {worst.loss:.3g} of {worst.tolerance:g} allowed (output {worst.output!r})"


def _row(label: str, text: str) -> None:
    print_wrapped(text, indent=" " * _LABEL, first=f"{label:<{_LABEL}}")
