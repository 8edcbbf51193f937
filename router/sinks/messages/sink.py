"""A sink that sends each row as a message and returns once all are confirmed.

At least once: a batch repeated after a crash is sent again. Within a process, the sink remembers the results of the
current batch, so that an outage within the batch causes no duplicates.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec
import pyarrow as pa

from bindings.amqp.values import TYPES_KEY, merge_parts, types_of
from bindings.envelope import (
    ATTRIBUTE_NAME,
    EVENT_MEDIA,
    STRUCTURED,
    UNESCAPED,
    AttributeRule,
    attribute_of_key,
    build_attribute_parts,
)
from bindings.events import encode_event
from bindings.gateways import GatewayError
from bindings.parts import JSON_KIND, Part, Parts, content_coding_of, first_part
from bindings.protocols import BINDINGS, CARRIED_PREFIXES, Binding, binding_of
from bindings.sending import MessageRefusal, Outbound, Publisher, Unsettled
from catalog.findings import RecordError
from catalog.model import Endpoint
from catalog.protocols.properties import CONNECTION_HEADERS
from catalog.values import media_type_of
from router.errors import SinkError
from router.matching.record_columns import SCHEMA_ID
from router.rendering.lineage import encode_context, lineage_headers
from router.rendering.texts import TIME_TEXT, TYPED
from router.settings.routes import AddressError, AddressTemplate, describe_missing, make_event_values
from router.settings.sinks.contract import RemoteSink
from router.settings.values import LineageForm
from router.sinks.contract import ArrowSink, Commit, RejectedRow, WriteResult
from router.sinks.jsonlines import AMBIGUOUS, RARE, WIDE, map_to_dict, read_attributes
from router.watching.batches import report_progress

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame

# Rows of the wide table as messages of one protocol. A message is built from *parts*, the form in which records are
# read (:mod:`bindings.parts`), so our codec of the protocol reads back what a sink builds.

# Forwarding of a record's headers that are not CloudEvents attributes.
#
# Each protocol has its own form: headers, user properties, application properties. Four kinds are omitted: headers of
# the connection, headers that would be read as an attribute of the event, headers that the target's client sets, and
# headers that its protocol cannot express. No message is rejected because of a header.

LINEAGE: Final = "xrouter-"
"""Prefix of the headers that this router adds; those of an earlier router are not forwarded."""
_HEADERS: Final = "headers."
_MEMBERS: Final = tuple(f'"{name[:-1]}"' for name in CARRIED_PREFIXES)


@dataclass(frozen=True, slots=True)
class HeaderForwarder:
    """Forwards record headers to one target; ``taken`` are the headers, in lower case, that its client sets."""

    binding: Binding
    taken: frozenset[str] = frozenset()

    def convert(self, protocol: str, native: str, *, binary: bool, structured: bool) -> Iterator[Part]:
        """Convert the headers of a record, given as native JSON of *protocol*, to parts of the target's protocol.

        *binary* and *structured* are the mode of the message; without an envelope both are False.
        """
        source = binding_of(protocol)
        if source is None or not self.binding.binary or not any(member in native for member in _MEMBERS):
            return
        place = self.binding.headers
        types: dict[str, str] = {}
        for name, part, wire_type in _iter_source_headers(source, native):
            if structured and name.lower().startswith("content-"):
                continue  # describes the body, which is now inside the event
            header = self.binding.sending.convert_header(name, part)
            if header is None or header.key.lower() in self.taken:
                continue
            key = f"{place}.{header.key}"
            if not _is_read_as_attribute(key, self.binding.rule, binary=binary):
                yield header._replace(key=key)
                if wire_type and source.protocol == self.binding.protocol:
                    types[key] = wire_type
        if types:
            yield Part(TYPES_KEY, msgspec.json.encode(types), JSON_KIND)


def _iter_source_headers(source: Binding, native: str) -> Iterator[tuple[str, Part, str]]:
    """Yield name, part and AMQP type of each record header that is not an attribute of the record's envelope."""
    try:
        parts: Parts = source.split(msgspec.json.decode(native))
    except (msgspec.DecodeError, RecordError):
        return  # a native record that cannot be parsed has no headers
    types = types_of(parts)
    bare = source.rule.prefixes[0] in CARRIED_PREFIXES
    is_event = any(attribute_of_key(part.key, source.rule) == "specversion" for part in parts)
    content = first_part(parts, source.rule.content_type)
    within = content is not None and media_type_of(content.text).startswith(EVENT_MEDIA)
    for part in parts:
        prefix = next((known for known in CARRIED_PREFIXES if part.key.startswith(known)), None)
        if prefix is None or part.value is None:
            continue
        name = part.key.removeprefix(prefix)
        attribute = attribute_of_key(part.key, source.rule)
        if attribute is not None and (not bare or (is_event and ATTRIBUTE_NAME.fullmatch(attribute))):
            continue
        lowered = name.lower()
        if not name or lowered == "content-type" or lowered.startswith(LINEAGE):
            continue
        if prefix == _HEADERS and (lowered in CONNECTION_HEADERS or (within and lowered.startswith("content-"))):
            continue
        yield name, part, types.get(part.key, "")


