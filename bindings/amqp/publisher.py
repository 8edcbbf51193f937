"""The AMQP 1.0 sender of sinks: blocks until the broker has settled every message.

A broker may end the connection over a message that it cannot read (AMQP 1.0 part 2 section 2.8.15). The sender finds
that message and gives it up (:mod:`bindings.sending`); the others are delivered.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import proton
from proton import Data, Delivery, Described, Handler, ProtonException, symbol, ulong
from proton.reactor import Container, SenderOption

from bindings.amqp.binding import FIELD_TYPES
from bindings.amqp.client import HEARTBEAT_SECONDS, Dialer, LinkModes, abort_connection, condition_text, symbols
from bindings.amqp.values import DESCRIPTORS, SECTION_FIELDS, AmqpValue, types_of, value_of_part
from bindings.gateways import CLOSE_SECONDS, Connection, to_line
from bindings.parts import Part
from bindings.sending import Hangup, MessageRefusal, Outbound, PoisonIsolator, Settled, Unsettled
from catalog.protocols.properties import AMQP_SECTIONS

# A message that a sink sends, and its encoding.

_CONVERSIONS: Final[Mapping[str, Any]] = {
    "boolean": bool,
    "ubyte": proton.ubyte,
    "ushort": proton.ushort,
    "uint": proton.uint,
    "ulong": ulong,
    "byte": proton.byte,
    "short": proton.short,
    "int": proton.int32,
    "long": int,
    "float": proton.float32,
    "double": float,
    "timestamp": proton.timestamp,
    "char": lambda value: proton.char(chr(value) if isinstance(value, int) else value),
    "uuid": lambda value: uuid.UUID(str(value)),
    "binary": bytes,
    "string": str,
    "symbol": symbol,
    "decimal32": lambda value: proton.decimal32(int.from_bytes(value, "big")),
    "decimal64": lambda value: proton.decimal64(int.from_bytes(value, "big")),
    "decimal128": proton.decimal128,
}
_RANGES: Final = {
    **{kind: range(-(2**bits), 2**bits) for kind, bits in (("byte", 7), ("short", 15), ("int", 31))},
    **dict.fromkeys(("long", "timestamp"), range(-(2**63), 2**63)),
    **{kind: range(2**bits) for kind, bits in (("ubyte", 8), ("ushort", 16), ("uint", 32), ("ulong", 64))},
}


class EncodingError(Exception):
    """A message that AMQP cannot carry; the text names the faulty member."""


def encode_message(message: Outbound) -> bytes:
    """Encode all sections of a message; its part ``types`` has the AMQP type of each value.

    A message is durable (kept through a crash of the broker) unless its header says otherwise. The body is one data
    section.

    Raises:
        EncodingError: an unknown property, or a value that is not of its type.
    """
    types = types_of(message.parts)
    sections: dict[str, dict[str, Any]] = {section: {} for section in AMQP_SECTIONS}
    for part in message.parts:
        section, _, name = part.key.partition(".")
        if section in sections:
            sections[section].setdefault(name, _convert_part(part, types))
    sections["header"].setdefault("durable", True)
    # Some brokers reject a message without a body section; clients send null for no body.
    body = _encode_section("amqp-value", None) if message.body is None else _encode_section("data", message.body)
    return b"".join(
        (
            _encode_section("header", _to_fields(sections["header"], "header")),
            _encode_annotations(sections, "delivery-annotations"),
            _encode_annotations(sections, "message-annotations"),
            _encode_section("properties", fields)
            if (fields := _to_fields(sections["properties"], "properties"))
            else b"",
            _encode_section("application-properties", named) if (named := sections["application-properties"]) else b"",
            body,
            _encode_annotations(sections, "footer"),
        )
    )


def _convert_part(part: Part, types: Mapping[str, str]) -> Any:
    """Return a part's value, in the class that proton encodes as its AMQP type."""
    usual = FIELD_TYPES.get(part.key)
    if part.kind is None and part.key not in types and usual in (None, "string"):
        return part.text  # most values of most messages
    if usual is None:
        return _convert_typed(value_of_part(part, types), part.key)
    if usual in ("string", "symbol") and part.text is not None:
        return _convert_typed(AmqpValue(usual, part.text), part.key)
    return _convert_typed(AmqpValue(usual, value_of_part(part, {part.key: usual}).value), part.key)


