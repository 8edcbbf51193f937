"""Errors of the catalog room.

CatalogError
├── DocumentError    a document that cannot be fetched, parsed, or is too large
├── TemplateError    an expansion that lacks a context value
└── RecordError      a JSON text that is not a native record
"""

from __future__ import annotations


class CatalogError(Exception):
    """Anything this package refuses; carries a message that names the thing and the remedy."""


class DocumentError(CatalogError):
    """A catalog document that cannot be read. ``file`` is the path or URL, ``pointer`` a JSON pointer or ''.

    ``transient`` is true for what is unreachable for now and worth another try, and false for what will never be there.
    ``offline`` is true where the network is switched off, so that nobody asked.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        pointer: str = "",
        hint: str = "",
        transient: bool = False,
        offline: bool = False,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.pointer = pointer
        self.hint = hint
        self.transient = transient
        self.offline = offline


class TemplateError(CatalogError):
    """A template that lacks context values. ``missing`` names them in the order of the template."""

    def __init__(self, template: str, missing: tuple[str, ...]) -> None:
        super().__init__(f"template {template!r} lacks a value for {', '.join(missing)}")
        self.template = template
        self.missing = missing


class RecordError(CatalogError):
    """A line or object that is not a native record."""
