"""Render outcomes as Kafka records in the workers: events and dead letters as topic, key, value and headers.

If one write serves all sinks, :func:`create_single_write` evaluates source rows and renders them in one pass; otherwise
:class:`KafkaRecords` renders the outcomes for one sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Bool, Entries, Int, is_not_null, replace_rows
from bindings.kafka.record_columns import CONTENT_TYPE, LINEAGE
from bindings.parts import CODING_HEADER as CODING
from catalog.record import Record
from router.evaluation.evaluator import Batches, Kind, WorkerPass, evaluate_batches, spark_context
from router.evaluation.forwarding import HEADERS
from router.evaluation.outcome_rows import (
    HEADERS_TYPE,
    OUTCOME,
    RAW_COLUMNS,
    build_outcome_rows,
    dead_letter_ids,
    source_column,
    source_columns,
)
from router.evaluation.outputs import RoutedOutcomes
from router.evaluation.plan import Evaluator, Plan
from router.matching.context import RELATED
from router.matching.inbox_columns import to_rfc3339
from router.matching.record_columns import SCHEMA_ID
from router.rendering.events import (
    Attributes,
    attribute_values,
    encode_structured_events,
    native_texts,
    read_attributes,
)
from router.rendering.lineage import context_json, lineage_header_columns
from router.rendering.texts import parts_of_raw
from router.settings.routes import (
    ATTRIBUTE_PREFIX,
    CONTEXT_PREFIX,
    DestinationTemplate,
    NameTemplate,
    full_variable_name,
    make_event_values,
    parse_name,
)
from router.settings.values import LineageForm

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from router.schemaids.framing import WrittenFrame

MAX_HEADER_CHARS: Final = 4_000
"""Maximum characters of a text in a dead letter's Kafka header; the outcome itself is not truncated."""
RECORD: Final = pa.schema([("topic", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])
RECORD_TYPE: Final = f"topic string, key binary, value binary, headers {HEADERS_TYPE}"
FAILED_AT: Final = "xrouter.failed"
"""The Spark job property with the time of an attempt's dead letters."""
_EVENT_MEDIA: Final = "application/cloudevents+json"
_JSON: Final = r"/json|\+json"
_MEDIA: Final = "datacontenttype"
_NO_BYTES: Final = pa.scalar(None, pa.binary())

# Header lists of an Arrow batch.


HeaderPiece = tuple[Bool, pa.ListArray]
"""Rows, and their headers: lists for these rows, or for all rows."""


def join_headers(rows: int, pieces: Sequence[HeaderPiece]) -> pa.ListArray:
    """Join the headers of each row from the pieces, in order. A null list is empty."""
    counts, sources, total = [], [], 0
    for chosen, lists in pieces:
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        number = int(lengths.sum())
        if len(lists) < rows:
            all_lengths = np.zeros(rows, np.int64)
            all_lengths[chosen] = lengths
            lengths = all_lengths
            sources.append(np.arange(total, total + number))
        else:
            sources.append(total + np.flatnonzero(np.repeat(chosen, lengths)))
            lengths = np.where(chosen, lengths, 0)
        counts.append(lengths)
        total += number
    offsets = np.concatenate(([0], np.cumsum(np.sum(counts, axis=0))))
    indices, begins = np.empty(int(offsets[-1]), np.int64), offsets[:-1].copy()
    for lengths, source in zip(counts, sources, strict=True):
        before = np.cumsum(lengths) - lengths
        indices[np.arange(len(source)) + np.repeat(begins - before, lengths)] = source
        begins += lengths
    pool = pa.concat_arrays([lists.flatten().cast(HEADERS.value_type) for _, lists in pieces])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pool.take(pa.array(indices))).cast(HEADERS)


def repeat_header(name: str, values: pa.StringArray | str, rows: Bool) -> HeaderPiece:
    """Return the same header for *rows*, with their values; *values* are for these rows, or for all rows."""
    count = int(rows.sum())
    texts = pa.repeat(values, count) if isinstance(values, str) else values
    if len(texts) > count:
        texts = texts.filter(pa.array(rows))
    columns = [pa.repeat(name, count), texts.cast(pa.binary())]
    entries = pa.StructArray.from_arrays(columns, fields=list(HEADERS.value_type))
    return rows, pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), entries)


def remove_headers(lists: pa.ListArray, condition: Callable[[str], bool]) -> pa.ListArray:
    """Remove the headers whose names meet a condition; a null list becomes an empty one."""
    entries = Entries(lists)
    kept = np.ones(len(entries.codes), bool)
    kept[entries.find_entries(condition)] = False
    counts = np.bincount(entries.owners[kept], minlength=len(lists))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), lists.flatten().filter(pa.array(kept)))


