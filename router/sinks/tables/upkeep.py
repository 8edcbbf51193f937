"""Upkeep of Delta tables beside the stream: small files are merged, replaced ones removed after a while.

One append for each batch leaves many small files, which make readers slow. Merging is a commit of its own that changes
no row; a batch that commits meanwhile is not in its way, and a crash leaves either the old files or the new.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bindings.background import Background
from router.logs import get_logger
from router.sinks.tables.files import make_durable

VACUUM_SECONDS: Final = 3600.0
"""Removing replaced files lists the whole table, hence seldom."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """When files are merged: after this many commits, into files of ``file_bytes``; replaced ones stay for ``keep``."""

    after: int
    file_bytes: int
    keep: timedelta


class Upkeep:
    """Looks after the tables of one sink on a thread of its own, one at a time."""

    def __init__(self, sink: str, rules: UpkeepRules) -> None:
        self._sink = sink
        self._rules = rules
        self._commits: Counter[str] = Counter()
        self._vacuumed: dict[str, float] = {}
        self._due: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread: Background | None = None

    def committed(self, uri: str) -> None:
        """Note that a batch was appended to the table at *uri*; returns at once."""
        with self._lock:
            self._commits[uri] += 1
            if not self._rules.after or self._commits[uri] < self._rules.after or uri in self._waiting:
                return
            self._commits[uri] = 0
            self._waiting.add(uri)
            if self._thread is None:
                # Merging is atomic, so that nothing is lost when the process ends in the middle.
                self._thread = Background("upkeep", self._run, name=f"upkeep-{self._sink}")
                self._thread.start()
        self._due.put(uri)

    def _run(self) -> None:
        while True:
            uri = self._due.get()
            try:
                self.tend(uri)
            except (DeltaError, OSError) as error:
                _log.warning("table was not tidied, will try again", sink=self._sink, table=uri, error=str(error)[:300])
            finally:
                with self._lock:
                    self._waiting.discard(uri)

    def tend(self, uri: str) -> dict[str, Any]:
        """Merge the small files of a table now, and remove what was replaced long ago; returns what merging did.

        Raises:
            DeltaError, OSError: the table cannot be read or written now; it is as it was.
        """
        table = DeltaTable(uri)
        told = table.optimize.compact(target_size=self._rules.file_bytes, max_concurrent_tasks=1)
        if told["numFilesRemoved"]:
            make_durable(uri, table.version())
            counts = {"before": told["numFilesRemoved"], "after": told["numFilesAdded"]}
            _log.info("small files merged", sink=self._sink, table=uri, **counts)
        last = self._vacuumed.get(uri)
        if last is None or time.monotonic() - last > VACUUM_SECONDS:
            hours = int(self._rules.keep.total_seconds() // 3600)
            table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
            self._vacuumed[uri] = time.monotonic()
        return told
