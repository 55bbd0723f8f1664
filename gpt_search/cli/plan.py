"""`gpt-search plan`: the dry run. How many routes there are, and which come first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpt_search.cli.common import (
    WholeNumber,
    approximate_count,
    json_option,
    knob_database,
    knob_source_options,
    log2_of,
    output_width,
    print_json,
    print_wrapped,
)

if TYPE_CHECKING:
    from gpt_search.domain.space import Codes, SearchSpace
    from gpt_search.search.strategy import Strategy

# Up to that many varying knobs a route is printed in full; beyond, as its changes from the reference.
_FULL_ROUTE_KNOBS = 12


class _Listing(NamedTuple):
    """The first routes of a strategy; whether they come from a simulated study; whether they are all."""

    codes: list[Codes]
    simulated: bool
    complete: bool


@click.command()
@click.option("--knobs", "expression", required=True, metavar="EXPR", help="Knobs to vary and to pin.")
@knob_source_options
@click.option("--strategy", "spec", metavar="SPEC", help="List the first routes of this strategy.")
@click.option("--limit", metavar="N", type=WholeNumber(0), default=10, show_default=True, help="Routes to list.")
@click.option("--seed", metavar="N", type=WholeNumber(0), default=0, show_default=True, help="Seed of the strategy.")
@click.option("--strict-trtexec", is_flag=True, help="trtexec's grammar to the letter, no extensions.")
@click.option("--full-routes", is_flag=True, help=f"Print every knob of a route, also beyond {_FULL_ROUTE_KNOBS}.")
@json_option
def plan(
    expression: str,
    backend: str | None,
    database: Path | None,
    spec: str | None,
    limit: int,
    seed: int,
    strict_trtexec: bool,
    full_routes: bool,
    as_json: bool,
) -> None:
    """Count the routes of an expression and list the first ones, building nothing.

    Spaces of 2^200 routes are no different from small ones: routes are listed one by one.
    """
    from gpt_search.domain.expression import parse_expression

    space = parse_expression(expression, knob_database(backend, database), strict=strict_trtexec)
    strategy = listing = count = None
    if spec is not None:
        from gpt_search.search.discovery import load_strategy

        strategy = load_strategy(spec)
        count = _count(strategy, space)
        listing = _first_routes(strategy, space, limit, seed, count)
    if as_json:
        print_json(_as_json(space, strategy, count, listing))
        return
    _print_space(space)
    if strategy is not None and listing is not None:
        full = full_routes or len(space) <= _FULL_ROUTE_KNOBS
        _print_listing(space, strategy, count, listing, full)


def _count(strategy: Strategy, space: SearchSpace) -> int | None:
    """The exact number of routes that the strategy goes through, where it knows it in advance."""
    own: Callable[[SearchSpace], int | None] | None = getattr(strategy, "count", None)
    if own is None:
        return None
    from gpt_search.domain.errors import StrategyError
    from gpt_search.search.strategy import blamed

    with blamed(strategy, "count"):
        count = own(space)
    if count is not None and (not isinstance(count, int) or count < 0):
        raise StrategyError(
            f"strategy {type(strategy).__name__} counted {count!r} routes, expected a whole number or None"
        )
    return count


def _first_routes(strategy: Strategy, space: SearchSpace, limit: int, seed: int, count: int | None) -> _Listing:
    """The first `limit` routes, the strategy's own enumeration where it has one.

    Other strategies propose by what they have seen: those are run against a measure under which all
    routes are equally fast, so what is listed holds as long as nothing is faster than the reference.
    """
    own: Callable[..., Iterator[Codes]] | None = getattr(strategy, "routes", None)
    if own is not None:
        import inspect

        from gpt_search.domain.history import History
        from gpt_search.domain.streams import Streams
        from gpt_search.search.loop import checked_codes
        from gpt_search.search.strategy import Proposal, blamed

        with blamed(strategy, "routes"):
            # The streams of the study with this seed, so that a drawn order is listed as `tune` goes through it.
            drawn = {"streams": Streams(seed)} if "streams" in inspect.signature(own).parameters else {}
            given = list(islice(own(space, **drawn), min(limit, sys.maxsize)))
        empty = History(space)
        found = [checked_codes(Proposal(codes), space, empty, strategy) for codes in given]
        # Without a count the enumeration is a first phase: what follows depends on what it measures.
        return _Listing(found, simulated=False, complete=count is not None and len(found) >= count)
    if limit == 0:
        return _Listing([], simulated=True, complete=False)
    from gpt_search.domain.outcome import Observation, Outcome
    from gpt_search.search.loop import End
    from gpt_search.search.simulate import simulate

    equal = Observation(Outcome.OK, latency_ms=1.0, violation=-1.0, error_ms=0.01)
    result = simulate(space, strategy, lambda codes, rng, until: equal, trials=limit - 1, seed=seed, noise=0.01)
    return _Listing(list(result.codes), simulated=True, complete=result.end in (End.STRATEGY, End.SPACE))


def _as_json(space: SearchSpace, strategy: Strategy | None, count: int | None, listing: _Listing | None) -> Any:
    reference = space.reference
    out: dict[str, Any] = {
        "knobs": len(space),
        "pinned": space.pinned,
        "size": space.size,
        "log2_size": log2_of(space.size),
        "space_digest": space.digest,
        "reference": str(reference),
        "notes": list(space.notes),
    }
    if strategy is not None and listing is not None:
        routes = [space.route(codes) for codes in listing.codes]
        out |= {
            "strategy": getattr(strategy, "spec", type(strategy).__name__),
            "count": count,
            "simulated": listing.simulated,
            "complete": listing.complete,
            "routes": [{"route": str(r), "changes": str(r.changes(reference))} for r in routes],
        }
    return out


def _print_space(space: SearchSpace) -> None:
    size = f"{space.size:,} routes" if space.size < 10**15 else f"{approximate_count(space.size)} routes"
    pins = f", {len(space.pinned)} pinned" if space.pinned else ""
    click.echo(f"{len(space)} varying knobs{pins}: {size}")
    if space.size >= 10**15:
        click.echo(f"exactly {space.size}")
    for note in space.notes:
        print_wrapped(note, indent="      ", first="note: ")


def _print_listing(space: SearchSpace, strategy: Strategy, count: int | None, listing: _Listing, full: bool) -> None:
    name = getattr(strategy, "spec", type(strategy).__name__)
    if count is not None:
        click.echo(f"strategy {name}: {approximate_count(count)} routes in all")
        if count >= 10**15 and count != space.size:
            click.echo(f"exactly {count}")
    else:
        click.echo(f"strategy {name}: how many routes it tries is not known in advance")
    if not listing.codes:
        return
    click.echo()
    heads = ["all routes" if listing.complete else "first routes"]
    if listing.simulated:
        heads.append("if nothing is faster than the reference")
    if not full:
        heads.append("as changes from the reference route (--full-routes shows every knob)")
    print_wrapped(", ".join(heads) + ":")
    reference = space.reference
    digits = len(str(len(listing.codes) - 1))
    for number, codes in enumerate(listing.codes):
        route = space.route(codes)
        shown = route if full else route.changes(reference)
        text = str(shown) or "(the reference route)"
        print_wrapped(text, indent=" " * (digits + 2), first=f"{number:>{digits}}  ", width=output_width())
