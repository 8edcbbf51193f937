"""Make Kafka records of outcomes for a single write to all sinks, as changes to the original record.

Most events are forwarded unchanged, with lineage headers that Spark adds from values that Python returns. Python makes
all headers of other records: mapped events, events that the exact codec read, and dead letters. The columns are those
of :data:`LINEAGE_COLUMNS` and :data:`OUTGOING`:

| column | meaning |
|---|---|
| ``message``, ``endpoint``, ``context`` | values of the lineage headers that Spark adds; null for no header |
| ``topic`` | the topic; null for the topic that all events share |
| ``key`` | the key; null for the original key |
| ``headers`` | the headers without lineage; null for the original headers |
| ``replaced`` | whether ``data`` replaces the body; null data is no body |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Entries, raw, valid
from bindings.kafka.record_columns import CONTENT_TYPE, LINEAGE
from bindings.parts import NAME as CODING
from catalog.record import Record
from router.evaluation.evaluator import EvaluatedRows, Kind, evaluate, evaluated_columns, evaluation_column
from router.evaluation.forwarding import HEADERS, scattered
from router.evaluation.outputs import RoutedOutcomes
from router.evaluation.plan import Evaluator, Plan
from router.evaluation.stages import (
    HEADERS_TYPE,
    arrival_endpoint,
    dead_letter_ids,
    event_attribute,
    event_headers,
    header,
    lineage_headers,
    partition_key,
    positions_in,
)
from router.matching.context import RELATED
from router.matching.inbox_columns import instants, rfc3339
from router.matching.index.classes import BoolArray, IntArray, spread
from router.matching.record_columns import SCHEMA_ID
from router.rendering.events import event_columns, native_texts, structured_events
from router.rendering.texts import EVENT, parts_of_raw
from router.routing import column_of
from router.settings import KafkaSink
from router.settings.routes import (
    ATTRIBUTE_PREFIX,
    CONTEXT_PREFIX,
    DestinationTemplate,
    NameTemplate,
    event_values,
    parse_name,
    value_name,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast, SparkContext
    from pyspark.sql import Column, DataFrame

    from router.schemaids.framing import WrittenFrame

# Lists of headers, and texts in them, for whole batches.

_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')
_ESCAPED_RE2: Final = r'[\x00-\x1f"\\]'
_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def lists_of(named: Mapping[str, pa.StringArray | str | None], rows: int, only: Mapping[str, Bool]) -> pa.ListArray:
    """Return a header list per row with these names and values, in order; null is a header without value.

    *only* maps a name to the rows that have the header; all rows have the other headers.
    """
    texts = [each if isinstance(each, pa.Array) else pa.array([each] * rows, pa.string()) for each in named.values()]
    there = np.ones((rows, len(named)), bool)
    for place, name in enumerate(named):
        if name in only:
            there[:, place] = only[name]
    owners, names = np.nonzero(there)
    values = pa.concat_arrays(texts).take(pa.array(names * rows + owners)).cast(pa.binary())
    entries = pa.StructArray.from_arrays([pa.array(list(named)).take(pa.array(names)), values], names=["key", "value"])
    offsets = np.concatenate(([0], np.cumsum(there.sum(1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), entries).cast(HEADERS)


def joined(one: pa.ListArray, other: pa.ListArray) -> pa.ListArray:
    """Concatenate the lists of each row; a null list is empty."""
    lengths = (pc.fill_null(pc.list_value_length(each), 0).cast(pa.int64()) for each in (one, other))
    counts = [each.to_numpy(zero_copy_only=False) for each in lengths]
    pool = pa.concat_arrays([one.flatten(), other.flatten()])
    offsets = np.concatenate(([0], np.cumsum(counts[0] + counts[1])))
    # Entries of the first list stand at the beginning of each row's share, those of the other behind them.
    firsts = np.cumsum(counts[0]) - counts[0]
    others = np.cumsum(counts[1]) - counts[1] + int(counts[0].sum())
    indices = np.empty(int(offsets[-1]), np.int64)
    indices[spread(offsets[:-1], counts[0])[1]] = spread(firsts, counts[0])[1]
    indices[spread(offsets[:-1] + counts[0], counts[1])[1]] = spread(others, counts[1])[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pool.take(pa.array(indices)))


def without(lists: pa.ListArray, name: str) -> pa.ListArray:
    """Return header lists without the first entry of that name; a null list becomes an empty one."""
    entries = Entries(lists)
    kept = np.ones(len(entries.codes), bool)
    first = entries.first(name)
    kept[first[first >= 0]] = False
    counts = np.bincount(entries.owners[kept], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten().filter(pa.array(kept)))


def context_json(contexts: pa.MapArray) -> pa.StringArray:
    """Return context attributes as JSON objects in Spark's format."""
    if contexts.items.null_count:
        return pa.array([_object(dict(each or ())) for each in contexts.to_pylist()], pa.string())
    bounds = contexts.offsets.to_numpy().astype(np.int64)
    counts, entries = np.diff(bounds), int(bounds[-1] - bounds[0])
    names = contexts.keys.slice(bounds[0], entries).dictionary_encode()
    heads = [pc.binary_join_element_wise(start, _escaped(names.dictionary), '":"', "") for start in ('{"', '","')]
    pool = pa.concat_arrays([*heads, pa.array(['"}', "{}"]), _escaped(contexts.items.slice(bounds[0], entries))])
    several, ends = len(heads[0]), 2 * len(heads[0])
    # The pieces of a row are a name and a value for each attribute, and an end. Taken in order they lie one behind the
    # other, so that the text of a row is where those of its pieces are.
    starts = 2 * (bounds - bounds[0]) + np.arange(len(bounds))
    owners = np.repeat(np.arange(len(counts)), counts)
    heads_at = 2 * np.arange(entries) + owners
    pieces = np.empty(int(starts[-1]), np.int64)
    pieces[heads_at] = names.indices.to_numpy() + several
    pieces[heads_at + 1] = ends + 2 + np.arange(entries)
    pieces[starts[:-1][counts > 0]] -= several
    pieces[starts[1:] - 1] = np.where(counts > 0, ends, ends + 1)
    texts = pool.take(pa.array(pieces))
    return pa.StringArray.from_buffers(len(counts), pa.py_buffer(raw(texts)[1][starts]), texts.buffers()[2])


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Return texts, without nulls, escaped for JSON strings."""
    data, bounds = raw(texts)
    held = data[bounds[0] : bounds[-1]]
    if not ((held < ord(" ")) | (held == ord('"')) | (held == ord("\\"))).any():
        return texts
    special = pc.match_substring_regex(texts, _ESCAPED_RE2)
    changed = [_escaped_text(text) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(texts, special, pa.array(changed, pa.string()))


def _escaped_text(text: str) -> str:
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}", text)


def _object(members: Mapping[str, str | None]) -> str:
    texts = ((name, "null" if text is None else f'"{_escaped_text(text)}"') for name, text in members.items())
    return "{" + ",".join(f'"{_escaped_text(name)}":{text}' for name, text in texts) + "}"


OUTGOING: Final = (
    pa.field("topic", pa.string()),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("replaced", pa.bool_()),
    pa.field("data", pa.binary()),
)
LINEAGE_COLUMNS: Final = tuple(pa.field(name, pa.string()) for name in ("message", "endpoint", "context"))
"""Columns that exist only if some events get lineage headers."""
HEADER_CAP: Final = 4_000
"""Maximum characters of a text in a dead letter's Kafka header; the outcome itself is not truncated."""
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_BYTES: Final = pa.scalar(None, pa.binary())


