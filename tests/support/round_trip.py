"""Events for every definition of a catalog, a producer endpoint to send them by, and what must come back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from bindings.parts import Part
from bindings.protocols import BINDINGS
from catalog.definitions.constraints import target_of
from catalog.model import Catalog, Definition, Endpoint
from catalog.record import Record
from catalog.templates import parse
from router.commands.emit.producer import EmitError, MessageProducer, record_line, value_of
from router.matching.records import RecordMatcher
from router.sinks.messages.sink import MESSAGE

OUT: Final = "/endpoints/out"
NOW: Final = "2026-03-04T05:06:07.008Z"
COLUMNS: Final = frozenset({"id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema"})
LINEAGE: Final = "xrouter-position"
NOT_KEPT: Final = (
    "qos",
    "retain",
    "message_expiry_interval",
    "partition",
    "header.delivery-count",
    "header.ttl",
    "header.first-acquirer",
)
"""What brokers and protocols change on the way, by their own specifications."""


@dataclass(frozen=True, slots=True)
class Journey:
    """What is sent of one document by one protocol: rows for a sink, and the definition of each by its position."""

    catalog: Catalog
    protocol: str
    rows: pa.Table
    definitions: Mapping[str, Definition] = field(default_factory=dict)


def journey(catalog: Catalog, protocol: str, uri: str, options: Mapping[str, Any], name: str) -> Journey | None:
    """Return the journey of all definitions that the protocol can carry; None when there are none."""
    endpoint = Endpoint(OUT, ("producer",), protocol=protocol, uris=(uri,), options=dict(options))
    made: list[dict[str, Any]] = []
    carried: dict[str, Definition] = {}
    alone = replace(catalog, endpoints={}, definitions={xid: _alone(catalog, xid) for xid in catalog.definitions})
    for definition in alone.definitions.values():
        target = target_of(definition, endpoint)
        if target is None or target.protocol != protocol:
            continue
        position = f"{name}-0-{len(made)}"
        made.append(_row(alone, definition, protocol, position))
        carried[position] = definition
    if not made:
        return None
    listed = replace(endpoint, candidates=tuple(each.xid for each in carried.values()))
    sent = replace(alone, endpoints={OUT: listed})
    return Journey(sent, protocol, pa.Table.from_pylist(made, MESSAGE), carried)


def _alone(catalog: Catalog, xid: str) -> Definition:
    """Return a definition as it is without its endpoint, of which an inline one has envelope and protocol."""
    definition = catalog.definitions[xid]
    owner = catalog.endpoints.get(definition.group)
    if owner is None:
        return definition
    envelope, protocol = definition.envelope or owner.envelope, definition.protocol or owner.protocol
    return replace(definition, envelope=envelope, protocol=protocol, protocol_declared=definition.protocol is not None)


def context_of(definition: Definition, now: str = NOW) -> dict[str, str]:
    """Return a value for each placeholder, and for each option that is required without a value."""
    chooser = random.Random(definition.xid)
    context: dict[str, str] = {}
    for prop in (*definition.protocoloptions, *definition.envelopemetadata):
        template = parse(prop.value) if isinstance(prop.value, str) else None
        for name in template.names if template else ():
            context.setdefault(name, "".join(chooser.choices("abcdefghij0123456789", k=6)))
            if template and prop.type == "timestamp":
                context[name] = now if template.is_bare else "2026-03-04"
    for prop in definition.protocoloptions:
        if prop.value is None and prop.required:
            context.setdefault(prop.name.rpartition(".")[2], value_of(prop.type, chooser, now))
    return context


def _row(catalog: Catalog, definition: Definition, protocol: str, position: str) -> dict[str, Any]:
    context = context_of(definition)
    attributes, data = _event(catalog, definition, protocol, context)
    row: dict[str, Any] = {**dict.fromkeys(MESSAGE.names), **{name: attributes.get(name) for name in COLUMNS}}
    others = [(name, text) for name, text in attributes.items() if name not in COLUMNS and name != "time"]
    row |= {"time_text": attributes.get("time"), "extensions": others, "data": data, "position": position}
    return row | {
        "message": definition.xid,
        "endpoint": "/endpoints/in",
        "epoch": "e",
        "context": list(context.items()),
        "protocol": protocol,
        "native": "{}",
    }


def _event(
    catalog: Catalog, definition: Definition, protocol: str, context: Mapping[str, str]
) -> tuple[dict[str, str], bytes | None]:
    """Return an event that the definition takes: what ``emit`` makes, read as an event."""
    try:
        producer = MessageProducer(
            catalog, definition.xid, protocol=protocol, context=context, seed=1, clock=lambda: NOW
        )
        made = producer.record()
    except EmitError as error:
        raise AssertionError(f"{definition.xid}: {error}") from error
    binding = BINDINGS[protocol]
    envelope = binding.envelope(binding.parts(made.native), made.body, lambda: producer.mode == "structured")
    if envelope.is_event:
        return dict(envelope.attributes), envelope.data
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": definition.messageid, "time": NOW}
    content = envelope.content_type
    return attributes | ({"datacontenttype": content} if content else {}), made.body


def mismatches(sent: Journey, received: Mapping[str, tuple[Sequence[Part], bytes | None]]) -> list[str]:
    """Return what of the messages, by their positions, does not match the definition they were made by."""
    alone = {
        f"{OUT}/{number}": replace(sent.catalog.endpoints[OUT], xid=f"{OUT}/{number}", candidates=(each.xid,))
        for number, each in enumerate(sent.definitions.values())
    }
    matcher = RecordMatcher(replace(sent.catalog, endpoints=alone))
    names = dict(zip(sent.definitions, alone, strict=True))
    native = BINDINGS[sent.protocol].native
    lines = [
        record_line(Record(sent.protocol, native(list(parts)), body, names[position], NOW))
        for position, (parts, body) in received.items()
    ]
    outcomes = zip(received, matcher.outcomes(lines), strict=True)
    return [
        f"{sent.definitions[position].xid}: {json.dumps(outcome)}"
        for position, outcome in outcomes
        if outcome["outcome"] != "routed" and outcome["reason"] != "unmappable"
    ]


def position_of(parts: Sequence[Part]) -> str | None:
    """Return which message this is; None when it does not say."""
    return next((part.text for part in parts if part.key.endswith(f".{LINEAGE}")), None)


def lost(made: Sequence[Part], came: Sequence[Part]) -> Iterator[Part]:
    """Give the parts that were sent and did not arrive as they were: bytes, kinds, AMQP types."""
    there = {(part.key, part.value) for part in came}
    for part in made:
        if part.key not in NOT_KEPT and part.key != "types" and (part.key, part.value) not in there:
            yield part
