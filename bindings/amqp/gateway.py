"""The AMQP 1.0 gateway: receives from a broker's nodes, stores in the inbox, then accepts (bindings.gateways).

A broker may rely on this: a message is settled as ``accepted`` only after it is durably stored. It is ``released``
when the store is full or the gateway stops. The broker redelivers what was not settled when a
connection is lost. Pre-settled messages (at most once) are kept in memory while the store is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import proton
from proton import Delivery, Described, Handler, Link, ProtonException, symbol
from proton.reactor import Container, Copy, DurableSubscription, Filter, LinkOption, Move, ReceiverOption

from bindings.amqp.binding import capabilities_of, check_subscriptions, find_option, parse_filters
from bindings.amqp.client import (
    Dialer,
    LinkModes,
    Mailbox,
    abort_connection,
    condition_text,
    create_backoff,
    symbols,
)
from bindings.amqp.values import to_row
from bindings.gateways import (
    CLOSE_SECONDS,
    CONNECT_SECONDS,
    JOIN_SECONDS,
    EndpointSubscription,
    GatewayConfig,
    to_line,
)
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore

# One connection of the gateway: attach links, store messages, then accept them.
#
# A connection is one run of a proton container, on one thread. A delivery is settled on the connection it came over,
# or not at all: when the connection is lost, the broker takes back what was not settled.

# One subscription on one connection: its receiving link, how it is attached, and its credit.


class _Capabilities(ReceiverOption):
    """The required capabilities of a node."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._names = capabilities_of(options)

    def apply(self, receiver: Link) -> None:
        if self._names:
            receiver.source.capabilities.put_object(symbols(self._names))


def _link_options(options: Mapping[str, Any], *, durable: bool) -> list[LinkOption]:
    modes = {"move": Move, "copy": Copy}
    chosen = [LinkModes(options), _Capabilities(options)]
    chosen += [modes[mode]()] if (mode := find_option(options, "distributionmode")) is not None else []
    if filters := parse_filters(options):
        chosen.append(Filter({symbol(each.name): Described(symbol(each.descriptor), each.value) for each in filters}))
    return [*chosen, DurableSubscription()] if durable else chosen


