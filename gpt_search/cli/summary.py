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
    from gpt_search.run.engines import EngineCounts
    from gpt_search.run.result import StudySummary

_LABEL = 11
_KEEP = "keep the default"


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
    return summary.to_json() | {
        "confirmations": [confirmation_json(c) for c in summary.confirmations],
        "minimisations": [minimisation_json(m) for m in summary.minimisations],
    }


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
        f"{summary.trials} ({counts or 'none finished'}){unfinished}; "
        f"{clock_text(summary.clock_s)}" + (f"; {summary.end}" if summary.end else ""),
    )
    _print_engines(summary.engines)
    if summary.reference_ms is not None:
        what = timing_text(summary.timing, summary.reference_ms)
        _row("reference", f"{summary.reference_ms:.4g} ms{what}{_loss(summary.reference_worst, summary.metric)}")
    if summary.noise is not None and summary.noise["value"] is not None:
        where = "the stored floor" if summary.noise["source"] == "floor" else "the reference's own rounds"
        _row("noise", f"{100 * summary.noise['value']:.2g} % for one value, from {where}")
    if summary.noted:
        _row("notes", f"{summary.noted} of {_count(summary.trials + 1, 'trial')}: {_notes(summary.notes)}")
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
        if best.points:
            _row("points", _points({name: 1 / ratio for name, ratio in best.points.items()}))
        for note in best.notes:
            _row("note", f"trial {best.trial}: {note}")
        _row("route", best.changes or "(the default)")
    elif best is not None:
        _row("best", "the default: no route was timed faster")
    if latest is not None and (faster or confirmed):
        print_confirmation(latest, summary.metric, shown_route=best.route if best is not None and faster else None)
        since = summary.trials - latest.get("trials", summary.trials)
        if since > 0:
            _row("", f"{_count(since, 'trial')} finished since then")
    if faster and latest_confirmation(summary) is None and summary.imported is None:
        _command("next", command_for("confirm", summary.study, summary.storage))
    elif confirmed and latest is not None and latest["verdict"] == "FASTER":
        mine = [m for m in summary.minimisations if m["confirmation"] == latest["number"]]
        if mine:
            print_minimisation(mine[-1], summary.metric)
        elif len(latest["winner"]["changes"].split()) > 1:
            _command("next", command_for("minimise", summary.study, summary.storage))
        _command("next", command_for("export", summary.study, summary.storage, "--as", "engine", "OUT"))


def print_confirmation(data: Mapping[str, Any], metric: str, shown_route: str | None = None) -> None:
    """The headline: the confirmed speed-up with its interval, the verdict, and whether to keep the default.

    shown_route: a route that the reader has just seen, and need not see again.
    """
    winner, speedup = data["winner"], data["speedup"]
    if winner is None or speedup is None:
        _row("confirmed", f"nothing: {data['reason']}")
        _row("answer", _KEEP)
        return
    few = ", preliminary: fewer than 5" if data["preliminary"] else ""
    _row(
        "confirmed",
        f"trial {winner['trial']}: {_interval(speedup)} ({100 * speedup['level']:g} %, "
        f"{_count(speedup['n'], 'build')}{few}); {data['latency_ms']:.4g} ms against {data['reference_ms']:.4g} ms"
        f"{timing_text(data.get('timing', {}), data['latency_ms'])}",
    )
    _row("claimed", f"{speedup_text(winner['speedup'])} by the search's own timing: {_optimism(winner, speedup)}")
    _row("verdict", f"{data['reason']}, at a one-sided level of {50 * (1 - speedup['level']):g} %")
    if data["verdict"] != "FASTER":
        _row("answer", _KEEP)
    _print_stage_1(data)
    if data.get("points"):
        _row("points", _points({p["name"]: p["speedup"] for p in data["points"]}))
    if data.get("notes"):
        _row("notes", f"of {_count(speedup['n'], 'build')}: {_notes(data['notes'])}")
    _accuracy(data["accuracy"], metric)
    if winner["route"] != shown_route:
        _row("route", winner["changes"] or "(the default)")


