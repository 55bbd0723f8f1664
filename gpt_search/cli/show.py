"""`gpt-search show`: what a study found so far."""

from __future__ import annotations

from pathlib import Path

import click

from gpt_search.cli.common import WholeNumber, json_option, print_json
from gpt_search.cli.summary import print_summary, summary_json
from gpt_search.cli.tune import storage_option
from gpt_search.domain.errors import InputError


@click.command()
@click.argument("study")
@storage_option
@click.option("--top", type=WholeNumber(1), default=3, show_default=True, metavar="K", help="Routes to nominate.")
@click.option(
    "--figure",
    metavar="NAME",
    help="Draw a figure instead, into --out: drift, best, accuracy, cost, timeline, importance or interactions.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Of the figure: .svg, .pdf or .png.")
@json_option
def show(study: str, storage: str, top: int, figure: str | None, out: Path | None, as_json: bool) -> None:
    """Show STUDY: trials, reference, best route, confirmation. It may be running."""
    if (figure is None) != (out is None):
        raise InputError("--figure NAME and --out FILE go together: what to draw, and where to")
    if figure is not None and out is not None:
        from gpt_search.cli.figure import draw

        draw(figure, study, storage, out)
        if as_json:
            print_json({"figure": figure, "out": str(out)})
        else:
            click.echo(f"wrote {out}")
        return
    from gpt_search.run.show import show as run

    summary = run(study, storage, top)
    if as_json:
        print_json(summary_json(summary))
    else:
        print_summary(summary)
