"""Section 6 of semantics.md for the plain matcher: a native record becomes a CloudEvent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from bindings.envelope import Envelope
from bindings.parts import Part
from bindings.protocols import Binding
from catalog.model import Definition, Property
from catalog.record import Record
from catalog.values import is_any_timestamp, percent_encode, text_of

POSITION: Final = "(position)"
"""Stands for an ``id`` that the record's place in its source gives; sources number as they like."""
TEMPLATED: Final = {"any", "string", "symbol", "uri", "urireference", "uritemplate", "timestamp"}
BRACES: Final = re.compile(r"\{([A-Za-z0-9_.\-]+)\}", re.ASCII)
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
    for prop in definition.envelopemetadata if enveloped else ():
        if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
            if (prop.required or prop.name in ("id", "source", "type")) and prop.name not in left:
                return None
        elif not is_template(prop):
            made[prop.name] = text_of(prop.value)
        elif all(name in context for name in BRACES.findall(text_of(prop.value))):
            made[prop.name] = expanded(text_of(prop.value), context, encode=prop.type == "uritemplate")
        elif prop.name not in ("id", "source", "time"):
            return None
    for name, value in left.items():
        if value is not None:
            made.setdefault(name, value)
    return made


def expanded(template: str, context: Mapping[str, str], *, encode: bool) -> str:
    """A template with its placeholders replaced."""
    return BRACES.sub(lambda name: percent_encode(context[name[1]]) if encode else context[name[1]], template)


def left_over(
    definition: Definition, source: str, record: Record, binding: Binding, parts: Sequence[Part], envelope: Envelope
) -> dict[str, str | None]:
    """What an attribute is when the definition does not say; None for a default that this record does not give."""
    texts = {part.key: part.text for part in reversed(parts)}
    identity = texts.get("properties.message-id") if binding.protocol == "AMQP/1.0" else None
    if "stream" in texts and "sequence" in texts:
        identity = identity or f"{texts['stream']}-{texts['sequence']}"
    time = record.time
    if binding.protocol == "KAFKA":
        identity = "-".join(str(record.native.get(name) or empty) for name, empty in _PLACE)
        stamp = record.native.get("timestamp")
        time = time if stamp is None or not 0 <= stamp < 253_402_300_800_000 else moment(stamp)
    elif binding.protocol == "AMQP/1.0":
        time = texts.get("properties.creation-time") or time
    inferred = FORMATS.get((definition.dataschemaformat or "").partition("/")[0].lower())
    key = texts.get("key") if binding.protocol == "KAFKA" else None
    left: dict[str, str | None] = {"id": identity or POSITION, "source": source, "time": time, "partitionkey": key}
    left["type"] = definition.xid.rsplit("/", 1)[-1]
    left["datacontenttype"] = envelope.content_type or definition.datacontenttype or inferred
    schema = definition.dataschemauri or definition.dataschemaxid
    return left | ({"dataschema": schema} if schema else {})


_PLACE: Final = (("topic", ""), ("partition", 0), ("offset", 0))


def moment(milliseconds: int) -> str:
    """Kafka's timestamp as RFC 3339 text."""
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
