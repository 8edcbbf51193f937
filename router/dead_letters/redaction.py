"""Redact values of dead letters that settings or catalog mark as sensitive (deploy/OPERATIONS.md#dead-letters).

Marks are names of attributes, headers and properties (globs with ``*``, case-insensitive, with or without the binding's
attribute prefix), JSON pointers into bodies (``*`` for any one step; also into the data of a structured event), and
names of JSON members, from schemas. Texts such as the detail may quote a hidden value: it is removed from them, even if
it is truncated there. A body that is not JSON cannot be searched for marked values, so all of it is hidden. The stored
letter is not changed. If in doubt, more is hidden.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final
from urllib.parse import unquote

from catalog.findings import Declarations, DocumentError
from catalog.load import load
from catalog.model import Catalog
from catalog.parsing.pointers import parse_pointer
from router.dead_letters.dead_letter import DeadLetter
from router.logs import get_logger
from router.settings import Settings
from router.settings.catalogs import make_catalog_fetcher

HIDDEN: Final = "•••"
_PREFIXES: Final = ("ce-", "ce_", "cloudevents:", "cloudevents_")
MAX_VALUES: Final = 1_000
"""Hidden values that are searched for in a text; with more, the whole text is hidden."""
MAX_STEPS: Final = 100
"""Dots in a name at which a mark is tried; a name with more dots is hidden."""
_SHORT: Final = 4
"""Values shorter than this are redacted only as whole words: `7` must not make a detail unreadable."""
_QUOTED: Final = 12
"""Characters by which a truncated value is still recognized."""
_QUOTES_BODY: Final = "schema-violation"


class _NumberWithText(float):
    """A number with a fraction or exponent that remembers its source text."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass(frozen=True, slots=True)
class SensitiveMarks:
    """What is sensitive: ``names`` are globs, ``pointers`` are JSON pointers, ``members`` are names of JSON members.

    With ``everything`` the whole record is sensitive, since the marks could not be read.
    """

    names: frozenset[str] = frozenset()
    pointers: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    everything: bool = False

    def __or__(self, other: SensitiveMarks) -> SensitiveMarks:
        """Return the union of both."""
        names = (each.name for each in fields(self))
        return SensitiveMarks(*(getattr(self, name) | getattr(other, name) for name in names))


def parse_marks(redact: Iterable[str]) -> SensitiveMarks:
    """Return what ``dead_letters.redact`` marks as sensitive."""
    given = frozenset(redact)
    pointers = frozenset(each for each in given if each.startswith("/"))
    return SensitiveMarks(names=frozenset(each.lower() for each in given - pointers), pointers=pointers)


