"""`gpt-search strategies`: the strategies that a study can use, and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpt_search.cli.common import json_option, print_json, print_wrapped

if TYPE_CHECKING:
    from gpt_search.search.discovery import StrategyInfo

_NAME_WIDTH = 20


@click.command()
@click.argument("name", required=False)
@json_option
def strategies(name: str | None, as_json: bool) -> None:
    """List the search strategies and their options, or show one.

    One of your own is a class in a file, here my_strategy.py:MyStrategy, elsewhere --strategy
    my_strategy.py:MyStrategy:option=value
    """
    from gpt_search.search.discovery import strategy_info

    found = strategy_info(name)
    if as_json:
        entries = [
            {
                "name": info.name,
                "summary": info.summary,
                "options": [option._asdict() for option in info.options],
                "source": info.source,
                "problem": info.problem,
            }
            for info in found
        ]
        print_json({"strategies": entries} if name is None else entries[0])
        return
    width = max(min(len(info.name), _NAME_WIDTH) for info in found)
    for info in found:
        _show(info, width, with_source=name is not None)
    if name is None:
        click.echo()
        print_wrapped("Give one as --strategy NAME or --strategy NAME:option=value,option=value.")


def _show(info: StrategyInfo, width: int, *, with_source: bool) -> None:
    indent = " " * (2 if len(info.name) > width else width + 2)
    text = info.summary if info.problem is None else f"cannot be loaded: {info.problem}"
    if len(info.name) > width:  # a file's path
        click.echo(info.name)
        print_wrapped(text, first=indent, indent=indent)
    else:
        print_wrapped(text, first=f"{info.name:<{width}}  ", indent=indent)
    for option in info.options:
        default = "must be given" if option.default is None else f"default {option.default}"
        print_wrapped(f"{option.name}: {option.type}, {default}", first=f"{indent}  ", indent=f"{indent}      ")
    if with_source and info.source:
        print_wrapped(f"source: {info.source}", first=indent, indent=f"{indent}  ")
