"""Minimising: from a confirmed winner, every knob change is removed that does not contribute.

1. Changes without which the compiler gives the very same engine go without timing, where the
   backend's fingerprints are exact: builds alone tell which they are, and one more that they can all go at once.
2. Of the others, groups are removed that a test of non-inferiority lets go: on fresh pairs of builds,
   the route without them against the whole confirmed route, so that losses cannot add up step by step.
3. These tests only nominate. A test on twice as many fresh builds decides whether the shortest route
   is at most the margin slower than the winner; where it does not show that, the route before the last
   removal gets a test of its own, and the one before that. Where none shows it, the route of step 1 stays.
4. On fresh builds again: the route's speed-up over the reference, and what each kept change is worth.

What is controlled: a route that is slower than the winner by the margin or more is shipped with
probability at most 2.5 %, however many groups were tried, because only the tests of step 3 ship, and
they share that level (a half, a quarter, a quarter). The speed-up has its own 95 % interval; those of the
kept changes hold together at 95 % (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt_search.domain.errors import InputError
from gpt_search.measure.intervals import Verdict
from gpt_search.run.import_cache import refuse_imported
from gpt_search.run.kept import Keeper, kept_names
from gpt_search.run.minimise_plan import Cap as Cap
from gpt_search.run.minimise_plan import plan_for, stored_spread
from gpt_search.run.minimise_removal import Builder, Removal, Step, confirmed_again
from gpt_search.run.minimise_report import Minimised as Minimised
from gpt_search.run.minimise_report import report
from gpt_search.run.tune import prepared_for
from gpt_search.store.study import StudyStore


def minimise(
    study: str,
    storage: str,
    margin: float | None = None,
    rebuilds: int | None = None,
    step: Step | None = None,
    cap: Cap | None = None,
    planned: Callable[[str], None] | None = None,
) -> Minimised:
    """Removes from a study's confirmed winner what does not contribute, confirms the rest, and stores the result.

    margin: relative latency that may be lost in all; by default the smaller of the noise floor and a
    tenth of the gain. rebuilds: pairs of builds of one test; by default as many as show with 90 %
    probability that an equally fast route is not slower by the margin. step(done, most, what): before each build,
    with about the most builds there will be. cap: the most that may be spent; what was found until then is
    confirmed all the same. planned(text): called once before the first build, with what will be done.

    Raises InputError when the study is unknown, not confirmed, or something it rests on has changed.
    """
    if margin is not None and not 0 < margin < 1:
        raise InputError(
            f"--margin {margin:g}: it is a share of the latency, more than 0 and less than 1 (0.01 is 1 %)"
        )
    if rebuilds is not None and rebuilds < 2:
        raise InputError(f"--rebuilds {rebuilds}: a test needs 2 builds or more")
    with StudyStore.open(storage, study) as store:
        refuse_imported(store.settings, study)
        confirmations = store.confirmations()
        if not confirmations:
            raise InputError(f"study {study!r} has no confirmed winner yet; run `{store.command('confirm')}` first")
        confirmed = confirmations[-1]
        if confirmed["winner"] is None or confirmed["verdict"] != Verdict.FASTER.name:
            reason = f"nothing to minimise: {confirmed['reason']}"
            data = {"winner": confirmed["winner"], "route": None, "verdict": confirmed["verdict"], "reason": reason}
            return Minimised(None, None, Verdict[confirmed["verdict"]], reason, "", data)
        prepared = prepared_for(store)
        plan = plan_for(confirmed, margin, rebuilds, stored_spread(store, prepared))
        keeper = Keeper(store.engines)
        builder = Builder(prepared, confirmed, plan, len(store.minimisations()), step, cap, keeper)
        if planned is not None:
            planned(plan_text(builder))
        result = minimised(builder)
        store.append_minimisation(result.data)
        store.engines.keep_only(kept_names(confirmed, result.data))
        return result


def minimised(builder: Builder) -> Minimised:
    """All four steps."""
    removal = Removal(builder)
    try:
        removal.run()
    finally:
        builder.close()
    headline, worths = confirmed_again(builder, removal.removed, stopped=removal.stopped)
    return report(builder, removal, headline, worths)


def plan_text(builder: Builder) -> str:
    """What will be done, before it is begun."""
    plan, (low, high), changes = builder.plan, builder.planned, len(builder.changes)
    tests = "no tests of time" if plan.rebuilds is None else f"{plan.rebuilds} pairs of builds a test"
    capped = f"; it stops at {builder.cap}" if str(builder.cap) else ""
    return f"{changes} change{'s' if changes != 1 else ''}, {tests}; about {low} to {high} builds in all{capped}"


def shipped_minimisation(
    minimisations: Sequence[Mapping[str, Any]], confirmation: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The latest minimisation of this confirmation's winner, where it removed something and is faster too."""
    for data in reversed(minimisations):
        if data["confirmation"] == confirmation["number"]:
            return data if data["removed"] and data["verdict"] == Verdict.FASTER.name else None
    return None
