"""Outcomes as records of Kafka, where one write serves all sinks: how each differs from the record as it arrived.

Most events leave as they arrived, with headers of lineage that Spark adds; for these Python returns only the values of
those headers. It makes the headers of all others: events of native records, those that the exact codec read, and dead
letters. The columns are those of :data:`TRACED` and :data:`OUTGOING`:

| column | meaning |
|---|---|
| ``message``, ``endpoint``, ``context`` | for the headers of lineage that Spark adds; with null it adds none |
| ``topic`` | where the record goes; null for the topic that all events have |
| ``key`` | the record's key; null for the one that it came with |
| ``headers`` | its headers before those of lineage; null for those that it came with |
| ``replaced`` | whether ``data`` stands for its body; null data are no body |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.texts import valid
from bindings.kafka.facts import CONTENT_TYPE, LINEAGE
from router.judging.arrow_outcomes import positions_in
from router.judging.carried import HEADERS, filled
from router.judging.judging import Judged, judge_rows
from router.judging.kinds import Kind
from router.judging.outputs import Decided
from router.judging.plan import Judge, Plan
from router.judging.stages import letter_ids
from router.matching.correlation import RELATED
from router.matching.facts import SCHEMA_ID
from router.matching.index.columns import Bool, Int
from router.matching.moments import instants, rfc3339
from router.rendering.native import native_texts
from router.routing.row_values import column_of
from router.settings import KafkaSink
from router.settings.names import NameTemplate, Template, event_values, parse_name, value_name
from router.writing.header_lists import context_json, joined, lists_of, without

OUTGOING: Final = (
    pa.field("topic", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("replaced", pa.bool_()),
    pa.field("data", pa.binary()),
)
TRACED: Final = tuple(pa.field(name, pa.string()) for name in ("message", "endpoint", "context"))
"""Columns that there are only where some events get headers of lineage."""
HEADER_CAP: Final = 4_000
"""Characters of a text in a dead letter's Kafka header; the outcome itself is never cut."""
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_BYTES: Final = pa.scalar(None, pa.binary())


@dataclass(frozen=True, slots=True)
class OnePass:
    """What the records of one attempt have in common.

    ``topic`` is that of all events, None when they have several. ``lineage`` and ``keys`` go by route: whether its
    events get headers of lineage, and the template of a key for those without one.
    """

    kind: Kind
    query: str
    epoch: str
    failed: str
    topic: str | None
    lineage: tuple[bool, ...]
    keys: tuple[Template | None, ...]

    @classmethod
    def of(cls, plan: Plan, kind: Kind, query: str = "", failed: str = "") -> OnePass:
        """Return that of a plan whose routes lead each event to one topic of Kafka."""
        routes = plan.routes
        sinks: dict[int, KafkaSink] = {}
        for name, numbers in routes.event_sinks.items():
            settings = plan.settings.sinks[name].topics
            assert settings is not None
            sinks.update(dict.fromkeys(numbers, settings))
        places = range(max(sinks, default=-1) + 1)
        lineage = tuple(place in sinks and sinks[place].lineage for place in places)
        keys = [sinks[place].key if place in sinks else None for place in places]
        templates = tuple(parse_name(key) if key is not None else None for key in keys)
        return cls(kind, query, plan.epoch, failed, _only_topic(routes.topics), lineage, templates)

    @property
    def traces(self) -> bool:
        """Whether some events get headers of lineage."""
        return any(self.lineage)

    @property
    def type(self) -> pa.StructType:
        """The type of a record."""
        return pa.struct([*(TRACED if self.traces else ()), *OUTGOING])

    def decide(self, judge: Judge, rows: pa.RecordBatch) -> Judged:
        """Judge one Arrow batch of the source's rows; one list of records for each, and their tally."""
        decided = judge_rows(self.kind, judge, rows)
        return decided.lists(_Records(self, decided, rows).build()), decided.counts


def _only_topic(topics: Mapping[str, NameTemplate]) -> str | None:
    """Return the topic of all events, when no value decides."""
    if len(topics) != 1:
        return None
    (template,) = topics.values()
    return None if template.variables else template.expand({}, escape="_")


