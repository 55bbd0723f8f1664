"""Writes docs/cli.md from the commands themselves: help and documentation have one source."""

from __future__ import annotations

from pathlib import Path

import click

from gpt_search.cli.main import cli

_WIDTH = 80
_HEAD = """# Commands

Made from the commands' own help by `python docs/make_cli.py`; a test holds the two together.
"""


def cli_page() -> str:
    """The page: every command's help, in the order of `gpt-search --help`."""
    parts = [_HEAD, _section("gpt-search", cli, None)]
    with click.Context(cli, info_name="gpt-search", **cli.context_settings) as parent:
        for name in cli.list_commands(parent):
            command = cli.get_command(parent, name)
            assert command is not None
            parts.append(_section(f"gpt-search {name}", command, parent))
            if isinstance(command, click.Group):
                with click.Context(command, info_name=name, parent=parent) as group:
                    for sub in command.list_commands(group):
                        below = command.get_command(group, sub)
                        assert below is not None
                        parts.append(_section(f"gpt-search {name} {sub}", below, group))
    return "\n".join(parts)


def _section(title: str, command: click.Command, parent: click.Context | None) -> str:
    info = title if parent is None else title.rpartition(" ")[2]
    settings = command.context_settings | {"terminal_width": _WIDTH, "max_content_width": _WIDTH}
    with click.Context(command, info_name=info, parent=parent, **settings) as ctx:
        return f"## {title}\n\n```\n{command.get_help(ctx)}\n```\n"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(cli_page(), encoding="utf-8")
