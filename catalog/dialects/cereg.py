"""CloudEvents Registry 0.4 and 0.5: ``definitionGroups``, ``definitions``, ``format`` and ``metadata``.

``format`` names an envelope or a protocol, and by that ``metadata`` holds envelope attributes or protocol options
(semantics.md section 2). Names of 1.0 beside them are read as the 1.0 reader does; attributes unknown to both say
nothing about messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from catalog.declared import Declarations, DeclaredEndpoint, DeclaredGroup, DeclaredMessage, Place
from catalog.dialects.declaring import (
    declare_group,
    declare_message,
    declare_registry,
    declare_schemas,
    deprecated,
    members,
    other_members,
    repeated,
    spelling_of,
)
from catalog.dialects.endpoints import group_references, read_endpoint
from catalog.dialects.reading import Format, now_of, read_format
from catalog.dialects.xregistry import (
    attributes_of,
    base_of,
    borrowed_of,
    others_of,
    places_of,
    read_groups,
    read_messages,
)
from catalog.documents import Document
from catalog.findings import Findings
from catalog.protocol_properties import SHAPES, canonical_option

_NAME: Final = "CloudEvents Registry 0.4/0.5"
_SCHEMA: Final = re.compile(r"#/schemagroups/([^/]+)/schemas?/", re.IGNORECASE)
_OF_GROUPS: Final = frozenset({"format", "envelope", "protocol", "definitions"})
_HOLDERS: Final = ("config", "protocoloptions", "protocolmetadata")


def read(document: Document, into: Declarations, findings: Findings) -> None:
    """Add everything that *document* declares; what has the wrong shape is reported and left out."""
    root, tree = document.root, document.tree
    deprecated(root, _NAME, findings)
    declare_registry(tree, into)
    read_groups(tree, root, into, findings)  # some have already begun to rename things
    for key, group, place in members(tree, spelling_of(tree, "definitionGroups"), root, into, findings):
        xid = f"/messagegroups/{key}"
        defaults = read_format(group, place, findings)
        other = other_members(group, _OF_GROUPS)
        declare_group(DeclaredGroup(xid, place, defaults.envelope, defaults.protocol, other), into, findings)
        _read_definitions(group, xid, place, defaults, into, findings)
    for key, endpoint, place in members(tree, "endpoints", root, into, findings):
        _read_endpoint(f"/endpoints/{key}", endpoint, place, into, findings)
    for name in dict.fromkeys((spelling_of(tree, "schemaGroups"), "schemagroups")):
        declare_schemas(tree, name, root, into, findings)


def _read_endpoint(xid: str, endpoint: Mapping[str, Any], place: Place, into: Declarations, findings: Findings) -> None:
    if xid in into.endpoints:
        repeated(place, xid, into.endpoints[xid].place, findings)
        return
    defaults = read_format(endpoint, place, findings)
    declared = _declared_endpoint(xid, endpoint, place, findings)
    into.endpoints[xid] = replace(
        declared,
        envelope=defaults.envelope,
        protocol=declared.protocol or defaults.protocol,
    )
    _read_definitions(endpoint, xid, place, defaults, into, findings)
    read_messages(endpoint, xid, place, into, findings)


def _declared_endpoint(xid: str, endpoint: Mapping[str, Any], place: Place, findings: Findings) -> DeclaredEndpoint:
    """Read an endpoint in the names of 1.0; its configuration may also stand beside the rest."""
    listed = spelling_of(endpoint, "definitionGroups")
    renamed = {name: value for name, value in endpoint.items() if name not in ("format", listed)}
    if not any(isinstance(endpoint.get(name), dict) for name in _HOLDERS) and isinstance(endpoint.get("options"), dict):
        renamed["config"] = {"options": renamed.pop("options")}
    declared = read_endpoint(xid, renamed, place, findings)
    groups = tuple(group_references(endpoint.get(listed), place / listed, findings))
    written = (
        *(place / "messagegroups" / index for index in range(len(declared.messagegroups))),
        *(place / listed / index for index in range(len(groups))),
    )
    return replace(declared, messagegroups=(*declared.messagegroups, *groups), groups_written=written)


def _read_definitions(
    container: Mapping[str, Any], group: str, at: Place, defaults: Format, into: Declarations, findings: Findings
) -> None:
    for key, definition, place in members(container, "definitions", at, into, findings):
        declare_message(
            _message(f"{group}/messages/{key}", group, definition, place, defaults, findings), into, findings
        )


def _message(
    xid: str, group: str, definition: Mapping[str, Any], place: Place, defaults: Format, findings: Findings
) -> DeclaredMessage:
    rest = {name: value for name, value in definition.items() if name not in ("format", "metadata")}
    attributes = attributes_of(rest, place, findings, unusual=frozenset())
    written = places_of(rest, place)
    own = read_format(definition, place, findings)
    for name, value in (("envelope", own.envelope), ("protocol", own.protocol)):
        if value is not None:
            attributes.setdefault(name, value)
            written.setdefault(name, place / "format")
    _add_metadata(
        definition.get("metadata"), own if own.given else defaults, place / "metadata", attributes, written, findings
    )
    reference = attributes.get("dataschemauri")
    if reference is not None:
        attributes["dataschemauri"] = _SCHEMA.sub(r"#/schemagroups/\1/schemas/", reference)
    base = base_of(definition, place, findings)
    borrowed = borrowed_of(definition, attributes, base, place, findings)
    return DeclaredMessage(xid, group, place, attributes, base, borrowed, False, written, others_of(definition))


def _add_metadata(
    metadata: Any, form: Format, at: Place, attributes: dict[str, Any], written: dict[str, Place], findings: Findings
) -> None:
    """Put ``metadata`` where its format has it: envelope attributes, or options of a protocol."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        findings.error(at, "wrong-shape", "metadata is no object, and ignored", "write it as a map")
        return
    nested = metadata.get("attributes")
    if form.protocol is None and (form.given or isinstance(nested, dict)):
        flat, place = (nested, at / "attributes") if isinstance(nested, dict) else (metadata, at)
        attributes.setdefault("envelopemetadata", {name: now_of(body) for name, body in flat.items()})
        written.setdefault("envelopemetadata", place)
    elif "protocoloptions" not in attributes:
        attributes["protocoloptions"] = _options(metadata, form.protocol, at, written)
        written["protocoloptions"] = at


