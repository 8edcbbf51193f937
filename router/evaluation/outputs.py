"""Build the columns for sinks from outcomes, and the tally of an Arrow batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.envelope import attribute_of_key
from bindings.events import typed_names
from bindings.kafka.record_columns import ATTRIBUTE, CONTENT_TYPE
from bindings.protocols import BINDINGS
from catalog.values import YEAR_10000
from router.evaluation.forwarding import (
    HEADERS,
    PARTITION_KEY,
    PartialColumn,
    RelationColumns,
    binary_attributes,
    binary_typed_names,
    forwarded_header_name,
    forwarded_headers,
    json_attributes,
    json_data,
    json_typed_names,
    merge_columns,
    partition_key_of,
    partition_keys,
)
from router.matching.index.classes import IntArray
from router.matching.matcher import Matcher, MatchOutcomes
from router.matching.record_columns import EVENT_MEDIA, NO_SOURCE, SCHEMA_ID, ExactReading, RecordColumns
from router.routing import Destinations, Routes, SizeLimits, row_sizes

if TYPE_CHECKING:
    from catalog.definitions.constraints import MatchCandidate
    from router.routing import RowDestinations

# The tally of an Arrow batch reaches the driver through an accumulator.
#
# Definitions are counted by their numbers in the plan: with thousands of them, their names would be most of a tally.
#
# The accumulator is reset for each attempt and read only if it succeeds; Spark applies the updates of each successful
# task once. (``observe`` never returns a result for a write command such as a Kafka batch: tested with Spark 4.2.)

ROUTED: Final = "routed"
DEAD_LETTER: Final = "dead-letter"
EMPTY: Final = "empty"
"""The outcome of an empty batch of events: evaluated, but written nowhere."""
ShadowKey = tuple[str, str, str, str, str, str]
"""The epochs of the active and the shadow catalog, endpoint, result or difference, and both outcomes."""
MAX_ARRIVAL_BUCKETS: Final = 64
"""Maximum number of arrival times counted separately in an Arrow batch."""


@dataclass(slots=True)
class Tally:
    """Counts of a whole batch: records by (endpoint, outcome, reason), by (endpoint, definition), by arrival in ms.

    ``rows`` counts source records, each of which may have several events; ``bytes`` their keys and bodies. ``spilled``
    counts dead letters stored in files. ``ties`` counts the routed records by endpoint that ``match.ambiguous``
    decided. ``ids`` counts routed records with a schema id by definition, id, and what it decided. ``routes`` has
    outcomes and bytes by endpoint and route number. ``shadow`` has what the shadow catalog would change. Known only
    after the write: ``delivered`` outcomes by sink and endpoint, ``delivered_bytes``, and ``missing``, the outcomes
    that a sink should have but does not report.
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
        """Number of outcomes in the batch, including empty batches of events."""
        return self.records.total()

    @property
    def dead_letters(self) -> int:
        """Number of dead letters in the batch."""
        return sum(count for (_, outcome, _), count in self.records.items() if outcome == DEAD_LETTER)

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the same batch."""
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for (endpoint, route), (count, size) in other.routes.items():
            self.add_route(endpoint, route, count, size)

    def add_route(self, endpoint: str, route: int, count: int, size: int) -> None:
        """Add outcomes of an endpoint on a route."""
        known, bytes_ = self.routes.get((endpoint, route), (0, 0))
        self.routes[endpoint, route] = (known + count, bytes_ + size)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON, without ``routes``: route numbers belong to a plan."""
        lists = {name: [[*_members(key), count] for key, count in getattr(self, name).items()] for name in _LISTED}
        delivered = [[*key, count, self.delivered_bytes[key]] for key, count in self.delivered.items()]
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {**lists, **numbers, "ties": dict(self.ties), "delivered": delivered}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Tally:
        """Return the tally that :meth:`to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it did not.
        """
        total = cls()
        for name in _NUMBERS:
            setattr(total, name, int(form[name]))
        for name in _LISTED:
            for *key, count in form[name]:
                getattr(total, name)[tuple(key) if len(key) > 1 else key[0]] = int(count)
        total.ties.update(form["ties"])
        for *key, count, size in form["delivered"]:
            total.delivered[tuple(key)], total.delivered_bytes[tuple(key)] = int(count), int(size)
        return total

    def reject(self, counts: Mapping[tuple[str, str], int], reason: str) -> None:
        """Move records of (endpoint, definition) from routed to dead letters: a sink rejected them."""
        for (endpoint, message), count in counts.items():
            self.records[(endpoint, ROUTED, "")] -= count
            self.records[(endpoint, DEAD_LETTER, reason)] += count
            self.definitions[endpoint, message] -= count


