"""Record columns: everything that matching uses, as columns, for the rows of one batch.

Rows come in two ways. Most have only columns: those that Spark selected from Kafka records, and those of the parts of
inbox rows. Raw rows (parts and body) go through the exact codec: fallback rows, and what ``match`` reads of all
protocols except Kafka. A CloudEvents batch becomes one row per event. Both end in the same columns and the same
matcher.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bindings.columns.envelopes import Envelopes
from bindings.envelope import Envelope
from bindings.events import NotAnEvent, decode_batch
from bindings.parts import BINARY_KIND, Part, Parts, content_coding_of, first_part
from bindings.protocols import BINDINGS, Binding, stream_id
from catalog.schemas.contract import SchemaFault, decode_content
from catalog.schemas.ids.deciding import FrameIds
from catalog.values import is_timestamp
from router.matching.index.classes import BatchColumns, BoolArray, IntArray, SplitColumn
from router.matching.mapping import Defaults, value_fault

if TYPE_CHECKING:
    from router.matching.schema_ids import IdFilteredSets

NO_SOURCE: Final = -1
"""The source of a row that is empty because the exact codec reads its record."""
OVERSIZED: Final = "oversized"
"""The part that marks a message as too large, set by a gateway, and the reason of the dead letter."""
UNDECODABLE: Final = "undecodable"
"""The same for bytes that are not a message of the protocol; they are the body, and the part's text says why."""
SCHEMA_ID: Final = "schemaid"
"""The name of the id of the writer's schema in lineage."""
EVENT_MEDIA: Final = b"application/cloudevents+json"
MAX_COPIED_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of a batch message's parts, counted once for each of its events: every event has all of them.

A record of a megabyte may have thousands of events and thousands of headers, which would be gigabytes together.
"""


@cache
def protocol_number(protocol: str) -> int:
    """Return the index of a protocol among the bindings, by which columns name it."""
    return list(BINDINGS).index(protocol)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One record for the exact codec. ``identity`` and ``time`` (of arrival) are for mapped events without their own.

    ``channel`` is its number (-1: unknown); ``sniff`` says whether that channel accepts events in plain JSON bodies.
    """

    source: int
    binding: Binding
    parts: Parts
    body: bytes | None
    channel: int
    sniff: Callable[[], bool]
    identity: str
    time: str | None


@dataclass(frozen=True, slots=True)
class ExactReading:
    """The exact reading of one row. ``place`` is its index in a batch, -1 outside one."""

    parts: Parts
    body: bytes | None
    envelope: Envelope
    place: int = -1

    @property
    def payload(self) -> Payload:
        """The input of data schemas."""
        envelope = self.envelope
        if not envelope.is_event:
            return Payload(self.body, envelope.content_type, content_coding_of(self.parts))
        content = envelope.attributes.get("datacontenttype")
        inner = envelope.mode == "structured"
        return _to_payload(envelope.data, content, None if inner else content_coding_of(self.parts), inner=inner)


@dataclass(frozen=True, slots=True)
class Payload:
    """The input of data schemas: the data, and the content type that says how to read them.

    ``whole`` says that the data are the message's body, and not a part of it; ``coding`` how that body is coded.
    """

    body: bytes | None
    content_type: str | None
    coding: str = ""
    whole: bool = True


def _to_payload(body: bytes | None, content_type: str | None, coding: str | None, *, inner: bool) -> Payload:
    """Return the data of a record, which are its body or an *inner* part of an event in JSON."""
    return Payload(body, content_type, whole=False) if inner else Payload(body, content_type, coding or "")