class _Records:
    """The records of one Arrow batch."""

    def __init__(self, attempt: OnePass, decided: Decided, rows: pa.RecordBatch) -> None:
        self._attempt = attempt
        self._columns = decided.columns
        self._outcomes = decided.outcomes
        self._rows = rows
        self._sources = np.where(decided.sources >= 0, decided.sources, 0)
        self._routes: Int = decided.columns["route"].to_numpy(zero_copy_only=False).astype(np.int64)
        counts = np.zeros(len(self._routes), bool)
        counts[decided.order] = True
        self._events: Bool = counts & (self._routes >= 0)
        self._letters: Int = np.flatnonzero(counts & (self._routes < 0))

    def build(self) -> pa.StructArray:
        """Return one record for each row of facts, as :attr:`OnePass.type` says."""
        rare, traced = self._trace() if self._attempt.traces else (_NO_ROWS, {})
        context = traced.get("context")
        arrays = {
            **traced,
            "topic": self._topics(),
            "key": self._keys(),
            "headers": self._headers(rare, context),
            **self._bodies(),
        }
        type_ = self._attempt.type
        return pa.StructArray.from_arrays([arrays[field.name] for field in type_], fields=list(type_))

    def _trace(self) -> tuple[Int, dict[str, pa.Array]]:
        """Return the columns of lineage, and the rows of events whose headers of it Spark cannot add."""
        columns = self._columns
        wanted = np.array((*self._attempt.lineage, False), bool)
        lineage = self._events & wanted[np.where(self._events, self._routes, -1)]
        # Spark does not know the place in a batch of events, how a tie was decided, or any relation.
        rare = valid(columns["ambiguous"]) | valid(columns["place"])
        if "relatedto" in columns:
            rare = rare | valid(columns["relatedto"])
        if SCHEMA_ID in columns:
            rare = rare | valid(columns[SCHEMA_ID])
        usual = pa.array(lineage & ~rare)
        return np.flatnonzero(lineage & rare), {
            "message": pc.if_else(usual, columns["message"], pa.scalar(None, pa.string())),
            "endpoint": columns["endpoint"],
            "context": self._contexts(lineage),
        }

    def _contexts(self, wanted: Bool) -> pa.StringArray:
        """Return the context attributes of these rows as JSON, null for others."""
        return pc.if_else(pa.array(wanted), context_json(self._outcomes.contexts), pa.scalar(None, pa.string()))

    def _topics(self) -> pa.StringArray:
        usual = self._attempt.topic is not None
        names = [name for name in self._columns if name.startswith(("letters_",) if usual else ("topic_", "letters_"))]
        # Each record has one destination, so that at most one of them is there.
        return pc.coalesce(*(self._columns[name].cast(pa.string()) for name in names))

    def _keys(self) -> pa.BinaryArray:
        """Return the event's ``partitionkey``; for an event without any key what the sink's template gives."""
        columns, events = self._columns, pa.array(self._events)
        keys = columns["key"]
        own = self._outcomes.facts.columns.by_key.get("e.partitionkey")
        if own is not None and own.values.null_count < len(own.values):
            plain = pc.if_else(pc.is_null(columns["attributes"]), own.values.cast(pa.binary()), _NO_BYTES)
            keys = pc.coalesce(keys, plain)
        keys = pc.if_else(events, keys, _NO_BYTES)
        for route, template in enumerate(self._attempt.keys):
            if template is not None:
                lacking = self._events & (self._routes == route) & ~valid(keys) & ~self._came_with_key()
                rows = np.flatnonzero(lacking)
                expanded = self._expanded(template, rows).cast(pa.binary())
                keys = pc.replace_with_mask(keys, pa.array(lacking), expanded)
        return keys

    def _came_with_key(self) -> Bool:
        if self._attempt.kind != "kafka":
            return np.zeros(len(self._sources), bool)
        return valid(self._rows.column("key"))[self._sources]

    def _expanded(self, template: Template, rows: Int) -> pa.StringArray:
        """Return what a template gives for these rows; null where a value without a default is missing."""
        pieces: list[pa.Scalar | pa.StringArray] = []
        for place, part in enumerate(template.parts):
            if place % 2 == 0:
                pieces.append(pa.scalar(part))
                continue
            name, default = value_name(part), template.defaults[place // 2]
            values = column_of(self._outcomes, rows, name) if "." in name else self._settled(name, rows)
            if default:
                values = pc.if_else(pc.fill_null(pc.not_equal(values, ""), False), values, default)
            pieces.append(values)
        return pc.binary_join_element_wise(*pieces, "")

    def _settled(self, name: str, rows: Int) -> pa.StringArray:
        """Return a variable that definition and endpoint settle."""
        of = "endpoint" if name.startswith("endpoint") else "message"
        encoded = self._columns[of].take(pa.array(rows)).dictionary_encode()
        texts = (event_values(*(text, "") if of == "message" else ("", text), "", {}) for text in _texts(encoded))
        return pa.array([each[name] for each in texts], pa.string()).take(encoded.indices)

    def _bodies(self) -> dict[str, pa.Array]:
        spilled = pc.fill_null(self._columns["spilled"], False)
        data = pc.if_else(spilled, _NO_BYTES, self._columns["data"])
        return {"replaced": pc.or_(pc.fill_null(self._columns["replaced"], False), spilled), "data": data}

    def _headers(self, rare: Int, context: pa.StringArray | None) -> pa.ListArray:
        """Return the headers of made events and of letters; *rare* are events that get those of lineage here."""
        columns = self._columns
        given = np.flatnonzero(self._events & valid(columns["attributes"]))
        at = pa.array(given)
        rest = pc.coalesce(columns["passed"].take(at), self._others(given))
        lists = joined(columns["attributes"].take(at), rest)
        fillings = [(given, lists)]
        if len(self._letters):
            fillings.append((self._letters, self._letter_headers()))
        headers = filled(len(self._routes), HEADERS, fillings)
        if context is None or not len(rare):
            return headers
        whole = joined(pc.coalesce(headers.take(pa.array(rare)), self._came(rare)), self._lineage(rare, context))
        kept = np.setdiff1d(np.flatnonzero(valid(headers)), rare)
        return filled(len(self._routes), HEADERS, [(kept, headers.take(pa.array(kept))), (rare, whole)])

    def _came(self, rows: Int) -> pa.ListArray:
        """Return the headers that the records of these rows came with."""
        if self._attempt.kind != "kafka":
            return pa.nulls(len(rows), HEADERS)
        return self._rows.column("headers").take(pa.array(self._sources[rows])).cast(HEADERS)

    def _others(self, rows: Int) -> pa.ListArray:
        """Return what the columns of a record carried besides its content type."""
        came = self._came(rows)
        return without(came, CONTENT_TYPE) if self._attempt.kind == "kafka" else came

    def _lineage(self, rows: Int, context: pa.StringArray) -> pa.ListArray:
        at = pa.array(rows)
        message, endpoint = (self._columns[name].take(at) for name in ("message", "endpoint"))
        rare = {
            name: self._columns[name].take(at) for name in ("ambiguous", *RELATED, SCHEMA_ID) if name in self._columns
        }
        named: dict[str, pa.StringArray | str] = {
            "message": message,
            "endpoint": endpoint,
            "epoch": self._attempt.epoch,
            "position": self._positions(rows),
            "context": context.take(at),
            **rare,
        }
        return _ours(named, len(rows), {name: valid(texts) for name, texts in rare.items()})

    def _letter_headers(self) -> pa.ListArray:
        """Return the headers of dead letters: those that they came with, and ours behind them."""
        attempt, rows = self._attempt, self._letters
        names = ("reason", "detail", "nearest", "endpoint", "spilled", "passed")
        said = {name: self._columns[name].take(pa.array(rows)) for name in names}
        positions = self._positions(rows)
        letters = pa.array(letter_ids(attempt.query, positions), pa.string())
        came = self._arrivals(rows)
        named = {
            "letter": letters,
            "reason": said["reason"],
            "detail": pc.utf8_slice_codeunits(said["detail"], 0, HEADER_CAP),
            "nearest": pc.utf8_slice_codeunits(said["nearest"], 0, HEADER_CAP),
            "endpoint": pc.coalesce(said["endpoint"], came.endpoint),
            "protocol": came.protocol,
            "epoch": attempt.epoch,
            "position": positions,
            "received": rfc3339(came.received.cast(pa.timestamp("us"))),
            "failed": attempt.failed,
            "attempts": "1",
            **({} if came.native is None else {"native": came.native}),
            "spill": pc.binary_join_element_wise("spill/", letters, ".json", ""),
        }
        # Only a letter that was spilled says where.
        spilled = pc.fill_null(said["spilled"], False).to_numpy(zero_copy_only=False)
        return joined(pc.coalesce(said["passed"], came.headers), _ours(named, len(rows), {"spill": spilled}))

    def _positions(self, rows: Int) -> pa.StringArray:
        given = self._rows.take(pa.array(self._sources[rows]))
        return positions_in(self._attempt.kind, given, self._columns["place"].take(pa.array(rows)))

    def _arrivals(self, rows: Int) -> _Arrivals:
        """Return what letters say of how their records came."""
        given, headers = self._rows.take(pa.array(self._sources[rows])), self._came(rows)
        if self._attempt.kind == "kafka":
            protocol, nowhere = pa.array(["KAFKA"] * len(rows), pa.string()), pa.nulls(len(rows), pa.string())
            return _Arrivals(nowhere, protocol, instants(given.column("timestamp")), headers)
        raw = pa.StructArray.from_arrays(given.columns, names=given.schema.names)
        native = native_texts(self._attempt.kind, raw, self._columns["place"].take(pa.array(rows)))
        endpoint, protocol, received = (given.column(name) for name in ("endpoint", "protocol", "received"))
        return _Arrivals(endpoint, protocol, received, headers, native)


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """How the records of letters came: by which endpoint, when, and with which headers, or as which native records."""

    endpoint: pa.StringArray
    protocol: pa.StringArray
    received: pa.TimestampArray
    headers: pa.ListArray
    native: pa.StringArray | None = None


def _ours(named: Mapping[str, pa.StringArray | str], rows: int, only: Mapping[str, Bool]) -> pa.ListArray:
    prefixed = {f"{LINEAGE}{name}": texts for name, texts in named.items()}
    return lists_of(prefixed, rows, {f"{LINEAGE}{name}": those for name, those in only.items()})


def _texts(encoded: pa.DictionaryArray) -> list[str]:
    texts: list[str] = encoded.dictionary.to_pylist()
    return texts
