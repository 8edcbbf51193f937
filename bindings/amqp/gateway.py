"""The AMQP 1.0 gateway: receives from nodes of one broker, stores in the inbox, and then accepts (bindings.gateways).

What a broker may rely on: a message is settled as ``accepted`` only after the store said that it survives a crash. A
message is ``released`` when the store has no room or the gateway stops; whatever is not settled when the connection is
lost is the broker's to deliver again. A sender that settled before (at most once) is served as well as can be: what it
sent is kept in memory while the store takes nothing.
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
from bindings.handover import Handover
from bindings.parts import InboxRow

# The life of one connection of the gateway: links are attached, what arrives is stored, and only then accepted.
#
# It is one run of a proton container, on one thread. Deliveries are settled by the connection that got them, or by
# none: when it is lost, the broker takes back what was not settled.

# One subscription on one connection: its receiving link, how it is attached, and its credit.

_MODES: Final = {"move": Terminus.DIST_MODE_MOVE, "copy": Terminus.DIST_MODE_COPY}


class _Terms(ReceiverOption):
    """What is asked of the broker for a link. Settled only by us and only once: at least once (AMQP part 2, 2.6.12);
    a broker that answers that it settles by itself is taken as it is.
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


class Inlet:
    """A receiving link, attached anew whenever the broker detaches it.

    Its ``window`` is the most messages that may be on their way to it or held for it. ``held`` counts the latter.
    ``attached`` says whether the broker serves it now; ``problem`` why not. ``leaving``: nobody wants it any more.
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
        # A durable subscription is known to the broker by container and link name, over all connections.
        self._name = f"{container_id}{subscription.endpoint}|{subscription.address}"
        self._attempts = 0

    def attach(self, container: Container, connection: proton.Connection) -> None:
        """Ask the broker for the link. The broker serves it once the handler gets its remote opening."""
        self._attempts += 1
        name = self._name if self._durable else f"{self._name}|{self._attempts}"
        terms = _Terms(self.subscription, self._durable)
        self.held = 0
        self.receiver = container.create_receiver(connection, self.subscription.address, name=name, options=terms)

    def ignored_filters(self) -> list[str]:
        """Return the filters that we asked for and that the broker, by its answer, does not apply."""
        wanted = [each.name for each in source_filters(self.subscription.options)]
        applied: set[str] = set()
        if wanted and self.receiver is not None:
            data = self.receiver.remote_source.filter
            data.rewind()
            answer = data.get_object() if data.next() is not None else None
            applied = {str(name) for name in answer} if isinstance(answer, dict) else set()
        return [name for name in wanted if name not in applied]

    def grant(self, most: int) -> None:
        """Give credit, so that at most *most* messages are on their way or held; small amounts wait for more."""
        if self.receiver is None or not self.attached or self.leaving:
            return
        missing = most - self.held - self.receiver.credit
        if missing > 0 and (missing >= most // 4 or self.receiver.credit == 0):
            self.receiver.flow(missing)

    def shut(self) -> None:
        """Take back the credit, as far as the broker has not used it yet."""
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
        """Note that the broker ended the link."""
        receiver, self.receiver, self.attached = self.receiver, None, False
        self.problem = reason
        if receiver is not None:
            receiver.close()


# What a connection of the gateway holds between arrival and disk, and how each message is settled.

EAGER: Final = 250
"""So many messages go to the store while it has others; every group costs two changes of threads, and a frame."""


@dataclass(frozen=True, slots=True)
class AmqpDelivery:
    """A message that is held, and what it came over.

    ``delivery`` is None when its sender had settled it: there is nothing to answer, and nobody sends it again.
    ``inlet`` is None for one that was offered to the store before.
    """

    row: InboxRow
    inlet: Inlet | None = None
    receiver: proton.Receiver | None = None
    delivery: Delivery | None = None

    def let_go(self, outcome: int) -> None:
        """Release the message, and tell the broker its outcome; not when its link is gone or attached anew: then the
        broker has taken the message back.
        """
        if self.inlet is None or self.receiver is None or self.inlet.receiver is not self.receiver:
            return
        self.inlet.held -= 1
        if self.delivery is not None:
            self.delivery.update(outcome)
            self.delivery.settle()


class UnstoredDeliveries:
    """The messages held for one connection, all on its thread; see :class:`bindings.handover.AckHandler`.

    ``kept`` are the rows that nobody would send again; each connection leaves them to the next one.
    """

    def __init__(
        self, store: RowStore, counters: GatewayCounters, wake: Callable[[], None], kept: list[InboxRow]
    ) -> None:
        self.handover = Handover(store, self, wake, reconnecting(), eager=EAGER)
        self._counters = counters
        self._kept = kept

    def add(self, arrival: AmqpDelivery) -> None:
        """Hold a message; it goes to the store when the handover advances."""
        if arrival.inlet is not None:
            arrival.inlet.held += 1
        self.handover.add(arrival)

    def retry(self) -> None:
        """Hold the kept rows again."""
        for row in self._kept:
            self.add(AmqpDelivery(row))
        self._kept.clear()

    def release(self) -> None:
        """Give everything back to the broker, whatever the store says later."""
        self._kept += [arrival.row for arrival in self._given_back(self.handover.abandon())]

    def stored(self, messages: Sequence[AmqpDelivery]) -> None:
        for arrival in messages:
            arrival.let_go(Delivery.ACCEPTED)
            self._counters.acknowledged(arrival.row.endpoint)

    def refused(self, message: AmqpDelivery) -> None:
        """Reject it: the broker's dead letters are the place for it."""
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
class Shared:
    """What the successive connections of one gateway share.

    ``kept`` are rows whose sender had settled them before they arrived, and that the store refused: nobody would send
    them again. ``trouble`` is what the gateway says; ``opened`` whether the last connection came about.
    """

    dialer: Dialer
    terms: GatewayConfig
    kept: list[InboxRow] = field(default_factory=list)
    trouble: str = ""
    connected: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Take these subscriptions from now on."""

    subscriptions: Sequence[EndpointSubscription]


@dataclass(frozen=True, slots=True)
class Stop:
    """End, after at most ``grace`` seconds."""

    grace: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The store has answered; :class:`bindings.handover.Handover` knows what."""