def _decode_payload(payload: Payload | None) -> Payload | SchemaFault | None:
    if payload is None or not payload.coding or payload.body is None:
        return payload
    body = decode_content(payload.body, payload.coding)
    return replace(payload, body=body) if isinstance(body, bytes) else body


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Rows whose parts are columns: row *i* of ``envelopes`` is row ``start`` + *i*."""

    start: int
    envelopes: Envelopes


@dataclass(slots=True)
class RecordColumns:
    """One batch. Row *i* belongs to input row ``sources[i]``; only raw rows have ``readings``.

    ``faults`` give reason and detail of rows that are no valid record whatever the catalog says. ``batches`` are
    the input rows that were CloudEvents batches, ``empty`` the channels of those without an event. ``bodies`` and their
    content ``codings`` are those of rows without a reading, where the plan needs them; ``inner`` marks those that are
    only the data of an event in JSON, and is None when none is. ``settled`` are the parts of such rows, except for
    Kafka's, which the JVM has.
    """

    columns: BatchColumns
    channels: IntArray
    protocols: IntArray
    events: IntArray
    sources: IntArray
    defaults: Defaults
    faults: dict[int, tuple[str, str]] = field(default_factory=dict)
    readings: dict[int, ExactReading] = field(default_factory=dict)
    batches: frozenset[int] = frozenset()
    empty: tuple[int, ...] = ()
    bodies: pa.BinaryArray | None = None
    codings: pa.StringArray | None = None
    inner: BoolArray | None = None
    settled: tuple[ColumnRows, ...] = ()
    ids: FrameIds | None = None
    """The schema ids in bodies, where they are searched for."""
    identified: IdFilteredSets | None = None
    """The decisions by those ids, once made."""

    def payload(self, row: int) -> Payload | None:
        """Return what the data schema of that row's definition validates; None if it is not known here."""
        return self.payloads([row])[0]

    def payloads(self, rows: Sequence[int]) -> list[Payload | None]:
        """Return the results of :meth:`payload` for many rows; those of columns are read together."""
        taken = iter(self._payloads_from_columns([row for row in rows if row not in self.readings]))
        return [self.readings[row].payload if row in self.readings else next(taken) for row in rows]

    def decoded_payloads(self, rows: Sequence[int]) -> list[Payload | SchemaFault | None]:
        """Return the payloads of rows without their content coding; a fault for a wrong coding, None for what cannot be
        validated.
        """
        return [_decode_payload(each) for each in self.payloads(rows)]

    def _payloads_from_columns(self, rows: Sequence[int]) -> list[Payload | None]:
        if self.bodies is None or not rows:
            return [None] * len(rows)
        places = np.array(rows, np.int64)
        known = places < len(self.bodies)
        at = pa.array(places, mask=~known)
        given = (self.bodies, self.defaults.datacontenttype, self.codings)
        bodies, types, codings = ([None] * len(rows) if each is None else each.take(at).to_pylist() for each in given)
        inner = np.zeros(len(rows), bool) if self.inner is None else self.inner[places]
        lines = zip(bodies, types, codings, inner.tolist(), known.tolist(), strict=True)
        return [
            _to_payload(body, type_, coding, inner=is_inner) if is_known else None
            for body, type_, coding, is_inner, is_known in lines
        ]

    def values(self, row: int, key: str) -> list[str | None]:
        """Return the values of a property in one row, as shown in explanations; empty if absent."""
        repeats = self.columns.repeats.get((row, key))
        if repeats is not None:
            return list(repeats)
        column = self.columns.by_key.get(key)
        text = column.values[row].as_py() if column is not None else None
        return [] if text is None else [text]


