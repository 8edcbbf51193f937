"""Messages, groups and endpoints in the names of CloudEvents Registry 0.4/0.5: the inverse of how they are read.

Reading a form gives what it was made of (:mod:`catalog.dialects`). What 0.4/0.5 has no name for stands beside the rest
under its name of 1.0, as extension attributes do. Readers leave the options of protocols as they are written;
:func:`newer_options` and :func:`newer_constraints` give those the spelling of 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from catalog.definitions.inheritance import short_entry
from catalog.dialects.messages import flat_attributes
from catalog.findings import DeclaredEndpoint, DeclaredGroup, DeclaredMessage
from catalog.model import PROTOCOLS
from catalog.protocols.properties import VOCABULARIES, canonical_option, canonical_protocol, vocabulary_of

Refer = Callable[[str], str]
"""Writes a reference, such as ``/messagegroups/G``, in the names of 0.4/0.5."""
_SAME: Final = ("envelopeoptions", "datacontenttype")
_SCHEMAS: Final = {"dataschemaformat": "schemaformat", "dataschema": "schema"}
_MAPS: Final = frozenset({("KAFKA", "headers"), ("NATS", "headers"), ("HTTP", "query")})
"""Lists of named values that are maps in 0.4/0.5."""
_OLDER_TYPES: Final = {"any": "var"}
_NEWER_TYPES: Final = {older: newer for newer, older in _OLDER_TYPES.items()}


def definition_form(message: DeclaredMessage, envelope: str | None, refer: Refer) -> dict[str, Any]:
    """Return what a definition says, without identifiers and what only describes it.

    *envelope* is the default of its group, which 0.4/0.5 has each definition repeat.
    """
    own = message.attributes
    form = _formatted(own, None if message.base or message.borrowed else envelope)
    form.update({older: own[name] for name, older in _SCHEMAS.items() if own.get(name) is not None})
    form.update({name: own[name] for name in _SAME if own.get(name) is not None})
    uri, xid = own.get("dataschemauri"), own.get("dataschemaxid")
    if uri is not None:
        form["schemaurl"] = refer(uri)
        form.update({"dataschemaxid": xid} if xid is not None else {})
    elif xid is not None:
        form["schemaurl"] = refer(xid)
    if message.borrowed is not None:
        form["uri"] = refer(message.borrowed)
    if message.base is not None:
        form["basemessage"] = refer(message.base)
    return form


def group_form(group: DeclaredGroup) -> dict[str, Any]:
    """Return the format that a group gives its definitions; nothing when it gives none."""
    if group.envelope is not None:
        return {"format": group.envelope, **({"protocol": group.protocol} if group.protocol is not None else {})}
    return _format_of(group.protocol)


def config_form(endpoint: DeclaredEndpoint, refer: Refer) -> dict[str, Any]:
    """Return what an endpoint says, without identifiers and what only describes it.

    Of several usages 0.4/0.5 has the first.
    """
    kept = endpoint.other.get("protocoloptions", {})
    config = {
        "protocol": endpoint.protocol,
        "endpoints": list(endpoint.uris),
        "options": dict(endpoint.options),
        **kept,
    }
    form = {
        "usage": endpoint.usage[0] if endpoint.usage else None,
        "format": endpoint.envelope,
        "envelopeoptions": dict(endpoint.envelopeoptions),
        "config": {name: value for name, value in config.items() if value not in (None, [], {})},
        "definitionGroups": [refer(each) for each in endpoint.messagegroups],
    }
    return {name: value for name, value in form.items() if value}


def newer_options(options: Mapping[str, Any], protocol: str | None) -> dict[str, Any]:
    """Return options of a protocol under the names, and in the lists, of 1.0; what is unknown stays as it is."""
    vocabulary = vocabulary_of(protocol)
    form: dict[str, Any] = {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) if protocol in VOCABULARIES else None
        written = canonical or name
        if canonical in vocabulary.lists and isinstance(value, dict | list):
            form[written] = list(_entries(value))
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[written] = newer_constraints(value)
        else:
            form[written] = _body(value, _NEWER_TYPES)
    return form


def newer_constraints(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return constraints by their names, with the types of 1.0."""
    return {name: _body(body, _NEWER_TYPES) for name, body in holder.items()}


def _entries(value: Mapping[str, Any] | list[Any]) -> Iterator[Any]:
    """Give the entries of a list of named values, from a map or from a list of ``{NAME: {…}}`` too."""
    pairs = value.items() if isinstance(value, Mapping) else [short_entry(each) or ("", each) for each in value]
    for name, body in pairs:
        if not name:
            yield _body(body, _NEWER_TYPES)
        else:
            yield {"name": name, **(_body(body, _NEWER_TYPES) if isinstance(body, dict) else {"value": body})}


def _format_of(protocol: str | None) -> dict[str, Any]:
    """Write a protocol as format, which can be one that readers know; others have a name of their own."""
    if protocol is None:
        return {}
    return {"format" if canonical_protocol(protocol) in PROTOCOLS else "protocol": protocol}


def _formatted(own: Mapping[str, Any], default: str | None) -> dict[str, Any]:
    """Write envelope and protocol: one of them is the format, and what belongs to it is the metadata."""
    envelope, protocol = own.get("envelope"), own.get("protocol")
    metadata, options = own.get("envelopemetadata"), own.get("protocoloptions")
    form: dict[str, Any]
    if envelope is None and "format" in (form := _format_of(protocol)):
        form["metadata"] = _options(options or {}, canonical_protocol(str(protocol)))
        rest = {"envelopemetadata": metadata}
    else:
        known = envelope or default
        form = {"format": known} if known is not None else {}
        if envelope is not None or metadata is not None:
            form["metadata"] = {"attributes": _bodies(flat_attributes(metadata or {}))}
        rest = {"protocol": protocol, "protocoloptions": options}
    return {**form, **{name: value for name, value in rest.items() if value is not None}}


def _options(options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    vocabulary, form = vocabulary_of(protocol), {}
    for name, value in options.items():
        canonical = canonical_option(protocol, name) or name
        older = canonical.replace("_", "-") if protocol.startswith("MQTT/") else canonical
        if canonical in vocabulary.lists and isinstance(value, list):
            form[older] = _named(value, protocol, canonical)
        elif canonical in vocabulary.sections and isinstance(value, dict):
            form[older] = _bodies(value)
        else:
            form[older] = _body(value)
    return form


def _named(entries: list[Any], protocol: str, name: str) -> Any:
    """Write a list of ``{name, …}`` as 0.4/0.5 has it: a map where names are unique, or ``{NAME: {…}}`` each."""
    bodies = [
        (each["name"], _body({key: value for key, value in each.items() if key != "name"}))
        for each in entries
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    if len(bodies) < len(entries):
        return entries
    if (protocol, name) in _MAPS and len(dict(bodies)) == len(bodies):
        return dict(bodies)
    if name == "user_properties" and all(short_entry({key: body}) for key, body in bodies):
        return [{key: body} for key, body in bodies]
    return [{"name": key, **body} for key, body in bodies]


def _bodies(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _body(body) for name, body in holder.items()}


def _body(body: Any, types: Mapping[str, str] = _OLDER_TYPES) -> Any:
    kind = body.get("type") if isinstance(body, dict) else None
    return {**body, "type": types[kind]} if isinstance(kind, str) and kind in types else body
