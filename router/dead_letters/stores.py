"""Read dead letters back from each kind of sink: tables, JSON lines, topics."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.binding import build, split_row
from bindings.kafka.client import TIMEOUT_SECONDS, KafkaClient, KafkaUnreachable
from catalog.findings import RecordError
from catalog.parsing.regular import read_regular
from catalog.record import parse_record
from catalog.values import parse_whole_number
from router.dead_letters.dead_letter import DeadLetter, parse_native, parse_nearest
from router.errors import BrokerUnreachable, SinkError
from router.logs import get_logger
from router.settings import JsonLinesSink, KafkaSink, TableSink
from router.settings.routes import DEAD_LETTER_VARIABLES, KAFKA_LIMIT, parse_name
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.messages.sink import LINEAGE
from router.sinks.tables.head import open_dataset
from router.state.ledger import parse_instant

# Dead letters from tables, Delta and Parquet, with a few hundred rows in memory at a time.
#
# A Delta table is read at its version when reading starts, so later commits and compactions have no effect. Each file
# has one batch, as in a Parquet folder; files are read in order of the time when their letters were written.

ROWS: Final = 256
"""Rows in memory at a time; each may have a body of megabytes."""
FAILED: Final = "failed"
PARQUET: Final = ".parquet"
BODY: Final = "body"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HINT: Final = "check the permissions, and that the table was written by this router"
_log = get_logger()


def read_table(name: str, sink: TableSink, spill: Path, *, bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters in the table of a sink; Parquet tables are local."""
    if sink.format == "parquet":
        return read_parquet(name, Path(sink.path), bodies=bodies)
    return read_delta(name, sink.path, bodies=bodies)


