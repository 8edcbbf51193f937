"""Output of commands: the only module that writes to standard output and standard error.

Control characters in every text are escaped (:mod:`catalog.findings`), and markup in it is not interpreted: styles are
passed separately. JSON is escaped too, without changing its meaning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from catalog.findings import escape_controls, escape_json_controls, to_one_line

MAX_LISTED: Final = 20
"""Maximum lines or names of one kind that commands show; the rest is counted."""
WIDE: Final = 200
"""Columns of a table when the output is not a terminal, so that no cell is truncated."""


def print_text(text: str = "", *, err: bool = False) -> None:
    """Write one or more lines; characters that the stream cannot encode become escapes."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def print_row(cells: Iterable[str], *, err: bool = False) -> None:
    """Write cells as one line, separated by tabs; tabs and newlines within a cell are escaped."""
    print_text("\t".join(map(to_one_line, cells)), err=err)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", heading: bool = True, err: bool = False
) -> None:
    """Write rows as a table on a terminal, else separated by tabs, the latter with a *heading* only if wanted."""
    console = terminal(err=err)
    if not console.is_terminal:
        for row in (*([columns] if heading else ()), *rows):
            print_row(row, err=err)
        return
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_json(form: object) -> None:
    """Write one indented JSON document."""
    write_document(msgspec.json.format(msgspec.json.encode(form)) + b"\n")


def print_json_lines(forms: Iterable[object]) -> None:
    """Write JSON documents, one per line."""
    for form in forms:
        sys.stdout.buffer.write(escape_json_controls(msgspec.json.encode(form)) + b"\n")
    sys.stdout.buffer.flush()


def write_document(document: bytes) -> None:
    """Write encoded JSON, escaped but otherwise unchanged."""
    sys.stdout.buffer.write(escape_json_controls(document))
    sys.stdout.buffer.flush()


def close_output() -> None:
    """Point standard output to the null device, so that the interpreter's final flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def leave_output() -> None:
    """Flush standard output without blocking and drop the rest: Ctrl-C must not wait for a stalled reader."""
    try:
        number = sys.stdout.fileno()
        os.set_blocking(number, False)
    except (OSError, ValueError):
        return  # Not a file descriptor, or closed.
    try:
        sys.stdout.flush()
        left = False
    except OSError:
        left = True
    # Other processes, such as the shell, may share the stream.
    os.set_blocking(number, True)
    if left:
        close_output()


def plural(number: int, what: str) -> str:
    """Return a number with its noun: ``1 error``, ``2 errors``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def value_text(value: Any) -> str:
    """Return a value of a document for display: strings unchanged, everything else as JSON."""
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def to_text(*parts: str | tuple[str, str]) -> Text:
    """Return a text made of parts, each a string or a pair of string and style, such as ``("error", "red")``."""
    return Text.assemble(
        *(escape_controls(part) if isinstance(part, str) else (escape_controls(part[0]), part[1]) for part in parts)
    )


class Terminal(Console):
    """A rich console that interprets no markup and escapes control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich text; escapes count towards its width."""
        return super().render_str(escape_controls(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the output segments, with all text escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def terminal(
    *, err: bool = False, file: IO[str] | None = None, soft_wrap: bool = False, width: int | None = None
) -> Terminal:
    """Return a console; *width* applies only when the output is not a terminal."""
    stream = file if file is not None else sys.stderr if err else sys.stdout
    console = Terminal(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
    if width is not None and not console.is_terminal:
        console.width = width
    return console
