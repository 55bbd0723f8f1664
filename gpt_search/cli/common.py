"""What the commands share: `--json`, output that fits the terminal, and where knobs come from.

Imports click only; everything heavier is imported by the function that needs it.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpt_search.cli.errors import answer_stream
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.json_text import parse_json

if TYPE_CHECKING:
    from rich.console import Console

    from gpt_search.domain.knob import KnobDatabase

_F = TypeVar("_F", bound=Callable[..., Any])

DEFAULT_BACKEND = "onnxruntime"
UNLIMITED_WIDTH = 100_000
"""The width of what is not read on a terminal: lines are never cut or folded there."""

MOST_REPEATS = 10_000
"""Of rounds, builds, processes: more than anything here can use, and what lists of them still fit in memory."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
"""The option every command has; the function gets `as_json`."""


def same_command() -> str:
    """The command line that is running, as a shell takes it."""
    return shlex.join(["gpt-search", *click.get_current_context().obj])


class WholeNumber(click.IntRange):
    """A whole number of at least `min`, and at most `max` where there is one; says what is wrong in words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Raises click.BadParameter."""
        assert self.min is not None
        try:
            found = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if found < self.min:
            self.fail(f"{found} is too small; it must be {self.min:g} or more", param, ctx)
        if self.max is not None and found > self.max:
            self.fail(f"{found} is too large; it must be {self.max:g} or less", param, ctx)
        return found


class Amount(click.FloatRange):
    """A finite number of at least `min`, or above it with `min_open`; says what is wrong in words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        assert self.min is not None
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        if found < self.min or (self.min_open and found == self.min):
            allowed = f"more than {self.min:g}" if self.min_open else f"{self.min:g} or more"
            self.fail(f"{value} is too small; it must be {allowed}", param, ctx)
        return found


class OneOf(click.Choice[str]):
    """One of some words; a wrong one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word. Raises click.BadParameter."""
        words = [str(c) for c in self.choices]
        if value not in words:
            self.fail(f"{value!r} is not one of {', '.join(words)}{did_you_mean(str(value), words)}", param, ctx)
        return str(value)


def build_options_option(function: _F) -> _F:
    """Adds `--option`: what the backend is told for every build and timing (see `build_options`)."""
    return click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Option of the backend, or @FILE with a JSON object of them; may be repeated.",
    )(function)


def build_options(given: Iterable[str]) -> dict[str, object]:
    """Options by name, from `NAME=VALUE` and `@FILE`; a value that is JSON is taken as such, any other as text.

    Raises InputError for another form, an unreadable file, and a name that is given twice.
    """
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if text.startswith("@"):
            try:
                content = parse_json(Path(text[1:]).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                words = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
                if isinstance(error, OSError):
                    words = error.strerror or words
                raise InputError(f"--option {text}: the file cannot be read as JSON: {words}") from None
            if not isinstance(content, dict):
                raise InputError(f"--option {text}: the file holds no JSON object of options")
            new = content
        elif not equals or not name.strip() or not value.strip():
            raise InputError(f"--option {text!r} is not of the form NAME=VALUE, nor @FILE")
        else:
            try:
                new = {name.strip(): parse_json(value)}
            except ValueError:
                new = {name.strip(): value.strip()}
        for twice in found.keys() & new.keys():
            raise InputError(f"--option {twice} is given twice")
        found |= new
    return found


def knob_source_options(function: _F) -> _F:
    """Adds `--backend` and `--database` to a command: where the knobs come from (see `knob_database`)."""
    function = click.option(
        "--database",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Knob database (JSON, as TensorRT writes it) instead of a backend's.",
    )(function)
    return click.option(
        "--backend", metavar="NAME", help=f"Compiler whose knobs to use.  [default: {DEFAULT_BACKEND}]"
    )(function)


def knob_database(backend: str | None, database: Path | None) -> KnobDatabase:
    """The knob database of a file or of a backend; of the default backend where neither is given.

    Raises InputError: both given, unreadable file, unknown backend, or one not usable on this machine.
    """
    from gpt_search.domain.knob import KnobDatabase

    if database is not None:
        if backend is not None:
            raise InputError("--database and --backend are both given; the knobs come from one of them")
        try:
            text = database.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"cannot read the knob database {str(database)!r}: {reason}") from None
        try:
            return KnobDatabase.from_json(text)
        except InputError as error:
            raise InputError(f"{database}: {error}") from None
    from gpt_search.backends.registry import file_of, load_backend

    name = backend or DEFAULT_BACKEND
    if file_of(name) is not None:  # a third party's code runs in a worker: what it does there harms nobody
        from gpt_search.execution.describe import describe_backend

        return describe_backend(name).database
    return load_backend(name).knob_database()


# -- output ----------------------------------------------------------------------------------
def jsonable(value: Any) -> Any:
    """`value` in JSON's types: NaN and infinity as text ("nan", "inf"), paths and other objects as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in (sorted(value) if isinstance(value, set | frozenset) else value)]
    to_list = getattr(value, "tolist", None)  # numpy scalars and arrays
    return jsonable(to_list()) if callable(to_list) else str(value)


