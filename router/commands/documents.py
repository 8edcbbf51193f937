"""Documents that commands write for their users: to a file, or to standard output."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from router.errors import RouterError
from router.sinks.tables.files import write_atomically
from router.terminal import write_document


def check_free(output: Path | None, *, force: bool) -> None:
    """Make sure that nothing is written over, unless by *force*.

    Raises:
        RouterError: the file is there already.
    """
    if output is not None and output.exists() and not force:
        raise RouterError(f"{output} is there already", hint="choose another name, or write over it with --force")


def write_text(text: str, output: Path | None) -> None:
    """Write a document as a whole; None is standard output.

    Raises:
        RouterError: the file cannot be written.
    """
    data = text.encode("utf-8")
    if output is None:
        write_document(data)
        return

    def fill(file: BinaryIO) -> None:
        file.write(data)

    try:
        write_atomically(output, fill)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RouterError(f"cannot write {output}: {reason}", hint="check the path and its rights") from error