def _is_read_as_attribute(key: str, rule: AttributeRule, *, binary: bool) -> bool:
    """Whether a receiver would read a part as an attribute of the event.

    If attributes have no prefix (MQTT), any valid attribute name is one in binary mode; without an envelope, only
    ``specversion``, which would make the message an event.
    """
    name = attribute_of_key(key, rule)
    if name is None or rule.prefixes[0] not in CARRIED_PREFIXES:
        return name is not None
    return ATTRIBUTE_NAME.fullmatch(name) is not None if binary else name == "specversion"


Mode = Literal["binary", "structured", "native"]
MESSAGE: Final = pa.schema([*WIDE, *((name, pa.string()) for name in (TIME_TEXT, TYPED, AMBIGUOUS))])
"""The columns of rows for message sinks: WIDE, with the original text of ``time`` and the types of attributes."""
_JSON: Final = re.compile("[/+]json")


class UnsendableMessage(Exception):
    """A message that can never be sent to this target; the message says why and is in the dead letter."""


@dataclass(frozen=True, slots=True)
class RoutedEvent:
    """A routed event. ``attributes`` are text, ``specversion`` first; ``native`` is the record's JSON without body."""

    attributes: Mapping[str, str]
    data: bytes | None
    message: str
    endpoint: str
    epoch: str
    position: str
    context: Mapping[str, str]
    protocol: str = ""
    native: str = "{}"
    more_lineage: Mapping[str, str] = field(default_factory=dict)
    """Optional lineage: how a tie was resolved, and related messages."""


def make_event(row: Mapping[str, Any]) -> RoutedEvent:
    """Return the event of one row of :data:`MESSAGE`."""
    return RoutedEvent(
        read_attributes(row),
        row.get("data"),
        row.get("message") or "",
        row.get("endpoint") or "",
        row.get("epoch") or "",
        row.get("position") or "",
        map_to_dict(row.get("context")),
        row.get("protocol") or "",
        row.get("native") or "{}",
        {name: row[name] for name in RARE if row.get(name)},
    )


