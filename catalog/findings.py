"""Declarations of documents, findings about them, errors, and safe printing of foreign text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from catalog.model import Finding, Severity

# Declarations before inheritance. Every dialect is converted to these.
#
# Attribute names are those of 1.0. Values are still as written, since the spelling of protocol options depends on the
# protocol, which may be inherited.

MESSAGE_REFERENCE: Final = re.compile(
    r"(?:^|[/#])(?:\$)?(messagegroups|endpoints)/([^/?#]+)/messages/([^/?#]+)(?:/versions/([^/?#]+))?/?$"
)
"""A reference to a message: its collection, the id of its group or endpoint, its own id, and a version's id."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The location of a value: a file (path or URL) and a JSON pointer into it.

    ``mounts`` says which members of an assembled document come from other files.
    """

    file: str
    pointer: str = ""
    mounts: Mapping[tuple[str, str], SourceLocation] | None = field(default=None, compare=False, repr=False)

    def __truediv__(self, key: str | int) -> SourceLocation:
        """Return the location of a member."""
        pointer = f"{self.pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
        if self.mounts is None:
            return SourceLocation(self.file, pointer)
        mounted = self.mounts.get((self.file, pointer))
        return SourceLocation(
            mounted.file if mounted else self.file, mounted.pointer if mounted else pointer, self.mounts
        )


@dataclass(frozen=True, slots=True)
class DeclaredMessage:
    """A message as written. ``base`` and ``borrowed`` are references as written.

    A message with ``borrowed`` (xref, uri) cannot be used without its target; one with ``base`` can.
    ``hidden`` messages are versions: others may refer to them, but they are not definitions themselves. ``written``
    says where each attribute is written, if not below ``place`` under its 1.0 name; a key
    ``protocoloptions.PROPERTY`` does so for one property. ``other`` is everything that does not describe the format of
    the message (names, descriptions, extensions), as written.
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
        """Return the location of an attribute, given its 1.0 name."""
        return self.written.get(attribute) or self.place / attribute


