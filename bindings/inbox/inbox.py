"""The durable inbox: what gateways have acknowledged lies here until the router's batch is committed."""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from bindings.inbox.compaction import Compactor
from bindings.inbox.frames import batch_of
from bindings.inbox.layout import open_layout
from bindings.inbox.log import PartitionLog
from bindings.inbox.segments import partition_directory, segments_in
from bindings.inbox.space import InboxLimits, Space
from bindings.parts import InboxRow

DEFAULT_PARTITIONS: Final = 2
ORDER_KEYS: Final = frozenset(("path", "topic_name", "topic", "subject", "properties.subject"))
"""The properties that, with the endpoint, decide a row's partition: the first of them that a row has."""


class Inbox:
    """The writing side of an inbox.

    Only one process may hold an inbox open; the caller guards that with the lock of the state directory. Rows of
    one endpoint and topic (subject, path) keep the order in which they were appended. All methods may be called
    from any thread.

    Raises:
        InboxFormatError: the inbox is of another version or has another number of partitions.
        InboxDamaged: acknowledged rows are missing or broken.
        OSError: the directory cannot be made, read or written.
    """

    def __init__(self, path: Path, *, partitions: int = DEFAULT_PARTITIONS, limits: InboxLimits | None = None) -> None:
        limits = limits or InboxLimits()
        self.layout = open_layout(path, partitions)
        self.path = path
        batch_of(())  # the first batch of a process takes most of a second; no sender waits for that
        self._space = Space(path, limits)
        self._compactor = Compactor(self.layout.inbox)
        self._logs = [self._open(partition, limits) for partition in range(partitions)]

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store rows; the future resolves once all are durable, and fails when any is not.

        :meth:`PartitionLog.append` says how it fails and what a crash leaves. It is no transaction: when it fails, rows
        of other partitions than the failing one may have been stored.
        """
        shares: dict[int, list[InboxRow]] = defaultdict(list)
        for row in rows:
            shares[self.partition_of(row)].append(row)
        return _all_of([self._logs[partition].append(share) for partition, share in shares.items()])

    def partition_of(self, row: InboxRow) -> int:
        """Return the partition of a row: a hash of its endpoint and its topic, subject or path."""
        place = b""
        for key, value, _ in row.properties:
            if key in ORDER_KEYS:
                place = value or b""
                break
        return zlib.crc32(row.endpoint.encode("utf-8", "surrogatepass") + b"\0" + place) % len(self._logs)

    def size(self) -> int:
        """Return the bytes that all segments take on disk now."""
        return self._space.measure()

    def limit(self) -> int:
        """Return the bytes at which it accepts nothing more, by its limits and by what the disk has left."""
        return self._space.limit()

    def trouble(self) -> str:
        """Return why it accepts nothing now, and what helps; '' while it does."""
        return self._space.trouble()

    def close(self) -> None:
        """Store what was appended before and release everything; later appends fail with InboxClosed."""
        for log in self._logs:
            log.close()
        self._compactor.close()

    def _open(self, partition: int, limits: InboxLimits) -> PartitionLog:
        directory = partition_directory(self.path, partition)
        log = PartitionLog(
            directory,
            inbox=self.layout.inbox,
            partition=partition,
            limits=limits,
            space=self._space,
            sealed=self._compactor.add,
        )
        for segment in segments_in(directory)[:-1]:
            self._compactor.add(directory, segment)
        return log


def _all_of(futures: Sequence[Future[None]]) -> Future[None]:
    """Return a future of all: it resolves with the last, or fails with the first failure once all have ended."""
    if len(futures) == 1:
        return futures[0]
    total: Future[None] = Future()
    total.set_running_or_notify_cancel()
    lock = threading.Lock()
    failures: list[BaseException] = []
    left = len(futures)

    def ended(future: Future[None]) -> None:
        nonlocal left
        error = future.exception()
        with lock:
            left -= 1
            if error is not None:
                failures.append(error)
            if left:
                return
        if failures:
            total.set_exception(failures[0])
        else:
            total.set_result(None)

    if not futures:
        total.set_result(None)
    for future in futures:
        future.add_done_callback(ended)
    return total
