"""`gpt-search importance`: which knobs matter in a study or a table, and how sure that is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import WholeNumber, json_option, output_width, print_json, print_wrapped
from gpt_search.cli.tune import storage_option
from gpt_search.domain.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gpt_search.analysis.importance_set import Importance
    from gpt_search.domain.history import History

_SHOWN = 10


@click.command()
@click.argument("study", metavar="STUDY|TABLE")
@storage_option
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="single, sparse, ped-anova, mdi or fanova; may be repeated.  [default: all]",
)
@click.option("--resamples", type=WholeNumber(0), metavar="N", help="Bootstrap resamples for every method.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one table of all knobs and methods as CSV.")
@json_option
def importance(
    study: str, storage: str, methods: tuple[str, ...], resamples: int | None, as_csv: bool, as_json: bool
) -> None:
    """Show which knobs matter in STUDY, by several measures, with intervals.

    The measures are one-at-a-time effects, sparse-linear effects, PED-ANOVA, mean decrease impurity and fANOVA. A
    study of a strategy that learns is warned about: some measures then say where it looked, not what matters.
    STUDY may also be the file of a recorded table, whose routes no strategy chose.
    """
    if as_csv and as_json:
        raise InputError("--csv and --json are both given; the output is one of them")
    from gpt_search.analysis.importance_set import METHODS, measure_importance

    history, strategy = _history(study, storage)
    found = measure_importance(history, methods or tuple(METHODS), strategy=strategy, resamples=resamples)
    if as_json:
        print_json(importance_json(found))
    elif as_csv:
        sys.stdout.write(found.knobs.to_csv(index=False))
    else:
        _print(found)


def _history(study: str, storage: str) -> tuple[History, str | None]:
    """What was tried, and the strategy that chose it; None where that is not known."""
    if not Path(study).is_file():
        from gpt_search.run.show import finished_rows

        rows = finished_rows(study, storage)
        return rows.history, rows.strategy
    from gpt_search.analysis.table_history import table_history
    from gpt_search.store.tables import load_table

    table = load_table(study)
    # Recorded routes are all there are, or drawn uniformly; an import may be of a tuner that learns.
    return table_history(table), "random" if table.paired else None


def importance_json(found: Importance) -> dict[str, Any]:
    """All tables as lists of objects; what is unknown is null."""
    return {
        "routes": found.routes,
        "adaptive": found.adaptive.adaptive,
        "shift_p": _none(found.adaptive.shift_p),
        "warning": found.adaptive.warning,
        "explained": found.explained,
        "left_out": list(found.left_out),
        **{name: _records(getattr(found, name)) for name in ("knobs", "stability", "effects", "singles", "pairs")},
    }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): _none(v) for k, v in row.items()} for row in table.to_dict("records")]


def _none(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and value - value != 0 else value


def _rows(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples(index=False))


def _print(found: Importance) -> None:
    from gpt_search.analysis.importance_set import METHODS

    print_wrapped(f"{found.routes} distinct feasible routes")
    if found.adaptive.warning is not None:
        print_wrapped(f"warning: {found.adaptive.warning}")
    for left in found.left_out:
        print_wrapped(f"{left}: too few routes, or no effect found")
    for method, rows in found.knobs.groupby("method", sort=False):
        click.echo()
        print_wrapped(METHODS[str(method)])
        stable = found.stability[found.stability["method"] == method]
        for row in _rows(rows[rows["importance"] > 0].head(_SHOWN)):
            ranks = "" if row.rank_low != row.rank_low else f"  rank {row.rank_low:.0f} to {row.rank_high:.0f}"
            click.echo(f"  {100 * row.importance:5.1f} %{ranks:18s}  {row.knob}")
        for row in _rows(stable):
            kept = f"{100 * row.top_kept:.0f} % of the first {min(_SHOWN, len(rows))} stay first"
            print_wrapped(f"{kept} in {row.resamples} resamples; Kendall tau {row.tau:.2f}", indent="  ")
    certain = found.effects[(found.effects["low"] > 1) | (found.effects["high"] < 1)]
    if len(certain):
        click.echo()
        print_wrapped("latency with a value / at the default, sparse-linear, 95 % interval (those that exclude 1)")
        for row in _rows(certain.head(_SHOWN)):
            _print_row(f"  {row.ratio:.4f} [{row.low:.4f}, {row.high:.4f}]  ", f"-{row.knob}={row.value}")
    pairs = found.pairs[found.pairs["holm"] < 0.05]
    if len(pairs):
        click.echo()
        print_wrapped("pairs that do more or less than their effects together (Holm p < 0.05)")
        for row in _rows(pairs.sort_values("p").head(_SHOWN)):
            _print_row(
                f"  {row.ratio:.4f} [{row.low:.4f}, {row.high:.4f}]  ",
                f"-{row.first}={row.first_value} -{row.second}={row.second_value}",
            )


def _print_row(numbers: str, changes: str) -> None:
    """One row; changes that do not fit beside their numbers go on below, whole."""
    print_wrapped(changes, first=numbers, indent=" " * 4, width=output_width())
