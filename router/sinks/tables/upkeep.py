"""Upkeep of Delta tables beside the stream, so that log and files stay few: what it does, and in which order.

| step | what a reader or a router finds that comes after a kill right here |
|---|---|
| set how long the table is to keep things | the table as it was |
| merge small files, in a commit of its own | small files, or those that they became; no log names the others |
| remove files that were replaced long ago | fewer of them; the next removal takes the rest |
| write a checkpoint, and bring it to the disk | all entries still; a checkpoint is there wholly or not at all |
| remove entries that an old enough checkpoint has | more of them than needed |

Batches go on meanwhile: a commit that finds upkeep before it looks again. Files that a batch has staged are never
removed, however old: only what the log replaced, and what delta-rs wrote. Files go before the checkpoint is written,
since it forgets what was replaced long ago.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from bindings.background import Background
from router.logs import get_logger
from router.sinks.tables.files import (
    local_folder,
    make_changes_durable,
    make_checkpoint_durable,
    make_durable,
    sole_rewriter,
)
from router.sinks.tables.head import LEFT_TO_UPKEEP

_EVERY: Final = 100
"""Versions of a table after which it is tended where files are not merged."""
_OF_DELTA: Final = "part-"
"""Begins the name of each file that delta-rs writes."""
_log = get_logger()


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """When tables are tended and how: after so many versions, with files merged into those of ``file_bytes``.

    With ``after`` 0 files are not merged. Replaced files and entries of the log stay for ``keep``, counted in whole
    hours for files.
    """

    after: int
    file_bytes: int
    keep: timedelta


class Upkeep:
    """Looks after the tables of one sink on a thread of its own, one at a time."""

    def __init__(self, sink: str, rules: UpkeepRules) -> None:
        self._sink = sink
        self._rules = rules
        self._every = rules.after or _EVERY
        self._rounds: dict[str, int] = {}
        self._due: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread: Background | None = None

    def committed(self, uri: str, version: int) -> None:
        """Note that a batch became this version of the table at *uri*; returns at once.

        A table is due whenever its version passes a multiple of what the rules say, however often routers start.
        """
        with self._lock:
            known = self._rounds.get(uri, (version - 1) // self._every)
            self._rounds[uri] = version // self._every
            if version // self._every <= known or uri in self._waiting:
                return
            self._waiting.add(uri)
            if self._thread is None:
                # Each step is atomic, so that nothing is lost when the process ends in the middle.
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
        """Do all that is due for a table now; return what merging did, as delta-rs reports it.

        Raises:
            DeltaError, OSError: the table cannot be read or written now; it has what it had.
        """
        with sole_rewriter(uri):
            return self._tend(uri)

    def _tend(self, uri: str) -> dict[str, Any]:
        table = DeltaTable(uri)
        self._set_retention(table, uri)
        merged: dict[str, Any] = self._merge(table, uri) if self._rules.after else {}
        self._remove_replaced(table, uri)
        table = DeltaTable(uri)
        table.create_checkpoint()
        make_checkpoint_durable(uri, table.version())
        table.cleanup_metadata()
        return merged

    def _remove_replaced(self, table: DeltaTable, uri: str) -> None:
        """Remove files that the log replaced long ago, and those that no log ever named since a merge was cut off."""
        hours = int(self._rules.keep.total_seconds() // 3600)
        table.vacuum(
            hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=False,
            post_commithook_properties=LEFT_TO_UPKEEP,
        )
        folder = local_folder(uri)
        if folder is None:
            return
        # Files that workers stage have other names, so they stay, however long a batch takes.
        for path in table.vacuum(hours, enforce_retention_duration=False, full=True):
            if path.rpartition("/")[2].startswith(_OF_DELTA):
                with suppress(OSError):
                    (folder / path).unlink()

    def _set_retention(self, table: DeltaTable, uri: str) -> None:
        """Set in the table how long it keeps things: upkeep, ours and that of others, obeys these properties."""
        kept = f"interval {int(self._rules.keep.total_seconds())} seconds"
        wanted = dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), kept)
        if wanted.items() <= table.metadata().configuration.items():
            return
        before = table.version()
        table.alter.set_table_properties(wanted, post_commithook_properties=LEFT_TO_UPKEEP)
        make_changes_durable(uri, table, before)

    def _merge(self, table: DeltaTable, uri: str) -> dict[str, Any]:
        metrics = table.optimize.compact(
            target_size=self._rules.file_bytes,
            max_concurrent_tasks=1,
            post_commithook_properties=LEFT_TO_UPKEEP,
        )
        if metrics["numFilesRemoved"]:
            make_durable(uri, table.version())
            counts = {"before": metrics["numFilesRemoved"], "after": metrics["numFilesAdded"]}
            _log.info("small files merged", sink=self._sink, table=uri, **counts)
        return metrics
