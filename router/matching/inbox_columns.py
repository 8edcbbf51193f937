"""Build record columns from Kafka and inbox rows: from Arrow columns where possible, with the exact codec otherwise.

:mod:`bindings.columns.envelopes` reads the envelopes, this module the properties that definitions constrain. A row also
falls back to the codec if such a property repeats or is not text, and if its gateway marked it. A batch may mix rows of
all protocols except Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.columns.entries import Int, PartEntries, decode_utf8, encode_base64, is_not_null
from bindings.columns.envelopes import Envelopes, JsonEvents, may_be_events
from bindings.kafka.binding import PROTOCOL, split_row
from bindings.kafka.record_columns import KafkaColumnReader, KafkaColumns
from bindings.parts import BINARY_KIND, CODING_KEYS, Part
from bindings.protocols import BINDINGS, Binding, binding_of
from catalog.definitions.constraints import CONTENT_TYPE_KEY
from catalog.values import YEAR_1, YEAR_10000
from router.matching.index.classes import BatchColumns, BoolArray, IntArray, SplitColumn
from router.matching.mapping import Defaults, check_types, drop_unusable
from router.matching.matcher import Matcher
from router.matching.record_columns import (
    NO_SOURCE,
    OVERSIZED,
    UNDECODABLE,
    ColumnRows,
    RawRow,
    RecordColumns,
    RecordColumnsBuilder,
    protocol_number,
)

# Joining record columns of rows that were read from columns and by the codec.


def concat_record_columns(one: RecordColumns, other: RecordColumns, keys: Sequence[str]) -> RecordColumns:
    """Append the rows of *other* to those of *one*, with the columns of *keys* and all attributes."""
    shift = one.columns.rows
    attributes = (key for key in (*one.columns.by_key, *other.columns.by_key) if key.startswith("e."))
    columns = {
        key: SplitColumn(pa.concat_arrays([_column_or_nulls(one, key), _column_or_nulls(other, key)]))
        for key in dict.fromkeys((*keys, *attributes))
        if key in one.columns.by_key or key in other.columns.by_key
    }
    repeats = {(row + shift, key): texts for (row, key), texts in other.columns.repeats.items()}
    defaults = [
        pa.concat_arrays([getattr(one.defaults, name), getattr(other.defaults, name)])
        for name in ("id", "time", "datacontenttype", "partitionkey")
    ]
    return RecordColumns(
        BatchColumns(shift + other.columns.rows, columns, {**one.columns.repeats, **repeats}),
        np.concatenate((one.channels, other.channels)),
        np.concatenate((one.protocols, other.protocols)),
        np.concatenate((one.events, other.events)),
        np.concatenate((one.sources, other.sources)),
        Defaults(*defaults),
        {**one.faults, **{row + shift: fault for row, fault in other.faults.items()}},
        {**one.readings, **{row + shift: reading for row, reading in other.readings.items()}},
        one.batches | other.batches,
        (*one.empty, *other.empty),
        _concat(one.bodies, other.bodies, shift, other.columns.rows, pa.binary()),
        _concat(one.codings, other.codings, shift, other.columns.rows, pa.string()),
        _concat_inner(one, other),
        (*one.settled, *(ColumnRows(each.start + shift, each.envelopes) for each in other.settled)),
    )


def _concat(one: pa.Array | None, other: pa.Array | None, rows: int, more: int, kind: pa.DataType) -> pa.Array | None:
    """Concatenate two columns, with nulls up to *rows* values in the first; None if both are None."""
    if other is None:
        return one
    first = pa.nulls(rows, kind) if one is None else pa.concat_arrays([one, pa.nulls(rows - len(one), kind)])
    return pa.concat_arrays([first, other])


def _concat_inner(one: RecordColumns, other: RecordColumns) -> BoolArray | None:
    """Return which bodies are only the data of a JSON event; None if none is."""
    if one.inner is None and other.inner is None:
        return None
    both = (np.zeros(each.columns.rows, bool) if each.inner is None else each.inner for each in (one, other))
    return np.concatenate(tuple(both))


def _column_or_nulls(facts: RecordColumns, key: str) -> pa.StringArray:
    column = facts.columns.by_key.get(key)
    return column.values if column is not None else pa.nulls(facts.columns.rows, pa.string())


# Instants, and instants as text, for whole columns.

_MARK: Final = 10
"""Where Arrow puts a blank between day and time, and RFC 3339 a ``T``."""


def to_rfc3339(stamps: pa.TimestampArray) -> pa.StringArray:
    """Return instants in UTC without zone as RFC 3339 text, in their unit; null for null.

    They must be of the years 1 to 9999. This takes a tenth of the time of ``strftime``.
    """
    texts = pc.binary_replace_slice(stamps.cast(pa.string()).cast(pa.binary()), _MARK, _MARK + 1, b"T")
    return pc.binary_join_element_wise(texts.cast(pa.string()), "Z", "")


def kafka_instants(milliseconds: pa.Int64Array) -> pa.TimestampArray:
    """Return Kafka timestamps as instants in UTC without zone; null if outside of the years 1970 to 9999.

    A negative timestamp says that the record has none. Neither texts nor tables have years past 9999.
    """
    dated = pc.and_(pc.greater_equal(milliseconds, 0), pc.less(milliseconds, YEAR_10000))
    return pc.if_else(dated, milliseconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms"))


UNKNOWN: Final = "HTTP"
"""The binding by which rows of a protocol are read that has none; only others write them to an inbox topic."""
ATTRIBUTE: Final = "e."
PROPERTY: Final = "p."
BYTES: Final = "b."
_CONTENT_TYPE: Final = "headers.content-type"
_STREAM: Final = ("stream", "sequence")
_MARKS: Final = (OVERSIZED, UNDECODABLE)

T = TypeVar("T")


def inbox_parts(properties: Iterable[Mapping[str, Any]]) -> list[Part]:
    """Return the parts of a row's properties."""
    return [Part(entry["key"], entry["value"], entry["type"]) for entry in properties]


