"""Subscriptions (CloudEvents Subscriptions API): events, messages, filters, and validation of documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, Protocol

import jsonschema_rs
import msgspec

from bindings.envelope import STRUCTURED, build_attribute_part
from bindings.events import encode_event
from bindings.gateways import GatewayError
from bindings.parts import BINARY_KIND, Part
from bindings.protocols import Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, Unsettled
from registry.errors import Refusal, invalid_value
from registry.model.attributes import format_time, parse_time
from registry.store.history import OutboxRow

# Rows of the outbox as CloudEvents of xRegistry (``events.md``) or of Message Catalog 0.1 (section 5.5).

Kind = Literal["xregistry", "messagecatalog"]
UPDATED: Final = "io.cloudevents.messagecatalog.updated.v1"
DELETED: Final = "io.cloudevents.messagecatalog.deleted.v1"
CATALOG: Final = "io.cloudevents.messagecatalog."
_ENTITIES: Final = ("messagegroups", "messages", "versions")
_PATHS: Final = ("", "/messagedefinitions", "/versions")
_ACTIONS: Final[Mapping[str, str]] = {"created": UPDATED, "updated": UPDATED, "deleted": DELETED}


@dataclass(frozen=True, slots=True)
class Sources:
    """Values of ``source``: URLs without a final slash.

    ``catalog`` is the base URL of the Message Catalog, whose groups are below ``path``, such as ``/messagecatalog``.
    """

    registry: str
    catalog: str
    path: str = "/messagecatalog"


def sources_of(base: str, catalog: str) -> Sources:
    """Return the sources of a registry at the URL *base*; *catalog* is the path of its Message Catalog, if any.

    The last segment of that path belongs to the catalog's own paths, like ``/messagecatalog`` in its specification.
    """
    parent, mark, last = catalog.rpartition("/")
    return Sources(base, base + parent, mark + last) if last else Sources(base, base)


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """One event. ``number`` is its position in the outbox; events of one ``entity`` (an xid) keep their order.

    ``attributes`` are those of CloudEvents, ``specversion`` first, the same at every attempt; ``data`` is JSON.
    """

    number: int
    entity: str
    at: str
    attributes: Mapping[str, str]
    data: bytes | None


def event_of(row: OutboxRow, kind: Kind, sources: Sources) -> OutboxEvent | None:
    """Return the event of a row; None if the Message Catalog has no such event.

    Both kinds may have the same source, so their ids differ: consumers detect duplicates by source and id.
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
    """Return the Message Catalog's path of an entity, None if it is not a message group or inside one.

    Versions are below ``versions``, where they can be read (section 4.1), although an example in 5.5 has ``version``.
    """
    parts = xid.split("/")[1:]
    if len(parts) % 2 or tuple(parts[0::2]) != _ENTITIES[: len(parts) // 2]:
        return None
    return groups + "".join(f"{plural}/{name}" for plural, name in zip(_PATHS, parts[1::2], strict=False))


# Events as messages of a protocol, by its CloudEvents binding.

Mode = Literal["binary", "structured"]
AddressOf = Callable[[Mapping[str, str]], str]
"""Returns the destination (topic, node, subject or URL) for an event's attributes."""


@dataclass(frozen=True, slots=True)
class EventMessages:
    """Builds the messages of one subscriber. ``given`` parts are added to each.

    A protocol without headers supports only structured mode. The key of a Kafka record is the entity, so that its
    events stay in order within their partition.
    """

    binding: Binding
    address_of: AddressOf
    mode: Mode
    extra_parts: tuple[Part, ...] = ()

    def build_message(self, event: OutboxEvent) -> Outbound:
        """Return the message for an event.

        Raises:
            ValueError: its destination cannot be determined.
        """
        rule, body = self.binding.rule, event.data
        if self.mode == "binary" and self.binding.binary:
            parts = [build_attribute_part(rule, *pair) for pair in event.attributes.items()]
        else:
            parts = [Part(rule.content_type, STRUCTURED.encode())] if self.binding.binary else []
            body = encode_event(event.attributes, event.data)
        if self.binding.sending.key_name:
            parts.append(Part(self.binding.sending.key_name, event.entity.encode("utf-8"), BINARY_KIND))
        address = self.address_of(event.attributes)
        return Outbound(address, (*self.extra_parts, *parts), body, event.entity, event.attributes["id"])


# Delivery results, and sending to brokers.


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of sending one message.

    ``held`` is a failure of this message only, ``away`` of the whole target, which is unavailable. ``gone`` means that
    the target ended the subscription. ``reason`` is one line without secrets. ``pause`` is the minimum number of
    seconds to wait.
    """

    kind: Literal["delivered", "held", "away", "gone"]
    reason: str = ""
    pause: float = 0.0


DELIVERED = DeliveryResult("delivered")


class Sender(Protocol):
    """Sends to one target; used by a single thread."""

    def send_allowance(self) -> tuple[int, float]:
        """Return how many messages may be sent now and, if 0, the seconds until the next one."""
        ...

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Send messages of different entities, and return the result of each. Does not raise."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class BrokerSender:
    """Implements :class:`Sender` with a publisher of the bindings."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def send_allowance(self) -> tuple[int, float]:
        """Return the batch size; there is no rate limit."""
        return 500, 0.0

    def send(self, messages: Sequence[Outbound]) -> list[DeliveryResult]:
        """Send messages; if none was accepted, the target is unavailable."""
        try:
            return [_to_result(answer) for answer in self._publisher.send(messages)]
        except Unsettled as error:
            taken = any(answer is None for answer in error.settled.values())
            left = DeliveryResult("held" if taken else "away", str(error))
            settled = error.settled
            return [_to_result(settled[place]) if place in settled else left for place in range(len(messages))]
        except (GatewayError, OSError) as error:
            return [DeliveryResult("away", str(error))] * len(messages)

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()


def _to_result(answer: MessageRefusal | None) -> DeliveryResult:
    return DELIVERED if answer is None else DeliveryResult("held", answer.reason)


# Limits of delivery.


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of delivery; times are in seconds.

    ``keep`` is how long an event is retried, and ``max_waiting`` how many events may wait for one subscriber: events
    beyond are dropped, logged and counted. At most ``max_held`` events of one subscriber are in memory, including
    blocked ones; when all of them are blocked, delivery to it stops. ``max_pause`` is the longest pause between two
    attempts. ``poll`` is the interval at which writes of other processes are noticed, ``record`` the interval at which
    progress is stored: events delivered since may be sent again after a crash.
    """

    keep: float = 7 * 86_400.0
    max_waiting: int = 1_000_000
    max_held: int = 1_000
    max_pause: float = 60.0
    poll: float = 0.25
    record: float = 0.5
    max_subscriptions: int = 100


# Counters and state of each subscriber.

State = Literal["delivering", "holding", "away", "ended"]


@dataclass(slots=True)
class SubscriberTally:
    """The counts and state of one subscriber.

    ``delivered`` and ``dropped`` count events, ``failed`` attempts; ``pending`` counts undelivered events, including
    unread ones that may not match. ``oldest`` is when the oldest matching one was written (Unix seconds, 0 for none).
    """

    delivered: int = 0
    failed: int = 0
    dropped: int = 0
    pending: int = 0
    oldest: float = 0.0
    state: State = "delivering"


# Filters of subscriptions: the six required dialects (CloudEvents Subscriptions, 3.2.4).

Filter = Callable[[Mapping[str, str]], bool]
"""Whether an event matches, by its attributes."""
MAX_DEPTH: Final = 8
MAX_EXPRESSIONS: Final = 64
_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


class SubscriptionFilterError(ValueError):
    """A filter is invalid; the message says why."""


def parse_filter(document: Any) -> Filter:
    """Parse an array of filters, all of which must match; one filter may replace an array of one.

    Raises:
        SubscriptionFilterError: an unknown dialect, a wrong type, or a limit is exceeded.
    """
    filters = document if isinstance(document, list) else [document]
    if _count_expressions(filters) > MAX_EXPRESSIONS:
        raise SubscriptionFilterError(f"there are more than {MAX_EXPRESSIONS} filters, or they are nested too deep")
    member, fault = _find_fault("Filters", filters)
    if fault:
        raise SubscriptionFilterError(f"{member}: {fault}")
    return _match_all([_compile_filter(each) for each in filters])


def _count_expressions(filters: list[Any], depth: int = 1) -> int:
    """Return the number of expressions of filters, more than allowed if they are nested too deep."""
    if depth > MAX_DEPTH:
        return MAX_EXPRESSIONS + 1
    count = len(filters)
    for each in (one for one in filters if isinstance(one, dict)):
        count += sum(len(each[name]) for name in _COMPARISONS if isinstance(each.get(name), dict))
        count += sum(
            _count_expressions(each[name], depth + 1) for name in ("all", "any") if isinstance(each.get(name), list)
        )
        count += _count_expressions([each["not"]], depth + 1) if "not" in each else 0
    return count


def _compile_filter(item: Mapping[str, Any]) -> Filter:
    return _match_all([_compile_dialect(name, value) for name, value in item.items()])


def _compile_dialect(name: str, value: Any) -> Filter:
    if name == "not":
        negated = _compile_filter(value)
        return lambda attributes: not negated(attributes)
    if name in ("all", "any"):
        inner, combine = [_compile_filter(each) for each in value], all if name == "all" else any
        return lambda attributes: combine(each(attributes) for each in inner)
    compare = _COMPARISONS[name]
    return lambda attributes: all(
        attribute in attributes and compare(attributes[attribute], text) for attribute, text in value.items()
    )


def _match_all(filters: list[Filter]) -> Filter:
    if len(filters) == 1:
        return filters[0]
    return lambda attributes: all(each(attributes) for each in filters)


# Which events a subscriber gets, and how and where they are sent.


def match_everything(_: Mapping[str, str]) -> bool:
    """Match every event."""
    return True


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects the events of a subscriber: those of ``kinds`` that match every other non-empty member.

    ``types`` are event types, ``entities`` kinds such as ``resource``. ``below`` are xids, with all entities below.
    """

    kinds: tuple[Kind, ...] = ("xregistry",)
    types: frozenset[str] = frozenset()
    filter: Filter = match_everything
    entities: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    def matching_events(self, row: OutboxRow, sources: Sources) -> list[OutboxEvent]:
        """Return the events of a row that match."""
        if self.entities and row.type.split(".")[2] not in self.entities:
            return []
        if self.below and not any(f"{row.subject}/".startswith(f"{each.rstrip('/')}/") for each in self.below):
            return []
        events = (event_of(row, kind, sources) for kind in self.kinds)
        return [each for each in events if each is not None and self._matches(each.attributes)]

    def _matches(self, attributes: Mapping[str, str]) -> bool:
        return (not self.types or attributes["type"] in self.types) and self.filter(attributes)


@dataclass(frozen=True, slots=True)
class SubscriberDelivery:
    """How to deliver to one subscriber. ``sender`` connects at its first use, on the sending thread.

    Raises (``sender``):
        GatewayError, OSError: a certificate or an address is permanently unusable.
    """

    event_filter: EventFilter
    composer: EventMessages
    sender: Callable[[], Sender]


PATH: Final = "/subscriptions"
MAX_BYTES: Final = 64 * 2**10
"""Bytes of one document."""
SECRET_MEMBERS: Final = ("secret", "accessToken")
_MAX_FAULT: Final = 400
"""Characters of why a document is invalid, which may have names of its members."""


def subscriptions_document() -> dict[str, Any]:
    """Return the part of the OpenAPI document about subscriptions, whose schemas validate them."""
    document: dict[str, Any] = msgspec.json.decode(
        files("registry.delivery").joinpath("subscriptions.json").read_bytes()
    )
    return document


@cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    document = {**subscriptions_document(), "$ref": f"#/components/schemas/{name}"}
    return jsonschema_rs.Draft202012Validator(document, mask="it")  # values may be secrets


def _find_fault(name: str, value: Any) -> tuple[str, str]:
    """Return the member of *value* that does not comply with a schema, and why; '' for both if all do."""
    error = next(_validator(name).iter_errors(value), None)
    return ("", "") if error is None else ("/".join(map(str, error.instance_path))[:80], error.message[:_MAX_FAULT])


@dataclass(frozen=True, slots=True)
class Subscription:
    """A validated subscription: ``document`` is its stored form, ``expires`` is RFC 3339 in UTC or None."""

    document: Mapping[str, Any]
    event_filter: EventFilter
    protocol: str
    sink: str
    settings: Mapping[str, Any]
    credential: Mapping[str, str]
    expires: str | None


def parse_subscription(given: Any, sources: Sources) -> Subscription:
    """Validate a document, except its sink, which :mod:`registry.delivery.targets` checks.

    Raises:
        Refusal: it is invalid; the error names the member.
    """
    if not isinstance(given, dict):
        raise Refusal("bad_request", PATH, error_detail="a subscription must be a JSON object")
    document = {name: value for name, value in given.items() if name != "id" and value is not None}
    member, fault = _find_fault(
        "Subscription.given", {name: each for name, each in document.items() if name not in ("filter", "filters")}
    )
    if fault:
        raise invalid_value(PATH, member or "/", fault)
    expires = _parse_expiration(document)
    if expires is not None:
        document["expiration"] = expires
    return Subscription(
        document,
        _parse_event_filter(document, sources),
        document["protocol"],
        document["sink"],
        document.get("protocolsettings", {}),
        document.get("sinkCredential", {}),
        expires,
    )


def without_secrets(identifier: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a subscription for clients: with its id, and without secrets."""
    subscription = {"id": identifier, **document}
    if "sinkCredential" in subscription:
        subscription["sinkCredential"] = {
            name: each for name, each in subscription["sinkCredential"].items() if name not in SECRET_MEMBERS
        }
    return subscription


def _parse_event_filter(document: Mapping[str, Any], sources: Sources) -> EventFilter:
    types = document.get("types", [])
    if "filter" in document and "filters" in document:
        raise invalid_value(PATH, "filter", "is the older name of filters; use only one of them")
    given = document.get("filters", document.get("filter", []))
    try:
        chosen = parse_filter(given)
    except SubscriptionFilterError as error:
        raise invalid_value(PATH, "filters" if "filters" in document else "filter", str(error)) from None
    return EventFilter(_requested_kinds(document, types, given, sources), frozenset(types), chosen)


def _requested_kinds(document: Mapping[str, Any], types: list[str], filters: Any, sources: Sources) -> tuple[Kind, ...]:
    """Return the requested kinds of events: by source, by types, else by filters.

    Events of the Message Catalog are sent only if requested.
    """
    of_source = _kinds_of_source(document, sources)
    if types:
        catalog = [each for each in types if each.startswith(CATALOG)]
        named: list[Kind] = ["xregistry"] if len(catalog) < len(types) else []
        asked: tuple[Kind, ...] = (*named, *(("messagecatalog",) if catalog else ()))
    else:
        asked = ("messagecatalog",) if _requires_catalog(filters, sources.path) else of_source[:1]
    kinds = tuple(kind for kind in asked if kind in of_source)
    if not kinds:
        raise invalid_value(PATH, "source", "does not match: no event of these types and filters has this source")
    return kinds


def _kinds_of_source(document: Mapping[str, Any], sources: Sources) -> tuple[Kind, ...]:
    if "source" not in document:
        return "xregistry", "messagecatalog"
    source = document["source"].rstrip("/")
    pairs: tuple[tuple[Kind, str], ...] = (("xregistry", sources.registry), ("messagecatalog", sources.catalog))
    kinds = tuple(kind for kind, url in pairs if url == source)
    if not kinds:
        known = " or ".join(dict.fromkeys(url for _, url in pairs))
        raise invalid_value(PATH, "source", f"must be {known}")
    return kinds


def _requires_catalog(filters: Any, path: str) -> bool:
    for each in filters if isinstance(filters, list) else [filters]:
        for name in ("exact", "prefix"):
            wanted = each.get(name, {})
            if wanted.get("subject", "").startswith(path) or wanted.get("type", "").startswith(CATALOG):
                return True
    return False


def _parse_expiration(document: Mapping[str, Any]) -> str | None:
    if "expiration" not in document:
        return None
    moment = parse_time(document["expiration"])
    if moment is None or moment <= datetime.now(UTC):
        raise invalid_value(PATH, "expiration", "must be an RFC 3339 timestamp in the future")
    return format_time(moment)


# Delivery settings of a registry.


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Subscribers and rules of delivery.

    ``subscribers`` are the operator's, by id. With ``subscriptions`` writers and administrators may subscribe by the
    API; their sinks may be at public hosts, and at ``allowed`` hosts and networks
    (:class:`catalog.documents.connecting.ConnectionPolicy`). ``origin`` is our name in the handshake of webhooks, '' is
    the URL's host. ``catalog`` is the path of the Message Catalog API, '' without one.
    """

    subscribers: Mapping[str, SubscriberDelivery] = field(default_factory=dict)
    subscriptions: bool = True
    allowed: tuple[str, ...] = ()
    origin: str = ""
    catalog: str = ""
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