def read_delta(sink: str, uri: str, *, bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters of a Delta table, oldest file first; none if there is no table yet.

    Raises:
        SinkError: the table cannot be read, or is not a table of dead letters.
    """
    try:
        if not DeltaTable.is_deltatable(uri):
            return
        whole = open_dataset(DeltaTable(uri))
        check_columns(sink, uri, whole.schema)
        yield from _read_files_in_order(sink, list(whole.get_fragments()), whole.schema, bodies)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SinkError(sink, f"{uri} cannot be read: {error}", hint=_HINT) from error


def read_parquet(sink: str, folder: Path, *, bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters of a folder of Parquet files, oldest file first; none if there is no folder yet.

    Raises:
        SinkError: a file cannot be read, or does not contain dead letters.
    """
    try:
        for path in list_files(folder, PARQUET, find_row_time):
            try:
                whole = pads.dataset(str(path), format="parquet")
            except FileNotFoundError:
                continue  # Retention removed it meanwhile.
            check_columns(sink, str(path), whole.schema)
            yield from _read_rows(sink, whole, bodies)
    except (OSError, pa.ArrowException) as error:
        raise SinkError(sink, f"{folder} cannot be read: {error}", hint=_HINT) from error


def list_files(folder: Path, suffix: str, first: Callable[[Path], datetime | None]) -> list[Path]:
    """Return the batch files of a folder by the time of *first*, then by name, without hidden ones (incomplete)."""
    if not folder.is_dir():
        return []
    files = [path for path in folder.glob(f"*{suffix}") if not path.name.startswith(".")]
    return sorted(files, key=lambda path: (first(path) or _EPOCH, path.name))


def find_row_time(path: Path) -> datetime | None:
    """Return when the first dead letter of a Parquet file was written, by its statistics; None if unknown."""
    try:
        return _find_first_time(pq.read_metadata(path))
    except FileNotFoundError:
        return None


def to_instant(microseconds: int | None) -> datetime | None:
    """Return microseconds since 1970 as a time; None if ``datetime`` cannot represent it."""
    if microseconds is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def parse_row(row: Mapping[str, Any], sink: str) -> DeadLetter:
    """Parse a table row whose times are microseconds.

    Raises:
        ValueError: its native record is not a JSON object.
    """
    return DeadLetter(
        id=row["letter"] or "",
        reason=row["reason"] or "",
        detail=row["detail"] or "",
        nearest=parse_nearest(row["nearest"]),
        endpoint=row["endpoint"],
        protocol=row["protocol"] or "",
        native=parse_native(row["native"]),
        body=row.get(BODY),
        epoch=row["epoch"] or "",
        position=row["position"] or "",
        received=to_instant(row["received"]),
        failed=to_instant(row["failed"]),
        attempts=row["attempts"] or 1,
        sink=sink,
    )


def _read_files_in_order(sink: str, fragments: list[Any], schema: pa.Schema, bodies: bool) -> Iterator[DeadLetter]:
    """Yield the dead letters of a table, files ordered by the time of their first one."""
    dated = [(_find_first_time(fragment.metadata) or _EPOCH, fragment.path, fragment) for fragment in fragments]
    for _, _, fragment in sorted(dated, key=lambda each: each[:2]):
        yield from _read_rows(sink, fragment, bodies, schema)


def _read_rows(sink: str, rows: Any, bodies: bool, schema: pa.Schema | None = None) -> Iterator[DeadLetter]:
    columns = [name for name in DEAD_LETTER.names if bodies or name != BODY]
    options = {"columns": columns, "batch_size": ROWS, "batch_readahead": 1, "fragment_readahead": 1}
    scanner = rows.scanner(**options) if schema is None else rows.scanner(schema=schema, **options)
    for batch in scanner.to_batches():
        yield from parse_rows(batch, sink)


def parse_rows(batch: pa.RecordBatch, sink: str) -> Iterator[DeadLetter]:
    """Parse table rows; damaged ones are skipped and logged."""
    for row in _instants_to_micros(batch).to_pylist():
        try:
            yield parse_row(row, sink)
        except ValueError as error:
            _log.warning("damaged dead letter skipped", sink=sink, letter=row["letter"], problem=str(error))


def _instants_to_micros(batch: pa.RecordBatch) -> pa.Table:
    """Cast times to microseconds, since tables can have times beyond Python's calendar."""
    table = pa.Table.from_batches([batch])
    for name in ("received", FAILED):
        at = table.schema.get_field_index(name)
        micros = table.column(at).cast(DEAD_LETTER.field(name).type).cast(pa.int64())
        table = table.set_column(at, name, micros)
    return table


def _find_first_time(metadata: pq.FileMetaData) -> datetime | None:
    """Return the minimum of column ``failed`` by the statistics of its row groups."""
    at = metadata.schema.to_arrow_schema().get_field_index(FAILED)
    minima: list[datetime] = []
    for group in range(metadata.num_row_groups if at >= 0 else 0):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            if chunk.path_in_schema == FAILED and chunk.statistics is not None and chunk.statistics.has_min_max:
                minima.append(chunk.statistics.min)
    return min((each if each.tzinfo else each.replace(tzinfo=UTC) for each in minima), default=None)


def check_columns(sink: str, place: str, schema: pa.Schema) -> None:
    """Raise if a table is not a dead-letter table.

    Raises:
        SinkError: columns are missing.
    """
    missing = [name for name in DEAD_LETTER.names if name not in schema.names]
    if missing:
        hint = "name the sink that dead letters go to, or move the table away"
        raise SinkError(sink, f"{place} is not a dead-letter table: missing {', '.join(missing)}", hint=hint)


# Dead letters from a folder of JSON lines, with one line in memory at a time.

SUFFIX: Final = ".jsonl"
_LINES_HINT: Final = "check the permissions"
_NULL: Final = msgspec.Raw(b"null")


class _DeadLetterLine(msgspec.Struct):
    """The members of a line (MATCHING.md#what-comes-out); only the id is required."""

    letter: str
    reason: str | None = None
    detail: str | None = None
    nearest: msgspec.Raw = _NULL
    endpoint: str | None = None
    protocol: str | None = None
    native: msgspec.Raw = _NULL
    body: str | None = None
    epoch: str | None = None
    position: str | None = None
    received: str | None = None
    failed: str | None = None
    attempts: int | None = None


_LINE: Final = msgspec.json.Decoder(_DeadLetterLine)


def read_lines(sink: str, folder: Path) -> Iterator[DeadLetter]:
    """Yield the dead letters of a folder, oldest file first; none if there is no folder yet.

    A line that is not a dead letter is skipped and logged with its line number.

    Raises:
        SinkError: the folder or a file in it cannot be read.
    """
    try:
        for path in list_files(folder, SUFFIX, find_line_time):
            yield from _read_lines_file(sink, path)
    except OSError as error:
        raise SinkError(sink, f"{folder} cannot be read: {error.strerror}", hint=_LINES_HINT) from error


def read_sink_lines(name: str, sink: JsonLinesSink, spill: Path, *, bodies: bool = True) -> Iterator[DeadLetter]:
    """Yield the dead letters in the files of a sink; see :func:`read_lines`."""
    return read_lines(name, Path(sink.path))


def find_line_time(path: Path) -> datetime | None:
    """Return when the first dead letter of a file was written; None if unknown."""
    try:
        with path.open("rb") as file:
            line = file.readline()
        form = msgspec.json.decode(line)
        return parse_instant(form.get("failed")) if isinstance(form, dict) else None
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # Removed or damaged; reading reports that line by line.


def parse_line(line: bytes, sink: str) -> DeadLetter:
    """Parse a JSON line.

    Raises:
        ValueError: the line is not a dead letter.
    """
    try:
        form = _LINE.decode(line)
        body = None if form.body is None else base64.b64decode(form.body, validate=True)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise ValueError(f"not a dead letter: {error}") from error
    return DeadLetter(
        id=form.letter,
        reason=form.reason or "",
        detail=form.detail or "",
        nearest=parse_nearest(_to_json_text(form.nearest)),
        endpoint=form.endpoint,
        protocol=form.protocol or "",
        native=parse_native(_to_json_text(form.native)),
        body=body,
        epoch=form.epoch or "",
        position=form.position or "",
        received=parse_instant(form.received),
        failed=parse_instant(form.failed),
        attempts=form.attempts or 1,
        sink=sink,
    )


def parse_lines(lines: Iterable[tuple[int | None, bytes]], sink: str, path: Path) -> Iterator[DeadLetter]:
    """Parse JSON lines, with line numbers if known; lines that are not dead letters are skipped and logged."""
    for number, line in lines:
        try:
            yield parse_line(line, sink)
        except ValueError as error:
            _log.warning("line skipped", sink=sink, file=str(path), line=number, problem=str(error))


def _read_lines_file(sink: str, path: Path) -> Iterator[DeadLetter]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return  # Retention removed it meanwhile.
    with file:
        yield from parse_lines(enumerate(file, 1), sink, path)


def _to_json_text(raw: msgspec.Raw) -> str | None:
    """Return the JSON text of a member: its source text, or the content of a string; None for null."""
    text = bytes(raw).decode("utf-8").strip()
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return None if text == "null" else text


# Dead letters from Kafka topics, up to the end offsets when reading starts.
#
# A dead letter has key, value and headers of its source record, followed by our headers, ``xrouter-*``
# (:meth:`router.writing.writer.BatchWriter`). For a Kafka record there is no header with the native record: it is built
# from the letter's key, headers and position. Records that were too large for the topic are in spill files. Records
# without our headers are skipped. Nothing is committed, and no consumer group is joined.

MAX_BUFFERED_BYTES: Final = 64 * 2**20
"""Maximum bytes of buffered records, shared equally by partitions; each may exceed its share by one record.

Pausing a partition discards what the client has fetched of it, and fetching again costs a round trip, so it must be
rare.
"""
STALL_SECONDS: Final = 30.0
"""Maximum time without a record while more are expected."""
_POLL: Final = 0.5
PartitionKey = tuple[str, int]


def iter_by_timestamp(client: KafkaClient, topics: re.Pattern[str], last: int | None = None) -> Iterator[Message]:
    """Yield the records of all matching topics by timestamp; within a partition, by offset.

    With *last*, only that number of records at the end of each partition.

    Records that the broker's retention removes during the read are skipped.

    Raises:
        KafkaUnreachable: no broker responds, or expected records do not arrive.
    """
    config = {
        **client.librdkafka_config(),
        "group.id": "xrouter-dead-letters",  # required; no group is joined, nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 16_384,
        # At the end of a partition the broker delays a fetch that long, also for other partitions.
        "fetch.wait.max.ms": 20,
        "log_level": 0,
    }
    try:
        consumer = Consumer(config)
        try:
            yield from _TimestampMerger(consumer, _find_offset_ranges(consumer, topics, last)).iter_records()
        finally:
            consumer.close()
    except KafkaException as error:
        reason = error.args[0].str() if error.args else str(error)
        raise KafkaUnreachable(f"Kafka at {client.servers} does not answer: {reason}") from error


def _find_offset_ranges(
    consumer: Consumer, topics: re.Pattern[str], last: int | None = None
) -> dict[PartitionKey, tuple[int, int]]:
    """Return start and end offset of each partition that has records; with *last*, of its last records."""
    ranges: dict[PartitionKey, tuple[int, int]] = {}
    for name, topic in consumer.list_topics(timeout=TIMEOUT_SECONDS).topics.items():
        if name.startswith("__") or not topics.fullmatch(name):
            continue
        for partition in topic.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=TIMEOUT_SECONDS)
            if low < high:
                ranges[(name, partition)] = (low if last is None else max(low, high - last), high)
    return ranges


