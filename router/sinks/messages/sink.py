"""A sink that sends each row as a message and returns once all are confirmed.

At least once: a batch repeated after a crash is sent again. Within one process the sink remembers what a target has
settled of a batch until the next batch, so that an outage in mid-batch makes no duplicates.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
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
from bindings.events import encode_event, restore_types
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
from router.sinks.contract import ArrowSink, Commit, Rejected, WriteResult
from router.sinks.jsonlines import AMBIGUOUS, RARE, WIDE, instant_text, pairs_of
from router.watching.batches import report_progress

if TYPE_CHECKING:
    from router.schemaids.framing import WrittenFrame

# Events as message sinks take them from the wide table, and what they become for one protocol.
#
# A message is made as *parts*, the form in which records are read (:mod:`bindings.parts`): what a sink makes is what
# our own codec of that protocol reads back.

# Headers that a record came with and that were no CloudEvents attributes, passed on with the message it becomes.
#
# Each protocol has a place of its own for them: headers, user properties, application properties. Four kinds are left
# out: headers of a connection and not of the message, those that would be read as an attribute of the event, those that
# the target sets by itself, and those that its protocol has no form for. No message is rejected for a header.

LINEAGE: Final = "xrouter-"
"""Prefix of the names this router adds; those of a router before it are not passed on."""
_HEADERS: Final = "headers."
_MEMBERS: Final = tuple(f'"{name[:-1]}"' for name in CARRIED_PREFIXES)


@dataclass(frozen=True, slots=True)
class HeaderPassing:
    """What is passed on to one target; ``taken`` are the names, in lower case, that its client sets by itself."""

    binding: Binding
    taken: frozenset[str] = frozenset()

    def parts(self, protocol: str, native: str, *, binary: bool, structured: bool) -> Iterator[Part]:
        """Yield the parts for a record of that protocol, whose native form is JSON text.

        *binary* and *structured* say the mode of the message that is made; without an envelope it is neither.
        """
        source = binding_of(protocol)
        if source is None or not self.binding.binary or not any(member in native for member in _MEMBERS):
            return
        place = self.binding.headers
        types: dict[str, str] = {}
        for name, part, wire_type in _came(source, native):
            if structured and name.lower().startswith("content-"):
                continue  # of the body as it was, which is now within another one
            header = self.binding.sending.convert_header(name, part)
            if header is None or header.key.lower() in self.taken:
                continue
            key = f"{place}.{header.key}"
            if not _reads_as_attribute(key, self.binding.rule, binary=binary):
                yield header._replace(key=key)
                if wire_type and source.protocol == self.binding.protocol:
                    types[key] = wire_type
        if types:
            yield Part(TYPES_KEY, msgspec.json.encode(types), JSON_KIND)


def _came(source: Binding, native: str) -> Iterator[tuple[str, Part, str]]:
    """Yield names, parts and AMQP types of the headers that were not attributes of the record's own envelope."""
    try:
        parts: Parts = source.split(msgspec.json.decode(native))
    except (msgspec.DecodeError, RecordError):
        return  # the native record is shown, not relied on: an unusual one has no headers
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


def _reads_as_attribute(key: str, rule: AttributeRule, *, binary: bool) -> bool:
    """Whether a reader of the message would read a part as an attribute of the event.

    Where attributes have no prefix (MQTT), any name of the right form is one in binary mode; without an envelope, the
    one that would make an event of the message.
    """
    name = attribute_of_key(key, rule)
    if name is None or rule.prefixes[0] not in CARRIED_PREFIXES:
        return name is not None
    return ATTRIBUTE_NAME.fullmatch(name) is not None if binary else name == "specversion"


Mode = Literal["binary", "structured", "native"]
MESSAGE: Final = pa.schema([*WIDE, *((name, pa.string()) for name in (TIME_TEXT, TYPED, AMBIGUOUS))])
"""The columns that message sinks get: an instant cannot give back ``time`` as it was written, nor a text its type."""
_JSON: Final = re.compile("[/+]json")
_NAMES: Final = ("id", "source", "type", "subject", "datacontenttype", "dataschema")


class UnsendableMessage(Exception):
    """A message that can never be sent to this target; the message says why and is in the dead letter."""


@dataclass(frozen=True, slots=True)
class RoutedEvent:
    """One routed event. ``attributes`` hold text, ``specversion`` first; ``native`` is the record's JSON, no body."""

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
    """More of the lineage, where there is any: how a tie was decided, and what the event is related to."""


