"""Relations of definitions: which other one a message answers, and by which property (CNCF Message Catalog 0.1).

``relatedto``, ``relatedvia`` and ``relation`` are read in documents of every dialect, since 1.0 has no names for them
and keeps them as extensions. Derived definitions have those of their bases.

What ``relatedvia`` may name, and what that equals in the related message, section 3 says for each format: an attribute
of a CloudEvent equals the other's ``id``; of AMQP the correlation id or an application property equals the other's
message id, and the group id its group id; of MQTT 5 the correlation data or a user property equals the other's
correlation data. Other protocols have no such rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from catalog.declared import Declarations, DeclaredMessage
from catalog.model import CLOUDEVENTS, Definition, Relation
from catalog.protocols.properties import ATTRIBUTE_TYPES, canonical_member, canonical_option, squash

TO: Final = "relatedto"
VIA: Final = "relatedvia"
KIND: Final = "relation"
_NAMES: Final = (TO, VIA, KIND)
_IDENTITIES: Final = {"correlation-id": "message-id", "group-id": "group-id"}
"""Properties of AMQP by which messages are related, and what they equal in the related message."""
_CORRELATION: Final = "correlation_data"


def with_relations(definitions: Mapping[str, Definition], declarations: Declarations) -> dict[str, Definition]:
    """Return the definitions with their relations; one to a definition that cannot be used is none."""
    related = {xid: relation_of(each, definitions, declarations) for xid, each in definitions.items()}
    return {
        xid: each if (relation := related[xid]) is None else replace(each, relation=relation)
        for xid, each in definitions.items()
    }


def relation_of(
    definition: Definition, definitions: Mapping[str, Definition], declarations: Declarations
) -> Relation | None:
    """Return how a definition is related to another, by its own words and those of its bases."""
    said: dict[str, str] = {}
    target = ""
    for xid in (definition.xid, *definition.base):
        message = declarations.messages[xid]
        for name, value in said_of(message).items():
            if name == TO and TO not in said:
                target = target_of(message, value)
            said.setdefault(name, value)
    if target not in definitions:
        return None
    via, of = keys_of(said.get(VIA, ""), definition)
    return Relation(target, said.get(KIND, ""), via, of)


def target_of(message: DeclaredMessage, related: str) -> str:
    """Return the xid of what a message is related to: an id of its own group, or an xid."""
    return related if related.startswith("/") else f"{message.group}/messages/{related}"


def keys_of(via: str, definition: Definition) -> tuple[str, str]:
    """Return the keys of the property that *via* names and of the one it equals; empty when it names none.

    Keys are those of :mod:`catalog.definitions.constraints`.
    """
    name = via.removeprefix("attributes.")
    attributes = {*ATTRIBUTE_TYPES, *(prop.name for prop in definition.envelopemetadata)}
    if definition.envelope == CLOUDEVENTS and name in attributes:
        return f"e.{name}", "e.id"
    section, _, member = via.partition(".")
    options = {prop.name for prop in definition.protocoloptions}
    if definition.protocol == "AMQP/1.0":
        identity = canonical_member(dict.fromkeys(_IDENTITIES, "string"), member)
        if squash(section) == "properties" and identity is not None:
            return f"p.properties.{identity}", f"p.properties.{_IDENTITIES[identity]}"
        if squash(section) == "applicationproperties" and f"application-properties.{member}" in options:
            return f"p.application-properties.{member}", "p.properties.message-id"
    if definition.protocol == "MQTT/5.0":
        if section in ("publish", via) and canonical_option("MQTT/5.0", member or section) == _CORRELATION:
            return f"p.{_CORRELATION}", f"p.{_CORRELATION}"
        if squash(section) in ("userproperty", "userproperties") and f"user_properties.{member}" in options:
            return f"p.user_properties.{member}", f"p.{_CORRELATION}"
    return "", ""


def said_of(message: DeclaredMessage) -> dict[str, str]:
    """Return what a message itself says of its relation, by name."""
    return {name: text for name in _NAMES if isinstance(text := message.other.get(name), str) and text}
