"""Reports: one document, as a self-contained HTML page or as a folder of Markdown, CSV and SVG files.

A document is sections of blocks; it knows nothing of HTML. All text is plain text: names of knobs, messages and paths
may hold anything, and are escaped where they are written. The page has one inline style and one inline script, and
refers to nothing outside itself.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from gpt_search.domain.errors import InputError
from gpt_search.store.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_TABLE = 2000
"""Rows of a table on the page; a longer one is cut there, which is said, and is whole in the CSV form."""


@dataclass(frozen=True)
class Text:
    """A paragraph. kind: "", "headline" or "warning"."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Facts:
    """Labels with what they say, in order."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Sentences:
    """A list of sentences."""

    sentences: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort. name: of its CSV file. digits: significant ones of shown numbers."""

    name: str
    caption: str
    frame: pd.DataFrame
    digits: int = 4


@dataclass(frozen=True)
class Picture:
    """A figure. name: of its SVG file, one word, no other figure's in the document. caption: what it shows."""

    name: str
    caption: str
    figure: Figure


Block = Text | Facts | Sentences | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A whole report. subtitle: one line under the title."""

    title: str
    subtitle: str
    sections: Sequence[Section] = field(default_factory=tuple)


def to_html(document: Document) -> str:
    """The document as one page without any reference to other files."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gpt_search.analysis", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = inline_svg
    environment.filters["rows"] = _shown_rows
    environment.tests["number"] = lambda column: pd.api.types.is_numeric_dtype(column)
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.get_template("report.html.j2").render(document=document, longest=LONGEST_TABLE)


def to_folder(document: Document, folder: Path) -> list[Path]:
    """Writes report.md, one CSV file per table (numbers in full), an SVG and a PNG file per figure; the paths.

    Files of those names are replaced, others are left alone. Raises InputError when the folder cannot be written.
    """
    from gpt_search.analysis.figures import write_figure

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for block in (b for section in document.sections for b in section.blocks):
            if isinstance(block, Table):
                written.append(folder / f"{block.name}.csv")
                replace_file(written[-1], block.frame.to_csv(index=False).encode())
            elif isinstance(block, Picture):
                for kind in ("svg", "png"):
                    written.append(folder / f"{block.name}.{kind}")
                    write_figure(block.figure, written[-1])
        written.append(folder / "report.md")
        replace_file(written[-1], to_markdown(document).encode())
    except OSError as error:
        raise InputError(f"the folder {str(folder)!r} cannot be written: {error.strerror or error}") from None
    return written


def to_markdown(document: Document, longest: int = 40) -> str:
    """The document as Markdown that refers to the files beside it; tables of more than `longest` rows only by name."""
    lines = [f"# {escaped(document.title)}", "", escaped(document.subtitle)]
    for section in document.sections:
        lines += ["", f"## {escaped(section.title)}"]
        for block in section.blocks:
            lines.append("")
            lines += _markdown(block, longest)
    return "\n".join(lines) + "\n"


def _markdown(block: Block, longest: int) -> list[str]:
    if isinstance(block, Text):
        mark = "**" if block.kind == "headline" else ""
        warning = "Warning: " if block.kind == "warning" else ""
        return [f"{mark}{warning}{escaped(block.text)}{mark}"]
    if isinstance(block, Facts):
        return [f"- {escaped(label)}: {escaped(text)}" for label, text in block.rows]
    if isinstance(block, Sentences):
        return [f"- {escaped(sentence)}" for sentence in block.sentences]
    if isinstance(block, Picture):
        return [f"![{escaped(block.caption)}]({block.name}.svg)", "", escaped(block.caption)]
    head = [f"{escaped(block.caption)} ([{block.name}.csv]({block.name}.csv))"]
    if len(block.frame) > longest:
        return [*head, "", f"{len(block.frame)} rows, in that file."]
    columns = [escaped(_heading(str(c))) for c in block.frame.columns]
    body = [
        "| " + " | ".join(escaped(cell_text(v, block.digits)) for v in row) + " |"
        for row in block.frame.itertuples(index=False)
    ]
    return [*head, "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *body]


def escaped(text: str) -> str:
    """Text for Markdown: shown as it is, whatever characters it has, on one line."""
    text = " ".join(str(text).split())
    return re.sub(r"([\\`*_|<>\[\]#&~!])", r"\\\1", text)


def cell_text(value: Any, digits: int = 4) -> str:
    """One cell: numbers with so many significant digits, nothing for NaN, "yes" and "no"."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool) or type(value).__name__ == "bool_" or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return "inf" if value == math.inf else f"{value:.{digits}g}"
    return str(value)


def rough_count(number: int) -> str:
    """A count to read: exact below 10^9, else its power of ten."""
    return f"{number:,}" if number < 10**9 else f"about 10^{len(str(number)) - 1}"


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _shown_rows(block: Table) -> list[list[tuple[str, str | None]]]:
    """(shown, number to sort by) of every cell; None for the second in columns of text, which are sorted as shown."""
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in block.frame.dtypes]
    return [
        [(cell_text(v, block.digits), _key(v) if n else None) for v, n in zip(row, numeric, strict=True)]
        for row in block.frame.head(LONGEST_TABLE).itertuples(index=False)
    ]


def _key(value: Any) -> str:
    """The number in full, so that sorting does not depend on what is shown; nothing for NaN."""
    number = float(value)
    return "" if math.isnan(number) else repr(number)


_ID = re.compile(r'(\bid=")([^"]+)(")')
_REFERENCE = re.compile(r"""((?:xlink:)?href="#|url\(#)([^")]+)""")
_COLOUR = re.compile(r"(?<=[:\s])#([0-9a-fA-F]{6})\b(?=\s*[;\"])")


def inline_svg(block: Picture) -> Any:
    """The figure as an <svg> element for a page: ids of its own, colours that follow the page's, no fixed size.

    Ids that matplotlib makes from contents may be equal in two figures, so each gets the figure's name in front.
    """
    from markupsafe import Markup, escape

    from gpt_search.analysis.figures import style

    buffer = io.StringIO()
    with style():
        block.figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(
        r"<!--.*?-->\s*", "", text, flags=re.DOTALL
    )  # comments repeat each text, without escaping it for HTML
    prefix = f"{block.name}-"
    text = _ID.sub(lambda m: f"{m[1]}{prefix}{m[2]}{m[3]}", text)
    text = _REFERENCE.sub(lambda m: f"{m[1]}{prefix}{m[2]}", text)
    text = _COLOUR.sub(lambda m: f"var(--c{m[1].lower()}, #{m[1].lower()})", text)
    # The page says how large it is at most; the view box gives the shape.
    width = re.search(r'<svg[^>]*\bwidth="([\d.]+)pt"', text)
    head_end = text.index(">")
    head = re.sub(r'\s(?:width|height|xmlns(?::xlink)?|version)="[^"]*"', "", text[:head_end])
    points = float(width[1]) if width else 400.0
    label = escape(block.caption)
    head += f' role="img" aria-label="{label}" style="max-width:{1.6 * points:.0f}px"'
    return Markup(head + text[head_end:].replace("xlink:href", "href"))
