"""What is sent: one message, its MQTT 5 properties, and what would keep a broker from ever taking it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bindings.mqtt.client import BrokerLimits, packed_size, properties_for
from bindings.mqtt.filters import topic_fault
from bindings.parts import Part
from bindings.sending import Outbound, headers_of

MAX_TEXT: Final = 65_535
MAX_PACKET: Final = 2**28 - 1
_USER: Final = "user_properties."
_MOST_QOS: Final = 1
_HEADER_BYTES: Final = 9  # type and length, length of the topic, packet identifier


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """One message to send.

    ``qos`` 0 counts as confirmed once it is handed to the operating system; 1 and 2 are both sent with QoS 1. From
    ``content_type`` to ``payload_format``, MQTT 5 alone carries it; 3.1.1 leaves it out. ``message_expiry_interval`` is
    in seconds. Messages of one ``lane`` keep their order when the broker ends the connection at another message.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    content_type: str | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    response_topic: str | None = None
    correlation_data: bytes | None = None
    message_expiry_interval: int | None = None
    payload_format: int | None = None
    lane: str = ""


def message_of(message: Outbound) -> MqttMessage:
    """Return the client's message. QoS 2 becomes 1: the promise is at least once, and 2 would add none to it."""
    scalars: dict[str, Part] = {}
    for part in message.parts:
        scalars.setdefault(part.key, part)
    qos = _number(scalars.get("qos"))
    return MqttMessage(
        message.address,
        message.body or b"",
        qos=_MOST_QOS if qos is None else min(qos, _MOST_QOS),
        retain=_text(scalars.get("retain")) == "true",
        content_type=_text(scalars.get("content_type")),
        user_properties=tuple((name, part.text or "") for name, part in headers_of(message.parts, _USER)),
        response_topic=_text(scalars.get("response_topic")),
        correlation_data=scalars["correlation_data"].value if "correlation_data" in scalars else None,
        message_expiry_interval=_number(scalars.get("message_expiry_interval")),
        payload_format=_number(scalars.get("payload_format")),
        lane=message.lane,
    )


def properties_of(message: MqttMessage) -> Properties | None:
    """Return the MQTT 5 properties of a message, user properties in order and with their repeats; None without any.

    Raises:
        ValueError: a text or a number that no property can hold.
    """
    values: dict[str, Any] = {
        "PayloadFormatIndicator": message.payload_format,
        "MessageExpiryInterval": message.message_expiry_interval,
        "ContentType": message.content_type,
        "ResponseTopic": message.response_topic,
        "CorrelationData": message.correlation_data,
        "UserProperty": list(message.user_properties) or None,
    }
    for text in (
        message.content_type,
        message.response_topic,
        *(each for pair in message.user_properties for each in pair),
    ):
        if text is not None and ("\0" in text or len(text.encode("utf-8")) > MAX_TEXT):
            raise ValueError(f"{text[:40]!r} has U+0000 or more than {MAX_TEXT} bytes")
    if message.correlation_data is not None and len(message.correlation_data) > MAX_TEXT:
        raise ValueError(f"correlation data have more than {MAX_TEXT} bytes")
    expiry = message.message_expiry_interval
    if expiry is not None and not 0 <= expiry < 2**32:
        raise ValueError(f"{expiry} is no message expiry interval; it has 32 bits")
    given = {name: value for name, value in values.items() if value is not None}
    return properties_for(PacketTypes.PUBLISH, **given) if given else None


def fault_of(message: MqttMessage, properties: Properties | None, limits: BrokerLimits) -> str:
    """Return why this broker can never take a message; empty when nothing is known against it."""
    fault = topic_fault(message.topic)
    if fault:
        return f"topic {message.topic[:80]!r} cannot be published to: {fault}"
    if message.retain and not limits.retain:
        return "the broker keeps no retained messages"
    if limits.packet is None and len(message.payload) < MAX_PACKET // 2:
        return ""  # packing takes long, and paho packs once more
    packed = packed_size(properties) if properties is not None else 0
    size = _HEADER_BYTES + len(message.topic.encode("utf-8")) + packed + len(message.payload)
    most = limits.packet or MAX_PACKET
    return f"its packet of {size} bytes is more than the broker takes ({most})" if size > most else ""


def _text(part: Part | None) -> str | None:
    return None if part is None else part.text


def _number(part: Part | None) -> int | None:
    text = _text(part)
    return int(text) if text is not None and text.isdecimal() else None
