"""A study and its confirmation, as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import approximate_count, print_wrapped, text_width
from gpt_search.cli.live import clock_text, speedup_text

if TYPE_CHECKING:
    from gpt_search.run.result import StudySummary

_LABEL = 11


def command_for(command: str, study: str, storage: str, *more: str) -> str:
    """The command line `gpt-search COMMAND STUDY --storage URL ...`, as it can be typed in a shell."""
    return shlex.join(["gpt-search", command, study, "--storage", storage, *more])


def latest_confirmation(summary: StudySummary) -> Mapping[str, Any] | None:
    """The latest confirmation, when it saw every trial that the study has; None otherwise."""
    if not summary.confirmations or summary.confirmations[-1].get("trials") != summary.trials:
        return None
    return summary.confirmations[-1]


def summary_json(summary: StudySummary) -> dict[str, Any]:
    """The summary for `--json`; raw samples stay in the records."""
    return summary.to_json() | {"confirmations": [confirmation_json(c) for c in summary.confirmations]}


def confirmation_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """A confirmation for `--json`: every build with its outcome and its ratio, without its raw samples."""
    return {
        **data,
        "stage_1": {trial: [_build_json(e) for e in builds] for trial, builds in data["stage_1"].items()},
        "stage_2": [_build_json(e) for e in data["stage_2"]],
    }


def _build_json(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in evaluation.items() if key != "rounds"}


def print_summary(summary: StudySummary) -> None:
    """What a study found, and what to do next: labels on the left, lines folded at the terminal's width."""
    _row("study", f"{summary.study} in {summary.storage}")
    _row("model", f"{_near(summary.model)} ({summary.backend})")
    _row(
        "space",
        f"{_count(summary.knobs, 'knob')}, {_count(summary.routes, 'route')}; "
        f"strategy {summary.strategy}, seed {summary.seed}",
    )
    counts = ", ".join(f"{n} {name.lower().replace('_', ' ')}" for name, n in summary.outcomes.items())
    unfinished = f"; {summary.unfinished} unfinished" if summary.unfinished else ""
    _row(
        "trials",
        f"{summary.trials} ({counts or 'none finished'}){unfinished}; {_count(summary.engines, 'distinct engine')}; "
        f"{clock_text(summary.clock_s)}" + (f"; {summary.end}" if summary.end else ""),
    )
    if summary.reference_ms is not None:
        _row("reference", f"{summary.reference_ms:.4g} ms{_loss(summary.reference_worst, summary.metric)}")
    if summary.golden_kind == "default-engine":
        _row("", "golden outputs come from the default engine: losses say how routes differ from it, not who is right")
    latest = summary.confirmations[-1] if summary.confirmations else None
    confirmed = latest is not None and latest["winner"] is not None
    best = summary.nominees[0] if summary.nominees else None
    faster = best is not None and best.trial != 0 and best.ratio < 1
    if best is not None and faster:
        _row(
            "best",
            f"trial {best.trial}: {best.latency_ms:.4g} ms, {speedup_text(1 / best.ratio)} by the search's own timing "
            f"(a nomination){_loss(best.worst, summary.metric)}",
        )
        _row("route", best.changes or "(the default)")
    elif best is not None:
        _row("best", "the default: no route was timed faster")
    if latest is not None and (faster or confirmed):
        print_confirmation(latest, summary.metric, shown_route=best.route if best is not None and faster else None)
        since = summary.trials - latest.get("trials", summary.trials)
        if since > 0:
            _row("", f"{_count(since, 'trial')} finished since then")
    if faster and latest_confirmation(summary) is None:
        _command("next", command_for("confirm", summary.study, summary.storage))
    elif confirmed and latest is not None and latest["verdict"] == "FASTER":
        _command("next", command_for("export", summary.study, summary.storage, "--as", "engine", "OUT"))


def print_confirmation(data: Mapping[str, Any], metric: str, shown_route: str | None = None) -> None:
    """The headline: the confirmed speed-up with its interval, or that the default should be kept.

    shown_route: a route that the reader has just seen, and need not see again.
    """
    winner, speedup = data["winner"], data["speedup"]
    if winner is None or speedup is None:
        _row("confirmed", f"keep the default: {data['reason']}")
        return
    high = "inf" if speedup["high"] is None else f"{speedup['high']:.3f}"
    few = ", preliminary: fewer than 5" if data["preliminary"] else ""
    _row(
        "confirmed",
        f"trial {winner['trial']}: {speedup_text(speedup['estimate'])} [{speedup['low']:.3f}, {high}] "
        f"({100 * speedup['level']:g} %, {_count(speedup['n'], 'build')}{few}): {data['reason']}",
    )
    _row(
        "",
        f"{data['latency_ms']:.4g} ms against {data['reference_ms']:.4g} ms; "
        f"the search claimed {speedup_text(winner['speedup'])}",
    )
    accuracy = data["accuracy"]
    if accuracy is not None:
        loss = accuracy["loss"]
        shown = loss if isinstance(loss, str) else f"{loss:.3g}"
        _row("accuracy", f"{metric} loss {shown} of {accuracy['tolerance']:g} allowed (output {accuracy['output']!r})")
    if winner["route"] != shown_route:
        _row("route", winner["changes"] or "(the default)")


def _loss(worst: Any, metric: str) -> str:
    if worst is None:
        return ""
    return f"; {metric} loss {worst.loss:.3g} of {worst.tolerance:g} allowed (output {worst.output!r})"


def _near(path: str) -> str:
    """The path from here where the file lies below this folder."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


def _count(number: int, what: str) -> str:
    return f"{approximate_count(number)} {what}" + ("" if number == 1 else "s")


def _row(label: str, text: str) -> None:
    print_wrapped(text, indent=" " * _LABEL, first=f"{label:<{_LABEL}}")


def _command(label: str, command: str) -> None:
    """A command line to be copied: broken, where it is too long, so that a shell still takes it."""
    first = f"{label:<{_LABEL}}"
    before, option, after = command.partition(" --storage ")
    if len(first) + len(command) <= text_width() or not option:
        click.echo(first + command)
    else:
        click.echo(f"{first}{before} \\\n{' ' * (_LABEL + 2)}--storage {after}")
