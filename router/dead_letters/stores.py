"""Where dead letters are kept: one store for each kind of sink (tables, JSON lines, topics).

They are appended by the sink, as events are (:mod:`router.sinks`); a store reads them back, and finds those to remove.
Every store returns the same letter for a record, except for the sink's name and texts truncated to fit a header.
"""

from __future__ import annotations

import base64
import heapq
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import LocalFileSystem

from bindings.kafka.binding import PROTOCOL as KAFKA
from bindings.kafka.binding import build, split_row
from bindings.kafka.client import TIMEOUT_SECONDS, KafkaClient, KafkaUnreachable
from bindings.private_files import sync_path, write_atomically
from catalog.findings import RecordError
from catalog.parsing.regular import read_regular
from catalog.record import parse_record
from catalog.values import parse_whole_number
from router.dead_letters.dead_letter import DeadLetter, make_letter, parse_native
from router.errors import BrokerUnreachable, SinkError
from router.logs import get_logger
from router.rendering.texts import INSTANT
from router.settings.routes import DEAD_LETTER_VARIABLES, KAFKA_LIMIT, parse_name
from router.sinks.jsonlines import DEAD_LETTER
from router.sinks.messages.sink import LINEAGE
from router.sinks.tables.head import hold_rewrite_lock, open_dataset
from router.state.ledger import parse_instant

NEWEST_LETTERS: Final = 50_000
"""Letters of a table among which the newest are looked for; of very many written at a time, any may be found."""
NEWEST_FILES: Final = 20
"""Files of a table or folder that are opened for that."""
NEWEST_BYTES: Final = 4 * 2**20
"""Bytes at the end of a file of lines that are read for that."""
NEWEST_ENDS: Final = 200
"""Records at the end of a partition that are read for that, and lines."""
BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HINT: Final = "check the permissions, and that this router wrote it; nothing is lost"
IdSelector = Callable[[list[tuple[datetime, str]]], set[str]]
"""Selects ids from the newest dead letters, each with the time it was written."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class OldLetters:
    """Dead letters to remove from a sink: their number and bytes.

    ``remove`` raises :class:`SinkError` if that is not possible now; the next purge continues.
    """

    sink: str
    letters: int
    size: int
    iter_ids: Callable[[], Iterator[str]] = field(compare=False)
    remove: Callable[[], None] = field(compare=False)


class LetterStore(ABC):
    """The dead letters of the sink called *name*; *spill* is the folder of those that were too large for a topic.

    All methods raise :class:`SinkError` or :class:`BrokerUnreachable` if the sink cannot be read now. Letters that are
    removed meanwhile are skipped; newer ones may be included. A sink that has none yet is empty.
    """

    def __init__(self, name: str, settings: Any, spill: Path) -> None:
        self.name = name
        self.settings = settings
        self.spill = spill

    @abstractmethod
    def read(self, *, bodies: bool = True) -> Iterator[DeadLetter]:
        """Yield all letters, the oldest batch first; without *bodies*, where that is faster, they have none."""

    def read_newest(self, only: Collection[str] | None = None) -> Iterator[DeadLetter]:
        """Yield the newest letters, a limited number, without bodies where that is faster; or *only* those, whole."""
        return self.read()

    def iter_newest_ids(self) -> Iterator[tuple[datetime, str]]:
        """Yield time and id of the newest letters, as :meth:`read_newest` finds them."""
        return ((each.failed or BEGINNING, each.id) for each in self.read_newest())

    def select_newest(self, select_ids: IdSelector) -> list[DeadLetter]:
        """Return the letters that *select_ids* selects from the newest."""
        # Read twice, since all complete letters may not fit into memory.
        chosen = select_ids(list(self.iter_newest_ids()))
        return [each for each in self.read_newest(chosen) if each.id in chosen] if chosen else []

    def find_old(self, before: datetime | None, limit: int) -> OldLetters | None:
        """Return the letters written before a time, and the oldest until the rest has *limit* bytes (0: no limit).

        None if there are none, or if somebody else removes them.
        """
        return None


class _StoreOnDisk(LetterStore):
    @property
    def path(self) -> str:
        return str(self.settings.path)

    @contextmanager
    def naming_errors(self, problem: str = "cannot be read") -> Iterator[None]:
        """Turn errors of the disk and of table libraries into :class:`SinkError`."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise SinkError(self.name, f"{self.path} {problem}: {reason}", hint=_HINT) from error


