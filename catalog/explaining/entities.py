"""What ``xrouter catalog show`` shows of anything that has an xid; one JSON form for each kind of thing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from catalog.declared import Declarations
from catalog.dialects.versions import default_version
from catalog.explaining.provenance import explain
from catalog.model import Catalog
from catalog.schemas.registry import Entry, SchemaRegistry

MASK: Final = "***"
_USERINFO: Final = re.compile(r"(?<=//)[^/?#@\s]+(?=@)")
_SECRET: Final = re.compile(r"password|secret|token|credential|api-?_?key|sas-?_?key", re.IGNORECASE)


def entity_to_json(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any] | None:
    """Return what is known of a definition, endpoint, message group, schema group, schema or version of one.

    None when *xid* is none of these. ``kind`` tells which; credentials in addresses and options are masked.
    """
    if xid in catalog.definitions:
        return explain(catalog.definitions[xid], catalog, declarations).to_json()
    if xid in catalog.endpoints:
        return _endpoint(xid, catalog, declarations)
    if xid in catalog.groups:
        return _group(xid, catalog, declarations)
    if xid in declarations.schemagroups:
        members = [each for each in declarations.schemas if each.startswith(f"{xid}/schemas/")]
        return {"kind": "schemagroup", "xid": xid, "schemas": members}
    schema, mark, version = xid.partition("/versions/")
    if schema in declarations.schemas:
        form = _schema(schema, catalog, declarations)
        if not mark:
            return form
        versions = [each for each in form["versions"] if each["versionid"] == version]
        return {**form, "xid": xid, "versions": versions} if versions else None
    return None


def known_xids(catalog: Catalog, declarations: Declarations) -> Iterable[str]:
    """Give every xid that :func:`entity_to_json` knows, but those of versions."""
    yield from catalog.definitions
    yield from catalog.endpoints
    yield from catalog.groups
    yield from declarations.schemagroups
    yield from declarations.schemas


def masked(value: Any, name: str = "") -> Any:
    """Return *value* without user names and passwords in addresses, and without what is named like a secret."""
    if isinstance(value, str):
        return MASK if value and _SECRET.search(name) else _USERINFO.sub(MASK, value)
    if isinstance(value, Mapping):
        return {key: masked(member, str(key)) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(member, name) for member in value]
    return value


def _endpoint(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
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
        "uris": masked(endpoint.uris),
        "options": masked(endpoint.options),
        "messagegroups": list(endpoint.messagegroups),
        "candidates": list(endpoint.candidates),
    }


def _group(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
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


def _schema(xid: str, catalog: Catalog, declarations: Declarations) -> dict[str, Any]:
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
                **_document(entries.get(key)),
                "loaded": key in catalog.schemas,
                "definitions": used[key],
            }
            for name, key in keys.items()
        ],
    }


def _document(entry: Entry | None) -> dict[str, Any]:
    """Return format, address and place of a version; it is embedded when it has neither address nor nothing."""
    if entry is None:
        return {"format": None, "embedded": False, "address": None, "file": "", "pointer": ""}
    return {
        "format": entry.format,
        "embedded": entry.document is not None,
        "address": masked(entry.address),
        "file": entry.place.file,
        "pointer": entry.place.pointer,
    }
