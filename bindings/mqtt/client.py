"""The MQTT client: paho without threads, a link to a broker, and a connector that tries addresses in turn."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bindings.certificates import Address, create_tls_context, parse_addresses, with_login
from bindings.gateways import CLOSE_SECONDS, CONNECT_SECONDS, Connection, GatewayError, Tls
from bindings.mqtt.binding import MqttSending, session_options
from bindings.mqtt.messages import MalformedPublish, MqttDelivery, SubscribeRequest, Version, read_publish

# paho's client without automatic behaviour: no thread, no loop, no reconnecting, no acknowledgements of its own.

MAX_RECEIVE: Final = 65_535
"""The largest receive maximum, and the default if the broker names none."""
ROUND_SECONDS: Final = 0.5
"""Maximum wait for a link, after which its owner looks for work that does not wake it, such as pings."""
_READ_AHEAD_BYTES: Final = 2**16
VERSIONS: Final = {"MQTT/5.0": MQTTProtocolVersion.MQTTv5, "MQTT/3.1.1": MQTTProtocolVersion.MQTTv311}


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits that a broker named when it accepted the connection, with MQTT's maximum for the others.

    ``receive``: unconfirmed messages; ``packet``: bytes of one packet (None: any); ``retain``: whether it stores
    retained messages; ``identifiers``: whether subscriptions may have one.
    """

    receive: int = MAX_RECEIVE
    packet: int | None = None
    retain: int = 1
    identifiers: int = 1


class LinkClient(paho.Client):
    """paho's client with our reader of PUBLISH packets (:mod:`bindings.mqtt.messages` says why), our TLS handshake, a
    buffer before its reader, and pauses of reading that may last longer than the keepalive.

    It overrides private methods of paho. Tests send what paho's own reader rejects, and fail a handshake under warnings
    as errors, so that a change in paho shows.
    """

    def __init__(self, config: LinkConnector, address: Address, take: Callable[[MqttDelivery], None]) -> None:
        """Every received message is passed to *take*."""
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=config.client_id,
            clean_session=None if config.version == "MQTT/5.0" else config.clean,
            protocol=VERSIONS[config.version],
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._take = take
        self._version = config.version
        self._ahead = memoryview(b"")
        self.on_socket_open = _disable_nagle
        # With a handler of this event paho queues what it sends, and writes only when MqttLink.serve_once tells it to.
        self.on_socket_register_write = lambda _client, _data, _sock: None
        self.max_inflight_messages = 0  # the owner counts; paho would iterate over all of them at each answer
        if address.tls:
            self.tls_set_context(config.tls)
        if address.username is not None:
            self.username_pw_set(address.username, address.password)

    @property
    def has_unread(self) -> bool:
        """Whether received bytes are buffered, which polling the socket does not show."""
        return bool(self._ahead or getattr(self.socket(), "pending", int)())

    def expect_no_pong(self) -> None:
        """Forget a ping without an answer, which cannot come while nothing is read; paho pings again when it is due."""
        self._ping_t = 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        """Receive large chunks: paho asks for one byte, one more, and then the rest of each packet."""
        if not self._ahead:
            data = super()._sock_recv(max(bufsize, _READ_AHEAD_BYTES))
            if len(data) <= bufsize:
                return data
            self._ahead = memoryview(data)
        chunk, self._ahead = bytes(self._ahead[:bufsize]), self._ahead[bufsize:]
        return chunk

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        """Shake hands as paho does, but close the socket after a failure, and never retry without the server's name."""
        if self._ssl_context is None:
            raise ConnectionError("TLS is not configured")
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


def build_properties(packet: int, **values: Any) -> Properties:
    """Return MQTT 5 properties of one packet type, under paho's names for them.

    Raises:
        ValueError: a value that the property must not have.
    """
    properties: Properties = Properties(packet)  # type: ignore[no-untyped-call]  # paho types all but this
    try:
        for name, value in values.items():
            setattr(properties, name, value)
    except MQTTException as error:
        raise ValueError(str(error)) from error
    return properties


def packed_size(properties: Properties) -> int:
    """Return the size of properties in a packet, in bytes."""
    return len(properties.pack())  # type: ignore[no-untyped-call]