def read_inbox_rows(
    batch: pa.RecordBatch, matcher: Matcher, channels: Mapping[str, int], attributes: Sequence[str] = ()
) -> RecordColumns:
    """Return the facts of inbox rows, for the properties of the plan's index and these attributes.

    ``channels`` number the endpoints. Odd rows have no source in the columns' part, and are appended from the codec.
    """
    rows = _InboxRows(batch, matcher, channels)
    columns = rows.build_columns((*matcher.keys, *(f"{ATTRIBUTE}{name}" for name in attributes)))
    fallback = np.flatnonzero(rows.fallback)
    if not len(fallback):
        return columns
    exact = RecordColumnsBuilder(matcher.keys)
    for raw in rows.iter_raw(fallback):
        exact.add(raw)
    return concat_record_columns(columns, exact.build(), matcher.keys)


class _InboxRows:
    """The rows of one batch, and what is known of them so far."""

    def __init__(self, batch: pa.RecordBatch, matcher: Matcher, channels: Mapping[str, int]) -> None:
        self._batch = batch
        self._matcher = matcher
        self._bindings, self._groups = _map_distinct(batch.column("protocol"), _binding_of)
        numbers, places = _map_distinct(batch.column("endpoint"), lambda name: channels.get(name or "", -1))
        self._channels = np.array(numbers, np.int64)[places]
        self._entries = PartEntries(batch.column("properties"), self._groups)
        self._envelopes = Envelopes(
            self._entries, [each.rule for each in self._bindings], [each.binary for each in self._bindings]
        )
        self.fallback = self._envelopes.odd.copy()
        self._by_key: dict[str, list[int]] = {}
        for number, (_, key) in enumerate(self._entries.pairs):
            self._by_key.setdefault(key, []).append(number)
        self._mark_fallback_rows()

    def _mark_fallback_rows(self) -> None:
        """Mark rows that the exact codec must read as a whole."""
        keyed = np.array([bool(binding.sending.key_name) for binding in self._bindings], bool)
        self.fallback |= keyed[self._groups]
        for mark in _MARKS:
            self.fallback[self._entries.owners[self._entries_of_key(mark, empty=True)]] = True
        rows = np.flatnonzero(self._envelopes.sniffable & ~self.fallback)
        pairs, inverse = np.unique(self._channels[rows] * len(self._bindings) + self._groups[rows], return_inverse=True)
        names = [binding.protocol for binding in self._bindings]
        sniffs = [
            self._matcher.sniffs(channel, names[group])
            for channel, group in (divmod(pair, len(names)) for pair in pairs.tolist())
        ]
        rows = rows[np.array(sniffs, bool)[inverse]]
        rows = rows[may_be_events(self._batch.column("body").take(pa.array(rows)))]
        self._read_json(np.union1d(rows, np.flatnonzero(self._envelopes.structured & ~self.fallback)))

    def _read_json(self, rows: Int) -> None:
        """Read the bodies of rows that are events in JSON, or may be."""
        bodies = self._batch.column("body").take(pa.array(rows))
        self.fallback[rows] |= ~is_not_null(bodies)
        rows = rows[is_not_null(bodies)]
        if len(rows):
            self._envelopes.add_json_events(rows, JsonEvents(bodies.drop_null()))
            self.fallback |= self._envelopes.odd

    def build_columns(self, keys: Iterable[str]) -> RecordColumns:
        """Return the record columns of all rows; those of fallback rows are undefined."""
        events, fallback = self._envelopes.events, self.fallback
        columns = {key: column for key in dict.fromkeys(keys) if (column := self._find_column(key)) is not None}
        defaults = self._native_defaults()
        channels, sources = self._channels.copy(), np.arange(len(fallback))
        channels[fallback], sources[fallback] = -1, NO_SOURCE
        protocols = np.array([protocol_number(binding.protocol) for binding in self._bindings], np.int64)
        return RecordColumns(
            BatchColumns(len(fallback), {key: SplitColumn(values) for key, values in columns.items()}),
            channels,
            protocols[self._groups],
            events.astype(np.int64),
            sources,
            defaults,
            bodies=self._envelopes.event_data_or(self._batch.column("body")),
            codings=self._content_codings(),
            inner=self._envelopes.is_json_event,
            settled=(ColumnRows(0, self._envelopes),),
        )

    def iter_raw(self, rows: Int) -> Iterable[RawRow]:
        """Yield these rows for the exact codec."""
        taken = self._batch.select(["received", "properties", "body", "position"]).take(pa.array(rows))
        times = arrival_times(taken.column("received")).to_pylist()
        entries = taken.select(["properties", "body", "position"]).to_pylist()
        for row, time, entry in zip(rows.tolist(), times, entries, strict=True):
            binding, channel = self._bindings[int(self._groups[row])], int(self._channels[row])
            yield RawRow(
                row,
                binding,
                inbox_parts(entry["properties"]),
                entry["body"],
                channel,
                lambda channel=channel, name=binding.protocol: self._matcher.sniffs(channel, name),  # type: ignore[misc]
                entry["position"],
                time,
            )

    def _entries_of_key(self, key: str, *, empty: bool = False) -> Int:
        return self._entries.entries_of_pairs(self._by_key.get(key, ()), empty=empty)

    def _find_column(self, key: str) -> pa.StringArray | None:
        """Return the column of a property; None where no row has it."""
        if key == CONTENT_TYPE_KEY:
            return self._envelopes.types
        if key.startswith(ATTRIBUTE):
            return self._envelopes.attribute_column(key.removeprefix(ATTRIBUTE))
        if key.startswith(PROPERTY):
            return self._property_column(key.removeprefix(PROPERTY))
        if key.startswith(BYTES):
            entries = self._entries_of_key(key.removeprefix(BYTES))
            return encode_base64(self._entries.values_at(self._single_entries(entries))) if len(entries) else None
        return None

    def _property_column(self, key: str) -> pa.StringArray | None:
        numbers = self._by_key.get(key, [])
        if key == _CONTENT_TYPE:
            numbers = [
                number
                for number, (_, name) in enumerate(self._entries.pairs)
                if name.startswith("headers.") and name.lower() == key
            ]
        entries = self._entries.entries_of_pairs(numbers)
        if not len(entries):
            return None
        places = self._single_entries(entries)
        values = self._entries.values_at(places)
        texts = decode_utf8(values)
        binary = (places >= 0) & self._entries.is_kind(BINARY_KIND)[places]
        if key == _CONTENT_TYPE:
            self.fallback |= binary  # Its name counts in any letter case, but not where it has bytes.
        elif binary.any():
            texts = pc.if_else(pa.array(binary), encode_base64(values), texts)
        self.fallback |= (places >= 0) & ~is_not_null(texts)
        return texts

    def _single_entries(self, entries: Int) -> Int:
        """Return the entry of every row, -1 for none; rows with several become fallback rows."""
        places, repeated = self._entries.first_and_repeats(entries)
        self.fallback[repeated] = True
        return places

    def _native_defaults(self) -> Defaults:
        """Return what the protocols supply to native rows."""
        own, nothing = self._batch.column("position"), pa.nulls(len(self.fallback), pa.string())
        native = ~self._envelopes.events & ~self.fallback
        if not native.any():
            return Defaults(own, nothing, self._envelopes.types, nothing)
        times = arrival_times(pc.if_else(pa.array(native), self._batch.column("received"), None))
        for ids in (self._stream_ids(), *self._iter_part_texts("id_key")):
            own = pc.coalesce(drop_unusable(ids), own)
        for given in self._iter_part_texts("time_key"):
            times = pc.if_else(pc.fill_null(check_types(given, ("timestamp",)), False), given, times)
        keys = pc.coalesce(nothing, *self._iter_part_texts("partition_key"))
        return Defaults(own, times, self._envelopes.types, keys)

    def _iter_part_texts(self, name: str) -> Iterable[pa.StringArray]:
        """Yield the columns of the parts that bindings name, each null in rows of other bindings."""
        for group, binding in enumerate(self._bindings):
            key = getattr(binding, name)
            numbers = [number for number in self._by_key.get(key, ()) if self._entries.pairs[number][0] == group]
            if key and numbers:
                places, _ = self._entries.first_and_repeats(self._entries.entries_of_pairs(numbers, empty=True))
                yield decode_utf8(self._entries.values_at(places))

    def _stream_ids(self) -> pa.StringArray:
        """Return ``stream-sequence`` of the messages of JetStream."""
        pairs = [self._entries.first_and_repeats(self._entries_of_key(key, empty=True))[0] for key in _STREAM]
        both = (pairs[0] >= 0) & (pairs[1] >= 0)
        texts = [decode_utf8(self._entries.values_at(np.where(both, places, -1))) for places in pairs]
        self.fallback |= both & ~(is_not_null(texts[0]) & is_not_null(texts[1]))
        return pc.binary_join_element_wise(*texts, "-")

    def _content_codings(self) -> pa.StringArray | None:
        numbers = sorted(number for key in CODING_KEYS for number in self._by_key.get(key, ()))
        if not numbers:
            return None
        places, _ = self._entries.first_and_repeats(self._entries.entries_of_pairs(numbers))
        return decode_utf8(self._entries.values_at(np.where(self._envelopes.is_json_event, -1, places)))


