"""The MQTT gateway: a client that receives messages with QoS 1 and acknowledges each after it is on disk.

Its session outlasts its connections, so the broker stores what arrives while it is disconnected. One thread does
everything about a connection: an acknowledgement is sent on the message's own connection or never. Messages published
with QoS 2 arrive with QoS 1 (paho would answer QoS 2 before anything is stored); QoS 0 stays QoS 0, without a guarantee
by the broker. Delivery is at least once: what was stored when the connection broke is delivered, and stored, again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from bindings.background import Backoff
from bindings.gateways import JOIN_SECONDS, EndpointSubscription, GatewayConfig, drop_covered
from bindings.mqtt.client import ROUND_SECONDS, LinkConnector, LinkError, LinkOwner, MqttLink, Wakeup
from bindings.mqtt.messages import MqttDelivery, SubscribeRequest, Version, covers, matches, to_requests, to_row
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore

# Subscriptions: filters to request, the endpoint of a message, and synchronization with the broker.

_CACHED_TOPICS: Final = 10_000
_KEPT_TABLES: Final = 16
_OPEN_COPIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The endpoint that a topic's messages are for, and the broker's subscriptions that deliver them."""

    endpoint: str
    filters: tuple[str, ...]


class SubscriptionTable:
    """An immutable table of subscriptions, in the order of the settings.

    Endpoints with filters for the same topic share a channel: its messages are the first one's. ``filters`` are
    requested from the broker: a filter that another one covers is left out, so that a message comes once. ``requests``
    are the same with their options.

    Raises:
        GatewayError: as :func:`bindings.mqtt.messages.to_requests`.
    """

    def __init__(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        requests = to_requests(subscriptions)
        self._pairs = [(request.filter, each.endpoint) for request, each in zip(requests, subscriptions, strict=True)]
        self.filters = tuple(drop_covered((request.filter for request in requests), covers))
        by_filter = {request.filter: request for request in requests}
        self.requests = tuple(by_filter[filter_] for filter_ in self.filters)
        self.find_route = lru_cache(_CACHED_TOPICS)(self._find_route)

    def _find_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if it has none."""
        endpoint = next((endpoint for filter_, endpoint in self._pairs if matches(filter_, topic)), None)
        filters = tuple(filter_ for filter_ in self.filters if matches(filter_, topic))
        return None if endpoint is None else TopicRoute(endpoint, filters)


def find_route(tables: Iterable[SubscriptionTable], topic: str) -> TopicRoute | None:
    """Return the route of a topic in the first table that has one; a broker may still deliver for earlier ones."""
    return next((route for table in tables if (route := table.find_route(topic)) is not None), None)


class CopyDetector:
    """Distinguishes copies of one message from equal messages.

    Overlapping subscriptions deliver a message once for each, or once for all; every delivery names its subscriptions
    (MQTT 5 section 3.3.4). Among equal deliveries, there are as many messages as the maximum that one subscription
    delivered. If the broker names none (3.1.1) each delivery counts as a message, which may come twice but is never
    lost.
    """

    def __init__(self) -> None:
        self._open_copies: OrderedDict[tuple[object, ...], dict[int, int]] = OrderedDict()

    def clear(self) -> None:
        """Forget all messages, because the connection or the subscriptions changed."""
        self._open_copies.clear()

    def is_repeat(self, delivery: MqttDelivery, overlapping: int) -> bool:
        """Whether another delivery of the same message already arrived."""
        if overlapping < 2 or not delivery.subscriptions:
            return False
        # The remaining expiry differs between copies that a broker sent at different times.
        stable = tuple(part for part in delivery.properties if part.key != "message_expiry_interval")
        key = (delivery.topic, delivery.payload, delivery.retain, stable)
        counts = self._open_copies.setdefault(key, {})
        stored = max(counts.values(), default=0)
        for number in delivery.subscriptions:
            counts[number] = counts.get(number, 0) + 1
        repeat = max(counts.values()) == stored
        if len(counts) >= overlapping and len(set(counts.values())) == 1:
            del self._open_copies[key]  # every subscription delivered its copy
        elif len(self._open_copies) > _OPEN_COPIES:
            self._open_copies.popitem(last=False)
        return repeat


@dataclass(slots=True)
class TopicSubscriber:
    """Synchronizes the subscriptions of our session at the broker with the wanted ones.

    A refused subscription is requested again, at growing intervals; the others work meanwhile. ``trouble`` names a
    refused one, and why.
    """

    wanted: tuple[SubscribeRequest, ...] = ()
    trouble: str = ""
    _granted: dict[str, SubscribeRequest] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _pending: dict[int | None, SubscribeRequest] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))
    _retry_at: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the broker granted all wanted subscriptions, and no request is pending."""
        return not self._pending and all(self._granted.get(each.filter) == each for each in self.wanted)

    @property
    def is_pending(self) -> bool:
        """Whether the broker has not answered all requests yet."""
        return bool(self._pending)

    def begin_link(self, session_present: bool) -> None:
        """Start on a new link; without its old session the broker has no subscription of ours."""
        self._pending.clear()
        self._refused.clear()
        self._retry_at = 0.0
        if not session_present:
            self._granted.clear()

    def send_requests(self, link: MqttLink) -> None:
        """Send the missing SUBSCRIBE and UNSUBSCRIBE requests."""
        busy = {pending.filter for pending in self._pending.values()}
        if self._refused and time.monotonic() >= self._retry_at:
            self._refused.clear()
        for each in self.wanted:
            # Another SUBSCRIBE for a filter replaces the subscription, with its options.
            if self._granted.get(each.filter) != each and each.filter not in (*busy, *self._refused):
                number = self._numbers.setdefault(each.filter, len(self._numbers) + 1)
                self._pending[link.subscribe(each, number)] = each
        for filter_ in set(self._granted).difference((each.filter for each in self.wanted), busy):
            self._pending[link.unsubscribe(filter_)] = self._granted[filter_]
        # Other threads read it, so it is computed on the thread that changes its inputs.
        refused = next((each.filter for each in self.wanted if each.filter in self._refused), None)
        fault = self._refused.get(refused, "") if refused is not None else ""
        self.trouble = f"the broker refused the subscription to {refused}: {fault}" if fault else ""

    def on_subscribed(self, mid: int, fault: str) -> None:
        """Handle the answer to a SUBSCRIBE."""
        pending = self._pending.pop(mid, None)
        if pending is None:
            return
        if fault:
            if not self._refused:
                self._retry_at = time.monotonic() + self._backoff.next_pause()
            self._refused[pending.filter] = fault
        else:
            self._granted[pending.filter] = pending
            if self.is_complete:
                self._backoff.reset()

    def on_unsubscribed(self, mid: int) -> None:
        """Handle the answer to an UNSUBSCRIBE."""
        pending = self._pending.pop(mid, None)
        if pending is not None:
            self._granted.pop(pending.filter, None)


_STEADY_SECONDS: Final = 5.0
"""After a connection that lasted this long, the next attempt comes at once."""
_NAMED_STRAYS: Final = 100

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnstoredMessage:
    """A message that is not stored yet. ``mid`` is 0 if it needs no acknowledgement."""

    row: InboxRow
    link: MqttLink
    mid: int


class MqttGateway(LinkOwner):
    """Implements :class:`bindings.gateways.Gateway` for one broker; see the module for its guarantees.

    ``client_id`` names the session at the broker, which lasts for the connection's option ``sessionexpiryinterval``
    (seconds) after a connection ends.

    Raises:
        GatewayError: the connection or a subscription has a fault that waiting does not fix.
    """

    def __init__(self, config: GatewayConfig, version: Version) -> None:
        self._config = config
        self._version = version
        self._tables = [SubscriptionTable(config.subscriptions)]
        self._replacement: SubscriptionTable | None = None
        self._lock = threading.Lock()
        receive = config.limits.max_in_flight
        self._connector = LinkConnector(config.connection, version, config.client_id, clean=False, receive=receive)
        self._wakeup = Wakeup()
        self._ack_queue = AckAfterStore(config.store, self, self._wakeup.wake, Backoff(0.1, 10.0))
        self._subscriber = TopicSubscriber(self._tables[0].requests)
        self._copy_detector = CopyDetector()
        self._backoff = Backoff()
        self._stray_topics: set[str] = set()
        self._thread: threading.Thread | None = None
        self._stop_at: float | None = None
        self._drained = False
        self._fault = ""
        self.connected = False
        """Whether it is connected, and the broker granted every subscription."""

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def trouble(self) -> str:
        """The reason why it is not connected or cannot store; empty if all is well."""
        return self._fault or self._subscriber.trouble or self._ack_queue.trouble

    def start(self) -> None:
        """Start connecting; see :meth:`bindings.gateways.Gateway.start`."""
        self._thread = threading.Thread(target=self._run, name="mqtt-gateway", daemon=True)
        self._thread.start()

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Switch to these subscriptions; messages that the broker queued for the old ones are still routed.

        Raises:
            GatewayError: a subscription is not a valid topic filter; the old ones stay.
        """
        table = SubscriptionTable(subscriptions)
        with self._lock:
            self._replacement = table
        self._wakeup.wake()

    def stop(self, grace: float) -> None:
        """Stop receiving, store and acknowledge unstored messages within *grace* seconds, and disconnect.

        The session and its subscriptions stay at the broker. Does nothing when not running.
        """
        if self._thread is None:
            return
        self._stop_at = time.monotonic() + grace
        self._wakeup.wake()
        self._thread.join(grace + JOIN_SECONDS)
        self.connected = False
        if not self._thread.is_alive():
            self._wakeup.close()

    def on_message(self, link: MqttLink, delivery: MqttDelivery) -> None:
        """Handle a message of the link; see :class:`bindings.mqtt.client.LinkOwner`."""
        if self._stop_at is not None:
            return  # not acknowledged, so it comes again after the next start
        route = find_route(self._tables, delivery.topic)
        if route is None:
            self._drop_stray(link, delivery)
        elif self._copy_detector.is_repeat(delivery, len(route.filters)):
            _acknowledge_unstored(link, delivery)
        else:
            self._config.counters.received(route.endpoint)
            received = time.time_ns() // 1000
            row = to_row(delivery, route.endpoint, self._version, received, self._config.limits.max_body_bytes)
            self._ack_queue.add(UnstoredMessage(row, link, delivery.mid))

    def on_stored(self, messages: Sequence[UnstoredMessage]) -> None:
        for message in messages:
            if message.mid == 0 or message.link.acknowledge(message.mid):
                self._config.counters.acknowledged(message.row.endpoint)

    def on_refused(self, message: UnstoredMessage) -> None:
        """Leave the message with the broker: MQTT has no refusal that would stop redelivery."""

    def select_retries(self, messages: Sequence[UnstoredMessage]) -> Sequence[UnstoredMessage]:
        return [message for message in messages if not _will_be_redelivered(message)]

    def on_subscribed(self, _link: MqttLink, mid: int, fault: str) -> None:
        """Handle the answer to a SUBSCRIBE."""
        self._subscriber.on_subscribed(mid, fault)

    def on_unsubscribed(self, _link: MqttLink, mid: int) -> None:
        """Handle the answer to an UNSUBSCRIBE."""
        self._subscriber.on_unsubscribed(mid)

    def _run(self) -> None:
        try:
            while self._stop_at is None:
                self._connect_and_serve()
            self._drain_unstored(None)
        except Exception as error:
            # Nobody waits for this thread; `alive` and the log show that it ended.
            self._fault = f"the MQTT gateway stopped after an internal error: {type(error).__name__}"
            _logger.exception("the MQTT gateway stopped after an internal error")
        finally:
            self.connected = False

    def _connect_and_serve(self) -> None:
        self._copy_detector.clear()
        try:
            link = self._connector.open_link(self)
        except LinkError as error:
            self._set_fault(str(error))
        else:
            began = time.monotonic()
            try:
                self._serve(link)
                if self._stop_at is not None:
                    self._drain_unstored(link)
            finally:
                link.close("the gateway stopped")
            self.connected = False
            self._ack_queue.drop_waiting(_will_be_redelivered)
            if self._stop_at is not None:
                return
            self._set_fault(link.fault)
            if link.accepted and time.monotonic() - began >= _STEADY_SECONDS:
                self._backoff.reset()
        self._wait_for_retry(self._backoff.next_pause())

    def _serve(self, link: MqttLink) -> None:
        begun = False
        while link.alive and self._stop_at is None:
            link.serve_once(self._ack_queue.seconds_until_due(ROUND_SECONDS), self._may_read, self._wakeup.receiver)
            self._wakeup.clear_calls()
            if link.accepted and not begun:
                begun = True
                self._fault = ""
                self._subscriber.begin_link(link.session_present)
            self._apply_replacement()
            self._ack_queue.advance()
            if begun and link.alive:
                self._subscriber.send_requests(link)
                self.connected = self._subscriber.is_complete

    def _drain_unstored(self, link: MqttLink | None) -> None:
        """Store and acknowledge unstored messages until the deadline, then disconnect; only the first call does so."""
        if self._drained:
            return
        self._drained = True
        deadline = self._stop_at or 0.0
        while self._ack_queue.unstored_count and time.monotonic() < deadline:
            self._ack_queue.advance()
            most = min(self._ack_queue.seconds_until_due(ROUND_SECONDS), max(0.0, deadline - time.monotonic()))
            if link is not None and link.alive:
                # Reading goes on, and drops what it reads: unread data would make the system reset the connection as it
                # closes.
                link.serve_once(most, lambda: True, self._wakeup.receiver)
                self._wakeup.clear_calls()
            else:
                self._wakeup.wait(most)
            self._ack_queue.advance()
        if self._ack_queue.unstored_count:
            _logger.warning(
                "%d messages were not stored in time; their broker redelivers them", self._ack_queue.unstored_count
            )
        if link is not None and link.alive:
            link.disconnect()

    def _wait_for_retry(self, seconds: float) -> None:
        """Wait before the next attempt, while messages are still stored."""
        until = time.monotonic() + seconds
        while self._stop_at is None and (left := until - time.monotonic()) > 0:
            self._wakeup.wait(self._ack_queue.seconds_until_due(left))
            self._apply_replacement()
            self._ack_queue.advance()

    def _may_read(self) -> bool:
        """Whether more messages may be received.

        A broker that obeys the receive maximum never exceeds it, so reading continues, pings included. Messages of QoS
        0 and 3.1.1, and brokers that do not obey, are limited by not reading. The first answers on a link are always
        read: else messages of the last link, which wait for a full inbox, would keep the gateway from connecting.
        """
        if not self.connected and self._subscriber.is_pending:
            return True
        return self._ack_queue.unstored_count <= self._config.limits.max_in_flight

    def _apply_replacement(self) -> None:
        with self._lock:
            table, self._replacement = self._replacement, None
        if table is not None:
            self._tables = [table, *self._tables[: _KEPT_TABLES - 1]]
            self._subscriber.wanted = table.requests
            self._copy_detector.clear()

    def _drop_stray(self, link: MqttLink, delivery: MqttDelivery) -> None:
        """Drop a message without a subscription of ours: the session has one from earlier settings."""
        if delivery.topic not in self._stray_topics and len(self._stray_topics) < _NAMED_STRAYS:
            self._stray_topics.add(delivery.topic)
            text = "no source subscribes to topic %s any more, but session %s still does; its messages are dropped"
            _logger.warning(text, delivery.topic, self._config.client_id)
        _acknowledge_unstored(link, delivery)

    def _set_fault(self, fault: str) -> None:
        if fault != self._fault:
            _logger.warning("not connected: %s", fault)
        self._fault = fault


def _will_be_redelivered(message: UnstoredMessage) -> bool:
    """Whether a message's link has ended, so that the broker redelivers it."""
    return message.mid != 0 and not message.link.alive


def _acknowledge_unstored(link: MqttLink, delivery: MqttDelivery) -> None:
    """Acknowledge a message that is not stored, if its QoS requires that."""
    if delivery.mid:
        link.acknowledge(delivery.mid)
