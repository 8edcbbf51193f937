"""Subscriptions of the CloudEvents Subscriptions API: documents in, checked; documents out, without secrets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from bindings.envelope import STRUCTURED, attribute_part
from bindings.events import encode_event
from bindings.gateways import GatewayError
from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, Unsettled
from registry.errors import Refusal, invalid
from registry.model.attributes import moment_of
from registry.model.attributes import written_time as written
from registry.store.history import OutboxRow

# Rows of the outbox as CloudEvents: those of xRegistry (``events.md``), or of Message Catalog 0.1 (section 5.5).

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


# Filters of subscriptions: the six dialects that every subscription manager has (CloudEvents Subscriptions, 3.2.4).

Filter = Callable[[Mapping[str, str]], bool]
"""Decides by the attributes of an event whether it is wanted."""
MAX_DEPTH: Final = 8
MAX_EXPRESSIONS: Final = 64
MAX_FILTER_TEXT: Final = 1024
_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


class SubscriptionFilterError(ValueError):
    """A filter that is invalid; the message says why."""


def filter_of(given: Any) -> Filter:
    """Read an array of filters, all of which have to hold; one filter may stand for an array of one.

    Raises:
        FilterError: an unknown dialect, a value of another type, or more of anything than the limits allow.
    """
    reading = _Reading()
    return _every(reading.several("filters", given if isinstance(given, list) else [given], 0, least=0))


class _Reading:
    """Reads one array of filters, and counts what is in it."""

    def __init__(self) -> None:
        self._count = 0

    def several(self, name: str, given: Any, depth: int, *, least: int = 1) -> list[Filter]:
        if not isinstance(given, list) or len(given) < least:
            raise SubscriptionFilterError(f"{name} needs to be an array with a filter in it")
        return [self.one(each, depth + 1) for each in given]

    def one(self, given: Any, depth: int) -> Filter:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_EXPRESSIONS:
            raise SubscriptionFilterError(f"there are more than {MAX_EXPRESSIONS} filters, or they are nested too deep")
        if not isinstance(given, dict) or not given:
            raise SubscriptionFilterError("a filter needs to be an object with the name of a dialect")
        return _every([self._dialect(name, value, depth) for name, value in given.items()])

    def _dialect(self, name: str, value: Any, depth: int) -> Filter:
        if name in _COMPARISONS:
            return self._compared(name, value)
        if name == "all":
            return _every(self.several(name, value, depth))
        if name == "any":
            inner = self.several(name, value, depth)
            return lambda attributes: any(each(attributes) for each in inner)
        if name == "not":
            negated = self.one(value, depth + 1)
            return lambda attributes: not negated(attributes)
        known = ", ".join((*_COMPARISONS, "all", "any", "not"))
        raise SubscriptionFilterError(f"{name[:40]!r} is no dialect of filters here; those are {known}")

    def _compared(self, name: str, value: Any) -> Filter:
        if not isinstance(value, dict) or not value:
            raise SubscriptionFilterError(f"{name} needs to be an object of attributes and values")
        self._count += len(value)
        for attribute, text in value.items():
            if not attribute or not isinstance(text, str) or not 0 < len(text) <= MAX_FILTER_TEXT:
                raise SubscriptionFilterError(
                    f"{name} needs a text of 1 to {MAX_FILTER_TEXT} characters for each attribute"
                )
        compare, wanted = _COMPARISONS[name], dict(value)
        return lambda attributes: all(
            attribute in attributes and compare(attributes[attribute], text) for attribute, text in wanted.items()
        )


def _every(filters: list[Filter]) -> Filter:
    if len(filters) == 1:
        return filters[0]
    return lambda attributes: all(each(attributes) for each in filters)


# Which events one subscriber wants, and how and where they are sent.


def everything(_: Mapping[str, str]) -> bool:
    """Want every event."""
    return True


@dataclass(frozen=True, slots=True)
class Wants:
    """Which events a subscriber wants: those of ``kinds`` that match each other member that is not empty.

    ``types`` are those of events, ``entities`` kinds such as ``resource``. ``below`` are xids, which stand for
    themselves and what is below them.
    """

    kinds: tuple[Kind, ...] = ("xregistry",)
    types: frozenset[str] = frozenset()
    filter: Filter = everything
    entities: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    def events(self, row: OutboxRow, sources: Sources) -> list[OutboxEvent]:
        """Return the events of a row that are wanted."""
        if self.entities and row.type.split(".")[2] not in self.entities:
            return []
        if self.below and not any(f"{row.subject}/".startswith(f"{each.rstrip('/')}/") for each in self.below):
            return []
        events = (event_of(row, kind, sources) for kind in self.kinds)
        return [each for each in events if each is not None and self._holds(each.attributes)]

    def _holds(self, attributes: Mapping[str, str]) -> bool:
        return (not self.types or attributes["type"] in self.types) and self.filter(attributes)


@dataclass(frozen=True, slots=True)
class SubscriberDelivery:
    """All about one subscriber. ``sender`` connects at its first use, on the thread that sends.

    Raises (``sender``):
        GatewayError, OSError: a certificate or an address that will not work later either.
    """

    wants: Wants
    composer: EventMessages
    sender: Callable[[], Sender]


PATH: Final = "/subscriptions"
MAX_BYTES: Final = 64 * 2**10
"""Bytes of one document."""
MAX_TYPES: Final = 64
MAX_TEXT: Final = 2048
_KNOWN: Final = frozenset(
    ("id", "source", "types", "filter", "filters", "config", "sink", "protocol", "protocolsettings")
) | {"sinkCredential", "expiration"}
_SECRET: Final = ("secret", "accessToken")
CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    "PLAIN": ("identifier", "secret"),
    "ACCESSTOKEN": ("accessToken",),
}
_OF_TOKENS: Final = frozenset(("accessTokenType", "accessTokenExpiresUtc"))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A document that was checked: ``document`` has what is kept of it, ``expires`` is RFC 3339 in UTC or None."""

    document: Mapping[str, Any]
    wants: Wants
    protocol: str
    sink: str
    settings: Mapping[str, Any]
    credential: Mapping[str, str]
    expires: str | None