def _encode_annotations(sections: Mapping[str, Mapping[str, Any]], section: str) -> bytes:
    """Return an encoded section whose keys are symbols; nothing if it has no values."""
    strange = next((name for name in sections[section] if not name.isascii()), None)
    if strange is not None:
        raise EncodingError(f"{section}: names must be ASCII, and {strange[:40]!r} is not")
    named = {symbol(name): value for name, value in sections[section].items()}
    return _encode_section(section, named) if named else b""


def _to_fields(values: dict[str, Any], section: str) -> list[Any]:
    fields = [values.pop(name, None) for name, _ in SECTION_FIELDS[section]]
    if values:
        what = "property" if section == "properties" else f"{section} field"
        raise EncodingError(f"AMQP messages have no {what} {', '.join(values)}")
    while fields and fields[-1] is None:
        fields.pop()
    return fields


def _convert_typed(typed: AmqpValue, path: str) -> Any:
    kind, value = typed
    if kind == "binary" and isinstance(value, str):
        value = value.encode("utf-8")
    if kind in _RANGES and not (isinstance(value, int) and value in _RANGES[kind]):
        raise EncodingError(f"{path}: {str(value)[:40]!r} is not a valid {kind}")
    if kind in ("string", "symbol") and isinstance(value, bytes):
        raise EncodingError(f"{path}: a {kind} must be text, but {value[:40]!r} is bytes")
    if kind == "boolean" and not isinstance(value, bool):
        raise EncodingError(f"{path}: {str(value)[:40]!r} is not a boolean")
    if kind == "symbol" and not str(value).isascii():
        raise EncodingError(f"{path}: a symbol must be ASCII, and {str(value)[:40]!r} is not")
    conversion = _CONVERSIONS.get(kind)
    if conversion is None:
        raise EncodingError(f"{path}: values of type {kind} cannot be sent")
    try:
        return conversion(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodingError(f"{path}: {str(value)[:40]!r} is not a valid {kind}") from error


def _encode_section(name: str, value: Any) -> bytes:
    data = Data()
    try:
        data.put_object(Described(ulong(DESCRIPTORS[name]), value))
        return bytes(data.encode())
    except (ProtonException, ValueError, OverflowError, TypeError) as error:
        raise EncodingError(f"the section {name} cannot be encoded: {error}") from error


# One connection of the sender: links to nodes.

MESSAGE_TOO_LARGE: Final = "amqp:link:message-size-exceeded"
MESSAGE_FAULTS: Final = frozenset(
    {MESSAGE_TOO_LARGE, "amqp:decode-error", "amqp:invalid-field", "amqp:not-implemented", "amqp:frame-size-too-small"}
)
"""Conditions with which a broker ends a connection or link because of a message (AMQP 1.0 part 2 section 2.8)."""
STATE_CONDITIONS: Final = frozenset(
    {
        "amqp:not-found",
        "amqp:unauthorized-access",
        "amqp:resource-locked",
        "amqp:resource-deleted",
        "amqp:resource-limit-exceeded",
        "amqp:connection:forced",
        "amqp:connection:redirect",
        "amqp:link:redirect",
        "amqp:link:stolen",
    }
)
"""Conditions about a node or the broker's state, not about a message."""
DELIVERY_OUTCOMES: Final = frozenset((Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED))
MAX_LINKS: Final = 200
"""Links kept open between two jobs. Beyond this they are closed, since templates may name any number of nodes."""

EncodedMessage = tuple[int, str, bytes]
"""A message's index, node and bytes."""


class _AllOutcomes(SenderOption):
    """All outcomes are understood: otherwise a broker ends the link to reject a message."""

    def apply(self, sender: proton.Link) -> None:
        names = ("accepted", "rejected", "released", "modified")
        sender.source.outcomes.put_object(symbols(f"amqp:{name}:list" for name in names))


@dataclass(slots=True)
class _SendingNode:
    link: proton.Sender
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    open: bool = False


# Events are Any below: proton types every member of an event as optional, whatever its kind.


class SendingConnection(Handler):
    """A connection, served by the thread that sends over it; *modes* are those of every link."""

    def __init__(self, dialer: Dialer, container_id: str, modes: LinkModes) -> None:
        self.usable = True
        self._dialer = dialer
        self._link_options = [modes, _AllOutcomes()]
        self._container_id = container_id
        self._nodes: dict[str, _SendingNode] = {}
        self._in_flight: dict[str, int] = {}
        self._tags = itertools.count()
        self._messages: Sequence[EncodedMessage] = ()
        self._settled: Settled = {}
        self._unanswered = self._released = 0
        self._open = False
        self._reason = self._condition = ""
        self._alive = True
        self._served_at = time.monotonic()
        self._connection: proton.Connection | None = None
        self._container = Container(self, container_id=container_id)
        self._container.start()

    def check(self) -> bool:
        """Whether messages can still be sent over this connection; one that broke while idle shows it now."""
        idle = time.monotonic() - self._served_at > HEARTBEAT_SECONDS  # nobody sent heartbeats meanwhile
        if self.usable and (idle or self._unanswered):  # late answers to an interrupted call must not count for another
            self.close()
        else:
            self._serve_waiting()
        return self.usable

    def send(self, messages: Sequence[EncodedMessage], settled: Settled, timeout: float) -> None:
        """Send messages, wait until each is answered, and record the answers.

        Raises:
            Hangup: the broker ended the connection or link with messages in flight, and named no other cause.
            Unsettled: there is no answer within *timeout* seconds, or the broker released messages.
        """
        self._messages, self._settled = messages, settled
        self._unanswered, self._released = len(messages), 0
        deadline = time.monotonic() + timeout
        if self._open:
            self._assign_messages()
        while self._unanswered and self.usable:
            if (left := deadline - time.monotonic()) <= 0:
                self.close()
                raise Unsettled(f"no answer from the broker within {timeout:g} s")
            self._serve(left)
        if self._unanswered:
            reason = f"{self._dialer.last_url}: {self._reason or 'the connection was closed'}"
            hung_up = self._open and self._in_flight and self._condition not in STATE_CONDITIONS
            self.close()
            raise Hangup(reason, at_fault=self._condition in MESSAGE_FAULTS) if hung_up else Unsettled(reason)
        if self._released:
            raise Unsettled(f"the broker released {self._released} of {len(messages)} messages")

    def close(self) -> None:
        """End the connection; wait a short time for the broker to close its side."""
        deadline = time.monotonic() + (CLOSE_SECONDS if self._open else 0.0)
        self._end_connection("the connection was closed")
        while self._alive and (left := deadline - time.monotonic()) > 0:
            self._serve(left)
        if self._alive:
            abort_connection(self._container, self._connection)
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Handle what there is to do without waiting; proton looks at the socket in every second step."""
        for _ in range(4):
            if self._alive:
                self._serve(0.0)

    def _serve(self, seconds: float) -> None:
        """Handle what there is to do, after waiting up to *seconds* for it."""
        self._container.timeout = seconds
        try:
            self._alive = self._container.process()
        except Exception as error:
            # From the socket, an unresolvable host name, or something that proton cannot read.
            self._reason = self._reason or to_line(str(error))
            self._alive = False
        self.usable = self.usable and self._alive
        self._served_at = time.monotonic()

    def on_reactor_init(self, event: Any) -> None:
        self._connection = self._dialer.dial(event.container)

    def on_connection_remote_open(self, event: Any) -> None:
        self._open = True
        self._assign_messages()

    def on_connection_remote_close(self, event: Any) -> None:
        self._record_condition(event.connection.remote_condition)
        self._end_connection(condition_text(event.connection.remote_condition) or "the broker closed the connection")

    def on_transport_error(self, event: Any) -> None:
        self._record_condition(event.transport.condition)
        self._reason = self._reason or condition_text(event.transport.condition)

    def on_transport_closed(self, event: Any) -> None:
        self.usable = False
        event.container.stop()

    def on_link_remote_open(self, event: Any) -> None:
        node = self._find_node(event.link)
        if node is not None and event.link.remote_target.address is not None:
            node.open = True
            self._send_waiting(node)

    def on_link_flow(self, event: Any) -> None:
        node = self._find_node(event.link)
        if node is not None:
            self._send_waiting(node)

    def on_link_remote_close(self, event: Any) -> None:
        reason = condition_text(event.link.remote_condition) or "the broker ended the link"
        self._record_condition(event.link.remote_condition)
        event.link.close()
        if self._find_node(event.link) is not None:
            self._end_connection(f"node {event.link.target.address}: {reason}")

    def on_link_remote_detach(self, event: Any) -> None:
        self.on_link_remote_close(event)

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        state = delivery.remote_state
        if not delivery.updated or not (delivery.settled or state in DELIVERY_OUTCOMES):
            return
        if delivery.tag in self._in_flight:
            try:
                condition = delivery.remote.condition
            except Exception as error:  # by proton; the message stays in flight, as when the broker hangs up
                self._end_connection(f"an answer that cannot be read: {error}")
                return
            index = self._in_flight.pop(delivery.tag)
            if state == Delivery.REJECTED:
                name = condition.name if condition is not None else ""
                self._settle(index, _to_refusal(name or "amqp:rejected", (condition and condition.description) or ""))
            elif state == Delivery.ACCEPTED:
                self._settle(index, None)
            else:
                self._unanswered -= 1
                self._released += 1
        delivery.settle()
        for node in self._nodes.values():
            self._send_waiting(node)

    def _assign_messages(self) -> None:
        """Assign the messages to their nodes."""
        if len(self._nodes) > MAX_LINKS:
            for node in self._nodes.values():
                node.link.close()
            self._nodes.clear()
        for index, address, data in self._messages:
            node = self._nodes.get(address) or self._attach_node(address)
            node.waiting.append((index, data))
        for node in self._nodes.values():
            self._send_waiting(node)

    def _attach_node(self, address: str) -> _SendingNode:
        assert self._connection is not None
        name = f"{self._container_id}|{address}|{next(self._tags)}"
        link = self._container.create_sender(self._connection, address, name=name, options=self._link_options)
        node = self._nodes[address] = _SendingNode(link)
        return node

    def _send_waiting(self, node: _SendingNode) -> None:
        while node.open and node.waiting and node.link.credit > 0:
            index, data = node.waiting.popleft()
            largest = node.link.remote_max_message_size
            if largest and len(data) > largest:
                # sent anyway, the broker would detach the link, again and again
                reason = f"{len(data)} bytes, and the node accepts {largest}"
                self._settle(index, _to_refusal(MESSAGE_TOO_LARGE, reason))
                continue
            tag = str(next(self._tags))
            node.link.delivery(tag)
            self._in_flight[tag] = index
            node.link.stream(data)
            node.link.advance()

    def _settle(self, index: int, outcome: MessageRefusal | None) -> None:
        self._settled[index] = outcome
        self._unanswered -= 1

    def _end_connection(self, reason: str) -> None:
        """End the connection: a late answer must not be attributed to another call."""
        self._reason = self._reason or reason
        self.usable = False
        if self._connection is not None:
            self._connection.close()

    def _record_condition(self, condition: proton.Condition | None) -> None:
        self._condition = self._condition or (condition.name if condition is not None else "")

    def _find_node(self, link: Any) -> _SendingNode | None:
        node = self._nodes.get(link.target.address)
        return node if node is not None and node.link.name == link.name else None


ENCODING_ERROR: Final = "amqp:encode-error"


class AmqpSender:
    """Sends to any nodes of one broker; used by one thread at a time. It connects when there is something to send.

    ``timeout`` (seconds) limits one exchange with the broker, connecting included. Delivery is at least once: after
    :class:`Unsettled`, messages may arrive twice.

    Raises:
        GatewayError: the connection has a fault that waiting does not fix.
    """

    def __init__(self, connection: Connection, *, container_id: str, timeout: float = 30.0) -> None:
        self._dialer = Dialer(connection, container_id)
        self._container_id = container_id
        self._timeout = timeout
        self._modes = LinkModes(connection.options)
        self._connection: SendingConnection | None = None
        self._isolator = PoisonIsolator()

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages in order per node, and wait; return None for accepted ones, a refusal for the others.

        Raises:
            Unsettled: the broker cannot be reached, does not answer in time, or released a message.
        """
        return self._isolator.send(messages, self._exchange)

    def _exchange(self, messages: Mapping[int, Outbound], settled: Settled) -> None:
        encoded: list[EncodedMessage] = []
        for index, message in messages.items():
            try:
                encoded.append((index, message.address, encode_message(message)))
            except EncodingError as error:
                settled[index] = _to_refusal(ENCODING_ERROR, str(error))
        if encoded:
            self._connect().send(encoded, settled, self._timeout)

    def close(self) -> None:
        """Disconnect; a later :meth:`send` connects again."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.check():
            connection.close()

    def _connect(self) -> SendingConnection:
        if self._connection is None or not self._connection.check():
            self._connection = SendingConnection(self._dialer, self._container_id, self._modes)
        return self._connection


def _to_refusal(condition: str, description: str) -> MessageRefusal:
    """Return the AMQP condition and the broker's description as a refusal."""
    return MessageRefusal(f"the broker rejected it: {condition} {description}".strip())