def build_message(
    event: RoutedEvent,
    binding: Binding,
    mode: Mode,
    address: str,
    given: Sequence[Part] = (),
    *,
    lineage: LineageForm = True,
    passing: HeaderForwarder | None = None,
) -> Outbound:
    """Build a message from *given* parts and the event, by the CloudEvents binding of the protocol.

    An attribute overrides a given part with the same key. Data that is itself an event is sent in structured mode,
    since a receiver would mistake its content type for that of the message. ``native`` sends data only. *passing* adds
    headers of the record, which attributes and given parts override.
    """
    content_type = event.attributes.get("datacontenttype")
    body = event.data
    if mode == "binary" and (not binding.binary or media_type_of(content_type).startswith(EVENT_MEDIA)):
        mode = "structured"
    own: list[Part] = []
    if mode == "binary":
        own = build_attribute_parts(binding.rule, event.attributes)
    elif mode == "structured":
        body = encode_event(event.attributes, event.data)
        own = [Part(binding.rule.content_type, STRUCTURED.encode())]
    elif content_type is not None:
        own = [Part(binding.rule.content_type, content_type.encode())]
    if not binding.binary:
        own = []
    elif lineage:
        own += build_lineage_parts(event, binding, lineage)
    own += _build_key_parts(event, binding) if all(part.key != binding.partition_key for part in given) else []
    keys = {part.key for part in own} - {TYPES_KEY}
    parts = merge_parts([part for part in given if part.key not in keys], own)
    if passing is not None:
        keys = {part.key for part in parts}
        came = passing.convert(event.protocol, event.native, binary=mode == "binary", structured=mode == "structured")
        parts = merge_parts(parts, [part for part in came if part.key not in keys or part.key == TYPES_KEY])
    identity = "|".join((event.endpoint, event.position, event.attributes["source"], event.attributes["id"]))
    return Outbound(address, parts, body, event.position.rpartition("-")[0], identity)


def find_partition_key(event: RoutedEvent) -> bytes | None:
    """Return the partition key of an event's source record; None if it has none."""
    binding = BINDINGS.get(event.protocol)
    # A quick check: most records need not be parsed.
    if binding is None or not binding.partition_key or binding.partition_key.rpartition(".")[2] not in event.native:
        return None
    try:
        part = first_part(binding.split(msgspec.json.decode(event.native)), binding.partition_key)
    except (msgspec.DecodeError, RecordError):
        return None  # a native record that cannot be parsed has no key
    return None if part is None else part.value


def _build_key_parts(event: RoutedEvent, binding: Binding) -> list[Part]:
    """Return the part with the event's partition key; none for Kafka, whose composers set the record's key."""
    if not binding.partition_key or binding.sending.key_name:
        return []
    own = event.attributes.get("partitionkey")
    part = Part(binding.partition_key, own.encode() if own else find_partition_key(event))
    return [part] if part.text else []


def add_frame(message: Outbound, event: RoutedEvent, mode: Mode, frame: WrittenFrame | None) -> Outbound:
    """Return a message with its body prefixed by a frame.

    A body is not changed if it has a frame already, has a content coding, or is JSON although the schema's bodies are
    binary; neither is an event in structured mode.
    """
    if frame is None or message.body is None or mode == "structured" or event.more_lineage.get(SCHEMA_ID):
        return message
    is_json = _JSON.search((event.attributes.get("datacontenttype") or "").lower()) is not None
    if content_coding_of(message.parts) or (is_json and not frame.plain):
        return message
    return replace(message, body=frame.head + message.body)


def build_lineage_parts(event: RoutedEvent, binding: Binding, form: LineageForm = True) -> list[Part]:
    """Return the ``xrouter-*`` properties (MATCHING.md#what-comes-out), percent-encoded if attributes are."""
    members = {"endpoint": event.endpoint, "epoch": event.epoch, "position": event.position, **event.more_lineage}
    headers = lineage_headers(event.message, encode_context(event.context), members, form)
    return [
        Part(f"{binding.headers}.{name}", (quote(text, safe=UNESCAPED) if binding.rule.encoded else text).encode())
        for name, text in headers.items()
    ]


# The cap on distinct destinations of a sink (MATCHING.md#what-comes-out).
#
# Templates build topics, nodes, subjects and URLs from external values, and a broker may create each one. So a sink has
# a maximum number of them; records for further ones are ``sink-rejected``. Known destinations are in memory: they are
# shared by all plans of a process, and counted from zero after a restart.

_destination_caps: dict[str, DestinationCap] = {}
_lock: Final = threading.Lock()


class DestinationCap:
    """The destinations that one sink has sent to; thread-safe."""

    def __init__(self, max_destinations: int) -> None:
        self.max_destinations = max_destinations
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def fault(self, address: str) -> str | None:
        """Count a new destination; return why it cannot be used if there are more than the cap, else None."""
        if address in self._known:
            return None
        with self._lock:
            if len(self._known) < self.max_destinations:
                self._known.add(address)
                return None
        return (
            f"it would be destination {self.max_destinations + 1} of the sink, whose max_destinations is "
            f"{self.max_destinations}; let the template have fewer values, or raise the cap"
        )


