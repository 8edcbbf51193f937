"""PUBLISH packets as they arrive, and the native record of each. Pure: bytes in, values out.

paho has a reader of its own, which this one stands in for (see :mod:`bindings.mqtt.link`): paho's refuses U+FEFF in
texts, though MQTT 5.0 section 1.5.4 allows it. One such message would end every connection that it is delivered on,
for ever. Here values stay the bytes that they are.
"""

from __future__ import annotations

import struct
from typing import Final, Literal, NamedTuple

from bindings.parts import BINARY_KIND, JSON_KIND, InboxRow, Part

Version = Literal["MQTT/5.0", "MQTT/3.1.1"]

_SHORT: Final = struct.Struct("!H")
_LONG: Final = struct.Struct("!I")
_PAYLOAD_FORMAT: Final = 1
_EXPIRY: Final = 2
_CONTENT_TYPE: Final = 3
_RESPONSE_TOPIC: Final = 8
_CORRELATION_DATA: Final = 9
_SUBSCRIPTION: Final = 11
_TOPIC_ALIAS: Final = 35
_USER_PROPERTY: Final = 38
_ORDER: Final = (_PAYLOAD_FORMAT, _EXPIRY, _RESPONSE_TOPIC, _CORRELATION_DATA, _CONTENT_TYPE)
_FLAGS: Final = {False: b"false", True: b"true"}


class MalformedPublish(ValueError):
    """A packet that no reader of MQTT can make sense of."""


class Delivery(NamedTuple):
    """One message as it was delivered.

    ``mid`` is the packet identifier, 0 with QoS 0; it means nothing on another connection. ``properties`` are the parts
    of the native record that only MQTT 5 has; ``subscriptions`` the identifiers of the subscriptions that the broker
    delivered it for, none where it names none.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    mid: int
    properties: tuple[Part, ...] = ()
    subscriptions: tuple[int, ...] = ()


def read_publish(header: int, packet: bytes | bytearray, version: Version) -> Delivery:
    """Read a PUBLISH packet: the first byte of its fixed header, and what follows the remaining length.

    Raises:
        MalformedPublish: it ends early, has a property that PUBLISH has not, or a topic that is no UTF-8.
    """
    view = memoryview(packet)
    qos = (header >> 1) & 3
    try:
        topic, at = _prefixed(view, 0)
        mid = 0
        if qos:
            (mid,), at = _SHORT.unpack_from(view, at), at + 2
        properties: tuple[Part, ...] = ()
        subscriptions: tuple[int, ...] = ()
        if version == "MQTT/5.0":
            size, at = _variable(view, at)
            if at + size > len(view):
                raise MalformedPublish("properties reach past the packet")
            properties, subscriptions = _properties(view[: at + size], at)
            at += size
        return Delivery(topic.decode("utf-8"), bytes(view[at:]), qos, bool(header & 1), mid, properties, subscriptions)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedPublish(f"no PUBLISH packet: {error}") from error


def row_of(delivery: Delivery, endpoint: str, version: Version, received: int, max_body_bytes: int) -> InboxRow:
    """Return what is stored of a message: its native record, marked when its body is too large.

    ``received`` is in microseconds since 1970 UTC. An empty payload is an empty body, not the lack of one.
    """
    parts = [
        Part("topic_name", delivery.topic.encode("utf-8")),
        Part("qos", b"%d" % delivery.qos, JSON_KIND),
        Part("retain", _FLAGS[delivery.retain], JSON_KIND),
        *delivery.properties,
    ]
    size = len(delivery.payload)
    if size > max_body_bytes:
        parts.append(Part("oversized", b"%d" % size))
    return InboxRow(endpoint, version, received, parts, delivery.payload)


def _properties(view: memoryview, at: int) -> tuple[tuple[Part, ...], tuple[int, ...]]:
    single: dict[int, Part] = {}
    users: list[Part] = []
    subscriptions: list[int] = []
    while at < len(view):
        kind, at = view[at], at + 1
        if kind == _USER_PROPERTY:
            name, at = _prefixed(view, at)
            value, at = _prefixed(view, at)
            # A name that is no UTF-8 is against the protocol; it is made readable rather than lost.
            users.append(Part(f"user_properties.{name.decode('utf-8', 'replace')}", value))
        elif kind == _SUBSCRIPTION:
            number, at = _variable(view, at)
            subscriptions.append(number)
        else:
            part, at = _single(kind, view, at)
            if part is not None:
                single[kind] = part
    return (*(single[kind] for kind in _ORDER if kind in single), *users), tuple(subscriptions)


def _single(kind: int, view: memoryview, at: int) -> tuple[Part | None, int]:
    if kind == _CONTENT_TYPE:
        value, at = _prefixed(view, at)
        return Part("content_type", value), at
    if kind == _PAYLOAD_FORMAT:
        return Part("payload_format", b"%d" % view[at], JSON_KIND), at + 1
    if kind == _EXPIRY:
        (seconds,) = _LONG.unpack_from(view, at)
        return Part("message_expiry_interval", b"%d" % seconds, JSON_KIND), at + 4
    if kind == _RESPONSE_TOPIC:
        value, at = _prefixed(view, at)
        return Part("response_topic", value), at
    if kind == _CORRELATION_DATA:
        value, at = _prefixed(view, at)
        return Part("correlation_data", value, BINARY_KIND), at
    if kind == _TOPIC_ALIAS:
        # Brokers use aliases only with clients that allow them, which ours never do.
        raise MalformedPublish("a topic alias that was not asked for")
    raise MalformedPublish(f"property {kind}, which PUBLISH has not")


def _prefixed(view: memoryview, at: int) -> tuple[bytes, int]:
    (size,) = _SHORT.unpack_from(view, at)
    end = at + 2 + size
    if end > len(view):
        raise MalformedPublish("a text or binary value reaches past its packet")
    return bytes(view[at + 2 : end]), end


def _variable(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        digit, at = view[at], at + 1
        value |= (digit & 127) << shift
        if not digit & 128:
            return value, at
    raise MalformedPublish("a number of more than four bytes")
