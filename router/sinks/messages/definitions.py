"""Build messages by the definitions of a ``producer`` endpoint of the catalog (MATCHING.md#sending).

The definition is the event's own if the endpoint has it, else one with the event's ``type``; among several, one whose
other attributes match too. It is used as a template: literals are set, and placeholders are expanded from the record's
context attributes, else from values that the definition's attribute templates match in the event, else from the event's
attributes. Attributes and data of the event are not changed. A message that its definition would not match is not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

import msgspec

from bindings.envelope import STRUCTURED
from bindings.parts import BINARY_KIND, JSON_KIND, Part
from bindings.protocols import BINDINGS, Binding
from bindings.sending import Outbound
from catalog.definitions.constraints import (
    Constraint,
    attribute_constraint,
    match_candidate_of,
    parse_cached_template,
)
from catalog.findings import TemplateError
from catalog.model import Catalog, Definition, Endpoint, Property
from catalog.parsing.nearest import Suggestions
from catalog.templates import TEMPLATE_TYPES
from catalog.values import is_any_timestamp, to_text
from router.errors import SinkError
from router.matching.channels import ChannelBuilder
from router.matching.matcher import Matcher
from router.matching.record_columns import RawRow, RecordColumnsBuilder
from router.settings.routes import AddressError, parse_address, validate_address
from router.settings.sinks.contract import RemoteSink
from router.settings.values import LineageForm
from router.sinks.contract import ArrowSink
from router.sinks.messages.sink import (
    ConfirmedSink,
    HeaderForwarder,
    MessageBuilder,
    Mode,
    RoutedEvent,
    TemplateComposer,
    UnsendableMessage,
    add_frame,
    build_message,
    find_partition_key,
    get_destination_cap,
    get_publisher,
)

# Messages are checked against their definitions before they are sent (MATCHING.md#sending).
#
# The matcher is the same as in ``run``; its input is what a receiver of the message would read. Remembering results by
# the values that are constrained would save 15 of 80 us for a message.

_MISMATCHES: Final = 4


class MessageValidator:
    """Checks messages of one endpoint, each against its own definition only (one of *definitions*).

    ``uncarried`` are parts that the target cannot carry, whatever the protocol supports.
    """

    def __init__(
        self,
        catalog: Catalog,
        endpoint: Endpoint,
        binding: Binding,
        definitions: Sequence[Definition],
        uncarried: frozenset[str] = frozenset(),
    ) -> None:
        self._binding = binding
        self._uncarried = uncarried
        seen = replace(endpoint, protocol=endpoint.protocol or binding.protocol)
        names = [f"{endpoint.xid}#{number}" for number in range(len(definitions))]
        alone = {name: replace(seen, candidates=(each.xid,)) for name, each in zip(names, definitions, strict=True)}
        builder = ChannelBuilder(replace(catalog, endpoints=alone))
        for name in names:
            builder.add_endpoints(name, [name])
        self._matcher = Matcher(builder.targets, builder.channels)
        self._sniffs = [self._matcher.sniffs(number, binding.protocol) for number in range(len(names))]

    def find_faults(self, built: Sequence[tuple[int, Outbound]]) -> list[str]:
        """Return for each message, with the number of its definition, why it does not match; empty if it does."""
        builder = RecordColumnsBuilder(self._matcher.index.keys)
        for place, (number, message) in enumerate(built):
            received = self._binding.sending.iter_received_parts(message, binary=self._binding.binary)
            parts = [part for part in received if part.key not in self._uncarried]
            sniff = partial(bool, self._sniffs[number])
            builder.add(RawRow(place, self._binding, parts, message.body, number, sniff, message.id, None))
        columns = builder.build()
        winners = self._matcher.winners(columns)
        faults = ["it would be read as an empty batch of events"] * len(built)
        outcomes = self._matcher.match(columns) if (winners < 0).any() else None
        for row, source in enumerate(columns.sources.tolist()):
            faults[source] = ""
            if outcomes is not None and winners[row] < 0:
                faults[source] = _describe_mismatches(outcomes.nearest.get(row, []), outcomes.details[row])
        return faults


def _describe_mismatches(nearest: Sequence[dict[str, Any]], detail: str) -> str:
    mismatches = [
        f"{each['property']} should be {each['expected']!r} and is {each['found']!r}"
        for near in nearest
        for each in near["mismatches"]
    ]
    return f"it would not match: {'; '.join(mismatches[:_MISMATCHES]) or detail}"


_OF_EVENT: Final[Mapping[str, str]] = {"message-id": "id", "creation-time": "time", "message_id": "id"}
_QUERY: Final = "query."


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A definition, its message mode, and the constraints of its attributes, by name."""

    definition: Definition
    mode: Mode
    attributes: tuple[tuple[str, Constraint], ...]

    def has_type(self, event: RoutedEvent) -> bool:
        """Whether the definition has the event's type; the default type is its id."""
        kind = event.attributes["type"]
        declared = next((asked for name, asked in self.attributes if name == "type" and asked.value is not None), None)
        return self.definition.messageid == kind if declared is None else declared.satisfied(kind, present=True)

    def matches_attributes(self, event: RoutedEvent) -> bool:
        """Whether all attributes of the definition match the event."""
        values = ((asked, event.attributes.get(name)) for name, asked in self.attributes)
        return all(asked.satisfied(value, present=value is not None) for asked, value in values)

    def placeholder_values(self, event: RoutedEvent) -> dict[str, str]:
        """Return the values of placeholders in the definition's attributes; the first value wins."""
        values: dict[str, str] = {}
        for name, asked in reversed(self.attributes):
            values.update(asked.placeholder_values(event.attributes.get(name)))
        return values


