"""The AMQP 1.0 gateway: receives from a broker's nodes, stores in the inbox, then accepts (bindings.gateways).

A broker may rely on this: a message is settled as ``accepted`` only after it is durably stored. It is ``released``
when the store is full or the gateway stops. What is not settled when the connection is lost is redelivered by the
broker. Pre-settled messages (at most once) are kept in memory while the store is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import proton
from proton import Delivery, Described, Handler, Link, ProtonException, Terminus, symbol
from proton.reactor import Container, ReceiverOption

from bindings.amqp.binding import capabilities_of, check_options, option, option_map, source_filters
from bindings.amqp.client import Dialer, Mailbox, hang_up, reason_of, reconnecting
from bindings.amqp.values import row_of
from bindings.gateways import EndpointSubscription, GatewayConfig, GatewayCounters, RowStore
from bindings.parts import InboxRow
from bindings.store_and_ack import AckAfterStore

# One connection of the gateway: attach links, store what arrives, then accept it.
#
# A connection is one run of a proton container, on one thread. A delivery is settled on the connection it came over,
# or not at all: when the connection is lost, the broker takes back what was not settled.

# One subscription on one connection: its receiving link, how it is attached, and its credit.

_MODES: Final = {"move": Terminus.DIST_MODE_MOVE, "copy": Terminus.DIST_MODE_COPY}


class _SettleModes(ReceiverOption):
    """The settle modes of a link: the receiver settles first, for delivery at least once (AMQP part 2, 2.6.12).

    A broker that answers that it settles first is accepted.
    """

    def __init__(self, subscription: EndpointSubscription, durable: bool) -> None:
        self._options = subscription.options
        self._durable = durable

    def apply(self, receiver: Link) -> None:
        receiver.snd_settle_mode = Link.SND_UNSETTLED
        receiver.rcv_settle_mode = Link.RCV_FIRST
        properties = option_map(self._options, "linkproperties")
        if properties:
            receiver.properties = {symbol(name): value for name, value in properties.items()}
        mode = option(self._options, "distributionmode")
        if mode is not None:
            receiver.source.distribution_mode = _MODES[mode]
        filters = source_filters(self._options)
        if filters:
            described = {symbol(each.name): Described(symbol(each.descriptor), each.value) for each in filters}
            receiver.source.filter.put_dict(described)
        capabilities = capabilities_of(self._options)
        if capabilities:
            receiver.source.capabilities.put_array(False, proton.Data.SYMBOL)
            receiver.source.capabilities.enter()
            for name in capabilities:
                receiver.source.capabilities.put_symbol(symbol(name))
            receiver.source.capabilities.exit()
        if self._durable:
            receiver.source.durability = Terminus.DELIVERIES
            receiver.source.expiry_policy = Terminus.EXPIRE_NEVER


class ReceivingLink:
    """A receiving link, attached anew whenever the broker detaches it.

    ``window`` is the maximum number of messages on their way to it or not stored yet; ``held`` counts the latter.
    ``attached`` says whether the broker serves it now, and ``problem`` why not. ``leaving``: no longer subscribed.
    """

    def __init__(self, subscription: EndpointSubscription, container_id: str) -> None:
        self.subscription = subscription
        self.backoff = reconnecting()
        self.window = 1
        self.held = 0
        self.attached = False
        self.leaving = False
        self.problem = ""
        self.receiver: proton.Receiver | None = None
        self._durable = option(subscription.options, "durable") is True
        # A broker identifies a durable subscription by container and link name, across connections.
        self._name = f"{container_id}{subscription.endpoint}|{subscription.address}"
        self._attempts = 0

    def attach(self, container: Container, connection: proton.Connection) -> None:
        """Request the link. The broker serves it once the handler gets the remote open."""
        self._attempts += 1
        name = self._name if self._durable else f"{self._name}|{self._attempts}"
        terms = _SettleModes(self.subscription, self._durable)
        self.held = 0
        self.receiver = container.create_receiver(connection, self.subscription.address, name=name, options=terms)

    def ignored_filters(self) -> list[str]:
        """Return the requested filters that the broker did not apply, according to its answer."""
        wanted = [each.name for each in source_filters(self.subscription.options)]
        applied: set[str] = set()
        if wanted and self.receiver is not None:
            data = self.receiver.remote_source.filter
            data.rewind()
            answer = data.get_object() if data.next() is not None else None
            applied = {str(name) for name in answer} if isinstance(answer, dict) else set()
        return [name for name in wanted if name not in applied]

    def grant(self, most: int) -> None:
        """Give credit so that at most *most* messages are on their way or unstored; small amounts are saved up."""
        if self.receiver is None or not self.attached or self.leaving:
            return
        missing = most - self.held - self.receiver.credit
        if missing > 0 and (missing >= most // 4 or self.receiver.credit == 0):
            self.receiver.flow(missing)

    def shut(self) -> None:
        """Take back the credit that the broker has not used yet."""
        if self.receiver is not None and self.attached:
            self.receiver.drain(0)

    def leave(self) -> None:
        """End the link; the broker keeps a durable subscription."""
        if self.receiver is not None:
            if self._durable:
                self.receiver.detach()
            else:
                self.receiver.close()
        self.receiver, self.attached = None, False

    def lose(self, reason: str) -> None:
        """Record that the broker ended the link."""
        receiver, self.receiver, self.attached = self.receiver, None, False
        self.problem = reason
        if receiver is not None:
            receiver.close()


# Messages between arrival and disk, and how each is settled.

EAGER: Final = 250
"""Messages that go to the store at once while it has others; each group costs two thread switches and a frame."""


@dataclass(frozen=True, slots=True)
class AmqpDelivery:
    """A message that is not stored yet, and the link it came over.

    ``delivery`` is None for a pre-settled message: nothing to answer, and nobody sends it again. ``inlet`` is None for
    a message that was offered to the store before.
    """

    row: InboxRow
    inlet: ReceivingLink | None = None
    receiver: proton.Receiver | None = None
    delivery: Delivery | None = None

    def let_go(self, outcome: int) -> None:
        """Release the message and send the broker its outcome; no outcome if the link is gone or attached anew, because
        the broker has then taken the message back.
        """
        if self.inlet is None or self.receiver is None or self.inlet.receiver is not self.receiver:
            return
        self.inlet.held -= 1
        if self.delivery is not None:
            self.delivery.update(outcome)
            self.delivery.settle()


class UnstoredDeliveries:
    """Unstored messages of one connection, all on its thread; see :class:`bindings.store_and_ack.AckHandler`.

    ``kept`` are rows that nobody would send again; each connection passes them on to the next.
    """

    def __init__(
        self, store: RowStore, counters: GatewayCounters, wake: Callable[[], None], kept: list[InboxRow]
    ) -> None:
        self.handover = AckAfterStore(store, self, wake, reconnecting(), eager=EAGER)
        self._counters = counters
        self._kept = kept

    def add(self, arrival: AmqpDelivery) -> None:
        """Add a message; it goes to the store when the handover advances."""
        if arrival.inlet is not None:
            arrival.inlet.held += 1
        self.handover.add(arrival)

    def retry(self) -> None:
        """Offer the kept rows again."""
        for row in self._kept:
            self.add(AmqpDelivery(row))
        self._kept.clear()

    def release(self) -> None:
        """Release all messages to the broker, whatever the store says later."""
        self._kept += [arrival.row for arrival in self._given_back(self.handover.abandon())]

    def stored(self, messages: Sequence[AmqpDelivery]) -> None:
        for arrival in messages:
            arrival.let_go(Delivery.ACCEPTED)
            self._counters.acknowledged(arrival.row.endpoint)

    def refused(self, message: AmqpDelivery) -> None:
        """Reject the message, so that the broker moves it to its dead letters."""
        message.let_go(Delivery.REJECTED)

    def held_back(self, messages: Sequence[AmqpDelivery]) -> Sequence[AmqpDelivery]:
        return self._given_back(messages)

    @staticmethod
    def _given_back(messages: Iterable[AmqpDelivery]) -> list[AmqpDelivery]:
        """Release messages, and return those that nobody would send again."""
        for arrival in messages:
            arrival.let_go(Delivery.RELEASED)
        return [AmqpDelivery(arrival.row) for arrival in messages if arrival.delivery is None]


OPEN_LIMIT_SECONDS: Final = 30.0
CLOSE_LIMIT_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class GatewayState:
    """State that the successive connections of one gateway share.

    ``kept`` are rows of pre-settled messages that the store refused: nobody would send them again. ``trouble`` is the
    gateway's current problem; ``opened`` says whether the last connection was established.
    """

    dialer: Dialer
    terms: GatewayConfig
    kept: list[InboxRow] = field(default_factory=list)
    trouble: str = ""
    connected: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Request to use these subscriptions from now on."""

    subscriptions: Sequence[EndpointSubscription]


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to end after at most ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Signal that the store has answered; :class:`bindings.store_and_ack.AckAfterStore` has the answer."""


# Events are Any below: proton types every member of an event as optional, whatever its kind.


class _Later(Handler):
    """Calls a function when a timer of the container fires."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_timer_task(self, event: Any) -> None:
        self._call()


