"""The AMQP 1.0 sender of sinks: blocks until the broker has said of every message what became of it.

A broker may end the connection at a message that it cannot read (AMQP 1.0 part 2 section 2.8.15). Such a message is
found and given up (:mod:`bindings.sending`); the others pass.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import proton
from proton import Delivery, Handler, ProtonException
from proton.reactor import Container, SenderOption

from bindings.amqp.binding import option_map
from bindings.amqp.client import Dialer, Mailbox, hang_up, reason_of
from bindings.amqp.outgoing import AmqpMessage, EncodingError, encode
from bindings.gateways import Connection
from bindings.sending import Ended, MessageRefusal, OutgoingMessage, Suspects, Unsettled

# The life of one connection of the sender: links to nodes, and one job of messages at a time.

TOO_LARGE: Final = "amqp:link:message-size-exceeded"
AT_FAULT: Final = frozenset(
    {TOO_LARGE, "amqp:decode-error", "amqp:invalid-field", "amqp:not-implemented", "amqp:frame-size-too-small"}
)
"""Conditions with which a broker ends a connection or link over what it was sent (AMQP 1.0 part 2 section 2.8)."""
TO_WAIT_FOR: Final = frozenset(
    {
        "amqp:not-found",
        "amqp:unauthorized-access",
        "amqp:resource-locked",
        "amqp:resource-deleted",
        "amqp:resource-limit-exceeded",
        "amqp:connection:forced",
        "amqp:connection:redirect",
        "amqp:link:redirect",
        "amqp:link:stolen",
    }
)
"""Conditions that speak of a node or of the broker's state, and of no message."""
OUTCOMES: Final = frozenset((Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED))
CLOSE_LIMIT_SECONDS: Final = 2.0
MAX_LINKS: Final = 200
"""Links kept open between two jobs; with more they are closed, since templates may name any number of nodes."""

Refused = tuple[int, str, str]


