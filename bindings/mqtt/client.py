"""paho's client, set up to do nothing by itself: no thread, no loop, no reconnecting, no acknowledgement of its own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from paho.mqtt.properties import Properties

from bindings.addresses import Address
from bindings.mqtt.messages import Delivery, MalformedPublish, Version, read_publish
from bindings.mqtt.options import SessionOptions

MAX_RECEIVE: Final = 65_535
"""The largest receive maximum, which also holds when the broker names none."""
_AHEAD_BYTES: Final = 2**16
VERSIONS: Final = {"MQTT/5.0": MQTTProtocolVersion.MQTTv5, "MQTT/3.1.1": MQTTProtocolVersion.MQTTv311}


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """The terms on which we connect. ``clean``: the session begins and ends with the connection; else it lasts for
    ``options.expiry`` seconds after it. ``receive`` is the receive maximum, which only MQTT 5 can pass to a broker;
    ``tls`` is for addresses with TLS.
    """

    version: Version
    client_id: str
    options: SessionOptions
    clean: bool
    receive: int = MAX_RECEIVE
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits that a broker named when it took the connection; those that it did not name are the widest of MQTT.

    ``receive`` messages that may be unconfirmed, ``packet`` bytes that one may have (None: any), ``qos`` the highest,
    ``retain`` whether it keeps messages, ``identifiers`` whether subscriptions may have one.
    """

    receive: int = MAX_RECEIVE
    packet: int | None = None
    qos: int = 2
    retain: bool = True
    identifiers: bool = True


class LinkClient(paho.Client):
    """paho's client with our reader of PUBLISH packets (:mod:`bindings.mqtt.messages` says why), our TLS handshake, and
    a buffer before its reader.

    It reaches into paho for them. Tests send what paho's own reader refuses, and fail a handshake under warnings as
    errors: they fail should paho change there.
    """

    def __init__(self, terms: LinkTerms, take: Callable[[Delivery], None]) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=terms.client_id,
            clean_session=None if terms.version == "MQTT/5.0" else terms.clean,
            protocol=VERSIONS[terms.version],
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._take = take
        self._version = terms.version
        self._ahead = memoryview(b"")

    @property
    def unread(self) -> bool:
        """Whether something was received that was not read yet, so that waiting for the socket would not show it."""
        return bool(self._ahead or getattr(self.socket(), "pending", int)())

    def _sock_recv(self, bufsize: int) -> bytes:
        """Receive much at a time: paho asks for one byte, and one more, and then for the rest of each packet."""
        if not self._ahead:
            data = super()._sock_recv(max(bufsize, _AHEAD_BYTES))
            if len(data) <= bufsize:
                return data
            self._ahead = memoryview(data)
        taken, self._ahead = bytes(self._ahead[:bufsize]), self._ahead[bufsize:]
        return taken

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        """Shake hands as paho does, but leave no open socket behind a handshake that fails, and never try without the
        server's name.
        """
        if self._ssl_context is None:
            raise ConnectionError("no settings for TLS")
        secured = self._ssl_context.wrap_socket(tcp_sock, server_hostname=self.host, do_handshake_on_connect=False)
        try:
            secured.settimeout(self.connect_timeout)
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        return secured

    def _handle_publish(self) -> MQTTErrorCode:
        try:
            delivery = read_publish(self._in_packet["command"], self._in_packet["packet"], self._version)
        except MalformedPublish:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if delivery.qos > 1:  # never granted
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._take(delivery)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def client_for(terms: LinkTerms, address: Address, take: Callable[[Delivery], None]) -> LinkClient:
    """Return a client that is ready to connect to *address*, and gives *take* every message that arrives."""
    client = LinkClient(terms, take)
    client.on_socket_open = _send_at_once
    # With a handler of this event paho queues what it sends, and writes only when the owner says so.
    client.on_socket_register_write = _leave_to_owner
    client.max_inflight_messages = 0  # the owner counts; paho would go through all of them at each answer
    if address.tls:
        client.tls_set_context(terms.tls)
    if address.username is not None:
        client.username_pw_set(address.username, address.password)
    return client


def properties_for(packet: int, **values: Any) -> Properties:
    """Return MQTT 5 properties of one packet type, under paho's names for them.

    Raises:
        ValueError: a value that the property cannot have.
    """
    properties: Properties = Properties(packet)  # type: ignore[no-untyped-call]  # paho types all but this
    try:
        for name, value in values.items():
            setattr(properties, name, value)
    except MQTTException as error:
        raise ValueError(str(error)) from error
    return properties


def packed_size(properties: Properties) -> int:
    """Return the bytes that properties take in a packet."""
    return len(properties.pack())  # type: ignore[no-untyped-call]


def limits_of(properties: Properties | None) -> BrokerLimits:
    """Return the limits that a CONNACK names."""

    def value_of(name: str, default: Any) -> Any:
        return getattr(properties, name, default)

    return BrokerLimits(
        receive=value_of("ReceiveMaximum", MAX_RECEIVE),
        packet=value_of("MaximumPacketSize", None),
        qos=value_of("MaximumQoS", 2),
        retain=bool(value_of("RetainAvailable", 1)),
        identifiers=bool(value_of("SubscriptionIdentifierAvailable", 1)),
    )


def _send_at_once(_client: object, _data: object, place: object) -> None:
    """Switch off Nagle's algorithm, which would hold back small packets such as PUBACK."""
    if isinstance(place, socket.socket):
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _leave_to_owner(_client: object, _data: object, _place: object) -> None:
    """Do nothing: its next round writes."""
