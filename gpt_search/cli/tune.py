"""`gpt-search tune`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import (
    DEFAULT_BACKEND,
    Amount,
    OneOf,
    WholeNumber,
    build_options,
    build_options_option,
    gpu_notes,
    json_option,
    print_json,
)
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import command_for, confirmation_json, latest_confirmation, print_summary, summary_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpt_search.store.study import StudyStore

METRICS = ("l0", "l1", "l2", "lInf", "cos")
TIMINGS = ("median", "mean", "p90", "p99", "throughput")
REFERENCES = ("onnxruntime-fp32", "files", "default-engine")
DEFAULT_TRIALS = 100
MOST_BUILDERS = 256
"""Each is a process with a model of its own."""
_POSITIVE = Amount(0, min_open=True)


def budget_options(default: str) -> Callable[[Any], Any]:
    """Adds `--trials`, `--seconds`, `--builds` and `--builders`; `default`: in words, without a budget."""

    def add(function: Any) -> Any:
        for option in (
            click.option(
                "--builders",
                type=WholeNumber(1, MOST_BUILDERS),
                metavar="N",
                help="Routes built at the same time; one is timed.",
            ),
            click.option("--builds", type=WholeNumber(0), metavar="N", help="Stop after N builds."),
            click.option("--seconds", type=Amount(0), metavar="S", help="Stop after S seconds of the study."),
            click.option(
                "--trials",
                type=WholeNumber(0),
                metavar="N",
                help=f"Stop after N trials.  [default: {default} where no budget is given]",
            ),
        ):
            function = option(function)
        return function

    return add


def timing_options(function: Any) -> Any:
    """Adds `--timing`, `--streams` and `--host-copies`: what is timed."""
    for option in (
        click.option("--host-copies", is_flag=True, help="Time the copies between host and device too (GPU backends)."),
        click.option(
            "--streams",
            type=WholeNumber(1),
            metavar="N",
            help="Calls in flight at a time, at most 256, for `--timing throughput`.  [default: 1]",
        ),
        click.option(
            "--timing",
            type=OneOf(TIMINGS),
            default="median",
            show_default=True,
            help="What is timed: a statistic of the latency, or throughput.",
        ),
    ):
        function = option(function)
    return function


def shape_options(function: Any) -> Any:
    """Adds `--shape` and `--point`: at which shapes a model is run."""
    for option in (
        click.option(
            "--point",
            multiple=True,
            metavar="'NAME@WEIGHT INPUT=1x128 ...'",
            help="A shape point of a dynamic model, gated and timed; repeated, for the weighted mean over points.",
        ),
        click.option(
            "--shape",
            multiple=True,
            metavar="INPUT=1x128",
            help="Shape of an input; may be repeated. With `--point`, of inputs that a point leaves out.",
        ),
    ):
        function = option(function)
    return function


def accuracy_options(function: Any) -> Any:
    """Adds `--metric`, `--tolerance`, `--reference` and `--golden`: what outputs must be like."""
    for option in (
        click.option(
            "--golden",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Golden data for `files`; the float32 model for `onnxruntime-fp32` when MODEL is quantised.",
        ),
        click.option(
            "--reference",
            type=OneOf(REFERENCES),
            default="onnxruntime-fp32",
            show_default=True,
            help="Where golden outputs come from.",
        ),
        click.option("--tolerance", multiple=True, metavar="[OUTPUT=]X", help="Largest loss allowed; may be repeated."),
        click.option("--metric", type=OneOf(METRICS), default="cos", show_default=True, help="Accuracy loss."),
    ):
        function = option(function)
    return function


def worker_options(function: Any) -> Any:
    """Adds `--timeout-build`, `--timeout-run` and `--memory-limit`: what a worker may take."""
    for option in (
        click.option("--memory-limit", type=_POSITIVE, metavar="GB", help="For a worker, in units of 10^9 bytes."),
        click.option(
            "--timeout-run",
            type=_POSITIVE,
            default=60,
            show_default=True,
            metavar="S",
            help="Seconds for the accuracy gate, and for a round of timing.",
        ),
        click.option(
            "--timeout-build",
            type=_POSITIVE,
            default=600,
            show_default=True,
            metavar="S",
            help="Seconds for one build.",
        ),
    ):
        function = option(function)
    return function


def backend_option(function: Any) -> Any:
    """Adds `--backend`."""
    return click.option(
        "--backend",
        metavar="NAME",
        default=DEFAULT_BACKEND,
        show_default=True,
        help="The compiler; see `gpt-search doctor`.",
    )(function)


def storage_option(function: Any) -> Any:
    """Adds `--storage`."""
    return click.option(
        "--storage",
        default="./gpt_search.journal",
        show_default=True,
        metavar="URL",
        help="Study database: a journal file's path, or an Optuna URL.",
    )(function)


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--knobs", metavar="EXPR", default="-*=[*]", show_default=True, help="Knobs to vary and to pin.")
@click.option(
    "--strategy",
    metavar="SPEC",
    default="auto",
    help="See `gpt-search strategies`.  [default: tpe, or live with more than 20 knobs]",
)
@budget_options(str(DEFAULT_TRIALS))
@click.option("--seed", type=WholeNumber(0), default=0, show_default=True, metavar="N", help="Seed of the strategy.")
@backend_option
@build_options_option
@accuracy_options
@shape_options
@timing_options
@storage_option
@click.option("--study", metavar="NAME", help="Name of the study.  [default: MODEL-STRATEGY-SEED]")
@worker_options
@click.option("--max-engine-size", type=_POSITIVE, metavar="MB", help="Largest engine allowed, in units of 10^6 bytes.")
@click.option(
    "--max-memory", type=_POSITIVE, metavar="MB", help="Most memory an engine may need, in units of 10^6 bytes."
)
@click.option("--time-infeasible", is_flag=True, help="Time routes that miss a tolerance too.")
@click.option("--strict-trtexec", is_flag=True, help="trtexec's expression grammar to the letter.")
@click.option("--confirm/--no-confirm", default=True, show_default=True, help="Confirm the winner on fresh builds.")
@json_option
def tune(
    model: Path,
    knobs: str,
    strategy: str,
    trials: int | None,
    seconds: float | None,
    builds: int | None,
    builders: int | None,
    seed: int,
    backend: str,
    options: tuple[str, ...],
    metric: str,
    tolerance: tuple[str, ...],
    reference: str,
    golden: Path | None,
    shape: tuple[str, ...],
    point: tuple[str, ...],
    timing: str,
    streams: int | None,
    host_copies: bool,
    storage: str,
    study: str | None,
    timeout_build: float,
    timeout_run: float,
    memory_limit: float | None,
    max_engine_size: float | None,
    max_memory: float | None,
    time_infeasible: bool,
    strict_trtexec: bool,
    confirm: bool,
    as_json: bool,
) -> None:
    """Search a faster build route for MODEL, within a tolerance and a budget.

    The same command again continues the study it started.
    """
    from dataclasses import replace

    from gpt_search.domain.budget import Budget
    from gpt_search.domain.limits import Limits
    from gpt_search.measure.protocol import Protocol
    from gpt_search.run.config import TuneConfig
    from gpt_search.run.confirm import confirm as confirm_study
    from gpt_search.run.tune import tune as run
    from gpt_search.workloads.inspect import parse_shapes
    from gpt_search.workloads.points import parse_points

    if trials is None and seconds is None and builds is None:
        trials = DEFAULT_TRIALS
    config = TuneConfig(
        model=model,
        knobs=knobs,
        strategy=strategy,
        budget=Budget(trials, builds, seconds),
        seed=seed,
        backend=backend,
        options=build_options(options),
        metric=metric,
        tolerances=tolerance,
        reference=reference,
        golden=golden,
        shapes=parse_shapes(shape),
        points=parse_points(point, parse_shapes(shape)),
        storage=storage,
        study=study,
        builders=builders or 1,
        timeout_build_s=timeout_build,
        timeout_run_s=timeout_run,
        memory_limit_gb=memory_limit,
        limits=Limits(max_engine_size, max_memory),
        time_infeasible=time_infeasible,
        strict_trtexec=strict_trtexec,
        protocol=Protocol.for_timing(timing, streams or 1, host_copies),
    )
    live = LiveProgress(config.budget)

    def started(store: StudyStore) -> None:
        live.started(store)
        for text in gpu_notes(backend):  # only now is it known that the backend can be used at all
            live.note(text)

    with stoppable(live):
        live.preparing("the knobs, the model, its golden data")
        summary = run(config, live.progress, started, live.note, live.compiling)
        if confirm and latest_confirmation(summary) is None:
            # A confirmation is stored whole or not at all: after Ctrl-C it is made again.
            live.continue_command = command_for("confirm", summary.study, storage)
            data = confirm_study(summary.study, storage, step=live.step).data
            summary = replace(summary, confirmations=(*summary.confirmations, data))
    if as_json:
        latest = latest_confirmation(summary)
        print_json(summary_json(summary) | {"confirmation": None if latest is None else confirmation_json(latest)})
    else:
        print_summary(summary)