class _Terms(SenderOption):
    """At least once, and we understand every outcome: without this, a broker would end the link to refuse a message."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def apply(self, sender: proton.Link) -> None:
        if self._properties:
            sender.properties = {proton.symbol(name): value for name, value in self._properties.items()}
        sender.snd_settle_mode = proton.Link.SND_UNSETTLED
        sender.rcv_settle_mode = proton.Link.RCV_FIRST
        outcomes = sender.source.outcomes
        outcomes.put_array(False, proton.Data.SYMBOL)
        outcomes.enter()
        for name in ("accepted", "rejected", "released", "modified"):
            outcomes.put_symbol(f"amqp:{name}:list")
        outcomes.exit()


class LinkLost(Exception):
    """A job that was cut off; the text says why. Messages that it did not settle have to be sent again.

    ``ended`` when the broker ended connection or link with messages under way, and names no cause beside messages;
    ``sure`` when it says that what it was sent is at fault.
    """

    def __init__(self, reason: str, *, ended: bool = False, sure: bool = False) -> None:
        super().__init__(reason)
        self.ended = ended
        self.sure = sure


@dataclass(slots=True)
class Job:
    """Messages (place, node, bytes) to send, and the future of those that the broker refused.

    The future fails with LinkLost when the outcome of a message stays unknown; ``accepted`` and ``refused`` then have
    the messages whose outcome is known.
    """

    messages: list[tuple[int, str, bytes]]
    done: Future[list[Refused]]
    refused: list[Refused] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    released: int = 0
    left: int = 0


@dataclass(slots=True)
class _Node:
    link: proton.Sender
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    open: bool = False


# Events are Any below: proton types all that an event may have as optional, whatever its kind.


class Outlet(Handler):
    """See the module. :meth:`live` is its thread; :meth:`submit` and :meth:`close` are for others.

    The broker gets ``properties`` with every link.
    """

    def __init__(
        self,
        dialer: Dialer,
        container_id: str,
        max_in_flight: int,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.usable = True
        self._dialer = dialer
        self._properties = properties
        self._container_id = container_id
        self._max_in_flight = max_in_flight
        self._mailbox = Mailbox()
        self._nodes: dict[str, _Node] = {}
        self._flying: dict[str, int] = {}
        self._tags = itertools.count()
        self._jobs: deque[Job] = deque()
        self._open = False
        self._closed = False
        self._reason = ""
        self._condition = ""
        self._container: Container | None = None
        self._connection: proton.Connection | None = None

    def submit(self, job: Job) -> None:
        """Send a job; its future always ends, at the latest with the connection."""
        self._mailbox.post(job)
        if not self.usable:
            _fail(job, LinkLost(self._reason))

    def close(self) -> None:
        """End the connection; the job fails."""
        self.usable = False
        self._closed = True
        self._mailbox.post(None)

    def live(self) -> None:
        """Connect, serve, and return when the connection has ended, for whatever reason."""
        self._container = Container(self, container_id=self._container_id)
        try:
            self._container.run()
        except (ProtonException, OSError) as error:
            self._reason = self._reason or " ".join(str(error).split())
        finally:
            reason = f"{self._dialer.last}: {self._reason or 'the connection was closed'}"
            self.usable = False
            waiting = [item for item in self._mailbox.take() if item is not None]
            self._mailbox.close()
            for job in (*self._jobs, *waiting):
                _fail(job, self._lost(reason))
            self._reason = reason

    def on_reactor_init(self, event: Any) -> None:
        self._mailbox.attach(event.container)
        self._connection = self._dialer.dial(event.container)

    def on_connection_remote_open(self, event: Any) -> None:
        self._open = True
        self._begin()

    def on_connection_remote_close(self, event: Any) -> None:
        self._take_note(event.connection.remote_condition)
        self._end(reason_of(event.connection.remote_condition) or "the broker closed the connection")
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        self._take_note(event.transport.condition)
        self._reason = self._reason or reason_of(event.transport.condition)

    def on_transport_closed(self, event: Any) -> None:
        self.usable = False
        event.container.stop()

    def on_mail(self, event: Any) -> None:
        for item in self._mailbox.take():
            if item is None:
                self._end("the sender was closed")
                self._wait_for_close()
            else:
                self._jobs.append(item)
                self._begin()

    def on_timer_task(self, event: Any) -> None:
        """Wait no longer for the broker to close its side."""
        if self._container is not None:
            hang_up(self._container, self._connection)

    def on_link_remote_open(self, event: Any) -> None:
        node = self._node_of(event.link)
        if node is not None and event.link.remote_target.address is not None:
            node.open = True
            self._pump(node)

    def on_link_flow(self, event: Any) -> None:
        node = self._node_of(event.link)
        if node is not None:
            self._pump(node)

    def on_link_remote_close(self, event: Any) -> None:
        reason = reason_of(event.link.remote_condition) or "the broker ended the link"
        node = self._node_of(event.link)
        self._take_note(event.link.remote_condition)
        event.link.close()
        if node is not None:
            address = event.link.target.address
            self._nodes.pop(address, None)
            self._end(f"node {address}: {reason}")

    def on_link_remote_detach(self, event: Any) -> None:
        self.on_link_remote_close(event)

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if not delivery.updated:
            return
        state = delivery.remote_state
        if not delivery.settled and state not in OUTCOMES:
            return
        place = self._flying.pop(delivery.tag, None)
        if place is not None and self._jobs:
            job = self._jobs[0]
            job.left -= 1
            if state == Delivery.REJECTED:
                condition = delivery.remote.condition
                name = condition.name if condition is not None else "amqp:rejected"
                job.refused.append((place, name or "amqp:rejected", (condition and condition.description) or ""))
            elif state == Delivery.ACCEPTED:
                job.accepted.append(place)
            else:
                job.released += 1
        delivery.settle()
        self._advance()

    def _begin(self) -> None:
        """Give the first job's messages to their nodes, unless that was done."""
        if not self._open or not self._jobs or self._jobs[0].left or self._container is None:
            return
        job = self._jobs[0]
        job.left = len(job.messages)
        if len(self._nodes) > MAX_LINKS:
            for node in self._nodes.values():
                node.link.close()
            self._nodes.clear()
        for place, address, data in job.messages:
            node = self._nodes.get(address) or self._attach(address)
            node.waiting.append((place, data))
        for node in list(self._nodes.values()):
            self._pump(node)

    def _attach(self, address: str) -> _Node:
        assert self._container is not None and self._connection is not None
        name = f"{self._container_id}|{address}|{next(self._tags)}"
        link = self._container.create_sender(self._connection, address, name=name, options=_Terms(self._properties))
        node = self._nodes[address] = _Node(link)
        return node

    def _pump(self, node: _Node) -> None:
        while node.open and node.waiting and node.link.credit > 0 and len(self._flying) < self._max_in_flight:
            place, data = node.waiting.popleft()
            largest = node.link.remote_max_message_size
            if largest and len(data) > largest and self._jobs:
                # sent all the same, the broker would detach the link, for ever
                job = self._jobs[0]
                job.left -= 1
                job.refused.append((place, TOO_LARGE, f"{len(data)} bytes, and the node takes {largest}"))
                continue
            tag = str(next(self._tags))
            node.link.delivery(tag)
            self._flying[tag] = place
            node.link.stream(data)
            node.link.advance()
        if self._jobs and self._jobs[0].left == 0:
            self._advance()

    def _advance(self) -> None:
        """End the first job when all of it is answered, else send what has become possible."""
        if not self._jobs:
            return
        job = self._jobs[0]
        if job.left:
            if len(self._flying) < self._max_in_flight:
                for node in [each for each in self._nodes.values() if each.waiting]:
                    self._pump(node)
            return
        self._jobs.popleft()
        if job.released:
            _fail(job, LinkLost(f"the broker released {job.released} of {len(job.messages)} messages"))
        elif not job.done.done():
            job.done.set_result(job.refused)
        self._begin()

    def _end(self, reason: str) -> None:
        """Give the jobs up, and the connection with them: late answers must not be taken for those of another job."""
        self._reason = self._reason or reason
        self.usable = False
        for job in self._jobs:
            _fail(job, self._lost(reason))
        self._jobs.clear()
        if self._connection is not None:
            self._connection.close()

    def _take_note(self, condition: proton.Condition | None) -> None:
        self._condition = self._condition or (condition.name if condition is not None else "")

    def _lost(self, reason: str) -> LinkLost:
        ended = self._open and bool(self._flying) and not self._closed and self._condition not in TO_WAIT_FOR
        return LinkLost(reason, ended=ended, sure=ended and self._condition in AT_FAULT)

    def _wait_for_close(self) -> None:
        if self._container is not None:
            self._container.schedule(CLOSE_LIMIT_SECONDS if self._open else 0.0, self)

    def _node_of(self, link: Any) -> _Node | None:
        node = self._nodes.get(link.target.address)
        return node if node is not None and node.link.name == link.name else None


