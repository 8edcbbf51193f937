"""xRegistry 1.0-rc2 to rc4 and 0.5-wip, with all that real catalogs write otherwise (semantics.md section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from catalog.declared import Declarations, DeclaredGroup, DeclaredMessage, Place
from catalog.dialects.declaring import (
    MAX_DECLARED,
    declare_group,
    declare_registry,
    declare_schemas,
    deprecated,
    has_room,
    members,
    other_members,
    repeated,
)
from catalog.dialects.endpoints import read_endpoint
from catalog.dialects.reading import given, optional_text, reference_of, selector, spelled
from catalog.documents import Document
from catalog.findings import Findings
from catalog.protocol_properties import canonical_envelope, canonical_protocol
from catalog.references import MESSAGE_REFERENCE
from catalog.versions import default_version

_ATTRIBUTES: Final[Mapping[str, str]] = {
    "envelope": "envelope",
    "format": "envelope",
    "envelopemetadata": "envelopemetadata",
    "metadata": "envelopemetadata",
    "envelopeoptions": "envelopeoptions",
    "protocol": "protocol",
    "binding": "protocol",
    "protocoloptions": "protocoloptions",
    "protocolmetadata": "protocoloptions",
    "dataschemaformat": "dataschemaformat",
    "schemaformat": "dataschemaformat",
    "dataschema": "dataschema",
    "schema": "dataschema",
    "dataschemauri": "dataschemauri",
    "dataschemaurl": "dataschemauri",
    "schemauri": "dataschemauri",
    "schemaurl": "dataschemauri",
    "dataschemaxid": "dataschemaxid",
    "datacontenttype": "datacontenttype",
}
"""Every spelling of what makes a definition, and its 1.0 name. All other attributes say nothing about messages."""
_UNUSUAL: Final = frozenset({"format", "metadata", "binding", "protocolmetadata", "dataschemaurl", "schemaformat"})
_TEXTS: Final = frozenset({"dataschemaformat", "dataschemauri", "dataschemaxid", "datacontenttype"})
_OBJECTS: Final = frozenset({"envelopemetadata", "envelopeoptions", "protocoloptions"})
_OF_GROUPS: Final = frozenset({"envelope", "format", "protocol", "binding", "messages", "definitions"})
_BASES: Final = ("basemessage", "basemessageuri", "basemessageurl", "basemessagexid")
_TAKEN: Final = frozenset({*_ATTRIBUTES, *_BASES, "versions"})


def read(document: Document, into: Declarations, findings: Findings) -> None:
    """Add everything that *document* declares; what has the wrong shape is reported and left out."""
    root = document.root
    if str(document.tree.get("specversion")).startswith("0.5"):
        deprecated(root, "xRegistry 0.5", findings)
        findings.of_older_dialect(root.file)
    declare_registry(document.tree, into)
    read_groups(document.tree, root, into, findings)
    for key, endpoint, place in members(document.tree, "endpoints", root, into, findings):
        xid = f"/endpoints/{key}"
        if xid in into.endpoints:
            repeated(place, xid, into.endpoints[xid].place, findings)
            continue
        into.endpoints[xid] = read_endpoint(xid, endpoint, place, findings)
        read_messages(endpoint, xid, place, into, findings)
    declare_schemas(document.tree, "schemagroups", root, into, findings)


def read_groups(tree: Mapping[str, Any], root: Place, into: Declarations, findings: Findings) -> None:
    """Add the message groups of a document, and their messages."""
    for key, group, place in members(tree, "messagegroups", root, into, findings):
        xid = f"/messagegroups/{key}"
        declared = DeclaredGroup(
            xid,
            place,
            selector(group, ("envelope", "format"), canonical_envelope, place, findings),
            selector(group, ("protocol", "binding"), canonical_protocol, place, findings),
            other_members(group, _OF_GROUPS),
        )
        declare_group(declared, into, findings)
        read_messages(group, xid, place, into, findings)


def read_messages(container: Mapping[str, Any], group: str, at: Place, into: Declarations, findings: Findings) -> None:
    """Add the ``messages`` of a group or an endpoint, with their versions."""
    for key, message, place in members(container, "messages", at, into, findings):
        xid = f"{group}/messages/{key}"
        known = into.messages.get(xid)
        if known is not None:
            if known.attributes != attributes_of(message, place, findings):
                repeated(place, xid, known.place, findings)
            continue
        for declared in _declared(message, xid, group, place, into, findings):
            if not has_room(into, place, findings):
                return
            into.messages[declared.xid] = declared


def _declared(
    message: Mapping[str, Any], xid: str, group: str, place: Place, into: Declarations, findings: Findings
) -> Iterator[DeclaredMessage]:
    """Give a message, and before it its versions, which others may have as base."""
    attributes = dict(attributes_of(message, place, findings))
    base = base_of(message, place, findings)
    written = _written(message)
    places = {canonical: place / name for canonical, name in written.items() if name != canonical}
    versions = list(islice(members(message, "versions", place, into, findings), MAX_DECLARED))
    for version, body, at in versions:
        own = attributes_of(body, at, findings)
        yield DeclaredMessage(
            f"{xid}/versions/{version}",
            group,
            at,
            own,
            base_of(body, at, findings),
            None,
            True,
            places_of(body, at),
            others_of(body),
        )
    default = _default_version(message, versions)
    if default is not None:
        body, at = default
        attributes = {**attributes_of(body, at, findings), **attributes}
        base = base or base_of(body, at, findings)
        places = {**places_of(body, at), **{canonical: place / name for canonical, name in written.items()}}
    borrowed = borrowed_of(message, attributes, base, place, findings)
    yield DeclaredMessage(xid, group, place, attributes, base, borrowed, False, places, others_of(message))


def attributes_of(
    message: Mapping[str, Any], place: Place, findings: Findings, *, unusual: frozenset[str] = _UNUSUAL
) -> dict[str, Any]:
    """Return what defines a message, under its 1.0 names; ``null`` and ``"None"`` are not given.

    Names in *unusual* are remarked upon: what they are depends on the dialect.
    """
    found: dict[str, Any] = {}
    for canonical, name in _written(message).items():
        if name in unusual:
            findings.warning(place / name, "unusual-name", f"{name} is read as {canonical}", f"write {canonical}")
        checked = _attribute(canonical, message[name], place / name, findings)
        if checked is not None:
            found[canonical] = checked
    return found


def _written(message: Mapping[str, Any]) -> dict[str, str]:
    """Return the spelling of every attribute by its 1.0 name; when there are several, the 1.0 name counts."""
    written: dict[str, str] = {}
    for name, value in message.items():
        canonical = _ATTRIBUTES.get(name) or _ATTRIBUTES.get(name.lower())
        if canonical is not None and value is not None and (name == canonical or canonical not in written):
            written[canonical] = name
    return written


def places_of(message: Mapping[str, Any], place: Place) -> dict[str, Place]:
    """Return where each attribute is written, by its 1.0 name."""
    return {canonical: place / name for canonical, name in _written(message).items()}


def others_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that says nothing about how a message looks, as written."""
    return other_members(message, _TAKEN)


