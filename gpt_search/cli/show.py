"""`gpt-search show`: what a study found so far."""

from __future__ import annotations

import click

from gpt_search.cli.common import WholeNumber, json_option, print_json
from gpt_search.cli.summary import print_summary, summary_json
from gpt_search.cli.tune import storage_option


@click.command()
@click.argument("study")
@storage_option
@click.option("--top", type=WholeNumber(1), default=3, show_default=True, metavar="K", help="Routes to nominate.")
@json_option
def show(study: str, storage: str, top: int, as_json: bool) -> None:
    """Show STUDY: trials, reference, best route, confirmation. It may be running."""
    from gpt_search.run.show import show as run

    summary = run(study, storage, top)
    if as_json:
        print_json(summary_json(summary))
    else:
        print_summary(summary)