class _TimestampMerger:
    """Merges partitions by timestamp; a partition that is far ahead of the others is paused."""

    def __init__(self, consumer: Consumer, ranges: dict[PartitionKey, tuple[int, int]]) -> None:
        self._consumer = consumer
        self._ends = {key: end for key, (_, end) in ranges.items()}
        self._buffers: dict[PartitionKey, deque[Message]] = {key: deque() for key in ranges}
        self._bytes = dict.fromkeys(ranges, 0)
        self._share = MAX_BUFFERED_BYTES // max(1, len(ranges))
        self._reading = set(ranges)
        self._paused: set[PartitionKey] = set()
        consumer.assign([TopicPartition(*key, first) for key, (first, _) in ranges.items()])

    def iter_records(self) -> Iterator[Message]:
        """Yield all records by timestamp."""
        while True:
            self._fill_buffers()
            next_times = [(held[0].timestamp()[1], key) for key, held in self._buffers.items() if held]
            if not next_times:
                return
            key = min(next_times)[1]
            message = self._buffers[key].popleft()
            self._bytes[key] -= _estimate_size(message)
            yield message
            if key in self._paused and not self._buffers[key]:
                self._paused.discard(key)
                self._consumer.resume([TopicPartition(*key)])

    def _fill_buffers(self) -> None:
        """Wait until each unfinished partition has its next record buffered."""
        last = time.monotonic()
        while any(not self._buffers[key] for key in self._reading):
            message = self._consumer.poll(_POLL)
            if message is not None:
                last = time.monotonic()
                self._buffer_record(message)
            elif time.monotonic() - last > STALL_SECONDS:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no record in {STALL_SECONDS:g} s"))

    def _buffer_record(self, message: Message) -> None:
        key = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if key not in self._reading:
            return
        offset = int(message.offset() or 0)
        if error is None and offset < self._ends[key]:
            self._buffers[key].append(message)
            self._bytes[key] += _estimate_size(message)
        if error is not None or offset >= self._ends[key] - 1:
            self._reading.discard(key)
            self._consumer.pause([TopicPartition(*key)])
        elif self._bytes[key] >= self._share:
            self._paused.add(key)
            self._consumer.pause([TopicPartition(*key)])