class Redactor:
    """Redacts marked values; without marks (``--reveal``), nothing."""

    def __init__(self, marks: SensitiveMarks) -> None:
        self.marks = marks
        self._paths = [tuple(parse_pointer(pointer)) for pointer in marks.pointers]

    @property
    def redacts_bodies(self) -> bool:
        """Whether bodies may contain sensitive values."""
        marks = self.marks
        return bool(marks.pointers or marks.members or marks.names or marks.everything)

    def redact(self, letter: DeadLetter) -> Redaction:
        """Return the redacted dead letter, with the hidden values so that they can be hidden elsewhere."""
        if not self.redacts_bodies:
            return Redaction(self, letter, (), False)
        secrets: list[str] = []
        native = {member: self._redact_member(member, value, secrets) for member, value in letter.native.items()}
        body, whole = self._redact_body(letter.body, secrets)
        values = tuple(sorted({form for text in secrets for form in _iter_forms(text)}, key=lambda x: (-len(x), x)))
        redaction = Redaction(self, letter, values, whole)
        detail = redaction.redact_detail(letter.reason, letter.detail)
        nearest = tuple(redaction.redact_near(each) for each in letter.nearest)
        shown = replace(letter, native=native, body=body, detail=detail, nearest=nearest)
        return replace(redaction, letter=shown)

    def hides(self, name: str, path: str = "") -> bool:
        """Whether values under this name (at this path, such as ``headers.x-card``) are sensitive."""
        if self.marks.everything:
            return True
        known = [name.lower(), path.lower()]
        known += [known[0].removeprefix(prefix) for prefix in _PREFIXES if known[0].startswith(prefix)]
        return any(fnmatchcase(each, glob) for each in known if each for glob in self.marks.names)

    def _redact_member(self, member: str, value: Any, secrets: list[str]) -> Any:
        if self.hides(member.removesuffix("_base64")):
            return _hide(value, secrets)
        if isinstance(value, list):
            return [self._redact_entry(member, entry, secrets) for entry in value]
        if isinstance(value, Mapping):
            return {
                name: _hide(inner, secrets) if self.hides(name, f"{member}.{name}") else inner
                for name, inner in value.items()
            }
        return value

    def _redact_entry(self, member: str, entry: Any, secrets: list[str]) -> Any:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not self.hides(name, f"{member}.{name}"):
            return entry
        _hide({key: value for key, value in entry.items() if key != "name"}, secrets)
        return {"name": name, "value": HIDDEN}

    def _redact_body(self, body: bytes | None, secrets: list[str]) -> tuple[bytes | None, bool]:
        """Return the redacted body, and whether all of it is hidden."""
        marks = self.marks
        if body is None:
            return None, False
        try:
            tree = json.loads(body, parse_float=_NumberWithText)
        except (ValueError, RecursionError):
            # Pointers and members cannot be applied to a body that is not JSON, which may be damaged JSON.
            whole = bool(marks.pointers or marks.members or marks.everything)
            return (HIDDEN.encode(), True) if whole else (body, False)
        if marks.everything:
            return HIDDEN.encode(), True
        before = len(secrets)
        tree = self._redact_events(tree, secrets)
        if len(secrets) == before and not (marks.pointers or marks.members):
            return body, False
        # Encoded again even if nothing was hidden: the parser sees only the last of repeated members.
        return json.dumps(tree, ensure_ascii=False).encode("utf-8", "backslashreplace"), False

    def _redact_events(self, tree: Any, secrets: list[str]) -> Any:
        """Redact a body that may be a structured event: attributes by name, data by its own pointers."""
        tree = self._visit(tree, (), secrets)
        if isinstance(tree, list):
            return [self._redact_events(each, secrets) if _is_event(each) else each for each in tree]
        if not _is_event(tree):
            return tree
        shown = dict(tree)
        for name, value in tree.items():
            if name == "data":
                shown[name] = self._visit(value, (), secrets)
            elif name != "data_base64" and self.hides(name):
                shown[name] = _hide(value, secrets)
        if "data_base64" in tree and (self.marks.pointers or self.marks.members):
            shown["data_base64"] = _hide(tree["data_base64"], secrets)
        return shown

    def _visit(self, node: Any, at: tuple[str, ...], secrets: list[str]) -> Any:
        if node != HIDDEN and any(_path_matches(path, at) for path in self._paths):
            return _hide(node, secrets)
        if isinstance(node, dict):
            return {
                key: _hide(value, secrets) if key in self.marks.members else self._visit(value, (*at, key), secrets)
                for key, value in node.items()
            }
        if isinstance(node, list):
            return [self._visit(value, (*at, str(index)), secrets) for index, value in enumerate(node)]
        return node


@dataclass(frozen=True, slots=True)
class Redaction:
    """One redacted dead letter. ``values`` are the hidden values, longest first; with ``body_hidden`` the whole body is
    hidden.
    """

    redactor: Redactor
    letter: DeadLetter
    values: tuple[str, ...]
    body_hidden: bool

    def redact_detail(self, reason: str | None, text: str) -> str:
        """Return the redacted detail of an outcome; empty if it may quote a body that is hidden entirely."""
        quotes = self.redactor.marks.everything or (self.body_hidden and reason == _QUOTES_BODY)
        return HIDDEN if text and quotes else self.redact_text(text)

    def redact_text(self, text: str) -> str:
        """Return a text without the hidden values; all of it is hidden if there are more than MAX_VALUES."""
        if len(self.values) > MAX_VALUES:
            return HIDDEN if text else text
        for value in self.values:
            text = _hide_in_text(text, value)
        return text

    def redact_value(self, name: str, text: str | None) -> str | None:
        """Return the redacted value of *name*, such as ``headers.x-card`` or ``subject``."""
        if text is None:
            return None
        steps = name.split(".")  # header names may contain dots: a mark may name any end of the path
        hidden = len(steps) > MAX_STEPS or any(self.redactor.hides(".".join(steps[at:])) for at in range(len(steps)))
        return HIDDEN if hidden else self.redact_text(text)

    def redact_derived(self, name: str, text: str) -> str:
        """Return a redacted value that a template derived from the record, maybe from part of a hidden value."""
        if text and any(text in hidden for hidden in self.values):
            return HIDDEN
        return self.redact_value(name, text) or ""

    def redact_near(self, nearest: Mapping[str, Any]) -> dict[str, Any]:
        """Return one nearest definition with redacted mismatches."""
        mismatches = []
        for each in nearest.get("mismatches") or ():
            given = {name: None if each.get(name) is None else str(each[name]) for name in ("expected", "found")}
            shown = {name: self.redact_value(str(each.get("property")), text) for name, text in given.items()}
            mismatches.append({**each, **shown})
        return {**nearest, "mismatches": mismatches}