def subscription_of(given: Any, sources: Sources) -> Subscription:
    """Read a document; what becomes of its sink is for :mod:`registry.delivery.targets`.

    Raises:
        Refusal: it is invalid; the error names the member.
    """
    if not isinstance(given, dict):
        raise Refusal("bad_request", PATH, error_detail="a subscription needs to be an object")
    unknown = sorted(set(given) - _KNOWN)
    if unknown:
        raise invalid(PATH, unknown[0][:40], "subscriptions here have no such member")
    document = {name: value for name, value in given.items() if name != "id" and value is not None}
    if document.get("config", {}) != {}:
        raise invalid(PATH, "config", "there is nothing to be configured here")
    settings = document.get("protocolsettings", {})
    if not isinstance(settings, dict):
        raise invalid(PATH, "protocolsettings", "it needs to be an object")
    expires = _expiration(document)
    if expires is not None:
        document["expiration"] = expires
    return Subscription(
        document,
        _wants(document, sources),
        _text(document, "protocol"),
        _text(document, "sink"),
        settings,
        _credential(document),
        expires,
    )


def shown(identifier: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a subscription as it is read: with its id, and without secrets."""
    subscription = {"id": identifier, **document}
    if "sinkCredential" in subscription:
        subscription["sinkCredential"] = {
            name: each for name, each in subscription["sinkCredential"].items() if name not in _SECRET
        }
    return subscription


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise invalid(PATH, name, f"it needs to be a text of 1 to {MAX_TEXT} characters")
    return value


def _wants(document: Mapping[str, Any], sources: Sources) -> Wants:
    types = document.get("types", [])
    if not isinstance(types, list) or len(types) > MAX_TYPES or not all(isinstance(each, str) for each in types):
        raise invalid(PATH, "types", f"it needs to be an array of up to {MAX_TYPES} texts")
    if not all(0 < len(each) <= MAX_TEXT for each in types):
        raise invalid(PATH, "types", f"each needs to be a text of 1 to {MAX_TEXT} characters")
    if "filter" in document and "filters" in document:
        raise invalid(PATH, "filter", "it is the older name of filters; give one of them")
    given = document.get("filters", document.get("filter", []))
    try:
        chosen = filter_of(given)
    except SubscriptionFilterError as error:
        raise invalid(PATH, "filters" if "filters" in document else "filter", str(error)) from None
    return Wants(_kinds(document, types, given, sources), frozenset(types), chosen)


def _kinds(document: Mapping[str, Any], types: list[str], filters: Any, sources: Sources) -> tuple[Kind, ...]:
    """Return which kinds of events are asked for: by source, by types, else by what filters demand.

    Events of the Message Catalog come to those who ask for them.
    """
    of_source = _of_source(document, sources)
    if types:
        catalog = [each for each in types if each.startswith(CATALOG)]
        named: list[Kind] = ["xregistry"] if len(catalog) < len(types) else []
        asked: tuple[Kind, ...] = (*named, *(("messagecatalog",) if catalog else ()))
    else:
        asked = ("messagecatalog",) if _demands_catalog(filters, sources.path) else of_source[:1]
    kinds = tuple(kind for kind in asked if kind in of_source)
    if not kinds:
        raise invalid(PATH, "source", "no event of these types and filters has this source")
    return kinds


def _of_source(document: Mapping[str, Any], sources: Sources) -> tuple[Kind, ...]:
    if "source" not in document:
        return "xregistry", "messagecatalog"
    source = _text(document, "source").rstrip("/")
    pairs: tuple[tuple[Kind, str], ...] = (("xregistry", sources.registry), ("messagecatalog", sources.catalog))
    kinds = tuple(kind for kind, url in pairs if url == source)
    if not kinds:
        known = " or ".join(dict.fromkeys(url for _, url in pairs))
        raise invalid(PATH, "source", f"events here come from {known}")
    return kinds


def _demands_catalog(filters: Any, path: str) -> bool:
    for each in filters if isinstance(filters, list) else [filters]:
        for name in ("exact", "prefix"):
            wanted = each.get(name, {})
            if wanted.get("subject", "").startswith(path) or wanted.get("type", "").startswith(CATALOG):
                return True
    return False


def _credential(document: Mapping[str, Any]) -> dict[str, str]:
    given = document.get("sinkCredential")
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(each, str) and len(each) <= 16_384 for each in given.values()):
        raise invalid(PATH, "sinkCredential", "it needs to be an object of texts")
    needed = CREDENTIALS.get(given.get("credentialType", ""))
    if needed is None:
        raise invalid(PATH, "sinkCredential", f"credentialType needs to be {' or '.join(CREDENTIALS)}")
    lacking = [name for name in needed if not given.get(name)]
    unknown = set(given) - {"credentialType", *needed} - (_OF_TOKENS if needed[0] == "accessToken" else set())
    if lacking or unknown:
        raise invalid(PATH, "sinkCredential", f"this credentialType has {', '.join(needed)}")
    if given.get("accessTokenType", "bearer").lower() != "bearer":
        raise invalid(PATH, "sinkCredential", "accessTokenType needs to be bearer")
    if any(not 0x20 <= ord(each) < 0x7F for name in needed for each in given[name]):
        raise invalid(PATH, "sinkCredential", "it has characters other than those of ASCII")
    return dict(given)


def _expiration(document: Mapping[str, Any]) -> str | None:
    if "expiration" not in document:
        return None
    moment = moment_of(_text(document, "expiration"))
    if moment is None or moment <= datetime.now(UTC):
        raise invalid(PATH, "expiration", "it needs to be a timestamp of RFC 3339 in the future")
    return written(moment)


# How events are delivered: what the settings of a registry say of it.


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """To whom events go, and on which terms.

    ``subscribers`` are those of the operator, by id. With ``subscriptions`` writers and administrators subscribe by the
    API; their sinks may be at public hosts, and at ``allowed`` hosts and networks
    (:class:`catalog.documents.connecting.Reach`). ``origin`` is our name in the handshake of webhooks, '' that of the
    host of the registry's URL. ``catalog`` is the path of the face of the Message Catalog, '' without one.
    """

    subscribers: Mapping[str, SubscriberDelivery] = field(default_factory=dict)
    subscriptions: bool = True
    allowed: tuple[str, ...] = ()
    origin: str = ""
    catalog: str = ""
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