# Events are Any below: proton types all that an event may have as optional, whatever its kind.


class _Later(Handler):
    """Calls a function when a timer of the container fires."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_timer_task(self, event: Any) -> None:
        self._call()


class ReceivingConnection(Handler):
    """See the module. :meth:`live` is called once; everything else happens on its thread, but for the mailbox."""

    def __init__(self, shared: Shared, subscriptions: Sequence[EndpointSubscription]) -> None:
        self.mailbox = Mailbox()
        self._shared = shared
        self._inlets = [Inlet(each, shared.terms.client_id) for each in subscriptions]
        self._by_name: dict[str, Inlet] = {}
        wake = partial(self.mailbox.post, Answered())
        self._holding = UnstoredDeliveries(shared.terms.store, shared.terms.counters, wake, shared.kept)
        self._handover = self._holding.handover
        self._reason = ""
        self._refusing = self._probing = False
        self._open = self._stopping = self._ended = False
        self._container: Container | None = None
        self._connection: proton.Connection | None = None

    def live(self) -> None:
        """Connect, serve, and return when the connection has ended, for whatever reason."""
        shared = self._shared
        shared.opened = False
        self._container = Container(self, container_id=shared.terms.client_id)
        try:
            self._container.run()
        except (ProtonException, OSError) as error:
            # From the socket, or from a name that does not resolve; the gateway tries again.
            self._reason = self._reason or " ".join(str(error).split())
        finally:
            self._ended = True
            self.mailbox.close()
            shared.connected = False
            reason = self._reason or "the broker closed the connection"
            shared.trouble = "" if self._stopping else f"{shared.dialer.last}: {reason}"
            for inlet in self._inlets:
                inlet.receiver = None  # nothing of this connection is settled any more
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
            return  # refused: the detach that says why comes next
        if ignored := inlet.ignored_filters():
            self._unfiltered(inlet, ignored)
            return
        inlet.attached, inlet.problem = True, ""
        self._shared.opened = True
        inlet.backoff.reset()
        self._grant(inlet)
        self._report()

    def _unfiltered(self, inlet: Inlet, ignored: Sequence[str]) -> None:
        """Take nothing from a broker that would send what the filters were to keep away."""
        node = f"{inlet.subscription.endpoint}, node {inlet.subscription.address}"
        inlet.lose(f"{node}: the broker does not apply the source filter {', '.join(ignored)}; correct or remove it")
        _logger.warning("%s; trying again", inlet.problem)
        self._later(inlet.backoff.pause(), lambda: self._attach([inlet]))
        self._report()

    def on_link_remote_close(self, event: Any) -> None:
        inlet = self._by_name.pop(event.link.name, None)
        if inlet is None or inlet.receiver is None:
            event.link.close()
            return
        reason = reason_of(event.link.remote_condition) or "the broker ended the link"
        inlet.lose(f"{inlet.subscription.endpoint}, node {inlet.subscription.address}: {reason}")
        _logger.warning("%s; trying again", inlet.problem)
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
        """Store together what one reading of the socket brought."""
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
        self._depart()

    def _store(self) -> None:
        """Settle what the store has answered, and send it what waits; ask for no more while it takes none."""
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
        """Try with one message of each link whether the store takes messages again."""
        if pause := self._handover.pause:
            self._later(pause, self._probe)
            return
        self._refusing, self._probing = False, True
        self._store()
        for inlet in self._inlets:
            self._grant(inlet)

    def _grant(self, inlet: Inlet) -> None:
        if not self._stopping and not self._refusing:
            inlet.grant(1 if self._probing else inlet.window)

    # --- changes

    def _attach(self, inlets: Sequence[Inlet]) -> None:
        if self._ended or self._stopping or self._container is None or self._connection is None:
            return
        self._share()
        for inlet in inlets:
            if not inlet.leaving and inlet.receiver is None:
                inlet.attach(self._container, self._connection)
                if inlet.receiver is not None:
                    self._by_name[inlet.receiver.name] = inlet

    def _share(self) -> None:
        """Divide what may be in flight among the links."""
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
        new = [Inlet(each, self._shared.terms.client_id) for each in wanted if each not in known]
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
        self._depart()

    def _depart(self) -> None:
        """End the links that nobody wants and that hold nothing; the connection with the last when stopping."""
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
        """End the run of the container, unless the broker has answered in time."""
        if self._open and not self._ended:
            return
        self._reason = self._reason or f"no answer within {OPEN_LIMIT_SECONDS:g} s"
        if self._container is not None:
            hang_up(self._container, self._connection)


_JOIN_SECONDS: Final = 10.0


class AmqpGateway:
    """Takes the messages of some nodes; started once, stopped once. A ``bindings.gateways.Gateway``.

    Raises:
        GatewayError: the connection or a subscription has something that waiting does not repair.
    """

    def __init__(self, terms: GatewayConfig) -> None:
        self._terms = terms
        self._subscriptions = tuple(terms.subscriptions)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._grace = 0.0
        self._connection: ReceivingConnection | None = None
        self._shared: Shared | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""

    @property
    def connected(self) -> bool:
        """Whether the broker serves all subscriptions now."""
        return self._shared is not None and self._shared.connected

    @property
    def alive(self) -> bool:
        """Whether it runs; False before the start, after the stop, and after a fault of its own."""
        return self._thread is not None and self._thread.is_alive() and not self._failure

    @property
    def trouble(self) -> str:
        """What keeps it from taking messages, in one line; empty when nothing does."""
        return self._failure or (self._shared.trouble if self._shared is not None else "")

    def start(self) -> None:
        """Begin to connect, and return at once.

        Raises:
            GatewayError: an address, certificate, node or option that waiting does not repair.
        """
        for subscription in self._subscriptions:
            check_options(subscription)
        self._shared = Shared(Dialer(self._terms.connection, self._terms.client_id), self._terms)
        self._thread = threading.Thread(target=self._run, args=(self._shared,), name="amqp-gateway", daemon=True)
        self._thread.start()

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other subscriptions from now on; what is in flight is finished.

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
        """Take nothing more, finish what is in flight for up to *grace* seconds, and disconnect.

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
            _logger.warning("the AMQP gateway did not end within %s s; its broker takes back what it holds", grace)

    def _run(self, shared: Shared) -> None:
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
                _logger.warning("AMQP connection: %s; trying again in %.1f s", shared.trouble, wait)
                self._stopped.wait(wait)
        except Exception as error:
            # A fault of this module; whoever watches `alive` and `trouble` decides.
            self._failure = f"the AMQP gateway ended by a fault of its own: {type(error).__name__}: {error}"
            _logger.exception("the AMQP gateway ended")
        finally:
            shared.connected = False
            if shared.kept:
                _logger.error("%s messages that their sender had settled are lost", len(shared.kept))
