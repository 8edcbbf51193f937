"""Seeded catalogs and records for comparing matchers: records that conform to a definition, then spoilt in one place.

Alphabets are small on purpose: templates must overlap, literals collide and placeholders repeat by chance.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from random import Random
from typing import Any, Final, get_args

from catalog.model import CLOUDEVENTS, PROTOCOLS, Catalog, Definition, Endpoint, Property, PropertyType
from catalog.templates import Placeholder, parse_template
from catalog.values import is_any_timestamp, to_text

GROUP: Final = "/messagegroups/g"
ENDPOINT: Final = "/endpoints/e"
VALUES: Final = ("a", "b", "ab", "7", "a%20b", "x-y", "ä", "%ff", "a.b")
TEXTS: Final = ("a", "", "A", "a/b", "7", "7.0", "x y", "%", "ä\n", "true", "2026-01-02T03:04:05Z", "a/b/c", "b-a")
PREFIXES: Final = {
    "KAFKA": ("headers", "ce_"),
    "HTTP": ("headers", "ce-"),
    "NATS": ("headers", "ce-"),
    "MQTT/5.0": ("user_properties", ""),
    "AMQP/1.0": ("application-properties", "cloudEvents:"),
}
CONTENT_TYPE: Final = {"MQTT/5.0": "content_type", "MQTT/3.1.1": "content_type", "AMQP/1.0": "properties.content-type"}
OPTIONS: Final = {
    "KAFKA": ("topic", "key", "key_base64", "headers.h1", "headers.h2", "headers.content-type"),
    "HTTP": ("path", "method", "headers.h1", "headers.h2", "query.q"),
    "AMQP/1.0": ("properties.subject", "properties.to", "application-properties.h1", "header.priority"),
    "MQTT/5.0": ("topic_name", "user_properties.h1", "user_properties.h2", "response_topic", "qos"),
    "MQTT/3.1.1": ("topic_name", "qos", "retain"),
    "NATS": ("subject", "reply-to", "headers.h1", "headers.h2"),
}
LITERALS: Final = ("a", "b", "7", "7.0", "a/b", "true", "2026-01-02T03:04:05Z", "2026-01-02T04:04:05.0+01:00")
TEMPLATES: Final = (
    *("{x}", "{y}", "{x}/{y}", "a/{x}", "{x}/b", "{x}/{x}", "a/{x}/{y}", "{x}-{y}", "{x}.{y}", "a-{x}", "{x}b"),
    *("{x}{y}", "/{x}", "{x}/", "{x}//{y}", "a.{x}", "{x}-{x}", "{not a name}", "{x}/{y}/{x}"),
)
LITERAL_TYPES: Final[tuple[PropertyType, ...]] = (
    *("string", "string", "uritemplate", "number", "integer", "boolean", "timestamp", "any"),
)
TEMPLATE_TYPES: Final[tuple[PropertyType, ...]] = (
    *("string", "uritemplate", "uritemplate", "urireference", "any", "binary", "timestamp"),
)
CONTENTS: Final = ("application/json", "text/plain", "application/json; charset=utf-8")


def random_property(rng: Random, name: str) -> Property:
    """One constraint, of any kind and type."""
    form = rng.random()
    if form < 0.3:
        return Property(name, rng.choice(LITERAL_TYPES), rng.choice(LITERALS), rng.random() < 0.3)
    if form < 0.75:
        return Property(name, rng.choice(TEMPLATE_TYPES), rng.choice(TEMPLATES), rng.random() < 0.3)
    if form < 0.8:
        return Property(name, "timestamp", "0000-01-01T00:00:00Z")
    return Property(name, rng.choice(get_args(PropertyType)), None, rng.random() < 0.5)


def random_definition(rng: Random, number: int, known: list[Definition]) -> Definition:
    """A definition; one in five derives from an earlier one and stays close to it."""
    xid = f"{GROUP}/messages/m{number:03}"
    base = rng.choice(known) if known and rng.random() < 0.2 else None
    protocol = base.protocol if base else rng.choice((None, *PROTOCOLS))
    names = rng.sample(("type", "source", "subject", "ext", "time", "datacontenttype", "id"), rng.randint(0, 3))
    attributes = base.envelopemetadata if base else tuple(random_property(rng, name) for name in names)
    wanted = rng.choices(OPTIONS[protocol], k=rng.randint(0, 3)) if protocol else []
    options = base.protocoloptions if base else tuple(random_property(rng, name) for name in wanted)
    if base and rng.random() < 0.5:
        attributes = (*(p for p in attributes if p.name != "subject"), random_property(rng, "subject"))
    return Definition(
        xid=xid,
        group=GROUP,
        envelope=rng.choice((CLOUDEVENTS, CLOUDEVENTS, CLOUDEVENTS, None, "Other/1.0" if rng.random() < 0.2 else None)),
        protocol=protocol,
        protocol_declared=rng.random() < 0.8,
        envelopemetadata=attributes,
        protocoloptions=options,
        datacontenttype=rng.choice((None, None, *CONTENTS)),
        dataschemaformat=rng.choice((None, "Avro/1.11", "JsonSchema/draft-07")),
        dataschemauri=rng.choice((None, "http://schemas/s")),
        base=(base.xid, *base.base) if base else (),
    )


SCHEMAS: Final[dict[str, Any]] = {
    name: {"format": "JsonSchema/draft-07", "document": document}
    for name, document in {
        "object": {"type": "object"},
        "a": {"type": "object", "required": ["a"]},
        "version": {"type": "object", "required": ["specversion"]},
        "text": {"type": "string"},
        "useless": {"type": 7},
    }.items()
}
"""Schemas by key, for bodies as records here have them; the last is none, and says nothing."""


def random_catalog(rng: Random, definitions: int) -> Catalog:
    """A catalog with one group and one endpoint over it, whose defaults are random too."""
    known: list[Definition] = []
    for number in range(definitions):
        known.append(random_definition(rng, number, known))
    known = [with_schema(rng, each) for each in known]
    xids = tuple(each.xid for each in known)
    endpoint = Endpoint(
        xid=ENDPOINT,
        envelope=rng.choice((None, CLOUDEVENTS)),
        protocol=rng.choice((None, None, *PROTOCOLS)),
        envelopeoptions={"mode": "structured"} if rng.random() < 0.3 else {},
        uris=rng.choice(((), ("kafka://broker:9092",))),
        candidates=xids,
    )
    return Catalog({each.xid: each for each in known}, {GROUP: xids}, {ENDPOINT: endpoint}, SCHEMAS)


def with_schema(rng: Random, definition: Definition) -> Definition:
    """The definition, perhaps with one of the schemas."""
    if rng.random() < 0.6:
        return definition
    return replace(definition, dataschemaformat="JsonSchema/draft-07", schemakey=rng.choice(sorted(SCHEMAS)))


def value_for(rng: Random, prop: Property, context: dict[str, str]) -> str | None:
    """A value that satisfies a property, as far as *context* lets it; None to leave an optional one out."""
    if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
        valid = {"integer": "7", "number": "7.5", "boolean": "true", "binary": "YWI=", "duration": "P1D"}
        valid |= {"timestamp": "2026-01-02T03:04:05Z"}
        return valid.get(prop.type, "a") if prop.required or prop.value is not None or rng.random() < 0.7 else None
    parts = parse_template(to_text(prop.value)).parts
    return "".join(
        context.setdefault(part.name, rng.choice(VALUES)) if isinstance(part, Placeholder) else part for part in parts
    )


def conforming(rng: Random, definition: Definition, protocol: str) -> dict[str, Any]:
    """A record of *protocol* that means to conform, in a mode of its own choice."""
    context: dict[str, str] = {}
    record: dict[str, Any] = {"protocol": protocol, "native": {}, "time": "2026-01-02T03:04:05Z"}
    for prop in definition.protocoloptions:
        value = value_for(rng, prop, context)
        if value is not None:
            put(record, prop.name, value)
    content = definition.datacontenttype or rng.choice((None, *CONTENTS))
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    for prop in definition.envelopemetadata:
        value = value_for(rng, prop, context)
        if value is not None:
            attributes[prop.name] = value
    mode = rng.choice(("native", "binary", "binary", "structured", "sniffed", "batch"))
    if mode != "native" and (mode != "binary" or protocol not in PREFIXES):
        _structured(record, protocol, mode, attributes, content)
        return record
    if mode == "binary":
        content = attributes.pop("datacontenttype", content)
        for name, value in attributes.items():
            put(record, ".".join((PREFIXES[protocol][0], PREFIXES[protocol][1] + name)), value)
    if content is not None:
        put(record, CONTENT_TYPE.get(protocol, "headers.content-type"), content)
    record["body"] = rng.choice(('{"a": 1}', "", "text", '{"specversion": 1}'))
    return record


def _structured(record: dict[str, Any], protocol: str, mode: str, attributes: dict[str, str], content: Any) -> None:
    event = {**attributes, **({"datacontenttype": content} if content else {}), "data": {"a": 1}}
    suffix = "-batch" if mode == "batch" else ""
    if mode != "sniffed":
        put(record, CONTENT_TYPE.get(protocol, "headers.content-type"), f"application/cloudevents{suffix}+json")
    record["body"] = json.dumps([event, {**event, "type": "other"}] if mode == "batch" else event)


def put(record: dict[str, Any], path: str, value: str) -> None:
    """Add a value at a property's path, as the native form of the record's protocol writes it."""
    native, (member, dot, name) = record["native"], path.partition(".")
    if dot and member in ("headers", "user_properties", "query"):
        native.setdefault(member, []).append({"name": name, "value": value})
    elif dot:
        native.setdefault(member, {})[name] = value
    else:
        native[path] = value


def spoil(rng: Random, record: dict[str, Any]) -> None:
    """Change one thing: drop, alter, repeat or empty a value, its name's case, the protocol, the body."""
    native = record["native"]
    choice = rng.random()
    if choice < 0.08:
        record["protocol"] = rng.choice(PROTOCOLS)
    elif choice < 0.16:
        record["body"] = rng.choice(("", "{", "[]", "null", '{"specversion":"1.0"}', record.get("body", "x")))
    elif choice < 0.2:
        record.pop("body", None)
        record["body_base64"] = base64.b64encode(rng.randbytes(5)).decode()
    elif native:
        member = rng.choice(sorted(native))
        held = native[member]
        if isinstance(held, list) and held:
            _spoil_list(rng, held)
        elif isinstance(held, dict) and held:
            _spoil_map(rng, held)
        elif rng.random() < 0.4:
            del native[member]
        elif isinstance(held, str):
            native[member] = rng.choice(TEXTS)


