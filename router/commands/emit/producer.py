"""Generate native records from a message definition (MATCHING.md#sending).

Literals are set, templates are expanded, ``0000-01-01T00:00:00Z`` becomes the current time, and other required
properties get a valid value of their type. Before the first record is sent, the matcher of ``run`` checks that it
matches the definition (:func:`require_match`).
"""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final, Literal, TypeVar, cast, get_args

import msgspec

from bindings.amqp.values import merge_parts
from bindings.envelope import BATCH, REQUIRED, STRUCTURED, build_attribute_parts
from bindings.events import STRING_ATTRIBUTES, TypedText, encode_event, number_fault
from bindings.parts import Part, content_coding_of
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.definitions.constraints import MatchCandidate, match_candidate_of, parse_cached_template
from catalog.model import Catalog, Definition, Endpoint, Property, PropertyType
from catalog.protocols.properties import CONTENT_TYPES
from catalog.record import Record
from catalog.schemas.columns import PayloadMaker
from catalog.schemas.contract import encode_content
from catalog.schemas.families import inferred_content_type
from catalog.schemas.filling import WORDS
from catalog.schemas.ids.client import TYPES
from catalog.schemas.library import CatalogLibrary, schema_source
from catalog.templates import TEMPLATE_TYPES, Template, parse_template
from catalog.values import is_any_timestamp, to_text
from router.errors import RouterError, hint_near
from router.matching.channels import source_of
from router.matching.records import RecordMatcher, encode_outcome
from router.schemaids.framing import UnregisteredError, frame_with_id

# Random values that are valid for a property type.


def random_value(kind: PropertyType, random: random.Random, now: str) -> str:
    """Return a random value of a property type as text; *now* is the time as RFC 3339 text."""
    word = f"{random.choice(WORDS)}-{random.randrange(10_000)}"
    if kind in ("uri", "urireference", "uritemplate"):
        return f"https://example.com/{word}"
    if kind == "binary":
        return base64.b64encode(random.randbytes(9)).decode("ascii")
    return {
        "boolean": random.choice(("true", "false")),
        "duration": f"PT{random.randrange(1, 60)}S",
        "integer": str(random.randrange(1, 1000)),
        "number": str(random.randrange(1, 100_000) / 100),
        "timestamp": now,
    }.get(kind, word)


def choose_content_type(definition: Definition, family: str | None) -> str:
    """Return the content type of a definition's data: declared, implied by its schema's family, else JSON.

    Declared content types with placeholders are ignored.
    """
    declared = {prop.name: prop.value for prop in (*definition.protocoloptions, *definition.envelopemetadata)}
    native = (declared.get(name) for name in CONTENT_TYPES)
    for value in (definition.datacontenttype, declared.get("datacontenttype"), *native):
        own = isinstance(value, str) and value and not value.startswith("application/cloudevents")
        if own and parse_template(str(value)).is_literal:
            return str(value)
    return inferred_content_type(family or definition.dataschemaformat) or "application/json"