# Folders with one file for each batch. The name of a file identifies a repeated batch: of each app, the last one is
# emptied instead of removed.


class LetterFolder(_StoreOnDisk):
    """Dead letters in a folder of files, of one kind."""

    suffix: ClassVar[str]

    @abstractmethod
    def find_time(self, path: Path) -> datetime | None:
        """Return when the first letter of a file was written; None if unknown."""

    @abstractmethod
    def read_file(self, path: Path, *, bodies: bool) -> Iterator[DeadLetter]:
        """Yield the letters of a file."""

    @abstractmethod
    def is_empty(self, path: Path) -> bool:
        """Whether a file is as :meth:`empty_file` leaves it: without letters and without damaged ones."""

    @abstractmethod
    def empty_file(self, path: Path) -> None:
        """Replace a file by one without letters, in one step."""

    def read(self, *, bodies: bool = True) -> Iterator[DeadLetter]:
        with self.naming_errors():
            for path in self._list_files():
                try:
                    yield from self.read_file(path, bodies=bodies)
                except FileNotFoundError:
                    continue  # Retention removed it meanwhile.

    def find_old(self, before: datetime | None, limit: int) -> OldLetters | None:
        with self.naming_errors():
            files = self._list_files()
            sizes = {path: path.stat().st_size for path in files}
            last = {path.stem.rpartition("-")[0]: path for path in sorted(files, key=lambda each: each.name)}
            total = sum(sizes.values())
            counts: dict[Path, int] = {}
            for path in files:
                written = self.find_time(path) or datetime.fromtimestamp(path.stat().st_mtime, UTC)
                if (before is not None and written < before) or (limit and total > limit):
                    total -= sizes[path]
                    if path not in last.values() or not self.is_empty(path):
                        counts[path] = sum(1 for _ in self.read_file(path, bodies=False))
        old = list(counts)
        if not old:
            return None

        def iter_ids() -> Iterator[str]:
            with self.naming_errors():
                yield from (letter.id for path in old for letter in self.read_file(path, bodies=False))

        def remove() -> None:
            with self.naming_errors("cannot be changed"):
                for path in old:
                    if path in last.values():
                        self.empty_file(path)
                    else:
                        path.unlink(missing_ok=True)
                sync_path(Path(self.path))

        return OldLetters(self.name, sum(counts.values()), sum(sizes[path] for path in old), iter_ids, remove)

    def _list_files(self) -> list[Path]:
        """Return the files by the time of their first letter, then by name, without hidden ones (incomplete)."""
        files = [path for path in Path(self.path).glob(f"*{self.suffix}") if not path.name.startswith(".")]
        return sorted(files, key=lambda path: (self.find_time(path) or _EPOCH, path.name))

    def find_newest_files(self) -> list[Path]:
        """Return the newest files, newest first."""
        dated: list[tuple[float, str, Path]] = []
        for path in Path(self.path).glob(f"*{self.suffix}"):
            try:
                dated += [] if path.name.startswith(".") else [(path.stat().st_mtime, path.name, path)]
            except FileNotFoundError:
                continue  # Retention has removed it.
        return [path for _, _, path in heapq.nlargest(NEWEST_FILES, dated)]


class _Line(msgspec.Struct):
    """The members of a line (MATCHING.md#what-comes-out); only the id is required."""

    letter: str
    reason: str | None = None
    detail: str | None = None
    nearest: msgspec.Raw = msgspec.Raw(b"null")
    endpoint: str | None = None
    protocol: str | None = None
    native: msgspec.Raw = msgspec.Raw(b"null")
    body: str | None = None
    epoch: str | None = None
    position: str | None = None
    received: str | None = None
    failed: str | None = None
    attempts: int | None = None


