"""Send to an MQTT broker: once :meth:`MqttPublisher.send` returns, the broker has the messages.

A broker may end the connection over a message that it rejects, in MQTT 3.1.1 without another way to say so (MQTT 5
section 4.13). Such a message is found and given up (:mod:`bindings.sending`); the others are delivered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bindings.background import Backoff
from bindings.gateways import Connection
from bindings.mqtt.binding import MAX_TEXT
from bindings.mqtt.client import (
    ROUND_SECONDS,
    BrokerLimits,
    LinkConnector,
    LinkError,
    LinkOwner,
    MqttLink,
    build_properties,
    packed_size,
)
from bindings.mqtt.messages import Version, topic_fault
from bindings.parts import Part
from bindings.sending import Hangup, MessageRefusal, Outbound, PoisonIsolator, Settled, Unsettled, iter_headers

# A message to send: its QoS, MQTT 5 properties, and why a broker can never accept it.

_USER: Final = "user_properties."
_HEADER_BYTES: Final = 9  # type and length, length of the topic, packet identifier


class PublishOptions(NamedTuple):
    """How a message is published. QoS 0 counts as confirmed once it is written to the socket."""

    qos: int
    retain: bool
    properties: Properties | None


def read_options(message: Outbound, version: Version) -> PublishOptions:
    """Return how a message is published; QoS 2 becomes 1, because delivery is at least once anyway.

    Raises:
        ValueError: a text or number that no property can contain.
    """
    first: dict[str, Part] = {}
    for part in message.parts:
        first.setdefault(part.key, part)
    qos = _number_of(first.get("qos"))
    properties = _build_properties(message, first) if version == "MQTT/5.0" else None
    return PublishOptions(1 if qos is None else min(qos, 1), _text_of(first.get("retain")) == "true", properties)


def _build_properties(message: Outbound, first: Mapping[str, Part]) -> Properties | None:
    users = [(name, part.text or "") for name, part in iter_headers(message.parts, _USER)]
    texts = {"ContentType": _text_of(first.get("content_type")), "ResponseTopic": _text_of(first.get("response_topic"))}
    for text in (*texts.values(), *(each for pair in users for each in pair)):
        if text is not None and ("\0" in text or len(text.encode("utf-8")) > MAX_TEXT):
            raise ValueError(f"{text[:40]!r} has U+0000 or more than {MAX_TEXT} bytes")
    correlation = first["correlation_data"].value if "correlation_data" in first else None
    if correlation is not None and len(correlation) > MAX_TEXT:
        raise ValueError(f"correlation data has more than {MAX_TEXT} bytes")
    expiry = _number_of(first.get("message_expiry_interval"))
    if expiry is not None and expiry >= 2**32:
        raise ValueError(f"{expiry} is not a message expiry interval, which has 32 bits")
    values: dict[str, Any] = {
        "PayloadFormatIndicator": _number_of(first.get("payload_format")),
        "MessageExpiryInterval": expiry,
        **texts,
        "CorrelationData": correlation,
        "UserProperty": users or None,
    }
    present = {name: value for name, value in values.items() if value is not None}
    return build_properties(PacketTypes.PUBLISH, **present) if present else None


def find_fault(message: Outbound, options: PublishOptions, limits: BrokerLimits) -> str:
    """Return why this broker can never accept a message; empty if it can."""
    fault = topic_fault(message.address)
    if fault:
        return f"topic {message.address[:80]!r} cannot be published to: {fault}"
    if options.retain and not limits.retain:
        return "the broker does not support retained messages"
    if limits.packet is None:
        return ""  # packing takes long, and paho packs once more
    packed = packed_size(options.properties) if options.properties is not None else 0
    size = _HEADER_BYTES + len(message.address.encode("utf-8")) + packed + len(message.body or b"")
    return f"its packet of {size} bytes exceeds the broker's maximum ({limits.packet})" if size > limits.packet else ""


def _text_of(part: Part | None) -> str | None:
    return None if part is None else part.text


def _number_of(part: Part | None) -> int | None:
    text = _text_of(part)
    return int(text) if text is not None and text.isdecimal() else None


PERMANENT_CODES: Final = frozenset({0x87, 0x90, 0x95, 0x99})
"""Reason codes that a retry would meet again: not authorized, topic name invalid, packet too large, payload format
invalid. *Not authorized* is among them since it concerns one topic; the login was accepted with the connection.
"""
MESSAGE_FAULTS: Final = frozenset({0x81, 0x82, 0x90, 0x95, 0x99})
"""Reason codes with which a broker ends the connection because of a message: malformed packet, protocol error, topic
name invalid, packet too large, payload format invalid.
"""
QUOTA_EXCEEDED: Final = 0x97
"""Quota exceeded: the only reason code of an answer that is about the broker's state and not the message."""
_STALLED: Final = 1 / 3
"""The share of the time limit after which a connection without confirmations is replaced."""


