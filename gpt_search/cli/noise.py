"""`gpt-search noise`: how much timings of one route differ, and what that allows to detect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import (
    MOST_REPEATS,
    Amount,
    WholeNumber,
    build_options,
    build_options_option,
    json_option,
    print_json,
    print_table,
    print_wrapped,
)
from gpt_search.cli.live import LiveProgress, clock_text, stoppable
from gpt_search.cli.tune import backend_option, shape_options, storage_option, timing_options

if TYPE_CHECKING:
    from gpt_search.measure.variance import Component, Plan
    from gpt_search.run.noise import NoiseFloor

_LABEL = 11


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@shape_options
@timing_options
@click.option(
    "--knobs",
    metavar="EXPR",
    default="-*=[*]",
    show_default=True,
    help="As given to `tune`: pinned knobs belong to the reference route.",
)
@click.option(
    "--rebuilds", type=WholeNumber(2, MOST_REPEATS), default=6, show_default=True, metavar="N", help="Pairs of builds."
)
@click.option(
    "--processes",
    type=WholeNumber(2, MOST_REPEATS),
    default=2,
    show_default=True,
    metavar="N",
    help="Processes of each build.",
)
@click.option(
    "--rounds",
    type=WholeNumber(10, MOST_REPEATS),
    default=15,
    show_default=True,
    metavar="N",
    help="Rounds in each process.",
)
@click.option(
    "--budget",
    type=Amount(0, min_open=True),
    default=300,
    show_default=True,
    metavar="S",
    help="Seconds for which the smallest detectable speed-up is told.",
)
@backend_option
@build_options_option
@storage_option
@json_option
def noise(
    model: Path,
    shape: tuple[str, ...],
    point: tuple[str, ...],
    timing: str,
    streams: int | None,
    host_copies: bool,
    knobs: str,
    rebuilds: int,
    processes: int,
    rounds: int,
    budget: float,
    backend: str,
    options: tuple[str, ...],
    storage: str,
    as_json: bool,
) -> None:
    """Measure how much timings of MODEL's default route differ.

    The route is timed against itself: samples within a process, processes of one build, and
    builds. The result is stored beside the study database, where `tune` finds it.
    """
    from gpt_search.measure.protocol import Protocol
    from gpt_search.run.config import TuneConfig
    from gpt_search.run.noise import measure_noise
    from gpt_search.workloads.inspect import parse_shapes
    from gpt_search.workloads.points import parse_points

    config = TuneConfig(
        model=model,
        knobs=knobs,
        backend=backend,
        shapes=parse_shapes(shape),
        points=parse_points(point, parse_shapes(shape)),
        options=build_options(options),
        storage=storage,
        protocol=Protocol.for_timing(timing, streams or 1, host_copies),
    )
    live = LiveProgress(None)

    def step(done: int, total: int, what: str) -> None:
        live.step(done, total, what, "measuring noise: step")

    with stoppable(live):
        live.preparing("the knobs, the model, its inputs")
        floor, path = measure_noise(config, rebuilds, processes, rounds, step)
    if as_json:
        print_json(floor_json(floor, budget) | {"file": str(path)})
    else:
        print_floor(floor, budget, path)


def floor_json(floor: NoiseFloor, budget: float) -> dict[str, Any]:
    """The floor for `--json`: what is stored less the single rounds, and what it allows to detect."""
    from gpt_search.run.noise import CONFIRMATIONS, GAINS

    stored = {key: value for key, value in floor.to_json().items() if key != "rounds_ms"}
    plan = floor.plan(budget)
    return stored | {
        "confirmations": [_plan_json(floor.confirmation(n), floor) for n in CONFIRMATIONS],
        "rebuilds_for": [{"speedup": gain, "rebuilds": floor.rebuilds_for(gain)} for gain in GAINS],
        "budget": {"seconds": budget, "plan": None if plan is None else _plan_json(plan, floor)},
    }


def _plan_json(plan: Plan, floor: NoiseFloor) -> dict[str, Any]:
    return {
        "rebuilds": plan.rebuilds,
        "processes": plan.processes,
        "rounds": plan.samples * floor.min_rounds,
        "seconds": plan.seconds,
        "detectable": plan.detectable,
    }


def print_floor(floor: NoiseFloor, budget: float, path: Path) -> None:
    """The floor as text."""
    from gpt_search.run.noise import CONFIRMATIONS, GAINS

    parts = floor.components
    _row("route", f"{floor.reference_ms:.4g} ms; {floor.rebuilds} builds, {floor.processes} processes of each")
    _row(
        "noise",
        f"{_percent(parts.total)} for one value ({floor.min_rounds} rounds, one build, one process)",
    )
    for label, part in (("samples", parts.samples), ("processes", parts.processes), ("builds", parts.rebuilds)):
        _row("", f"{_percent(part)} between {label}")
    for text, n in floor.notes.items():
        _row("note", f"{n} of {floor.rebuilds * floor.processes} processes: {text}")
    if floor.split.tried:
        prints = {one for pair in floor.fingerprints for one in pair} - {None}
        _row(
            "engines",
            f"the fingerprints of {floor.split} pairs of builds differ; {2 * floor.rebuilds} builds of the one route "
            f"gave {len(prints)} in all",
        )
    rows = []
    for plan in (floor.confirmation(n) for n in CONFIRMATIONS):
        rows.append((str(plan.rebuilds), f"{100 * (plan.detectable - 1):.2f} %", clock_text(plan.seconds)))
    click.echo()
    print_table(("confirm --rebuilds", "detects a gain of", "takes"), rows, right=(0, 1, 2))
    click.echo()
    for gain in GAINS:
        needed = floor.rebuilds_for(gain)
        what = "out of reach of any number of rebuilds" if needed is None else f"confirm --rebuilds {needed}"
        _row("to detect", f"{100 * (gain - 1):.1f} %: {what}")
    best = floor.plan(budget)
    if best is None:
        _row("budget", f"{budget:g} s do not pay 5 rebuilds")
    else:
        _row(
            "budget",
            f"{budget:g} s detect a gain of {100 * (best.detectable - 1):.2f} % at best, with {best.rebuilds} builds, "
            f"{best.processes} {'process' if best.processes == 1 else 'processes'} of each and "
            f"{best.samples * floor.min_rounds} rounds in each",
        )
    _row("stored", f"{path}: `tune` takes it where model, versions and protocol are the same")


def _row(label: str, text: str) -> None:
    print_wrapped(text, indent=" " * _LABEL, first=f"{label:<{_LABEL}}")


def _percent(part: Component) -> str:
    low, high = (100 * x**0.5 for x in (part.low, part.high))
    return f"{100 * part.deviation:.2f} % [{low:.2f}, {high:.2f}]"
