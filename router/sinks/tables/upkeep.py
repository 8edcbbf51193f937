"""Upkeep of Delta tables beside the stream, so that log and files stay few: what it does, and in which order.

| step | what a reader or a router finds that comes after a kill right here |
|---|---|
| set how long the table is to keep things | the table as it was |
| merge small files, in one commit (`merging.py`) | small files, or what they became; no log names the others |
| remove files that were replaced long ago | fewer of them; the next removal takes the rest |
| write a checkpoint, and bring it to the disk | all entries still; a checkpoint is there wholly or not at all |
| remove entries that an old enough checkpoint has | more of them than needed |

Batches go on meanwhile: a commit that finds upkeep before it looks again, as upkeep does that finds another engine.
Files that no log names are removed by their names and age: those of a merge that was cut off after an hour, or as late
as replaced files, and those that a batch has staged after a day. Files go before the checkpoint is written, since it
forgets what was replaced long ago.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from bindings.background import Background
from router.logs import get_logger
from router.sinks.tables.files import local_folder, make_checkpoint_durable, sole_rewriter
from router.sinks.tables.head import LEFT_TO_UPKEEP, Head
from router.sinks.tables.log import DRAFT
from router.sinks.tables.merging import MERGED, MOST, Merge, merge

_EVERY: Final = 100
"""Versions of a table after which it is tended where files are not merged."""
_ATTEMPTS: Final = 20
_STAGED: Final = re.compile(r"-\d{12}-[^/]*-[0-9a-f]{8}\.snappy\.parquet")
"""How names of files end that workers stage."""
_STAGED_FOR: Final = 86_400.0
"""Seconds after which a file that was staged is part of no batch any more; one that is gone is staged again."""
_UNNAMED_FOR: Final = 3_600.0
"""Seconds after which an entry that was never linked has no writer any more, nor has a file that no log names."""
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

    def tend(self, uri: str) -> Merge:
        """Do all that is due for a table now; return what merging did.

        Raises:
            DeltaError, OSError: the table cannot be read or written now; it has what it had.
        """
        with sole_rewriter(uri):
            return self._tend(uri)

    def _tend(self, uri: str) -> Merge:
        folder = local_folder(uri)
        self._set_retention(uri, folder)
        merged = self._merge(uri, folder) if self._rules.after else Merge()
        table = DeltaTable(uri)
        hours = int(self._rules.keep.total_seconds() // 3600)
        if folder is None:
            table.vacuum(
                hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=False,
                post_commithook_properties=LEFT_TO_UPKEEP,
            )
            table = DeltaTable(uri)
        else:
            _remove_replaced(table, folder, hours)
        table.create_checkpoint()
        make_checkpoint_durable(uri, table.version())
        table.cleanup_metadata()
        return merged

    def _set_retention(self, uri: str, folder: Path | None) -> None:
        """Set in the table how long it keeps things: upkeep, ours and that of others, obeys these properties."""
        kept = f"interval {int(self._rules.keep.total_seconds())} seconds"
        wanted = dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), kept)
        for _ in range(_ATTEMPTS):
            table = DeltaTable(uri)
            if wanted.items() <= table.metadata().configuration.items():
                return
            head = Head(uri, table)
            if folder is None or not head.appends:
                table.alter.set_table_properties(wanted, post_commithook_properties=LEFT_TO_UPKEEP)
                return
            with suppress(CommitFailedError):
                head.configure(wanted)

    def _merge(self, uri: str, folder: Path | None) -> Merge:
        if folder is None:
            metrics = DeltaTable(uri).optimize.compact(
                target_size=self._rules.file_bytes,
                max_concurrent_tasks=1,
                post_commithook_properties=LEFT_TO_UPKEEP,
            )
            merged = Merge(metrics["numFilesRemoved"], metrics["numFilesAdded"])
        else:
            merged = last = merge(uri, folder, self._rules.file_bytes)
            while last.before >= MOST:
                last = merge(uri, folder, self._rules.file_bytes)
                merged = Merge(merged.before + last.before, merged.after + last.after)
        if merged.before:
            _log.info("small files merged", sink=self._sink, table=uri, before=merged.before, after=merged.after)
        return merged


def _remove_replaced(table: DeltaTable, folder: Path, hours: int) -> None:
    """Remove files that the log replaced long ago, and those that no log named and nobody is at any more."""
    for path in table.vacuum(hours, enforce_retention_duration=False, full=False):
        _remove(folder / path, folder, 0.0)
    for path in table.vacuum(hours, enforce_retention_duration=False, full=True):
        name = path.rpartition("/")[2]
        if name.startswith(MERGED):
            _remove(folder / path, folder, _UNNAMED_FOR)
        elif _STAGED.search(name):
            _remove(folder / path, folder, _STAGED_FOR)
    for draft in (folder / "_delta_log").glob(DRAFT):
        _remove(draft, folder, _UNNAMED_FOR)


def _remove(file: Path, folder: Path, age: float) -> None:
    with suppress(OSError):
        if file.is_relative_to(folder) and time.time() - file.stat().st_mtime >= age:
            file.unlink()