class LineLetters(LetterFolder):
    """Dead letters in a folder of JSON lines, one line in memory at a time; damaged lines are skipped and logged."""

    suffix = ".jsonl"

    def find_time(self, path: Path) -> datetime | None:
        try:
            with path.open("rb") as file:
                return parse_instant(msgspec.json.decode(file.readline(), type=_Line).failed)
        except (FileNotFoundError, ValueError, RecursionError):
            return None  # Removed or damaged; reading reports that line by line.

    def read_file(self, path: Path, *, bodies: bool) -> Iterator[DeadLetter]:
        with path.open("rb") as file:
            yield from self._parse_lines(enumerate(file, 1), path)

    def is_empty(self, path: Path) -> bool:
        return path.stat().st_size == 0

    def empty_file(self, path: Path) -> None:
        write_atomically(path, lambda file: None)

    def read_newest(self, only: Collection[str] | None = None) -> Iterator[DeadLetter]:
        count = 0
        with self.naming_errors():
            for path in self.find_newest_files():
                with path.open("rb") as file:
                    start = max(0, path.stat().st_size - NEWEST_BYTES)
                    file.seek(start)
                    lines = file.read(NEWEST_BYTES).split(b"\n")[1 if start else 0 :]
                for letter in self._parse_lines(((None, line) for line in lines if line.strip()), path):
                    count += 1
                    yield letter
                if count >= NEWEST_ENDS:
                    break

    def _parse_lines(self, lines: Iterable[tuple[int | None, bytes]], path: Path) -> Iterator[DeadLetter]:
        for number, line in lines:
            try:
                form = msgspec.json.decode(line, type=_Line)
                members = msgspec.structs.asdict(form)
                members |= {name: _to_json_text(getattr(form, name)) for name in ("nearest", "native")}
                members |= {name: parse_instant(getattr(form, name)) for name in ("received", "failed")}
                members["body"] = None if form.body is None else base64.b64decode(form.body, validate=True)
                yield make_letter(members, self.name)
            except (ValueError, RecursionError) as error:
                _log.warning("line skipped", sink=self.name, file=str(path), line=number, problem=str(error))


def _to_json_text(raw: msgspec.Raw) -> str | None:
    """Return the JSON text of a member: its source text, or the content of a string; None for null."""
    text = bytes(raw).decode("utf-8").strip()
    if text.startswith('"'):
        return msgspec.json.decode(text, type=str)
    return None if text == "null" else text


# Dead letters from tables, Delta and Parquet, with a few hundred rows in memory at a time.
#
# A Delta table is read at its version when reading starts, so later commits and compactions have no effect. Each file
# has one batch, as in a Parquet folder; files are read in order of the time when their letters were written.

_ROWS: Final = 256
"""Rows in memory at a time; each may have a body of megabytes."""
_FAILED: Final = "failed"
_REMOVALS: Final = 5
_TICK: Final = timedelta(milliseconds=1)
"""Resolution of the times in a table's statistics."""


def check_columns(sink: str, rows: Any, schema: pa.Schema) -> None:
    """Raise if a fragment is not of a table of dead letters.

    Raises:
        SinkError: columns are missing.
    """
    missing = [name for name in DEAD_LETTER.names if name not in schema.names]
    if missing:
        hint = "name the sink that dead letters go to, or move the table away"
        raise SinkError(sink, f"{rows.path} is not a dead-letter table: missing {', '.join(missing)}", hint=hint)


def read_rows(sink: str, rows: Any, schema: pa.Schema, *, bodies: bool, only: Any = None) -> Iterator[DeadLetter]:
    """Yield the letters of a fragment of a table, or those that the filter *only* selects; damaged ones are logged.

    Raises:
        SinkError: the table is not one of dead letters.
    """
    check_columns(sink, rows, schema)
    columns = [name for name in DEAD_LETTER.names if bodies or name != "body"]
    for batch in rows.to_batches(
        schema=schema, columns=columns, filter=only, batch_size=_ROWS, batch_readahead=1, fragment_readahead=1
    ):
        # Times as numbers, since tables can have times beyond Python's calendar.
        table = pa.Table.from_batches([batch])
        for name in ("received", _FAILED):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(place).cast(INSTANT).cast(pa.int64()))
        for row in table.to_pylist():
            try:
                row["received"], row[_FAILED] = to_instant(row["received"]), to_instant(row[_FAILED])
                yield make_letter(row, sink)
            except ValueError as error:
                _log.warning("damaged dead letter skipped", sink=sink, letter=row["letter"], problem=str(error))


def to_instant(microseconds: int | None) -> datetime | None:
    """Return microseconds since 1970 as a time; None if ``datetime`` cannot represent it."""
    try:
        return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