def _estimate_size(message: Message) -> int:
    """Return the approximate memory size of a record."""
    headers: Sequence[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]
    header_bytes = sum(len(name) + len(value or b"") for name, value in headers)
    return 500 + len(message.value() or b"") + len(message.key() or b"") + header_bytes


ID_HEADER: Final = f"{LINEAGE}letter"
"""Our first header; an earlier header with this name belongs to the source record."""
_TOPIC_HINT: Final = "start the broker, or correct bootstrap_servers and credentials of the sink"
Headers = Sequence[tuple[str, bytes | None]]


def read_topics(
    sink: str, settings: KafkaSink, spill: Path, *, bodies: bool = True, last: int | None = None
) -> Iterator[DeadLetter]:
    """Yield the dead letters in the topics of a sink, by time written; *spill* is the folder of spill files.

    With *last*, only that number of records at the end of each partition is read.

    Raises:
        BrokerUnreachable: no broker responds, or expected records do not arrive.
    """
    client = settings.cluster()
    try:
        for message in iter_by_timestamp(client, build_topic_pattern(settings.topic), last):
            try:
                letter = parse_message(message, sink, spill)
            except (ValueError, RecordError) as error:
                place = f"{message.topic()}-{message.partition()}-{message.offset()}"
                _log.warning("record skipped: not a dead letter", sink=sink, record=place, problem=str(error))
                continue
            if letter is not None:
                yield letter
    except KafkaUnreachable as error:
        raise BrokerUnreachable(f"sink {sink}: {error}", hint=_TOPIC_HINT) from error


