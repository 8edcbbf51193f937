"""Read single values of documents: envelope, protocol, texts, references; and declare entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from catalog.dialects.detection import DIALECTS, Dialect, Kind, Names
from catalog.findings import Declarations, DeclaredGroup, DeclaredMessage, Findings, SourceLocation
from catalog.model import PROTOCOLS
from catalog.protocols.properties import canonical_envelope, canonical_protocol
from catalog.values import is_number, to_text

# The names of all dialects, which are accepted in every document (MATCHING.md#catalogs).
#
# A name of another dialect than the document's is reported, since other tools may not accept it.

_OF_NO_DIALECT: Final[Names] = {"attributes": {"config": "protocoloptions"}}
"""Accepted names that belong to no dialect."""


def spellings_of(kind: Kind) -> Mapping[str, str]:
    """Return the 1.0 names of one kind, by lower-case spelling."""
    return _merge_spellings(tuple(DIALECTS), kind)


def names_of(*kinds: Kind) -> frozenset[str]:
    """Return all names of these kinds, in lower case."""
    return _collect_names(tuple(DIALECTS), kinds)


def message_member_names() -> frozenset[str]:
    """Return the names of all members that define a message, except its versions."""
    return names_of("selectors", "attributes", "bases", "metadata", "definition")


@lru_cache(maxsize=64)
def _collect_names(dialects: tuple[Dialect, ...], kinds: tuple[Kind, ...]) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in _merge_spellings(dialects, kind))


@lru_cache(maxsize=64)
def _merge_spellings(dialects: tuple[Dialect, ...], kind: Kind) -> Mapping[str, str]:
    united: dict[str, str] = {}
    for names in (_OF_NO_DIALECT, *(dialect.names for dialect in dialects)):
        united.update(names.get(kind, {}))
    return united


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """The context of reading one document: its dialect, the declarations to fill, and the findings."""

    dialect: Dialect
    declarations: Declarations
    findings: Findings

    def iter_names(
        self, holder: Mapping[str, Any], kind: Kind, at: SourceLocation, *, several: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Yield the names of one kind in *holder* as (written, 1.0 name), 1.0 spellings first.

        With *several*, all spellings of a name are yielded, else only the first. Names of other dialects are reported.
        """
        known, own = spellings_of(kind), self.dialect.names.get(kind, {})
        spelled = [(written, known[written.lower()]) for written in holder if written.lower() in known]
        given: set[str] = set()
        for written, canonical in sorted(spelled, key=lambda each: each[0] != each[1]):
            if holder[written] is not None and (several or canonical not in given):
                given.add(canonical)
                if written.lower() not in own:
                    self.report_unusual(at / written, written, canonical)
                yield written, canonical

    def report_unusual(self, place: SourceLocation, written: str, canonical: str) -> None:
        """Report an accepted name that the document's dialect does not have."""
        text = f"{written} is read as {canonical}"
        if written == canonical:
            text = f"{written} is a name of xRegistry 1.0; it is read as such"
            self.findings.warning(place, "unusual-name", text, "write the whole document as xRegistry 1.0")
            return
        self.findings.warning(place, "unusual-name", text, f"write {canonical}")


_MESSAGES: Final = re.compile(
    r"(^|[/#])(definitiongroups|messagegroups|endpoints)/([^/?#]+)/(?:definitions|messagedefinitions)(?=/[^/?#]+)",
    re.IGNORECASE,
)
_LISTED: Final = re.compile(
    r"^(#?/)groups/([^/?#]+)/(?:definitions|messagedefinitions|messages)(?=/[^/?#]+)", re.IGNORECASE
)
_GROUP: Final = re.compile(r"(^|[/#])definitiongroups(?=/[^/?#]+)", re.IGNORECASE)
_LISTED_GROUP: Final = re.compile(r"^(#?/)groups(?=/[^/?#]+/?$)", re.IGNORECASE)


def blank_to_none(text: str | None) -> str | None:
    """Return None for an empty text or ``None``, which real catalogs use for absent values."""
    return None if text is None or text.strip().lower() in ("", "none") else text


