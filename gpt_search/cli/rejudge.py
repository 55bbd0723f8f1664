"""`gpt-search rejudge`: a study's records under another tolerance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpt_search.cli.common import OneOf, json_option, print_json, print_wrapped
from gpt_search.cli.summary import command_for, print_summary, summary_json
from gpt_search.cli.tune import METRICS, TIMINGS, storage_option

if TYPE_CHECKING:
    from gpt_search.run.rejudge import Rejudged

_LISTED = 20


@click.command()
@click.argument("study")
@storage_option
@click.option("--tolerance", multiple=True, metavar="[OUTPUT=]X", help="Largest loss allowed; may be repeated.")
@click.option("--metric", type=OneOf(METRICS), help="Accuracy loss.  [default: that of STUDY]")
@click.option("--timing", type=OneOf(TIMINGS), help="Statistic of the samples.  [default: that of STUDY]")
@click.option(
    "--study-out", metavar="NAME", help="Name of the new study.  [default: STUDY-METRIC-TOLERANCE, STUDY-TIMING]"
)
@json_option
def rejudge(
    study: str,
    storage: str,
    tolerance: tuple[str, ...],
    metric: str | None,
    timing: str | None,
    study_out: str | None,
    as_json: bool,
) -> None:
    """Judge the records of STUDY by another tolerance or statistic, into a new study; nothing is built.

    What the records do not tell is listed as unknown, with the builds that would tell; `gpt-search
    resume` of the new study makes these first.
    """
    from gpt_search.run.rejudge import rejudge as run

    found = run(study, storage, tolerance, metric, study_out, timing)
    if as_json:
        print_json(
            {
                "source": found.source,
                "study": found.summary.study,
                "old_tolerance": found.old.to_json(),
                "tolerance": found.new.to_json(),
                "old_timing": found.old_timing,
                "timing": found.new_timing,
                "became_feasible": found.became_feasible,
                "became_infeasible": found.became_infeasible,
                "unknown": [u.to_json() for u in found.unknown],
                "builds_needed": found.builds,
                "summary": summary_json(found.summary),
            }
        )
    else:
        _print(found, storage)


def _print(found: Rejudged, storage: str) -> None:
    from gpt_search.run.rejudge import tolerance_text

    print_summary(found.summary)
    click.echo()
    by = []
    if found.new != found.old:
        by.append(f"judged by {tolerance_text(found.new)} in place of {tolerance_text(found.old)}")
    if found.new_timing != found.old_timing:
        by.append(f"timed by {found.new_timing} in place of {found.old_timing}")
    print_wrapped(
        f"{'; '.join(by)}: "
        f"{len(found.became_feasible)} trials became feasible, {len(found.became_infeasible)} infeasible; "
        "nothing was built"
    )
    if not found.unknown:
        return
    builds = f"{found.builds} build{'s' if found.builds != 1 else ''}"
    print_wrapped(
        f"unknown, needs {builds}: the ranking is of what is known, without {len(found.unknown)} routes or with "
        "a short timing of them"
    )
    for one in found.unknown[:_LISTED]:
        needs = "needs 1 build" if one.same_as is None else f"the same engine as trial {one.same_as}"
        print_wrapped(
            f"{one.changes or '(the default)'}: {one.missing.explanation}; {needs}",
            first=f"  trial {one.trial}: ",
            indent="    ",
        )
    if len(found.unknown) > _LISTED:
        click.echo(f"  and {len(found.unknown) - _LISTED} more (--json lists them all)")
    print_wrapped(f"build them with: {command_for('resume', found.summary.study, storage)}")
