"""`gpt-search report`: a study, an experiment or a table as a page, or as Markdown and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpt_search.cli.common import OneOf, json_option, print_json
from gpt_search.cli.summary import summary_json
from gpt_search.cli.tune import storage_option
from gpt_search.domain.budget import AXES
from gpt_search.domain.errors import InputError

if TYPE_CHECKING:
    from gpt_search.analysis.report import Document

_FORMS = ("html", "markdown")


@click.command()
@click.argument("source", metavar="STUDY|DIR|TABLE")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.html|FOLDER",
    help="The page, or the folder of the Markdown form.",
)
@click.option("--as", "form", type=OneOf(_FORMS), help="html or markdown.  [default: html for .html, else markdown]")
@click.option(
    "--axis",
    type=OneOf(AXES),
    help="Of an experiment: what budgets count; its file must declare some.  [default: the first of its budget]",
)
@storage_option
@json_option
def report(source: str, out: Path, form: str | None, axis: str | None, storage: str, as_json: bool) -> None:
    """Write STUDY, the experiment in the folder DIR, or the file of a recorded TABLE, as one HTML page.

    The page is one file: figures are inside, nothing is loaded, tables can be sorted. The other form is a folder
    with report.md, a CSV file for each table, and an SVG and a PNG file for each figure.
    """
    suffix = out.suffix.lower()
    if form is None:
        if suffix not in ("", ".html", ".htm") and not out.is_dir():
            raise InputError(f"--out {str(out)!r} ends in {out.suffix!r}; give FILE.html, or a folder for Markdown")
        form = "html" if suffix in (".html", ".htm") and not out.is_dir() else "markdown"
    if form == "html" and out.is_dir():
        raise InputError(f"--out {str(out)!r} is a folder; give FILE.html, or --as markdown")
    if form == "markdown" and out.exists() and not out.is_dir():
        raise InputError(f"--out {str(out)!r} is a file; the Markdown form needs a folder")
    if form == "markdown" and (out / "experiment.json").is_file():
        raise InputError(f"--out {str(out)!r} is an experiment's folder, whose files it would replace; give another")
    document = _document(source, storage, axis)
    from gpt_search.analysis.report import to_folder, to_html
    from gpt_search.store.files import replace_file

    if form == "markdown":
        written = to_folder(document, out)
    else:
        page = to_html(document)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            replace_file(out, page.encode())
        except OSError as error:
            raise InputError(f"--out {str(out)!r} cannot be written: {error.strerror or error}") from None
        written = [out]
    if as_json:
        print_json({"report": source, "form": form, "files": [str(path) for path in written]})
    else:
        more = f" ({len(written)} files)" if form == "markdown" else ""
        click.echo(f"wrote {out}{more}")


def _document(source: str, storage: str, axis: str | None) -> Document:
    folder = Path(source)
    if axis is not None and not folder.is_dir():
        raise InputError("--axis is for the folder of an experiment; studies and tables have no budgets")
    if folder.is_dir():
        if not (folder / "experiment.json").is_file():
            raise InputError(
                f"{source} is a folder without experiment.json; gpt-search compare FILE --out DIR makes one"
            )
        from gpt_search.analysis.report_experiment import experiment_report
        from gpt_search.analysis.results import load_results

        return experiment_report(load_results(folder, axis))
    if folder.is_file():
        from gpt_search.analysis.report_table import table_report
        from gpt_search.cli.table import table_json
        from gpt_search.store.tables import load_table

        table = load_table(folder)
        return table_report(table, table_json(table))
    from gpt_search.analysis.report_study import StudyFacts, study_report
    from gpt_search.run.show import study_data

    data = study_data(source, storage)
    rows = [(row.trial, row.evaluation, row.clock_s) for row in data.rows]
    return study_report(
        StudyFacts(summary_json(data.summary), data.settings, rows, data.history, data.changes, data.losses)
    )