def _fail(job: Job, lost: LinkLost) -> None:
    try:
        job.done.set_exception(lost)
    except InvalidStateError:
        # It has ended already: the connection was lost while it was being submitted.
        return


ENCODING: Final = "amqp:encode-error"
ENDED: Final = "amqp:connection:framing-error"
"""The condition of a message at which the broker ended the connection each time; the description has its own."""
_JOIN_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Run:
    """One connection and its thread."""

    outlet: Outlet
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.outlet.live, name="amqp-sender", daemon=True)
        self.thread.start()


class AmqpSender:
    """Sends to any nodes of one broker. It connects when it is first needed, and anew after a connection was lost.

    ``timeout`` seconds bound one exchange with the broker, connecting included. At most ``max_in_flight`` messages are
    without an answer at any time. Delivery is at least once: after :class:`Unsettled` messages may arrive twice.

    Raises:
        GatewayError: the connection has something that waiting does not repair.
    """

    def __init__(
        self, connection: Connection, *, container_id: str, timeout: float = 30.0, max_in_flight: int = 1000
    ) -> None:
        self._dialer = Dialer(connection, container_id)
        self._container_id = container_id
        self._timeout = timeout
        self._max_in_flight = max_in_flight
        self._properties = option_map(connection.options, "linkproperties")
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._closed = False
        self._suspects = Suspects(_given_up)

    def send(self, messages: Sequence[AmqpMessage]) -> list[MessageRefusal | None]:
        """Send messages, in order for each node, and wait: None for one that was accepted, else why it never will be.

        Messages of other lanes may overtake one at which the broker ends the connection.

        Raises:
            Unsettled: the broker cannot be reached, does not answer in time, or released a message.
        """
        settled: dict[int, MessageRefusal | None] = {}
        encoded: dict[int, tuple[int, str, bytes]] = {}
        for place, message in enumerate(messages):
            try:
                encoded[place] = (place, message.address, encode(message))
            except EncodingError as error:
                settled[place] = _refusal(ENCODING, str(error))
        items = [
            OutgoingMessage(message.lane, hash(encoded[place][1:]) if place in encoded else 0)
            for place, message in enumerate(messages)
        ]
        with self._lock:
            try:
                self._suspects.send(
                    items, lambda places: self._sent([encoded[place] for place in places], settled), settled
                )
            except (Ended, Unsettled) as error:
                raise Unsettled(f"{error}; send again", settled) from error
        return [settled[place] for place in range(len(messages))]

    def close(self) -> None:
        """Close the connection; what is being sent fails with Unsettled."""
        self._closed = True
        run = self._run
        if run is not None:
            run.outlet.close()
            run.thread.join(_JOIN_SECONDS)

    def _sent(self, encoded: list[tuple[int, str, bytes]], settled: dict[int, MessageRefusal | None]) -> None:
        if self._closed:
            raise Unsettled("the sender is closed")
        if self._run is None or not self._run.outlet.usable:
            self._run = _Run(Outlet(self._dialer, self._container_id, self._max_in_flight, self._properties))
        outlet = self._run.outlet
        done: Future[list[tuple[int, str, str]]] = Future()
        job = Job(encoded, done)
        outlet.submit(job)
        try:
            done.result(self._timeout)
        except TimeoutError:
            outlet.close()
            raise Unsettled(f"no answer from the broker within {self._timeout:g} s") from None
        except LinkLost as error:
            raise (Ended(str(error), sure=error.sure) if error.ended else Unsettled(str(error))) from error
        finally:
            settled.update(dict.fromkeys(job.accepted))
            settled.update(
                (place, _refusal(condition, description)) for place, condition, description in list(job.refused)
            )


def _given_up(reason: str) -> MessageRefusal:
    return _refusal(ENDED, reason)


def _refusal(condition: str, description: str) -> MessageRefusal:
    """Name the AMQP condition, and what the broker says about it."""
    return MessageRefusal(f"the broker refuses it: {condition} {description}".strip())
