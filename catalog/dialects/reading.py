"""How single values of a document are read: selectors, texts and what counts as not given."""

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
from catalog.values import is_number, text_of

# The names of all dialects, every one of which is read in every document (MATCHING.md#catalogs).
#
# A name that is not of the document's own dialect is remarked upon, since other tools may not know it.

_OF_NO_DIALECT: Final[Names] = {"attributes": {"config": "protocoloptions"}}
"""Names that are understood, and are no dialect's own."""


def spellings(kind: Kind) -> Mapping[str, str]:
    """Return the names of 1.0 for all names of a kind, by spelling in lower case."""
    return _united(tuple(DIALECTS), kind)


def names_of(*kinds: Kind) -> frozenset[str]:
    """Return all names of some kinds, in lower case."""
    return _names(tuple(DIALECTS), kinds)


def message_names() -> frozenset[str]:
    """Return all names that say how a message looks, but for its versions."""
    return names_of("selectors", "attributes", "bases", "metadata", "definition")


@lru_cache(maxsize=64)
def _names(dialects: tuple[Dialect, ...], kinds: tuple[Kind, ...]) -> frozenset[str]:
    return frozenset(name for kind in kinds for name in _united(dialects, kind))


@lru_cache(maxsize=64)
def _united(dialects: tuple[Dialect, ...], kind: Kind) -> Mapping[str, str]:
    united: dict[str, str] = {}
    for names in (_OF_NO_DIALECT, *(dialect.names for dialect in dialects)):
        united.update(names.get(kind, {}))
    return united


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """What reading one document takes along: its dialect, where declarations go, and where to report."""

    dialect: Dialect
    into: Declarations
    findings: Findings

    def spelled(
        self, holder: Mapping[str, Any], kind: Kind, at: SourceLocation, *, several: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Give the names of a kind that *holder* has as they are spelled, each with its 1.0 name; those of 1.0 first.

        Of *several* spellings of one name all are given, else the first counts. One of another dialect than the
        document's is remarked upon.
        """
        known, own = spellings(kind), self.dialect.names.get(kind, {})
        spelled = [(written, known[written.lower()]) for written in holder if written.lower() in known]
        given: set[str] = set()
        for written, canonical in sorted(spelled, key=lambda each: each[0] != each[1]):
            if holder[written] is not None and (several or canonical not in given):
                given.add(canonical)
                if written.lower() not in own:
                    self.unusual(at / written, written, canonical)
                yield written, canonical

    def unusual(self, place: SourceLocation, written: str, canonical: str) -> None:
        """Report a name that is understood, and is not one of the document's own dialect."""
        text = f"{written} is read as {canonical}"
        if written == canonical:
            text = f"{written} is a name of xRegistry 1.0; it is read as such"
            self.findings.warning(place, "unusual-name", text, "write the whole document as xRegistry 1.0")
            return
        self.findings.warning(place, "unusual-name", text, f"write {canonical}")


_MESSAGES: Final = re.compile(
    r"(^|[/#])(?:definitiongroups|messagegroups)/([^/?#]+)/(?:definitions|messagedefinitions)(?=/[^/?#]+)",
    re.IGNORECASE,
)
_LISTED: Final = re.compile(
    r"^(#?/)groups/([^/?#]+)/(?:definitions|messagedefinitions|messages)(?=/[^/?#]+)", re.IGNORECASE
)
_INLINE: Final = re.compile(
    r"(^|[/#])endpoints/([^/?#]+)/(?:definitions|messagedefinitions)(?=/[^/?#]+)", re.IGNORECASE
)
_GROUP: Final = re.compile(r"(^|[/#])definitiongroups(?=/[^/?#]+)", re.IGNORECASE)
_LISTED_GROUP: Final = re.compile(r"^(#?/)groups(?=/[^/?#]+/?$)", re.IGNORECASE)


def given(text: str | None) -> str | None:
    """Return None for values that real catalogs use for nothing: an empty text or ``None``."""
    return None if text is None or text.strip().lower() in ("", "none") else text


def optional_text(value: Any, place: SourceLocation, findings: Findings) -> str | None:
    """Return a text, a number as it is written; anything else but null is reported and read as not given."""
    if value is None or isinstance(value, str):
        return value
    if is_number(value):
        return text_of(value)
    findings.error(place, "wrong-shape", "this must be a string; the value is ignored", "quote it")
    return None


def spelled(value: Any, canonical: Callable[[str], str], place: SourceLocation, findings: Findings) -> str | None:
    """Read an envelope or protocol name in any letter case and version spelling."""
    text = given(optional_text(value, place, findings))
    return None if text is None else canonical(text)


@dataclass(frozen=True, slots=True)
class Format:
    """The envelope and the protocol that something names.

    ``by_format`` tells a protocol that ``format`` or ``envelope`` names, as dialects before 1.0 do, from one that is
    named as such. ``written`` is where each of the two is written.
    """

    envelope: str | None = None
    protocol: str | None = None
    by_format: bool = False
    written: Mapping[str, SourceLocation] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether either is named at all."""
        return self.envelope is not None or self.protocol is not None


def read_format(holder: Mapping[str, Any], at: SourceLocation, reader: DocumentReader) -> Format:
    """Read envelope and protocol, each from the first of its names that is given; ``None`` is not given.

    An envelope that is the name of a protocol is the protocol, unless another is named as such.
    """
    named: dict[str, str] = {}
    written: dict[str, SourceLocation] = {}
    by_format = False
    for name, canonical in sorted(
        reader.spelled(holder, "selectors", at, several=True), key=lambda each: each[1] != "protocol"
    ):
        text = given(optional_text(holder[name], at / name, reader.findings))
        if text is None or canonical in named:
            continue
        protocol = canonical_protocol(text)
        if canonical == "envelope" and protocol in PROTOCOLS:
            if name == canonical:
                reader.unusual(at / name, f"the envelope {text}", f"protocol {protocol}")
            if "protocol" not in named:
                named["protocol"], written["protocol"], by_format = protocol, at / name, True
            continue
        named[canonical] = canonical_envelope(text) if canonical == "envelope" else protocol
        written[canonical] = at / name
    return Format(named.get("envelope"), named.get("protocol"), by_format, written)


def reference_of(reference: str) -> str:
    """Return a reference to a definition or a group of them in the names of 1.0; any other as it is."""
    renamed = _LISTED_GROUP.sub(r"\1messagegroups", _LISTED.sub(r"\1messagegroups/\2/messages", reference))
    renamed = _MESSAGES.sub(r"\1messagegroups/\2/messages", renamed)
    renamed = _INLINE.sub(r"\1endpoints/\2/messages", renamed)
    return _GROUP.sub(r"\1messagegroups", renamed)


# What the readers of all dialects share: walking collections, and declaring what is in them once.

MAX_DECLARED: Final = 50_000
"""Messages, groups, endpoints and schemas of one load: five times what the router is built for."""
MAX_ID: Final = 256
"""Characters of an id, twice what xRegistry allows: ids stand in every place and reference below them."""


def members(
    tree: Mapping[str, Any], name: str, at: SourceLocation, into: Declarations, findings: Findings
) -> Iterator[tuple[str, Any, SourceLocation]]:
    """Give the objects of a collection with their places, as long as *into* has room; report what is no object."""
    collection = tree.get(name)
    if collection is None:
        return
    if not isinstance(collection, dict):
        findings.error(at / name, "wrong-shape", f"{name} is not an object", f"write {name} as a map by id")
        return
    inside = at / name
    for key, member in collection.items():
        if len(key) > MAX_ID:
            long_id(inside, key, findings)
            continue
        if not has_room(into, inside, findings):
            return
        place = inside / key
        if isinstance(member, dict):
            yield key, member, place
        elif member is not None:
            findings.error(place, "wrong-shape", f"{key} is not an object", "write it as an object")


def long_id(place: SourceLocation, key: str, findings: Findings) -> None:
    """Report an id that is too long to be one, at the collection it is in."""
    message = f"an id of {len(key)} characters, {key[:40]}..., is too long; it is left out"
    findings.error(place, "long-id", message, "xRegistry allows 128 characters")


def has_room(into: Declarations, place: SourceLocation, findings: Findings) -> bool:
    """Whether one more thing can be declared; report it once for a collection when not."""
    if len(into.messages) + len(into.groups) + len(into.endpoints) + len(into.schemas) < MAX_DECLARED:
        return True
    message = f"the catalog declares more than {MAX_DECLARED} entities; the others are left out"
    findings.error(place, "too-many", message, "load fewer documents, or split them between routers")
    return False


def other_members(holder: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return what *holder* says beside the names *taken* (lower case, any case matches), which a reader has no use for.

    It is kept for who writes the catalog down again.
    """
    return {
        name: value
        for name, value in holder.items()
        if value is not None and isinstance(name, str) and name.lower() not in taken
    }


def declare_registry(tree: Mapping[str, Any], into: Declarations) -> None:
    """Keep what a document says about itself; the first document to say a thing counts."""
    collections = {"endpoints", "schemagroups"} | names_of("groups", "messages") - {"messages"}
    for name, value in other_members(tree, collections).items():
        into.registry.setdefault(name, value)


def declare_group(group: DeclaredGroup, into: Declarations, findings: Findings) -> None:
    """Add a group, which may be declared in several documents; report other defaults than the first ones."""
    known = into.groups.setdefault(group.xid, group)
    if known is not group and (known.envelope, known.protocol) != (group.envelope, group.protocol):
        message = f"{group.xid} has other defaults in {known.place.file}; those apply"
        findings.warning(group.place, "group-conflict", message, "set the defaults of a group in one document")


def declare_message(message: DeclaredMessage, into: Declarations, findings: Findings) -> None:
    """Add a message; report one that says otherwise than the first of its xid, which stays."""
    known = into.messages.setdefault(message.xid, message)
    if known is not message and known.attributes != message.attributes:
        repeated(message.place, message.xid, known.place, findings)


def declare_schemas(
    tree: Mapping[str, Any], name: str, at: SourceLocation, into: Declarations, findings: Findings
) -> None:
    """Add the schemas of all schema groups in the collection *name*; report one that differs from the first."""
    for key, group, place in members(tree, name, at, into, findings):
        into.schemagroups.setdefault(f"/schemagroups/{key}", other_members(group, ("schemas",)))
        for schema, body, written in members(group, "schemas", place, into, findings):
            xid = f"/schemagroups/{key}/schemas/{schema}"
            if into.schemas.setdefault(xid, body) is body:
                into.schema_places[xid] = written
            elif into.schemas[xid] != body:
                repeated(written, xid, into.schema_places[xid], findings)


def repeated(place: SourceLocation, xid: str, first: SourceLocation, findings: Findings) -> None:
    """Report what was declared before."""
    message = f"{xid} is declared again; the declaration in {first.file} counts"
    findings.warning(place, "duplicate-xid", message, "remove or rename one of them")


def deprecated(place: SourceLocation, dialect: str, findings: Findings) -> None:
    """Tell that a document is written in a dialect that xRegistry 1.0 has replaced."""
    hint = "it works; convert it to xRegistry 1.0 with the next change"
    findings.info(place, "deprecated-dialect", f"this is {dialect}, which xRegistry 1.0 has replaced", hint)


# Which version of a resource counts, for messages and schemas alike.

_MAX_DIGITS: Final = 18


def default_version(resource: Mapping[str, Any], versions: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the key of the version that counts: the one named, the one that says so itself, else the highest.

    Numbers are higher than other names, which count by their letters; None when there are no versions.
    """
    if not versions:
        return None
    for name in _named(resource):
        if name in versions:
            return name
    for key, body in versions.items():
        if body.get("isdefault") is True:
            return key
    return max(versions, key=_rank)


def _named(resource: Mapping[str, Any]) -> Iterator[str]:
    for holder in (resource.get("meta"), resource):
        if not isinstance(holder, dict):
            continue
        for name in ("defaultversionid", "versionid"):
            value = holder.get(name)
            if isinstance(value, str) or is_number(value):
                yield text_of(value)


def _rank(key: str) -> tuple[bool, int, str]:
    number = key.isascii() and key.isdecimal() and len(key) <= _MAX_DIGITS
    return number, int(key) if number else 0, key