def get_destination_cap(name: str, settings: RemoteSink) -> DestinationCap:
    """Return the destination cap of a sink in this process: the known one if connection and templates are the same."""
    key = repr((name, settings.own_addresses, settings.endpoint, settings.template))
    with _lock:
        spread = _destination_caps.setdefault(key, DestinationCap(settings.max_destinations))
        spread.max_destinations = settings.max_destinations
        return spread


CHUNK: Final = 500
"""Messages passed to the client at a time; after an error, only complete groups are known to be confirmed."""
_UNUSED: Final = ("time", "received")
"""Columns that are not read: times may be outside Python's calendar, and are sent as the event's text."""
REASON_CAP: Final = 500


Settled = dict[str, RejectedRow | None]
"""The results of a batch's records, by position; None means delivered."""


class MessageBuilder(ABC):
    """Builds messages of events."""

    frames: Mapping[str, WrittenFrame] = MappingProxyType({})
    """The frames before the bodies of definitions, by xid."""

    @abstractmethod
    def compose(self, events: Sequence[RoutedEvent]) -> Sequence[Outbound | UnsendableMessage]:
        """Return for each event its message, or why it cannot be sent to this target."""


@dataclass(eq=False)
class TemplateComposer(MessageBuilder):
    """Builds messages with an address from a template in the settings; ``given`` parts are added to each message.

    ``passing`` forwards headers of records; None omits them. ``strict`` rejects events without a value for the address.
    """

    template: AddressTemplate
    binding: Binding
    mode: Mode
    lineage: LineageForm = True
    given: Sequence[Part] = ()
    passing: HeaderForwarder | None = None
    strict: bool = False

    def compose(self, events: Sequence[RoutedEvent]) -> list[Outbound | UnsendableMessage]:
        """Return for each event its message, or why not: its address is too long or lacks a value."""
        composed: list[Outbound | UnsendableMessage] = []
        for event in events:
            try:
                composed.append(self._build_message(event))
            except UnsendableMessage as error:
                composed.append(error)
        return composed

    def _build_message(self, event: RoutedEvent) -> Outbound:
        values = make_event_values(event.message, event.endpoint, "", event.context, event.attributes)
        missing = self.template.missing(values) if self.strict else ()
        if missing:
            raise UnsendableMessage(describe_missing(missing, "the address"))
        try:
            address = self.template.expand(values)
        except AddressError as error:
            raise UnsendableMessage(str(error)) from error
        message = build_message(
            event, self.binding, self.mode, address, self.given, lineage=self.lineage, passing=self.passing
        )
        return add_frame(message, event, self.mode, self.frames.get(event.message))