def arrival_times(received: pa.TimestampArray) -> pa.StringArray:
    """Return when rows arrived as RFC 3339 text, to the microsecond; null where that is no time of the calendar."""
    moments = received.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    dated = pc.and_(pc.greater_equal(moments, 1000 * YEAR_1), pc.less(moments, 1000 * YEAR_10000))
    return to_rfc3339(pc.if_else(dated, moments, pa.scalar(None, pa.int64())).cast(pa.timestamp("us")))


def _map_distinct(values: pa.StringArray, meaning: Callable[[str | None], T]) -> tuple[list[T], Int]:
    """Return what the distinct values mean, and the place of every value's among them."""
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    return [meaning(text) for text in encoded.dictionary.to_pylist()], encoded.indices.to_numpy().astype(np.int64)


def _binding_of(protocol: str | None) -> Binding:
    return binding_of(protocol or "") or BINDINGS[UNKNOWN]


# Record columns of Kafka records.

_PLACE: Final = ("topic", "partition", "offset")

_RAW: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def read_kafka_rows(
    rows: pa.RecordBatch,
    matcher: Matcher,
    reader: KafkaColumnReader,
    channels: IntArray,
    *,
    times: pa.StringArray | None = None,
) -> RecordColumns:
    """Return the facts of rows of ``SOURCE_SCHEMA``; ``times`` stand in for rows without a timestamp.

    Odd rows are excluded from the columns' part (their channel there is unknown) and appended from the codec.
    """
    read = reader.read_columns(rows)
    fallback = np.flatnonzero(read.odd)
    settled = _column_facts(rows, read, channels, fallback, times)
    if not len(fallback):
        return settled
    exact = RecordColumnsBuilder(matcher.keys)
    binding = BINDINGS[PROTOCOL]
    at = pa.array(fallback)
    time = times_of(rows.column("timestamp").take(at), None if times is None else times.take(at)).to_pylist()
    for row, entry, moment in zip(fallback.tolist(), rows.select(_RAW).take(at).to_pylist(), time, strict=True):
        channel = int(channels[row])
        exact.add(
            RawRow(
                row,
                binding,
                split_row(entry),
                entry["value"],
                channel,
                lambda channel=channel: matcher.sniffs(channel, PROTOCOL),  # type: ignore[misc]
                f"{entry['topic'] or ''}-{entry['partition']}-{entry['offset']}",
                moment,
            )
        )
    return concat_record_columns(settled, exact.build(), matcher.keys)


