"""`gpt-search export`: the winner's engine or route, or the records."""

from __future__ import annotations

from pathlib import Path

import click

from gpt_search.cli.common import OneOf, json_option, print_json
from gpt_search.cli.tune import storage_option


@click.command()
@click.argument("study")
@storage_option
@click.option("--as", "form", type=OneOf(["engine", "route", "record"]), required=True, help="What to write.")
@click.argument("out", type=click.Path(path_type=Path))
@json_option
def export(study: str, storage: str, form: str, out: Path, as_json: bool) -> None:
    """Write the winner of STUDY, or its records, to OUT.

    The winner is that of the latest confirmation. An engine is built, saved, loaded again and
    checked against the golden data before it is written.
    """
    from gpt_search.run.export import export as run

    done = run(study, storage, form, out)
    if as_json:
        print_json(
            {
                "path": done.path,
                "as": done.form,
                "bytes": done.bytes,
                "trial": done.trial,
                "route": done.route,
                "note": done.note,
            }
        )
        return
    of = "" if done.trial is None else f" of trial {done.trial}"
    click.echo(f"{done.path}: {done.form}{of}, {done.bytes} bytes ({done.note})")