class _TableLetters(_StoreOnDisk):
    @abstractmethod
    def open_newest(self) -> tuple[Iterable[Any], pa.Schema | None]:
        """Return the newest files, newest first, and the columns of all; None if each has its own."""

    def read_newest(self, only: Collection[str] | None = None) -> Iterator[DeadLetter]:
        chosen = None if only is None else pads.field("letter").isin(pa.array(sorted(only), pa.string()))
        with self.naming_errors():
            for rows, schema in self._iter_newest_groups():
                yield from read_rows(self.name, rows, schema, bodies=only is not None, only=chosen)

    def iter_newest_ids(self) -> Iterator[tuple[datetime, str]]:
        with self.naming_errors():
            for rows, schema in self._iter_newest_groups():
                check_columns(self.name, rows, schema)
                for batch in rows.to_batches(schema=schema, columns=["letter", _FAILED]):
                    times = batch.column(_FAILED).cast(INSTANT).cast(pa.int64()).to_pylist()
                    for at, letter in zip(times, batch.column("letter").to_pylist(), strict=True):
                        yield to_instant(at) or BEGINNING, letter

    def _iter_newest_groups(self) -> Iterator[tuple[Any, pa.Schema]]:
        """Yield row groups of a limited number of rows, with their columns."""
        fragments, schema = self.open_newest()
        rows = 0
        for fragment in fragments:
            for group in reversed(fragment.split_by_row_group()):
                if rows >= NEWEST_LETTERS:
                    return
                rows += group.count_rows()
                yield group, fragment.physical_schema if schema is None else schema


class ParquetLetters(_TableLetters, LetterFolder):
    """Dead letters in a folder of Parquet files."""

    suffix = ".parquet"

    def find_time(self, path: Path) -> datetime | None:
        try:
            footer = pq.read_metadata(path)
        except FileNotFoundError:
            return None
        place = footer.schema.to_arrow_schema().get_field_index(_FAILED)
        columns = [footer.row_group(group).column(place) for group in range(footer.num_row_groups if place >= 0 else 0)]
        return min((each.statistics.min for each in columns if each.is_stats_set), default=None)

    def read_file(self, path: Path, *, bodies: bool) -> Iterator[DeadLetter]:
        fragment = self._open_file(path)
        yield from read_rows(self.name, fragment, fragment.physical_schema, bodies=bodies)

    def is_empty(self, path: Path) -> bool:
        return bool(pq.read_metadata(path).num_rows == 0)

    def empty_file(self, path: Path) -> None:
        write_atomically(path, lambda file: pq.write_table(DEAD_LETTER.empty_table(), file))

    def open_newest(self) -> tuple[Iterable[Any], pa.Schema | None]:
        return map(self._open_file, self.find_newest_files()), None

    def _open_file(self, path: Path) -> Any:
        return pads.ParquetFileFormat().make_fragment(str(path), LocalFileSystem())


