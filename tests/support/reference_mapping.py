"""JUDGING.md#mapping for the plain matcher: a native record becomes a CloudEvent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final
from unicodedata import category
from urllib.parse import urlsplit

from bindings.envelope import Envelope
from bindings.parts import Part
from bindings.protocols import Binding
from catalog.model import Definition, Property
from catalog.record import Record
from catalog.values import is_any_timestamp, is_timestamp, is_valid, percent_encode, text_of

POSITION: Final = "(position)"
"""Stands for an ``id`` that the record's place in its source gives; sources number as they like."""
TEMPLATED: Final = {"string", "symbol", "uri", "urireference", "uritemplate", "timestamp"}
BRACES: Final = re.compile(r"\{([A-Za-z0-9_.\-]+)\}", re.ASCII)
CORE: Final = {
    **dict.fromkeys(("id", "type", "subject", "datacontenttype", "specversion"), "string"),
    "source": "urireference",
    "dataschema": "uri",
    "time": "timestamp",
}
"""The attributes that CloudEvents itself names, which must not be empty, and their types."""
FORMATS: Final = {
    "jsonschema": "application/json",
    "jsonstructure": "application/json",
    "avro": "application/vnd.apache.avro",
    "protobuf": "application/protobuf",
    "xmlschema": "application/xml",
    "proto": "application/protobuf",
    "xsd": "application/xml",
}


def is_template(prop: Property) -> bool:
    """Whether the value has placeholders and is of a type that takes them."""
    return prop.type in TEMPLATED and BRACES.search(text_of(prop.value)) is not None


def mapped(
    definition: Definition, context: Mapping[str, str], left: Mapping[str, str | None], *, enveloped: bool
) -> dict[str, str] | None:
    """Section 6 for a native record; None when it is unmappable."""
    made = {"specversion": "1.0"}
    types: dict[str, str] = {}
    for prop in definition.envelopemetadata if enveloped else ():
        if prop.name == "dataschema":
            prop = replace(prop, value=definition.schemauri)
        if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
            if prop.name != "time" and (prop.required or prop.name in ("id", "source", "type")):
                if left.get(prop.name) is None:
                    return None
            continue
        if not is_template(prop):
            made[prop.name], types[prop.name] = text_of(prop.value), prop.type
        elif all(name in context for name in BRACES.findall(text_of(prop.value))):
            text = expanded(text_of(prop.value), context, encode=prop.type == "uritemplate")
            made[prop.name], types[prop.name] = text, prop.type
        elif prop.name not in ("id", "source", "time"):
            return None
    for name, value in left.items():
        if value is not None and name not in made:
            made[name], types[name] = value, "string"
    return made if all(may_leave(name, types.get(name, "string"), text) for name, text in made.items()) else None


def may_leave(name: str, declared: str, text: str) -> bool:
    """Whether CloudEvents 1.0.2 lets an attribute be called and be that."""
    if not re.fullmatch("[a-z0-9]+", name) or name == "data":
        return False
    if not text and name in CORE:
        return False
    if any(category(each) == "Cc" or ord(each) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(each) <= 0xFDEF for each in text):
        return False
    if name == "specversion" and text != "1.0":
        return False
    if name == "dataschema" and not urlsplit(text).scheme:
        return False
    return all(is_valid(each, text, bits32=True) for each in (declared, CORE.get(name, "string")))


def expanded(template: str, context: Mapping[str, str], *, encode: bool) -> str:
    """A template with its placeholders replaced."""
    return BRACES.sub(lambda name: percent_encode(context[name[1]]) if encode else context[name[1]], template)


def left_over(
    definition: Definition, source: str, record: Record, binding: Binding, parts: Sequence[Part], envelope: Envelope
) -> dict[str, str | None]:
    """What an attribute is when the definition does not say; None for a default that this record does not give."""
    texts = {part.key: part.text for part in reversed(parts)}
    identity = texts.get("properties.message-id") if binding.protocol == "AMQP/1.0" else None
    identity = identity if identity and may_leave("id", "string", identity) else None
    if "stream" in texts and "sequence" in texts:
        identity = identity or f"{texts['stream']}-{texts['sequence']}"
    time = record.time
    if binding.protocol == "KAFKA":
        identity = "-".join(str(record.native.get(name) or empty) for name, empty in _PLACE)
        stamp = record.native.get("timestamp")
        time = time if stamp is None or not 0 <= stamp < 253_402_300_800_000 else moment(stamp)
    elif binding.protocol == "AMQP/1.0":
        created = texts.get("properties.creation-time")
        time = created if created and is_timestamp(created) else time
    inferred = FORMATS.get((definition.dataschemaformat or "").partition("/")[0].lower())
    key = texts.get({"KAFKA": "key", "AMQP/1.0": "message-annotations.x-opt-partition-key"}.get(binding.protocol, ""))
    key = key if key and may_leave("partitionkey", "string", key) else None
    time = time if time and is_timestamp(time) else None
    content = envelope.content_type
    content = content if content and may_leave("datacontenttype", "string", content) else None
    left: dict[str, str | None] = {"id": identity or POSITION, "source": source, "time": time, "partitionkey": key}
    left["type"] = definition.xid.rsplit("/", 1)[-1]
    left["datacontenttype"] = content or definition.datacontenttype or inferred
    declared = {prop.name for prop in definition.envelopemetadata}
    schema = None if "dataschema" in declared else definition.schemauri
    return left | ({"dataschema": schema} if schema else {})


_PLACE: Final = (("topic", ""), ("partition", 0), ("offset", 0))


def moment(milliseconds: int) -> str:
    """Kafka's timestamp as RFC 3339 text."""
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
