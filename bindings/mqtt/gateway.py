"""The MQTT gateway: a client that takes messages with QoS 1 and acknowledges each after it is on disk.

It has a session that outlasts its connections, so that the broker keeps what arrives while it is away, and one thread,
on which everything about the connection happens: acknowledgements of a connection are sent on that one or never.
Messages published with QoS 2 arrive with QoS 1 (paho would answer QoS 2 before anything could be stored), those of QoS
0 arrive as they are, and the broker promises nothing for them. Delivery is at least once: what was stored when the
connection broke is delivered, and stored, again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bindings.backoff import Backoff
from bindings.gateways import GatewayCounters, Subscription, Terms
from bindings.handover import Handover
from bindings.mqtt.connecting import Connector, LinkError, connector_of
from bindings.mqtt.link import Link
from bindings.mqtt.messages import Delivery, Version, row_of
from bindings.mqtt.subscribing import Copies, Subscriber, Table, Tables
from bindings.mqtt.wakeup import Wakeup
from bindings.parts import InboxRow

_ROUND_SECONDS: Final = 1.0
"""Longest wait of the thread: it looks this often after what does not wake it, such as pings."""
_STEADY_SECONDS: Final = 5.0
"""A connection that lasted this long was a good one: the next attempt after it comes at once."""
_CLOSE_SECONDS: Final = 10.0
_NAMED_STRAYS: Final = 100

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """One message that is not stored yet. ``mid`` is 0 when it wants no acknowledgement."""

    row: InboxRow
    link: Link
    mid: int


class Acknowledging:
    """Acknowledges messages of any link to their brokers; see :class:`bindings.handover.Owner`."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters

    def stored(self, messages: Sequence[Held]) -> None:
        for held in messages:
            if held.mid == 0 or held.link.acknowledge(held.mid):
                self._counters.acknowledged(held.row.endpoint)

    def refused(self, message: Held) -> None:
        """Leave it with the broker: MQTT has no refusal that would stop it from coming again."""

    def held_back(self, messages: Sequence[Held]) -> Sequence[Held]:
        return [held for held in messages if not _comes_again(held)]


