"""The life of one connection of the gateway: links are attached, what arrives is stored, and only then accepted.

It is one run of a proton container, on one thread. Deliveries are settled by the connection that got them, or by none:
when it is lost, the broker takes back what was not settled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import proton
from proton import Delivery, Handler, ProtonException
from proton.reactor import Container

from bindings.amqp.dialing import Dialer, hang_up, reason_of
from bindings.amqp.holding import Arrival, Holding
from bindings.amqp.inlet import Inlet
from bindings.amqp.mailbox import Mailbox
from bindings.amqp.sections import row_of
from bindings.gateways import Subscription, Terms
from bindings.parts import InboxRow

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
    terms: Terms
    kept: list[InboxRow] = field(default_factory=list)
    trouble: str = ""
    connected: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Take these subscriptions from now on."""

    subscriptions: Sequence[Subscription]


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

    def __init__(self, shared: Shared, subscriptions: Sequence[Subscription]) -> None:
        self.mailbox = Mailbox()
        self._shared = shared
        self._inlets = [Inlet(each, shared.terms.client_id) for each in subscriptions]
        self._by_name: dict[str, Inlet] = {}
        wake = partial(self.mailbox.post, Answered())
        self._holding = Holding(shared.terms.store, shared.terms.counters, wake, shared.kept)
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
            self._holding.add(Arrival(row, inlet, inlet.receiver, None if settled else delivery))
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

    def _replace(self, subscriptions: Sequence[Subscription]) -> None:
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
