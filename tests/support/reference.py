"""A slow, plain matcher written straight from MATCHING.md#matching: one record, one definition at a time.

It shares with the product the reading of envelopes and the property types, and nothing of how candidates are indexed,
split, chosen or mapped. Where it and the product differ, one of them is wrong.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from unicodedata import category
from urllib.parse import urlsplit

from bindings.envelope import Envelope
from bindings.events import NotAnEvent, decode_batch, to_json_members
from bindings.parts import Part, content_coding_of
from bindings.protocols import Binding, binding_of
from catalog.findings import RecordError
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property
from catalog.record import Record, parse_record
from catalog.schemas.contract import SchemaFault, decode_content
from catalog.schemas.ids.client import Framing
from catalog.schemas.ids.deciding import Begin, FrameSettings, read_frame
from catalog.schemas.validation import PayloadValidation
from catalog.values import (
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    percent_encode,
    to_text,
    value_key,
)
from tests.support.reference_ids import held

# What schemas look at, for the plain matcher (MATCHING.md#data-schemas).


class Body(NamedTuple):
    """A body without its content coding, how it begins, and whether there is a verdict about it at all."""

    data: bytes | SchemaFault | None
    framing: Framing
    judged: bool = True
    begins: Mapping[str, Begin] = {}


def body_of(binding: Binding, parts: Sequence[Part], envelope: Envelope, frames: FrameSettings) -> Body:
    """The body that a record's schema is held against."""
    if envelope.mode == "structured" or envelope.data is None:
        return Body(envelope.data, "none")
    opened = decode_content(envelope.data, content_coding_of(parts))
    return Body(opened, frames.framing if binding.protocol == "KAFKA" else "none", opened is not None)


def fits(payloads: PayloadValidation, xid: str, body: Body, content: str | None) -> bool:
    """Whether a definition's schema takes a body, or has no verdict; a body that is not there is held against none."""
    if body.data is None:
        return True
    if not body.judged or isinstance(body.data, SchemaFault):
        return not body.judged
    return payloads.faults(xid, [body.data], [content], [body.begins.get(xid, Begin(body.framing))]) == [None]


def id_parts(body: Body, frames: FrameSettings) -> list[Part]:
    """The id in a body, as a property that definitions may constrain."""
    whole = isinstance(body.data, bytes) and body.framing != "none"
    frame = read_frame(body.data, frames.framing) if whole and isinstance(body.data, bytes) else None
    return [] if frame is None else [Part("schemaid", frame.id.encode())]


# MATCHING.md#mapping for the plain matcher: a native record becomes a CloudEvent.

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
    return prop.type in TEMPLATED and BRACES.search(to_text(prop.value)) is not None


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
            made[prop.name], types[prop.name] = to_text(prop.value), prop.type
        elif all(name in context for name in BRACES.findall(to_text(prop.value))):
            text = expanded(to_text(prop.value), context, encode=prop.type == "uritemplate")
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


HOPS: Final = {"qos", "retain", "message_expiry_interval", "partition"}
HOP_SECTIONS: Final = ("header.", "delivery-annotations.")
CONTENT_TYPES: Final = {"headers.content-type", "properties.content-type", "content_type"}
BATCH_MEMBER: Final = b"application/cloudevents+json"


@dataclass
class Match:
    """One definition that a record matches: its context, and how specific it was on this record."""

    definition: Definition
    context: dict[str, str]
    literals: int
    characters: int


