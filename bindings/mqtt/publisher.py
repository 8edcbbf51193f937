"""Sending to an MQTT broker: once :meth:`MqttPublisher.send` returns, the broker has the messages.

A broker may end the connection at a message that it does not like, in MQTT 3.1.1 without another way to say so (MQTT 5
section 4.13). Such a message is found and given up (:mod:`bindings.suspects`); the others pass.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from bindings.backoff import Backoff
from bindings.gateways import Connection
from bindings.mqtt.connecting import LinkError, connector_of
from bindings.mqtt.link import Link
from bindings.mqtt.messages import Delivery, Version
from bindings.mqtt.outgoing import MqttMessage, fault_of, properties_of
from bindings.sending import Refusal, Unsettled
from bindings.suspects import Ended, Item, Suspects

MAX_IN_FLIGHT: Final = 256
"""Most messages that are unconfirmed at once; fewer when the broker says so."""
NEVER: Final = frozenset({0x87, 0x90, 0x95, 0x99})
"""Reason codes that another attempt would meet again: not authorized, topic name invalid, packet too large, payload
format invalid. *Not authorized* is among them since it concerns one topic; the login was accepted with the connection.
"""
AT_FAULT: Final = frozenset({0x81, 0x82, 0x90, 0x95, 0x99})
"""Reason codes with which a broker ends the connection over what it was sent: malformed packet, protocol error, topic
name invalid, packet too large, payload format invalid.
"""
QUOTA: Final = 0x97
"""Quota exceeded: the one reason code of an answer that speaks of the broker's state and not of the message."""
_ROUND_SECONDS: Final = 0.5
_STALLED: Final = 1 / 3
"""The share of the time limit after which a connection without confirmations is given up for another one."""