_LISTED: Final = ("records", "definitions", "arrivals", "shadow", "ids")
_COUNTERS: Final = (*_LISTED, "ties", "delivered", "delivered_bytes")
_NUMBERS: Final = ("spilled", "bytes", "rows", "missing")


def _members(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def encode_tally(
    destinations: RowDestinations,
    reasons: Mapping[int, str],
    tied: Sequence[int],
    order: IntArray,
    arrivals: IntArray,
    sizes: IntArray,
    *,
    ids: Sequence[Sequence[Any]] = (),
    spilled: int = 0,
    size: int = 0,
    rows: int = 0,
    empty: Mapping[str, int] | None = None,
) -> str | None:
    """Return the tally of the outcomes in *order*, of *rows* records with *size* bytes, as JSON; None if empty.

    ``reasons`` has the reason of each dead letter, ``tied`` the routed outcomes that ``match.ambiguous`` decided,
    ``sizes`` the bytes of each outcome, ``empty`` the empty batches of events by endpoint, ``ids`` counts by target,
    schema id, and what the id decided.
    """
    if not rows and not len(order):
        return None
    is_routed = np.zeros(len(destinations.pair_numbers), bool)
    is_routed[order] = True
    dead = [row for row in reasons if is_routed[row]]
    letters = Counter(zip(destinations.endpoints_of(dead), [reasons[row] for row in dead], strict=True))
    is_routed[dead] = False
    form: dict[str, Any] = {
        "routed": _count_routed(destinations, np.flatnonzero(is_routed)),
        "letters": sorted([endpoint, reason, count] for (endpoint, reason), count in letters.items()),
        "arrivals": _count_arrivals(arrivals),
        "spilled": spilled,
        "bytes": size,
        "rows": rows,
        "routes": _count_by_route(destinations, order, sizes),
    }
    if tied:
        form["ties"] = sorted(Counter(destinations.endpoints_of(tied)).items())
    if empty:
        form["empty"] = sorted(empty.items())
    if ids:
        form["ids"] = ids
    return msgspec.json.encode(form).decode()


def sum_tallies(texts: Iterable[str], targets: Sequence[MatchCandidate]) -> Tally:
    """Add up the tallies of the Arrow batches of one batch; *targets* are those of its plan."""
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
        for endpoint, count in form.get("empty", ()):
            total.records[(endpoint, EMPTY, "")] += count
        for number, name, by, count in form.get("ids", ()):
            total.ids[targets[number].xid, name, by] += count
        for endpoint, route, count, size in form.get("routes", ()):
            total.add_route(endpoint, route, count, size)
        total.shadow.update(_shadow_counts(form))
        total.rows += form.get("rows", 0)
        total.spilled += form["spilled"]
        total.bytes += form["bytes"]
        total.arrivals.update({int(at): count for at, count in form["arrivals"]})
    for endpoint, (numbers, counts) in routed.items():
        distinct, inverse = np.unique(np.array(numbers, np.int64), return_inverse=True)
        sums = np.zeros(len(distinct), np.int64)
        np.add.at(sums, inverse, np.array(counts, np.int64))
        for number, count in zip(distinct.tolist(), sums.tolist(), strict=True):
            total.definitions[endpoint, targets[number].xid] += count
    return total


def _shadow_counts(form: Mapping[str, Any]) -> dict[ShadowKey, int]:
    lines: list[list[Any]] = form.get("shadow", [])
    return {
        (before, after, endpoint, what, was, now): count for before, after, endpoint, what, was, now, count in lines
    }


def _count_routed(destinations: RowDestinations, rows: IntArray) -> list[list[Any]]:
    """Count the targets of these rows, by endpoint."""
    pairs = destinations.pairs
    counts = np.bincount(destinations.pair_numbers[rows], minlength=len(pairs.targets))
    used = np.flatnonzero(counts)
    used = used[np.argsort(pairs.endpoints[used], kind="stable")]
    endpoints = pairs.endpoints[used]
    bounds = np.flatnonzero(np.diff(endpoints)) + 1
    return [
        [pairs.endpoint_names[same[0]], pairs.targets[own].tolist(), counts[own].tolist()]
        for same, own in zip(np.split(endpoints, bounds), np.split(used, bounds), strict=True)
        if len(own)
    ]


def _count_by_route(destinations: RowDestinations, order: IntArray, sizes: IntArray) -> list[list[Any]]:
    """Count outcomes and their bytes, by endpoint and route."""
    if not len(order):
        return []
    routes = destinations.routes.to_numpy(zero_copy_only=False)[order]
    low = int(routes.min())
    width = int(routes.max()) - low + 1
    codes = destinations.pairs.endpoints[destinations.pair_numbers[order]] * width + (routes - low)
    counts = np.bincount(codes)
    bytes_ = np.bincount(codes, weights=sizes[order])
    return sorted(
        [destinations.pairs.endpoint_names[code // width], low + code % width, int(counts[code]), int(bytes_[code])]
        for code in np.flatnonzero(counts).tolist()
    )


def _count_arrivals(arrivals: IntArray) -> list[list[int]]:
    # A time out of range says nothing about latency.
    known = arrivals[(arrivals > 0) & (arrivals < YEAR_10000)]
    if not len(known):
        return []
    low = int(known.min())
    step = max(1, (int(known.max()) - low) // MAX_ARRIVAL_BUCKETS)
    counts = np.bincount((known - low) // step)
    return [[low + value * step, int(counts[value])] for value in np.flatnonzero(counts).tolist()]


# The columns of outcomes.
#
# An input row has several outcomes if it is a CloudEvents batch. Bodies and headers of unchanged records are not among
# the columns: the source row has them. Attributes have the names of Kafka's binary mode.

_RULES: Final = tuple(binding.rule for binding in BINDINGS.values())
Pairs = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class RoutedOutcomes:
    """The outcomes of a batch with their routes.

    ``columns`` has the columns of :func:`output_type`, except the context, which is costly and not always needed.
    ``order`` has the rows that are outcomes, in the order of their input rows, ``offsets`` the range of each input row
    in it. ``tally`` is the tally as JSON, None if empty.
    """

    outcomes: MatchOutcomes
    columns: dict[str, pa.Array]
    order: IntArray
    offsets: Any
    tally: str | None

    def column(self, name: str) -> pa.Array:
        """Return a column by name, including the context."""
        return self.outcomes.contexts if name == "context" else self.columns[name]

    @property
    def source_rows(self) -> IntArray:
        """The input row of each row, negative if it is no outcome."""
        return self.outcomes.facts.sources


class OutputBuilder:
    """Builds the outcome columns of batches for one plan."""

    def __init__(
        self, matcher: Matcher, routes: Routes, limits: SizeLimits, relations: RelationColumns | None = None
    ) -> None:
        self._limits = limits
        self._channels = matcher.channels
        self._relations = relations
        self.destinations = Destinations(matcher, routes, limits)
        self._xids = pa.array([target.xid for target in matcher.targets], pa.string())
        self._ids = matcher.ids
        self.outcome_type = output_type(routes, relations, ids=matcher.ids.finds_any)
        self.used_attributes = routes.used_attributes
        """The CloudEvents attributes that routes and topics use."""

    def route_outcomes(self, outcomes: MatchOutcomes, arrivals: IntArray, sizes: IntArray) -> RoutedOutcomes:
        """Return the outcomes of a batch with their routes.

        ``arrivals`` has the arrival of each input row in milliseconds, ``sizes`` the bytes of its key and body.
        """
        facts = outcomes.facts
        count = facts.columns.rows
        bytes_ = row_sizes(facts, sizes)
        destinations = self.destinations.assign_rows(outcomes, bytes_)
        spilled = self._limits.find_spilled(outcomes, bytes_, destinations.routes)
        tied = [row for row in outcomes.ties if row not in outcomes.reasons]
        messages = self._xids.take(pa.array(outcomes.winners, mask=outcomes.winners < 0))
        columns: dict[str, pa.Array] = {
            "message": messages,
            "endpoint": destinations.endpoints,
            "reason": sparse_column(outcomes.reasons, count, pa.string()),
            "detail": sparse_column(outcomes.details, count, pa.string()),
            "nearest": sparse_column(_encode_explanations(outcomes.nearest), count, pa.string()),
            "ambiguous": sparse_column({row: outcomes.ties[row] for row in tied}, count, pa.string()),
            "route": destinations.routes,
            "spilled": sparse_column(dict.fromkeys(spilled, True), count, pa.bool_()),
            **destinations.topics,
            **_codec_columns(outcomes),
            **(self._relations.build(outcomes) if self._relations is not None else {}),
            **({SCHEMA_ID: self._ids.ids_of_rows(facts)} if self._ids.finds_any else {}),
        }
        order, offsets = order_by_source(facts, len(sizes))
        arrived = arrivals[facts.sources[order]]
        ids, empty = self._ids.count_routed(facts, outcomes.winners, order), self._count_empty_batches(facts)
        more: dict[str, Any] = {"spilled": len(spilled), "size": int(sizes.sum()), "rows": len(sizes), "empty": empty}
        tally = encode_tally(destinations, outcomes.reasons, tied, order, arrived, bytes_, ids=ids, **more)
        return RoutedOutcomes(outcomes, columns, order, offsets, tally)

    def _count_empty_batches(self, facts: RecordColumns) -> Counter[str]:
        """Count the empty batches of events by endpoint, "" if unknown."""
        names = (self._channels[each].endpoint_of(-1) if each >= 0 else None for each in facts.empty)
        return Counter(name or "" for name in names)


def output_type(routes: Routes, relations: RelationColumns | None = None, *, ids: bool = False) -> pa.StructType:
    """Return the struct type of an outcome; it has a topic per Kafka sink, relations, and with *ids* the schema id."""
    fields: list[tuple[str, pa.DataType]] = [
        ("message", pa.string()),
        ("endpoint", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("nearest", pa.string()),
        ("ambiguous", pa.string()),
        ("context", pa.map_(pa.string(), pa.string())),
        ("attributes", HEADERS),
        ("typed", pa.string()),
        ("forwarded", HEADERS),
        ("data", pa.binary()),
        ("batch_event", pa.binary()),
        ("replaced", pa.bool_()),
        ("position_in_batch", pa.int32()),
        ("route", pa.int32()),
        ("spilled", pa.bool_()),
        ("key", pa.binary()),
    ]
    fields += [(name, pa.string()) for name in routes.topic_fields]
    fields += relations.fields if relations is not None else []
    fields += [(SCHEMA_ID, pa.string())] if ids else []
    return pa.struct(fields)


def order_by_source(facts: RecordColumns, rows: int) -> tuple[IntArray, Any]:
    """Return the rows in the order of their input rows, and the offsets of each input row's range."""
    real = np.flatnonzero(facts.sources != NO_SOURCE)
    order = real[np.argsort(facts.sources[real], kind="stable")]
    counts = np.bincount(facts.sources[real], minlength=rows)
    return order, np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def sparse_column(values: Mapping[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column with *values* by row, and null elsewhere."""
    return merge_columns(rows, kind, [_partial_column(values, kind)])


def _partial_column(values: Mapping[int, Any], kind: pa.DataType) -> PartialColumn:
    return np.fromiter(values, np.int64, len(values)), pa.array(list(values.values()), kind)


def _encode_explanations(nearest: Mapping[int, list[dict[str, Any]]]) -> dict[int, str]:
    """Return explanations by row as JSON texts; an explanation of several rows is encoded once."""
    texts = {id(each): json.dumps(each) for each in {id(each): each for each in nearest.values()}.values()}
    return {row: texts[id(each)] for row, each in nearest.items()}


def _codec_columns(outcomes: MatchOutcomes) -> dict[str, pa.Array]:
    """Return the columns of rows whose source row does not have the event: read by the codec, or mapped."""
    rows = outcomes.facts.columns.rows
    mapped = set(outcomes.mapped.tolist())
    attributes: dict[int, Pairs] = {}
    forwarded: dict[int, Pairs] = {}
    data: dict[int, bytes | None] = {}
    batch_events: dict[int, bytes | None] = {}
    positions: dict[int, int] = {}
    keys: dict[int, bytes | None] = {}
    typed: dict[int, str] = {}
    for row, reading in outcomes.facts.readings.items():
        if reading.place >= 0:
            positions[row] = reading.place
            data[row] = reading.body
        if outcomes.winners[row] < 0:
            if (key := partition_key_of(reading)) is not None:
                keys[row] = key
            if reading.place >= 0:
                # The dead letter of a batch of events has this event only.
                forwarded[row] = _batch_event_headers(reading)
            continue
        forwarded[row] = _forwarded_headers(reading, int(outcomes.facts.protocols[row]))
        if row not in mapped:
            attributes[row] = _kafka_attributes(reading)
            if (key := partition_key_of(reading)) is not None:
                keys[row] = key
            if (names := typed_names(reading.envelope.attributes)) is not None:
                typed[row] = names
        if reading.envelope.mode == "structured":
            data[row] = reading.envelope.data
            if reading.place >= 0:
                # A sink may still reject it; extracting it then would parse the whole batch for each event.
                batch_events[row] = reading.body
    by_columns = outcomes.facts.settled
    datas = [_partial_column(data, pa.binary()), *(json_data(outcomes, each) for each in by_columns)]
    replaced = np.zeros(rows, bool)
    replaced[np.concatenate([numbers for numbers, _ in datas])] = True
    headers = [_header_column(forwarded), *(forwarded_headers(outcomes, each) for each in by_columns)]
    return {
        "attributes": _attribute_column(outcomes, attributes),
        "typed": _typed_column(outcomes, typed),
        "forwarded": merge_columns(rows, HEADERS, headers),
        "data": merge_columns(rows, pa.binary(), datas),
        "batch_event": sparse_column(batch_events, rows, pa.binary()),
        "replaced": pa.array(replaced),
        "position_in_batch": sparse_column(positions, rows, pa.int32()),
        "key": _key_column(outcomes, keys),
    }


def _kafka_attributes(reading: ExactReading) -> Pairs:
    attributes = reading.envelope.attributes
    pairs: Pairs = [(f"ce_{name}", text.encode()) for name, text in attributes.items() if name != "datacontenttype"]
    content = attributes.get("datacontenttype")
    return pairs if content is None else [*pairs, (CONTENT_TYPE, content.encode())]


def _record_headers(reading: ExactReading) -> Pairs:
    return [
        (part.key.removeprefix("headers."), part.value) for part in reading.parts if part.key.startswith("headers.")
    ]


def _batch_event_headers(reading: ExactReading) -> Pairs:
    """Return the headers of one event of a batch: the message's headers with the event's media type."""
    headers = _record_headers(reading)
    if not any(name.lower() == CONTENT_TYPE for name, _ in headers):
        headers.append((CONTENT_TYPE, EVENT_MEDIA))
    return [(name, EVENT_MEDIA if name.lower() == CONTENT_TYPE else value) for name, value in headers]


def _forwarded_headers(reading: ExactReading, protocol: int) -> Pairs:
    """Return the headers that are not CloudEvents attributes, in order."""
    rule = _RULES[protocol]
    pairs: Pairs = []
    for part in reading.parts:
        name = forwarded_header_name(part.key)
        if name is not None and not (reading.envelope.is_event and attribute_of_key(part.key, rule) is not None):
            pairs.append((name, part.value))
    return pairs


def _attribute_column(outcomes: MatchOutcomes, exact: Mapping[int, Pairs]) -> pa.Array:
    """Return the attributes of mapped rows, of rows that the codec read, and of rows whose parts are columns."""
    mapped = outcomes.attributes
    parts = [_header_column(exact)]
    for each in outcomes.facts.settled:
        parts += (binary_attributes(outcomes, each), json_attributes(outcomes, each))
    if len(mapped):
        names = mapped.values.field("key")
        kafka = pc.if_else(
            pc.equal(names, "datacontenttype"), CONTENT_TYPE, pc.binary_join_element_wise(ATTRIBUTE, names, "")
        )
        entries = pa.StructArray.from_arrays([kafka, mapped.values.field("value")], names=["key", "value"])
        parts.append((outcomes.mapped, pa.ListArray.from_arrays(mapped.offsets, entries).cast(HEADERS)))
    return merge_columns(outcomes.facts.columns.rows, HEADERS, parts)


def _typed_column(outcomes: MatchOutcomes, exact: Mapping[int, str]) -> pa.StringArray:
    """Return :func:`bindings.events.typed_names` of each event; null if all attributes are strings."""
    parts = [_partial_column(exact, pa.string())]
    for each in outcomes.facts.settled:
        parts += (binary_typed_names(outcomes, each), json_typed_names(outcomes, each))
    return merge_columns(outcomes.facts.columns.rows, pa.string(), parts)


def _key_column(outcomes: MatchOutcomes, keys: Mapping[int, bytes | None]) -> pa.Array:
    """Return the partition keys of rows whose source row does not have them.

    *keys* are those of rows that the codec read, events or not; key order needs them (:mod:`router.writing.outcomes`).
    """
    by_columns = (partition_keys(outcomes, each) for each in outcomes.facts.settled)
    parts = [_partial_column(keys, pa.binary()), *by_columns]
    mapped = outcomes.attributes
    if len(mapped):
        at = np.flatnonzero(pc.equal(mapped.values.field("key"), PARTITION_KEY).to_numpy(zero_copy_only=False))
        owners = np.searchsorted(mapped.offsets.to_numpy(), at, "right") - 1
        parts.append((outcomes.mapped[owners], mapped.values.field("value").take(pa.array(at))))
    return merge_columns(outcomes.facts.columns.rows, pa.binary(), parts)


def _header_column(pairs: Mapping[int, Pairs]) -> PartialColumn:
    entries = {row: [{"key": name, "value": value} for name, value in each] for row, each in pairs.items()}
    return _partial_column(entries, HEADERS)
