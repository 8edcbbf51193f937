"""From outcomes to the columns that sinks need: what the match UDF hands back to Spark.

One list of structs per input row, since a CloudEvents batch gives several. Bodies and headers of records that
pass unchanged are not among them: those never leave the JVM. Attributes have the names of Kafka's binary mode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.envelope import attribute_name
from bindings.kafka.facts import ATTRIBUTE, CONTENT_TYPE
from bindings.protocols import BINDINGS
from router.judging.carried import (
    HEADERS,
    PARTITION_KEY,
    Filling,
    attributes_from_json,
    attributes_of,
    data_from_json,
    filled,
    keys_of,
    passed_name,
    passed_of,
)
from router.judging.relating import RelationColumns
from router.judging.tally import tally
from router.matching.facts import EVENT_MEDIA, NO_SOURCE, SCHEMA_ID, Facts, Reading
from router.matching.index.columns import Int
from router.matching.matcher import Matcher, Outcomes
from router.routing.destinations import Destinations
from router.routing.limits import SizeLimits, sizes_of
from router.routing.routes import Routes

_RULES: Final = tuple(binding.rule for binding in BINDINGS.values())
Pairs = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcomes of a batch, and where they go.

    ``columns`` are by the names of :func:`output_type`, with a row for each row of facts. The context is not among
    them: it is costly, and not every sink needs it. ``order`` has the rows that count, in the order of their input
    rows, ``offsets`` the share of each input row in it; ``counts`` is the tally.
    """

    outcomes: Outcomes
    columns: dict[str, pa.Array]
    order: Int
    offsets: Any
    counts: str | None

    def column(self, name: str) -> pa.Array:
        """Return a column by its name, the context too."""
        return self.outcomes.contexts if name == "context" else self.columns[name]

    @property
    def sources(self) -> Int:
        """Per row of facts its input row, negative for one that stands for nothing."""
        return self.outcomes.facts.sources

    def lists(self, outcomes: pa.Array) -> pa.ListArray:
        """Return one list per input row of something that there is for each row of facts."""
        if len(self.order) < len(outcomes) or (np.diff(self.order) < 0).any():
            outcomes = outcomes.take(pa.array(self.order))
        return pa.ListArray.from_arrays(pa.array(self.offsets), outcomes)


class OutputBuilder:
    """Builds the output of batches for one plan."""

    def __init__(
        self, matcher: Matcher, routes: Routes, limits: SizeLimits, relating: RelationColumns | None = None
    ) -> None:
        self._limits = limits
        self._relating = relating
        self.destinations = Destinations(matcher, routes, limits)
        self._xids = pa.array([target.xid for target in matcher.targets], pa.string())
        self._ids = matcher.ids
        self.type = output_type(routes, relating, ids=matcher.ids.finds_any)
        self.attributes = routes.attributes
        """CloudEvents attributes that routes and topics look at."""

    def needs_bodies(self, channel: int) -> bool:
        """Return whether a route may check bodies of records on that channel against schemas."""
        return self.destinations.needs_bodies(channel)

    def lists(self, decided: Decided) -> tuple[pa.ListArray, str | None]:
        """Return one list of outcomes per input row, and their tally."""
        arrays = [decided.column(field.name).cast(field.type) for field in self.type]
        return decided.lists(pa.StructArray.from_arrays(arrays, fields=list(self.type))), decided.counts

    def decide(self, outcomes: Outcomes, arrivals: Int, sizes: Int) -> Decided:
        """Return what became of the rows of a batch, and where they go.

        ``arrivals`` are the milliseconds of each input row's arrival, ``sizes`` the bytes of its key and body.
        """
        facts = outcomes.facts
        width = facts.columns.rows
        own = sizes_of(facts, sizes)
        placed = self.destinations.place(outcomes, own)
        spilled = self._limits.spilled(outcomes, own, placed.routes)
        decided = [row for row in outcomes.ties if row not in outcomes.reasons]
        messages = self._xids.take(pa.array(outcomes.winners, mask=outcomes.winners < 0))
        columns: dict[str, pa.Array] = {
            "message": messages,
            "endpoint": placed.endpoints,
            "reason": sparse(outcomes.reasons, width, pa.string()),
            "detail": sparse(outcomes.details, width, pa.string()),
            "nearest": sparse(_as_json(outcomes.nearest), width, pa.string()),
            "ambiguous": sparse({row: outcomes.ties[row] for row in decided}, width, pa.string()),
            "route": placed.routes,
            "spilled": sparse(dict.fromkeys(spilled, True), width, pa.bool_()),
            **placed.topics,
            **_exact(outcomes),
            **(self._relating.columns(outcomes) if self._relating is not None else {}),
            **({SCHEMA_ID: self._ids.shown(facts)} if self._ids.finds_any else {}),
        }
        order, offsets = in_order(facts, len(sizes))
        arrived = arrivals[facts.sources[order]]
        taken = int(sizes.sum())
        kept: dict[str, int] = {"spilled": len(spilled), "size": taken, "rows": len(sizes)}
        ids = self._ids.counted(facts, outcomes.winners, order)
        counts = tally(placed, outcomes.reasons, decided, order, arrived, own, ids=ids, **kept)
        return Decided(outcomes, columns, order, offsets, counts)


