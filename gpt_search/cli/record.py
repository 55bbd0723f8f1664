"""`gpt-search record`: a space, or a sample of it, measured into a table."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gpt_search.cli.common import MOST_REPEATS, WholeNumber, json_option, print_json, same_command
from gpt_search.cli.live import LiveProgress, clock_text, stoppable
from gpt_search.cli.tune import (
    MOST_BUILDERS,
    accuracy_options,
    backend_option,
    shape_options,
    timing_options,
    worker_options,
)


def _routes(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """`all`, which is None, or a whole number. Raises click.BadParameter."""
    if value == "all":
        return None
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither `all` nor a whole number", ctx, param) from None


class RecordProgress(LiveProgress):
    """Shows a running recording."""

    def recorded(self, done: int, total: int, what: str) -> None:
        """After every build: how many are done, of how many, and what the last one gave."""
        now = time.monotonic()
        self.continue_command = same_command()
        if self._first is None:  # what an earlier run did says nothing about this one's pace
            self._first = done, now
        first, began = self._first
        left = f", {clock_text((now - began) / (done - first) * (total - done))} left" if done > first else ""
        self._line(f"record {done}/{total}: {what}{left}")

    _first: tuple[int, float] | None = None


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The table; .zst compresses."
)
@click.option("--knobs", metavar="EXPR", default="-*=[*]", show_default=True, help="Knobs to vary and to pin.")
@click.option(
    "--routes", callback=_routes, default="all", show_default=True, metavar="all|N", help="How many; N are drawn."
)
@click.option("--seed", type=WholeNumber(0), default=0, show_default=True, metavar="N", help="Seed of draw and order.")
@click.option(
    "--rounds",
    type=WholeNumber(8, MOST_REPEATS),
    default=40,
    show_default=True,
    metavar="N",
    help="Rounds of a timing.",
)
@click.option(
    "--builds",
    type=WholeNumber(3, MOST_REPEATS),
    default=3,
    show_default=True,
    metavar="N",
    help="Builds of some of the routes.",
)
@click.option("--several", type=WholeNumber(2), default=12, show_default=True, metavar="N", help="How many those are.")
@click.option(
    "--builders",
    type=WholeNumber(1, MOST_BUILDERS),
    default=1,
    show_default=True,
    metavar="N",
    help="Routes built at the same time.",
)
@backend_option
@accuracy_options
@shape_options
@timing_options
@worker_options
@click.option("--time-infeasible", is_flag=True, help="Time routes that miss a tolerance too.")
@json_option
def record(
    model: Path,
    out: Path,
    knobs: str,
    routes: int | None,
    seed: int,
    rounds: int,
    builds: int,
    several: int,
    builders: int,
    backend: str,
    metric: str,
    tolerance: tuple[str, ...],
    reference: str,
    golden: Path | None,
    shape: tuple[str, ...],
    point: tuple[str, ...],
    timing: str,
    streams: int | None,
    host_copies: bool,
    timeout_build: float,
    timeout_run: float,
    memory_limit: float | None,
    time_infeasible: bool,
    as_json: bool,
) -> None:
    """Measure the routes of MODEL's space into a table, on which strategies are compared without a compiler.

    An engine that equal fingerprints prove to be known is not timed twice. The same command again goes on with a
    recording that was stopped.
    """
    from gpt_search.cli.table import print_info, table_json
    from gpt_search.domain.budget import Budget
    from gpt_search.measure.protocol import Protocol
    from gpt_search.run.config import TuneConfig
    from gpt_search.run.record import RecordConfig
    from gpt_search.run.record import record as run
    from gpt_search.workloads.inspect import parse_shapes
    from gpt_search.workloads.points import parse_points

    tuning = TuneConfig(
        model=model,
        knobs=knobs,
        budget=Budget(trials=0),
        seed=seed,
        backend=backend,
        metric=metric,
        tolerances=tolerance,
        reference=reference,
        golden=golden,
        shapes=parse_shapes(shape),
        points=parse_points(point, parse_shapes(shape)),
        builders=builders,
        timeout_build_s=timeout_build,
        timeout_run_s=timeout_run,
        memory_limit_gb=memory_limit,
        time_infeasible=time_infeasible,
        protocol=Protocol.for_timing(timing, streams or 1, host_copies),
    )
    config = RecordConfig(tuning, out, routes, rounds, builds, several)
    live = RecordProgress(None)
    with stoppable(live):
        live.preparing("the knobs, the model, its golden data")
        table = run(config, live.recorded, live.note)
    if as_json:
        print_json(table_json(table))
    else:
        print_info(table)
