"""`gpt-search confirm`: the speed-up on fresh builds."""

from __future__ import annotations

import click

from gpt_search.cli.common import MOST_REPEATS, WholeNumber, json_option, print_json
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import command_for, confirmation_json, print_confirmation
from gpt_search.cli.tune import storage_option


@click.command()
@click.argument("study")
@storage_option
@click.option(
    "--top",
    type=WholeNumber(1),
    default=3,
    show_default=True,
    metavar="K",
    help="Routes that stage 1 rebuilds; it picks one.",
)
@click.option(
    "--rebuilds",
    type=WholeNumber(1, MOST_REPEATS),
    default=7,
    show_default=True,
    metavar="N",
    help="Builds of that one and of the reference in stage 2; fewer than 5 are preliminary.",
)
@json_option
def confirm(study: str, storage: str, top: int, rebuilds: int, as_json: bool) -> None:
    """Rebuild the best routes of STUDY and measure the speed-up again.

    A search picks the best of many noisy timings; what it claims is too good. The confirmed
    speed-up comes from fresh builds of one route and of the reference.
    """
    from gpt_search.run.confirm import confirm as run

    live = LiveProgress(None)

    def step(done: int, total: int, what: str) -> None:
        # A confirmation is stored whole or not at all: after Ctrl-C it is made again.
        live.continue_command = command_for("confirm", study, storage, "--top", str(top), "--rebuilds", str(rebuilds))
        live.step(done, total, what)

    with stoppable(live):
        live.preparing("the study")
        result = run(study, storage, top, rebuilds, step)
    if as_json:
        print_json(confirmation_json(result.data))
    else:
        print_confirmation(result.data, result.metric)
