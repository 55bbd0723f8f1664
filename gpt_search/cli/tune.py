"""`gpt-search tune`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpt_search.cli.common import DEFAULT_BACKEND, json_option, print_json
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import print_confirmation, print_summary

METRICS = ("l0", "l1", "l2", "lInf", "cos")
REFERENCES = ("onnxruntime-fp32", "files", "default-engine")
DEFAULT_TRIALS = 100


def budget_options(function: Any) -> Any:
    """Adds `--trials`, `--seconds`, `--builds` and `--builders`."""
    for option in (
        click.option(
            "--builders", type=click.IntRange(1), metavar="N", help="Routes built at the same time; one is timed."
        ),
        click.option("--builds", type=click.IntRange(0), metavar="N", help="Stop after N builds."),
        click.option("--seconds", type=click.FloatRange(0), metavar="S", help="Stop after S seconds of the study."),
        click.option(
            "--trials",
            type=click.IntRange(0),
            metavar="N",
            help=f"Stop after N trials.  [default: {DEFAULT_TRIALS} where no other budget is given]",
        ),
    ):
        function = option(function)
    return function


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
@click.option("--strategy", metavar="SPEC", default="tpe", show_default=True, help="See `gpt-search strategies`.")
@budget_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the strategy.")
@click.option("--backend", metavar="NAME", default=DEFAULT_BACKEND, show_default=True, help="The compiler.")
@click.option("--metric", type=click.Choice(METRICS), default="cos", show_default=True, help="Accuracy loss.")
@click.option("--tolerance", multiple=True, metavar="[OUTPUT=]X", help="Largest loss allowed; may be repeated.")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="onnxruntime-fp32",
    show_default=True,
    help="Where golden outputs come from.",
)
@click.option(
    "--golden",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Golden data for `files`; the float32 model for `onnxruntime-fp32` when MODEL is quantised.",
)
@click.option("--shape", multiple=True, metavar="INPUT=1x128", help="Shape of an input; may be repeated.")
@storage_option
@click.option("--study", metavar="NAME", help="Name of the study.  [default: MODEL-STRATEGY-SEED]")
@click.option("--timeout-build", type=float, default=600, show_default=True, metavar="S", help="For one build.")
@click.option(
    "--timeout-run", type=float, default=60, show_default=True, metavar="S", help="For the gate, and a round."
)
@click.option("--memory-limit", type=float, metavar="GB", help="For a worker, in 10^9 bytes.")
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
    metric: str,
    tolerance: tuple[str, ...],
    reference: str,
    golden: Path | None,
    shape: tuple[str, ...],
    storage: str,
    study: str | None,
    timeout_build: float,
    timeout_run: float,
    memory_limit: float | None,
    time_infeasible: bool,
    strict_trtexec: bool,
    confirm: bool,
    as_json: bool,
) -> None:
    """Search a faster build route for MODEL, within a tolerance and a budget.

    The same command again continues the study it started.
    """
    from gpt_search.domain.budget import Budget
    from gpt_search.run.config import TuneConfig
    from gpt_search.run.confirm import confirm as confirm_study
    from gpt_search.run.tune import tune as run
    from gpt_search.workloads.inspect import parse_shapes

    if trials is None and seconds is None and builds is None:
        trials = DEFAULT_TRIALS
    config = TuneConfig(
        model=model,
        knobs=knobs,
        strategy=strategy,
        budget=Budget(trials, builds, seconds),
        seed=seed,
        backend=backend,
        metric=metric,
        tolerances=tolerance,
        reference=reference,
        golden=golden,
        shapes=parse_shapes(shape),
        storage=storage,
        study=study,
        builders=builders or 1,
        timeout_build_s=timeout_build,
        timeout_run_s=timeout_run,
        memory_limit_gb=memory_limit,
        time_infeasible=time_infeasible,
        strict_trtexec=strict_trtexec,
    )
    live = LiveProgress(config.budget)
    with stoppable(live):
        summary = run(config, live.progress, live.started, live.note)
        confirmation = confirm_study(summary.study, storage, step=live.step) if confirm else None
    if as_json:
        print_json(summary.to_json() | {"confirmation": None if confirmation is None else confirmation.data})
        return
    print_summary(summary)
    if confirmation is not None:
        print_confirmation(confirmation.data, summary.metric)
