"""`gpt-search table`: what a table holds, import from and export to other tuners' files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import OneOf, approximate_count, json_option, print_json, print_wrapped

if TYPE_CHECKING:
    from gpt_search.store.tables import Table

_LABEL = 11


@click.group()
def table() -> None:
    """Tables: spaces that were measured, on which strategies are compared without a compiler."""


@table.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def info(file: Path, as_json: bool) -> None:
    """What FILE holds, after checking every line and every sample."""
    from gpt_search.store.tables import load_table

    found = load_table(file)
    found.check_samples()
    if as_json:
        print_json(table_json(found))
    else:
        print_info(found)


@table.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The table; .zst compresses."
)
@click.option("--reference", metavar="ROUTE", help="The reference route.  [default: the file's first that was timed]")
@json_option
def import_(file: Path, out: Path, reference: str | None, as_json: bool) -> None:
    """Make a table from FILE, a cache file of Kernel Tuner or a results file in the T4 format (.gz too).

    Such a file says neither what is the default nor what lay beside a sample: the reference is a route of it, samples
    are not paired.
    """
    from gpt_search.run.import_table import import_table

    done = import_table(file, out, reference)
    if as_json:
        print_json({**table_json(done.table), "notes": done.notes})
        return
    print_info(done.table)
    for text in done.notes:
        print_wrapped(text, first="note: ", indent="      ")


@table.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--as", "kind", type=OneOf(["t4"]), default="t4", show_default=True, help="Format of the file.")
@json_option
def export(file: Path, out: Path, kind: str, as_json: bool) -> None:
    """Write the table FILE as OUT in another tuner's format: T4 results, as Kernel Tuner and BAT read them."""
    from gpt_search.store.t4 import write_t4
    from gpt_search.store.tables import load_table

    count = write_t4(load_table(file), out)
    if as_json:
        print_json({"path": out, "as": kind, "results": count})
        return
    click.echo(f"wrote {out}: {count:,} results")


def table_json(found: Table) -> dict[str, Any]:
    """Facts about a table, JSON-like."""
    from collections import Counter

    from gpt_search.domain.outcome import Outcome

    columns, effect = found.columns, found.between_builds
    outcomes = Counter(Outcome(o).name for o in columns.outcome[found.first].tolist())  # type: ignore[call-arg]
    row = found.find(found.space.default)
    timed = row is not None and outcomes.get("OK", 0) > 0
    return {
        "table": str(found.path),
        "digest": found.digest,
        "workload": found.settings.get("workload", {}).get("name"),
        "backend": found.settings.get("backend"),
        "knobs": len(found.space),
        "routes": len(found),
        "space": found.space.size,
        "complete": found.complete,
        "builds": len(found.row),
        "timed": sum(len(found.timed(i)) > 0 for i in range(len(found))),
        "engines": len(columns.fingerprints),
        "timed_builds": int((columns.start[1:] > columns.start[:-1]).sum()),
        "sections": len(columns.log_ratio),
        "outcomes": dict(outcomes),
        "reference_ms": found.reference_ms if timed else None,
        "best": None
        if not timed
        else {"route": str(found.route(found.best)), "log_ratio": float(found.truth[found.best])},
        "between_builds": None if effect is None else {**effect._asdict(), "deviation": effect.deviation},
        "sessions": len({b.get("session", 1) for b in columns.bodies}),
        "paired": found.paired,
    }


def print_info(found: Table) -> None:
    """Facts about a table, for people."""
    import math

    facts = table_json(found)
    share = "all" if facts["complete"] else f"{facts['routes']:,} of {approximate_count(facts['space'])}"
    lines = {
        "table": f"{facts['table']} (digest {facts['digest']})",
        "workload": f"{facts['workload']} ({facts['backend']})",
        "space": f"{facts['knobs']} knobs; {share} routes",
        "records": f"{facts['builds']:,} builds, {facts['timed_builds']:,} timed, {facts['engines']:,} engines; "
        + ", ".join(f"{n:,} {o.lower().replace('_', ' ')}" for o, n in facts["outcomes"].items()),
    }
    if facts["sessions"] > 1:
        lines["records"] += f"; {facts['sessions']} sessions"
    if facts["reference_ms"] is not None:
        lines["reference"] = f"{facts['reference_ms']:.4g} ms" + ("" if found.paired else "; samples are not paired")
        best = facts["best"]
        lines["best"] = f"{math.exp(-best['log_ratio']):.3f}x: {best['route']}"
    effect = found.between_builds
    lines["builds"] = (
        "no route was built several times: what builds differ by is not known"
        if effect is None
        else f"differ by {100 * effect.deviation:.2g} % (standard deviation; 95 %: {100 * math.sqrt(effect.low):.2g} "
        f"to {100 * math.sqrt(effect.high):.2g} %), from {effect.builds} builds of {effect.routes} routes"
    )
    for name, text in lines.items():
        print_wrapped(text, first=f"{name:<{_LABEL}}", indent=" " * _LABEL)
