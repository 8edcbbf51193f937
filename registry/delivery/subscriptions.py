"""Subscriptions of the CloudEvents Subscriptions API: documents in, checked; documents out, without secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from registry.delivery.events import (
    CATALOG,
    DeliveryLimits,
    EventMessages,
    Kind,
    OutboxEvent,
    Sender,
    Sources,
    event_of,
)
from registry.errors import Refusal, invalid
from registry.model.attributes import moment_of
from registry.model.attributes import written_time as written
from registry.store.outbox import OutboxRow

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
