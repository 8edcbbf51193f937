"""Trace every value of a definition to its origin, and format entities, for ``xrouter catalog show``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from catalog.definitions.inheritance import (
    BODY_MEMBERS,
    METADATA,
    PropertyHistory,
    effective_of,
    foreign_sections,
    iter_histories,
)
from catalog.dialects.reading import default_version
from catalog.findings import Declarations, EffectiveMessage, SourceLocation
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint
from catalog.protocols.properties import ALWAYS_REQUIRED, ATTRIBUTE_TYPES, NAMED_PREFIXES, PROTOCOL_OPTIONS
from catalog.schemas.library import SchemaRegistry, SchemaVersion

# The origin of each value: the definition, a base, its group, an endpoint, or a table of a specification.
#
# The JSON forms are a stable output of ``xrouter catalog show``. Locations are a file and a JSON pointer, both empty
# if no
# document declares the value.

Source = Literal["message", "base", "group", "endpoint", "cloudevents", "protocol", "default"]
"""``cloudevents`` and ``protocol`` are tables of the specifications; ``default`` applies if they have no entry."""
ATTRIBUTES: Final = ("datacontenttype", "dataschemaformat", "dataschemauri", "dataschemaxid", "dataschema")
SCHEMA: Final = ("dataschema", "dataschemaxid", "dataschemauri")


@dataclass(frozen=True, slots=True)
class PropertyOrigin:
    """A value and its origin. ``xid`` is the message, group or endpoint, empty for a table."""

    value: Any
    source: Source
    xid: str = ""
    place: SourceLocation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return ``{value, source, xid, file, pointer}``."""
        place = self.place or SourceLocation("")
        origin = {"value": self.value, "source": self.source, "xid": self.xid}
        return {**origin, "file": place.file, "pointer": place.pointer}


