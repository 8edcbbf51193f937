"""One message to its 1.0-rc4 form: as declared, with its base, or flattened to what is effective.

Written is what makes the same definition when it is read again. Where a dialect lets a bare scalar or an empty text
replace what is inherited, the form says so member by member, since objects of 1.0 merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from catalog.convert.names import common, last
from catalog.declared import MESSAGE_REFERENCE, Declarations, DeclaredMessage
from catalog.definitions.inheritance import overlaid
from catalog.definitions.levels import MEMBERS, Laid, Level, giving, laid, levels_of
from catalog.definitions.relations import TO, said_of, target_of
from catalog.model import Property
from catalog.protocols.properties import AMQP_SECTIONS, canonical_option

_PLAIN: Final = ("dataschemaformat", "dataschema", "dataschemauri", "dataschemaxid", "datacontenttype")
_LISTS: Final = frozenset({"headers", "query", "user_properties"})
_DROPPED: Final = frozenset({"messageid", "versionid", "version", "meta", "xref", "uri"})
_OF_XREF: Final = frozenset({"messageid", "versionid", "xid", "meta", "epoch", "createdat", "modifiedat", "ancestorid"})
"""What is said of a message whatever it is, and is the other's where it is an ``xref``."""
_OF_META: Final = frozenset({"messageid", "xid", "self", "xref", "versionid"})


def message_form(
    message: DeclaredMessage, chain: Sequence[str], declarations: Declarations, version: str
) -> dict[str, Any]:
    """Return the form of a message as declared, in its *version*.

    *chain* is its xid and the xids of its bases, nearest first.
    """
    levels = levels_of(chain, declarations)
    own = message.attributes
    form = _identity(message, version)
    _refer(form, message, chain)
    for name in ("envelope", "protocol"):
        if own.get(name) is not None:
            form[name] = own[name]
    written = [each for each in laid(levels) if each.own or _differs(each)]
    form.update(_sections(written, own, levels[0].spelling))
    form.update({name: own[name] for name in _PLAIN if own.get(name) is not None})
    return form


def flat_form(
    message: DeclaredMessage, chain: Sequence[str], declarations: Declarations, version: str
) -> dict[str, Any] | None:
    """Return the form of an effective message, without bases; None when it cannot be said without them.

    That is so when only the group of a base gives the protocol and the message has no options: such a default
    restricts and does not describe (JUDGING.md#envelope-and-protocol), which a message of another group cannot declare.
    """
    levels = levels_of(chain, declarations)
    own_group = levels[0].group
    form = _identity(message, version)
    envelope = levels[0].envelope
    if envelope is not None:
        form["envelope"] = envelope
    properties = laid(levels)
    declared = any(level.message.attributes.get("protocol") for level in levels)
    if levels[0].protocol is not None and (declared or not own_group or own_group.protocol != levels[0].protocol):
        described = any(each.section == "protocoloptions" for each in properties)
        if not declared and not described:
            return None
        form["protocol"] = levels[0].protocol
    plain = _merged(levels)
    form.update(_sections([_alone(each) for each in properties], plain, levels[0].spelling, keep=False))
    form.update({name: plain[name] for name in _PLAIN if plain.get(name) is not None})
    for level in levels[1:]:
        for name, value in said_of(level.message).items():
            form.setdefault(name, target_of(level.message, value) if name == TO else value)
    return form


def _identity(message: DeclaredMessage, version: str) -> dict[str, Any]:
    """Return identifiers, and all that says nothing about how the message looks."""
    owner = message.xid.partition("/versions/")[0] if message.hidden else message.xid
    meta = message.other.get("meta")
    kept = {name: value for name, value in meta.items() if name not in _OF_META} if isinstance(meta, dict) else {}
    return {
        "messageid": last(owner),
        "versionid": version,
        "xid": message.xid,
        **common(message.other, _DROPPED),
        **({"meta": kept} if kept else {}),
    }


def _refer(form: dict[str, Any], message: DeclaredMessage, chain: Sequence[str]) -> None:
    """Add the base, by its xid where it is in the document, else as written.

    A message that borrows another and says nothing of its own is an ``xref``; one that says more has it as base.
    """
    base = chain[1] if len(chain) > 1 else None
    here = base if base is not None and base.startswith("/") else None
    if message.borrowed is None:
        if here or message.base:
            form["basemessage"] = here or message.base
    elif base is not None and (message.attributes or _described(form) or here is None or "/versions/" in here):
        form["basemessage"] = here or message.borrowed
    elif here is None and MESSAGE_REFERENCE.search(message.borrowed) and not message.borrowed.startswith("/"):
        form["uri"] = message.borrowed  # which may lead somewhere some day; an xref is an xid
    else:
        form["meta"] = {**form.get("meta", {}), "xref": here or message.borrowed}
        for name in _OF_XREF - {"messageid", "xid", "meta"}:
            form.pop(name, None)


