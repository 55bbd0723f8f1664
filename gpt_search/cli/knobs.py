"""`gpt-search knobs`: the knobs of a backend or a database, or everything about one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import (
    json_option,
    knob_database,
    knob_source_options,
    print_json,
    print_table,
    print_wrapped,
)

if TYPE_CHECKING:
    from gpt_search.domain.knob import Knob


@click.command()
@click.argument("name", required=False)
@knob_source_options
@json_option
def knobs(name: str | None, backend: str | None, database: Path | None, as_json: bool) -> None:
    """List the knobs that a compiler has, or show one.

    NAME is a knob, or a pattern with * and ? that lists the knobs it matches.
    """
    import fnmatch

    from gpt_search.domain.errors import InputError

    source = knob_database(backend, database)
    wanted = None if name is None else name.removeprefix("-")
    if wanted is not None and not any(c in wanted for c in "*?"):
        knob = source[wanted]
        if as_json:
            print_json(_entry(knob))
        else:
            _show(knob)
        return
    chosen = [k for k in source if wanted is None or fnmatch.fnmatchcase(k.name, wanted)]
    if not chosen:
        raise InputError(f"no knob matches {wanted!r} ({len(source)} knobs in version {source.tuner_version})")
    if as_json:
        print_json(
            {
                "tuner_version": source.tuner_version,
                "digest": source.digest,
                "knobs": [_entry(k) for k in chosen],
            }
        )
        return
    print_table(["knob", "default", "allowed values"], [(k.name, k.default, k.allowed) for k in chosen])
    open_ended = sum(k.open_ended for k in chosen)
    click.echo()
    counted = f"{len(chosen)} knobs" if wanted is None else f"{len(chosen)} of {len(source)} knobs"
    print_wrapped(
        f"{counted} in version {source.tuner_version}: {len(chosen) - open_ended} with a closed set of values, "
        f"{open_ended} open-ended (usable with values that you list). `gpt-search knobs NAME` shows the help of one."
    )


def _entry(knob: Knob) -> dict[str, Any]:
    return {
        "name": knob.name,
        "values": list(knob.values),
        "default": knob.default,
        "open_ended": knob.open_ended,
        "integer": knob.integer,
        "help": knob.help,
    }


def _show(knob: Knob) -> None:
    click.echo(f"-{knob.name}={knob.allowed}")
    click.echo(f"default: {knob.default}")
    if knob.open_ended:
        kind = "whole numbers" if knob.integer else "values"
        print_wrapped(f"open-ended: takes {kind} beyond those shown; list the ones to try, as in -{knob.name}=[a|b]")
    print_wrapped(knob.help or "The compiler gives no help text for this knob.")