class ReceivingLink:
    """A receiving link, which is attached again whenever the broker detaches it.

    ``window`` is the maximum number of messages requested or not stored yet; ``unstored_count`` counts the latter.
    ``attached`` says whether the broker serves it now, and ``problem`` why not. ``leaving``: no longer subscribed.
    """

    def __init__(self, subscription: EndpointSubscription, container_id: str) -> None:
        self.subscription = subscription
        self.backoff = create_backoff()
        self.window = 1
        self.unstored_count = 0
        self.attached = False
        self.leaving = False
        self.problem = ""
        self.receiver: proton.Receiver | None = None
        self._durable = find_option(subscription.options, "durable") is True
        # A broker identifies a durable subscription by container and link name, across connections.
        self._name = f"{container_id}{subscription.endpoint}|{subscription.address}"
        self._attempts = 0

    def request_link(self, container: Container, connection: proton.Connection) -> str:
        """Request the link, and return its name. The broker serves it once the handler gets the remote open."""
        self._attempts += 1
        name = self._name if self._durable else f"{self._name}|{self._attempts}"
        options = _link_options(self.subscription.options, durable=self._durable)
        self.unstored_count = 0
        self.receiver = container.create_receiver(connection, self.subscription.address, name=name, options=options)
        return name

    def find_ignored_filters(self) -> list[str]:
        """Return the requested filters that the broker did not apply, according to its answer."""
        requested = [each.name for each in parse_filters(self.subscription.options)]
        applied: set[str] = set()
        if requested and self.receiver is not None:
            data = self.receiver.remote_source.filter
            data.rewind()
            answer = data.get_object() if data.next() is not None else None
            applied = {str(name) for name in answer} if isinstance(answer, dict) else set()
        return [name for name in requested if name not in applied]

    def grant_credit(self, limit: int) -> None:
        """Grant credit so that at most *limit* messages are requested or unstored; small amounts are delayed."""
        if self.receiver is None or not self.attached or self.leaving:
            return
        missing = limit - self.unstored_count - self.receiver.credit
        if missing > 0 and (missing >= limit // 4 or self.receiver.credit == 0):
            self.receiver.flow(missing)

    def withdraw_credit(self) -> None:
        """Withdraw the credit that the broker has not used yet."""
        if self.receiver is not None and self.attached:
            self.receiver.drain(0)

    def end_link(self) -> None:
        """End the link; a durable subscription stays at the broker."""
        if self.receiver is not None:
            if self._durable:
                self.receiver.detach()
            else:
                self.receiver.close()
        self.receiver, self.attached = None, False

    def fail(self, reason: str) -> None:
        """Record that the broker ended the link."""
        receiver, self.receiver, self.attached = self.receiver, None, False
        self.problem = reason
        if receiver is not None:
            receiver.close()


# Received messages that are not stored yet, and how each is settled.

EAGER_MESSAGES: Final = 250
"""Waiting messages that are stored before the previous group is; a group costs two thread switches and a frame."""


@dataclass(frozen=True, slots=True)
class AmqpDelivery:
    """A message that is not stored yet, and the link it came over.

    ``delivery`` is None for a pre-settled message: nothing to answer, and no redelivery. ``inlet`` is None for
    one that the store refused.
    """

    row: InboxRow
    inlet: ReceivingLink | None = None
    receiver: proton.Receiver | None = None
    delivery: Delivery | None = None

    def settle_delivery(self, outcome: int) -> bool:
        """Settle the message with an outcome; return False if its link has ended, and the broker has taken it back."""
        if self.inlet is None or self.receiver is None or self.inlet.receiver is not self.receiver:
            return self.delivery is None
        self.inlet.unstored_count -= 1
        if self.delivery is not None:
            self.delivery.update(outcome)
            self.delivery.settle()
        return True


_logger = logging.getLogger(__name__)


# Events are Any below: proton types every member of an event as optional, whatever its kind.


class _TimerHandler(Handler):
    """Calls a function when a timer of the container fires."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_timer_task(self, event: Any) -> None:
        self._call()


class ReceivingConnection(Handler):
    """One connection to the broker. Only the mailbox may be used by other threads than the one of :meth:`run`: it
    takes functions to call on that thread.
    """

    def __init__(self, gateway: AmqpGateway, subscriptions: Sequence[EndpointSubscription]) -> None:
        self.mailbox = Mailbox()
        self._gateway = gateway
        self._config = gateway.config
        self._inlets = [ReceivingLink(each, self._config.client_id) for each in subscriptions]
        self._links_by_name: dict[str, ReceivingLink] = {}
        self._ack_queue = gateway.ack_queue
        self._reason = ""
        self._store_full = self._probing = False
        self._open = self._stopping = self._ended = False
        self._container: Container | None = None
        self._connection: proton.Connection | None = None

    def run(self) -> None:
        """Connect and serve; return when the connection has ended."""
        gateway = self._gateway
        gateway.opened = False
        self._container = Container(self, container_id=self._config.client_id)
        try:
            self._container.run()
        except (ProtonException, OSError) as error:
            # From the socket, or an unresolvable host name; the gateway retries.
            self._reason = self._reason or to_line(str(error))
        finally:
            self._ended = True
            self.mailbox.close()
            reason = self._reason or "the broker closed the connection"
            gateway.report(False, "" if self._stopping else f"{gateway.dialer.last_url}: {reason}")
            for inlet in self._inlets:
                inlet.receiver = None  # nothing of this connection can be settled any more
            self._ack_queue.drop_waiting(lambda arrival: arrival.delivery is not None)

    # --- the connection

    def on_reactor_init(self, event: Any) -> None:
        container = event.container
        self.mailbox.attach(container)
        self._connection = self._gateway.dialer.dial(container)
        self._schedule(CONNECT_SECONDS, self._abort_unanswered)

    def on_connection_remote_open(self, event: Any) -> None:
        self._open = True
        self._attach_links(self._inlets)
        self._advance_store()
        self._update_state()

    def on_connection_remote_close(self, event: Any) -> None:
        self._reason = self._reason or condition_text(event.connection.remote_condition)
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        self._reason = self._reason or condition_text(event.transport.condition)

    def on_transport_closed(self, event: Any) -> None:
        self._ended = True
        event.container.stop()

    # --- links

    def on_link_remote_open(self, event: Any) -> None:
        inlet = self._links_by_name.get(event.link.name)
        if inlet is None or inlet.receiver is None or event.link.remote_source.address is None:
            return  # refused: the detach that follows says why
        if ignored := inlet.find_ignored_filters():
            # It would send everything.
            text = f"the broker does not apply the source filter {', '.join(ignored)}; correct or remove it"
            self._retry_link(inlet, text)
            return
        inlet.attached, inlet.problem = True, ""
        self._gateway.opened = True
        inlet.backoff.reset()
        self._grant_credit(inlet)
        self._update_state()

    def _retry_link(self, inlet: ReceivingLink, reason: str) -> None:
        """End a link, and request it again later."""
        inlet.fail(f"{inlet.subscription.endpoint}, node {inlet.subscription.address}: {reason}")
        _logger.warning("%s; retrying", inlet.problem)
        self._schedule(inlet.backoff.next_pause(), lambda: self._attach_links([inlet]))
        self._update_state()

    def on_link_remote_close(self, event: Any) -> None:
        inlet = self._links_by_name.pop(event.link.name, None)
        if inlet is None or inlet.receiver is None:
            event.link.close()
            return
        self._retry_link(inlet, condition_text(event.link.remote_condition) or "the broker ended the link")

    def on_link_remote_detach(self, event: Any) -> None:
        self.on_link_remote_close(event)

    # --- messages

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if delivery.aborted:
            delivery.settle()
            return
        if not delivery.readable or delivery.partial:
            return
        received = time.time_ns() // 1000
        data = link.recv(delivery.pending) or b""
        link.advance()
        inlet = self._links_by_name.get(link.name)
        if inlet is None or inlet.receiver is None:
            return
        endpoint = inlet.subscription.endpoint
        self._config.counters.received(endpoint)
        settled = delivery.settled
        if not settled and (self._stopping or self._store_full or inlet.leaving):
            delivery.update(Delivery.RELEASED)
        else:
            row = to_row(data, endpoint, received, self._config.limits.max_body_bytes)
            inlet.unstored_count += 1
            self._ack_queue.add(AmqpDelivery(row, inlet, inlet.receiver, None if settled else delivery))
            if not settled:
                return
        delivery.settle()

    def on_reactor_quiesced(self, event: Any) -> None:
        """Store the messages of one read of the socket as one group."""
        self._advance_store()

    def on_mail(self, event: Any) -> None:
        event.subject()
        self._advance_store()
        for inlet in self._inlets:
            self._grant_credit(inlet)
        self._end_unused_links()

    def _advance_store(self) -> None:
        """Settle stored messages and pass waiting ones to the store; request no more while it is full."""
        self._ack_queue.advance()
        pause = self._ack_queue.retry_delay
        if pause and not self._store_full:
            self._store_full = True
            for inlet in self._inlets:
                inlet.withdraw_credit()
            self._schedule(pause, self._probe_store)
            self._update_state()
        elif self._probing and not self._ack_queue.trouble:
            self._probing = False
            self._update_state()

    def _probe_store(self) -> None:
        """Request one message per link, to test whether the store accepts messages again."""
        if pause := self._ack_queue.retry_delay:
            self._schedule(pause, self._probe_store)
            return
        self._store_full, self._probing = False, True
        self._advance_store()
        for inlet in self._inlets:
            self._grant_credit(inlet)

    def _grant_credit(self, inlet: ReceivingLink) -> None:
        if not self._stopping and not self._store_full:
            inlet.grant_credit(1 if self._probing else inlet.window)

    # --- changes

    def _attach_links(self, inlets: Sequence[ReceivingLink]) -> None:
        if self._ended or self._stopping or self._container is None or self._connection is None:
            return
        self._divide_window()
        for inlet in inlets:
            if not inlet.leaving and inlet.receiver is None:
                self._links_by_name[inlet.request_link(self._container, self._connection)] = inlet

    def _divide_window(self) -> None:
        """Divide the in-flight limit among the links."""
        for inlet in self._inlets:
            inlet.window = max(1, self._config.limits.max_in_flight // len(self._inlets))

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Switch to these subscriptions; on the connection's thread."""
        requested = list(subscriptions)
        kept = [inlet for inlet in self._inlets if not inlet.leaving and inlet.subscription in requested]
        for inlet in self._inlets:
            if inlet not in kept:
                inlet.withdraw_credit()
                inlet.leaving = True
        known = [inlet.subscription for inlet in kept]
        new = [ReceivingLink(each, self._config.client_id) for each in requested if each not in known]
        self._inlets += new
        if self._open:
            self._attach_links(new)

    def begin_stop(self, grace: float) -> None:
        """Stop within *grace* seconds; on the connection's thread."""
        self._stopping = True
        for inlet in self._inlets:
            inlet.withdraw_credit()
            inlet.leaving = True
        self._schedule(grace, self._release_unstored)

    def _release_unstored(self) -> None:
        self._gateway.abandon_unstored()
        self._end_unused_links()

    def _end_unused_links(self) -> None:
        """End unsubscribed links that hold no messages; when stopping, end the connection with the last one."""
        finished = [inlet for inlet in self._inlets if inlet.leaving and inlet.unstored_count <= 0]
        for inlet in finished:
            inlet.end_link()
            self._inlets.remove(inlet)
        if finished:
            self._divide_window()
            self._update_state()
        if self._stopping and not self._inlets and not self._ack_queue.unstored_count and not self._ended:
            self._ended = True
            if self._connection is not None:
                self._connection.close()
            self._schedule(CLOSE_SECONDS if self._open else 0.0, self._abort_unanswered)

    def _update_state(self) -> None:
        problems = [inlet.problem for inlet in self._inlets]
        connected = self._open and all(inlet.attached for inlet in self._inlets if not inlet.leaving)
        self._gateway.report(connected, "; ".join(filter(None, [*problems, self._ack_queue.trouble])))

    # --- time

    def _schedule(self, delay: float, call: Callable[[], None]) -> None:
        if self._container is not None:
            self._container.schedule(delay, _TimerHandler(call))

    def _abort_unanswered(self) -> None:
        """End the container's run unless the broker has answered in time."""
        if self._open and not self._ended:
            return
        self._reason = self._reason or f"no answer within {CONNECT_SECONDS:g} s"
        if self._container is not None:
            abort_connection(self._container, self._connection)


class AmqpGateway:
    """Receives messages from a broker's nodes; started once, stopped once. A ``bindings.gateways.Gateway``.

    Raises:
        GatewayError: the connection or a subscription has a fault that waiting does not fix.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.dialer = Dialer(config.connection, config.client_id)
        self.ack_queue = AckAfterStore(config.store, self, self._wake, create_backoff(), eager=EAGER_MESSAGES)
        self.opened = False
        """Whether the last connection was established."""
        self._subscriptions = tuple(config.subscriptions)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._connection: ReceivingConnection | None = None
        self.connected = False
        """Whether the broker serves all subscriptions now."""
        self._trouble = self._failure = ""
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs; False before start, after stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive() and not self._failure

    @property
    def trouble(self) -> str:
        """The reason why it cannot receive messages, in one line; empty if it can."""
        return self._failure or self._trouble

    def report(self, connected: bool, trouble: str) -> None:
        """Set the state of its connection."""
        self.connected, self._trouble = connected, trouble

    def start(self) -> None:
        """Start connecting without waiting.

        Raises:
            GatewayError: a node or option has a fault that waiting does not fix.
        """
        check_subscriptions(self._subscriptions)
        self._thread = threading.Thread(target=self._run, name="amqp-gateway", daemon=True)
        self._thread.start()

    def on_stored(self, messages: Sequence[AmqpDelivery]) -> None:
        for arrival in messages:
            if arrival.settle_delivery(Delivery.ACCEPTED):
                self.config.counters.acknowledged(arrival.row.endpoint)

    def on_refused(self, message: AmqpDelivery) -> None:
        """Reject the message, so that the broker moves it to its dead letters."""
        message.settle_delivery(Delivery.REJECTED)

    def select_retries(self, messages: Sequence[AmqpDelivery]) -> Sequence[AmqpDelivery]:
        """Release messages, and return those that the broker does not redeliver."""
        for arrival in messages:
            arrival.settle_delivery(Delivery.RELEASED)
        return [AmqpDelivery(arrival.row) for arrival in messages if arrival.delivery is None]

    def abandon_unstored(self) -> None:
        """Release all messages to the broker; those that it does not redeliver are lost."""
        if lost := self.select_retries(self.ack_queue.abandon()):
            _logger.error("%s pre-settled messages are lost", len(lost))

    def _wake(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.mailbox.post_item(lambda: None)  # the queue has the answer of the store

    def replace_subscriptions(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Switch to these subscriptions; messages in flight are finished.

        Raises:
            GatewayError: one of them can never work; the old ones stay.
        """
        check_subscriptions(subscriptions)
        with self._lock:
            self._subscriptions = tuple(subscriptions)
            if self._connection is not None:
                connection, wanted = self._connection, self._subscriptions
                connection.mailbox.post_item(lambda: connection.replace_subscriptions(wanted))

    def stop(self, grace: float) -> None:
        """Stop receiving, finish messages in flight within *grace* seconds, and disconnect.

        What is not stored by then is released to the broker. Does nothing when not running.
        """
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            self._stopped.set()
            if self._connection is not None:
                connection = self._connection
                connection.mailbox.post_item(lambda: connection.begin_stop(grace))
        thread.join(grace + JOIN_SECONDS)
        if thread.is_alive():
            _logger.warning("the AMQP gateway did not stop within %s s; unsettled messages are redelivered", grace)

    def _run(self) -> None:
        backoff = create_backoff()
        try:
            while not self._stopped.is_set():
                with self._lock:
                    connection = self._connection = ReceivingConnection(self, self._subscriptions)
                    if self._stopped.is_set():
                        break
                connection.run()
                if self._stopped.is_set():
                    break
                if self.opened:
                    backoff.reset()
                wait = backoff.next_pause()
                _logger.warning("AMQP connection: %s; retrying in %.1f s", self._trouble, wait)
                self._stopped.wait(wait)
        except Exception as error:
            # An internal error; whoever watches `alive` and `trouble` decides.
            self._failure = f"the AMQP gateway stopped after an internal error: {type(error).__name__}: {error}"
            _logger.exception("the AMQP gateway stopped after an internal error")
        finally:
            self.connected = False
            self.abandon_unstored()