def _described(form: Mapping[str, Any]) -> bool:
    """Tell whether a message has a name, labels or the like, which nothing can have that is another by ``xref``."""
    return bool(form.keys() - _OF_XREF)


def _differs(each: Laid) -> bool:
    """Tell a property that nobody lays over and that still is another here, as with another default type."""
    return each.inherited is not None and each.inherited != each.property


def _alone(each: Laid) -> Laid:
    """Return the property as if the message itself said all of it."""
    said = {name: word.value for name, word in each.members.items()}
    body = {**(each.body if isinstance(each.body, dict) else {}), **said}
    return replace(each, hidden=(), own=True, body=body, inherited=None)


def _sections(
    properties: Sequence[Laid], plain: Mapping[str, Any], spelling: str | None, *, keep: bool = True
) -> dict[str, Any]:
    """Return envelope metadata and options, and the protocol's options; *keep* also what no protocol knows."""
    metadata: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for each in properties:
        body, name = _body(each), each.property.name
        section, _, inner = name.partition(".")
        if each.section == "envelopemetadata":
            metadata[name] = body
        elif inner and section in _LISTS:
            options.setdefault(section, []).append({"name": inner, **body})
        elif inner and section in AMQP_SECTIONS:
            options.setdefault(section, {})[inner] = body
        else:
            options[name] = body
    if keep:
        options.update(_unknown(plain.get("protocoloptions"), spelling, options))
    sections = {
        "envelopemetadata": metadata,
        "envelopeoptions": plain.get("envelopeoptions"),
        "protocoloptions": options,
    }
    return {name: section for name, section in sections.items() if section}


def _unknown(given: Any, spelling: str | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that mean nothing to the protocol, as written; older MQTT ones stand below ``properties``."""
    unknown: dict[str, Any] = {}
    for name, value in given.items() if isinstance(given, dict) else ():
        if value is None or name in known or canonical_option(spelling, name) is not None:
            continue
        if name == "properties" and isinstance(value, dict) and (spelling or "").startswith("MQTT/"):
            unknown.update(_unknown(value, spelling, known))
        else:
            unknown[name] = value
    return unknown


def _body(each: Laid) -> dict[str, Any]:
    """Return ``{type, value, required, …}`` such that, laid over what is inherited, it makes the property."""
    raw = each.body if isinstance(each.body, dict) else {}
    prop, base = each.property, each.inherited
    body: dict[str, Any] = {}
    unsaid = each.section == "envelopemetadata" and prop.type != "string"
    if raw.get("type") is not None or ((prop.type, prop.wire) != (base.type, base.wire) if base else unsaid):
        body["type"] = prop.wire or prop.type
    _add_value(body, prop, base, said="value" in raw or not isinstance(each.body, dict | None))
    if base is None:
        if prop.required and not (each.section == "envelopemetadata" and "required" not in each.members):
            body["required"] = True  # what CloudEvents insists on and nobody says stays unsaid
    elif prop.required != base.required or raw.get("required") is not None:
        body["required"] = prop.required
    extra = {name: value for name, value in raw.items() if name not in (*MEMBERS, "name") and value is not None}
    return {**body, **extra}


def _add_value(body: dict[str, Any], prop: Property, base: Property | None, *, said: bool) -> None:
    """Add the value; an empty text takes an inherited one away."""
    inherited = base.value if base else None
    if (type(prop.value), prop.value) != (type(inherited), inherited):
        body["value"] = "" if prop.value is None else prop.value
    elif prop.value is not None and said:
        body["value"] = prop.value


def _merged(levels: Sequence[Level]) -> dict[str, Any]:
    """Return the attributes about data and the envelope's options as all levels make them."""
    merged: dict[str, Any] = {}
    for names, those in ((_PLAIN, levels), (("envelopeoptions",), giving("envelopeoptions", levels))):
        for level in reversed(those):
            given = level.message.attributes
            merged = overlaid(merged, {name: given[name] for name in names if name in given})
    return merged