def read_optional_text(value: Any, place: SourceLocation, findings: Findings) -> str | None:
    """Return a text, or a number as written; report anything else except null, and return None."""
    if value is None or isinstance(value, str):
        return value
    if is_number(value):
        return to_text(value)
    findings.error(place, "wrong-shape", "this must be a string; the value is ignored", "quote it")
    return None


def read_selector(value: Any, canonical: Callable[[str], str], place: SourceLocation, findings: Findings) -> str | None:
    """Return the canonical envelope or protocol name; letter case and version spelling may vary."""
    text = blank_to_none(read_optional_text(value, place, findings))
    return None if text is None else canonical(text)


@dataclass(frozen=True, slots=True)
class Format:
    """The envelope and protocol that an entity declares.

    ``by_format`` is true if the protocol is named in ``format`` or ``envelope``, as before 1.0. ``written`` has the
    location of each.
    """

    envelope: str | None = None
    protocol: str | None = None
    by_format: bool = False
    written: Mapping[str, SourceLocation] = field(default_factory=dict)

    @property
    def is_given(self) -> bool:
        """Whether either is declared."""
        return self.envelope is not None or self.protocol is not None


def read_format(holder: Mapping[str, Any], at: SourceLocation, reader: DocumentReader) -> Format:
    """Read envelope and protocol, each from the first of its names that has a value.

    An envelope with the name of a protocol is read as the protocol, unless a protocol is declared too.
    """
    named: dict[str, str] = {}
    written: dict[str, SourceLocation] = {}
    by_format = False
    for name, canonical in sorted(
        reader.iter_names(holder, "selectors", at, several=True), key=lambda each: each[1] != "protocol"
    ):
        text = blank_to_none(read_optional_text(holder[name], at / name, reader.findings))
        if text is None or canonical in named:
            continue
        protocol = canonical_protocol(text)
        if canonical == "envelope" and protocol in PROTOCOLS:
            if name == canonical:
                reader.report_unusual(at / name, f"the envelope {text}", f"protocol {protocol}")
            if "protocol" not in named:
                named["protocol"], written["protocol"], by_format = protocol, at / name, True
            continue
        named[canonical] = canonical_envelope(text) if canonical == "envelope" else protocol
        written[canonical] = at / name
    return Format(named.get("envelope"), named.get("protocol"), by_format, written)


def canonical_reference(reference: str) -> str:
    """Return a reference to a message or group in 1.0 spelling; any other reference unchanged."""
    renamed = _LISTED_GROUP.sub(r"\1messagegroups", _LISTED.sub(r"\1messagegroups/\2/messages", reference))
    return _GROUP.sub(r"\1messagegroups", _MESSAGES.sub(_to_messages, renamed))


def _to_messages(match: re.Match[str]) -> str:
    kind = "endpoints" if match.group(2).lower() == "endpoints" else "messagegroups"
    return f"{match.group(1)}{kind}/{match.group(3)}/messages"


# Walking collections and declaring entities, for all dialects.

MAX_DECLARED: Final = 50_000
"""Maximum messages, groups, endpoints and schemas of a catalog: five times the supported size."""
MAX_ID: Final = 256
"""Maximum characters of an id, twice what xRegistry allows."""


def iter_collection(
    tree: Mapping[str, Any], name: str, at: SourceLocation, into: Declarations, findings: Findings
) -> Iterator[tuple[str, Any, SourceLocation]]:
    """Yield the objects of a collection with their locations until *into* is full; report other members."""
    collection = tree.get(name)
    if collection is None:
        return
    if not isinstance(collection, dict):
        findings.error(at / name, "wrong-shape", f"{name} is not an object", f"write {name} as a map by id")
        return
    inside = at / name
    for key, member in collection.items():
        if len(key) > MAX_ID:
            report_long_id(inside, key, findings)
            continue
        if not has_room(into, inside, findings):
            return
        place = inside / key
        if isinstance(member, dict):
            yield key, member, place
        elif member is not None:
            findings.error(place, "wrong-shape", f"{key} is not an object", "write it as an object")


def report_long_id(place: SourceLocation, key: str, findings: Findings) -> None:
    """Report an id that is too long, at its collection."""
    message = f"an id of {len(key)} characters, {key[:40]}..., is too long; it is left out"
    findings.error(place, "long-id", message, "xRegistry allows 128 characters")


