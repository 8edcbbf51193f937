"""MQTT messages as native records, and topic filters."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from bindings.gateways import EndpointSubscription, GatewayError, drop_covered
from bindings.parts import BINARY_KIND, JSON_KIND, InboxRow, Part
from catalog.protocols.properties import (
    PLACEHOLDER,
    SHARE,
    mqtt_filter_fault,
    mqtt_text_fault,
    squash_names,
    strip_share,
)

# Reading PUBLISH packets, and the native record of each.
#
# It replaces paho's own reader (see :mod:`bindings.mqtt.client`), which rejects U+FEFF in texts, though MQTT 5.0
# section 1.5.4 allows it. One such message would end every connection that it is delivered on, for ever. Here values
# stay bytes.

Version = Literal["MQTT/5.0", "MQTT/3.1.1"]

_UINT16: Final = struct.Struct("!H")
_UINT32: Final = struct.Struct("!I")
_PAYLOAD_FORMAT: Final = 1
_EXPIRY: Final = 2
_CONTENT_TYPE: Final = 3
_RESPONSE_TOPIC: Final = 8
_CORRELATION_DATA: Final = 9
_SUBSCRIPTION: Final = 11
_USER_PROPERTY: Final = 38
_TEXTS: Final = {
    _CONTENT_TYPE: "content_type",
    _RESPONSE_TOPIC: "response_topic",
    _CORRELATION_DATA: "correlation_data",
}
_ORDER: Final = (_PAYLOAD_FORMAT, _EXPIRY, _RESPONSE_TOPIC, _CORRELATION_DATA, _CONTENT_TYPE)
_FLAGS: Final = {False: b"false", True: b"true"}


class MalformedPublish(ValueError):
    """A packet that is not valid MQTT."""


class MqttDelivery(NamedTuple):
    """A message as delivered.

    ``mid`` is the packet identifier, 0 with QoS 0; it is only valid on its connection. ``properties`` are the parts of
    the native record that only MQTT 5 has; ``subscriptions`` the identifiers of the subscriptions that the broker
    delivered it for, if it names any.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    mid: int
    properties: tuple[Part, ...] = ()
    subscriptions: tuple[int, ...] = ()


def read_publish(header: int, packet: bytes | bytearray, version: Version) -> MqttDelivery:
    """Read a PUBLISH packet: the first byte of its fixed header, and what follows the remaining length.

    Raises:
        MalformedPublish: it is truncated, or has a property that PUBLISH does not allow, or a topic that is not UTF-8.
    """
    view = memoryview(packet)
    qos = (header >> 1) & 3
    try:
        topic, at = _read_bytes(view, 0)
        mid = 0
        if qos:
            (mid,), at = _UINT16.unpack_from(view, at), at + 2
        properties: tuple[Part, ...] = ()
        subscriptions: tuple[int, ...] = ()
        if version == "MQTT/5.0":
            size, at = _read_variable_int(view, at)
            if at + size > len(view):
                raise MalformedPublish("properties extend past the packet")
            properties, subscriptions = _read_properties(view[: at + size], at)
            at += size
        return MqttDelivery(
            topic.decode("utf-8"), bytes(view[at:]), qos, bool(header & 1), mid, properties, subscriptions
        )
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedPublish(f"not a valid PUBLISH packet: {error}") from error