def build_topic_pattern(template: str) -> re.Pattern[str]:
    """Build a pattern that matches all topics that a dead-letter topic template can produce."""
    name = parse_name(template, DEAD_LETTER_VARIABLES)
    pieces = ["[A-Za-z0-9._-]+" if place % 2 else re.escape(part) for place, part in enumerate(name.parts)]
    # A name that is too long is truncated and ends in a digest: only its beginning is known.
    capped = rf"(?=.{{{KAFKA_LIMIT}}}$){re.escape(name.parts[0])}.*-[0-9a-f]{{16}}"
    return re.compile(f"(?:{''.join(pieces)}|{capped})" if name.variables else "".join(pieces))


def parse_message(message: Message, sink: str, spill: Path) -> DeadLetter | None:
    """Parse a Kafka record; None if it lacks our headers.

    Raises:
        ValueError: its headers are invalid, or its spill file is missing.
        RecordError: its spill file is not a valid record.
    """
    headers: Headers = message.headers() or []  # type: ignore[assignment]  # confluent's type is too narrow
    at = next((place for place in reversed(range(len(headers))) if headers[place][0] == ID_HEADER), None)
    if at is None:
        return None
    lineage = {name: value.decode("utf-8", "replace") for name, value in headers[at:] if value is not None}
    body, form = message.value(), _parse_native_record(lineage, message.key(), headers[:at])
    if f"{LINEAGE}spill" in lineage:
        form, body = _read_spill_file(spill / f"{lineage[ID_HEADER]}.json")
    return DeadLetter(
        id=lineage[ID_HEADER],
        reason=lineage.get(f"{LINEAGE}reason", ""),
        detail=lineage.get(f"{LINEAGE}detail", ""),
        nearest=parse_nearest(lineage.get(f"{LINEAGE}nearest")),
        endpoint=lineage.get(f"{LINEAGE}endpoint"),
        protocol=lineage.get(f"{LINEAGE}protocol", ""),
        native=form,
        body=body,
        epoch=lineage.get(f"{LINEAGE}epoch", ""),
        position=lineage.get(f"{LINEAGE}position", ""),
        received=parse_instant(lineage.get(f"{LINEAGE}received")),
        failed=parse_instant(lineage.get(f"{LINEAGE}failed")),
        attempts=int(lineage.get(f"{LINEAGE}attempts", "1")),
        sink=sink,
    )


def _parse_native_record(lineage: dict[str, str], key: bytes | None, headers: Headers) -> dict[str, object]:
    given = lineage.get(f"{LINEAGE}native")
    if given is not None:
        return parse_native(given)
    if lineage.get(f"{LINEAGE}protocol") != KAFKA:
        raise ValueError("it has no native record")
    place = lineage.get(f"{LINEAGE}position", "").partition("#")[0]
    topic, partition, offset = [*place.rsplit("-", 2), "", ""][:3]
    numbers = parse_whole_number(partition), parse_whole_number(offset)
    if None in numbers:
        raise ValueError(f"its position {place!r} is not a position in a topic")
    received = parse_instant(lineage.get(f"{LINEAGE}received"))
    row = {
        "topic": topic,
        "partition": numbers[0],
        "offset": numbers[1],
        "timestamp": None if received is None else round(received.timestamp() * 1000),
        "key": key,
        "headers": [{"key": name, "value": value} for name, value in headers],
    }
    return build(split_row(row))


def _read_spill_file(path: Path) -> tuple[dict[str, object], bytes | None]:
    try:
        record = parse_record(read_regular(path))
    except FileNotFoundError as error:
        raise ValueError(f"its spill file {path} is missing") from error
    return dict(record.native), record.body