def event_of(row: Mapping[str, Any]) -> RoutedEvent:
    """Return the event of one row of :data:`MESSAGE`."""
    attributes = {"specversion": row.get("specversion") or "1.0"}
    attributes.update((name, row[name]) for name in _NAMES if row[name] is not None)
    time = row.get(TIME_TEXT) or instant_text(row.get("time"))
    if time is not None:
        attributes["time"] = time
    attributes.update(pairs_of(row.get("extensions")))
    return RoutedEvent(
        restore_types(attributes, row.get(TYPED)),
        row.get("data"),
        row.get("message") or "",
        row.get("endpoint") or "",
        row.get("epoch") or "",
        row.get("position") or "",
        pairs_of(row.get("context")),
        row.get("protocol") or "",
        row.get("native") or "{}",
        {name: row[name] for name in RARE if row.get(name)},
    )


def outbound(
    event: RoutedEvent,
    binding: Binding,
    mode: Mode,
    address: str,
    given: Sequence[Part] = (),
    *,
    lineage: LineageForm = True,
    passing: HeaderPassing | None = None,
) -> Outbound:
    """Build a message from *given* parts and the event, by the CloudEvents binding of the protocol.

    An attribute goes before a given part of the same key. Data that is itself an event travels in structured mode:
    its content type in the place of ours would make a reader take it for this one. ``native`` sends data alone.
    *passing* adds the headers that the record came with; both of the others go before them.
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
        own += lineage_parts(event, binding, lineage)
    own += _annotations(event, binding) if all(part.key != binding.partition_key for part in given) else []
    keys = {part.key for part in own} - {TYPES_KEY}
    parts = merge_parts([part for part in given if part.key not in keys], own)
    if passing is not None:
        keys = {part.key for part in parts}
        came = passing.parts(event.protocol, event.native, binary=mode == "binary", structured=mode == "structured")
        parts = merge_parts(parts, [part for part in came if part.key not in keys or part.key == TYPES_KEY])
    identity = "|".join((event.endpoint, event.position, event.attributes["source"], event.attributes["id"]))
    return Outbound(address, parts, body, event.position.rpartition("-")[0], identity)


def source_key(event: RoutedEvent) -> bytes | None:
    """Return the partition key that a record came with, where its protocol has one."""
    binding = BINDINGS.get(event.protocol)
    # Most records are told apart by this, without being read.
    if binding is None or not binding.partition_key or binding.partition_key.rpartition(".")[2] not in event.native:
        return None
    try:
        part = first_part(binding.split(msgspec.json.decode(event.native)), binding.partition_key)
    except (msgspec.DecodeError, RecordError):
        return None  # the native record is shown, not relied on: an unusual one has no key
    return None if part is None else part.value


def _annotations(event: RoutedEvent, binding: Binding) -> list[Part]:
    """Return the part with the event's partition key, where that is none of the record's own (Kafka's composers)."""
    if not binding.partition_key or binding.sending.key_name:
        return []
    own = event.attributes.get("partitionkey")
    part = Part(binding.partition_key, own.encode() if own else source_key(event))
    return [part] if part.text else []


def framed(message: Outbound, event: RoutedEvent, mode: Mode, frame: WrittenFrame | None) -> Outbound:
    """Return a message whose body follows a frame.

    A body stays as it is that has one already, that is in a content coding, or that is JSON of a schema whose bodies
    are bytes; so does an event in structured mode.
    """
    if frame is None or message.body is None or mode == "structured" or event.more_lineage.get(SCHEMA_ID):
        return message
    is_json = _JSON.search((event.attributes.get("datacontenttype") or "").lower()) is not None
    if content_coding_of(message.parts) or (is_json and not frame.plain):
        return message
    return replace(message, body=frame.head + message.body)


def lineage_parts(event: RoutedEvent, binding: Binding, form: LineageForm = True) -> list[Part]:
    """Return the ``xrouter-*`` properties (MATCHING.md#what-comes-out), percent-encoded where attributes are."""
    members = {"endpoint": event.endpoint, "epoch": event.epoch, "position": event.position, **event.more_lineage}
    headers = lineage_headers(event.message, encode_context(event.context), members, form)
    return [
        Part(f"{binding.headers}.{name}", (quote(text, safe=UNESCAPED) if binding.rule.encoded else text).encode())
        for name, text in headers.items()
    ]


# The cap on distinct destinations of a sink (MATCHING.md#what-comes-out).
#
# Templates build topics, nodes, subjects and URLs from external values, and a broker may create each one. So a sink has
# a maximum number of them; beyond that a record is ``sink-rejected``. The known ones are in memory: a new plan of the
# same process keeps them, and a restart starts counting from zero.

_spreads: dict[str, DestinationCap] = {}
_lock: Final = threading.Lock()


class DestinationCap:
    """The destinations that one sink has sent to; thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def fault(self, address: str) -> str | None:
        """Count a destination, and return None; one beyond the cap is not counted, and the text says so."""
        if address in self._known:
            return None
        with self._lock:
            if len(self._known) < self.most:
                self._known.add(address)
                return None
        return (
            f"it would be destination {self.most + 1} of the sink, whose max_destinations is {self.most}; "
            f"let the template have fewer values, or raise the cap"
        )


def kept_spread(key: str, most: int) -> DestinationCap:
    """Return the destinations of the sink with that key in this process; *most* applies from now on."""
    with _lock:
        spread = _spreads.setdefault(key, DestinationCap(most))
        spread.most = most
        return spread


CHUNK: Final = 500
"""Messages passed to the client at a time; only whole groups are known to be confirmed after an error."""
_UNUSED: Final = ("time", "received")
"""Instants, which may lie outside Python's calendar and are sent as the event wrote them."""
REASON_CAP: Final = 500


Settled = dict[str, Rejected | None]
"""The results of a batch's records, by position; None is delivered."""


class MessageBuilder(Protocol):
    """Builds messages of events."""

    def compose(self, events: Sequence[RoutedEvent]) -> Sequence[Outbound | UnsendableMessage]:
        """Return the message for each event; NotTaken says why there can be none for this target."""
        ...

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        ...


class TemplateComposer:
    """Builds messages for the address of a template in the settings; ``given`` parts are on every one.

    ``passing`` adds the headers of records; None leaves them out. ``strict`` rejects events without a value for the
    address.
    """

    def __init__(
        self,
        template: AddressTemplate,
        binding: Binding,
        mode: Mode,
        *,
        lineage: LineageForm = True,
        given: Sequence[Part] = (),
        passing: HeaderPassing | None = None,
        strict: bool = False,
    ) -> None:
        self._template = template
        self._strict = strict
        self._binding = binding
        self._mode = mode
        self._lineage = lineage
        self._given = tuple(given)
        self._passing = passing
        self._frames: Mapping[str, WrittenFrame] = {}

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        self._frames = frames

    def compose(self, events: Sequence[RoutedEvent]) -> list[Outbound | UnsendableMessage]:
        """Return the message for each event; NotTaken for an address too long, or that misses a value and may not."""
        composed: list[Outbound | UnsendableMessage] = []
        for event in events:
            try:
                composed.append(self._composer(event))
            except UnsendableMessage as error:
                composed.append(error)
        return composed

    def _composer(self, event: RoutedEvent) -> Outbound:
        values = make_event_values(event.message, event.endpoint, "", event.context, event.attributes)
        missing = self._template.missing(values) if self._strict else ()
        if missing:
            raise UnsendableMessage(describe_missing(missing, "the address"))
        try:
            address = self._template.expand(values)
        except AddressError as error:
            raise UnsendableMessage(str(error)) from error
        message = outbound(
            event, self._binding, self._mode, address, self._given, lineage=self._lineage, passing=self._passing
        )
        return framed(message, event, self._mode, self._frames.get(event.message))


class ConfirmedSink(ArrowSink):
    """Implements :class:`~router.sinks.contract.ArrowSink` for rows of :data:`router.sinks.messages.sink.MESSAGE`.

    Safe for use by several queries; their batches go one after the other. ``max_body`` is in bytes, ``spread`` counts
    destinations and caps them.
    """

    def __init__(
        self,
        name: str,
        composer: MessageBuilder,
        publisher: Publisher,
        max_body: int | None = None,
        spread: DestinationCap | None = None,
    ) -> None:
        self._name = name
        self._spread = spread
        self._max_body = max_body
        self._composer = composer
        self._publisher = publisher
        self._lock = threading.Lock()
        self._settled: dict[str, tuple[int, Settled]] = {}

    def begin_with(self, frames: Mapping[str, WrittenFrame]) -> None:
        """Have the bodies of these definitions begin with frames."""
        self._composer.begin_with(frames)

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Send what of the batch is not settled yet. Rows that the target will never accept are ``refused``.

        Raises:
            SinkError: the target accepts nothing now. Calling again with the same commit continues from there.
        """
        if rows.num_rows == 0:
            return WriteResult(0)  # without waiting for the batch of another query
        kept = rows.drop_columns([name for name in _UNUSED if name in rows.column_names])
        with self._lock:
            settled = self._known(commit)
            for batch in kept.to_batches(max_chunksize=CHUNK):
                self._send([row for row in map(event_of, batch.to_pylist()) if row.position not in settled], settled)
                report_progress()
            mine = [settled.get(position) for position in kept.column("position").to_pylist()]
        refused = tuple(record for record in mine if record is not None)
        return WriteResult(rows.num_rows - len(refused), refused=refused)

    def already(self, commit: Commit) -> bool:
        """Return False: no target remembers batches."""
        return False

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield what the target has not accepted in this process; a row that it refused, with its own reason."""
        settled = self.settled(commit)
        return (left for row in share if (left := settled.get(row.position, row)) is not None)

    def settled(self, commit: Commit) -> Settled:
        """Return what the target has settled of a batch in this process, by position; None is delivered."""
        version, settled = self._settled.get(commit.whole, (-1, {}))
        return dict(settled) if version == commit.version else {}

    def _known(self, commit: Commit) -> Settled:
        # Under the whole batch: its positions are unique, and a part knows what the whole has settled.
        version, settled = self._settled.get(commit.whole, (-1, {}))
        if version != commit.version:
            settled = {}
            self._settled[commit.whole] = (commit.version, settled)
        return settled

    def _send(self, events: list[RoutedEvent], settled: Settled) -> None:
        messages: list[Outbound] = []
        sent: list[RoutedEvent] = []
        for event, message in zip(events, self._composer.compose(events), strict=True):
            try:
                if isinstance(message, UnsendableMessage):
                    raise message
                messages.append(self._within(message))
                sent.append(event)
            except UnsendableMessage as error:
                settled[event.position] = _rejected(event, MessageRefusal(str(error)))
        if not messages:
            return
        answers: Mapping[int, MessageRefusal | None] = {}
        try:
            answers = dict(enumerate(self._publisher.send(messages)))
        except (Unsettled, GatewayError) as error:
            answers = error.settled if isinstance(error, Unsettled) else {}
            raise SinkError(self._name, str(error)) from error
        finally:
            settled.update((sent[at].position, _rejected(sent[at], answer)) for at, answer in answers.items())

    def _within(self, message: Outbound) -> Outbound:
        size = len(message.body or b"")
        if self._max_body is not None and size > self._max_body:
            raise UnsendableMessage(f"a body of {size} bytes exceeds the sink's max_body, {self._max_body}")
        fault = self._spread.fault(message.address) if self._spread is not None else None
        if fault is not None:
            raise UnsendableMessage(f"{message.address[: REASON_CAP // 4]}: {fault}")
        return message


def _rejected(event: RoutedEvent, refusal: MessageRefusal | None) -> Rejected | None:
    if refusal is None:
        return None
    return Rejected(event.position, refusal.reason[:REASON_CAP], event.endpoint, event.message)


# Connections of sinks, kept for reuse.
#
# A plan creates its own sinks, and a new catalog a new plan. Connections outlive both: a sink with the same name,
# settings and endpoint reuses the existing one.

_publishers: dict[str, Publisher] = {}


def shared_publisher(name: str, settings: RemoteSink, endpoint: Endpoint | None) -> Publisher:
    """Return the publisher of a sink: the existing one if nothing about its connection has changed."""
    reached = None if endpoint is None else (endpoint.uris, sorted(endpoint.options.items(), key=lambda item: item[0]))
    key = repr((name, settings, reached))
    with _lock:
        if key not in _publishers:
            _publishers[key] = _Shared(lambda: settings.publisher(name, settings.binding(endpoint), endpoint))
        return _publishers[key]


def close_targets() -> None:
    """Disconnect all targets; a sink that is used again reconnects."""
    with _lock:
        for publisher in _publishers.values():
            publisher.close()


class _Shared:
    """A publisher that connects at its first use, and is used by one thread at a time."""

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
            return  # A batch that was cut off still sends. Its connection ends with the process, which does not wait.
        try:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
        finally:
            self._lock.release()