@dataclass(slots=True)
class _Attempt:
    """An event, the definitions still to try, and the reasons why others failed."""

    place: int
    event: RoutedEvent
    remaining: Iterator[_Candidate]
    faults: list[str] = field(default_factory=list)

    def make_refusal(self, endpoint: str) -> UnsendableMessage:
        if self.faults:
            return UnsendableMessage("; ".join(self.faults[:3]))
        return UnsendableMessage(f"{endpoint} has no definition of type {self.event.attributes['type']!r}")


@dataclass(eq=False)
class EndpointComposer(MessageBuilder):
    """Builds messages for one endpoint. ``mode`` overrides the mode of its definitions.

    ``least`` are minimum values of parts, which override endpoint, definition and protocol: a message to be confirmed
    cannot have QoS 0. ``passing`` forwards headers of records; None omits them. ``uncarried`` are parts that the target
    cannot carry.
    """

    catalog: Catalog
    endpoint: Endpoint
    binding: Binding
    mode: Mode | None = None
    lineage: LineageForm = True
    least: Mapping[str, int] = field(default_factory=dict)
    passing: HeaderForwarder | None = None
    uncarried: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._sending = self.binding.sending
        self.least = {**self._sending.min_values, **self.least}
        self._by_channel = frozenset().union(*(each.sending.channel_options for each in BINDINGS.values()))
        known = map(self.catalog.definitions.get, self.endpoint.candidates)
        self._candidates = tuple(self._iter_usable(each for each in known if each is not None))
        self._numbers = {each.definition.xid: number for number, each in enumerate(self._candidates)}
        definitions = [each.definition for each in self._candidates]
        self._validator = MessageValidator(self.catalog, self.endpoint, self.binding, definitions, self.uncarried)

    def compose(self, events: Sequence[RoutedEvent]) -> list[Outbound | UnsendableMessage]:
        """Return the message for each event, checked against its definition.

        The result is :class:`UnsendableMessage` if no definition has the event's type, or none of these can be filled
        and matches.
        """
        answers: dict[int, Outbound | UnsendableMessage] = {}
        tries = [_Attempt(place, event, iter(self._find_candidates(event))) for place, event in enumerate(events)]
        while tries:
            built = [(each, *found) for each in tries if (found := self._build_next(each)) is not None]
            answers.update((each.place, each.make_refusal(self.endpoint.xid)) for each in tries)
            numbered = [(self._numbers[candidate.definition.xid], message) for _, candidate, message in built]
            tries = []
            for (each, candidate, message), fault in zip(built, self._validator.find_faults(numbered), strict=True):
                frame = self.frames.get(candidate.definition.xid)
                answers[each.place] = add_frame(message, each.event, candidate.mode, frame)
                if fault:
                    each.faults.append(f"{candidate.definition.xid}: {fault}")
                    tries.append(each)
        return [answers[place] for place in range(len(events))]

    def _build_next(self, tried: _Attempt) -> tuple[_Candidate, Outbound] | None:
        """Build the event's message with the next usable definition; None if there are no more."""
        for candidate in tried.remaining:
            try:
                return candidate, self._build_message(candidate, tried.event)
            except (TemplateError, AddressError, UnsendableMessage) as error:
                tried.faults.append(f"{candidate.definition.xid}: {error}")
        return None

    def _iter_usable(self, definitions: Iterable[Definition]) -> Iterator[_Candidate]:
        for definition in definitions:
            target = match_candidate_of(definition, self.endpoint)
            if target is None or target.protocol not in (None, self.binding.protocol):
                continue
            native = target.native is not None and not target.envelope
            structured = not self.binding.binary or is_structured(definition, self.endpoint, self.binding)
            attributes = tuple((prop.name, attribute_constraint(prop)) for prop in definition.envelopemetadata)
            wanted: Mode = "native" if native else "structured" if structured else "binary"
            yield _Candidate(definition, self.mode or wanted, attributes)

    def _find_candidates(self, event: RoutedEvent) -> list[_Candidate]:
        own = [each for each in self._candidates if each.definition.xid == event.message]
        typed = [each for each in self._candidates if each not in own and each.has_type(event)]
        return [*own, *sorted(typed, key=lambda each: not each.matches_attributes(event))]

    def _build_message(self, candidate: _Candidate, event: RoutedEvent) -> Outbound:
        definition = candidate.definition
        values = {**event.attributes, **candidate.placeholder_values(event), **event.context}
        parts = self._sending.build_option_parts(self._iter_options(definition, values))
        for part in parts:
            if part.text is None and not self._sending.carries_bytes(part.key):
                raise UnsendableMessage(f"{part.key} must be text, but its bytes are not UTF-8")
        keys = {part.key for part in parts}
        for name in self._sending.scalar_options:
            if name in self.endpoint.options and name not in keys:
                parts.append(Part(name, msgspec.json.encode(self.endpoint.options[name]), JSON_KIND))
        if self.least:
            parts = [self._raise_to_minimum(part) for part in parts]
        parts += [part for part in self._iter_listed_parts(values) if part.key not in keys]
        for name, text in self._sending.channel_address(definition, self.endpoint, connected=True).items():
            if name not in keys:
                parts.append(Part(name, self._expand_address(text, values).encode()))
        if self._sending.key_name and self._sending.key_name not in keys:
            parts += self._build_key_part(event, values)
        address = validate_address(self._build_address(definition, parts, values), self._sending)
        kept = [part for part in parts if not part.key.startswith(_QUERY)]
        return build_message(
            event, self.binding, candidate.mode, address, kept, lineage=self.lineage, passing=self.passing
        )

    def _raise_to_minimum(self, part: Part) -> Part:
        if part.key in self.least and (part.text or "").isdecimal():
            return part._replace(value=b"%d" % max(self.least[part.key], int(part.text or "")))
        return part

    def _iter_options(self, definition: Definition, values: Mapping[str, str]) -> Iterator[tuple[Property, str]]:
        """Yield the protocol options to send, with their values as text."""
        for prop in definition.protocoloptions:
            name = prop.name.rpartition(".")[2]
            if prop.value is not None:
                yield prop, self._expand_option(prop, values)
            elif prop.required and prop.name not in self._by_channel and prop.name != self.binding.rule.content_type:
                text = values.get(name, values.get(_OF_EVENT.get(name, "")))
                if text is None:
                    raise UnsendableMessage(f"requires {prop.name}, which has no value")
                yield prop, text

    def _expand_option(self, prop: Property, values: Mapping[str, str]) -> str:
        text = to_text(cast(Any, prop.value))
        if prop.type == "timestamp" and is_any_timestamp(text):
            if "time" not in values:
                raise UnsendableMessage(f"{prop.name} is a time, but the event has no time")
            return values["time"]
        if prop.type not in TEMPLATE_TYPES:
            return text
        dots = self._sending.has_dotted_levels and prop.name == self._sending.address_key
        template = parse_cached_template(text, dots)
        if template.is_literal:
            return text
        expanded = template.expand(values, encode=prop.type == "uritemplate")
        if template.match(expanded, decode=prop.type == "uritemplate") is None:
            raise UnsendableMessage(f"a value does not fit {prop.name} {prop.value!r}")
        return expanded

    def _iter_listed_parts(self, values: Mapping[str, str]) -> Iterator[Part]:
        """Yield headers and query values from the endpoint's options."""
        for member in self._sending.listed_options:
            listed = self.endpoint.options.get(member)
            pairs = listed.items() if isinstance(listed, dict) else _iter_name_values(listed)
            for name, value in pairs:
                text = parse_cached_template(to_text(value), False).expand(values, encode=False)
                yield Part(f"{member}.{name.lower() if member == 'headers' else name}", text.encode())

    def _expand_address(self, text: str, values: Mapping[str, str]) -> str:
        """Expand a template of the channel; values are encoded so that they cannot add levels or wildcards."""
        template = parse_cached_template(text, False)
        known = {name: self._sending.encode_value(values[name]) for name in template.names if name in values}
        return template.expand(known, encode=False)

    def _build_address(self, definition: Definition, parts: list[Part], values: Mapping[str, str]) -> str:
        declared = any(prop.name == "path" and prop.value is not None for prop in definition.protocoloptions)
        return self._sending.build_address(
            parts, self.endpoint, declared, lambda text: self._expand_address(text, values)
        )

    def _build_key_part(self, event: RoutedEvent, values: Mapping[str, str]) -> list[Part]:
        """Return the part with the record's key: the endpoint's, else ``partitionkey``, else the source record's."""
        fixed = self.endpoint.options.get("key")
        own = event.attributes.get("partitionkey")
        if fixed:
            data: bytes | None = parse_cached_template(str(fixed), False).expand(values, encode=False).encode()
        else:
            data = own.encode() if own else find_partition_key(event)
        return [] if data is None else [Part(self._sending.key_name, data, BINARY_KIND)]


