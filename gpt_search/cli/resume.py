"""`gpt-search resume`: continue a study."""

from __future__ import annotations

import click

from gpt_search.cli.common import json_option, print_json
from gpt_search.cli.live import LiveProgress, stoppable
from gpt_search.cli.summary import print_summary, summary_json
from gpt_search.cli.tune import budget_options, storage_option


@click.command()
@click.argument("study")
@storage_option
@budget_options("that of the study")
@json_option
def resume(
    study: str,
    storage: str,
    trials: int | None,
    seconds: float | None,
    builds: int | None,
    builders: int | None,
    as_json: bool,
) -> None:
    """Continue STUDY with its own settings until its budget is spent.

    A new budget replaces the old one; it counts from the study's start.
    """
    from gpt_search.domain.budget import Budget
    from gpt_search.run.tune import resume as run

    given = trials is not None or seconds is not None or builds is not None
    budget = Budget(trials, builds, seconds) if given else None
    live = LiveProgress(budget)
    with stoppable(live):
        live.preparing("the study")
        summary = run(study, storage, budget, builders, live.progress, live.started, live.compiling)
    if as_json:
        print_json(summary_json(summary))
    else:
        print_summary(summary)