class MqttPublisher(LinkOwner):
    """A client that sends; used by one thread at a time. It connects when there is something to send.

    Messages are sent in order, and again after a connection broke: at least once. ``timeout`` is the maximum time in
    seconds without any confirmation. ``client_id`` must be unique at the broker.

    Raises:
        GatewayError: the connection, the protocol or the client id can never work.
    """

    def __init__(self, connection: Connection, *, protocol: Version, client_id: str, timeout: float = 30.0) -> None:
        self._connector = LinkConnector(connection, protocol, client_id, clean=True)
        self._version = protocol
        self._timeout = timeout
        self._link: MqttLink | None = None
        self._isolator = PoisonIsolator()
        self._sending = _SendState({}, {})

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and wait; return None for each confirmed message, a refusal for each refused one, in order.

        Raises:
            Unsettled: nothing was confirmed for ``timeout`` seconds. Some of the messages may have been sent.
        """
        return self._isolator.send(messages, self._exchange)

    def _exchange(self, messages: Mapping[int, Outbound], settled: Settled) -> None:
        """Send messages until each is settled.

        Raises:
            Hangup: the broker ended the connection, or refused a message for a reason that may be the message's own.
            Unsettled: nothing was confirmed for ``timeout`` seconds.
        """
        sending = self._sending = _SendState(messages, settled)
        if self._link is not None:
            self._link.serve_once(0.0, lambda: True)  # one that broke while idle shows it now, with nothing under way
        backoff = Backoff(0.1, 5.0)
        fault = "the broker does not answer"
        while not sending.is_complete:
            left = sending.progress + self._timeout - time.monotonic()
            if left <= 0:
                self._drop_link()
                raise Unsettled(fault)
            try:
                link = self._open_link()
            except LinkError as error:
                fault = str(error)
                time.sleep(min(backoff.next_pause(), left))
                continue
            self._serve(link, min(left, ROUND_SECONDS))
            if not link.alive and link.accepted and sending.is_under_way and not sending.held_up:
                raise Hangup(link.fault, at_fault=link.code in MESSAGE_FAULTS)
            if time.monotonic() - max(sending.progress, link.opened) > self._timeout * _STALLED:
                link.close("the broker does not confirm")
            if not link.alive:
                fault = link.fault
                sending.requeue()
                time.sleep(min(backoff.next_pause(), left))

    def close(self) -> None:
        """Disconnect; a later :meth:`send` connects again."""
        link, self._link = self._link, None
        if link is not None and link.alive:
            link.disconnect()

    def on_published(self, link: MqttLink, mid: int, code: int, fault: str) -> None:
        """Handle the outcome of a message; see :class:`bindings.mqtt.client.LinkOwner`."""
        if link is not self._link:
            return
        if not fault:
            self._sending.answer(mid, None)
        elif code in PERMANENT_CODES:
            self._sending.answer(mid, MessageRefusal(f"the broker rejected it: {fault}"))
        else:
            # An immediate retry would only be refused again; the connection's backoff spaces the attempts.
            self._sending.held_up = code == QUOTA_EXCEEDED
            link.close(f"the broker does not accept a message: {fault}")

    def _open_link(self) -> MqttLink:
        if self._link is None or not self._link.alive:
            self._link = self._connector.open_link(self)
        return self._link

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close("given up")
            self._link = None

    def _serve(self, link: MqttLink, patience: float) -> None:
        sending = self._sending
        if link.accepted:
            while sending.waiting and len(sending.unconfirmed) < link.limits.receive and link.alive:
                self._publish(link, sending.waiting.popleft())
        if sending.is_complete and link.is_drained():
            return
        link.serve_once(patience, lambda: True)
        if link.alive and link.is_drained():
            sending.settle_written()

    def _publish(self, link: MqttLink, index: int) -> None:
        sending, message = self._sending, self._sending.messages[index]
        try:
            options = read_options(message, self._version)
            fault = find_fault(message, options, link.limits)
            if fault:
                sending.settle(index, MessageRefusal(fault))
                return
            mid = link.publish(message.address, message.body or b"", *options)
        except ValueError as error:
            sending.settle(index, MessageRefusal(f"it is not a valid MQTT message: {error}"))
            return
        if mid is None:
            sending.waiting.appendleft(index)
        elif options.qos == 0:
            sending.written.append(index)
        else:
            sending.unconfirmed[mid] = index


class _SendState:
    """The state of messages being sent; ``held_up`` if the broker currently accepts none."""

    def __init__(self, messages: Mapping[int, Outbound], settled: Settled) -> None:
        self.messages = messages
        self.settled = settled
        self.waiting = deque(messages)
        self.unconfirmed: dict[int, int] = {}
        self.written: list[int] = []
        self.progress = time.monotonic()
        self.held_up = False

    @property
    def is_complete(self) -> bool:
        return not self.waiting and not self.unconfirmed and not self.written

    @property
    def is_under_way(self) -> bool:
        return bool(self.unconfirmed or self.written)

    def settle(self, index: int, result: MessageRefusal | None) -> None:
        self.settled[index] = result
        self.progress = time.monotonic()

    def answer(self, mid: int, result: MessageRefusal | None) -> None:
        index = self.unconfirmed.pop(mid, None)
        if index is not None:
            self.settle(index, result)

    def settle_written(self) -> None:
        for index in self.written:
            self.settle(index, None)
        self.written.clear()

    def requeue(self) -> None:
        """Queue messages that a broken connection left unconfirmed again, in order."""
        self.waiting.extendleft(sorted((*self.unconfirmed.values(), *self.written), reverse=True))
        self.unconfirmed.clear()
        self.written.clear()
        self.held_up = False