@dataclass(frozen=True, slots=True)
class DeclaredGroup:
    """A message group with the defaults for its messages; ``other`` are its other attributes, as written."""

    xid: str
    place: SourceLocation
    envelope: str | None = None
    protocol: str | None = None
    other: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredEndpoint:
    """An endpoint. ``messagegroups`` are references as written; inline messages have its xid as group.

    ``groups_written`` is where each reference is written, if not in ``messagegroups``. ``other`` is everything
    else, as written; its ``protocoloptions`` are those that are neither addresses nor channel options.
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


# Messages after inheritance: every property with all that the messages of the chain write about it.


class WrittenBody(NamedTuple):
    """What one message writes about one property: ``{type, value, required}``, or a bare scalar.

    ``parent`` and ``key`` locate it; ``nested`` is the name in an entry ``{NAME: {…}}``. It is merged with what was
    written before, unless it ``replaces`` that.
    """

    raw: Any
    message: DeclaredMessage
    parent: SourceLocation
    key: str | int | None = None
    nested: str = ""
    replaces: bool = False

    @property
    def entry(self) -> SourceLocation:
        """The location of the property: of its member, or of its entry in a list."""
        return self.parent if self.key is None else self.parent / self.key

    @property
    def place(self) -> SourceLocation:
        """The location of the body itself."""
        return self.entry / self.nested if self.nested else self.entry


History = tuple[WrittenBody, ...]
"""What the messages of a chain write about one property, the most remote base first."""
Section = Mapping[str, tuple[History, ...]]
"""The properties of a section, a list or one option ('') by name; a list may repeat a name."""


@dataclass(frozen=True, slots=True)
class EffectiveMessage:
    """A message after inheritance.

    ``protocol_declared`` is False if only a group's default gives the protocol. ``spelling`` is the protocol of these
    options: an endpoint's default is not the message's, but applies to the options of an inline one. ``own`` is what
    the message itself writes, ``sections`` everything; ``attributes`` are merged data attributes and envelope options.
    ``bases`` are the nearest first.
    """

    message: DeclaredMessage
    group: DeclaredGroup | None
    envelope: str | None
    protocol: str | None
    protocol_declared: bool
    spelling: str | None
    own: Mapping[str, Section]
    sections: Mapping[str, Section]
    attributes: Mapping[str, Any]
    bases: tuple[EffectiveMessage, ...] = ()

    @property
    def levels(self) -> tuple[EffectiveMessage, ...]:
        """The message and its bases, nearest first."""
        return (self, *self.bases)


@dataclass(slots=True)
class Declarations:
    """Everything that the documents of one load declare, by xid; the first declaration of an xid counts.

    ``schemagroups`` and ``registry`` are the other attributes of schema groups and of documents. ``addresses`` are the
    addresses that registries state for themselves, by file. ``external`` are the
    groups and endpoints of messages that are only referred to, in documents other than the sources. ``effective`` are
    the usable messages after inheritance, once a catalog is built.
    """

    messages: dict[str, DeclaredMessage] = field(default_factory=dict)
    groups: dict[str, DeclaredGroup] = field(default_factory=dict)
    endpoints: dict[str, DeclaredEndpoint] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    schema_places: dict[str, SourceLocation] = field(default_factory=dict)
    schemagroups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    registry: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    external: dict[str, DeclaredGroup | DeclaredEndpoint] = field(default_factory=dict)
    effective: dict[str, EffectiveMessage] = field(default_factory=dict)


MAX_FINDINGS: Final = 50_000
"""Maximum findings of one severity; a last one says that there are more."""
UNUSUAL_NAME: Final = "unusual-name"
MAX_TEXT: Final = 1_000
"""Maximum characters of a message or hint, which may quote the document."""


class Findings:
    """Collects distinct findings, limited in number and length."""

    def __init__(self) -> None:
        self._findings: dict[Finding, None] = {}
        self._counts: Counter[Severity] = Counter()
        self._older: set[str] = set()

    def add(self, place: SourceLocation, severity: Severity, rule: str, message: str, hint: str = "") -> None:
        """Add one finding; ``rule`` is its stable id, ``hint`` the remedy."""
        finding = Finding(_printable(place.file), place.pointer, severity, rule, _shorten(message), _shorten(hint))
        if finding in self._findings or self._counts[severity] > MAX_FINDINGS:
            return
        if self._counts[severity] == MAX_FINDINGS:
            text = f"there are more than {MAX_FINDINGS} findings of severity {severity}; the others are not listed"
            finding = Finding(_printable(place.file), "", severity, "too-many-findings", text, "fix these first")
        self._counts[severity] += 1
        self._findings[finding] = None

    def allow_older_spellings(self, file: str) -> None:
        """Do not report older spellings of options in *file*, whose dialect uses them."""
        self._older.add(file)

    def report_spelling(self, place: SourceLocation, written: str, canonical: str) -> None:
        """Report an option that is not spelled as in 1.0, unless the document's dialect spells it so."""
        if place.file not in self._older:
            self.warning(place, UNUSUAL_NAME, f"{written} is read as {canonical}", f"write {canonical}")

    def error(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that cannot be used."""
        self.add(place, "error", rule, message, hint)

    def warning(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that is used, but is unusual or probably does not do what was intended."""
        self.add(place, "warning", rule, message, hint)

    def info(self, place: SourceLocation, rule: str, message: str, hint: str = "") -> None:
        """Report something that is valid and worth knowing."""
        self.add(place, "info", rule, message, hint)

    def extend(self, findings: tuple[Finding, ...]) -> None:
        """Add findings that were collected elsewhere."""
        self._findings.update(dict.fromkeys(findings))

    def sorted(self) -> tuple[Finding, ...]:
        """Return all findings, by file and location."""
        return tuple(sorted(self._findings))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _printable(file: str) -> str:
    """Return a file name that UTF-8 can encode; names on disk may contain other bytes."""
    return file if file.isascii() else file.encode("utf-8", "backslashreplace").decode("utf-8")


# Errors of catalogs.
#
# CatalogError ├── DocumentError    a document that cannot be fetched or parsed, or is too large ├── TemplateError    an
# expansion that lacks a context value └── RecordError      a JSON text that is not a native record


class CatalogError(Exception):
    """Any error of this package; its message names what failed and how to fix it."""


class DocumentError(CatalogError):
    """A catalog document that cannot be read. ``file`` is the path or URL, ``pointer`` a JSON pointer or ''.

    ``transient`` is true if the document is only unavailable at present and a retry may succeed.
    ``offline`` is true if the network is switched off, so no request was made.
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
    """A template that lacks context values. ``missing`` names them, in template order."""

    def __init__(self, template: str, missing: tuple[str, ...]) -> None:
        super().__init__(f"template {template!r} has no value for {', '.join(missing)}")
        self.template = template
        self.missing = missing


class RecordError(CatalogError):
    """A line or object that is not a native record."""


# Escaping foreign text before it is printed.
#
# Control characters, bidirectional marks, zero-width characters and line separators are escaped.

_UNSAFE: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
_UNSAFE_IN_TEXT: Final = re.compile(f"[{_UNSAFE}]")
_UNSAFE_IN_LINE: Final = re.compile(rf"[{_UNSAFE}\t\n]")
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def has_no_controls(text: str) -> bool:
    """Whether :func:`escaped` leaves a text unchanged."""
    return _UNSAFE_IN_TEXT.search(text) is None


def escape_controls(text: str) -> str:
    r"""Escape all control characters except newlines and tabs: ESC becomes ``\x1b``."""
    return text if text.isascii() and text.isprintable() else _UNSAFE_IN_TEXT.sub(_python_escape, text)


def to_one_line(text: str) -> str:
    """Return the text as :func:`escaped` does, with newlines and tabs escaped too."""
    return text if text.isascii() and text.isprintable() else _UNSAFE_IN_LINE.sub(_python_escape, text)


def to_xml_text(text: str) -> str:
    """Replace characters that XML and HTML do not allow by the replacement character."""
    return _NOT_XML.sub("\ufffd", text)


def escape_json_controls(document: bytes) -> bytes:
    r"""Escape control characters in a JSON document as ``\uXXXX``; its meaning is unchanged.

    These occur in JSON only inside strings, except newlines and tabs between values.
    """
    if document.isascii() and b"\x7f" not in document:
        return document
    return _UNSAFE_IN_TEXT.sub(_json_escape, document.decode("utf-8")).encode("utf-8")


def _python_escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