def _spoil_list(rng: Random, entries: list[dict[str, Any]]) -> None:
    at = rng.randrange(len(entries))
    entry = entries[at]
    action = rng.randrange(7)
    if action == 0:
        del entries[at]
    elif action == 1:
        entries[at] = {**entry, "value": rng.choice(TEXTS)}
    elif action == 2:
        entries.insert(rng.choice((at, at + 1)), {**entry, "value": rng.choice(TEXTS)})
    elif action == 3:
        entries[at] = {**entry, "name": rng.choice((entry["name"].upper(), entry["name"].title(), "ce_Odd", "ce_"))}
    elif action == 4:
        entries[at] = {"name": entry["name"], "value_base64": "/w=="}
    elif action == 5:
        entries[at] = {"name": entry["name"], "value": rng.choice((None, 7, True))}
    else:
        entries.insert(
            rng.choice((at, at + 1)), {"name": entry["name"], "value": rng.choice((None, entry.get("value")))}
        )


def _spoil_map(rng: Random, held: dict[str, Any]) -> None:
    name = rng.choice(sorted(held))
    if rng.random() < 0.3:
        del held[name]
    else:
        held[name] = rng.choice((*TEXTS, 7, 7.5, True, {"base64": "/w=="}))


def random_record(rng: Random, catalog: Catalog, protocols: tuple[str, ...] = PROTOCOLS) -> dict[str, Any]:
    """A record for some definition of the catalog, conforming or spoilt up to three times."""
    definition = rng.choice(list(catalog.definitions.values()))
    protocol = definition.protocol if definition.protocol in protocols else rng.choice(protocols)
    record = conforming(rng, definition, protocol)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        spoil(rng, record)
    return record
