"""Trace every value of a definition to its origin, and format entities, for ``xrouter catalog show``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from catalog.definitions.constraints import (
    InheritanceLevel,
    LevelValue,
    MergedProperty,
    applicable_levels,
    levels_of,
    merge_properties,
)
from catalog.dialects.reading import default_version
from catalog.findings import Declarations, SourceLocation
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
    levels = levels_of((definition.xid, *definition.base), declarations)
    envelope = _trace_selector("envelope", levels)
    protocol = _trace_selector("protocol", levels)
    giving_options = applicable_levels("envelopeoptions", levels)
    options = {name: None for level in giving_options for name in level.message.attributes.get("envelopeoptions") or {}}
    return Explanation(
        definition,
        levels[0].message.place,
        envelope,
        protocol,
        tuple(_trace_attributes(levels)),
        tuple(filter(None, (_trace_option(name, giving_options) for name in options))),
        tuple(_trace_property(each, definition, levels[0].xid) for each in merge_properties(levels)),
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


def _level_origin(level: InheritanceLevel, nearest: str, value: Any, place: SourceLocation | None) -> PropertyOrigin:
    return PropertyOrigin(value, "message" if level.xid == nearest else "base", level.xid, place)


def _trace_selector(name: str, levels: Sequence[InheritanceLevel]) -> TracedValue | None:
    """Trace envelope or protocol: those of messages, nearest first, then of their groups, most remote first."""
    origins: list[PropertyOrigin] = []
    for level in levels:
        value = level.message.attributes.get(name)
        if value:
            origins.append(_level_origin(level, levels[0].xid, value, level.message.at(name)))
    for level in reversed(levels):
        value = getattr(level.group, name, None)
        if value and level.group:
            origins.append(PropertyOrigin(value, "group", level.group.xid, level.group.place))
    known = list(dict.fromkeys(origins))
    return TracedValue(name, known[0], tuple(known[1:])) if known else None


def _trace_attributes(levels: Sequence[InheritanceLevel]) -> Iterator[TracedValue]:
    """Trace data attributes. The ways to declare a schema exclude each other, so only the nearest one is traced."""
    written = [{name for name in SCHEMA if name in level.message.attributes} for level in levels]
    nearest = next((names for names in written if names), set())
    for name in ATTRIBUTES:
        origins = [
            _level_origin(level, levels[0].xid, _display(name, level.message.attributes[name]), level.message.at(name))
            for level in levels
            if level.message.attributes.get(name) is not None
        ]
        if origins and (name not in SCHEMA or name in nearest):
            yield TracedValue(name, origins[0], tuple(origins[1:]))


def _display(name: str, value: Any) -> Any:
    """Return the value to show; an inline schema is shown as a remark only."""
    return True if name == "dataschema" else value


def _trace_option(name: str, levels: Sequence[InheritanceLevel]) -> TracedValue | None:
    origins = []
    for level in levels:
        given = level.message.attributes.get("envelopeoptions") or {}
        if given.get(name) is not None:
            place = level.message.at("envelopeoptions") / name
            origins.append(_level_origin(level, levels[0].xid, given[name], place))
    return TracedValue(name, origins[0], tuple(origins[1:])) if origins else None


def _trace_property(each: MergedProperty, definition: Definition, nearest: str) -> TracedProperty:
    table = _default_sources(each, definition)
    kind, required = _trace_member(each, "type", nearest, table), _trace_member(each, "required", nearest, table)
    return TracedProperty(each.section, each.property.name, kind, _trace_value(each, nearest), required)


def _trace_member(
    each: MergedProperty, member: Literal["type", "required"], nearest: str, table: Mapping[str, Source]
) -> TracedValue:
    """Trace type or ``required``. If CloudEvents requires the attribute, a declared False is not the origin."""
    effective = getattr(each.property, member)
    said = each.members.get(member)
    if said is None or (effective is True and said.value is False):
        return TracedValue(member, PropertyOrigin(effective, table[member]), _overridden(each, member, nearest))
    return TracedValue(member, replace(_origin(said, nearest), value=effective), _overridden(each, member, nearest))


def _trace_value(each: MergedProperty, nearest: str) -> TracedValue | None:
    """Trace the value; None if there is no value and none is overridden."""
    said, over = each.members.get("value"), _overridden(each, "value", nearest)
    if each.property.value is None and not over:
        return None
    origin = _origin(said, nearest) if said is not None else PropertyOrigin(None, "message", nearest)
    return TracedValue("value", replace(origin, value=each.property.value), over)


def _overridden(each: MergedProperty, member: str, nearest: str) -> tuple[PropertyOrigin, ...]:
    words = (word for word in reversed(each.hidden) if word.member == member and word.value is not None)
    return tuple(_origin(word, nearest) for word in words)


def _origin(said: LevelValue, nearest: str) -> PropertyOrigin:
    return _level_origin(said.level, nearest, said.value, said.place)


def _default_sources(each: MergedProperty, definition: Definition) -> dict[str, Source]:
    """Return the table that supplies type and ``required`` of a property if no level declares them."""
    name = each.property.name
    if each.section == "envelopemetadata":
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