def to_row(delivery: MqttDelivery, endpoint: str, version: Version, received: int, max_body_bytes: int) -> InboxRow:
    """Convert a message to an inbox row: its native record, marked if its body is too large.

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


def _read_properties(view: memoryview, at: int) -> tuple[tuple[Part, ...], tuple[int, ...]]:
    single: dict[int, Part] = {}
    users: list[Part] = []
    subscriptions: list[int] = []
    while at < len(view):
        kind, at = view[at], at + 1
        if kind == _USER_PROPERTY:
            name, at = _read_bytes(view, at)
            value, at = _read_bytes(view, at)
            # A name that is not UTF-8 violates the protocol; it is made readable rather than lost.
            users.append(Part(f"user_properties.{name.decode('utf-8', 'replace')}", value))
        elif kind == _SUBSCRIPTION:
            number, at = _read_variable_int(view, at)
            subscriptions.append(number)
        else:
            single[kind], at = _read_property(kind, view, at)
    return (*(single[kind] for kind in _ORDER if kind in single), *users), tuple(subscriptions)


def _read_property(kind: int, view: memoryview, at: int) -> tuple[Part, int]:
    if kind in _TEXTS:
        value, at = _read_bytes(view, at)
        return Part(_TEXTS[kind], value, BINARY_KIND if kind == _CORRELATION_DATA else None), at
    if kind == _PAYLOAD_FORMAT:
        return Part("payload_format", b"%d" % view[at], JSON_KIND), at + 1
    if kind == _EXPIRY:
        (seconds,) = _UINT32.unpack_from(view, at)
        return Part("message_expiry_interval", b"%d" % seconds, JSON_KIND), at + 4
    # A topic alias, for example, which brokers use only with clients that allow it, and ours never does.
    raise MalformedPublish(f"property {kind}, which PUBLISH does not allow here")


def _read_bytes(view: memoryview, at: int) -> tuple[bytes, int]:
    (size,) = _UINT16.unpack_from(view, at)
    end = at + 2 + size
    if end > len(view):
        raise MalformedPublish("a text or binary value extends past its packet")
    return bytes(view[at + 2 : end]), end


def _read_variable_int(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in (0, 7, 14, 21):
        digit, at = view[at], at + 1
        value |= (digit & 127) << shift
        if not digit & 128:
            return value, at
    raise MalformedPublish("an integer of more than four bytes")


# Topic filters: made from templates, checked, and matched against topics (MQTT 5.0 section 4.7 and 4.8.2).
#
# A filter may be shared, ``$share/<group>/<filter>``: its messages are then distributed among the group's members.

SHARE_OPTIONS: Final = ("sharedsubscriptiongroup", "sharename", "sharedgroup", "consumergroup", "group")
"""Normalized names of the endpoint option for a shared subscription; its value is the group."""
_TOPIC_OPTIONS: Final = ("topicfilter", "topic", "topicname")


class TopicFilterError(ValueError):
    """A text that is not a valid topic filter; the message says why."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A subscription to request: a filter, and the MQTT 5 options that decide which of its messages arrive.

    ``no_local``: exclude those that this client published. ``retain_handling``: retained ones with each SUBSCRIBE (0),
    with one that is new to the session (1), or never (2).
    """

    filter: str
    no_local: bool = False
    retain_handling: int = 1


def to_requests(subscriptions: Sequence[EndpointSubscription]) -> tuple[SubscribeRequest, ...]:
    """Return the requests for *subscriptions*, in order, including those that another one covers.

    Raises:
        GatewayError: a subscription is not a topic filter, has an option that MQTT does not allow there, or overlaps
            another one with different options, which one connection cannot separate.
    """
    requests: list[SubscribeRequest] = []
    for each in subscriptions:
        try:
            request = _to_request(each)
        except TopicFilterError as error:
            raise GatewayError(f"{each.endpoint}: {error}") from error
        for other, known in zip(subscriptions, requests, strict=False):
            if known != request and _same_messages(known.filter, request.filter):
                if (known.no_local, known.retain_handling) != (request.no_local, request.retain_handling):
                    raise GatewayError(
                        f"{other.endpoint} and {each.endpoint} subscribe to {known.filter} and {request.filter}, which "
                        f"overlap, with different nolocal or retainhandling; a message arrives through both; use the "
                        f"same options, or give one of the sources its own client_id"
                    )
        requests.append(request)
    return tuple(requests)


def _to_request(subscription: EndpointSubscription) -> SubscribeRequest:
    known = squash_names(subscription.options)
    no_local, handling = known.get("nolocal"), known.get("retainhandling")
    filter_ = share_filter(subscription.address, subscription.options)
    if not isinstance(no_local, bool | None):
        raise TopicFilterError(f"option nolocal must be true or false, not {no_local!r:.40}")
    if handling is not None and (isinstance(handling, bool) or handling not in (0, 1, 2)):
        raise TopicFilterError(f"option retainhandling must be 0, 1 or 2, not {handling!r:.40}")
    if no_local and filter_.startswith(SHARE):
        raise TopicFilterError(f"{filter_} is shared, and MQTT does not allow nolocal there; remove one of them")
    return SubscribeRequest(filter_, bool(no_local), 1 if handling is None else int(handling))


def _same_messages(one: str, other: str) -> bool:
    """Whether a broker treats two filters of one client as one subscription, with one set of options."""
    if one.startswith(SHARE) or other.startswith(SHARE):
        return one == other
    return overlap(one, other)


def filter_of_template(template: str) -> str:
    """Return the narrowest filter that matches every topic of a template (MATCHING.md#templates).

    A level with a placeholder becomes ``+``, since a placeholder never matches ``/``; a template that is one
    placeholder matches anything and becomes ``#``. Wildcards in the template are kept.

    Raises:
        TopicFilterError: the result is not a topic filter.
    """
    if PLACEHOLDER.fullmatch(template):
        return "#"
    levels = ("+" if PLACEHOLDER.search(level) else level for level in template.split("/"))
    return check_filter("/".join(levels))


def filters_of_templates(templates: Iterable[str]) -> list[str]:
    """Return the filters of several definitions' topics, each once, without those that another one covers.

    Raises:
        TopicFilterError: a template gives no topic filter.
    """
    return drop_covered(map(filter_of_template, templates), covers)


def filter_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the filter in an endpoint's options (``topicfilter``, else ``topic``); :func:`share_filter` shares it.

    None if there is none; then the endpoint's address or its definitions say what to subscribe to.

    Raises:
        TopicFilterError: the option is not text, or not a topic filter.
    """
    known = squash_names(options)
    for name in _TOPIC_OPTIONS:
        value = known.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, str):
            raise TopicFilterError(f"option {name} must be a topic filter, not {value!r:.80}")
        return filter_of_template(value)
    return None