def print_json(value: Any) -> None:
    """Prints one JSON value, indented, in valid JSON (see `jsonable`)."""
    text = json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    click.echo(text, file=answer_stream())


def output_width() -> int:
    """Columns to fit into: the terminal's, or `COLUMNS`; without either, lines are left whole.

    A reader that is not a terminal is a file, a pager or grep: one row is one line for them.
    """
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return max(40, shutil.get_terminal_size((80, 24)).columns)
    return UNLIMITED_WIDTH


def text_width() -> int:
    """Columns for running text: the terminal's, at most 100; 80 where there is none."""
    return min(output_width(), 100) if output_width() < UNLIMITED_WIDTH else 80


def console(*, err: bool = False) -> Console:
    """A rich console for text as it is: no markup, no emoji (`kgen:codegen:x` is a knob), no highlighting.

    Colours only on a terminal, never with NO_COLOR.
    """
    from rich.console import Console

    width = output_width()
    return Console(
        stderr=err, width=width, markup=False, emoji=False, highlight=False, soft_wrap=width == UNLIMITED_WIDTH
    )


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), remarks: bool = False
) -> None:
    """Prints a table without a frame; too wide for the terminal, cells fold, nothing is cut off.

    headers: column titles. rows: cells as text. right: numbers of the columns to be aligned right.
    remarks: the last column goes below its row where the table is too wide, on lines of its own.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows, width, below = [tuple(row) for row in rows], output_width(), list[str]()
    if remarks and _least_width(headers, rows) > width:
        below = [row[-1] for row in rows]
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, overflow="fold", justify="right" if i in right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # Rich pads every cell to its column; the blanks at the ends of lines are taken off again.
    out = Console(
        width=width, markup=False, emoji=False, highlight=False, force_terminal=sys.stdout.isatty(), color_system="auto"
    )
    with out.capture() as captured:
        out.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    if below and len(lines) == 1 + len(rows):  # no row of what is left is folded
        lines[1:] = [part for line, remark in zip(lines[1:], below, strict=True) for part in (line, *_remark(remark))]
    else:
        lines += [part for row, remark in zip(rows, below, strict=False) for part in _remark(f"{row[0]}: {remark}")]
    for line in lines:
        click.echo(line)


def _least_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of a table in which nothing folds."""
    from rich.cells import cell_len

    return sum(2 + max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)) - 2


def _remark(text: str) -> list[str]:
    return wrapped(text, output_width(), indent="    ").splitlines()


def wrapped(text: str, width: int, *, indent: str = "", first: str | None = None) -> str:
    """A paragraph in lines of at most `width` columns; words longer than a line stay whole.

    indent: before every line. first: before the first line instead, when given.
    """
    import textwrap

    return textwrap.fill(
        text,
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_wrapped(text: str, *, indent: str = "", first: str | None = None, width: int | None = None) -> None:
    """Prints a paragraph as `wrapped` makes it.

    width: columns, by default `text_width()`; `output_width()` is for what a program may read.
    """
    click.echo(wrapped(text, text_width() if width is None else width, indent=indent, first=first))


def approximate_count(count: int) -> str:
    """A count to read: "1,024", "2^195", "about 2^204.3".

    Exact up to 15 digits; beyond, the power of two, "about" and with one decimal unless it is one.
    """
    if count < 10**15:
        return f"{count:,}"
    return f"about 2^{log2_of(count):.1f}" if count & (count - 1) else f"2^{count.bit_length() - 1}"


def log2_of(count: int) -> float:
    """log2 of a positive whole number of any size, right to 1e-9 also where no float holds the number."""
    shift = max(0, count.bit_length() - 900)
    return math.log2(count >> shift) + shift


def gpu_notes(backend: str) -> list[str]:
    """What stands in the way of steady timing on the GPU, a line each; nothing for backends without one."""
    from gpt_search.backends.registry import availability

    if backend.partition(":")[0] not in ("tensorrt", "tensorrt-rtx") or availability(backend) is not None:
        return []
    try:
        from gpt_search.backends.gpu_preflight import gpu_findings
        from gpt_search.backends.nvml import NvmlError
    except ModuleNotFoundError as error:
        return [f"the GPU was not looked at: {error.name} is not installed (pip install nvidia-ml-py)"]
    try:
        _, findings = gpu_findings()
    except NvmlError as error:
        return [f"the GPU was not looked at: {error}"]
    return [f"GPU, {finding.about}: {finding.text}" for finding in findings if not finding.ok]