class Reference:
    """Judges native records one at a time. ``endpoint`` or ``group`` fix the candidates, as with ``match``."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        endpoint: str | None = None,
        group: str | None = None,
        hop_by_hop: bool = False,
        validation: str = "ambiguous",
        frames: FrameSettings = FrameSettings(),  # noqa: B008 - it cannot be changed
        ambiguous: str = "dead-letter",
    ) -> None:
        self._ambiguous = ambiguous
        self.catalog = catalog
        self._frames = frames
        self._payloads = PayloadValidation(catalog)
        self._validation = validation
        self._hop_by_hop = hop_by_hop
        self._endpoint = endpoint
        self._group = group

    def outcome(self, line: str) -> dict[str, Any]:
        """Judge one line: ``outcome`` with ``message``, ``context``, ``cloudevent``, or ``reason``, or ``events``."""
        try:
            record = parse_record(line)
            binding = binding_of(record.protocol)
            if binding is None:
                return dead("undecodable")
            parts = binding.split(record.native)
        except RecordError:
            return dead("undecodable")
        envelope = binding.read_envelope(parts, record.body, lambda: self.sniffs(record, binding))
        if envelope.mode != "batch":
            return self._judge(record, binding, parts, envelope)
        try:
            events = decode_batch(record.body)
        except NotAnEvent:
            return dead("undecodable")
        alone = [Part(p.key, BATCH_MEMBER) if self._is_content(p, binding) else p for p in parts]
        read = [binding.read_envelope(alone, event, lambda: False) for event in events]
        return {"outcome": "batch", "events": [self._judge(record, binding, alone, each) for each in read]}

    def bodies(self, line: str) -> list[tuple[bytes | None, bytes | None]]:
        """What leaves for one line, per event: (data if it is routed, bytes if it is a dead letter)."""
        record = parse_record(line)
        binding = binding_of(record.protocol)
        assert binding is not None
        envelope = binding.read_envelope(
            binding.split(record.native), record.body, lambda: self.sniffs(record, binding)
        )
        if envelope.mode != "batch":
            return [(envelope.data, record.body)]
        try:
            events = decode_batch(record.body)
        except NotAnEvent:
            return [(None, record.body)]
        media = [Part(binding.rule.content_type, BATCH_MEMBER)]
        return [(binding.read_envelope(media, event, lambda: False).data, event) for event in events]

    @staticmethod
    def _is_content(part: Part, binding: Binding) -> bool:
        return binding.rule.content_type in (part.key, part.key.lower() if part.key.startswith("headers.") else "")

    def _candidates(self, record: Record) -> tuple[Endpoint | None, list[Definition]]:
        endpoint = None
        xids: Iterable[str]
        if self._group is not None:
            xids = self.catalog.groups.get(self._group, ())
        elif self._endpoint is not None or record.endpoint is not None:
            endpoint = self.catalog.endpoints.get(self._endpoint or record.endpoint or "")
            xids = endpoint.candidates if endpoint else ()
        else:
            xids = self.catalog.definitions
        found = [self.catalog.definitions[xid] for xid in xids if xid in self.catalog.definitions]
        return endpoint, [each for each in found if envelope_name(each, endpoint) in (None, CLOUDEVENTS)]

    def sniffs(self, record: Record, binding: Binding) -> bool:
        """Whether a JSON body counts as an event without its media type."""
        endpoint, candidates = self._candidates(record)
        if binding.protocol == "MQTT/3.1.1":
            return True
        if endpoint is not None and str(endpoint.envelopeoptions.get("mode")).lower() == "structured":
            return True
        mine = [each for each in candidates if protocol_name(each, endpoint) in (None, binding.protocol)]
        return all(envelope_name(each, endpoint) == CLOUDEVENTS for each in mine)

    def _judge(self, record: Record, binding: Binding, parts: Sequence[Part], envelope: Envelope) -> dict[str, Any]:
        if envelope.mode == "undecodable":
            return dead("undecodable")
        if envelope.faults:
            return dead("invalid-cloudevent")
        endpoint, candidates = self._candidates(record)
        if not candidates:
            return dead("no-candidates")
        hops = self._hop_by_hop
        data = body_of(binding, parts, envelope, self._frames)
        parts = [*parts, *id_parts(data, self._frames)]
        found = [match_one(each, endpoint, binding, parts, envelope, hops=hops) for each in candidates]
        matches = [match for match in found if match is not None]
        tied: list[Match] = []
        body = body_of(binding, parts, envelope, self._frames)
        if binding.protocol == "KAFKA" and body.framing != "none":
            whole = Body(body.data, "none", body.judged)
            kept = held(
                (each.definition for each in matches),
                candidates,
                body.data if isinstance(body.data, bytes) else None,
                self._frames,
                self.catalog,
                lambda each: self._fits_so(each, envelope, whole),
            )
            if kept.reason:
                return dead(kept.reason)
            matches = [each for each in matches if each.definition.xid in kept.begins]
            body = body._replace(begins=kept.begins)
        winner = self._conforming(matches, endpoint, envelope, body, tied)
        if winner == "ambiguous" and self._ambiguous == "first":
            winner = min(tied, key=lambda match: self.catalog.order.index(match.definition.xid))
        elif winner == "ambiguous" and self._ambiguous == "base":
            bases = [
                self.catalog.definitions[xid] for xid in tied[0].definition.base if xid in self.catalog.definitions
            ]
            common = [each for each in bases if all(each.xid in one.definition.base for one in tied)]
            seen = (match_one(each, endpoint, binding, parts, envelope, hops=hops) for each in common)
            winner = next((each for each in seen if each is not None), winner)
        if isinstance(winner, str):
            return dead(winner)
        attributes: Mapping[str, str] | None = envelope.attributes
        if not envelope.is_event:
            left = left_over(winner.definition, self._source(record, endpoint), record, binding, parts, envelope)
            attributes = mapped(
                winner.definition,
                winner.context,
                left,
                enveloped=envelope_name(winner.definition, endpoint) is not None,
            )
            if attributes is None:
                return dead("unmappable")
        xid = winner.definition.xid
        event = to_json_members(attributes or {})
        told = {"outcome": "routed", "message": xid, "context": winner.context, "cloudevent": event}
        among = ", ".join(each.definition.xid for each in tied)
        return told | ({"ambiguous": f"{self._ambiguous} of {among}"} if tied else {})

    def _conforming(
        self, found: list[Match], endpoint: Endpoint | None, envelope: Envelope, body: Body, tied: list[Match]
    ) -> Match | str:
        """Section 5: without envelope and protocol the schema decides; among several it tells apart."""
        decided = [each for each in found if not decides(each.definition, endpoint) or self._fits(each, envelope, body)]
        if self._validation == "always" or (self._validation == "ambiguous" and len(decided) > 1):
            fitting = [each for each in decided if self._fits(each, envelope, body)]
            if decided and not fitting:
                return "schema-violation"
            return most_specific(fitting, tied)
        return most_specific(decided, tied)

    def _fits(self, match: Match, envelope: Envelope, body: Body) -> bool:
        return self._fits_so(match.definition, envelope, body)

    def _fits_so(self, definition: Definition, envelope: Envelope, body: Body) -> bool:
        content = envelope.attributes.get("datacontenttype") if envelope.is_event else envelope.content_type
        return fits(self._payloads, definition.xid, body, content)

    def _source(self, record: Record, endpoint: Endpoint | None) -> str:
        if endpoint is not None:
            address = endpoint.uris[0] if endpoint.uris else ""
            return address if address and is_valid("urireference", address) else endpoint.xid
        return self._group or "*"


def dead(reason: str) -> dict[str, Any]:
    """A dead letter's outcome."""
    return {"outcome": "dead-letter", "reason": reason}