def share_filter(address: str, options: Mapping[str, Any]) -> str:
    """Return the filter *address*, as a shared one if the options name a group.

    Raises:
        TopicFilterError: the address is not a topic filter, or the group is not a valid name.
    """
    known = squash_names(options)
    group = next((known[name] for name in SHARE_OPTIONS if known.get(name)), None)
    if group is None or address.startswith(SHARE):
        return check_filter(address)
    if not isinstance(group, str) or any(sign in group for sign in "/+#"):
        raise TopicFilterError(f"{group!r:.80} is not a valid group of a shared subscription; do not use / + or #")
    return check_filter(f"{SHARE}{group}/{address}")


def check_filter(text: str) -> str:
    """Return *text* unchanged if it is a valid topic filter; raise if not.

    Raises:
        TopicFilterError: it is empty, too long, contains U+0000 or a lone surrogate, or has a misplaced wildcard.
    """
    fault = mqtt_filter_fault(text)
    if fault:
        raise TopicFilterError(f"{text!r:.80} is not a topic filter: {fault}")
    return text


def topic_fault(topic: str) -> str:
    """Return why nothing can be published to *topic*; empty if it is valid."""
    if "+" in topic or "#" in topic:
        return "a topic must not have wildcards (+ or #)"
    return mqtt_text_fault(topic)


def matches(text: str, topic: str) -> bool:
    """Whether a filter, shared or not, matches a topic."""
    return covers(strip_share(text), topic)


def covers(wide: str, narrow: str) -> bool:
    """Whether *wide* matches everything that *narrow* matches. A shared filter covers itself only.

    A wildcard in the first level does not match topics that begin with ``$``.
    """
    if wide == narrow:
        return True
    if wide.startswith(SHARE) or narrow.startswith(SHARE):
        return False
    outer, inner = wide.split("/"), narrow.split("/")
    if inner[0].startswith("$") and outer[0] in ("+", "#"):
        return False
    for index, level in enumerate(outer):
        if level == "#":
            return True
        if index >= len(inner) or inner[index] == "#" or (level != "+" and level != inner[index]):
            return False
    return len(outer) == len(inner)


def overlap(one: str, other: str) -> bool:
    """Whether some topic matches both filters, shared or not."""
    left, right = strip_share(one).split("/"), strip_share(other).split("/")
    for wild, plain in ((left[0], right[0]), (right[0], left[0])):
        if wild in ("+", "#") and plain.startswith("$"):
            return False
    for index in range(max(len(left), len(right)) + 1):
        here, there = left[index : index + 1], right[index : index + 1]
        if "#" in (*here, *there):
            return True  # it matches the level above it as well, so the other one may have ended there
        if not here or not there:
            return here == there
        if here != there and "+" not in (*here, *there):
            return False
    return True