def _attribute(name: str, value: Any, place: Place, findings: Findings) -> Any:
    if name == "envelope":
        return spelled(value, canonical_envelope, place, findings)
    if name == "protocol":
        return spelled(value, canonical_protocol, place, findings)
    if name in _TEXTS:
        return given(optional_text(value, place, findings))
    if name in _OBJECTS and not isinstance(value, dict):
        findings.error(place, "wrong-shape", f"{name} is no object, and ignored", "write it as a map")
        return None
    return value


def base_of(message: Mapping[str, Any], place: Place, findings: Findings) -> str | None:
    """Return the base reference, under whichever of its names."""
    for name in _BASES:
        if message.get(name) is None:
            continue
        if name != "basemessage":
            findings.warning(place / name, "unusual-name", f"{name} is read as basemessage", "write basemessage")
        reference = given(optional_text(message[name], place / name, findings))
        return None if reference is None else reference_of(reference)
    return None


def borrowed_of(
    message: Mapping[str, Any], attributes: Mapping[str, Any], base: str | None, place: Place, findings: Findings
) -> str | None:
    """Return the message that this one stands for.

    A ``uri`` counts when it points to a message, or when nothing else is said.
    """
    meta = message.get("meta")
    xref = message.get("xref") or (meta.get("xref") if isinstance(meta, dict) else None)
    if xref is not None:
        return optional_text(xref, place / "xref", findings)
    uri = reference_of(message["uri"]) if isinstance(message.get("uri"), str) else None
    if base is None and uri is not None and (MESSAGE_REFERENCE.search(uri) or not attributes):
        return uri
    return None


def _default_version(
    message: Mapping[str, Any], versions: list[tuple[str, Any, Place]]
) -> tuple[Mapping[str, Any], Place] | None:
    """Return the version that counts."""
    known = {key: (body, place) for key, body, place in versions}
    default = default_version(message, {key: body for key, body, _ in versions})
    return None if default is None else known[default]
