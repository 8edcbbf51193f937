"""The collector of findings: everything that reads a catalog reports here and goes on (JUDGING.md#catalogs)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.model import Finding, Severity

# What documents declare, before inheritance: the one form that every dialect gives and that inheritance takes.
#
# Attribute names are those of 1.0; what is inside the attributes is still as written, since the spelling of protocol
# options can only be settled once the protocol is known, and that may be inherited.

MESSAGE_REFERENCE: Final = re.compile(
    r"(?:^|[/#])(?:\$)?(messagegroups|endpoints)/([^/?#]+)/messages/([^/?#]+)(?:/versions/([^/?#]+))?/?$"
)
"""A reference to a message: its collection, the id of its holder, its own, and that of a version."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where something is written: a file (path or URL) and a JSON pointer into it.

    ``mounts`` tells, for a document that was put together from several, which members are written elsewhere.
    """

    file: str
    pointer: str = ""
    mounts: Mapping[tuple[str, str], SourceLocation] | None = field(default=None, compare=False, repr=False)

    def __truediv__(self, key: str | int) -> SourceLocation:
        """Return the place of a member."""
        pointer = f"{self.pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if self.mounts is None:
            return SourceLocation(self.file, pointer)
        mounted = self.mounts.get((self.file, pointer))
        return SourceLocation(
            mounted.file if mounted else self.file, mounted.pointer if mounted else pointer, self.mounts
        )


@dataclass(frozen=True, slots=True)
class DeclaredMessage:
    """One message as written. ``base`` and ``borrowed`` are references as written.

    ``borrowed`` (xref, uri) differs from ``base`` in that the message is nothing without its target.
    ``hidden`` messages are versions that can be referred to but are no definitions of their own. ``written`` says
    where each attribute is written, which is not always below ``place`` and not always under its 1.0 name;
    a key ``protocoloptions.PROPERTY`` says it of one property that a dialect spells or places in its own way.
    ``other`` is all that says nothing about how the message looks (names, descriptions, extensions), as written.
    """

    xid: str
    group: str
    place: SourceLocation
    attributes: Mapping[str, Any]
    base: str | None = None
    borrowed: str | None = None
    hidden: bool = False
    written: Mapping[str, SourceLocation] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)

    def at(self, attribute: str) -> SourceLocation:
        """Return the place of an attribute, given its 1.0 name."""
        return self.written.get(attribute) or self.place / attribute


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A message group and the defaults that it gives its messages; ``other`` is what else it says, as written."""

    xid: str
    place: SourceLocation
    envelope: str | None = None
    protocol: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredEndpoint:
    """An endpoint; ``messagegroups`` are references as written, its messages are declared messages of its xid.

    ``groups_written`` is where each of those references stands, when that is not ``messagegroups``. ``other`` is what
    else it says, as written; its ``protocoloptions`` are those that are neither addresses nor options of the channel.
    """

    xid: str
    place: SourceLocation
    usage: tuple[str, ...] = ()
    envelope: str | None = None
    protocol: str | None = None
    envelopeoptions: Mapping[str, Any] = field(default_factory=dict)
    uris: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    messagegroups: tuple[str, ...] = ()
    groups_written: tuple[SourceLocation, ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Declarations:
    """All that the documents of one load declare, by xid; dialects fill it, the first declaration of an xid stays.

    ``schemagroups`` is what schema groups say beside their schemas, ``registry`` what documents say beside collections.
    ``addresses`` are those that registries have of their own, by each file that their documents are read from.
    ``beyond`` are the groups and endpoints of messages that were only referred to, in documents beyond the sources.
    """

    messages: dict[str, DeclaredMessage] = field(default_factory=dict)
    groups: dict[str, DeclaredGroup] = field(default_factory=dict)
    endpoints: dict[str, DeclaredEndpoint] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    schema_places: dict[str, SourceLocation] = field(default_factory=dict)
    schemagroups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    registry: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    beyond: dict[str, DeclaredGroup | DeclaredEndpoint] = field(default_factory=dict)


MAX_FINDINGS: Final = 50_000
"""Findings of one severity; past them one more says that there are more."""
UNUSUAL_NAME: Final = "unusual-name"
MAX_TEXT: Final = 1_000
"""Characters of a message or hint, which may quote what the document says."""


class Findings:
    """Collects findings, each once, within bounds of number and length that no document can exceed."""

    def __init__(self) -> None:
        self._findings: dict[Finding, None] = {}
        self._counts: Counter[Severity] = Counter()
        self._older: set[str] = set()

    def add(self, place: SourceLocation, severity: Severity, rule: str, message: str, hint: str = "") -> None:
        """Add one finding; ``rule`` is its stable id, ``hint`` the remedy."""
        finding = Finding(_printable(place.file), place.pointer, severity, rule, _capped(message), _capped(hint))
        if finding in self._findings or self._counts[severity] > MAX_FINDINGS:
            return
        if self._counts[severity] == MAX_FINDINGS:
            text = f"there are more than {MAX_FINDINGS} findings of severity {severity}; the rest is not listed"
            finding = Finding(_printable(place.file), "", severity, "too-many-findings", text, "mend these first")
        self._counts[severity] += 1
        self._findings[finding] = None

    def of_older_dialect(self, file: str) -> None:
        """Take older spellings of options as usual in that file: they are its dialect's own."""
        self._older.add(file)

    def respelled(self, place: SourceLocation, written: str, canonical: str) -> None:
        """Report an option that 1.0 spells otherwise, unless the document is of a dialect that spells it so."""
        if place.file not in self._older:
            self.warning(place, UNUSUAL_NAME, f"{written} is read as {canonical}", f"write {canonical}")

    def error(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that cannot be used."""
        self.add(place, "error", rule, message, hint)

    def warning(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that is used, but is unusual or will not do what it seems to."""
        self.add(place, "warning", rule, message, hint)

    def info(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that is right and worth knowing."""
        self.add(place, "info", rule, message, hint)

    def extend(self, findings: tuple[Finding, ...]) -> None:
        """Take findings over."""
        self._findings.update(dict.fromkeys(findings))

    def sorted(self) -> tuple[Finding, ...]:
        """Return all findings, by file and place."""
        return tuple(sorted(self._findings))


def _capped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _printable(file: str) -> str:
    """Return a file's name as UTF-8 can hold it, which names on disk need not be."""
    return file if file.isascii() else file.encode("utf-8", "backslashreplace").decode("utf-8")


# Errors of the catalog room, and texts of foreign origin made safe to show in them.

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