def _disable_nagle(_client: object, _data: object, sock: object) -> None:
    """Switch off Nagle's algorithm, which would delay small packets such as PUBACK."""
    if isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


# One connection to a broker, over paho, served by one thread of its owner.
#
# A link never reconnects; another link replaces it. So an acknowledgement, whose packet identifier is only valid on its
# own connection, cannot reach a later one. The owner calls :meth:`MqttLink.serve_once` and decides when to read, which
# limits the unstored messages.

_READ_PACKETS: Final = 256
"""Maximum packets read in one call of :meth:`MqttLink.serve_once`."""
_FAILED: Final = 128


class LinkOwner:
    """The receiver of a link's events, called on the thread that serves the link; it ignores what it does not want."""

    def on_message(self, link: MqttLink, delivery: MqttDelivery) -> None:
        """Handle a message; QoS 1 requires :meth:`MqttLink.acknowledge` once it is stored."""

    def on_subscribed(self, link: MqttLink, mid: int, fault: str) -> None:
        """Handle the answer to a SUBSCRIBE; *fault* is empty if the broker granted it."""

    def on_unsubscribed(self, link: MqttLink, mid: int) -> None:
        """Handle the answer to an UNSUBSCRIBE."""

    def on_published(self, link: MqttLink, mid: int, code: int, fault: str) -> None:
        """Handle the answer to a PUBLISH; a reason code of 128 or more is a refusal."""


