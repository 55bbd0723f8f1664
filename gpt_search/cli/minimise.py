"""`gpt-search minimise`: the confirmed winner without the changes that do not contribute."""

from __future__ import annotations

import click

from gpt_search.cli.common import MOST_REPEATS, Amount, WholeNumber, json_option, print_json
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import command_for, minimisation_json, print_minimisation
from gpt_search.cli.tune import storage_option


@click.command()
@click.argument("study")
@storage_option
@click.option(
    "--margin",
    type=Amount(0, min_open=True),
    metavar="X",
    help="Relative latency that may be lost in all, 0.01 for 1 %.  [default: the smaller of the noise floor and a "
    "tenth of the gain]",
)
@click.option(
    "--rebuilds",
    type=WholeNumber(2, MOST_REPEATS),
    metavar="N",
    help="Pairs of builds of one test.  [default: as many as the margin needs, at most 40]",
)
@click.option(
    "--builds",
    type=WholeNumber(1),
    default=300,
    show_default=True,
    metavar="N",
    help="Most builds in all, a pair counting as one. What was found until then is confirmed within them.",
)
@click.option("--seconds", type=Amount(0, min_open=True), metavar="S", help="Most wall time; as --builds.")
@json_option
def minimise(
    study: str,
    storage: str,
    margin: float | None,
    rebuilds: int | None,
    builds: int,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Remove from the confirmed winner of STUDY every change that does not contribute.

    Groups of changes are taken back at once and, where the route without them is not shown to be at
    most the margin slower, halved. What is left is confirmed again on fresh builds; export ships it.
    """
    from gpt_search.run.minimise import Cap
    from gpt_search.run.minimise import minimise as run

    live = LiveProgress(None)
    given = {"--margin": margin, "--rebuilds": rebuilds, "--builds": builds, "--seconds": seconds}
    more = [word for option, value in given.items() if value is not None for word in (option, f"{value:g}")]

    def step(done: int, most: int, what: str) -> None:
        # A minimisation is stored whole or not at all: after Ctrl-C it is made again.
        live.continue_command = command_for("minimise", study, storage, *more)
        live.building("minimising", done, most, what)

    with stoppable(live):
        live.preparing("the study")
        result = run(study, storage, margin, rebuilds, step, Cap(builds, seconds), live.note)
    if as_json:
        print_json(minimisation_json(result.data))
    else:
        print_minimisation(result.data, result.metric)
