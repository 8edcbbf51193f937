"""Documents that commands write for their users: to a file, or to standard output."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from catalog.convert import json_text, yaml_text
from router.errors import RouterError
from router.sinks.tables.files import write_atomically
from router.terminal import write_document


class Form(StrEnum):
    """What a document is written as."""

    json = "json"
    yaml = "yaml"


def form_of(asked: Form | None, output: Path | None) -> Form:
    """Return the form that is *asked* for, else the one that the name of the file says, else JSON."""
    if asked is not None:
        return asked
    return Form.yaml if output is not None and output.suffix.lower() in (".yaml", ".yml") else Form.json


def text_of(document: Mapping[str, Any], form: Form) -> str:
    """Return a document as text.

    Raises:
        CatalogError: it holds what the form cannot write.
    """
    return yaml_text(document) if form is Form.yaml else json_text(document)


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