class DeltaLetters(_TableLetters):
    """Dead letters in a Delta table; old ones are removed in one atomic delete, concurrently with other writers."""

    def read(self, *, bodies: bool = True) -> Iterator[DeadLetter]:
        with self.naming_errors():
            fragments, schema, log = self._open()
            for fragment in sorted(fragments, key=lambda each: (log[each.path]["min"] or 0, each.path)):
                yield from read_rows(self.name, fragment, schema, bodies=bodies)

    def open_newest(self) -> tuple[Iterable[Any], pa.Schema | None]:
        fragments, schema, log = self._open()

        def age(fragment: Any) -> tuple[int, int]:
            known = log[fragment.path]
            return known["max"] if known["max"] is not None else 2**63, known["added"]

        return heapq.nlargest(NEWEST_FILES, fragments, key=age), schema

    def find_old(self, before: datetime | None, limit: int) -> OldLetters | None:
        with self.naming_errors():
            if not DeltaTable.is_deltatable(self.path):
                return None
            table = DeltaTable(self.path)
            files = _read_log(table)
            bounds = [bound for bound in (before, _find_size_cutoff(files, limit)) if bound is not None]
            if not bounds:
                return None
            bound = max(bounds)
            old = pads.field(_FAILED) < pa.scalar(bound, INSTANT)
            letters = open_dataset(table).count_rows(filter=old)
        size = sum(file["size"] for file in files if file["max"] is not None and _time(file["max"]) < bound)

        def iter_ids() -> Iterator[str]:
            with self.naming_errors():
                rows = open_dataset(DeltaTable(self.path)).scanner(columns=["letter"], filter=old)
                for batch in rows.to_batches():
                    yield from batch.column("letter").to_pylist()

        def remove() -> None:
            with self.naming_errors("cannot be changed"), hold_rewrite_lock(self.path):
                self._delete_older(bound)

        return OldLetters(self.name, letters, size, iter_ids, remove) if letters else None

    def _open(self) -> tuple[Iterable[Any], pa.Schema, dict[str, dict[str, Any]]]:
        """Return the table's files, its columns, and what its log says of each file, by path."""
        if not DeltaTable.is_deltatable(self.path):
            return (), DEAD_LETTER, {}
        table = DeltaTable(self.path)
        whole = open_dataset(table)
        return whole.get_fragments(), whole.schema, {unquote(each["path"]): each for each in _read_log(table)}

    def _delete_older(self, bound: datetime) -> None:
        for attempt in range(_REMOVALS):
            try:
                table = DeltaTable(self.path)
                table.delete(f"{_FAILED} < '{bound.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'")
                hours = int(self.settings.keep_replaced.total_seconds() // 3600)
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
                return
            except CommitFailedError:
                if attempt + 1 == _REMOVALS:
                    raise  # Else a batch or a compaction committed first.


def _read_log(table: DeltaTable) -> list[dict[str, Any]]:
    """Return path, size and age of each file, and its first and last time of a letter, in microseconds since 1970."""
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = {"path": actions["path"], "size": actions["size_bytes"], "added": actions["modification_time"]}
    for name in ("min", "max"):
        known = f"{name}.{_FAILED}" in actions.column_names
        times = actions[f"{name}.{_FAILED}"].cast(INSTANT).cast(pa.int64()) if known else None
        columns[name] = pa.nulls(actions.num_rows, pa.int64()) if times is None else times
    return list(pa.table(columns).to_pylist())


def _time(microseconds: int) -> datetime:
    return to_instant(microseconds) or datetime.max.replace(tzinfo=UTC)


def _find_size_cutoff(files: Sequence[dict[str, Any]], limit: int) -> datetime | None:
    """Return the time before which dead letters must be removed to get below the size limit; None if all fit."""
    total, bound = sum(file["size"] for file in files), None
    for file in sorted((file for file in files if file["max"] is not None), key=lambda file: file["max"]):
        if not limit or total <= limit:
            break
        total -= file["size"]
        bound = _time(file["max"]) + _TICK
    return bound


def open_table_letters(name: str, settings: Any, spill: Path) -> LetterStore:
    """Return the store of a table; Parquet tables are local."""
    return (ParquetLetters if settings.format == "parquet" else DeltaLetters)(name, settings, spill)


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


class TopicLetters(LetterStore):
    """Dead letters in the topics of a Kafka sink, by the time when they were written; the broker removes them."""

    def read(self, *, bodies: bool = True) -> Iterator[DeadLetter]:
        return self._read(None)

    def read_newest(self, only: Collection[str] | None = None) -> Iterator[DeadLetter]:
        return self._read(NEWEST_ENDS)

    def _read(self, last: int | None) -> Iterator[DeadLetter]:
        """Yield the letters; with *last*, only of that number of records at the end of each partition."""
        pattern = build_topic_pattern(self.settings.topic)
        try:
            for message in iter_by_timestamp(self.settings.cluster(), pattern, last):
                try:
                    letter = parse_message(message, self.name, self.spill)
                except (ValueError, RecordError) as error:
                    place = f"{message.topic()}-{message.partition()}-{message.offset()}"
                    _log.warning("record skipped: not a dead letter", sink=self.name, record=place, problem=str(error))
                    continue
                if letter is not None:
                    yield letter
        except KafkaUnreachable as error:
            raise BrokerUnreachable(f"sink {self.name}: {error}", hint=_TOPIC_HINT) from error


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
    members: dict[str, Any] = {name.removeprefix(LINEAGE): text for name, text in lineage.items()}
    members |= {name: parse_instant(members.get(name)) for name in ("received", "failed")}
    attempts = int(members.get("attempts") or 1)
    return make_letter({**members, "native": form, "body": body, "attempts": attempts}, sink)


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
