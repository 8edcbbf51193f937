"""One connection to a broker, over paho, served by one thread of its owner.

A link is never reconnected: what replaces it is another one. So an acknowledgement, which names a packet identifier
that means something on its own connection only, cannot reach a later one. The owner calls :meth:`Link.serve`, decides
when to read, and so how much is held.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bindings.addresses import Address
from bindings.mqtt.client import BrokerLimits, LinkClient, LinkTerms, client_for, limits_of, properties_for
from bindings.mqtt.filters import SubscribeRequest
from bindings.mqtt.messages import Delivery

ANSWER_SECONDS: Final = 15.0
"""How long a broker may take to answer a CONNECT."""
_READ_PACKETS: Final = 256
"""Packets read before anything else gets its turn."""
_FAILED: Final = 128


class LinkOwner(Protocol):
    """The owner of a link, which gets what arrives; called on the thread that serves it."""

    def delivered(self, link: Link, delivery: Delivery) -> None:
        """Take a message; QoS 1 wants :meth:`Link.acknowledge` once it is safe."""

    def subscribed(self, link: Link, mid: int, fault: str) -> None:
        """Note that the broker took a SUBSCRIBE, or why it did not."""

    def unsubscribed(self, link: Link, mid: int) -> None:
        """Note that the broker answered an UNSUBSCRIBE."""

    def published(self, link: Link, mid: int, code: int, fault: str) -> None:
        """Note that the broker took a PUBLISH, or refused it with a reason code of 128 or more."""


class Link:
    """One connection: see the module. ``accepted`` once the broker took it, ``fault`` says why it ended.

    ``code`` is the reason code of the broker's DISCONNECT, None without one (MQTT 5 section 3.14.2.1).
    """

    def __init__(self, terms: LinkTerms, address: Address, owner: LinkOwner) -> None:
        self.accepted = False
        self.session_present = False
        self.limits = BrokerLimits()
        self.fault = ""
        self.code: int | None = None
        self.opened = time.monotonic()
        self.address = address
        self._terms = terms
        self._owner = owner
        self._packets = 0  # that arrived; a read that brings none does not change it
        self._unread = False  # something may lie in buffers that no poll sees
        self._client = self._make()

    @property
    def alive(self) -> bool:
        """Whether it is connected, or about to be."""
        return not self.fault and self._client.socket() is not None

    def connect(self) -> None:
        """Open the connection and send CONNECT; the answer comes to :meth:`serve`.

        Raises:
            OSError: a fault of the network or of TLS.
            ValueError: a host name that cannot be one.
        """
        five: dict[str, Any] = {}
        if self._terms.version == "MQTT/5.0":
            properties = properties_for(
                PacketTypes.CONNECT,
                SessionExpiryInterval=0 if self._terms.clean else self._terms.options.expiry,
                ReceiveMaximum=self._terms.receive,
            )
            five = {"clean_start": self._terms.clean, "properties": properties}
        self._client.connect(self.address.host, self.address.port, self._terms.options.keepalive, **five)

    def serve(self, timeout: float, may_read: Callable[[], bool], wake: socket.socket | None = None) -> None:
        """Wait up to *timeout* seconds for something to do, do it, and return; also when *wake* can be read.

        Nothing is read while *may_read* says no: then the broker has to wait, by the window of TCP.
        """
        place = self._client.socket()
        if place is None or not self.alive:
            self.fault = self.fault or "the connection is closed"
            return
        reading = may_read()
        poll = select.poll()
        wanted = (select.POLLIN if reading else 0) | (select.POLLOUT if self._client.want_write() else 0)
        poll.register(place.fileno(), wanted)
        if wake is not None:
            poll.register(wake.fileno(), select.POLLIN)
        patience = 0.0 if reading and self._unread else max(timeout, 0.0)
        ready = dict(poll.poll(patience * 1000))
        events = ready.get(place.fileno(), 0)
        if reading and (events or self._unread):
            self._read(may_read)
        elif events & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self.close("the broker closed the connection")
        self._tend()

    def acknowledge(self, mid: int) -> bool:
        """Send the PUBACK of a message of this link; False, and nothing sent, when the link has ended."""
        return self.alive and self._client.ack(mid, 1) == MQTTErrorCode.MQTT_ERR_SUCCESS

    def subscribe(self, request: SubscribeRequest, identifier: int) -> int | None:
        """Send SUBSCRIBE for QoS 1, and return its packet identifier; None when the link has ended."""
        if self._terms.version != "MQTT/5.0":
            return self._client.subscribe(request.filter, 1)[1]
        number = {"SubscriptionIdentifier": identifier} if self.limits.identifiers else {}
        properties = properties_for(PacketTypes.SUBSCRIBE, **number)
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
            ValueError: a value that no packet can hold.
        """
        if not self.alive:
            return None
        info = self._client.publish(topic, payload, qos, retain, properties)
        return info.mid if info.rc == MQTTErrorCode.MQTT_ERR_SUCCESS else None

    def drained(self) -> bool:
        """Whether all that was queued is with the operating system."""
        return not self._client.want_write()

    def finish(self, limit: float = 2.0) -> None:
        """Disconnect: send what is queued and DISCONNECT, and close once the broker did, within *limit* seconds."""
        deadline = time.monotonic() + limit
        place = self._client.socket()
        if place is None or not self.alive:
            return
        with socket.socket(fileno=os.dup(place.fileno())) as kept:
            self._client.disconnect()
            while self.alive and time.monotonic() < deadline:
                self.serve(0.1, _no)
            self.close("disconnected")
            # Closed with data unread, a connection is reset, and the broker may never see our last acknowledgements.
            _read_to_end(kept, deadline)

    def close(self, fault: str) -> None:
        """Close at once, without DISCONNECT; does nothing to a link that has ended."""
        self.fault = self.fault or fault
        place = self._client.socket()
        if place is not None:
            # paho has no public way to end a connection without DISCONNECT. It keeps the closed socket, and nothing
            # of paho's is called any more.
            place.close()

    def _read(self, may_read: Callable[[], bool]) -> None:
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
        self._unread = self._client.unread

    def _tend(self) -> None:
        if self.alive and self._client.want_write():
            self._client.loop_write()
        if self.alive:
            self._client.loop_misc()
        if not self.accepted and time.monotonic() > self.opened + ANSWER_SECONDS:
            self.close(f"{self.address} does not answer as an MQTT broker")
        if self._client.socket() is None:
            self.fault = self.fault or "the connection is lost"

    def _make(self) -> LinkClient:
        client = client_for(self._terms, self.address, self._arrived)
        client.on_connect = self._answered
        client.on_disconnect = self._ended
        client.on_subscribe = self._subscribed
        client.on_unsubscribe = self._unsubscribed
        client.on_publish = self._published
        return client

    def _arrived(self, delivery: Delivery) -> None:
        self._packets += 1
        self._owner.delivered(self, delivery)

    def _answered(
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
        self.limits = limits_of(properties)

    def _ended(
        self, _client: object, _data: object, flags: paho.DisconnectFlags, reason: ReasonCode, _properties: object
    ) -> None:
        by_broker = flags.is_disconnect_packet_from_server
        self.code = reason.value if by_broker else None
        text = f"{self.address} ended the connection: {reason}" if by_broker else f"{self.address}: connection lost"
        if by_broker and reason == "Session taken over":
            text += f"; another client has the id {self._terms.client_id}"
        self.fault = self.fault or text

    def _subscribed(
        self, _client: object, _data: object, mid: int, reasons: Sequence[ReasonCode], _properties: object
    ) -> None:
        self._packets += 1
        fault = next((str(reason) for reason in reasons if reason.value >= _FAILED), "")
        self._owner.subscribed(self, mid, fault)

    def _unsubscribed(self, _client: object, _data: object, mid: int, _reasons: object, _properties: object) -> None:
        self._packets += 1
        self._owner.unsubscribed(self, mid)

    def _published(self, _client: object, _data: object, mid: int, reason: ReasonCode, _properties: object) -> None:
        self._packets += 1
        self._owner.published(self, mid, reason.value, str(reason) if reason.value >= _FAILED else "")


def _no() -> bool:
    return False


def _read_to_end(place: socket.socket, deadline: float) -> None:
    try:
        place.shutdown(socket.SHUT_WR)
        while (left := deadline - time.monotonic()) > 0:
            place.settimeout(left)
            if not place.recv(2**16):
                return
    except OSError:
        return  # the broker was faster, or slower than the limit