def is_structured(definition: Definition, endpoint: Endpoint, binding: Binding) -> bool:
    """Whether a definition's content type, else its option ``mode`` or ``content-mode``, is structured."""
    for prop in definition.protocoloptions:
        if prop.name == binding.rule.content_type and isinstance(prop.value, str):
            return prop.value.lower().startswith(STRUCTURED)
    modes = [each.get("mode") for each in (definition.envelopeoptions, endpoint.envelopeoptions)]
    modes.append(endpoint.options.get("content-mode"))
    return next((mode.lower() for mode in modes if isinstance(mode, str)), "") == "structured"


def _iter_name_values(listed: object) -> Iterator[tuple[str, Any]]:
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and entry.get("value") is not None:
            yield entry["name"], entry["value"]


# Create a message sink from its settings and its endpoint in the catalog.


def open_messages(name: str, settings: RemoteSink, kind: str, catalog: Catalog, framings: object) -> ArrowSink:
    """Create the message sink of events; message sinks do not accept dead letters."""
    endpoint = find_endpoint(name, settings, catalog)
    settings.cluster_at(name, endpoint)
    composer = make_composer(settings, endpoint, catalog)
    publisher = get_publisher(name, settings, endpoint)
    return ConfirmedSink(name, composer, publisher, settings.message_form.max_body, get_destination_cap(name, settings))