def envelope_name(definition: Definition, endpoint: Endpoint | None) -> str | None:
    """The definition's envelope, else its endpoint's."""
    return definition.envelope or (endpoint.envelope if endpoint else None)


def protocol_name(definition: Definition, endpoint: Endpoint | None) -> str | None:
    """The definition's protocol, else its endpoint's."""
    return definition.protocol or (endpoint.protocol if endpoint else None)


def decides(definition: Definition, endpoint: Endpoint | None) -> bool:
    """Whether a definition has neither envelope nor protocol, so that content type and schema decide."""
    return envelope_name(definition, endpoint) is None and protocol_name(definition, endpoint) is None


def match_one(
    definition: Definition,
    endpoint: Endpoint | None,
    binding: Binding,
    parts: Sequence[Part],
    envelope: Envelope,
    *,
    hops: bool,
) -> Match | None:
    """Section 5 for one definition; None when it does not match. ``hops``: what changes hop by hop filters too."""
    protocol, event = protocol_name(definition, endpoint), envelope.is_event
    has_envelope = envelope_name(definition, endpoint) is not None
    if protocol not in (None, binding.protocol):
        return None
    if not event and not describes(definition, protocol) and (has_envelope or protocol is not None):
        return None
    checks = checks_of(definition, protocol, binding, parts, envelope if event and has_envelope else None, hops=hops)
    content = envelope.attributes.get("datacontenttype") if event else envelope.content_type
    if (
        definition.datacontenttype
        and content is not None
        and not media_type_matches(definition.datacontenttype, content)
    ):
        return None
    return hold_all(definition, checks, nats=protocol == "NATS")


def describes(definition: Definition, protocol: str | None) -> bool:
    """Whether a definition says what records that are no CloudEvents look like."""
    declared = definition.protocol is not None and definition.protocol_declared
    return protocol is not None and (declared or bool(definition.protocoloptions))


def checks_of(
    definition: Definition,
    protocol: str | None,
    binding: Binding,
    parts: Sequence[Part],
    envelope: Envelope | None,
    *,
    hops: bool,
) -> list[tuple[str, Property, list[str | None]]]:
    """All properties to check, each with the values found; without *envelope* no attributes."""
    checks: list[tuple[str, Property, list[str | None]]] = []
    if envelope is not None:
        for prop in definition.envelopemetadata:
            text = envelope.attributes.get(prop.name)
            checks.append((f"e.{prop.name}", prop, [] if text is None else [text]))
    if protocol is not None:
        for prop in definition.protocoloptions:
            if hops or not (prop.name in HOPS or prop.name.startswith(HOP_SECTIONS)):
                checks.append((f"p.{prop.name}", prop, native_values(prop, parts, binding)))
    return checks


