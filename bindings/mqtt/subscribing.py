"""What is subscribed to, which endpoint a message is for, and how the broker's subscriptions are brought in line."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bindings.backoff import Backoff
from bindings.gateways import Subscription
from bindings.mqtt.filters import SubscribeRequest, matches, requests_of, uncovered
from bindings.mqtt.link import Link
from bindings.mqtt.messages import Delivery

_CACHED_TOPICS: Final = 10_000
_KEPT_TABLES: Final = 16
_OPEN_COPIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Taking:
    """What is taken of one topic: for which endpoint, and by which of the broker's subscriptions."""

    endpoint: str
    filters: tuple[str, ...]


class Table:
    """The subscriptions of one moment, in the order of settings.

    Endpoints whose filters take the same topic share a channel: its messages are the first one's. ``filters`` is what
    the broker is asked for: a filter that another one covers is left out, so that a message comes once. ``requests``
    are the same with their options.

    Raises:
        GatewayError: as :func:`bindings.mqtt.filters.requests_of`.
    """

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        requests = requests_of(subscriptions)
        self._pairs = [(request.filter, each.endpoint) for request, each in zip(requests, subscriptions, strict=True)]
        self.filters = tuple(uncovered(request.filter for request in requests))
        by_filter = {request.filter: request for request in requests}
        self.requests = tuple(by_filter[filter_] for filter_ in self.filters)
        self._cache: OrderedDict[str, Taking | None] = OrderedDict()

    def find(self, topic: str) -> Taking | None:
        """Return what is taken of a topic; None when nothing is."""
        if topic in self._cache:
            return self._cache[topic]
        endpoint = next((endpoint for filter_, endpoint in self._pairs if matches(filter_, topic)), None)
        filters = tuple(filter_ for filter_ in self.filters if matches(filter_, topic))
        taking = None if endpoint is None else Taking(endpoint, filters)
        if len(self._cache) >= _CACHED_TOPICS:
            self._cache.popitem(last=False)
        self._cache[topic] = taking
        return taking


class Tables:
    """The table in force, and those before it: a broker may still deliver what it queued under them."""

    def __init__(self, table: Table) -> None:
        self._tables = [table]

    @property
    def current(self) -> Table:
        """The table in force."""
        return self._tables[0]

    def replace(self, table: Table) -> None:
        """Put another table in force."""
        self._tables = [table, *self._tables[: _KEPT_TABLES - 1]]

    def find(self, topic: str) -> Taking | None:
        """Return what is taken of a topic by the newest table that takes it."""
        for table in self._tables:
            taking = table.find(topic)
            if taking is not None:
                return taking
        return None


class Copies:
    """Tells the copies of one message apart from messages that look alike.

    Overlapping subscriptions bring a message once for each, or once for all; every delivery names its subscriptions
    (MQTT 5 section 3.3.4). Among deliveries that look alike, there are as many messages as the most that one
    subscription brought. Where the broker names none (3.1.1) each delivery counts as a message, which may come twice
    but is never lost.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[object, ...], dict[int, int]] = OrderedDict()

    def clear(self) -> None:
        """Forget everything: the connection or the subscriptions changed, so copies may come again, or no more."""
        self._open.clear()

    def is_repeat(self, delivery: Delivery, overlapping: int) -> bool:
        """Tell whether this delivery is of a message that another one brought already."""
        if overlapping < 2 or not delivery.subscriptions:
            return False
        # What is left of the expiry differs between copies that a broker sent at different times.
        lasting = tuple(part for part in delivery.properties if part.key != "message_expiry_interval")
        key = (delivery.topic, delivery.payload, delivery.retain, lasting)
        brought = self._open.setdefault(key, {})
        stored = max(brought.values(), default=0)
        for number in delivery.subscriptions:
            brought[number] = brought.get(number, 0) + 1
        repeat = max(brought.values()) == stored
        if len(brought) >= overlapping and len(set(brought.values())) == 1:
            del self._open[key]  # every subscription brought its share
        elif len(self._open) > _OPEN_COPIES:
            self._open.popitem(last=False)
        return repeat


@dataclass(slots=True)
class _Pending:
    """A SUBSCRIBE without its answer, or with ``adds`` False an UNSUBSCRIBE."""

    request: SubscribeRequest
    adds: bool


@dataclass(slots=True)
class Subscriber:
    """Brings the broker's subscriptions of our session in line with the wanted ones, one link after the other.

    A subscription that the broker refuses is asked for again, at growing intervals; the others work meanwhile.
    ``trouble`` names one that is refused, and why.
    """

    wanted: tuple[SubscribeRequest, ...] = ()
    trouble: str = ""
    _granted: dict[str, SubscribeRequest] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _backoff: Backoff = field(default_factory=lambda: Backoff(1.0, 60.0))
    _again: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether the broker granted all that is wanted, and nothing else is under way."""
        return not self._pending and all(self._granted.get(each.filter) == each for each in self.wanted)

    def begin(self, session_present: bool) -> None:
        """Start on a new link; without its old session the broker knows no subscription of ours."""
        self._pending.clear()
        self._refused.clear()
        self._again = 0.0
        if not session_present:
            self._granted.clear()

    def advance(self, link: Link) -> None:
        """Send what brings the broker nearer to what is wanted."""
        busy = {pending.request.filter for pending in self._pending.values()}
        if self._refused and time.monotonic() >= self._again:
            self._refused.clear()
        for each in self.wanted:
            # Another SUBSCRIBE for a filter replaces the subscription, with its options.
            if self._granted.get(each.filter) != each and each.filter not in (*busy, *self._refused):
                number = self._numbers.setdefault(each.filter, len(self._numbers) + 1)
                self._sent(link.subscribe(each, number), _Pending(each, adds=True))
        for filter_ in set(self._granted).difference((each.filter for each in self.wanted), busy):
            self._sent(link.unsubscribe(filter_), _Pending(self._granted[filter_], adds=False))
        # Other threads read it, so it is made here, on the one that changes what it is made of.
        refused = next((each.filter for each in self.wanted if each.filter in self._refused), None)
        fault = self._refused.get(refused, "") if refused is not None else ""
        self.trouble = f"the broker refuses the subscription to {refused}: {fault}" if fault else ""

    def subscribed(self, mid: int, fault: str) -> None:
        """Take the answer to a SUBSCRIBE."""
        pending = self._pending.pop(mid, None)
        if pending is None:
            return
        if fault:
            if not self._refused:
                self._again = time.monotonic() + self._backoff.pause()
            self._refused[pending.request.filter] = fault
        else:
            self._granted[pending.request.filter] = pending.request
            if self.complete:
                self._backoff.reset()

    def unsubscribed(self, mid: int) -> None:
        """Take the answer to an UNSUBSCRIBE."""
        pending = self._pending.pop(mid, None)
        if pending is not None:
            self._granted.pop(pending.request.filter, None)

    def _sent(self, mid: int | None, pending: _Pending) -> None:
        if mid is not None:
            self._pending[mid] = pending