def find_endpoint(name: str, settings: RemoteSink, catalog: Catalog) -> Endpoint | None:
    """Return the endpoint in a sink's settings; None if there is none.

    Raises:
        SinkError: the catalog does not have it, or this type of sink cannot send to it. A later catalog may fix that.
    """
    if settings.endpoint is None:
        return None
    endpoint = catalog.endpoints.get(settings.endpoint)
    if endpoint is None:
        hint = Suggestions(catalog.endpoints).hint(settings.endpoint, "add it, or correct the name")
        raise SinkError(name, f"the catalog has no endpoint {settings.endpoint}", hint=hint)
    if endpoint.usage and "producer" not in endpoint.usage:
        used = ", ".join(endpoint.usage)
        raise SinkError(name, f"{endpoint.xid} is for {used}", hint="name an endpoint with usage producer")
    binding = BINDINGS.get(endpoint.protocol or "")
    if binding is None or binding.sending.family != settings.family:
        spoken = endpoint.protocol or "no protocol"
        text = f"{endpoint.xid} has {spoken}, but the sink is {settings.family}"
        raise SinkError(name, text, hint="change the type of the sink")
    return endpoint


def make_composer(settings: RemoteSink, endpoint: Endpoint | None, catalog: Catalog) -> MessageBuilder:
    """Create the message builder: for an endpoint's definitions, or for the template in the settings."""
    binding, form = settings.binding(endpoint), settings.message_form
    passing = make_header_forwarder(settings, binding)
    if endpoint is not None:
        return EndpointComposer(
            catalog,
            endpoint,
            binding,
            mode=form.mode,
            lineage=settings.lineage,
            least=form.least,
            passing=passing,
            uncarried=form.uncarried,
        )
    return TemplateComposer(
        parse_address(settings.template, binding.sending),
        binding,
        form.mode or ("binary" if binding.binary else "structured"),
        strict=settings.missing == "reject",
        lineage=settings.lineage,
        given=form.given,
        passing=passing,
    )


def make_header_forwarder(settings: RemoteSink, binding: Binding) -> HeaderForwarder | None:
    """Create the forwarder of record headers; None if the settings disable it."""
    taken = settings.message_form.reserved_headers
    return None if taken is None else HeaderForwarder(binding, taken)
