"""Rows of the outbox as CloudEvents: those of xRegistry (``events.md``), or of Message Catalog 0.1 (section 5.5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from bindings.envelope import STRUCTURED, attribute_part
from bindings.events import encode_event
from bindings.gateways import GatewayError
from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, Unsettled
from registry.store.outbox import OutboxRow

Kind = Literal["xregistry", "messagecatalog"]
UPDATED: Final = "io.cloudevents.messagecatalog.updated.v1"
DELETED: Final = "io.cloudevents.messagecatalog.deleted.v1"
CATALOG: Final = "io.cloudevents.messagecatalog."
_ENTITIES: Final = ("messagegroups", "messages", "versions")
_PATHS: Final = ("", "/messagedefinitions", "/versions")
_ACTIONS: Final[Mapping[str, str]] = {"created": UPDATED, "updated": UPDATED, "deleted": DELETED}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where events come from: URLs without a slash at their ends.

    ``catalog`` is the base of the Message Catalog, whose groups are below ``path``, such as ``/messagecatalog``.
    """

    registry: str
    catalog: str
    path: str = "/messagecatalog"


def sources_of(base: str, catalog: str) -> Sources:
    """Return the sources of a registry at the URL *base*; *catalog* is where its Message Catalog is below that, if any.

    The last part of that path belongs to the paths of the catalog, as ``/messagecatalog`` does in its specification.
    """
    parent, mark, last = catalog.rpartition("/")
    return Sources(base, base + parent, mark + last) if last else Sources(base, base)


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """One event. ``number`` is its place in the outbox, ``entity`` the xid whose events keep their order.

    ``attributes`` are those of CloudEvents, ``specversion`` first, the same at every try; ``data`` is JSON.
    """

    number: int
    entity: str
    at: str
    attributes: Mapping[str, str]
    data: bytes | None


def event_of(row: OutboxRow, kind: Kind, sources: Sources) -> OutboxEvent | None:
    """Return the event of a row; None for one that the Message Catalog does not know.

    Both kinds may have one source, so their ids differ too: consumers and brokers recognise a repeated event by source
    and id.
    """
    first = {"specversion": "1.0", "id": f"{row.interaction}-{row.number}"}
    if kind == "messagecatalog":
        path, action = _catalog_path(row.subject, sources.path), _ACTIONS.get(row.type.rpartition(".")[2])
        if path is None or action is None:
            return None
        first["id"] += "-catalog"
        attributes = {**first, "source": sources.catalog, "type": action, "subject": path, "time": row.at}
        return OutboxEvent(row.number, row.subject, row.at, attributes, None)
    attributes = {**first, "source": sources.registry, "type": row.type, "subject": row.subject, "time": row.at}
    attributes["xregcorrelationid"] = row.interaction
    if row.data is None:
        return OutboxEvent(row.number, row.subject, row.at, attributes, None)
    attributes["datacontenttype"] = "application/json"
    return OutboxEvent(row.number, row.subject, row.at, attributes, row.data.encode("utf-8"))