T = TypeVar("T")
Mode = Literal["binary", "structured", "native"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
COUNTER: Final = "{n}"
"""In a context value, stands for the running number of the record, from 1."""


class EmitError(RouterError):
    """A message that cannot be generated as requested; exit code 1."""


def utc_now() -> str:
    """Return the current time as RFC 3339 text with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MessageProducer:
    """Generates records that match one definition.

    ``endpoint`` adds its defaults and its address and is named by the records; an endpoint's inline message has its
    own. ``protocol`` is for definitions that leave it open. ``mode`` defaults to what definition and endpoint ask for.
    ``context`` gives the placeholders their values, the same everywhere; ``{n}`` in a value is the running number.
    Equal seeds give equal records, except for times, which come from ``clock``.

    Raises:
        EmitError: the message or endpoint is unknown, can never match, leaves the protocol open, contradicts
            ``protocol`` or ``mode``, or has placeholders without value; all of the last are named at once.
    """

    def __init__(
        self,
        catalog: Catalog,
        message: str,
        *,
        endpoint: str | None = None,
        protocol: str | None = None,
        mode: str | None = None,
        context: Mapping[str, str] | None = None,
        seed: int | None = None,
        clock: Callable[[], str] = utc_now,
        schema_id: str | None = None,
    ) -> None:
        self.definition: Definition = _require_known(message, catalog.definitions, "message")
        inline = self.definition.group if self.definition.group in catalog.endpoints else None
        chosen = endpoint or inline
        self.endpoint: Endpoint | None = _require_known(chosen, catalog.endpoints, "endpoint") if chosen else None
        target = match_candidate_of(self.definition, self.endpoint)
        if target is None:
            raise EmitError(f"{message} has an envelope other than CloudEvents, so that no record can match it")
        self._binding = _choose_binding(target, protocol)
        self.mode: Mode = self._choose_mode(target, mode)
        self._context = dict(context or {})
        self._random = random.Random(seed)
        self._clock = clock
        self._payloads = PayloadMaker(self.definition, catalog)
        self.payload_doubt = ""
        """Why the last record's data may be invalid against its schema; empty if it is valid."""
        self._require_context()
        self._frame = b"" if schema_id is None else self._make_frame(catalog, schema_id)

    def iter_records(self, count: int) -> Iterator[Record]:
        """Yield *count* records, numbered from 1."""
        for number in range(1, count + 1):
            yield self.make_record(number)

    def make_record(self, number: int = 1) -> Record:
        """Make one record; *number* stands for ``{n}`` in context values."""
        now = self._clock()
        context = {name: value.replace(COUNTER, str(number)) for name, value in self._context.items()}
        options = (
            (prop, self._property_text(prop, context, now))
            for prop in self.definition.protocoloptions
            if prop.value is not None or prop.required
        )
        parts = self._binding.sending.build_option_parts(options)
        content_type = choose_content_type(self.definition, self._payloads.family)
        data, self.payload_doubt = self._payloads.make(content_type, number, self._random, now)
        if self.mode == "native":
            content: str | None = content_type
        else:
            attributes = self._make_attributes(context, now, content_type)
            content = attributes.get("datacontenttype")
            if self.mode == "structured":
                data, content = encode_event(attributes, data), STRUCTURED
            else:
                parts = [*merge_parts(parts, build_attribute_parts(self._binding.rule, attributes))]
        if self._frame and data is not None:
            data = self._frame + data
        parts = self._complete_parts(parts, content, context)
        coding = content_coding_of(parts)
        if coding and data is not None and self.mode != "structured":
            data = encode_content(data, coding)
        native = self._binding.build(parts)
        return Record(self._binding.protocol, native, data, self.endpoint.xid if self.endpoint else None, now)

    def _make_frame(self, catalog: Catalog, schema_id: str) -> bytes:
        """Return the frame with the schema id that bodies begin with.

        Raises:
            EmitError: bodies cannot have a frame.
        """
        xid, source = self.definition.xid, schema_source(self.definition, catalog.schemas)
        if self._binding.sending.family != "kafka" or self.mode == "structured":
            hint = "use Kafka, and --mode binary or native"
            raise EmitError(f"{xid} has no body of its own that a frame could stand before", hint=hint)
        if source is None or source.family not in TYPES:
            raise EmitError(f"{xid} has no schema of Avro, Protobuf or JSON", hint="leave out --framing")
        content_type = choose_content_type(self.definition, self._payloads.family)
        if source.family != "JsonSchema" and "json" in content_type:
            raise EmitError(f"bodies of {xid} are JSON, and those of {source.family} with a frame are bytes")
        try:
            return frame_with_id(self.definition, source, CatalogLibrary(catalog.schemas), schema_id).head
        except UnregisteredError as error:
            raise EmitError(str(error), hint=error.hint) from error

    def _complete_parts(self, parts: list[Part], content: str | None, context: Mapping[str, str]) -> list[Part]:
        """Add content type and address from the channel, if they are missing."""
        keys = {part.key for part in parts}
        if content and self._binding.binary and self._binding.rule.content_type not in keys:
            parts.append(Part(self._binding.rule.content_type, content.encode()))
        for key, text in self._binding.sending.channel_address(self.definition, self.endpoint).items():
            if key not in keys:
                parts.append(Part(key, parse_cached_template(text, False).expand(context, encode=False).encode()))
        return parts

    def _make_attributes(self, context: Mapping[str, str], now: str, content_type: str) -> dict[str, str]:
        attributes = {"specversion": "1.0"}
        declared = {prop.name: prop for prop in self.definition.envelopemetadata}
        for name in dict.fromkeys((*REQUIRED, *declared)):
            prop = declared.get(name)
            if prop is not None and prop.value is not None:
                attributes[name] = self._property_text(prop, context, now)
            elif name in REQUIRED or (prop is not None and prop.required):
                attributes[name] = self._make_attribute(name, prop, now)
            if prop is not None and name not in STRING_ATTRIBUTES and _is_typed_text(prop, attributes.get(name, "")):
                attributes[name] = TypedText(attributes[name])
        attributes.setdefault("time", now)
        attributes.setdefault("datacontenttype", content_type)
        if self.definition.schemauri and "dataschema" not in declared:
            attributes["dataschema"] = self.definition.schemauri
        return attributes

    def _make_attribute(self, name: str, prop: Property | None, now: str) -> str:
        kind = prop.type if prop else "string"
        if name == "id" and kind in ("string", "any"):
            return str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        if name == "type" and kind in ("string", "any"):
            return self.definition.messageid
        if name == "source" and kind in ("urireference", "uritemplate", "string", "uri", "any"):
            return source_of(self.endpoint) if self.endpoint else self.definition.group
        return random_value(kind, self._random, now)

    def _property_text(self, prop: Property, context: Mapping[str, str], now: str) -> str:
        if prop.value is None:
            return random_value(prop.type, self._random, now)
        if prop.type == "timestamp" and is_any_timestamp(prop.value):
            return now
        template = _property_template(prop)
        if template is None:
            return to_text(prop.value)
        return template.expand(context, encode=prop.type == "uritemplate")

    def _choose_mode(self, target: MatchCandidate, requested: str | None) -> Mode:
        if requested is not None and requested not in MODES:
            raise EmitError(f"{requested!r} is no mode", hint=f"modes are {', '.join(MODES)}")
        xid, binding = self.definition.xid, self._binding
        if requested == "native" and target.native is None:
            raise EmitError(f"{xid} matches only CloudEvents", hint="leave out --mode native")
        if requested == "binary" and not binding.binary:
            raise EmitError(f"{binding.protocol} has no binary mode", hint="use --mode structured or native")
        if requested is not None:
            return cast(Mode, requested)
        if target.native is not None and not target.envelope:
            return "native"
        return "structured" if not binding.binary or self._is_structured else "binary"

    @cached_property
    def _is_structured(self) -> bool:
        """Whether the declared native content type, or else an option ``mode``, means structured events."""
        key = self._binding.rule.content_type
        for prop in self.definition.protocoloptions:
            if prop.name == key and isinstance(prop.value, str):
                return prop.value.lower().startswith(STRUCTURED)
        options = (self.definition.envelopeoptions, self.endpoint.envelopeoptions if self.endpoint else {})
        modes = [each["mode"] for each in options if isinstance(each.get("mode"), str)]
        return bool(modes) and modes[0].lower() == "structured"

    def _require_context(self) -> None:
        options = self.definition.protocoloptions
        attributes = () if self.mode == "native" else self.definition.envelopemetadata
        templates = [each for each in map(_property_template, (*options, *attributes)) if each is not None]
        address = self._binding.sending.channel_address(self.definition, self.endpoint)
        own = {prop.name for prop in options}
        templates += [parse_cached_template(text, False) for key, text in address.items() if key not in own]
        wanted = dict.fromkeys(name for template in templates for name in template.names)
        missing = [name for name in wanted if name not in self._context]
        if missing:
            hint = "give each with --context, such as " + " ".join(f"--context {name}=VALUE" for name in missing)
            raise EmitError(f"{self.definition.xid} lacks a value for {', '.join(missing)}", hint=hint)


def require_match(catalog: Catalog, producer: MessageProducer, record: Record) -> None:
    """Check that *record* matches the producer's definition, ignoring other candidates.

    Raises:
        EmitError: it does not: a context value does not fit, or the definition contradicts itself; names each fault.
    """
    xid = producer.definition.xid
    if producer.endpoint is not None:
        channel = replace(producer.endpoint, candidates=(xid,))
        only = replace(catalog, endpoints={channel.xid: channel})
        matcher = RecordMatcher(only, endpoint=channel.xid)
    else:
        matcher = RecordMatcher(replace(catalog, groups={xid: (xid,)}, endpoints={}), group=xid)
    outcome = next(iter(matcher.outcomes([encode_record_line(record)])))
    # An unmappable record matched too; whether it can be mapped depends on settings.
    if outcome["outcome"] == "routed" or outcome["reason"] == "unmappable":
        return
    faults = [
        f"{each['property']} expected {each['expected']!r}, found {each['found']!r}"
        for near in outcome["nearest"]
        for each in near["mismatches"]
    ]
    hint = "change the --context values or --mode, or correct the definition"
    raise EmitError(f"what {xid} gives would not match it: {'; '.join(faults) or outcome['detail']}", hint=hint)


def join_as_batch(records: list[Record]) -> Record:
    """Join structured records into one batch, with the address of the first record."""
    bodies = [msgspec.Raw(record.body or b"null") for record in records]
    binding = BINDINGS[records[0].protocol]
    key = binding.rule.content_type
    parts = [part for part in binding.split(records[0].native) if part.key != key]
    media = Part(key, BATCH.encode())
    return replace(records[0], native=binding.build([*parts, media]), body=msgspec.json.encode(bodies))


def encode_record_line(record: Record) -> bytes:
    """Return a record as one line of JSON."""
    return encode_outcome(record.to_json())


def _is_typed_text(prop: Property, text: str) -> bool:
    """Whether an attribute is declared as an integer or boolean, and its text is valid."""
    if prop.type == "boolean":
        return text in ("true", "false")
    return prop.type == "integer" and not number_fault(text)


def _property_template(prop: Property) -> Template | None:
    """Return the template of a property; None for literals and properties without a value."""
    if prop.value is None or prop.type not in TEMPLATE_TYPES:
        return None
    template = parse_cached_template(to_text(prop.value), False)
    return None if template.is_literal else template


def _require_known(xid: str, entities: Mapping[str, T], what: str) -> T:
    known = entities.get(xid)
    if known is None:
        hint = hint_near(xid, entities, "`xrouter catalog list` shows what there is")
        raise EmitError(f"the catalog has no {what} {xid}", hint=hint)
    return known


def _choose_binding(target: MatchCandidate, requested: str | None) -> Binding:
    name = target.protocol or requested
    if name is None:
        hint = f"set one with --protocol ({', '.join(BINDINGS)}), or an endpoint that has one"
        raise EmitError(f"{target.xid} names no protocol", hint=hint)
    binding = binding_of(name)
    if binding is None:
        raise EmitError(f"protocol {name} is unknown", hint=f"known are {', '.join(BINDINGS)}")
    if requested is not None and binding_of(requested) is not binding:
        raise EmitError(f"{target.xid} is of protocol {binding.protocol}, not {requested}", hint="leave out --protocol")
    return binding