def _constant_topic(topics: Mapping[str, NameTemplate]) -> str | None:
    """Return the topic of all events, if it is constant."""
    if len(topics) != 1:
        return None
    (template,) = topics.values()
    return None if template.variables else template.expand({}, escape="_")


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Renders outcomes as Kafka records.

    ``topic`` is the topic of all events, or None. ``topics`` are the columns of outcomes with the topics of dead
    letters, and of events if ``topic`` is None. ``lineage`` and ``key_templates`` are by route: the lineage headers of
    its events, and the key of events without one. ``failed_at`` is the time of dead letters. ``frames`` are by
    definition.
    """

    kind: Kind
    query: str
    epoch: str
    failed_at: str
    topic: str | None
    topics: tuple[str, ...]
    lineage: tuple[LineageForm, ...]
    key_templates: tuple[DestinationTemplate | None, ...]
    is_structured: bool = False
    frames: Mapping[str, WrittenFrame] | None = None

    @classmethod
    def for_sink(
        cls, plan: Plan, kind: Kind, query: str, failed: str, sink: str, *, letters: bool = False
    ) -> KafkaRecords:
        """Return the renderer of one sink's events; with *letters* that of its dead letters."""
        settings = plan.settings.sinks[sink].topics
        assert settings is not None
        records = cls._for_events_of(plan, kind, query, () if letters else (sink,))
        column = f"{'letters' if letters else 'topic'}_{sink}"
        frames = {} if letters else plan.written_frames(sink)
        structured = settings.mode == "structured"
        return replace(records, failed_at=failed, topics=(column,), is_structured=structured, frames=frames)

    @classmethod
    def for_all_sinks(cls, plan: Plan, kind: Kind, query: str) -> KafkaRecords:
        """Return the renderer of a plan whose routes give each event a single topic."""
        records = cls._for_events_of(plan, kind, query, plan.routes.event_sinks)
        topic = _constant_topic(plan.routes.topics)
        events = () if topic is not None else tuple(f"topic_{name}" for name in plan.routes.topics)
        letters = tuple(f"letters_{name}" for name in plan.routes.dead_letter_topics)
        return replace(records, topic=topic, topics=(*events, *letters))

    @classmethod
    def _for_events_of(cls, plan: Plan, kind: Kind, query: str, names: Iterable[str]) -> KafkaRecords:
        """Return a renderer with the lineage headers and key templates of these sinks."""
        routes = plan.routes.event_sinks
        sinks = {route: plan.settings.sinks[name].topics for name in names for route in routes[name]}
        by_route = [sinks.get(route) for route in range(max(sinks, default=-1) + 1)]
        lineage = tuple(sink.lineage if sink else False for sink in by_route)
        templates = tuple(parse_name(sink.key) if sink and sink.key is not None else None for sink in by_route)
        return cls(kind, query, plan.epoch, "", None, (), lineage, templates)

    @property
    def needs_context(self) -> bool:
        """Whether some record has context attributes in a header or in its key."""
        variables = (variable for key in self.key_templates if key is not None for variable in key.variables)
        return any(self.lineage) or any(full_variable_name(each).startswith(CONTEXT_PREFIX) for each in variables)

    def render(self, outcomes: pa.RecordBatch) -> pa.RecordBatch:
        """Render each outcome (``OUTCOME_COLUMNS``) as a record (``RECORD``)."""
        return _BatchRenderer(self, outcomes).build()

    def render_in_spark(self, outcomes: DataFrame) -> DataFrame:
        """Render outcomes in Spark."""
        return outcomes.mapInArrow(partial(_render_batches, self), RECORD_TYPE)


def _render_batches(records: KafkaRecords, batches: Batches) -> Batches:
    for batch in batches:
        yield records.render(batch)


