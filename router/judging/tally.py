"""The tally of one Arrow batch: counts that reach the driver through an accumulator.

Definitions are counted by the places of their targets in the plan: with thousands of them in an Arrow batch, their
names would make most of what workers send, and of what the driver does between batches.

Every attempt to write a batch has an accumulator of its own, read only when the attempt succeeded, and Spark applies
the updates of each successful task once. (``observe`` would carry them too, but its result never arrives for a
write command, which is what a Kafka batch is: measured with Spark 4.2.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from catalog.values import YEAR_10000
from router.matching.index.columns import Int

if TYPE_CHECKING:
    from catalog.definitions.targets import Target
    from router.routing.destinations import Placed

ROUTED: Final = "routed"
DEAD_LETTER: Final = "dead-letter"
ShadowKey = tuple[str, str, str, str, str, str]
"""The epochs of the active and the shadow catalog, endpoint, result or difference, and what became of records by
both."""
BUCKETS: Final = 64
"""The most arrival times that are counted apart, over the span of the Arrow batch."""


@dataclass(slots=True)
class Tally:
    """Counts of a whole batch: records by (endpoint, outcome, reason), by (endpoint, definition), by arrival in ms.

    ``spilled`` counts dead letters that are kept in files; ``bytes`` are those of keys and bodies as they arrived.
    ``ties`` counts routed records, by endpoint, for which ``match.ambiguous`` decided. ``rows`` are the records as the
    source gave them, of which one may hold several events. ``routes`` has outcomes and their bytes by endpoint and the
    number of their route, as they were judged. The rest is known once they are written: ``delivered`` outcomes by sink
    and endpoint, ``delivered_bytes``, and ``missing``, how many a sink should have and reports not to have. ``shadow``
    is what the shadow catalog would change (:mod:`router.judging.shadow`). ``ids`` counts routed records with the id of
    a schema by definition, id, and what decided by it.
    """

    records: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    definitions: Counter[tuple[str, str]] = field(default_factory=Counter)
    arrivals: Counter[int] = field(default_factory=Counter)
    spilled: int = 0
    bytes: int = 0
    ties: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    routes: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    delivered: Counter[tuple[str, str]] = field(default_factory=Counter)
    delivered_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: int = 0
    shadow: Counter[ShadowKey] = field(default_factory=Counter)
    ids: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Outcomes in the batch."""
        return self.records.total()

    @property
    def dead(self) -> int:
        """Dead letters in the batch."""
        return sum(count for (_, outcome, _), count in self.records.items() if outcome == DEAD_LETTER)

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the same batch."""
        self.records.update(other.records)
        self.definitions.update(other.definitions)
        self.arrivals.update(other.arrivals)
        self.spilled += other.spilled
        self.bytes += other.bytes
        self.ties.update(other.ties)
        self.rows += other.rows
        for (endpoint, route), (count, size) in other.routes.items():
            self.route(endpoint, route, count, size)
        self.delivered.update(other.delivered)
        self.delivered_bytes.update(other.delivered_bytes)
        self.missing += other.missing
        self.shadow.update(other.shadow)
        self.ids.update(other.ids)

    def route(self, endpoint: str, route: int, count: int, size: int) -> None:
        """Add outcomes of an endpoint that a route takes."""
        before, taken = self.routes.get((endpoint, route), (0, 0))
        self.routes[endpoint, route] = (before + count, taken + size)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON, without those by route: other plans number these otherwise."""
        return {
            "records": [[*key, count] for key, count in self.records.items()],
            "definitions": [[*pair, count] for pair, count in self.definitions.items()],
            "arrivals": [[at, count] for at, count in self.arrivals.items()],
            "spilled": self.spilled,
            "bytes": self.bytes,
            "ties": dict(self.ties),
            "rows": self.rows,
            "delivered": [[*key, count, self.delivered_bytes[key]] for key, count in self.delivered.items()],
            "missing": self.missing,
            "shadow": [[*key, count] for key, count in self.shadow.items()],
            "ids": [[*key, count] for key, count in self.ids.items()],
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Tally:
        """Return the tally that :meth:`to_json` wrote."""
        records = Counter({(endpoint, outcome, reason): count for endpoint, outcome, reason, count in form["records"]})
        arrivals = Counter({at: count for at, count in form["arrivals"]})
        definitions = Counter({(endpoint, message): count for endpoint, message, count in form["definitions"]})
        total = cls(records, definitions, arrivals, spilled=form["spilled"], bytes=form["bytes"])
        total.ties.update(form.get("ties", {}))
        total.rows, total.missing = form.get("rows", 0), form.get("missing", 0)
        for sink, endpoint, count, size in form.get("delivered", ()):
            total.delivered[sink, endpoint] = count
            total.delivered_bytes[sink, endpoint] = size
        total.shadow.update(_shadowed(form))
        total.ids.update({(message, name, by): count for message, name, by, count in form.get("ids", ())})
        return total

    def reject(self, counts: Mapping[tuple[str, str], int], reason: str) -> None:
        """Move records of (endpoint, definition) from routed to dead letters: a sink rejected them at write time."""
        for (endpoint, message), count in counts.items():
            self.records[(endpoint, ROUTED, "")] -= count
            self.records[(endpoint, DEAD_LETTER, reason)] += count
            self.definitions[endpoint, message] -= count


def tally(
    placed: Placed,
    reasons: Mapping[int, str],
    tied: Sequence[int],
    order: Int,
    arrivals: Int,
    sizes: Int,
    *,
    ids: Sequence[Sequence[Any]] = (),
    spilled: int = 0,
    size: int = 0,
    rows: int = 0,
) -> str | None:
    """Return the tally of the outcomes in *order* of *rows* records, which took *size* bytes, as text.

    ``reasons`` are those of dead letters by outcome, ``tied`` the routed ones for which ``match.ambiguous`` decided,
    ``sizes`` the bytes of each, ``ids`` the targets of records with the id of a schema, with it, what decided by it,
    and how many they are. None when there is nothing to count.
    """
    if not rows and not len(order):
        return None
    counted = np.zeros(len(placed.numbers), bool)
    counted[order] = True
    dead = [row for row in reasons if counted[row]]
    letters = Counter((endpoint, reasons[row]) for row, endpoint in zip(dead, placed.endpoint_names(dead), strict=True))
    counted[dead] = False
    form: dict[str, Any] = {
        "routed": _routed(placed, np.flatnonzero(counted)),
        "letters": sorted([endpoint, reason, count] for (endpoint, reason), count in letters.items()),
        "arrivals": _histogram(arrivals),
        "spilled": spilled,
        "bytes": size,
        "rows": rows,
        "routes": _by_route(placed, order, sizes),
    }
    if tied:
        form["ties"] = sorted(Counter(placed.endpoint_names(tied)).items())
    if ids:
        form["ids"] = ids
    return msgspec.json.encode(form).decode()


def collect(texts: Iterable[str], targets: Sequence[Target]) -> Tally:
    """Add up the tallies of all Arrow batches of one batch; *targets* are those of the plan that judged it."""
    total = Tally()
    routed: dict[str, tuple[list[int], list[int]]] = {}
    for text in texts:
        form: dict[str, Any] = msgspec.json.decode(text)
        for endpoint, numbers, counts in form.get("routed", ()):
            total.records[(endpoint, ROUTED, "")] += sum(counts)
            known = routed.setdefault(endpoint, ([], []))
            known[0].extend(numbers)
            known[1].extend(counts)
        for endpoint, reason, count in form.get("letters", ()):
            total.records[(endpoint, DEAD_LETTER, reason)] += count
        for endpoint, count in form.get("ties", ()):
            total.ties[endpoint] += count
        for number, name, by, count in form.get("ids", ()):
            total.ids[targets[number].xid, name, by] += count
        for endpoint, route, count, size in form.get("routes", ()):
            total.route(endpoint, route, count, size)
        total.shadow.update(_shadowed(form))
        total.rows += form.get("rows", 0)
        total.spilled += form["spilled"]
        total.bytes += form["bytes"]
        total.arrivals.update({int(at): count for at, count in form["arrivals"]})
    for endpoint, (numbers, counts) in routed.items():
        distinct, places = np.unique(np.array(numbers, np.int64), return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, places, np.array(counts, np.int64))
        for number, count in zip(distinct.tolist(), sums.tolist(), strict=True):
            total.definitions[endpoint, targets[number].xid] += count
    return total


def _shadowed(form: Mapping[str, Any]) -> dict[ShadowKey, int]:
    lines: list[list[Any]] = form.get("shadow", [])
    return {
        (before, after, endpoint, what, was, now): count for before, after, endpoint, what, was, now, count in lines
    }


def _routed(placed: Placed, rows: Int) -> list[list[Any]]:
    """Return for each endpoint the targets of these rows, and how many have each."""
    counts = np.bincount(placed.numbers[rows], minlength=len(placed.pairs.targets))
    there = np.flatnonzero(counts)
    endpoints = placed.pairs.endpoints[there]
    there = there[np.argsort(endpoints, kind="stable")]
    endpoints = placed.pairs.endpoints[there]
    bounds = np.flatnonzero(np.diff(endpoints)) + 1
    return [
        [placed.pairs.names[endpoints_of[0]], placed.pairs.targets[own].tolist(), counts[own].tolist()]
        for endpoints_of, own in zip(np.split(endpoints, bounds), np.split(there, bounds), strict=True)
        if len(own)
    ]


def _by_route(placed: Placed, order: Int, sizes: Int) -> list[list[Any]]:
    """Return endpoint, route, outcomes and bytes of them, for each that there is."""
    if not len(order):
        return []
    routes = placed.routes.to_numpy(zero_copy_only=False)[order]
    low = int(routes.min())
    width = int(routes.max()) - low + 1
    codes = placed.pairs.endpoints[placed.numbers[order]] * width + (routes - low)
    counts = np.bincount(codes)
    taken = np.bincount(codes, weights=sizes[order])
    return sorted(
        [placed.pairs.names[code // width], low + code % width, int(counts[code]), int(taken[code])]
        for code in np.flatnonzero(counts).tolist()
    )


def _histogram(arrivals: Int) -> list[list[int]]:
    # A time outside of the calendar says nothing about latency.
    known = arrivals[(arrivals > 0) & (arrivals < YEAR_10000)]
    if not len(known):
        return []
    low = int(known.min())
    step = max(1, (int(known.max()) - low) // BUCKETS)
    counts = np.bincount((known - low) // step)
    return [[low + value * step, int(counts[value])] for value in np.flatnonzero(counts).tolist()]
