"""What the readers of all dialects share: walking collections, and declaring what is in them once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from catalog.declared import Declarations, DeclaredGroup, DeclaredMessage, Place
from catalog.findings import Findings


def members(tree: Mapping[str, Any], name: str, at: Place, findings: Findings) -> Iterator[tuple[str, Any, Place]]:
    """Give the objects of a collection with their places; report what is no object."""
    collection = tree.get(name)
    if collection is None:
        return
    if not isinstance(collection, dict):
        findings.error(at / name, "wrong-shape", f"{name} is no object", f"write {name} as a map from id to object")
        return
    for key, member in collection.items():
        place = at / name / key
        if isinstance(member, dict):
            yield key, member, place
        elif member is not None:
            findings.error(place, "wrong-shape", f"{key} is no object", "write it as an object")


def spelling_of(tree: Mapping[str, Any], name: str) -> str:
    """Return the key of *tree* that is *name* in whatever letter case; *name* itself when there is none."""
    if name in tree:
        return name
    folded = name.lower()
    return next((key for key in tree if isinstance(key, str) and key.lower() == folded), name)


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
    """Add the schemas of all schema groups in the collection *name*."""
    for key, group, place in members(tree, name, at, findings):
        for schema, body, _ in members(group, "schemas", place, findings):
            into.schemas.setdefault(f"/schemagroups/{key}/schemas/{schema}", body)


def repeated(place: Place, xid: str, first: Place, findings: Findings) -> None:
    """Report what was declared before."""
    message = f"{xid} is declared again; the one in {first.file} counts"
    findings.warning(place, "duplicate-xid", message, "remove or rename one of them")


def deprecated(place: Place, dialect: str, findings: Findings) -> None:
    """Tell that a document is written in a dialect that xRegistry 1.0 has replaced."""
    hint = "nothing is lost by it; write it as xRegistry 1.0 when you next change it"
    findings.info(place, "deprecated-dialect", f"this is {dialect}, which xRegistry 1.0 has replaced", hint)