def _catalog_path(xid: str, groups: str) -> str | None:
    """Return where the Message Catalog has an entity, None for what is no group of messages or in none.

    Versions are at ``versions``, where they can be read (section 4.1), though an example of 5.5 says ``version``.
    """
    parts = xid.split("/")[1:]
    if len(parts) % 2 or tuple(parts[0::2]) != _ENTITIES[: len(parts) // 2]:
        return None
    return groups + "".join(f"{plural}/{name}" for plural, name in zip(_PATHS, parts[1::2], strict=False))


# Events as messages of one protocol, put together by its CloudEvents binding.

Mode = Literal["binary", "structured"]
AddressOf = Callable[[Mapping[str, str]], str]
"""Makes the topic, node, subject or URL from the attributes of an event."""


@dataclass(frozen=True, slots=True)
class EventMessages:
    """Makes the messages of one subscriber. ``given`` parts are on every one.

    A protocol without headers takes structured mode alone. Where records have keys, the key is the entity, so that its
    events stay in order within their partition.
    """

    binding: Binding
    address_of: AddressOf
    mode: Mode
    given: tuple[Part, ...] = ()

    def message(self, event: OutboxEvent) -> Outbound:
        """Return the message for an event.

        Raises:
            ValueError: no address can be made of it.
        """
        rule, body = self.binding.rule, event.data
        if self.mode == "binary" and self.binding.binary:
            parts = [attribute_part(rule, *pair) for pair in event.attributes.items()]
        else:
            parts = [Part(rule.content_type, STRUCTURED.encode())] if self.binding.binary else []
            body = encode_event(event.attributes, event.data)
        if self.binding.sending.key:
            parts.append(Part(self.binding.sending.key, event.entity.encode("utf-8"), BINARY_KIND))
        address = self.address_of(event.attributes)
        return Outbound(address, (*self.given, *parts), body, event.entity, event.attributes["id"])


# What becomes of messages at a target, and how brokers are sent to.


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of one message.

    ``held`` concerns this message alone, ``away`` the whole target, which takes nothing now. ``gone`` is a target that
    wants nothing more, ever. ``reason`` is one line without secrets. ``pause`` is the least number of seconds that the
    target asks for.
    """

    kind: Literal["delivered", "held", "away", "gone"]
    reason: str = ""
    pause: float = 0.0


DELIVERED = DeliveryResult("delivered")


class Sender(Protocol):
    """Sends to one target; used by one thread."""

    def room(self) -> tuple[int, float]:
        """Return how many messages may be sent now and, if none, in how many seconds one may."""
        ...

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Send messages, no two of one lane, and return what became of each. It does not raise."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class BrokerSender:
    """Keeps :class:`Sender` over a publisher of the bindings."""

    def __init__(self, publisher: Publisher, most: int = 500) -> None:
        self._publisher = publisher
        self._most = most

    def room(self) -> tuple[int, float]:
        """Return how many at a time."""
        return self._most, 0.0

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Send messages; when none was taken, that is an outage."""
        try:
            return [_settled(answer) for answer in self._publisher.send(messages)]
        except Unsettled as error:
            taken = any(answer is None for answer in error.settled.values())
            left = DeliveryResult("held" if taken else "away", str(error))
            settled = error.settled
            return [_settled(settled[place]) if place in settled else left for place in range(len(messages))]
        except (GatewayError, OSError) as error:
            return [DeliveryResult("away", str(error))] * len(messages)

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()


def _settled(answer: MessageRefusal | None) -> DeliveryResult:
    return DELIVERED if answer is None else DeliveryResult("held", answer.reason)


# What delivery may cost, and how long it is tried.


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of delivery; times are in seconds.

    ``keep`` is how long an event is tried, and ``max_waiting`` how many events may wait for one subscriber: what is
    older or more than that is dropped, logged and counted. At most ``max_held`` events of one subscriber are in memory,
    held ones included; when all of them are held, it gets no further. ``max_pause`` is the longest pause between two
    tries. ``poll`` is how soon a write of another process is seen; ``record`` how often it is written down how far
    subscribers have got, so what was delivered since may come again after a crash.
    """

    keep: float = 7 * 86_400.0
    max_waiting: int = 1_000_000
    max_held: int = 1_000
    max_pause: float = 60.0
    poll: float = 0.25
    record: float = 0.5
    max_subscriptions: int = 100


# What is counted of each subscriber, and what its last state was.

State = Literal["delivering", "holding", "away", "ended"]


@dataclass(slots=True)
class SubscriberTally:
    """The counts and state of one subscriber.

    ``delivered`` and ``dropped`` are events, ``failed`` tries; ``pending`` are events that are not delivered yet,
    including those that may turn out not to be wanted. ``oldest`` is when the oldest of the others was written, in
    seconds since 1970, 0 for none.
    """

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    pending: int = 0
    oldest: float = 0.0
    state: State = "delivering"


@dataclass(slots=True)
class SubscriberTallies:
    """Those of all subscribers that there are, by id; any thread may read."""

    _kept: dict[str, SubscriberTally] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, name: str) -> SubscriberTally:
        """Return the tally of one subscriber; one that comes back goes on with its old tally."""
        with self._lock:
            return self._kept.setdefault(name, SubscriberTally())

    def keep(self, names: set[str]) -> None:
        """Forget all others."""
        with self._lock:
            for name in set(self._kept) - names:
                del self._kept[name]

    def all(self) -> dict[str, SubscriberTally]:
        """Return all."""
        with self._lock:
            return dict(self._kept)
