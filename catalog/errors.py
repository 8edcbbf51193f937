"""Errors of the catalog room, and texts of foreign origin made safe to show in them."""

# Small: all of the catalog imports it, and it imports nothing.

from __future__ import annotations

import re
from typing import Final

# Errors of the catalog room.
#
# CatalogError ├── DocumentError    a document that cannot be fetched, parsed, or is too large ├── TemplateError    an
# expansion that lacks a context value └── RecordError      a JSON text that is not a native record


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


# Texts of foreign origin without what a terminal acts upon: the one rule for all that people are shown.
#
# Catalogs, records and settings name things as they like. Control characters, marks that turn the direction of writing,
# characters without width and separators of lines are written as escapes; everything else stays as it is.

_UNSAFE: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
_IN_TEXTS: Final = re.compile(f"[{_UNSAFE}]")
_IN_LINES: Final = re.compile(rf"[{_UNSAFE}\t\n]")
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def is_harmless(text: str) -> bool:
    """Tell whether :func:`escaped` leaves a text as it is."""
    return _IN_TEXTS.search(text) is None


def escaped(text: str) -> str:
    r"""Return a text of lines in which only newlines and tabs act on a terminal: ESC becomes ``\x1b``."""
    return text if text.isascii() and text.isprintable() else _IN_TEXTS.sub(_python_escape, text)


def one_line(text: str) -> str:
    """Return a text as :func:`escaped` does, with newlines and tabs as escapes too."""
    return text if text.isascii() and text.isprintable() else _IN_LINES.sub(_python_escape, text)


def xml_text(text: str) -> str:
    """Return a text as XML and HTML can have it: the sign of what cannot be shown stands for control characters."""
    return _NOT_XML.sub("\ufffd", text)


def escaped_json(document: bytes) -> bytes:
    r"""Return a JSON document that means the same, with ``\u`` escapes for what a terminal would act upon.

    JSON has none of these characters outside strings, and no others than newlines and tabs between its values.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return _IN_TEXTS.sub(_json_escape, document.decode("utf-8")).encode("utf-8")


def _python_escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