def output_type(routes: Routes, relating: RelationColumns | None = None, *, ids: bool = False) -> pa.StructType:
    """Return the struct type of one outcome, with a topic for each Kafka sink, how it is related to others, and with
    *ids* that of the schema that wrote its body.
    """
    fields: list[tuple[str, pa.DataType]] = [
        ("message", pa.string()),
        ("endpoint", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("nearest", pa.string()),
        ("ambiguous", pa.string()),
        ("context", pa.map_(pa.string(), pa.string())),
        ("attributes", HEADERS),
        ("passed", HEADERS),
        ("data", pa.binary()),
        ("came", pa.binary()),
        ("replaced", pa.bool_()),
        ("place", pa.int32()),
        ("route", pa.int32()),
        ("spilled", pa.bool_()),
        ("key", pa.binary()),
    ]
    fields += [(name, pa.string()) for name in routes.fields]
    fields += relating.fields if relating is not None else []
    fields += [(SCHEMA_ID, pa.string())] if ids else []
    return pa.struct(fields)


def in_order(facts: Facts, rows: int) -> tuple[Int, Any]:
    """Return the fact rows in the order of their input rows, and the offsets of each input row's share."""
    real = np.flatnonzero(facts.sources != NO_SOURCE)
    order = real[np.argsort(facts.sources[real], kind="stable")]
    counts = np.bincount(facts.sources[real], minlength=rows)
    return order, np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def sparse(values: Mapping[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column that holds these values in these rows, and null elsewhere."""
    return filled(rows, kind, [_filling(values, kind)])


def _filling(values: Mapping[int, Any], kind: pa.DataType) -> Filling:
    return np.fromiter(values, np.int64, len(values)), pa.array(list(values.values()), kind)


def _as_json(nearest: Mapping[int, list[dict[str, Any]]]) -> dict[int, str]:
    """Return explanations by row as JSON. Rows that are alike share theirs, and its text."""
    texts = {id(each): json.dumps(each) for each in {id(each): each for each in nearest.values()}.values()}
    return {row: texts[id(each)] for row, each in nearest.items()}


def _exact(outcomes: Outcomes) -> dict[str, pa.Array]:
    """Columns that are given where the JVM's own row does not serve: rows the codec read, and mapped ones."""
    rows = outcomes.facts.columns.rows
    mapped = set(outcomes.mapped.tolist())
    attributes: dict[int, Pairs] = {}
    passed: dict[int, Pairs] = {}
    data: dict[int, bytes | None] = {}
    came: dict[int, bytes | None] = {}
    places: dict[int, int] = {}
    keys: dict[int, bytes | None] = {}
    for row, reading in outcomes.facts.readings.items():
        if reading.place >= 0:
            places[row] = reading.place
            data[row] = reading.body
        if outcomes.winners[row] < 0:
            if (key := reading.envelope.attributes.get(PARTITION_KEY)) is not None:
                keys[row] = key.encode()
            if reading.place >= 0:
                # A dead letter out of a batch is the one event, and says so.
                passed[row] = _headers_of_one(reading)
            continue
        passed[row] = _passed(reading, int(outcomes.facts.protocols[row]))
        if row not in mapped:
            attributes[row] = _attributes(reading)
        if reading.envelope.mode == "structured":
            data[row] = reading.envelope.data
            if reading.place >= 0:
                # A sink may still refuse it. To cut it out of the batch then would read the batch once for each event.
                came[row] = reading.body
    settled = outcomes.facts.settled
    datas = [_filling(data, pa.binary()), *(data_from_json(outcomes, each) for each in settled)]
    replaced = np.zeros(rows, bool)
    replaced[np.concatenate([own for own, _ in datas])] = True
    listed = _filling({row: _entries(pairs) for row, pairs in passed.items()}, HEADERS)
    return {
        "attributes": _all_attributes(outcomes, attributes),
        "passed": filled(rows, HEADERS, [listed, *(passed_of(outcomes, each) for each in settled)]),
        "data": filled(rows, pa.binary(), datas),
        "came": sparse(came, rows, pa.binary()),
        "replaced": pa.array(replaced),
        "place": sparse(places, rows, pa.int32()),
        "key": _keys(outcomes, attributes, keys),
    }


def _attributes(reading: Reading) -> Pairs:
    attributes = reading.envelope.attributes
    pairs: Pairs = [(f"ce_{name}", text.encode()) for name, text in attributes.items() if name != "datacontenttype"]
    content = attributes.get("datacontenttype")
    return pairs if content is None else [*pairs, (CONTENT_TYPE, content.encode())]


def _headers(reading: Reading) -> Pairs:
    return [
        (part.key.removeprefix("headers."), part.value) for part in reading.parts if part.key.startswith("headers.")
    ]


def _headers_of_one(reading: Reading) -> Pairs:
    """Return the headers of one event of a batch: those of the message, its media type in the place of theirs."""
    headers = _headers(reading)
    if not any(name.lower() == CONTENT_TYPE for name, _ in headers):
        headers.append((CONTENT_TYPE, EVENT_MEDIA))
    return [(name, EVENT_MEDIA if name.lower() == CONTENT_TYPE else value) for name, value in headers]


def _passed(reading: Reading, protocol: int) -> Pairs:
    """Return the headers that were no CloudEvents attributes, in order."""
    rule = _RULES[protocol]
    pairs: Pairs = []
    for part in reading.parts:
        name = passed_name(part.key)
        if name is not None and not (reading.envelope.is_event and attribute_name(part.key, rule) is not None):
            pairs.append((name, part.value))
    return pairs


def _all_attributes(outcomes: Outcomes, exact: Mapping[int, Pairs]) -> pa.Array:
    """Return the attributes of mapped rows, of readings, and of rows whose parts are columns."""
    mapped = outcomes.attributes
    fillings = [_filling({row: _entries(pairs) for row, pairs in exact.items()}, HEADERS)]
    for each in outcomes.facts.settled:
        fillings += (attributes_of(outcomes, each), attributes_from_json(outcomes, each))
    if len(mapped):
        names = mapped.values.field("key")
        kafka = pc.if_else(
            pc.equal(names, "datacontenttype"), CONTENT_TYPE, pc.binary_join_element_wise(ATTRIBUTE, names, "")
        )
        entries = pa.StructArray.from_arrays([kafka, mapped.values.field("value")], names=["key", "value"])
        fillings.append((outcomes.mapped, pa.ListArray.from_arrays(mapped.offsets, entries).cast(HEADERS)))
    return filled(outcomes.facts.columns.rows, HEADERS, fillings)


def _keys(outcomes: Outcomes, exact: Mapping[int, Pairs], dead: Mapping[int, bytes | None]) -> pa.Array:
    """Return the partition key of rows whose attributes are given here; the JVM finds those of its own rows.

    *dead* are those of rows that became no event, which the order of their key asks for
    (:mod:`router.writing.ordering`).
    """
    keys = dict(dead)
    for row, pairs in exact.items():
        key = next((value for name, value in pairs if name == f"{ATTRIBUTE}{PARTITION_KEY}"), None)
        if key is not None:
            keys[row] = key
    fillings = [_filling(keys, pa.binary()), *(keys_of(outcomes, each) for each in outcomes.facts.settled)]
    mapped = outcomes.attributes
    if len(mapped):
        places = np.flatnonzero(pc.equal(mapped.values.field("key"), PARTITION_KEY).to_numpy(zero_copy_only=False))
        owners = np.searchsorted(mapped.offsets.to_numpy(), places, "right") - 1
        fillings.append((outcomes.mapped[owners], mapped.values.field("value").take(pa.array(places))))
    return filled(outcomes.facts.columns.rows, pa.binary(), fillings)


def _entries(pairs: Pairs) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in pairs]
