"""Where commands write: the only module that puts text on standard output and standard error for people.

Every text is escaped by :mod:`catalog.findings` on its way, and no markup in it is interpreted: styles are given beside
a text, never inside it. JSON is written so that it means the same and is as harmless.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from catalog.findings import escaped, escaped_json, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDE: Final = 200
"""Columns of a table where the output is no terminal, so that nothing is cut that a program may want."""


def say(text: str = "", *, err: bool = False) -> None:
    """Write a text of one or more lines, with characters that the stream cannot show as escapes."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(escaped(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def say_row(cells: Iterable[str], *, err: bool = False) -> None:
    """Write one line of cells with tabs between them; a tab or newline inside of a cell is an escape."""
    say("\t".join(map(one_line, cells)), err=err)


def say_json(form: object) -> None:
    """Write one indented JSON document."""
    write_document(msgspec.json.format(msgspec.json.encode(form)) + b"\n")


def say_json_lines(forms: Iterable[object]) -> None:
    """Write one JSON document a line."""
    for form in forms:
        sys.stdout.buffer.write(escaped_json(msgspec.json.encode(form)) + b"\n")
    sys.stdout.buffer.flush()


def write_document(document: bytes) -> None:
    """Write a JSON document, or several, as given but for escapes."""
    sys.stdout.buffer.write(escaped_json(document))
    sys.stdout.buffer.flush()


def close_output() -> None:
    """Point standard output to nowhere, so that the interpreter's own last flush does not complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def leave_output() -> None:
    """Write what standard output takes at once, and drop the rest: Ctrl-C waits for no reader that has stopped."""
    try:
        number = sys.stdout.fileno()
        os.set_blocking(number, False)
    except (OSError, ValueError):
        return  # It is no stream of the process, or closed.
    try:
        sys.stdout.flush()
        left = False
    except OSError:
        left = True
    # Others may have the same stream, a shell its terminal.
    os.set_blocking(number, True)
    if left:
        close_output()


def counted(number: int, what: str) -> str:
    """Return a number of things in words: ``1 error``, ``2 errors``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def shown_value(value: Any) -> str:
    """Return a value of a document as people read it: texts as they are, all else as JSON."""
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text of parts, each plain or with its style, such as ``("error", "red")``."""
    return Text.assemble(*(escaped(part) if isinstance(part, str) else (escaped(part[0]), part[1]) for part in parts))


class Terminal(Console):
    """A console of rich that interprets nothing in texts and lets no character through that a terminal acts upon."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as one to be laid out; escapes count for its width."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is written; here nothing gets past, whatever made it."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def terminal(
    *, err: bool = False, file: IO[str] | None = None, soft_wrap: bool = False, width: int | None = None
) -> Terminal:
    """Return a console; *width* counts only where the output is no terminal."""
    stream = file if file is not None else sys.stderr if err else sys.stdout
    console = Terminal(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=soft_wrap)
    if width is not None and not console.is_terminal:
        console.width = width
    return console