class MqttLink:
    """One connection. ``accepted`` once the broker accepted it; ``fault`` says why it ended.

    ``code`` is the reason code of the broker's DISCONNECT, None without one (MQTT 5 section 3.14.2.1).
    """

    def __init__(self, config: LinkConnector, address: Address, owner: LinkOwner) -> None:
        self.accepted = False
        self.session_present = False
        self.limits = BrokerLimits()
        self.fault = ""
        self.code: int | None = None
        self.opened = time.monotonic()
        self.address = address
        self._config = config
        self._owner = owner
        self._packets = 0  # received; a read without a packet does not change it
        self._unread = False  # buffers that no poll sees may have bytes
        self._client = LinkClient(config, address, self._handle_message)
        self._client.on_connect = self._handle_connack
        self._client.on_disconnect = self._handle_disconnect
        self._client.on_subscribe = self._handle_suback
        self._client.on_unsubscribe = self._handle_unsuback
        self._client.on_publish = self._handle_puback

    @property
    def alive(self) -> bool:
        """Whether it is connected or connecting."""
        return not self.fault and self._client.socket() is not None

    def connect(self) -> None:
        """Open the connection and send CONNECT; :meth:`serve_once` handles the answer.

        Raises:
            OSError: a network or TLS error.
            ValueError: an invalid host name.
        """
        five: dict[str, Any] = {}
        if self._config.version == "MQTT/5.0":
            properties = build_properties(
                PacketTypes.CONNECT,
                SessionExpiryInterval=0 if self._config.clean else self._config.options.expiry,
                ReceiveMaximum=self._config.receive,
            )
            five = {"clean_start": self._config.clean, "properties": properties}
        self._client.connect(self.address.host, self.address.port, self._config.options.keepalive, **five)

    def serve_once(self, timeout: float, may_read: Callable[[], bool], wake: socket.socket | None = None) -> None:
        """Wait up to *timeout* seconds for work or for *wake* to be readable, then do the work.

        Nothing is read while *may_read* returns False, so that TCP's flow control makes the broker wait; the broker's
        answer to CONNECT is. Pings are sent as ever, so that the broker keeps the connection.
        """
        sock = self._client.socket()
        if sock is None or not self.alive:
            self.fault = self.fault or "the connection was closed"
            return

        def allowed() -> bool:
            return not self.accepted or may_read()

        reading = allowed()
        if not reading:
            self._client.expect_no_pong()
        poll = select.poll()
        wanted = (select.POLLIN if reading else 0) | (select.POLLOUT if self._client.want_write() else 0)
        poll.register(sock.fileno(), wanted)
        if wake is not None:
            poll.register(wake.fileno(), select.POLLIN)
        patience = 0.0 if reading and self._unread else max(timeout, 0.0)
        ready = dict(poll.poll(patience * 1000))
        events = ready.get(sock.fileno(), 0)
        if reading and (events or self._unread):
            self._read_packets(allowed)
        elif events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self.close("the broker closed the connection")
        self._write_and_check()

    def acknowledge(self, mid: int) -> bool:
        """Send the PUBACK of a message of this link; return False, with nothing sent, if the link has ended."""
        return self.alive and self._client.ack(mid, 1) == MQTTErrorCode.MQTT_ERR_SUCCESS

    def subscribe(self, request: SubscribeRequest, identifier: int) -> int | None:
        """Send SUBSCRIBE for QoS 1, and return its packet identifier; None if the link has ended."""
        if self._config.version != "MQTT/5.0":
            return self._client.subscribe(request.filter, 1)[1]
        number = {"SubscriptionIdentifier": identifier} if self.limits.identifiers else {}
        properties = build_properties(PacketTypes.SUBSCRIBE, **number)
        options = SubscribeOptions(
            qos=1, noLocal=request.no_local, retainAsPublished=True, retainHandling=request.retain_handling
        )
        return self._client.subscribe(request.filter, options=options, properties=properties)[1]

    def unsubscribe(self, filter_: str) -> int | None:
        """Send UNSUBSCRIBE and return its packet identifier; None when the link has ended."""
        return self._client.unsubscribe(filter_)[1]

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None) -> int | None:
        """Queue a PUBLISH and return its packet identifier; None when the link has ended.

        Raises:
            ValueError: a value that no packet can contain.
        """
        if not self.alive:
            return None
        info = self._client.publish(topic, payload, qos, retain, properties)
        return info.mid if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    def is_drained(self) -> bool:
        """Whether all queued packets were written to the socket."""
        return not self._client.want_write()

    def disconnect(self) -> None:
        """Disconnect: send queued packets and DISCONNECT, and close once the broker did, or after a limit of time."""
        deadline = time.monotonic() + CLOSE_SECONDS
        sock = self._client.socket()
        if sock is None or not self.alive:
            return
        with socket.socket(fileno=os.dup(sock.fileno())) as copy:
            self._client.disconnect()
            while self.alive and time.monotonic() < deadline:
                self.serve_once(0.1, lambda: False)
            self.close("disconnected")
            # Closed with unread data, a connection is reset, and the broker may never see our last acknowledgements.
            _discard_input(copy, deadline)

    def close(self, fault: str) -> None:
        """Close immediately, without DISCONNECT; does nothing if the link has ended."""
        self.fault = self.fault or fault
        sock = self._client.socket()
        if sock is not None:
            # paho has no public way to end a connection without DISCONNECT. It keeps the closed socket, and none
            # of paho's is called any more.
            sock.close()

    def _read_packets(self, may_read: Callable[[], bool]) -> None:
        self._unread = True
        for _ in range(_READ_PACKETS):
            if not may_read():
                return
            before = self._packets
            self._client.loop_read()
            if self._packets == before:
                break
        else:
            return
        self._unread = self._client.has_unread

    def _write_and_check(self) -> None:
        if self.alive and self._client.want_write():
            self._client.loop_write()
        if self.alive:
            self._client.loop_misc()
        if not self.accepted and time.monotonic() > self.opened + CONNECT_SECONDS:
            self.close(f"{self.address} does not answer as an MQTT broker")
        if self._client.socket() is None:
            self.fault = self.fault or "the connection was lost"

    def _handle_message(self, delivery: MqttDelivery) -> None:
        self._packets += 1
        self._owner.on_message(self, delivery)

    def _handle_connack(
        self,
        _client: object,
        _data: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._packets += 1
        if reason.is_failure:
            self.fault = self.fault or f"{self.address} refuses the connection: {reason}"
            return
        self.accepted = True
        self.session_present = flags.session_present
        self.limits = BrokerLimits(
            getattr(properties, "ReceiveMaximum", MAX_RECEIVE),
            getattr(properties, "MaximumPacketSize", None),
            getattr(properties, "RetainAvailable", 1),
            getattr(properties, "SubscriptionIdentifierAvailable", 1),
        )

    def _handle_disconnect(
        self, _client: object, _data: object, flags: paho.DisconnectFlags, reason: ReasonCode, _properties: object
    ) -> None:
        by_broker = flags.is_disconnect_packet_from_server
        self.code = reason.value if by_broker else None
        text = f"{self.address} ended the connection: {reason}" if by_broker else f"{self.address}: connection lost"
        if by_broker and reason == "Session taken over":
            text += f"; another client has the id {self._config.client_id}"
        self.fault = self.fault or text

    def _handle_suback(
        self, _client: object, _data: object, mid: int, reasons: Sequence[ReasonCode], _properties: object
    ) -> None:
        self._packets += 1
        fault = next((str(reason) for reason in reasons if reason.value >= _FAILED), "")
        self._owner.on_subscribed(self, mid, fault)

    def _handle_unsuback(self, _client: object, _data: object, mid: int, _reasons: object, _properties: object) -> None:
        self._packets += 1
        self._owner.on_unsubscribed(self, mid)

    def _handle_puback(self, _client: object, _data: object, mid: int, reason: ReasonCode, _properties: object) -> None:
        self._packets += 1
        self._owner.on_published(self, mid, reason.value, str(reason) if reason.value >= _FAILED else "")


def _discard_input(sock: socket.socket, deadline: float) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv(2**16):
                return
    except OSError:
        return  # the broker was faster, or slower than the limit


# Opening links: the choice of the address, and the parameters.


class LinkError(Exception):
    """A failed connection, which may be retried; the message has no secrets."""


class LinkConnector:
    """Opens links to the addresses of a connection in turn.

    ``clean``: the session ends with the connection; else it lasts ``options.expiry`` seconds longer. ``receive`` is the
    receive maximum, which only MQTT 5 can tell a broker; ``tls`` is for addresses with TLS.

    Raises:
        GatewayError: an address, a certificate or an option cannot be used.
    """

    def __init__(
        self, connection: Connection, version: Version, client_id: str, *, clean: bool, receive: int = MAX_RECEIVE
    ) -> None:
        self.version: Version = version
        self.client_id = client_id
        self.clean = clean
        self.receive = min(receive, MAX_RECEIVE)
        own = (with_login(each, connection.login) for each in parse_addresses(MqttSending.address_form, connection))
        self.addresses = tuple(map(_with_username, own))
        if not self.addresses:
            raise GatewayError("an MQTT connection has no address; set one in the endpoint, such as mqtts://host:8883")
        secure = any(address.tls for address in self.addresses)
        self.tls = create_tls_context(connection.tls or Tls()) if secure else None
        self.options = session_options(connection.options)
        self._next_addresses = itertools.cycle(self.addresses)

    def open_link(self, owner: LinkOwner) -> MqttLink:
        """Connect to the next address; blocks up to the network's limits.

        Raises:
            LinkError: nothing answers, or the server's certificate is not valid for it.
        """
        address = next(self._next_addresses)
        link = MqttLink(self, address, owner)
        try:
            link.connect()
        except (OSError, ValueError) as error:
            link.close("not connected")
            # Only the system error's text: an exception's other arguments may contain what was sent.
            checked = getattr(error, "verify_message", "")
            reason = f"its certificate is not valid: {checked}" if checked else getattr(error, "strerror", None)
            reason = reason or type(error).__name__
            raise LinkError(f"cannot connect to {address}: {reason}") from None
        return link


def _with_username(address: Address) -> Address:
    """Return the address with a user name if it has a login: MQTT 3.1.1 allows no password without one."""
    return replace(address, username="") if address.password is not None and address.username is None else address


# Waking a thread that polls a socket: other threads write to a second socket, which it polls as well.


class Wakeup:
    """Lets any thread wake one waiting thread; several calls of :meth:`wake` wake it once.

    ``receiver`` is the socket that the waiting thread polls for reading, beside its other sockets.
    """

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def close(self) -> None:
        """Close both sockets; no thread may be waiting."""
        self.receiver.close()
        self._sender.close()

    def wake(self) -> None:
        """Wake the waiting thread, from any thread."""
        # A full buffer wakes it as well, and after close nobody waits.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear_calls(self) -> None:
        """Discard all earlier calls of :meth:`wake`."""
        with contextlib.suppress(BlockingIOError):
            self.receiver.recv(4096)

    def wait(self, seconds: float) -> None:
        """Return after *seconds*, or as soon as another thread wakes this one."""
        poll = select.poll()
        poll.register(self.receiver, select.POLLIN)
        poll.poll(seconds * 1000)
        self.clear_calls()