def hold_all(
    definition: Definition, checks: Sequence[tuple[str, Property, list[str | None]]], *, nats: bool
) -> Match | None:
    """Check every property, unite what placeholders took, and count what was tested."""
    context: dict[str, str] = {}
    literals: set[str] = set()
    characters = 0
    for key, prop, texts in checks:
        taken = holds(key, prop, texts, nats=nats)
        if taken is None:
            return None
        for name, value in taken:
            if context.setdefault(name, value) != value:
                return None
        if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
            continue
        if is_template(prop):
            characters += len(BRACES.sub("", to_text(prop.value)))
        else:
            literals.add(key)
    return Match(definition, context, len(literals), characters)


def holds(key: str, prop: Property, texts: Sequence[str | None], *, nats: bool) -> list[tuple[str, str]] | None:
    """Rules 1 to 4 for one property: None when it fails, else (placeholder, value) of the first value that holds."""
    if not texts:
        return None if prop.required or prop.value is not None else []
    dots = nats and key in ("p.subject", "p.reply-to")
    for text in texts:
        taken = holds_one(key, prop, text, dots=dots)
        if taken is not None:
            return taken
    return None


def holds_bytes(prop: Property, found: bytes) -> bool:
    """The value of a binary property is base64 text, and compares as the bytes it stands for."""
    if prop.value is None:
        return True
    text = to_text(prop.value)
    try:
        wanted = base64.b64decode(text, validate=True)
    except ValueError:
        wanted = text.encode()
    return found == wanted


def holds_one(key: str, prop: Property, text: str | None, *, dots: bool) -> list[tuple[str, str]] | None:
    """One present value against one property; *text* None is a value that is no UTF-8 text."""
    if text is not None and prop.type == "binary" and key.startswith("p.") and key[2:] not in CONTENT_TYPES:
        return [] if holds_bytes(prop, base64.b64decode(text)) else None
    if text is None:
        return [] if prop.value is None and prop.type in ("any", "binary") else None
    if prop.value is None or (prop.type == "timestamp" and is_any_timestamp(prop.value)):
        any_bytes = prop.type == "binary" and key.startswith("p.")
        return [] if any_bytes or is_valid(prop.type, text, bits32=key.startswith("e.")) else None
    value = to_text(prop.value)
    if is_template(prop):
        if prop.type == "timestamp" and not is_timestamp(text):
            return None
        return split(value, text, decode=prop.type == "uritemplate", dots=dots)
    if key[2:] in CONTENT_TYPES or key == "e.datacontenttype":
        return [] if media_type_matches(value, text) else None
    if value == text:
        return []
    if prop.type in ("number", "integer", "boolean", "timestamp", "binary"):
        wanted = value_key(prop.type, value)
        return [] if wanted is not None and wanted == value_key(prop.type, text) else None
    return None


def split(template: str, text: str, *, decode: bool, dots: bool) -> list[tuple[str, str]] | None:
    """Rule 2, by a regular expression that backs up as it needs."""
    pieces = BRACES.split(template)
    bare = len(pieces) == 3 and not pieces[0] and not pieces[2]
    one = "." if bare else "[^/.]" if dots else "[^/]"
    pattern = "".join(f"({one}+?)" if place % 2 else re.escape(piece) for place, piece in enumerate(pieces))
    found = re.fullmatch(pattern, text, re.DOTALL)
    if found is None:
        return None
    values = [percent_decode(value) if decode else value for value in found.groups()]
    taken: dict[str, str] = {}
    for name, value in zip(pieces[1::2], values, strict=True):
        if taken.setdefault(name, value) != value:
            return None
    return list(taken.items())


def native_values(prop: Property, parts: Sequence[Part], binding: Binding) -> list[str | None]:
    """All values of a protocol property, as text; None for one that is no text. Those of type binary are base64."""
    path, kafka = prop.name, binding.protocol == "KAFKA"
    encoded = kafka and path == "key_base64"
    if encoded:
        path = "key"
    if encoded or (prop.type == "binary" and path not in CONTENT_TYPES):
        found_bytes = [part.value for part in parts if part.key == path]
        return [base64.b64encode(value).decode() for value in found_bytes if value is not None]
    found: list[str | None] = []
    for part in parts:
        same = part.key == path or (path == "headers.content-type" and part.key.lower() == path)
        if part.value is None:
            continue
        if same and part.kind == "binary" and not (kafka and path == "key"):
            found.append(base64.b64encode(part.value or b"").decode())
        elif same:
            found.append(part.text)
    return found


def most_specific(found: Sequence[Match], tied: list[Match]) -> Match | str:
    """Section 5 (b) and (c): the one that is left, else the reason why none is; *tied* is filled with several."""
    if not found:
        return "no-match"
    top = max((match.literals, match.characters) for match in found)
    best = [match for match in found if (match.literals, match.characters) == top]
    bases = {xid for match in best for xid in match.definition.base}
    best = [match for match in best if match.definition.xid not in bases]
    if len(best) == 1:
        return best[0]
    tied += best
    return "ambiguous"
