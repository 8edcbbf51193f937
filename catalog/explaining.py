"""Trace every value of a definition to its origin, and format entities, for ``xrouter catalog show``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from catalog.schemas.library import SchemaRegistry, SchemaVersion, versions_of

# The origin of each value: the definition, a base, its group, an endpoint, or a table of a specification.
#
# The JSON forms are a stable output of ``xrouter catalog show``. Locations are a file and a JSON pointer, both empty
# if no document declares the value.

Source = Literal["message", "base", "group", "endpoint", "cloudevents", "protocol", "default"]
"""``cloudevents`` and ``protocol`` are tables of the specifications; ``default`` applies if they have no entry."""
Form = dict[str, Any]
"""The JSON form of an origin (``{value, source, xid, file, pointer}``), of a value with ``overrides``, or of a part."""
ATTRIBUTES: Final = ("datacontenttype", "dataschemaformat", "dataschemauri", "dataschemaxid", "dataschema")
SCHEMA: Final = ("dataschema", "dataschemaxid", "dataschemauri")
_NOWHERE: Final = SourceLocation("")


def origin_to_json(value: Any, source: Source, xid: str = "", place: SourceLocation = _NOWHERE) -> Form:
    """Return a value and its origin. *xid* is the message, group or endpoint, empty for a table."""
    return {"value": value, "source": source, "xid": xid, "file": place.file, "pointer": place.pointer}


def explain(definition: Definition, catalog: Catalog, declarations: Declarations) -> Form:
    """Return the output of ``catalog show --format json`` for *definition*, which must be in *catalog*.

    Every value has its origin and ``overrides``, nearest first.
    """
    effective = effective_of(definition.xid, declarations)
    levels, place = effective.levels, effective.message.place
    selectors = {name: _trace_selector(name, levels) for name in ("envelope", "protocol")}
    own = effective.envelope, effective.spelling
    giving_options = [level for level in levels if "envelopeoptions" not in foreign_sections(level, *own)]
    protocol = selectors["protocol"]
    return {
        "kind": "message",
        "xid": definition.xid,
        "file": place.file,
        "pointer": place.pointer,
        "group": definition.group,
        "base": list(definition.base),
        "envelope": selectors["envelope"],
        "protocol": protocol and {**protocol, "declared": definition.protocol_declared},
        "properties": [_trace_property(each, definition) for each in iter_histories(effective)],
        "envelopeoptions": {name: _trace_option(name, giving_options) for name in definition.envelopeoptions},
        "attributes": dict(_trace_attributes(levels)),
        "schema": schema_to_json(definition),
        "endpoints": [
            {
                "xid": each.xid,
                **{
                    name: _without_overrides(traced) if traced else _endpoint_default(name, each, declarations)
                    for name, traced in selectors.items()
                },
            }
            for each in catalog.endpoints.values()
            if definition.xid in each.candidates
        ],
    }


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


def _origin(xid: str, nearest: str, value: Any, place: SourceLocation) -> Form:
    return origin_to_json(value, "message" if xid == nearest else "base", xid, place)


def _traced(origins: Sequence[Form]) -> Form:
    """Return the first of several origins, with the others as its overrides."""
    return {**origins[0], "overrides": list(origins[1:])}


def _without_overrides(traced: Form) -> Form:
    return {name: value for name, value in traced.items() if name != "overrides"}


def _trace_selector(name: str, levels: Sequence[EffectiveMessage]) -> Form | None:
    """Trace envelope or protocol: those of messages, nearest first, then of their groups, most remote first."""
    origins: list[Form] = []
    for message in (level.message for level in levels):
        if value := message.attributes.get(name):
            origins.append(_origin(message.xid, levels[0].message.xid, value, message.at(name)))
    for group in (level.group for level in reversed(levels)):
        if group and (value := getattr(group, name)):
            origins.append(origin_to_json(value, "group", group.xid, group.place))
    known = [each for at, each in enumerate(origins) if each not in origins[:at]]
    return _traced(known) if known else None


def _trace_attributes(levels: Sequence[EffectiveMessage]) -> Iterator[tuple[str, Form]]:
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
            yield name, _traced(origins)


def _trace_option(name: str, levels: Sequence[EffectiveMessage]) -> Form:
    return _traced(
        [
            _origin(message.xid, levels[0].message.xid, value, message.at("envelopeoptions") / name)
            for message in (level.message for level in levels)
            if (value := (message.attributes.get("envelopeoptions") or {}).get(name)) is not None
        ]
    )


def _trace_property(each: PropertyHistory, definition: Definition) -> Form:
    """Trace type, value and ``required`` of a property; the value is None if none is given or overridden."""
    prop, nearest = each.read(), definition.xid
    members, hidden = _trace_history(each, nearest)
    origins = {"value": origin_to_json(None, "message", nearest), **_default_sources(each, definition)} | members
    if prop.required and origins["required"]["value"] is False:
        origins["required"] = _default_sources(each, definition)["required"]  # no message can relax it
    traced = {
        name: _traced(
            [{**origins[name], "value": getattr(prop, name)}, *(over for of, over in reversed(hidden) if of == name)]
        )
        for name in ("type", "value", "required")
    }
    if prop.value is None and not traced["value"]["overrides"]:
        del traced["value"]
    values = {"type": prop.type, "value": prop.value, "required": prop.required}
    return {"section": each.section, "name": prop.name, **values, "from": traced}


def _trace_history(each: PropertyHistory, nearest: str) -> tuple[dict[str, Form], list[tuple[str, Form]]]:
    """Return the effective members of a property, and the overridden ones, nearest last."""
    members: dict[str, Form] = {}
    hidden: list[tuple[str, Form]] = []
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


def _default_sources(each: PropertyHistory, definition: Definition) -> dict[str, Form]:
    """Return the table that supplies type and ``required`` of a property if no message declares them."""
    kind: Source = "default"
    forced: Source = "default"
    if each.section == METADATA and definition.envelope in (CLOUDEVENTS, None):
        kind = "cloudevents" if each.name in ATTRIBUTE_TYPES else "default"
        forced = "cloudevents" if each.name in ALWAYS_REQUIRED else "default"
    elif each.section != METADATA and definition.protocol in PROTOCOL_OPTIONS:
        kind = "default" if each.name.startswith(NAMED_PREFIXES) else "protocol"
    return {"type": origin_to_json(None, kind), "required": origin_to_json(None, forced)}


def _endpoint_default(name: str, endpoint: Endpoint, declarations: Declarations) -> Form | None:
    value = getattr(endpoint, name)
    return (
        origin_to_json(value, "endpoint", endpoint.xid, declarations.endpoints[endpoint.xid].place) if value else None
    )


# The output of ``xrouter catalog show`` for each kind of entity.

MASK: Final = "***"
_USERINFO: Final = re.compile(r"(?<=//)[^/?#@\s]+(?=@)")
_SECRET: Final = re.compile(r"password|secret|token|credential|api-?_?key|sas-?_?key", re.IGNORECASE)


def entity_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any] | None:
    """Return the details of a definition, endpoint, message group, schema group, schema or schema version.

    None if *xid* is none of these. ``kind`` says which; credentials in addresses and options are masked.
    """
    if xid in catalog.definitions:
        return explain(catalog.definitions[xid], catalog, declarations)
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
    listed = versions_of(body)
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