class ReceivingConnection(Handler):
    """One connection. :meth:`live` is called once; all else runs on its thread, except the mailbox."""

    def __init__(self, shared: GatewayState, subscriptions: Sequence[EndpointSubscription]) -> None:
        self.mailbox = Mailbox()
        self._shared = shared
        self._inlets = [ReceivingLink(each, shared.terms.client_id) for each in subscriptions]
        self._by_name: dict[str, ReceivingLink] = {}
        wake = partial(self.mailbox.post, Answered())
        self._holding = UnstoredDeliveries(shared.terms.store, shared.terms.counters, wake, shared.kept)
        self._handover = self._holding.handover
        self._reason = ""
        self._refusing = self._probing = False
        self._open = self._stopping = self._ended = False
        self._container: Container | None = None
        self._connection: proton.Connection | None = None

    def live(self) -> None:
        """Connect and serve; return when the connection has ended, for whatever reason."""
        shared = self._shared
        shared.opened = False
        self._container = Container(self, container_id=shared.terms.client_id)
        try:
            self._container.run()
        except (ProtonException, OSError) as error:
            # From the socket, or an unresolvable host name; the gateway retries.
            self._reason = self._reason or " ".join(str(error).split())
        finally:
            self._ended = True
            self.mailbox.close()
            shared.connected = False
            reason = self._reason or "the broker closed the connection"
            shared.trouble = "" if self._stopping else f"{shared.dialer.last}: {reason}"
            for inlet in self._inlets:
                inlet.receiver = None  # nothing of this connection can be settled any more
            self._holding.release()

    # --- the connection

    def on_reactor_init(self, event: Any) -> None:
        container = event.container
        self.mailbox.attach(container)
        self._connection = self._shared.dialer.dial(container)
        self._later(OPEN_LIMIT_SECONDS, self._give_up)

    def on_connection_remote_open(self, event: Any) -> None:
        self._open = True
        self._attach(self._inlets)
        self._holding.retry()
        self._store()
        self._report()

    def on_connection_remote_close(self, event: Any) -> None:
        self._reason = self._reason or reason_of(event.connection.remote_condition)
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        self._reason = self._reason or reason_of(event.transport.condition)

    def on_transport_closed(self, event: Any) -> None:
        self._ended = True
        event.container.stop()

    # --- links

    def on_link_remote_open(self, event: Any) -> None:
        inlet = self._by_name.get(event.link.name)
        if inlet is None or inlet.receiver is None or event.link.remote_source.address is None:
            return  # refused: the detach that follows says why
        if ignored := inlet.ignored_filters():
            self._refuse_unfiltered(inlet, ignored)
            return
        inlet.attached, inlet.problem = True, ""
        self._shared.opened = True
        inlet.backoff.reset()
        self._grant(inlet)
        self._report()

    def _refuse_unfiltered(self, inlet: ReceivingLink, ignored: Sequence[str]) -> None:
        """Refuse messages from a broker that ignores the filters."""
        node = f"{inlet.subscription.endpoint}, node {inlet.subscription.address}"
        inlet.lose(f"{node}: the broker does not apply the source filter {', '.join(ignored)}; correct or remove it")
        _logger.warning("%s; retrying", inlet.problem)
        self._later(inlet.backoff.pause(), lambda: self._attach([inlet]))
        self._report()

    def on_link_remote_close(self, event: Any) -> None:
        inlet = self._by_name.pop(event.link.name, None)
        if inlet is None or inlet.receiver is None:
            event.link.close()
            return
        reason = reason_of(event.link.remote_condition) or "the broker ended the link"
        inlet.lose(f"{inlet.subscription.endpoint}, node {inlet.subscription.address}: {reason}")
        _logger.warning("%s; retrying", inlet.problem)
        self._later(inlet.backoff.pause(), lambda: self._attach([inlet]))
        self._report()

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
        inlet = self._by_name.get(link.name)
        if inlet is None or inlet.receiver is None:
            return
        endpoint = inlet.subscription.endpoint
        self._shared.terms.counters.received(endpoint)
        settled = delivery.settled
        if not settled and (self._stopping or self._refusing or inlet.leaving):
            delivery.update(Delivery.RELEASED)
        else:
            row = row_of(data, endpoint, received, self._shared.terms.limits.max_body_bytes)
            self._holding.add(AmqpDelivery(row, inlet, inlet.receiver, None if settled else delivery))
            if not settled:
                return
        delivery.settle()

    def on_reactor_quiesced(self, event: Any) -> None:
        """Store what one read of the socket brought as one group."""
        self._store()

    def on_mail(self, event: Any) -> None:
        for item in self.mailbox.take():
            if isinstance(item, Replace):
                self._replace(item.subscriptions)
            elif isinstance(item, Stop):
                self._stop(item.grace)
        self._store()
        for inlet in self._inlets:
            self._grant(inlet)
        self._end_unused_links()

    def _store(self) -> None:
        """Settle what the store has answered and pass on what waits; stop asking for more while the store is full."""
        self._handover.advance()
        pause = self._handover.pause
        if pause and not self._refusing:
            self._refusing = True
            for inlet in self._inlets:
                inlet.shut()
            self._later(pause, self._probe)
            self._report()
        elif self._probing and not self._handover.trouble:
            self._probing = False
            self._report()

    def _probe(self) -> None:
        """Try one message of each link, to see whether the store accepts messages again."""
        if pause := self._handover.pause:
            self._later(pause, self._probe)
            return
        self._refusing, self._probing = False, True
        self._store()
        for inlet in self._inlets:
            self._grant(inlet)

    def _grant(self, inlet: ReceivingLink) -> None:
        if not self._stopping and not self._refusing:
            inlet.grant(1 if self._probing else inlet.window)

    # --- changes

    def _attach(self, inlets: Sequence[ReceivingLink]) -> None:
        if self._ended or self._stopping or self._container is None or self._connection is None:
            return
        self._share()
        for inlet in inlets:
            if not inlet.leaving and inlet.receiver is None:
                inlet.attach(self._container, self._connection)
                if inlet.receiver is not None:
                    self._by_name[inlet.receiver.name] = inlet

    def _share(self) -> None:
        """Divide the in-flight limit among the links."""
        for inlet in self._inlets:
            inlet.window = max(1, self._shared.terms.limits.max_in_flight // len(self._inlets))

    def _replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        wanted = list(subscriptions)
        kept = [inlet for inlet in self._inlets if not inlet.leaving and inlet.subscription in wanted]
        for inlet in self._inlets:
            if inlet not in kept:
                inlet.shut()
                inlet.leaving = True
        known = [inlet.subscription for inlet in kept]
        new = [ReceivingLink(each, self._shared.terms.client_id) for each in wanted if each not in known]
        self._inlets += new
        if self._open:
            self._attach(new)

    def _stop(self, grace: float) -> None:
        self._stopping = True
        for inlet in self._inlets:
            inlet.shut()
            inlet.leaving = True
        self._later(grace, self._release)

    def _release(self) -> None:
        self._holding.release()
        self._end_unused_links()

    def _end_unused_links(self) -> None:
        """End unsubscribed links that hold no messages; when stopping, end the connection with the last one."""
        gone = [inlet for inlet in self._inlets if inlet.leaving and inlet.held <= 0]
        for inlet in gone:
            inlet.leave()
            self._inlets.remove(inlet)
        if gone:
            self._share()
            self._report()
        if self._stopping and not self._inlets and not self._handover.held and not self._ended:
            self._ended = True
            if self._connection is not None:
                self._connection.close()
            self._later(CLOSE_LIMIT_SECONDS if self._open else 0.0, self._give_up)

    def _report(self) -> None:
        shared = self._shared
        problems = [inlet.problem for inlet in self._inlets]
        shared.connected = self._open and all(inlet.attached for inlet in self._inlets if not inlet.leaving)
        shared.trouble = "; ".join(filter(None, [*problems, self._handover.trouble]))

    # --- time

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        if self._container is not None:
            self._container.schedule(delay, _Later(call))

    def _give_up(self) -> None:
        """End the container's run unless the broker has answered in time."""
        if self._open and not self._ended:
            return
        self._reason = self._reason or f"no answer within {OPEN_LIMIT_SECONDS:g} s"
        if self._container is not None:
            hang_up(self._container, self._connection)


_JOIN_SECONDS: Final = 10.0


class AmqpGateway:
    """Receives messages from a broker's nodes; started once, stopped once. A ``bindings.gateways.Gateway``.

    Raises:
        GatewayError: the connection or a subscription has a fault that waiting does not fix.
    """

    def __init__(self, terms: GatewayConfig) -> None:
        self._terms = terms
        self._subscriptions = tuple(terms.subscriptions)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._grace = 0.0
        self._connection: ReceivingConnection | None = None
        self._shared: GatewayState | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""

    @property
    def connected(self) -> bool:
        """Whether the broker serves all subscriptions now."""
        return self._shared is not None and self._shared.connected

    @property
    def alive(self) -> bool:
        """Whether it runs; False before start, after stop, and after an internal error."""
        return self._thread is not None and self._thread.is_alive() and not self._failure

    @property
    def trouble(self) -> str:
        """The reason why it cannot receive messages, in one line; empty if it can."""
        return self._failure or (self._shared.trouble if self._shared is not None else "")

    def start(self) -> None:
        """Start connecting, and return at once.

        Raises:
            GatewayError: an address, certificate, node or option has a fault that waiting does not fix.
        """
        for subscription in self._subscriptions:
            check_options(subscription)
        self._shared = GatewayState(Dialer(self._terms.connection, self._terms.client_id), self._terms)
        self._thread = threading.Thread(target=self._run, args=(self._shared,), name="amqp-gateway", daemon=True)
        self._thread.start()

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Use other subscriptions from now on; what is in flight is finished.

        Raises:
            GatewayError: one of them can never work; the old ones stay.
        """
        for subscription in subscriptions:
            check_options(subscription)
        with self._lock:
            self._subscriptions = tuple(subscriptions)
            if self._connection is not None:
                self._connection.mailbox.post(Replace(self._subscriptions))

    def stop(self, grace: float) -> None:
        """Stop receiving, finish what is in flight for up to *grace* seconds, and disconnect.

        What is not stored by then is released to the broker. Does nothing when not running.
        """
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            self._grace = grace
            self._stopped.set()
            if self._connection is not None:
                self._connection.mailbox.post(Stop(grace))
        thread.join(grace + _JOIN_SECONDS)
        if thread.is_alive():
            _logger.warning("the AMQP gateway did not stop within %s s; unsettled messages are redelivered", grace)

    def _run(self, shared: GatewayState) -> None:
        backoff = reconnecting()
        try:
            while not self._stopped.is_set():
                with self._lock:
                    connection = self._connection = ReceivingConnection(shared, self._subscriptions)
                    if self._stopped.is_set():
                        break
                connection.live()
                if self._stopped.is_set():
                    break
                if shared.opened:
                    backoff.reset()
                wait = backoff.pause()
                _logger.warning("AMQP connection: %s; retrying in %.1f s", shared.trouble, wait)
                self._stopped.wait(wait)
        except Exception as error:
            # An internal error; whoever watches `alive` and `trouble` decides.
            self._failure = f"the AMQP gateway stopped after an internal error: {type(error).__name__}: {error}"
            _logger.exception("the AMQP gateway stopped after an internal error")
        finally:
            shared.connected = False
            if shared.kept:
                _logger.error("%s pre-settled messages are lost", len(shared.kept))