@dataclass(eq=False)
class ConfirmedSink(ArrowSink):
    """Implements :class:`~router.sinks.contract.ArrowSink` for rows of :data:`router.sinks.messages.sink.MESSAGE`.

    Safe for use by several queries; their batches are sent one after the other. ``max_body`` is in bytes, ``spread``
    limits the number of destinations.
    """

    name: str
    composer: MessageBuilder
    publisher: Publisher
    max_body: int | None = None
    spread: DestinationCap | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _settled: dict[str, tuple[int, Settled]] = field(default_factory=dict, init=False)

    def set_frames(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Prefix the bodies of these definitions with frames."""
        self.composer.frames = frames

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Send the rows of a batch that have no result yet. Rows that the target will never accept are ``refused``.

        Raises:
            SinkError: the target is not available. Calling again with the same commit continues.
        """
        if rows.num_rows == 0:
            return WriteResult(0)  # without waiting for another query's batch
        kept = rows.drop_columns([name for name in _UNUSED if name in rows.column_names])
        with self._lock:
            settled = self.get_known_results(commit)
            self._settled[commit.whole] = (commit.version, settled)
            for batch in kept.to_batches(max_chunksize=CHUNK):
                self._send([row for row in map(make_event, batch.to_pylist()) if row.position not in settled], settled)
                report_progress()
            mine = [settled.get(position) for position in kept.column("position").to_pylist()]
        refused = tuple(record for record in mine if record is not None)
        return WriteResult(rows.num_rows - len(refused), refused=refused)

    def has_commit(self, commit: Commit) -> bool:
        """Return False: no target remembers batches."""
        return False

    def iter_missing_rows(self, commit: Commit, share: Iterable[RejectedRow]) -> Iterator[RejectedRow]:
        """Yield the rows that the target has not accepted in this process; refused rows have their own reason."""
        settled = dict(self.get_known_results(commit))
        return (left for row in share if (left := settled.get(row.position, row)) is not None)

    def get_known_results(self, commit: Commit) -> Settled:
        """Return the results of a batch in this process, by position; None means delivered.

        They are stored for the whole batch, whose positions are unique, so that parts share them.
        """
        version, settled = self._settled.get(commit.whole, (-1, {}))
        return settled if version == commit.version else {}

    def _send(self, events: list[RoutedEvent], settled: Settled) -> None:
        messages: list[Outbound] = []
        sent: list[RoutedEvent] = []
        for event, message in zip(events, self.composer.compose(events), strict=True):
            try:
                if isinstance(message, UnsendableMessage):
                    raise message
                messages.append(self._check_limits(message))
                sent.append(event)
            except UnsendableMessage as error:
                settled[event.position] = _to_rejected_row(event, MessageRefusal(str(error)))
        if not messages:
            return
        for at, answer in send_messages(self.name, self.publisher, messages):
            settled[sent[at].position] = _to_rejected_row(sent[at], answer)

    def _check_limits(self, message: Outbound) -> Outbound:
        size = len(message.body or b"")
        if self.max_body is not None and size > self.max_body:
            raise UnsendableMessage(f"a body of {size} bytes exceeds the sink's max_body, {self.max_body}")
        fault = self.spread.fault(message.address) if self.spread is not None else None
        if fault is not None:
            raise UnsendableMessage(f"{message.address[: REASON_CAP // 4]}: {fault}")
        return message


def send_messages(
    sink: str, publisher: Publisher, messages: Sequence[Outbound], hint: str = ""
) -> Iterator[tuple[int, MessageRefusal | None]]:
    """Send messages, and yield the place of each that is settled, with why it was refused.

    Raises:
        SinkError: the target is not available; raised after what is settled.
    """
    try:
        yield from enumerate(publisher.send(messages))
    except (Unsettled, GatewayError) as error:
        yield from (error.settled if isinstance(error, Unsettled) else {}).items()
        raise SinkError(sink, str(error), hint=hint) from error


def _to_rejected_row(event: RoutedEvent, refusal: MessageRefusal | None) -> RejectedRow | None:
    if refusal is None:
        return None
    return RejectedRow(event.position, refusal.reason[:REASON_CAP], event.endpoint, event.message)


# Connections of sinks are reused: each plan creates its own sinks, but a sink with the same name, settings and endpoint
# uses the existing connection.

_publishers: dict[str, Publisher] = {}


def get_publisher(name: str, settings: RemoteSink, endpoint: Endpoint | None) -> Publisher:
    """Return the publisher of a sink: the existing one if its connection settings are unchanged."""
    reached = None if endpoint is None else (endpoint.uris, sorted(endpoint.options.items(), key=lambda item: item[0]))
    key = repr((name, settings, reached))
    with _lock:
        if key not in _publishers:
            _publishers[key] = _SharedPublisher(lambda: settings.publisher(name, settings.binding(endpoint), endpoint))
        return _publishers[key]


def close_publishers() -> None:
    """Disconnect all publishers; a sink that is used again reconnects."""
    with _lock:
        for publisher in _publishers.values():
            publisher.close()


class _SharedPublisher:
    """A publisher that connects on first use, and is used by one thread at a time."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        self._make = make
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        with self._lock:
            if self._publisher is None:
                self._publisher = self._make()
            return self._publisher.send(messages)

    def close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # An interrupted batch is still sending; its connection ends with the process.
        try:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
        finally:
            self._lock.release()