def _options(metadata: Mapping[str, Any], protocol: str | None, at: Place, written: dict[str, Place]) -> dict[str, Any]:
    """Rename what 1.0 spells otherwise (the dashed names of MQTT); what is unknown stays, to be reported."""
    shape = SHAPES.get(protocol or "")
    options: dict[str, Any] = {}
    for name, value in metadata.items():
        canonical = canonical_option(protocol, name) if shape is not None else None
        listed = shape is not None and canonical in shape.lists
        if canonical is None or canonical in metadata or (listed and not isinstance(value, (list, dict))):
            canonical = name  # left as it is, so that what is reported of it points to where it stands
        options[canonical] = _named(value) if listed and isinstance(value, list) else now_of(value)
        if canonical != name:
            written.update(_places(f"protocoloptions.{canonical}", options[canonical], at / name))
    return options


def _named(entries: list[Any]) -> list[Any]:
    """Read ``[{NAME: {value}}]``, which 0.4 writes for user properties, as ``[{name: NAME, value}]``."""
    named = []
    for entry in entries:
        if isinstance(entry, dict) and len(entry) == 1 and "name" not in entry:
            name, body = next(iter(entry.items()))
            entry = {"name": name, **(body if isinstance(body, dict) else {"value": body})}
        named.append(entry)
    return named


def _places(prefix: str, value: Any, at: Place) -> dict[str, Place]:
    """Say where an option is written, and each named value of it."""
    places = {prefix: at}
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            places.setdefault(f"{prefix}.{entry['name']}", at / index)
    return places
