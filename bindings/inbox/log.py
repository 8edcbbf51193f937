"""The durable inbox: partition logs, their recovery at startup, and compaction of closed segments."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from bindings.background import Background, count_fault
from bindings.inbox.format import (
    DurableEnd,
    EndFile,
    checksum_seed,
    count_rows,
    damage_error,
    encode_frame,
    find_intact_frame,
    is_intact,
    iter_frames,
    list_segments,
    map_segment,
    open_layout,
    partition_directory,
    read_published_end,
    read_rows,
    rows_to_batch,
    segment_path,
)
from bindings.inbox.space import DiskSpace, InboxClosed, InboxDamaged, InboxError, InboxFull, InboxLimits, InboxRowError
from bindings.parts import InboxRow
from bindings.private_files import FILE_MODE, create_private_folder, replace_file, sync_path

# Compaction: the many small frames of a closed segment become few large ones.
#
# Group commits of one row read at a tenth of the speed of large batches. The rewritten segment has the same rows under
# the same numbers in the same format; it replaces the old file by one atomic rename after it is durable. So a crash at
# any point leaves one or the other, and a reader that has the old file mapped continues with it.

FRAME_ROWS: Final = 10_000
FRAME_BYTES: Final = 8 * 2**20
"""A frame, of one commit or of joined frames, ends at whichever limit it reaches first."""

_logger = logging.getLogger(__name__)


def compact_segment(directory: Path, inbox: str, partition: int, segment: int) -> bool:
    """Join the frames of a sealed segment; return False if there is nothing to join or the segment was deleted.

    Raises:
        InboxDamaged: the segment has a broken frame; it stays unchanged.
        OSError: the new file could not be written; the segment stays unchanged.
    """
    path = segment_path(directory, segment)
    seed = checksum_seed(inbox, partition, segment)
    try:
        data = map_segment(path)
        rows = count_rows(path)
    except FileNotFoundError:
        return False
    count = sum(1 for _ in iter_frames(data, 0, data.size))
    if count < 2 * (1 + rows // FRAME_ROWS + data.size // FRAME_BYTES):
        return False
    batches = join_batches(read_rows(path, 0, rows, seed))
    first = 0
    try:
        with replace_file(path, path.with_suffix(".tmp"), create=False) as file:
            for batch in batches:
                file.write(encode_frame(batch, first, seed))
                first += batch.num_rows
    except FileNotFoundError:  # trimmed meanwhile
        return False
    return True


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join consecutive record batches to larger ones of about FRAME_ROWS rows or FRAME_BYTES bytes."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= FRAME_ROWS or size >= FRAME_BYTES:
            yield _concat_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield _concat_batches(pending)


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class Compactor:
    """A background thread that compacts sealed segments, so that appends never wait for compaction."""

    def __init__(self, inbox: str) -> None:
        self._inbox = inbox
        self._due: queue.SimpleQueue[tuple[Path, int] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = Background("inbox-compactor", self._run)
        self._thread.start()

    def add_segment(self, directory: Path, segment: int) -> None:
        """Queue a sealed segment for compaction."""
        self._due.put((directory, segment))

    def close(self) -> None:
        """Finish the current segment and stop; the rest is compacted after the next start."""
        self._stopping.set()
        self._thread.ask_to_end()
        self._due.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._due.get()) is not None and not self._stopping.is_set():
            directory, segment = task
            try:
                compact_segment(directory, self._inbox, int(directory.name), segment)
            except (OSError, InboxDamaged) as error:
                # Compaction only saves time. The segment is still there, and a damaged one is reported by its reader.
                _logger.warning("%s: segment %s was not compacted: %s", directory, segment, error)


# One partition log: the only writer of rows, and its guarantee.
#
# Group commit: one thread writes all waiting rows as one frame, makes it durable with one fdatasync, publishes the new
# end and only then completes the futures. A frame is never started before the previous one is durable, so a crash can
# only tear the last frame, and a bad frame before an intact one is damage and not a torn tail.


def recover_log(directory: Path, inbox: str, partition: int) -> int:
    """Repair the last segments after a crash, and return the number of the next segment to write.

    A segment with rows is never appended to again: even if the disk has lost data, the numbers of rows that were
    already read are not reused.

    Raises:
        InboxDamaged: acknowledged rows are missing: the published end is ahead of the file, or an intact frame follows
            a broken one. Nothing is changed then.
        OSError: the files cannot be read or written.
    """
    create_private_folder(directory)
    for leftover in directory.glob("*.tmp"):
        leftover.unlink()
    segments = list_segments(directory)
    published = read_published_end(directory)
    last = segments[-1] if segments else -1
    if published is not None and published.segment > last and published.rows > 0:
        raise damage_error(segment_path(directory, published.segment), 0)
    floor = published.segment if published is not None else last - 1
    rows = 0
    for segment in (number for number in segments if number >= floor):
        durable = published.rows if published is not None and published.segment == segment else 0
        rows = _cut_tail(segment_path(directory, segment), checksum_seed(inbox, partition, segment), durable)
    sync_path(directory)
    # An empty last segment is reused, unless a higher number was published to readers.
    return max(last + 1 if rows else last, floor, 0)


def _cut_tail(path: Path, seed: int, durable: int) -> int:
    """Truncate the file after the last intact frame, make the rest durable, and return its number of rows."""
    data = map_segment(path)
    end = rows = 0
    for frame in iter_frames(data, 0, data.size):
        if frame.first != rows or not is_intact(data, frame, seed):
            break
        end, rows = frame.end, frame.last
    if rows < durable or find_intact_frame(data, end, data.size, seed) is not None:
        raise damage_error(path, rows)
    if end < data.size:
        _logger.warning("%s: removed %s bytes of an unfinished write behind row %s", path, data.size - end, rows)
    del data
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return rows


_sync = getattr(os, "fdatasync", os.fsync)  # not every system has the cheaper one


class _QueuedRows(NamedTuple):
    rows: Sequence[InboxRow]
    size: int
    done: Future[None]


class PartitionLog:
    """The append-only log of one partition. Only one process may hold it open (the caller has the state lock).

    *sealed* is called on the writer thread with each closed segment.

    Raises:
        InboxDamaged: acknowledged rows are missing or broken.
        OSError: the directory cannot be read or written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        inbox: str,
        partition: int,
        limits: InboxLimits,
        space: DiskSpace,
        sealed: Callable[[Path, int], None],
    ) -> None:
        self._directory = directory
        self._inbox = inbox
        self._partition = partition
        self._limits = limits
        self._space = space
        self._on_sealed = sealed
        self._waiting: queue.SimpleQueue[_QueuedRows | None] = queue.SimpleQueue()  # None is the last
        self._closing = False
        self._lock = threading.Lock()  # so that nothing waits behind the last
        self._has_torn_tail = False  # bytes may follow the durable end in the file, and must go before the next write
        self._end_file = EndFile(directory)
        self._descriptor = -1
        self._end = DurableEnd(-1, 0, 0)
        self._open_segment(recover_log(directory, inbox, partition))
        self._thread = threading.Thread(target=self._run, name=f"inbox-{partition}", daemon=True)
        self._thread.start()

    def append(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Queue rows, to be stored together and in order; the future completes once all are durable.

        It fails with InboxFull (nothing stored, retry later), InboxRowError or InboxClosed. After a crash rows may be
        stored whose future had not completed: the sender repeats them, delivery is at least once.
        """
        done: Future[None] = Future()
        size = sum([len(row.body or b"") for row in rows])
        with self._lock:
            if not self._closing:
                self._waiting.put(_QueuedRows(rows, size, done))
                return done
        done.set_exception(InboxClosed("the inbox is closed; retry after the router has restarted"))
        return done

    def close(self) -> None:
        """Store all queued rows, then stop; later appends fail with InboxClosed."""
        with self._lock:
            self._closing = True
            self._waiting.put(None)
        self._thread.join()
        # The next start cuts off a torn tail. It keeps a complete frame, which at worst repeats messages.
        self._end_file.close()
        os.close(self._descriptor)

    def _run(self) -> None:
        """Store groups until the log is closed. An internal error fails the current group, whose senders retry."""
        while group := self._take_group():
            try:
                self._commit_group(group)
            except Exception as error:
                # Nobody may wait for ever. Nothing is acknowledged, and a partial write is cut off first.
                count_fault("inbox")
                _logger.exception("%s: a group of rows was not stored", self._directory)
                fault = InboxFull(f"{self._directory}: {type(error).__name__} while storing; see the log")
                _fail_entries([entry for entry in group if not entry.done.done()], fault)

    def _take_group(self) -> list[_QueuedRows]:
        """Wait for entries, and return as many as fit in one commit; none if the log closes and all are stored."""
        group: list[_QueuedRows] = []
        rows = size = 0
        while (entry := self._waiting.get()) is not None:
            group.append(entry)
            rows += len(entry.rows)
            size += entry.size
            if rows >= FRAME_ROWS or size >= FRAME_BYTES or self._waiting.empty():
                return group
        if group:
            self._waiting.put(None)
        return group

    def _commit_group(self, group: list[_QueuedRows]) -> None:
        try:
            self._store_batch(rows_to_batch([row for entry in group for row in entry.rows]))
        except InboxRowError as error:
            if len(group) == 1:
                group[0].done.set_exception(error)
                return
            for entry in group:  # one bad row must not fail the others
                self._commit_group([entry])
        except InboxFull as error:
            _fail_entries(group, error)
        except OSError as error:
            full = InboxFull(f"{self._directory}: {error.strerror or error}; free space or repair the disk")
            full.__cause__ = error
            self._space.record_disk_refusal(sum(entry.size for entry in group), error.strerror or str(error))
            _fail_entries(group, full)
        else:
            for entry in group:
                entry.done.set_result(None)

    def _store_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._has_torn_tail:
            self._cut_torn_tail()
        if self._end.size >= self._limits.segment_bytes:
            self._start_segment()
        seed = checksum_seed(self._inbox, self._partition, self._end.segment)
        frame = encode_frame(batch, self._end.rows, seed)
        self._space.require_space(len(frame))
        self._has_torn_tail = True
        _write_all(self._descriptor, frame, self._end.size)
        _sync(self._descriptor)
        self._has_torn_tail = False
        self._end = DurableEnd(self._end.segment, self._end.rows + batch.num_rows, self._end.size + len(frame))
        self._end_file.publish(self._end)

    def _cut_torn_tail(self) -> None:
        """Remove the bytes of a failed write or fsync, whose rows were never published or acknowledged."""
        os.ftruncate(self._descriptor, self._end.size)
        os.fsync(self._descriptor)
        self._has_torn_tail = False

    def _start_segment(self) -> None:
        closed = self._end.segment
        self._open_segment(closed + 1)
        self._on_sealed(self._directory, closed)

    def _open_segment(self, segment: int) -> None:
        path = segment_path(self._directory, segment)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            os.ftruncate(descriptor, 0)
            os.fsync(descriptor)
            sync_path(self._directory)
        except OSError:
            # Left in place, the empty file would seal the previous segment while that still grows.
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._end = DurableEnd(segment, 0, 0)
        self._end_file.publish(self._end)


def _fail_entries(group: Sequence[_QueuedRows], error: InboxError) -> None:
    for entry in group:
        entry.done.set_exception(error)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


# The durable inbox: stores acknowledged messages until the router's batch is committed.

DEFAULT_PARTITIONS: Final = 2
ORDER_KEYS: Final = frozenset(("path", "topic_name", "topic", "subject", "properties.subject"))
"""The properties that, with the endpoint, decide a row's partition: the first one that a row has."""


class Inbox:
    """The writing side of an inbox.

    Only one process may hold an inbox open; the caller guards that with the lock of the state directory. Rows of
    one endpoint and topic (subject, path) keep the order in which they were appended. All methods may be called
    from any thread.

    Raises:
        InboxFormatError: the inbox is of another version or has another number of partitions.
        InboxDamaged: acknowledged rows are missing or broken.
        OSError: the directory cannot be created, read or written.
    """

    def __init__(self, path: Path, *, partitions: int = DEFAULT_PARTITIONS, limits: InboxLimits | None = None) -> None:
        limits = limits or InboxLimits()
        self.layout = open_layout(path, partitions)
        self.path = path
        rows_to_batch(())  # the first batch of a process takes most of a second; no sender should wait for it
        self._space = DiskSpace(path, limits)
        self._compactor = Compactor(self.layout.inbox)
        self._logs = [self._open_log(partition, limits) for partition in range(partitions)]

    @property
    def identity(self) -> str:
        """What distinguishes its gateways from those of other inboxes, in their client ids."""
        return self.layout.inbox[:8]

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store rows; the future completes once all are durable, and fails if any is not.

        :meth:`PartitionLog.append` describes the failures and what a crash leaves. It is not a transaction: when it
        fails, rows of other partitions may have been stored.
        """
        shares: dict[int, list[InboxRow]] = defaultdict(list)
        for row in rows:
            shares[self.partition_of(row)].append(row)
        return _combine_futures([self._logs[partition].append(share) for partition, share in shares.items()])

    def partition_of(self, row: InboxRow) -> int:
        """Return the partition of a row: a hash of its endpoint and its topic, subject or path."""
        place = b""
        for key, value, _ in row.properties:
            if key in ORDER_KEYS:
                place = value or b""
                break
        return zlib.crc32(row.endpoint.encode("utf-8", "surrogatepass") + b"\0" + place) % len(self._logs)

    def measure_size(self) -> int:
        """Return the size of all segments on disk, in bytes."""
        return self._space.measure_size()

    def max_size(self) -> int:
        """Return the maximum size in bytes, by the limits and the free disk space."""
        return self._space.max_size()

    def refusal_reason(self) -> str:
        """Return why no rows are accepted now, and how to fix it; empty if they are."""
        return self._space.refusal_reason()

    def close(self) -> None:
        """Store all queued rows and close the files; later appends fail with InboxClosed."""
        for log in self._logs:
            log.close()
        self._compactor.close()

    def _open_log(self, partition: int, limits: InboxLimits) -> PartitionLog:
        directory = partition_directory(self.path, partition)
        log = PartitionLog(
            directory,
            inbox=self.layout.inbox,
            partition=partition,
            limits=limits,
            space=self._space,
            sealed=self._compactor.add_segment,
        )
        for segment in list_segments(directory)[:-1]:
            self._compactor.add_segment(directory, segment)
        return log


def _combine_futures(futures: Sequence[Future[None]]) -> Future[None]:
    """Combine futures to one, which completes with the last, or fails with a failure of theirs once all have ended."""
    if len(futures) == 1:
        return futures[0]
    total: Future[None] = Future()

    def on_ended(_: Future[None]) -> None:
        if all(each.done() for each in futures):
            failure = next((error for each in futures if (error := each.exception()) is not None), None)
            with contextlib.suppress(InvalidStateError):  # the last two may end at the same time
                total.set_exception(failure) if failure is not None else total.set_result(None)

    if not futures:
        total.set_result(None)
    for future in futures:
        future.add_done_callback(on_ended)
    return total