@dataclass(frozen=True, slots=True)
class SingleWrite:
    """What all records of a single write have in common.

    ``topic`` is the topic of all events, None if there are several. ``lineage`` and ``keys`` have, by route, whether
    its events get lineage headers, and the key template for events without a key.
    """

    kind: Kind
    query: str
    epoch: str
    failed: str
    topic: str | None
    lineage: tuple[bool, ...]
    keys: tuple[DestinationTemplate | None, ...]

    @classmethod
    def of(cls, plan: Plan, kind: Kind, query: str = "", failed: str = "") -> SingleWrite:
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
        """Whether some events get lineage headers."""
        return any(self.lineage)

    @property
    def type(self) -> pa.StructType:
        """The type of a record."""
        return pa.struct([*(LINEAGE_COLUMNS if self.traces else ()), *OUTGOING])

    def decide(self, judge: Evaluator, rows: pa.RecordBatch) -> EvaluatedRows:
        """Evaluate an Arrow batch of source rows; return a list of records for each row, and the tally."""
        decided = evaluate(self.kind, judge, rows)
        return decided.lists(_Records(self, decided, rows).build()), decided.counts


def _only_topic(topics: Mapping[str, NameTemplate]) -> str | None:
    """Return the topic of all events, if it is constant."""
    if len(topics) != 1:
        return None
    (template,) = topics.values()
    return None if template.variables else template.expand({}, escape="_")