class _BatchRenderer:
    """Renders the records of one Arrow batch."""

    def __init__(self, records: KafkaRecords, outcomes: pa.RecordBatch) -> None:
        self._records = records
        self._outcomes = outcomes
        self._rows = outcomes.num_rows
        self._raw = outcomes.column("raw")
        matched = outcomes.column(OUTCOME)
        self._columns = dict(zip(matched.type.names, matched.flatten(), strict=True))
        self._routes: Int = self._columns["route"].to_numpy(zero_copy_only=False).astype(np.int64)
        self._is_event: Bool = self._routes >= 0
        self._dead_letter_rows: Int = np.flatnonzero(~self._is_event)

    def build(self) -> pa.RecordBatch:
        arrays = [self._build_topics(), self._build_keys(), self._build_values(), self._build_headers()]
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD)

    def _build_topics(self) -> pa.StringArray:
        # Each record has one destination, so that at most one of the columns has a value.
        topics = [self._columns[name].cast(pa.string()) for name in self._records.topics]
        if self._records.topic is None:
            return pc.coalesce(*topics)
        if not len(self._dead_letter_rows):
            return pa.repeat(self._records.topic, self._rows)
        return pc.coalesce(*topics, pa.scalar(self._records.topic))

    @cached_property
    def _source_keys(self) -> pa.BinaryArray:
        """The keys of the source records."""
        return self._raw_column("key", pa.binary())

    @cached_property
    def _source_headers(self) -> pa.ListArray:
        """The headers of the source records."""
        return self._raw_column("headers", HEADERS)

    def _raw_column(self, name: str, type_: pa.DataType) -> pa.Array:
        if name not in self._raw.type.names:
            return pa.nulls(self._rows, type_)
        return pc.struct_field(self._raw, name).cast(type_)

    def _build_keys(self) -> pa.BinaryArray:
        """Return the event's ``partitionkey``, else the record's key, else the expanded template of the sink."""
        event_keys, keys = self._columns["key"], self._source_keys
        if event_keys.null_count < len(event_keys):
            keys = pc.coalesce(pc.if_else(pa.array(self._is_event), event_keys, _NO_BYTES), keys)
        if any(self._records.key_templates):
            missing = self._is_event & ~is_not_null(keys)
            for route, template in enumerate(self._records.key_templates):
                rows = np.flatnonzero(missing & (self._routes == route))
                if template is not None and len(rows):
                    keys = replace_rows(keys, rows, self._expand_template(template, pa.array(rows)).cast(pa.binary()))
        return keys

    def _expand_template(self, template: DestinationTemplate, rows: pa.Array) -> pa.StringArray:
        """Return the expanded template for these rows; null if a value without a default is missing."""
        pieces: list[pa.Scalar | pa.StringArray] = []
        for index, part in enumerate(template.parts):
            if index % 2 == 0:
                pieces.append(pa.scalar(part))
                continue
            values, default = self._variable_values(full_variable_name(part)).take(rows), template.defaults[index // 2]
            if default:
                values = pc.if_else(pc.fill_null(pc.not_equal(values, ""), False), values, default)
            pieces.append(values)
        return pc.binary_join_element_wise(*pieces, "")

    def _variable_values(self, name: str) -> pa.StringArray:
        """Return the value of a template's variable in each row."""
        if name.startswith(CONTEXT_PREFIX):
            found = pc.map_lookup(self._columns["context"], name.removeprefix(CONTEXT_PREFIX), "first")
            return found.cast(pa.string())
        if name.startswith(ATTRIBUTE_PREFIX):
            return attribute_values(self._attributes, name.removeprefix(ATTRIBUTE_PREFIX))
        of = "endpoint" if name.startswith("endpoint") else "message"
        encoded = self._columns[of].dictionary_encode()
        texts = (text or "" for text in encoded.dictionary.to_pylist())
        values = (
            make_event_values("", text, "", {}) if of == "endpoint" else make_event_values(text, "", "", {})
            for text in texts
        )
        return pa.array([each[name] for each in values], pa.string()).take(encoded.indices)

    @cached_property
    def _attributes(self) -> Attributes:
        """The attributes of the events."""
        return read_attributes(self._raw, self._columns["attributes"])

    def _build_values(self) -> pa.BinaryArray:
        """Return the bodies; a dead letter that is too large for its topic has none."""
        body = self._outcomes.column("body")
        spilled = pc.fill_null(self._columns["spilled"], False)
        if pc.any(spilled).as_py():
            body = pc.if_else(spilled, _NO_BYTES, body)
        if self._records.is_structured and self._is_event.any():
            body = encode_structured_events(self._attributes, body, self._columns["typed"])
        return self._add_frames(body) if self._records.frames else body

    def _add_frames(self, body: pa.BinaryArray) -> pa.BinaryArray:
        """Put the frames of their definitions before bodies.

        A body is unchanged if it already has a frame (its schema id was found), has a content coding, or is JSON while
        its schema has binary bodies.
        """
        frames = self._records.frames or {}
        encoded = self._columns["message"].dictionary_encode()
        known = [frames.get(xid) for xid in encoded.dictionary.to_pylist()]
        frame_bytes = pa.array([each and each.head for each in known], pa.binary()).take(encoded.indices)
        plain = pa.array([each is not None and each.plain for each in known], pa.bool_()).take(encoded.indices)
        media = pc.fill_null(pc.utf8_lower(attribute_values(self._attributes, _MEDIA)), "")
        needed = pc.or_(pc.fill_null(plain, False), pc.invert(pc.match_substring_regex(media, _JSON)))
        needed = pc.and_(needed, pa.array(~self._has_coding()))
        if SCHEMA_ID in self._columns:
            needed = pc.and_(needed, self._columns[SCHEMA_ID].is_null())
        needed = pc.and_(needed, pc.and_(frame_bytes.is_valid(), body.is_valid()))
        return pc.if_else(needed, pc.binary_join_element_wise(frame_bytes, body, b""), body)

    def _has_coding(self) -> Bool:
        """Return which records have a content coding."""
        entries = Entries(self._source_headers)
        return entries.rows_with(entries.find_entries(lambda name: name.lower() == CODING))

    def _build_headers(self) -> pa.ListArray:
        pieces = [*self._iter_event_headers(), *self._iter_lineage_headers(), *self._iter_letter_headers()]
        if not pieces:
            return pa.array([], HEADERS)
        if len(pieces) == 1 and pieces[0][0].all() and not pieces[0][1].null_count:
            return pieces[0][1]
        return join_headers(self._rows, pieces)

    def _iter_event_headers(self) -> Iterator[HeaderPiece]:
        """Yield the headers of events: those of the source record, or else their attributes and other headers."""
        columns, headers, events = self._columns, self._source_headers, self._is_event
        if self._records.is_structured:
            yield repeat_header(CONTENT_TYPE, _EVENT_MEDIA, events)
            yield events, pc.coalesce(columns["forwarded"], remove_headers(headers, _is_attribute_header))
            return
        rebuilt = events & is_not_null(columns["attributes"])
        if not rebuilt.all():
            yield events & ~rebuilt, headers
        if rebuilt.any():
            at = pa.array(np.flatnonzero(rebuilt))
            yield rebuilt, columns["attributes"]
            yield (
                rebuilt,
                pc.coalesce(columns["forwarded"].take(at), remove_headers(headers.take(at), CONTENT_TYPE.__eq__)),
            )

    def _iter_lineage_headers(self) -> Iterator[HeaderPiece]:
        """Yield the lineage headers of events, in the form of their sink."""
        routes = np.where(self._is_event, self._routes, -1)
        for form in dict.fromkeys(each for each in self._records.lineage if each):
            rows = np.array([*(each == form for each in self._records.lineage), False], bool)[routes]
            if rows.any():
                yield from self._iter_lineage_form(form, rows)

    def _iter_lineage_form(self, form: LineageForm, rows: Bool) -> Iterator[HeaderPiece]:
        columns = self._columns
        optional = {name: columns[name] for name in ("ambiguous", *RELATED, SCHEMA_ID) if name in columns}
        members = {
            "endpoint": columns["endpoint"],
            "epoch": pa.repeat(self._records.epoch, self._rows),
            "position": self._outcomes.column("position"),
            **{name: texts for name, texts in optional.items() if texts.null_count < self._rows},
        }
        optional_headers = {f"{LINEAGE}{name}" for name in optional}
        headers = lineage_header_columns(columns["message"], context_json(columns["context"]), members, form)
        for name, texts in headers.items():
            yield repeat_header(name, texts, rows & is_not_null(texts) if name in optional_headers else rows)

    def _iter_letter_headers(self) -> Iterator[HeaderPiece]:
        """Yield the headers of dead letters: the original headers, followed by those of the router."""
        if not len(self._dead_letter_rows):
            return
        records, at, letters = self._records, pa.array(self._dead_letter_rows), ~self._is_event
        rows, kafka = self._outcomes.take(at), records.kind == "kafka"
        names = ("reason", "detail", "nearest", "endpoint", "forwarded", "position_in_batch")
        columns = {name: self._columns[name].take(at) for name in names}
        positions, raw = rows.column("position"), rows.column("raw")
        if "letter" in rows.schema.names:
            ids = rows.column("letter")
        else:
            ids = pa.array(dead_letter_ids(records.query, positions), pa.string())
        endpoint = columns["endpoint"]
        headers: dict[str, pa.StringArray | str] = {
            "letter": ids,
            "reason": columns["reason"],
            "detail": pc.utf8_slice_codeunits(columns["detail"], 0, MAX_HEADER_CHARS),
            "nearest": pc.utf8_slice_codeunits(columns["nearest"], 0, MAX_HEADER_CHARS),
            "endpoint": endpoint if kafka else pc.coalesce(endpoint, pc.struct_field(raw, "endpoint")),
            "protocol": rows.column("protocol"),
            "epoch": records.epoch,
            "position": positions,
            "received": to_rfc3339(rows.column("received").cast(pa.timestamp("us"))),
            "failed": records.failed_at,
            "attempts": "1",
            **({} if kafka else {"native": native_texts(records.kind, raw, columns["position_in_batch"])}),
        }
        yield letters, pc.coalesce(columns["forwarded"], self._source_headers.take(at))
        for name, texts in headers.items():
            yield repeat_header(f"{LINEAGE}{name}", texts, letters)
        # Only a spilled dead letter names its file.
        spilled = letters & pc.fill_null(self._columns["spilled"], False).to_numpy(zero_copy_only=False)
        if spilled.any():
            files = pc.binary_join_element_wise("spill/", ids, ".json", "")
            yield repeat_header(f"{LINEAGE}spill", files.filter(pa.array(spilled[letters])), spilled)


def _is_attribute_header(name: str) -> bool:
    """Whether a header has an event's attribute in binary mode; in structured mode only the body has it."""
    return name.startswith("ce_") or name == CONTENT_TYPE


def create_single_write(
    records: KafkaRecords,
    judge: Broadcast[Evaluator],
    tallies: Accumulator[dict[str, str]],
    *,
    converts: bool = False,
) -> WorkerPass:
    """Create the pass of a query that turns source rows into Kafka records, events and dead letters, in one write.

    Its tallies go to *tallies*; *converts* is the result of
    :func:`router.evaluation.outcome_rows.needs_milliseconds`.
    """
    from pyspark.sql.types import _parse_datatype_string

    kind = records.kind
    type_ = judge.value.outputs.outcome_type
    if not records.needs_context:
        # Context attributes are costly, and no header has them.
        type_ = pa.struct([field for field in type_ if field.name != "context"])
    function = partial(_evaluate_and_render, records, type_, judge, tallies)
    columns, schema = source_columns(kind, converts=converts), _parse_datatype_string(RECORD_TYPE)
    return WorkerPass.create(columns, RAW_COLUMNS[kind], function, cast("StructType", schema))


def to_kafka_records(single_write: WorkerPass, rows: DataFrame, failed: str) -> DataFrame:
    """Return the Kafka records (topic, key, value, headers) of the source's *rows*.

    This thread must write them before the next attempt. *failed* is the time of the dead letters.
    """
    # A task property: the function is the same for all attempts.
    spark_context().setLocalProperty(FAILED_AT, failed)
    return single_write.apply(rows)


def _evaluate_and_render(
    records: KafkaRecords,
    type_: pa.StructType,
    judge: Broadcast[Evaluator],
    tallies: Accumulator[dict[str, str]],
    batches: Batches,
) -> Batches:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    dated = replace(records, failed_at=context.getLocalProperty(FAILED_AT) or "")

    def render(_: Evaluator, rows: pa.RecordBatch, outcomes: RoutedOutcomes) -> pa.RecordBatch:
        return dated.render(build_outcome_rows(records.kind, type_, rows, outcomes))

    return evaluate_batches(records.kind, judge, tallies, render, batches)


def iter_spilled_records(rows: DataFrame, kind: Kind) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the complete native record (MATCHING.md#records) of each spilled dead letter."""
    from pyspark.sql import functions as F

    endpoint = F.col("m.endpoint") if kind == "kafka" else F.coalesce(F.col("m.endpoint"), F.col("raw.endpoint"))
    spilled = rows.where("m.spilled").select(
        "letter", "raw", F.col("m.position_in_batch").alias("place"), "body", endpoint.alias("endpoint")
    )
    for row in spilled.toLocalIterator():
        parts, binding = parts_of_raw(row["raw"].asDict(recursive=True), kind, row["place"])
        body = None if row["body"] is None else bytes(row["body"])
        record = Record(binding.protocol, binding.build(parts), body, row["endpoint"])
        yield row["letter"], msgspec.json.encode(record.to_json())


def order_key_column(kind: Kind) -> Column:
    """Return the ordering key of a row, a hash of its channel and key; null without a key.

    The channel is the topic, or else the endpoint where the record arrived. The matched endpoint does not serve: it may
    depend on the outcome if several endpoints share a channel.
    """
    from pyspark.sql import functions as F

    channel = F.concat(F.lit("kafka:"), F.col("raw.topic")) if kind == "kafka" else F.col("raw.endpoint")
    key = F.coalesce(F.col("m.key"), source_column(kind, "key"))
    return F.substring(F.sha2(F.concat(F.encode(channel, "UTF-8"), F.lit(bytearray(1)), key), 256), 1, 32)
