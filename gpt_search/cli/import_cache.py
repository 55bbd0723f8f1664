"""`gpt-search import`: a study from a tuning cache of trtexec or Torch-TensorRT."""

from __future__ import annotations

from pathlib import Path

import click

from gpt_search.cli.common import json_option, knob_database, print_json, print_wrapped
from gpt_search.cli.summary import print_summary, summary_json
from gpt_search.cli.tune import storage_option


@click.command("import")
@click.argument("cache", type=click.Path(path_type=Path))
@click.option("--study", metavar="NAME", help="Name of the new study.  [default: that of the file]")
@storage_option
@click.option(
    "--database",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Knob database (JSON, as TensorRT writes it) to check the cache against.",
)
@json_option
def import_cache(cache: Path, study: str | None, storage: str, database: Path | None, as_json: bool) -> None:
    """Make a study from CACHE, a tuning cache of trtexec or Torch-TensorRT.

    The study can be shown and analysed. It cannot be continued or confirmed: a cache does not say how its times were
    taken.
    """
    from gpt_search.run.import_cache import import_cache as run

    done = run(cache, storage, study, None if database is None else knob_database(None, database))
    if as_json:
        print_json({"program": done.cache.program, "notes": done.notes, "summary": summary_json(done.summary)})
        return
    print_summary(done.summary)
    for note in done.notes:
        print_wrapped(note, first="note: ", indent="      ")