class _Records:
    """The records of one Arrow batch."""

    def __init__(self, attempt: SingleWrite, decided: RoutedOutcomes, rows: pa.RecordBatch) -> None:
        self._attempt = attempt
        self._columns = decided.columns
        self._outcomes = decided.outcomes
        self._rows = rows
        self._sources = np.where(decided.sources >= 0, decided.sources, 0)
        self._routes: IntArray = decided.columns["route"].to_numpy(zero_copy_only=False).astype(np.int64)
        counts = np.zeros(len(self._routes), bool)
        counts[decided.order] = True
        self._events: BoolArray = counts & (self._routes >= 0)
        self._letters: IntArray = np.flatnonzero(counts & (self._routes < 0))

    def build(self) -> pa.StructArray:
        """Return one record (:attr:`SingleWrite.type`) for each row of facts."""
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

    def _trace(self) -> tuple[IntArray, dict[str, pa.Array]]:
        """Return the lineage columns, and the rows of events whose lineage headers Spark cannot add."""
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

    def _contexts(self, wanted: BoolArray) -> pa.StringArray:
        """Return the context attributes of these rows as JSON, null for others."""
        return pc.if_else(pa.array(wanted), context_json(self._outcomes.contexts), pa.scalar(None, pa.string()))

    def _topics(self) -> pa.StringArray:
        usual = self._attempt.topic is not None
        names = [name for name in self._columns if name.startswith(("letters_",) if usual else ("topic_", "letters_"))]
        # Each record has one destination, so that at most one of them is there.
        return pc.coalesce(*(self._columns[name].cast(pa.string()) for name in names))

    def _keys(self) -> pa.BinaryArray:
        """Return the event's ``partitionkey``; for an event without a key the expanded template of the sink."""
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

    def _came_with_key(self) -> BoolArray:
        if self._attempt.kind != "kafka":
            return np.zeros(len(self._sources), bool)
        return valid(self._rows.column("key"))[self._sources]

    def _expanded(self, template: DestinationTemplate, rows: IntArray) -> pa.StringArray:
        """Return the expanded template for these rows; null if a value without a default is missing."""
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

    def _settled(self, name: str, rows: IntArray) -> pa.StringArray:
        """Return a variable that depends only on definition and endpoint."""
        of = "endpoint" if name.startswith("endpoint") else "message"
        encoded = self._columns[of].take(pa.array(rows)).dictionary_encode()
        texts = (event_values(*(text, "") if of == "message" else ("", text), "", {}) for text in _texts(encoded))
        return pa.array([each[name] for each in texts], pa.string()).take(encoded.indices)

    def _bodies(self) -> dict[str, pa.Array]:
        spilled = pc.fill_null(self._columns["spilled"], False)
        data = pc.if_else(spilled, _NO_BYTES, self._columns["data"])
        return {"replaced": pc.or_(pc.fill_null(self._columns["replaced"], False), spilled), "data": data}

    def _headers(self, rare: IntArray, context: pa.StringArray | None) -> pa.ListArray:
        """Return the headers of mapped events and dead letters; *rare* events get their lineage headers here."""
        columns = self._columns
        given = np.flatnonzero(self._events & valid(columns["attributes"]))
        at = pa.array(given)
        rest = pc.coalesce(columns["passed"].take(at), self._others(given))
        lists = joined(columns["attributes"].take(at), rest)
        fillings = [(given, lists)]
        if len(self._letters):
            fillings.append((self._letters, self._letter_headers()))
        headers = scattered(len(self._routes), HEADERS, fillings)
        if context is None or not len(rare):
            return headers
        whole = joined(pc.coalesce(headers.take(pa.array(rare)), self._came(rare)), self._lineage(rare, context))
        kept = np.setdiff1d(np.flatnonzero(valid(headers)), rare)
        return scattered(len(self._routes), HEADERS, [(kept, headers.take(pa.array(kept))), (rare, whole)])

    def _came(self, rows: IntArray) -> pa.ListArray:
        """Return the original headers of these rows."""
        if self._attempt.kind != "kafka":
            return pa.nulls(len(rows), HEADERS)
        return self._rows.column("headers").take(pa.array(self._sources[rows])).cast(HEADERS)

    def _others(self, rows: IntArray) -> pa.ListArray:
        """Return the original headers of these rows without the content type."""
        came = self._came(rows)
        return without(came, CONTENT_TYPE) if self._attempt.kind == "kafka" else came

    def _lineage(self, rows: IntArray, context: pa.StringArray) -> pa.ListArray:
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
        """Return the headers of dead letters: the original headers, followed by ours."""
        attempt, rows = self._attempt, self._letters
        names = ("reason", "detail", "nearest", "endpoint", "spilled", "passed")
        said = {name: self._columns[name].take(pa.array(rows)) for name in names}
        positions = self._positions(rows)
        letters = pa.array(dead_letter_ids(attempt.query, positions), pa.string())
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
        # Only a spilled dead letter names its file.
        spilled = pc.fill_null(said["spilled"], False).to_numpy(zero_copy_only=False)
        return joined(pc.coalesce(said["passed"], came.headers), _ours(named, len(rows), {"spill": spilled}))

    def _positions(self, rows: IntArray) -> pa.StringArray:
        given = self._rows.take(pa.array(self._sources[rows]))
        return positions_in(self._attempt.kind, given, self._columns["place"].take(pa.array(rows)))

    def _arrivals(self, rows: IntArray) -> _Arrivals:
        """Return how the records of dead letters arrived."""
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
    """How the records of dead letters arrived: endpoint, time, and headers or native record."""

    endpoint: pa.StringArray
    protocol: pa.StringArray
    received: pa.TimestampArray
    headers: pa.ListArray
    native: pa.StringArray | None = None