def has_room(into: Declarations, place: SourceLocation, findings: Findings) -> bool:
    """Whether one more entity can be declared; otherwise report that the limit is reached."""
    if len(into.messages) + len(into.groups) + len(into.endpoints) + len(into.schemas) < MAX_DECLARED:
        return True
    message = f"the catalog declares more than {MAX_DECLARED} entities; the others are left out"
    findings.error(place, "too-many", message, "load fewer documents, or split them between routers")
    return False


def other_members(holder: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the members of *holder* not in *taken* (lower case; compared without regard to case).

    They are kept for conversions.
    """
    return {
        name: value
        for name, value in holder.items()
        if value is not None and isinstance(name, str) and name.lower() not in taken
    }


def declare_registry(tree: Mapping[str, Any], into: Declarations) -> None:
    """Declare the registry attributes of a document; the first document with an attribute wins."""
    collections = {"endpoints", "schemagroups"} | names_of("groups", "messages") - {"messages"}
    for name, value in other_members(tree, collections).items():
        into.registry.setdefault(name, value)


def declare_group(group: DeclaredGroup, into: Declarations, findings: Findings) -> None:
    """Declare a group, which may occur in several documents; report defaults that differ from the first ones."""
    known = into.groups.setdefault(group.xid, group)
    if known is not group and (known.envelope, known.protocol) != (group.envelope, group.protocol):
        message = f"{group.xid} has other defaults in {known.place.file}; those apply"
        findings.warning(group.place, "group-conflict", message, "set the defaults of a group in one document")


def declare_message(message: DeclaredMessage, into: Declarations, findings: Findings) -> None:
    """Declare a message; if its xid is declared already, report a different one and keep the first."""
    known = into.messages.setdefault(message.xid, message)
    if known is not message and known.attributes != message.attributes:
        report_repeated(message.place, message.xid, known.place, findings)


def declare_schemas(
    tree: Mapping[str, Any], name: str, at: SourceLocation, into: Declarations, findings: Findings
) -> None:
    """Declare the schemas in the collection *name*; report one that differs from the first of its xid."""
    for key, group, place in iter_collection(tree, name, at, into, findings):
        into.schemagroups.setdefault(f"/schemagroups/{key}", other_members(group, ("schemas",)))
        for schema, body, written in iter_collection(group, "schemas", place, into, findings):
            xid = f"/schemagroups/{key}/schemas/{schema}"
            if into.schemas.setdefault(xid, body) is body:
                into.schema_places[xid] = written
            elif into.schemas[xid] != body:
                report_repeated(written, xid, into.schema_places[xid], findings)


def report_repeated(place: SourceLocation, xid: str, first: SourceLocation, findings: Findings) -> None:
    """Report an xid that is already declared elsewhere."""
    message = f"{xid} is declared again; the declaration in {first.file} counts"
    findings.warning(place, "duplicate-xid", message, "remove or rename one of them")


def report_deprecated(place: SourceLocation, dialect: str, findings: Findings) -> None:
    """Report that a document uses a dialect that xRegistry 1.0 replaced."""
    hint = "it works; convert it to xRegistry 1.0 with the next change"
    findings.info(place, "deprecated-dialect", f"this is {dialect}, which xRegistry 1.0 has replaced", hint)


# The default version of a message or schema.

_MAX_DIGITS: Final = 18


def default_version(resource: Mapping[str, Any], versions: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the default version's key: the one named, else one marked as default, else the highest.

    Numbers are higher than other names, which are ordered alphabetically. None if there are no versions.
    """
    if not versions:
        return None
    for name in _iter_named_versions(resource):
        if name in versions:
            return name
    for key, body in versions.items():
        if body.get("isdefault") is True:
            return key
    return max(versions, key=_version_rank)


def _iter_named_versions(resource: Mapping[str, Any]) -> Iterator[str]:
    for holder in (resource.get("meta"), resource):
        if not isinstance(holder, dict):
            continue
        for name in ("defaultversionid", "versionid"):
            value = holder.get(name)
            if isinstance(value, str) or is_number(value):
                yield to_text(value)


def _version_rank(key: str) -> tuple[bool, int, str]:
    number = key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS
    return number, int(key) if number else 0, key