def _column_facts(
    rows: pa.RecordBatch,
    read: KafkaColumns,
    channels: IntArray,
    fallback: IntArray,
    times: pa.StringArray | None,
) -> RecordColumns:
    count = rows.num_rows
    own = channels.copy()
    own[fallback] = -1
    sources = np.arange(count)
    sources[fallback] = NO_SOURCE
    return RecordColumns(
        BatchColumns(count, {name: SplitColumn(text) for name, text in read.texts.items()}),
        own,
        np.full(count, protocol_number(PROTOCOL), np.int64),
        read.events.astype(np.int64),
        sources,
        _kafka_defaults(rows, read, times),
        bodies=rows.column("value"),
        codings=read.content_codings,
    )


def _kafka_defaults(rows: pa.RecordBatch, read: KafkaColumns, times: pa.StringArray | None) -> Defaults:
    """Return the default attributes of native records; null for events, which have their own."""
    native = np.flatnonzero(~read.events)
    at = pa.array(native)
    back = np.full(rows.num_rows, -1, np.int64)
    back[native] = np.arange(len(native))
    places = pa.array(back, mask=back < 0)
    identity = kafka_positions(rows.select(_PLACE).take(at))
    time = times_of(rows.column("timestamp").take(at), None if times is None else times.take(at))
    key = decode_utf8(rows.column("key").take(at))
    return Defaults(identity.take(places), time.take(places), read.content, key.take(places))


def kafka_positions(rows: pa.RecordBatch) -> pa.StringArray:
    """Return topic, partition and offset of each row as text, the start of positions of events and dead letters."""
    topic = pc.fill_null(rows.column("topic"), "")
    numbers = (rows.column(name).cast(pa.string()) for name in ("partition", "offset"))
    return pc.binary_join_element_wise(topic, *numbers, "-")


def kafka_time(milliseconds: int | None) -> str | None:
    """Return what :func:`times_of` does, for one record."""
    if milliseconds is None or not 0 <= milliseconds < YEAR_10000:
        return None
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z"


def times_of(milliseconds: pa.Int64Array, times: pa.StringArray | None = None) -> pa.StringArray:
    """Return timestamps of Kafka as RFC 3339, else ``times``."""
    text = to_rfc3339(kafka_instants(milliseconds))
    return text if times is None else pc.coalesce(text, times)