class _SparseColumns:
    """Columns that have values in few rows each."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._iter_texts: dict[str, list[str | None]] = {}

    def put(self, row: int, key: str, text: str | None) -> None:
        self._rows.setdefault(key, []).append(row)
        self._iter_texts.setdefault(key, []).append(text)

    def build(self, rows: int) -> dict[str, pa.StringArray]:
        columns: dict[str, pa.StringArray] = {}
        for key, places in self._rows.items():
            indices = np.full(rows, -1, np.int64)
            indices[places] = np.arange(len(places))
            columns[key] = pa.array(self._iter_texts[key], pa.string()).take(pa.array(indices, mask=indices < 0))
        return columns


class RowTexts(NamedTuple):
    """What matching uses of one row: the texts of each property (None: not a text), and its defaults.

    The defaults are those of :class:`Defaults`, in order. ``fault`` is as in :attr:`RecordColumns.faults`; a row that
    has one has no texts.
    """

    texts: dict[str, list[str | None]]
    defaults: tuple[str, str | None, str | None, str | None]
    fault: tuple[str, str] | None = None


class RowReader:
    """Reads rows that the exact codec has read, for the properties that a plan's index uses."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)
        self._bytes = {key.removeprefix("b."): key for key in self._keys if key.startswith("b.")}
        self._names = {key[2:] for key in self._keys if key.startswith("p.")}
        if "key_base64" in self._names:
            self._names.add("key")

    def read(self, raw: RawRow, reading: ExactReading) -> RowTexts:
        """Return what matching uses of a row."""
        envelope, texts = reading.envelope, dict[str, list[str | None]]()
        fault = self._fault(reading)
        if fault is None:
            self._add_attributes(texts, envelope)
            self._add_options(texts, raw.binding, reading.parts)
        return RowTexts(texts, _row_defaults(raw, reading), fault)

    @staticmethod
    def _fault(reading: ExactReading) -> tuple[str, str] | None:
        envelope = reading.envelope
        for part in reading.parts:
            if part.key == OVERSIZED:
                return OVERSIZED, f"{part.text} bytes of body exceed gateways.max_body"
            if part.key == UNDECODABLE:
                return UNDECODABLE, part.text or "the message cannot be decoded"
        if envelope.mode == "undecodable":
            return UNDECODABLE, envelope.detail
        return ("invalid-cloudevent", "; ".join(envelope.faults)) if envelope.faults else None

    def _add_attributes(self, texts: dict[str, list[str | None]], envelope: Envelope) -> None:
        content = envelope.content_type
        if envelope.is_event:
            content = envelope.attributes.get("datacontenttype")
            for name, text in envelope.attributes.items():
                if f"e.{name}" in self._keys:
                    texts[f"e.{name}"] = [text]
        if content is not None and "d" in self._keys:
            texts["d"] = [content]

    def _add_options(self, texts: dict[str, list[str | None]], binding: Binding, parts: Parts) -> None:
        for part in parts:
            if part.value is None:
                continue  # A header without a value counts as absent.
            if part.key in self._names or part.key.lower() == "headers.content-type":
                for key, text in _iter_texts(part, binding):
                    if key in self._keys:
                        texts.setdefault(key, []).append(text)
            if part.key in self._bytes:
                texts.setdefault(self._bytes[part.key], []).append(base64.b64encode(part.value).decode("ascii"))