def _ours(named: Mapping[str, pa.StringArray | str], rows: int, only: Mapping[str, BoolArray]) -> pa.ListArray:
    prefixed = {f"{LINEAGE}{name}": texts for name, texts in named.items()}
    return lists_of(prefixed, rows, {f"{LINEAGE}{name}": those for name, those in only.items()})


def _texts(encoded: pa.DictionaryArray) -> list[str]:
    texts: list[str] = encoded.dictionary.to_pylist()
    return texts


# Key, value and headers of Kafka records, for events and dead letters, as JVM columns.

# Spark columns for tables, dead letters and structured mode: event, native record, JSON.
#
# Python gets a body only if it needs it; otherwise the JVM adds the body.


def event_column(kind: Kind) -> Column:
    """Return the struct ``EVENT`` for routed rows of :func:`router.evaluation.stages.unified_outcomes`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array) -> pa.Array:
        return event_columns(kind, raw, attributes, place)

    return _arrow(rendered, EVENT)(F.col("raw"), F.col("m.attributes"), F.col("m.place"))


def native_column(kind: Kind) -> Column:
    """Return the native record as JSON for rows of :func:`router.evaluation.stages.unified_outcomes`."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, place: pa.Array) -> pa.Array:
        return native_texts(kind, raw, place)

    return _arrow(rendered, pa.string())(F.col("raw"), F.col("m.place"))


