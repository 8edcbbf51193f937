"""What the readers of all dialects share: walking collections, and declaring what is in them once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from catalog.declared import Declarations, DeclaredGroup, DeclaredMessage, Place
from catalog.dialects.names import names_of
from catalog.findings import Findings

MAX_DECLARED: Final = 50_000
"""Messages, groups, endpoints and schemas of one load: five times what the router is built for."""
MAX_ID: Final = 256
"""Characters of an id, twice what xRegistry allows: ids stand in every place and reference below them."""


def members(
    tree: Mapping[str, Any], name: str, at: Place, into: Declarations, findings: Findings
) -> Iterator[tuple[str, Any, Place]]:
    """Give the objects of a collection with their places, as long as *into* has room; report what is no object."""
    collection = tree.get(name)
    if collection is None:
        return
    if not isinstance(collection, dict):
        findings.error(at / name, "wrong-shape", f"{name} is no object", f"write {name} as a map from id to object")
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
            findings.error(place, "wrong-shape", f"{key} is no object", "write it as an object")


def long_id(place: Place, key: str, findings: Findings) -> None:
    """Report an id that is too long to be one, at the collection it is in."""
    message = f"an id of {len(key)} characters, {key[:40]}..., is too long; it is left out"
    findings.error(place, "long-id", message, "xRegistry allows 128 characters")


def has_room(into: Declarations, place: Place, findings: Findings) -> bool:
    """Tell whether one more thing can be declared; report it once for a collection when not."""
    if len(into.messages) + len(into.groups) + len(into.endpoints) + len(into.schemas) < MAX_DECLARED:
        return True
    message = f"the catalog declares more than {MAX_DECLARED} things; the rest is left out"
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
        message = f"{group.xid} has other defaults in {known.place.file}, which count"
        findings.warning(group.place, "group-conflict", message, "give a group its defaults in one place")


def declare_message(message: DeclaredMessage, into: Declarations, findings: Findings) -> None:
    """Add a message; report one that says otherwise than the first of its xid, which stays."""
    known = into.messages.setdefault(message.xid, message)
    if known is not message and known.attributes != message.attributes:
        repeated(message.place, message.xid, known.place, findings)


def declare_schemas(tree: Mapping[str, Any], name: str, at: Place, into: Declarations, findings: Findings) -> None:
    """Add the schemas of all schema groups in the collection *name*; report one that differs from the first."""
    for key, group, place in members(tree, name, at, into, findings):
        into.schemagroups.setdefault(f"/schemagroups/{key}", other_members(group, ("schemas",)))
        for schema, body, written in members(group, "schemas", place, into, findings):
            xid = f"/schemagroups/{key}/schemas/{schema}"
            if into.schemas.setdefault(xid, body) is body:
                into.schema_places[xid] = written
            elif into.schemas[xid] != body:
                repeated(written, xid, into.schema_places[xid], findings)


def repeated(place: Place, xid: str, first: Place, findings: Findings) -> None:
    """Report what was declared before."""
    message = f"{xid} is declared again; the one in {first.file} counts"
    findings.warning(place, "duplicate-xid", message, "remove or rename one of them")


def deprecated(place: Place, dialect: str, findings: Findings) -> None:
    """Tell that a document is written in a dialect that xRegistry 1.0 has replaced."""
    hint = "nothing is lost by it; write it as xRegistry 1.0 when you next change it"
    findings.info(place, "deprecated-dialect", f"this is {dialect}, which xRegistry 1.0 has replaced", hint)