class RecordColumnsBuilder:
    """Builds record columns from raw rows, for the properties that a plan's index uses."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._reader = RowReader(keys)
        self._sparse = _SparseColumns()
        self._repeats: dict[tuple[int, str], list[str | None]] = {}
        self._lines: list[tuple[int, int, int, int]] = []
        self._defaults: list[tuple[str, str | None, str | None, str | None]] = []
        self._batches: set[int] = set()
        self._empty: list[int] = []
        self._faults: dict[int, tuple[str, str]] = {}
        self._readings: dict[int, ExactReading] = {}

    def add(self, raw: RawRow) -> None:
        """Read one raw row; a batch adds a row per event, and none if it is empty."""
        envelope = raw.binding.read_envelope(raw.parts, raw.body, raw.sniff)
        if envelope.mode != "batch":
            self._add_row(raw, ExactReading(raw.parts, raw.body, envelope))
            return
        try:
            events = decode_batch(raw.body)
            _require_small(len(events), raw.parts)
        except NotAnEvent as error:
            failed = Envelope("undecodable", data=raw.body, content_type=envelope.content_type, detail=str(error))
            self._add_row(raw, ExactReading(raw.parts, raw.body, failed))
            return
        self._batches.add(raw.source)
        if not events:
            self._empty.append(raw.channel)
        parts = parts_of_one_event(raw.parts, raw.binding.rule.content_type)
        for place, event in enumerate(events):
            self._add_row(raw, ExactReading(parts, event, raw.binding.read_envelope(parts, event, raw.sniff), place))

    def build(self) -> RecordColumns:
        """Return the columns of all rows added."""
        rows = len(self._lines)
        table = np.array(self._lines, np.int64).reshape(rows, 4)
        columns = {key: SplitColumn(values) for key, values in self._sparse.build(rows).items()}
        lists = list(zip(*self._defaults, strict=True)) if rows else [(), (), (), ()]
        arrays = [pa.array(values, pa.string()) for values in lists]
        channels, protocols, events, sources = (np.ascontiguousarray(table[:, at]) for at in range(4))
        return RecordColumns(
            BatchColumns(rows, columns, self._repeats),
            channels,
            protocols,
            events,
            sources,
            Defaults(*arrays),
            self._faults,
            self._readings,
            frozenset(self._batches),
            tuple(self._empty),
        )

    def _add_row(self, raw: RawRow, reading: ExactReading) -> None:
        row = len(self._lines)
        number = protocol_number(raw.binding.protocol)
        self._lines.append((raw.channel, number, int(reading.envelope.is_event), raw.source))
        self._readings[row] = reading
        read = self._reader.read(raw, reading)
        self._defaults.append(read.defaults)
        if read.fault is not None:
            self._faults[row] = read.fault
        for key, texts in read.texts.items():
            if len(texts) == 1 and texts[0] is not None:
                self._sparse.put(row, key, texts[0])
            else:
                self._sparse.put(row, key, None)
                self._repeats[(row, key)] = texts


def _row_defaults(raw: RawRow, reading: ExactReading) -> tuple[str, str | None, str | None, str | None]:
    binding, parts = raw.binding, reading.parts
    if reading.envelope.is_event:
        return raw.identity, None, None, None
    identities = (_part_text(parts, binding.id_key), stream_id(parts))
    identity = next((text for text in identities if text and not value_fault("id", (), text)), raw.identity)
    times = (_part_text(parts, binding.time_key), raw.time)
    time = next((text for text in times if text and is_timestamp(text)), None)
    key = _part_text(parts, binding.partition_key)
    return identity, time, reading.envelope.content_type, key


def _part_text(parts: Parts, key: str) -> str | None:
    part = first_part(parts, key) if key else None
    return part.text if part else None


def _iter_texts(part: Part, binding: Binding) -> Iterable[tuple[str, str | None]]:
    """Yield the property keys and comparable texts of one part."""
    if part.key and part.key == binding.sending.key_name:
        yield "p.key", part.text
        yield "p.key_base64", base64.b64encode(part.value or b"").decode("ascii")
    elif part.kind == BINARY_KIND and part.value is not None:
        yield f"p.{part.key}", base64.b64encode(part.value).decode("ascii")
    elif part.key.startswith("headers.") and part.key.lower() == "headers.content-type":
        yield "p.headers.content-type", part.text
    else:
        yield f"p.{part.key}", part.text


def _require_small(events: int, parts: Parts) -> None:
    """Require that the events of a batch, each with all parts of its message, stay within MAX_COPIED_BYTES."""
    size = sum(len(part.key) + len(part.value or b"") for part in parts)
    if events * size > MAX_COPIED_BYTES:
        raise NotAnEvent(
            f"each of the {events} events of the batch would get a copy of all {size} bytes of its message's headers "
            f"and other properties, together more than {MAX_COPIED_BYTES}; send smaller batches, or fewer headers"
        )


def parts_of_one_event(parts: Parts, content_type: str) -> list[Part]:
    """Return the parts of one event of a batch: those of the message, with the media type of one event."""
    single: list[Part] = []
    for part in parts:
        is_content = part.key == content_type or part.key.lower() == content_type == "headers.content-type"
        single.append(Part(part.key, EVENT_MEDIA) if is_content else part)
    return single