def spilled_records(rows: DataFrame, kind: Kind) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the complete native record (MATCHING.md#records) of each spilled dead letter."""
    from pyspark.sql import functions as F

    wanted = rows.where("m.spilled").select(
        "letter", "raw", F.col("m.place").alias("place"), "body", arrival_endpoint(kind).alias("endpoint")
    )
    for row in wanted.toLocalIterator():
        parts, binding = parts_of_raw(row["raw"].asDict(recursive=True), kind, row["place"])
        body = None if row["body"] is None else bytes(row["body"])
        record = Record(binding.protocol, binding.native(parts), body, row["endpoint"])
        yield row["letter"], msgspec.json.encode(record.to_json())


def structured_column(kind: Kind) -> Column:
    """Return the event in structured mode for routed rows; Python gets the body."""
    from pyspark.sql import functions as F

    def rendered(raw: pa.Array, attributes: pa.Array, place: pa.Array, body: pa.Array, typed: pa.Array) -> pa.Array:
        return structured_events(kind, raw, attributes, place, body, typed)

    columns = ("raw", "m.attributes", "m.place", "body", "m.typed")
    return _arrow(rendered, pa.binary())(*map(F.col, columns))


def _arrow(function: Callable[..., pa.Array], kind: pa.DataType) -> Callable[..., Column]:
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_type

    function.__annotations__ = {name: pa.Array for name in function.__annotations__}
    return cast("Callable[..., Column]", cast(Any, arrow_udf)(function, returnType=from_arrow_type(kind)))


# Columns that stay in the JVM, to be selected from each batch.
#
# Creating a column takes about three calls to the JVM; selecting all existing ones takes one call.


@dataclass(frozen=True, slots=True)
class JvmColumns:
    """Columns in the JVM of the current session."""

    columns: Any

    @classmethod
    def of(cls, columns: Sequence[Column]) -> JvmColumns:
        """Create the columns in the JVM; a session must exist."""
        from pyspark.sql.classic.column import _to_java_column, _to_seq

        return cls(_to_seq(session_context(), columns, _to_java_column))

    def of_rows(self, rows: DataFrame) -> DataFrame:
        """Select the columns from *rows*, as ``rows.select`` does."""
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        return Classic(rows._jdf.select(self.columns), rows.sparkSession)


def session_context() -> SparkContext:
    """Return the current session's context without a call to the JVM."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    return context


FAILED: Final = "xrouter.failed"
"""The Spark job property with the time of an attempt's dead letters."""


def sent_key(sink: KafkaSink) -> Column:
    """Return an event's key: its own, else from the sink's template, else null."""
    from pyspark.sql import functions as F

    if sink.key is None:
        return partition_key()
    return F.coalesce(partition_key(), key_template(sink.key).cast("binary"))


def framed_value(body: Column, frames: Mapping[str, WrittenFrame], *, identified: bool) -> Column:
    """Return a body after the frame of its definition, if that has one.

    A body is unchanged if it already has a frame (a schema id was found, if rows are *identified*), has a content
    coding, or is JSON of a schema with binary bodies.
    """
    from pyspark.sql import functions as F

    def head(plain: bool) -> Column:
        pairs = [F.lit(each) for xid, frame in frames.items() if frame.plain is plain for each in (xid, frame.head)]
        return F.create_map(*pairs).getItem(F.col("m.message")) if pairs else F.lit(None).cast("binary")

    media = F.lower(event_attribute("datacontenttype"))
    is_json = F.coalesce(media.contains("/json") | media.contains("+json"), F.lit(False))
    frame = F.coalesce(head(True), F.when(~is_json, head(False)))
    coded = F.exists(F.coalesce("headers", F.array().cast(HEADERS_TYPE)), lambda each: F.lower(each["key"]) == CODING)
    asked = body.isNotNull() & frame.isNotNull() & ~coded
    if identified:
        asked &= F.col(f"m.{SCHEMA_ID}").isNull()
    return F.when(asked, F.concat(frame, body)).otherwise(body)


def sent_headers(sink: KafkaSink, epoch: str, related: Sequence[str] = ()) -> Column:
    """Return an event's headers in the sink's mode, with lineage headers if configured.

    *related* is as for :func:`router.evaluation.stages.lineage_headers`.
    """
    from pyspark.sql import functions as F

    headers = _structured_headers() if sink.mode == "structured" else event_headers()
    return F.concat(headers, lineage_headers(epoch, related)) if sink.lineage else headers


def _structured_headers() -> Column:
    from pyspark.sql import functions as F

    # In structured mode the attributes are only in the body.
    rest = F.filter("headers", lambda entry: ~(entry["key"].startswith("ce_") | (entry["key"] == "content-type")))
    return F.concat(
        F.array(header("content-type", F.lit("application/cloudevents+json"))),
        F.coalesce(F.col("m.passed"), rest, F.array().cast(HEADERS_TYPE)),
    )


@dataclass(frozen=True, slots=True)
class OutgoingColumns:
    """The columns that turn source rows into Kafka records, events and dead letters, in one pass.

    They are cached per query and plan, because creating them takes hundreds of calls to the JVM.
    """

    outcomes: JvmColumns
    records: JvmColumns

    @classmethod
    def of(
        cls,
        once: SingleWrite,
        judge: Evaluator,
        workers: Broadcast[Evaluator],
        tallies: Accumulator[dict[str, str]],
        *,
        converts: bool = False,
    ) -> OutgoingColumns:
        """Return the columns of a query; *workers* is the broadcast judge, *tallies* the accumulator of its counts.

        *converts* is the result of :func:`router.evaluation.stages.converts`.
        """
        from pyspark.sql import functions as F

        empty = F.array().cast(HEADERS_TYPE)
        if once.kind == "kafka":
            kept: tuple[str, ...] = ("topic", "partition", "offset", "key", "value", "headers")
            position, body, key = F.concat_ws("-", "topic", "partition", "offset"), F.col("value"), F.col("key")
            came = F.coalesce("o.headers", "headers", empty)
        else:
            kept = ("position", "body")
            position, body, key = F.col("position"), F.col("body"), F.lit(None).cast("binary")
            came = F.coalesce("o.headers", empty)
        topic = F.col("o.topic") if once.topic is None else F.coalesce("o.topic", F.lit(once.topic))
        records = {
            "topic": topic,
            "key": F.coalesce("o.key", key),
            "value": F.when(F.col("o.replaced"), F.col("o.data")).otherwise(body),
            "headers": _traced(came, once.epoch, position) if once.traces else came,
        }
        taken = evaluated_columns(once.kind, judge)
        if converts:
            taken["timestamp"] = F.unix_millis("timestamp")
        decided = evaluation_column(taken, workers, partial(_decide_now, once), pa.list_(once.type), tallies)
        return cls(
            JvmColumns.of([*(F.col(name) for name in kept), F.explode(decided).alias("o")]),
            JvmColumns.of([column.alias(name) for name, column in records.items()]),
        )

    def of_rows(self, rows: DataFrame, failed: str) -> DataFrame:
        """Return the Kafka records (topic, key, value, headers) of the source's *rows*.

        They must be written by this thread before the next attempt. *failed* is the time of the dead letters.
        """
        # A task property, since a column with the time would have to be created for each attempt.
        session_context().setLocalProperty(FAILED, failed)
        return self.records.of_rows(self.outcomes.of_rows(rows))


def _decide_now(once: SingleWrite, judge: Evaluator, rows: pa.RecordBatch) -> EvaluatedRows:
    """Evaluate an Arrow batch for the attempt of the current task, in a worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return replace(once, failed=context.getLocalProperty(FAILED) or "").decide(judge, rows)


def _traced(came: Column, epoch: str, position: Column) -> Column:
    """Return the headers followed by lineage headers, for records that get them."""
    from pyspark.sql import functions as F

    lineage = {
        "message": F.col("o.message"),
        "endpoint": F.col("o.endpoint"),
        "epoch": F.lit(epoch),
        "position": position,
        "context": F.col("o.context"),
    }
    added = F.array(*(header(f"{LINEAGE}{name}", value) for name, value in lineage.items()))
    return F.when(F.col("o.message").isNotNull(), F.concat(came, added)).otherwise(came)


def dead_letter_headers(kind: Kind, epoch: str, failed: str) -> Column:
    """Return the headers of a dead letter: the original headers, then ours, with truncated texts."""
    from pyspark.sql import functions as F

    fields: dict[str, Column] = {
        "letter": F.col("letter"),
        "reason": F.col("m.reason"),
        "detail": F.substring(F.col("m.detail"), 1, HEADER_CAP),
        "nearest": F.substring(F.col("m.nearest"), 1, HEADER_CAP),
        "endpoint": arrival_endpoint(kind),
        "protocol": F.col("protocol"),
        "epoch": F.lit(epoch),
        "position": F.col("position"),
        "received": F.date_format("received", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"),
        "failed": F.lit(failed),
        "attempts": F.lit("1"),
    }
    if kind != "kafka":
        fields["native"] = native_column(kind)
    fields["spill"] = F.concat(F.lit("spill/"), F.col("letter"), F.lit(".json"))
    ours = F.array(*(header(f"xrouter-{name}", value) for name, value in fields.items()))
    # Only a spilled dead letter names its file; the others have no such header.
    ours = F.when(F.col("m.spilled"), ours).otherwise(F.slice(ours, 1, len(fields) - 1))
    return F.concat(F.coalesce(F.col("m.passed"), F.col("headers"), F.array().cast(HEADERS_TYPE)), ours)


def dead_letter_value() -> Column:
    """Return the value of a dead letter: its body, or null if it was spilled."""
    from pyspark.sql import functions as F

    return F.when(F.col("m.spilled"), F.lit(None).cast("binary")).otherwise(F.col("body"))


def order_key(kind: Kind) -> Column:
    """Return the ordering key of a row, a hash of its channel and key; null without a key.

    The channel is the topic, else the endpoint where the record arrived: the matcher's endpoint may depend on the
    outcome if several endpoints share a channel.
    """
    from pyspark.sql import functions as F

    channel = F.concat(F.lit("kafka:"), F.col("raw.topic")) if kind == "kafka" else F.col("raw.endpoint")
    text = F.concat(F.encode(channel, "UTF-8"), F.lit(bytearray(1)), partition_key())
    return F.substring(F.sha2(text, 256), 1, 32)


def key_template(template: str) -> Column:
    """Return the key from a template, with unescaped values; null if a value without a default is missing."""
    from pyspark.sql import functions as F

    group = F.element_at(F.split("m.message", "/"), -3)
    known = {
        "message": F.col("m.message"),
        "messagegroup": group,
        "messageid": F.element_at(F.split("m.message", "/"), -1),
        "endpoint": F.col("m.endpoint"),
        "endpointid": F.element_at(F.split("m.endpoint", "/"), -1),
    }
    parsed = parse_name(template)
    pieces: list[Column] = []
    for place, part in enumerate(parsed.parts):
        if place % 2 == 0:
            pieces.append(F.lit(part))
            continue
        name = value_name(part)
        if name.startswith(CONTEXT_PREFIX):
            value = F.col("m.context").getItem(name.removeprefix(CONTEXT_PREFIX))
        elif name.startswith(ATTRIBUTE_PREFIX):
            value = event_attribute(name.removeprefix(ATTRIBUTE_PREFIX))
        else:
            value = known[name]
        default = parsed.defaults[place // 2]
        pieces.append(F.coalesce(F.when(value != "", value), F.lit(default)) if default else value)
    return F.concat(*pieces)
