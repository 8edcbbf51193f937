"""What ``compatibility`` asks of the versions of a resource, along their ancestors (core ``spec.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from catalog.schemas.contract import SchemaSource
from catalog.schemas.formats import parse_format
from registry.compatibility import avro, protobuf
from registry.compatibility.formats import tree_of
from registry.compatibility.json_schema import checking
from registry.compatibility.undecided import Undecided
from registry.errors import Refusal, listed
from registry.model.types import ResourceType
from registry.store.entities import Resource, Version

RULES: Final = ("backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive")
CHECKERS: Final[Mapping[str, Callable[[SchemaSource, SchemaSource], str]]] = {
    "Avro": lambda reader, writer: avro.unreadable(reader.document, writer.document),
    "JsonSchema": checking.unreadable,
    "Protobuf": protobuf.unreadable,
}
"""By family: tells why readers of the first schema cannot read what was written with the second, '' when they can.

A checker that can tell neither raises :class:`Undecided`.
"""
VALIDATED: Final = ("compatibilityvalidated", "compatibilityvalidatedreason")


def check_compatibility(
    kind: ResourceType,
    resource: Resource,
    versions: Mapping[str, Version],
    document: Callable[[Version], bytes | None],
) -> None:
    """Check all versions of a resource, and note on each that it was done.

    Raises:
        Refusal: one violates the rule, or there is nobody here who could tell.
    """
    rule = str(resource.attributes.get("compatibility") or "").lower()
    for each in versions.values():
        for attribute in VALIDATED:
            each.attributes.pop(attribute, None)
    if not rule or not kind.validatecompatibility:
        return
    schemas: dict[str, SchemaSource] = {}
    for each in versions.values():
        form = each.attributes.get("format")
        if not form:
            continue
        known = parse_format(form)
        if rule not in RULES or known is None or known.family not in CHECKERS:
            raise Refusal("compatibility_unknown", resource.xid, compat=rule, format=form)
        body = document(each)
        if body is None:
            each.attributes.update(zip(VALIDATED, (False, "The document is stored elsewhere."), strict=True))
        elif body:
            schemas[each.id] = SchemaSource(known.family, known.version, tree_of(known.family, body))
            each.attributes["compatibilityvalidated"] = True
    _compare(rule, resource, versions, schemas)


def _compare(
    rule: str, resource: Resource, versions: Mapping[str, Version], schemas: Mapping[str, SchemaSource]
) -> None:
    name, _, transitive = rule.partition("_")
    broken: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for newer in schemas:
        for older in _ancestors(newer, versions, everything=bool(transitive)):
            if older not in schemas:
                continue
            try:
                why = _why(name, schemas[newer], schemas[older])
            except Undecided as error:
                undecided.setdefault(newer, f"{newer} against {older}: {error}")
                continue
            if why:
                broken.setdefault(newer, f"{newer} against {older}: {why}")
    if broken:
        raise Refusal("compatibility_violation", resource.xid, detail=_detail(broken), compat=rule)
    if undecided:
        form = str(versions[min(undecided)].attributes.get("format"))
        raise Refusal("compatibility_unknown", resource.xid, detail=_detail(undecided), compat=rule, format=form)


def _detail(found: Mapping[str, str]) -> str:
    return f"{listed(sorted(found))}. {'; '.join(found.values())}"


def _why(rule: str, newer: SchemaSource, older: SchemaSource) -> str:
    if newer.family != older.family:
        return "they are of different formats"
    asked = ("backward", newer, older), ("forward", older, newer)
    undecided: Undecided | None = None
    for name, reader, writer in asked:
        try:
            why = CHECKERS[newer.family](reader, writer) if rule in (name, "full") else ""
        except Undecided as error:
            undecided = error
            continue
        if why:
            return why
    if undecided is not None:
        raise undecided
    return ""


def _ancestors(name: str, versions: Mapping[str, Version], *, everything: bool) -> Iterator[str]:
    each = versions[name]
    while each.ancestorid != each.id:
        each = versions[each.ancestorid]
        yield each.id
        if not everything:
            return