def _optimism(winner: Mapping[str, Any], speedup: Mapping[str, Any]) -> str:
    """How far the search's claim is off."""
    off = winner["speedup"] / speedup["estimate"] - 1
    return f"{100 * abs(off):.1f} % {'more' if off > 0 else 'less'} than confirmed"


def _print_stage_1(data: Mapping[str, Any]) -> None:
    """The intervals by which stage 1 chose; none where there was one route only."""
    found = data.get("stage_1_intervals") or {}
    label = "stage 1"
    for trial, interval in found.items():
        chosen = "; chosen" if int(trial) == data["winner"]["trial"] else ""
        what = "failed when built again" if interval is None else _interval(interval)
        builds = "" if interval is None else f" ({_count(interval['n'], 'build')})"
        _row(label, f"trial {trial}: {what}{builds}{chosen}")
        label = ""
    if found:
        _row("", "the intervals of stage 1 hold together at 95 %; the confirmed one does not rest on them")


def print_shipped(facts: Mapping[str, Any]) -> None:
    """An exported engine: what its route gives, what this file gives, and what to know first."""
    route, file = facts["route_speedup"], facts["file_speedup"]
    _row(
        "route",
        f"{_interval(route)} ({100 * route['level']:g} %, {_count(route['n'], 'build')}): what the route gives when "
        "it is built",
    )
    _row(
        "this file",
        f"{_interval(file)} ({100 * file['level']:g} %, {file['n']} processes): what this build gives when it is "
        "loaded, against fresh builds of the default",
    )
    _row("chosen", facts["rule"])
    _accuracy(facts["accuracy"], facts["metric"])
    for warning in facts["warnings"]:
        _row("warning", warning)


def _interval(found: Mapping[str, Any]) -> str:
    high = "inf" if found["high"] is None else f"{found['high']:.3f}"
    return f"{speedup_text(found['estimate'])} [{found['low']:.3f}, {high}]"


def _accuracy(accuracy: Mapping[str, Any] | None, metric: str) -> None:
    if accuracy is not None:
        loss = accuracy["loss"]
        shown = loss if isinstance(loss, str) else f"{loss:.3g}"
        _row("accuracy", f"{metric} loss {shown} of {accuracy['tolerance']:g} allowed (output {accuracy['output']!r})")


def minimisation_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """A minimisation for `--json`, without its raw samples."""
    shown = dict(data)
    if "steps" in data:
        shown["headline"] = [_build_json(e) for e in data["headline"]]
        for key in ("steps", "finals"):
            shown[key] = [s | {"builds": [_build_json(e) for e in s["builds"]]} for s in data[key]]
        shown["without"] = {name: [_build_json(e) for e in builds] for name, builds in data["without"].items()}
    return shown


def print_minimisation(data: Mapping[str, Any], metric: str) -> None:
    """What is left of the winner, its speed-up, and what each kept change is worth."""
    if data["route"] is None:
        _row("minimised", data["reason"])
        return
    kept, removed = data["kept"], data["removed"]
    same = sum(r["why"] == "SAME_ENGINE" for r in removed)
    how = f" ({same} without which the engine is the same)" if same else ""
    _row(
        "minimised",
        f"{_count(len(kept), 'change')} of trial {data['winner']['trial']} kept, {len(removed)} removed{how}; "
        f"{_count(data['builds'], 'build')} made{_engine_builds(data)}",
    )
    speedup = data["speedup"]
    if speedup is None:
        _row("", data["reason"])
    else:
        few = ", preliminary: fewer than 5" if data["preliminary"] else ""
        _row(
            "",
            f"{_interval(speedup)} ({100 * speedup['level']:g} %, "
            f"{_count(speedup['n'], 'build')}{few}): {data['reason']}",
        )
    margin = f"{100 * data['margin']:.2g} % ({data['margin_rule']})"
    if data["loss"] is None:
        _row("", f"margin {margin}; the engine is the winner's own")
    else:
        _row(
            "",
            f"{_percent(data['loss']['estimate'])} against the winner, below {_percent(data['loss']['high'])} at "
            f"{100 * data['level']:g} %; margin {margin}",
        )
    for change in kept:
        setting, worth = f"-{change['knob']}={change['value']}", change["worth"]
        if change["why"] == "NOT_MEASURED":
            continue  # all of them in one row
        if worth is None:
            _row("kept", f"{setting}: needed, without it {change['why'].lower().replace('_', ' ')}")
        else:
            high = "any" if worth["high"] is None else _percent(worth["high"])
            _row("kept", f"{setting}: {_percent(worth['estimate'])} [{_percent(worth['low'])}, {high}] without it")
    if unmeasured := [f"-{c['knob']}={c['value']}" for c in kept if c["why"] == "NOT_MEASURED"]:
        _row("kept", f"not measured, what they are worth: {' '.join(unmeasured)}")
    if sum(change["worth"] is not None for change in kept) > 1:
        _row("", "these intervals hold together at 95 %")
    for note in data["notes"]:
        _row("note", note)
    _accuracy(data["accuracy"], metric)
    _row("route", data["changes"] or "(the default)")