@dataclass(frozen=True, slots=True)
class TracedValue:
    """An attribute of a definition: the effective value, and overridden values, nearest first."""

    name: str
    origin: PropertyOrigin
    overrides: tuple[PropertyOrigin, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the members of the origin, and ``overrides``."""
        return {**self.origin.to_json(), "overrides": [each.to_json() for each in self.overrides]}


@dataclass(frozen=True, slots=True)
class TracedProperty:
    """A property, with the origins of its type, value and ``required``. ``section`` is its section in 1.0."""

    section: str
    name: str
    type: TracedValue
    value: TracedValue | None
    required: TracedValue

    def to_json(self) -> dict[str, Any]:
        """Return ``{section, name, type, value, required, from}``."""
        parts = {"type": self.type, "value": self.value, "required": self.required}
        values = {name: part.origin.value if part else None for name, part in parts.items()}
        origins = {name: part.to_json() for name, part in parts.items() if part is not None}
        return {"section": self.section, "name": self.name, **values, "from": origins}


@dataclass(frozen=True, slots=True)
class OfferingEndpoint:
    """An endpoint that offers a definition, with the envelope and protocol that the definition has there."""

    endpoint: str
    envelope: PropertyOrigin | None
    protocol: PropertyOrigin | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A definition with all its origins."""

    definition: Definition
    place: SourceLocation
    envelope: TracedValue | None
    protocol: TracedValue | None
    attributes: tuple[TracedValue, ...]
    envelopeoptions: tuple[TracedValue, ...]
    properties: tuple[TracedProperty, ...]
    endpoints: tuple[OfferingEndpoint, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``catalog show --format json``."""
        definition = self.definition
        return {
            "kind": "message",
            "xid": definition.xid,
            "file": self.place.file,
            "pointer": self.place.pointer,
            "group": definition.group,
            "base": list(definition.base),
            "envelope": self.envelope and self.envelope.to_json(),
            "protocol": self.protocol and {**self.protocol.to_json(), "declared": definition.protocol_declared},
            "properties": [each.to_json() for each in self.properties],
            "envelopeoptions": {each.name: each.to_json() for each in self.envelopeoptions},
            "attributes": {each.name: each.to_json() for each in self.attributes},
            "schema": schema_to_json(definition),
            "endpoints": [
                {
                    "xid": each.endpoint,
                    "envelope": each.envelope and each.envelope.to_json(),
                    "protocol": each.protocol and each.protocol.to_json(),
                }
                for each in self.endpoints
            ],
        }


def explain(definition: Definition, catalog: Catalog, declarations: Declarations) -> Explanation:
    """Trace every value of *definition*, which must be in *catalog*."""
    effective = effective_of(definition.xid, declarations)
    levels = effective.levels
    envelope = _trace_selector("envelope", levels)
    protocol = _trace_selector("protocol", levels)
    own = effective.envelope, effective.spelling
    giving_options = [level for level in levels if "envelopeoptions" not in foreign_sections(level, *own)]
    return Explanation(
        definition,
        effective.message.place,
        envelope,
        protocol,
        tuple(_trace_attributes(levels)),
        tuple(_trace_option(name, giving_options) for name in definition.envelopeoptions),
        tuple(_trace_property(each, definition) for each in iter_histories(effective)),
        tuple(_find_offering_endpoints(definition, catalog, declarations, envelope, protocol)),
    )


def schema_to_json(definition: Definition) -> dict[str, Any] | None:
    """Return format, reference and loaded document of the data schema; None if there is none.

    ``key`` is the key of the loaded document, None if it was not found or not loaded.
    """
    inline = definition.dataschema is not None
    reference = definition.dataschemauri or definition.dataschemaxid
    if not inline and reference is None:
        return None
    return {
        "format": definition.dataschemaformat,
        "inline": inline,
        "reference": reference,
        "key": definition.schemakey,
        "name": definition.schemaname,
        "pointer": definition.schemapointer,
        "resolved": definition.schemakey is not None,
    }


def _origin(xid: str, nearest: str, value: Any, place: SourceLocation | None) -> PropertyOrigin:
    return PropertyOrigin(value, "message" if xid == nearest else "base", xid, place)


def _trace_selector(name: str, levels: Sequence[EffectiveMessage]) -> TracedValue | None:
    """Trace envelope or protocol: those of messages, nearest first, then of their groups, most remote first."""
    origins: list[PropertyOrigin] = []
    for message in (level.message for level in levels):
        if value := message.attributes.get(name):
            origins.append(_origin(message.xid, levels[0].message.xid, value, message.at(name)))
    for group in (level.group for level in reversed(levels)):
        if group and (value := getattr(group, name)):
            origins.append(PropertyOrigin(value, "group", group.xid, group.place))
    known = list(dict.fromkeys(origins))
    return TracedValue(name, known[0], tuple(known[1:])) if known else None


def _trace_attributes(levels: Sequence[EffectiveMessage]) -> Iterator[TracedValue]:
    """Trace data attributes. The ways to declare a schema exclude each other, so only the nearest one is traced."""
    written = [{name for name in SCHEMA if name in level.message.attributes} for level in levels]
    nearest = next((names for names in written if names), set())
    for name in ATTRIBUTES:
        origins = [
            _origin(message.xid, levels[0].message.xid, True if name == "dataschema" else value, message.at(name))
            for message in (level.message for level in levels)
            if (value := message.attributes.get(name)) is not None  # an inline schema is shown as a remark only
        ]
        if origins and (name not in SCHEMA or name in nearest):
            yield TracedValue(name, origins[0], tuple(origins[1:]))


def _trace_option(name: str, levels: Sequence[EffectiveMessage]) -> TracedValue:
    origins = [
        _origin(message.xid, levels[0].message.xid, value, message.at("envelopeoptions") / name)
        for message in (level.message for level in levels)
        if (value := (message.attributes.get("envelopeoptions") or {}).get(name)) is not None
    ]
    return TracedValue(name, origins[0], tuple(origins[1:]))


def _trace_property(each: PropertyHistory, definition: Definition) -> TracedProperty:
    """Trace type, value and ``required`` of a property; the value is None if none is given or overridden."""
    prop, nearest, table = each.read(), definition.xid, _default_sources(each, definition)
    members, hidden = _trace_history(each, nearest)

    def traced(member: str, origin: PropertyOrigin) -> TracedValue:
        effective = replace(origin, value=getattr(prop, member))
        return TracedValue(member, effective, tuple(over for name, over in reversed(hidden) if name == member))

    def declared(member: str) -> TracedValue:
        origin = members.get(member)
        if origin is None or (prop.required and member == "required" and origin.value is False):
            origin = PropertyOrigin(None, table[member])  # what CloudEvents requires, no message can relax
        return traced(member, origin)

    value = traced("value", members.get("value") or PropertyOrigin(None, "message", nearest))
    given = value if prop.value is not None or value.overrides else None
    return TracedProperty(each.section, prop.name, declared("type"), given, declared("required"))


def _trace_history(
    each: PropertyHistory, nearest: str
) -> tuple[dict[str, PropertyOrigin], list[tuple[str, PropertyOrigin]]]:
    """Return the effective members of a property, and the overridden ones, nearest last."""
    members: dict[str, PropertyOrigin] = {}
    hidden: list[tuple[str, PropertyOrigin]] = []
    was_bare = False
    for body in each.history:
        bare = not isinstance(body.raw, dict)
        if bare or was_bare or body.replaces:
            hidden.extend(members.items())
            members = {}
        for name in ("value",) if bare else BODY_MEMBERS:
            value = body.raw if bare else body.raw.get(name)
            if value is None:
                continue
            if name in members:
                hidden.append((name, members[name]))
            members[name] = _origin(body.message.xid, nearest, value, body.place if bare else body.place / name)
        was_bare = bare
    return members, hidden


def _default_sources(each: PropertyHistory, definition: Definition) -> dict[str, Source]:
    """Return the table that supplies type and ``required`` of a property if no message declares them."""
    name = each.name
    if each.section == METADATA:
        known = definition.envelope in (CLOUDEVENTS, None)
        forced: Source = "cloudevents" if known and name in ALWAYS_REQUIRED else "default"
        return {"type": "cloudevents" if known and name in ATTRIBUTE_TYPES else "default", "required": forced}
    listed = name.startswith(NAMED_PREFIXES)
    return {
        "type": "protocol" if definition.protocol in PROTOCOL_OPTIONS and not listed else "default",
        "required": "default",
    }


def _find_offering_endpoints(
    definition: Definition,
    catalog: Catalog,
    declarations: Declarations,
    envelope: TracedValue | None,
    protocol: TracedValue | None,
) -> Iterator[OfferingEndpoint]:
    for endpoint in catalog.endpoints.values():
        if definition.xid in endpoint.candidates:
            place = declarations.endpoints[endpoint.xid].place
            yield OfferingEndpoint(
                endpoint.xid,
                envelope.origin if envelope else _endpoint_default("envelope", endpoint, place),
                protocol.origin if protocol else _endpoint_default("protocol", endpoint, place),
            )


def _endpoint_default(name: str, endpoint: Endpoint, place: SourceLocation) -> PropertyOrigin | None:
    value = getattr(endpoint, name)
    return PropertyOrigin(value, "endpoint", endpoint.xid, place) if value else None


# The output of ``xrouter catalog show`` for each kind of entity.

MASK: Final = "***"
_USERINFO: Final = re.compile(r"(?<=//)[^/?#@\s]+(?=@)")
_SECRET: Final = re.compile(r"password|secret|token|credential|api-?_?key|sas-?_?key", re.IGNORECASE)


def entity_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any] | None:
    """Return the details of a definition, endpoint, message group, schema group, schema or schema version.

    None if *xid* is none of these. ``kind`` says which; credentials in addresses and options are masked.
    """
    if xid in catalog.definitions:
        return explain(catalog.definitions[xid], catalog, declarations).to_json()
    if xid in catalog.endpoints:
        return _endpoint_to_json(xid, catalog, declarations)
    if xid in catalog.groups:
        return _group_to_json(xid, catalog, declarations)
    if xid in declarations.schemagroups:
        members = [each for each in declarations.schemas if each.startswith(f"{xid}/schemas/")]
        return {"kind": "schemagroup", "xid": xid, "schemas": members}
    schema, mark, version = xid.partition("/versions/")
    if schema in declarations.schemas:
        form = _schema_entity_to_json(schema, catalog, declarations)
        if not mark:
            return form
        versions = [each for each in form["versions"] if each["versionid"] == version]
        return {**form, "xid": xid, "versions": versions} if versions else None
    return None


def known_xids(catalog: Catalog, declarations: Declarations) -> Iterable[str]:
    """Return every xid that :func:`entity_to_json` accepts, except those of versions."""
    yield from catalog.definitions
    yield from catalog.endpoints
    yield from catalog.groups
    yield from declarations.schemagroups
    yield from declarations.schemas


def mask_secrets(value: Any, name: str = "") -> Any:
    """Mask user names and passwords in addresses, and values whose names suggest secrets."""
    if isinstance(value, str):
        return MASK if value and _SECRET.search(name) else _USERINFO.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: mask_secrets(member, str(key)) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_secrets(member, name) for member in value]
    return value


def _endpoint_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
    endpoint, place = catalog.endpoints[xid], declarations.endpoints[xid].place
    return {
        "kind": "endpoint",
        "xid": xid,
        "file": place.file,
        "pointer": place.pointer,
        "usage": list(endpoint.usage),
        "envelope": endpoint.envelope,
        "protocol": endpoint.protocol,
        "envelopeoptions": dict(endpoint.envelopeoptions),
        "uris": mask_secrets(endpoint.uris),
        "options": mask_secrets(endpoint.options),
        "messagegroups": list(endpoint.messagegroups),
        "candidates": list(endpoint.candidates),
    }


def _group_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
    group = declarations.groups[xid]
    return {
        "kind": "messagegroup",
        "xid": xid,
        "file": group.place.file,
        "pointer": group.place.pointer,
        "envelope": group.envelope,
        "protocol": group.protocol,
        "messages": list(catalog.groups[xid]),
        "endpoints": [each.xid for each in catalog.endpoints.values() if xid in each.messagegroups],
    }


def _schema_entity_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
    body, place = declarations.schemas[xid], declarations.schema_places[xid]
    versions = body.get("versions")
    listed = {str(k): v for k, v in versions.items() if isinstance(v, dict)} if isinstance(versions, dict) else {}
    default = default_version(body, listed)
    entries = {entry.key: entry for entry in SchemaRegistry(declarations).entries()}
    keys = {name: f"{xid}/versions/{name}" for name in listed} or {str(body.get("versionid") or ""): xid}
    used = {key: [each.xid for each in catalog.definitions.values() if each.schemakey == key] for key in keys.values()}
    return {
        "kind": "schema",
        "xid": xid,
        "file": place.file,
        "pointer": place.pointer,
        "versions": [
            {
                "versionid": name,
                "key": key,
                "default": default in (name, None),
                **_version_to_json(entries.get(key)),
                "loaded": key in catalog.schemas,
                "definitions": used[key],
            }
            for name, key in keys.items()
        ],
    }


def _version_to_json(entry: SchemaVersion | None) -> dict[str, Any]:
    """Return format, address and location of a schema version; embedded ones have no address."""
    if entry is None:
        return {"format": None, "embedded": False, "address": None, "file": "", "pointer": ""}
    return {
        "format": entry.format,
        "embedded": entry.document is not None,
        "address": mask_secrets(entry.address),
        "file": entry.place.file,
        "pointer": entry.place.pointer,
    }
