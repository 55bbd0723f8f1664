"""The entry point: `gpt-search COMMAND`. Imports click and nothing else until a command runs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import click

from gpt_search import __version__
from gpt_search.cli.errors import reader_may_leave, run_guarded
from gpt_search.cli.interrupts import interrupted_once
from gpt_search.domain.errors import did_you_mean

# Module below gpt_search.cli, the command in it, and its line in `gpt-search --help`: the list of
# commands is shown without importing a single one of them.
_COMMANDS: dict[str, tuple[str, str, str]] = {
    "tune": ("tune", "tune", "Search a faster build route for a model."),
    "resume": ("resume", "resume", "Continue a study that was stopped."),
    "show": ("show", "show", "What a study found so far."),
    "confirm": ("confirm", "confirm", "Rebuild the best routes and measure the speed-up again."),
    "minimise": ("minimise", "minimise", "Remove what does not contribute from the confirmed winner."),
    "rejudge": ("rejudge", "rejudge", "Judge a study's records by another tolerance, building nothing."),
    "export": ("export", "export", "Write a study's engine, route or record to a file."),
    "import": ("import_cache", "import_cache", "Make a study from a tuning cache of trtexec or Torch-TensorRT."),
    "compare": ("compare", "compare", "Compare strategies on the tasks of an experiment."),
    "record": ("record", "record", "Measure a space, or a sample of it, into a table."),
    "table": ("table", "table", "Tables: what one holds, import and export."),
    "importance": ("importance", "importance", "Which knobs matter in a study or a table."),
    "report": ("report", "report", "Write a study, experiment or table as one page."),
    "noise": ("noise", "noise", "How much timings differ, and the speed-ups they can show."),
    "plan": ("plan", "plan", "Dry run: number of routes, and the first ones."),
    "knobs": ("knobs", "knobs", "The knobs of a backend, or the help of one."),
    "strategies": ("strategies", "strategies", "The search strategies and their options."),
    "workload": ("workload", "workload", "Write a built-in model as an ONNX file."),
    "doctor": ("doctor", "doctor", "What is installed, what works here, and why not."),
}


class LazyGroup(click.Group):
    """A group that imports the module of a command when that command is used, not before.

    lazy: command name -> (module below `gpt_search.cli`, attribute, line of help).
    """

    def __init__(self, *args: Any, lazy: dict[str, tuple[str, str, str]], **kwargs: Any) -> None:
        """Everything but `lazy` is click's."""
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table: the main job first."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported now; None when there is none of that name."""
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return None
        from importlib import import_module

        command: click.Command = getattr(import_module(f"gpt_search.cli.{entry[0]}"), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's, but an unknown command is answered with the nearest name, or all of them."""
        name = args[0]
        if not name.startswith("-") and name not in self.lazy:
            hint = did_you_mean(name, self.lazy) or f"; commands are {', '.join(self.lazy)}"
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **kwargs: Any) -> click.Context:
        """click's; the help is printed in here, and what was given is kept for `same_command`."""
        given = tuple(args)
        with reader_may_leave():
            ctx = super().make_context(info_name, args, *more, **kwargs)
        ctx.obj = given
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        """click's; the command runs in here."""
        with reader_may_leave():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """click's, with this program's error handling and exit codes (see `gpt_search.cli.errors`)."""

        def run() -> Any:
            return super(LazyGroup, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        return run_guarded(run, args) if standalone_mode else run()


@click.command(
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0, 1 unexpected error, 2 bad input, 130 after Ctrl-C.",
)
@click.version_option(__version__, prog_name="gpt-search", message="%(prog)s %(version)s")
def cli() -> None:
    """Find faster engines by searching a compiler's build routes.

    A first run on a model of your own: gpt-search tune model.onnx --trials 100
    """


def main() -> None:
    """Runs the command line and exits."""
    interrupted_once()
    try:
        cli(prog_name="gpt-search")
    finally:
        # The exit code is decided: another Ctrl-C while the interpreter ends must not make it a death by signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