def _engine_builds(data: Mapping[str, Any]) -> str:
    """How many of the builds were not timed; a record of before has no such number."""
    alone = data.get("engine_builds", 0)
    return f", {alone} of them for their fingerprint only" if alone else ""


def _print_engines(counts: EngineCounts) -> None:
    """Engines against routes, and what was found out about the fingerprints that tell them apart."""
    if counts.fingerprints == "NONE":
        tried = _count(counts.routes, "route")
        _row("engines", f"{tried} tried, {counts.timed} timed; the backend does not tell engines apart")
        return
    added = f", {counts.extended} with more rounds" if counts.extended else ""
    _row(
        "engines",
        f"{_count(counts.routes, 'route')} tried, {_count(counts.engines, 'distinct engine')} with the reference's; "
        f"{counts.timed} timed, {counts.merged} took over the samples of an equal engine{added}",
    )
    if counts.checked.tried and counts.least is not None:
        _row(
            "",
            f"{_count(counts.checked.tried, 'merge')} timed all the same: "
            f"{counts.checked} differ (from {100 * counts.least:.2g} % on it would have been seen)",
        )
    elif counts.fingerprints in ("MAY_MERGE", "MAY_BOTH") and counts.merged:
        _row("", "equal fingerprints may hide different engines, and no merge was checked yet")
    if counts.doubtful:
        _row(
            "",
            f"{_count(counts.doubtful, 'trial')} took over samples by a fingerprint that was found to stand for "
            "different engines: their latencies are doubtful",
        )
    if counts.rebuilt.events or (counts.rebuilt.tried and counts.fingerprints in ("MAY_SPLIT", "MAY_BOTH")):
        _row("", f"built twice: {counts.rebuilt} pairs of builds of one route have different fingerprints")


def _notes(counts: Mapping[str, int]) -> str:
    """What is to be known about how something was timed, and how often."""
    return "; ".join(f"{text} ({n})" for text, n in counts.items())


def _points(speedups: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {speedup_text(speedup)}" for name, speedup in speedups.items())


def timing_text(timing: Mapping[str, Any], latency_ms: float) -> str:
    """What is timed, behind a latency; nothing for the median, which is usual. Throughput in inferences a second."""
    statistic = timing.get("statistic", "median")
    copies = " with host copies" if timing.get("host_copies") else ""
    if statistic == "throughput":
        streams = timing["streams"]
        how = f"{streams} stream{'' if streams == 1 else 's'}"
        return f" an inference: {1000 / latency_ms:.4g} inferences/s, {how}{copies}"
    said = ["" if statistic == "median" else statistic, copies.strip()]
    return f" ({' '.join(w for w in said if w)})" if any(said) else ""


def _percent(ratio: float) -> str:
    """A latency ratio as a change: +2.1 %, -0.3 %."""
    return f"{100 * (ratio - 1):+.2f} %"


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