class MqttGateway:
    """Keeps :class:`bindings.gateways.Gateway` for one broker; see the module for its promises.

    ``client_id`` names the session at the broker, which lasts for the connection's option ``sessionexpiryinterval``
    (seconds) after a connection ends.

    Raises:
        GatewayError: a subscription is no topic filter.
    """

    def __init__(self, terms: Terms, version: Version) -> None:
        self._terms = terms
        self._version = version
        self._tables = Tables(Table(terms.subscriptions))
        self._replacement: Table | None = None
        self._lock = threading.Lock()
        self._wakeup = Wakeup()
        self._handover = Handover(terms.store, Acknowledging(terms.counters), self._wakeup.wake, Backoff(0.1, 10.0))
        self._subscriber = Subscriber(self._tables.current.requests)
        self._copies = Copies()
        self._backoff = Backoff()
        self._strays: set[str] = set()
        self._thread: threading.Thread | None = None
        self._stop_at: float | None = None
        self._drained = False
        self._turn = 0
        self._fault = ""
        self._connected = False

    @property
    def connected(self) -> bool:
        """Whether it is connected, and the broker granted every subscription."""
        return self._connected

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trouble(self) -> str:
        """What keeps it from being connected, or from storing what it gets; empty when nothing does."""
        return self._fault or self._subscriber.trouble or self._handover.trouble

    def start(self) -> None:
        """Begin to connect; see :meth:`bindings.gateways.Gateway.start`."""
        terms, receive = self._terms, self._terms.limits.max_in_flight
        connector = connector_of(terms.connection, self._version, terms.client_id, clean=False, receive=receive)
        self._wakeup.open()
        self._thread = threading.Thread(target=self._run, args=(connector,), name="mqtt-gateway", daemon=True)
        self._thread.start()

    def replace(self, subscriptions: Sequence[Subscription]) -> None:
        """Take other subscriptions from now on; what the broker queued under the old ones still finds its endpoint.

        Raises:
            GatewayError: a subscription is no topic filter; the old ones stay.
        """
        table = Table(subscriptions)
        with self._lock:
            self._replacement = table
        self._wakeup.wake()

    def stop(self, grace: float) -> None:
        """Take nothing more, store and acknowledge what is held for up to *grace* seconds, and disconnect.

        The session and its subscriptions stay at the broker. Does nothing when not running.
        """
        if self._thread is None:
            return
        self._stop_at = time.monotonic() + grace
        self._wakeup.wake()
        self._thread.join(grace + _CLOSE_SECONDS)
        self._connected = False
        if not self._thread.is_alive():
            self._wakeup.close()

    def delivered(self, link: Link, delivery: Delivery) -> None:
        """Take a message off the link; see :class:`bindings.mqtt.link.LinkOwner`."""
        if self._stop_at is not None:
            return  # not acknowledged, so it comes again after the next start
        taking = self._tables.find(delivery.topic)
        if taking is None:
            self._stray(link, delivery)
        elif self._copies.is_repeat(delivery, len(taking.filters)):
            _let_go(link, delivery)
        else:
            self._terms.counters.received(taking.endpoint)
            received = time.time_ns() // 1000
            row = row_of(delivery, taking.endpoint, self._version, received, self._terms.limits.max_body_bytes)
            self._handover.add(Held(row, link, delivery.mid))

    def subscribed(self, _link: Link, mid: int, fault: str) -> None:
        """Take the answer to a SUBSCRIBE."""
        self._subscriber.subscribed(mid, fault)

    def unsubscribed(self, _link: Link, mid: int) -> None:
        """Take the answer to an UNSUBSCRIBE."""
        self._subscriber.unsubscribed(mid)

    def published(self, _link: Link, _mid: int, _code: int, _fault: str) -> None:
        """Nothing is published here."""

    def _run(self, connector: Connector) -> None:
        try:
            while self._stop_at is None:
                self._connect_and_serve(connector)
            self._drain(None)
        except Exception as error:
            # Nobody waits for this thread; `alive` and the log tell that it ended.
            self._fault = f"the MQTT gateway ended by a fault of its own: {type(error).__name__}"
            _logger.exception("the MQTT gateway ended")
        finally:
            self._connected = False

    def _connect_and_serve(self, connector: Connector) -> None:
        self._copies.clear()
        try:
            link = connector.open(self._turn, self)
        except LinkError as error:
            self._say(str(error))
        else:
            began = time.monotonic()
            try:
                self._serve(link)
                if self._stop_at is not None:
                    self._drain(link)
            finally:
                link.close("the gateway ended")
            self._connected = False
            self._handover.drop(_comes_again)
            if self._stop_at is not None:
                return
            self._say(link.fault)
            if link.accepted and time.monotonic() - began >= _STEADY_SECONDS:
                self._backoff.reset()
        self._turn += 1
        self._pause(self._backoff.pause())

    def _serve(self, link: Link) -> None:
        begun = False
        while link.alive and self._stop_at is None:
            link.serve(self._handover.patience(_ROUND_SECONDS), self._may_read, self._wakeup.receiver)
            self._wakeup.clear()
            if link.accepted and not begun:
                begun = True
                self._fault = ""
                self._subscriber.begin(link.session_present)
            self._take_replacement()
            self._handover.advance()
            if begun and link.alive:
                self._subscriber.advance(link)
                self._connected = self._subscriber.complete

    def _drain(self, link: Link | None) -> None:
        """Store and acknowledge what is held until the time to stop is over, then disconnect; once only."""
        if self._drained:
            return
        self._drained = True
        deadline = self._stop_at or 0.0
        while self._handover.held and time.monotonic() < deadline:
            self._handover.advance()
            most = min(self._handover.patience(_ROUND_SECONDS), max(0.0, deadline - time.monotonic()))
            if link is not None and link.alive:
                # Reading goes on, and drops what it reads: unread data would make the system reset the connection as it
                # closes.
                link.serve(most, lambda: True, self._wakeup.receiver)
            else:
                self._wakeup.wait(most)
            self._wakeup.clear()
            self._handover.advance()
        if self._handover.held:
            _logger.warning("%d messages were not stored in time; their broker keeps them", self._handover.held)
        if link is not None and link.alive:
            link.finish()

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, and go on storing meanwhile."""
        until = time.monotonic() + seconds
        while self._stop_at is None and (left := until - time.monotonic()) > 0:
            self._wakeup.wait(self._handover.patience(left))
            self._wakeup.clear()
            self._take_replacement()
            self._handover.advance()

    def _may_read(self) -> bool:
        """Tell whether more may be held.

        A receive maximum that the broker keeps to is never passed, so that reading, pings included, goes on. Messages
        of QoS 0, 3.1.1, and brokers that do not keep to it, are bounded by not reading.
        """
        return self._handover.held <= self._terms.limits.max_in_flight

    def _take_replacement(self) -> None:
        with self._lock:
            table, self._replacement = self._replacement, None
        if table is not None:
            self._tables.replace(table)
            self._subscriber.wanted = table.requests
            self._copies.clear()

    def _stray(self, link: Link, delivery: Delivery) -> None:
        """Let go of a message that no subscription of ours takes: the session has one from settings before."""
        if delivery.topic not in self._strays and len(self._strays) < _NAMED_STRAYS:
            self._strays.add(delivery.topic)
            text = (
                "no source takes topic %s any more, though session %s still subscribes to it; its messages are dropped"
            )
            _logger.warning(text, delivery.topic, self._terms.client_id)
        _let_go(link, delivery)

    def _say(self, fault: str) -> None:
        if fault != self._fault:
            _logger.warning("not connected: %s", fault)
        self._fault = fault


def _comes_again(held: Held) -> bool:
    """Tell whether a message's link has ended, so that the broker delivers it again."""
    return held.mid != 0 and not held.link.alive


def _let_go(link: Link, delivery: Delivery) -> None:
    """Acknowledge a message that is not stored, where that is called for."""
    if delivery.mid:
        link.acknowledge(delivery.mid)
