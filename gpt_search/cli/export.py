"""`gpt-search export`: the winner's engine or route, or the records."""

from __future__ import annotations

from pathlib import Path

import click

from gpt_search.cli.common import MOST_REPEATS, OneOf, WholeNumber, json_option, output_width, print_json, print_wrapped
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import print_shipped
from gpt_search.cli.tune import storage_option

_FORMS = ("engine", "route", "record", "trtexec", "torch-tensorrt", "trtexec-cache")


@click.command()
@click.argument("study")
@storage_option
@click.option("--as", "form", type=OneOf(_FORMS), required=True, help="What to write or print.")
@click.option(
    "--processes",
    type=WholeNumber(2, MOST_REPEATS),
    default=5,
    show_default=True,
    metavar="N",
    help="Fresh processes in which an engine is loaded and timed again: the unit of the file's own interval.",
)
@click.option(
    "--continuable", is_flag=True, help="Of a trtexec-cache: refuse where `trtexec --continue` would go on wrongly."
)
@click.argument("out", type=click.Path(path_type=Path), required=False)
@json_option
def export(
    study: str, storage: str, form: str, processes: int, continuable: bool, out: Path | None, as_json: bool
) -> None:
    """Write the winner of STUDY, or its records, to OUT.

    The winner is that of the latest confirmation. The engine is one of the builds that confirmed it:
    loaded again, checked against the golden data and timed again. OUT.json says what it is.

    trtexec and torch-tensorrt print what applies the winner's route there; trtexec-cache writes the trials in the
    form of trtexec's tuning cache.
    """
    from gpt_search.run.export import PRINTED, applied, sidecar
    from gpt_search.run.export import export as run

    if continuable and form != "trtexec-cache":
        raise click.UsageError(f"--continuable is for --as trtexec-cache, not for --as {form}")
    if out is None:
        if form not in PRINTED:
            raise click.UsageError(f"--as {form} needs OUT, the file to write")
        text, trial, note = applied(study, storage, form)
        if as_json:
            print_json({"as": form, "text": text, "trial": trial, "note": note})
        else:
            click.echo(text)
            click.echo(f"trial {trial}: {note}", err=True)
        return

    live = LiveProgress(None)

    def step(done: int, total: int, what: str) -> None:
        live.step(done, total, what, "timing the file: process")

    with stoppable(live):
        done = run(study, storage, form, out, processes, step, continuable)
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
            | ({"sidecar": sidecar(done.path), "facts": dict(done.facts)} if done.facts else {})
        )
        return
    of = "" if done.trial is None else f" of trial {done.trial}"
    print_wrapped(
        f"{done.path}: {done.form}{of}, {done.bytes} bytes ({done.note})", indent="  ", first="", width=output_width()
    )
    if "file_speedup" in done.facts:
        print_shipped(done.facts)
    if done.facts:
        click.echo(f"{sidecar(done.path)}: what it is")