class MqttPublisher:
    """A client that sends; used by one thread at a time. It connects when there is something to send.

    Messages are sent in order, and again after a connection broke: at least once. Messages of other lanes may overtake
    one at which the broker ends the connection. ``timeout`` is the longest time in seconds without any confirmation.
    ``client_id`` must be no other client's.

    Raises:
        GatewayError: the connection, the protocol or the client id can never work.
    """

    def __init__(self, connection: Connection, *, protocol: Version, client_id: str, timeout: float = 30.0) -> None:
        self._connector = connector_of(connection, protocol, client_id, clean=True)
        self._version = protocol
        self._timeout = timeout
        self._link: Link | None = None
        self._turn = 0
        self._suspects = Suspects(Refusal)
        self._sending = _Sending((), (), {})

    def __enter__(self) -> MqttPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, messages: Sequence[MqttMessage]) -> list[Refusal | None]:
        """Send messages and return once each is confirmed (None) or refused for good, in their order.

        Raises:
            Unsettled: nothing was confirmed for ``timeout`` seconds. Some of the messages may have been sent.
        """
        settled: dict[int, Refusal | None] = {}
        try:
            self._suspects.send(
                [Item(message.lane, hash(message)) for message in messages],
                lambda places: self._send(_Sending(messages, places, settled)),
                settled,
            )
        except (Ended, Unsettled) as error:
            missing = len(messages) - len(settled)
            raise Unsettled(f"{missing} of {len(messages)} messages were not confirmed: {error}", settled) from error
        return [settled[place] for place in range(len(messages))]

    def _send(self, sending: _Sending) -> None:
        """Settle the messages of these places.

        Raises:
            Ended: the broker ended the connection, or refused a message for a reason that may be the message's own.
            Unsettled: nothing was confirmed for ``timeout`` seconds.
        """
        self._sending = sending
        if self._link is not None:
            self._link.serve(0.0, _yes)  # one that broke while idle shows it now, with nothing under way
        backoff = Backoff(0.1, 5.0)
        fault = "the broker does not answer"
        while not sending.complete:
            left = sending.progress + self._timeout - time.monotonic()
            if left <= 0:
                self._drop()
                raise Unsettled(fault)
            try:
                link = self._ready()
            except LinkError as error:
                fault = str(error)
                time.sleep(min(backoff.pause(), left))
                continue
            self._exchange(link, min(left, _ROUND_SECONDS))
            if not link.alive and link.accepted and sending.under_way and not sending.held_up:
                raise Ended(link.fault, sure=link.code in AT_FAULT)
            if time.monotonic() - max(sending.progress, link.opened) > self._timeout * _STALLED:
                link.close("the broker does not confirm")
            if not link.alive:
                fault = link.fault
                sending.again()
                time.sleep(min(backoff.pause(), left))

    def close(self) -> None:
        """Disconnect; a later :meth:`send` connects again."""
        link, self._link = self._link, None
        if link is not None and link.alive:
            link.finish()

    def delivered(self, _link: Link, _delivery: Delivery) -> None:
        """Nothing is subscribed to here."""

    def subscribed(self, _link: Link, _mid: int, _fault: str) -> None:
        """Nothing is subscribed to here."""

    def unsubscribed(self, _link: Link, _mid: int) -> None:
        """Nothing is subscribed to here."""

    def published(self, link: Link, mid: int, code: int, fault: str) -> None:
        """Take the outcome of a message; see :class:`bindings.mqtt.link.LinkOwner`."""
        if link is not self._link:
            return
        if not fault:
            self._sending.confirmed(mid)
        elif code in NEVER:
            self._sending.refused(mid, f"the broker refuses it: {fault}")
        else:
            # Sending it at once again would only be refused again; the connection's backoff spaces the attempts.
            self._sending.held_up = code == QUOTA
            link.close(f"the broker does not take a message: {fault}")

    def _ready(self) -> Link:
        if self._link is None or not self._link.alive:
            self._link = self._connector.open(self._turn, self)
            self._turn += 1
        return self._link

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close("given up")
            self._link = None

    def _exchange(self, link: Link, patience: float) -> None:
        sending = self._sending
        if link.accepted:
            window = min(MAX_IN_FLIGHT, link.limits.receive)
            while sending.waiting and len(sending.unconfirmed) < window and link.alive:
                self._publish(link, sending.waiting.popleft())
        if sending.complete and link.drained():
            return
        link.serve(patience, _yes)
        if link.alive and link.drained():
            sending.handed_over()

    def _publish(self, link: Link, index: int) -> None:
        sending, message = self._sending, self._sending.messages[index]
        try:
            properties = properties_of(message) if self._version == "MQTT/5.0" else None
            fault = fault_of(message, properties, link.limits)
            if fault:
                sending.settle(index, Refusal(fault))
                return
            qos = min(message.qos, 1)
            mid = link.publish(message.topic, message.payload, qos, message.retain, properties)
        except ValueError as error:
            sending.settle(index, Refusal(f"it is no MQTT message: {error}"))
            return
        if mid is None:
            sending.waiting.appendleft(index)
        elif qos == 0:
            sending.written.append(index)
        else:
            sending.unconfirmed[mid] = index


class _Sending:
    """Where the messages of some places are; ``held_up`` when the broker takes none for now."""

    def __init__(
        self, messages: Sequence[MqttMessage], places: Sequence[int], settled: dict[int, Refusal | None]
    ) -> None:
        self.messages = messages
        self.settled = settled
        self.waiting = deque(places)
        self.unconfirmed: dict[int, int] = {}
        self.written: list[int] = []
        self.progress = time.monotonic()
        self.held_up = False

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.unconfirmed and not self.written

    @property
    def under_way(self) -> bool:
        return bool(self.unconfirmed or self.written)

    def settle(self, index: int, result: Refusal | None) -> None:
        self.settled[index] = result
        self.progress = time.monotonic()

    def confirmed(self, mid: int) -> None:
        index = self.unconfirmed.pop(mid, None)
        if index is not None:
            self.settle(index, None)

    def refused(self, mid: int, reason: str) -> None:
        index = self.unconfirmed.pop(mid, None)
        if index is not None:
            self.settle(index, Refusal(reason))

    def handed_over(self) -> None:
        for index in self.written:
            self.settle(index, None)
        self.written.clear()

    def again(self) -> None:
        """Put what a broken connection left open back in its place."""
        self.waiting.extendleft(sorted((*self.unconfirmed.values(), *self.written), reverse=True))
        self.unconfirmed.clear()
        self.written.clear()
        self.held_up = False


def _yes() -> bool:
    return True