def _is_event(node: Any) -> bool:
    return isinstance(node, dict) and "specversion" in node


def _path_matches(path: Sequence[str], at: Sequence[str]) -> bool:
    return len(path) == len(at) and all(wanted in ("*", step) for wanted, step in zip(path, at, strict=True))


def _hide(value: Any, secrets: list[str]) -> Any:
    """Add the texts of a value to *secrets*, and return its replacement."""
    secrets.extend(text for text in _iter_texts(value) if text)
    return None if value is None else HIDDEN


def _iter_texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _iter_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_texts(inner)
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, _NumberWithText):
        yield from (value.text, str(value))
    elif value is not None and value != HIDDEN:
        yield str(value)


def _iter_forms(text: str) -> Iterator[str]:
    """Yield the forms of a value in a text: unchanged, decoded, or with JSON or Python escapes."""
    for plain in {text, unquote(text), *_iter_base64_text(text)}:
        yield plain
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]


def _iter_base64_text(text: str) -> Iterator[str]:
    """Yield the text of a base64 value, if it is one."""
    try:
        plain = base64.b64decode(text, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return
    if len(plain) >= _SHORT:
        yield plain


def _hide_in_text(text: str, value: str) -> str:
    if len(value) < _SHORT:
        return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text) if value.strip() else text
    text = text.replace(value, HIDDEN)
    if len(value) <= _QUOTED:
        return text
    start = value[:_QUOTED]
    pieces = text.split(start)
    return HIDDEN.join([pieces[0], *(piece[_common_prefix_length(piece, value[_QUOTED:]) :] for piece in pieces[1:])])


def _common_prefix_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# Sensitive marks in a catalog: an extension of xRegistry, the same in all dialects.
#
# A property of a message (an attribute of its envelope, a protocol option, a header) with the member ``sensitive:
# true`` marks its name; a property in a JSON schema or JsonStructure document with ``writeOnly: true`` or
# ``x-sensitive: true`` marks the JSON member of that name. Marks apply to all letters, since a letter may have no
# definition.

SENSITIVE: Final = "sensitive"
_OF_SCHEMAS: Final = ("writeOnly", "x-sensitive")
_DECLARED: Final = ("envelopemetadata", "protocoloptions")
_log = get_logger()


def load_catalog_and_marks(settings: Settings) -> tuple[Catalog | None, SensitiveMarks]:
    """Return the catalog of the settings, and what it and the settings mark as sensitive.

    If the catalog cannot be read, everything is sensitive, and a warning is logged.
    """
    given = parse_marks(settings.dead_letters.redact)
    declarations = Declarations()
    read = settings.catalog
    try:
        catalog = load(
            read.source, fetcher=make_catalog_fetcher(settings), declarations=declarations, base_uri=read.base_uri
        )
    except DocumentError as error:
        _log.warning("the catalog cannot be read, so its sensitive marks are unknown", problem=str(error))
        return None, given | SensitiveMarks(everything=True)
    return catalog, given | find_marks(declarations, catalog)


def make_redactor(marks: SensitiveMarks, *, reveal: bool) -> Redactor:
    """Return a redactor of these marks; with *reveal*, one that redacts nothing."""
    return Redactor(SensitiveMarks() if reveal else marks)


def find_marks(declarations: Declarations, catalog: Catalog) -> SensitiveMarks:
    """Return what a catalog marks as sensitive."""
    names = {
        escape(name.lower())
        for message in declarations.messages.values()
        for attribute in _DECLARED
        for name in _iter_marked_names(message.attributes.get(attribute))
    }
    members = {name for schema in catalog.schemas.values() for name in _iter_marked_members(schema.get("document"))}
    return SensitiveMarks(names=frozenset(names), members=frozenset(members))


def _iter_marked_names(node: Any, name: str = "") -> Iterator[str]:
    """Yield the names of marked objects, at any depth."""
    if isinstance(node, Mapping):
        own = node.get("name")
        called = own if isinstance(own, str) and own else name
        if node.get(SENSITIVE) is True and called:
            yield called
        for key, value in node.items():
            yield from _iter_marked_names(value, str(key))
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _iter_marked_names(value, name)


def _iter_marked_members(node: Any) -> Iterator[str]:
    """Yield the names of marked properties in a schema document."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key == "properties" and isinstance(value, Mapping):
                for name, inner in value.items():
                    if isinstance(inner, Mapping) and any(inner.get(mark) is True for mark in _OF_SCHEMAS):
                        yield str(name)
            yield from _iter_marked_members(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _iter_marked_members(value)
