"""One partition log: the only place that writes rows, and the promise that goes with each.

Group commit: one thread takes everything that waits, writes it as one frame, makes it durable with one fdatasync,
publishes the new end and only then resolves the futures. A frame is never started before the one before is durable,
so a crash can tear the last frame only, and a bad frame before an intact one is damage and not a torn tail.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from bindings.background import count_fault
from bindings.inbox.ends import End, EndFile
from bindings.inbox.errors import InboxClosed, InboxError, InboxFull, InboxRowError
from bindings.inbox.frames import batch_of, encode, seed_of
from bindings.inbox.recovery import recover
from bindings.inbox.segments import segment_path
from bindings.inbox.space import InboxLimits, Space
from bindings.parts import InboxRow
from bindings.private import FILE_MODE, sync_path

GROUP_ROWS: Final = 10_000
GROUP_BYTES: Final = 16 * 2**20
"""Most rows, and most bytes of bodies, that one commit takes; more would only make all of them wait longer."""
_PUBLISH_RETRY_SECONDS: Final = 1.0

_sync = getattr(os, "fdatasync", os.fsync)  # not every system has the cheaper one
_logger = logging.getLogger(__name__)


class _Entry(NamedTuple):
    rows: Sequence[InboxRow]
    size: int
    done: Future[None]


class PartitionLog:
    """The append-only log of one partition. Only one process may hold it open (the caller has the state lock).

    *sealed* is called, from the writer thread, with each segment that was closed.

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
        space: Space,
        sealed: Callable[[Path, int], None],
    ) -> None:
        self._directory = directory
        self._inbox = inbox
        self._partition = partition
        self._limits = limits
        self._space = space
        self._sealed = sealed
        self._waiting: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()  # None is the last
        self._closing = False
        self._lock = threading.Lock()  # so that nothing waits behind the last
        self._torn = False  # bytes behind the durable end may lie in the file and must go before the next write
        self._unpublished = False
        self._end_file = EndFile(directory)
        self._descriptor = -1
        self._end = End(-1, 0, 0)
        self._open_segment(recover(directory, inbox, partition))
        self._thread = threading.Thread(target=self._run, name=f"inbox-{partition}", daemon=True)
        self._thread.start()

    def append(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Queue rows, to be stored together and in order; the future resolves once all are durable.

        It fails with InboxFull (nothing taken, try later), InboxRowError or InboxClosed. After a crash rows may be
        there whose future had not resolved: the sender repeats them, delivery is at least once.
        """
        done: Future[None] = Future()
        try:
            size = sum([len(row.body or b"") for row in rows])
        except (TypeError, AttributeError) as error:
            done.set_exception(InboxRowError(f"not a row that the inbox can store: {error}"))
            return done
        with self._lock:
            if not self._closing:
                self._waiting.put(_Entry(rows, size, done))
                return done
        done.set_exception(InboxClosed("the inbox is closed; send again once the router is back"))
        return done

    def close(self) -> None:
        """Store what was queued before, then stop; later appends fail with InboxClosed."""
        with self._lock:
            self._closing = True
            self._waiting.put(None)
        self._thread.join()
        if self._torn:
            try:
                self._cut()
            except OSError as error:
                # The next start does it; a whole frame among it would be kept then, which repeats a message at worst.
                _logger.warning("%s: an unfinished write stays behind the durable end: %s", self._directory, error)
        self._end_file.close()
        os.close(self._descriptor)

    def _run(self) -> None:
        """Store groups until the log is closed. A fault of ours fails the group in hand, whose senders try again."""
        while (group := self._take()) is not None:
            try:
                if group:
                    self._commit(group)
                if self._unpublished:
                    self._publish()
            except Exception as error:
                # Nobody may wait for ever. Nothing is acknowledged, and what was half written is cut off first.
                count_fault("inbox")
                _logger.exception("%s: a group of rows was not stored", self._directory)
                fault = InboxFull(f"{self._directory}: {type(error).__name__} while storing; see the log")
                _fail([entry for entry in group if not entry.done.done()], fault)

    def _take(self) -> list[_Entry] | None:
        """Wait for entries and take as many as one commit may hold; maybe none when a publish is due.

        None means that the log is closing and nothing waits any more.
        """
        group: list[_Entry] = []
        rows = size = 0
        with contextlib.suppress(queue.Empty):
            entry = self._waiting.get(timeout=_PUBLISH_RETRY_SECONDS if self._unpublished else None)
            while entry is not None:
                # From here on a caller can no longer cancel, so "cancelled" always means "not stored".
                if entry.done.set_running_or_notify_cancel():
                    group.append(entry)
                    rows += len(entry.rows)
                    size += entry.size
                    if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                        return group
                entry = self._waiting.get_nowait()
            if not group:
                return None
            self._waiting.put(None)
        return group

    def _commit(self, group: list[_Entry]) -> None:
        try:
            self._store(batch_of([row for entry in group for row in entry.rows]))
        except InboxRowError as error:
            if len(group) == 1:
                group[0].done.set_exception(error)
                return
            for entry in group:  # one bad row must not cost its neighbours
                self._commit([entry])
        except InboxFull as error:
            _fail(group, error)
        except OSError as error:
            full = InboxFull(f"{self._directory}: {error.strerror or error}; free space or repair the disk")
            full.__cause__ = error
            self._space.disk_refused(sum(entry.size for entry in group), error.strerror or str(error))
            _fail(group, full)
        else:
            for entry in group:
                entry.done.set_result(None)

    def _store(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._torn:
            self._cut()
        if self._end.size >= self._limits.segment_bytes:
            self._roll()
        seed = seed_of(self._inbox, self._partition, self._end.segment)
        frame = encode(batch, self._end.rows, seed)
        self._space.require(len(frame))
        self._torn = True
        _write(self._descriptor, frame, self._end.size)
        _sync(self._descriptor)
        self._torn = False
        self._end = End(self._end.segment, self._end.rows + batch.num_rows, self._end.size + len(frame))
        self._publish()

    def _cut(self) -> None:
        """Take away what a failed write or fsync left: never published, never acknowledged, its numbers are free."""
        os.ftruncate(self._descriptor, self._end.size)
        os.fsync(self._descriptor)
        self._torn = False

    def _roll(self) -> None:
        closed = self._end.segment
        self._open_segment(closed + 1)
        self._sealed(self._directory, closed)

    def _open_segment(self, segment: int) -> None:
        path = segment_path(self._directory, segment)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            os.ftruncate(descriptor, 0)
            os.fsync(descriptor)
            sync_path(self._directory)
        except OSError:
            # Left as it is, the empty file would seal the segment before while that one still grows.
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._end = End(segment, 0, 0)
        self._publish()

    def _publish(self) -> None:
        try:
            self._end_file.publish(self._end)
        except OSError as error:
            # The rows are durable, so their senders get their answer; readers see them with the next publish.
            _logger.warning("%s: durable end not published, will retry: %s", self._directory, error)
            self._unpublished = True
        else:
            self._unpublished = False


def _fail(group: Sequence[_Entry], error: InboxError) -> None:
    for entry in group:
        entry.done.set_exception(error)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
