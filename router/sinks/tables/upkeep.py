"""Background maintenance of Delta tables, which limits log entries and files. Its steps, in order:

| step | state after a crash during the step |
|---|---|
| set the table's retention | the table is unchanged |
| merge small files, in one commit | either small or merged files are in the table; the others are not in the log |
| remove files that were replaced long ago | some are left; the next run removes them |
| write a checkpoint durably | all entries exist; the checkpoint is complete or absent |
| remove entries that an old enough checkpoint has | some are left |

Batches continue meanwhile: on a conflict, a commit is retried, and so is upkeep after a conflict with another engine.
Files that are not in the log are removed by name and age: those of an interrupted merge after an hour, or with replaced
files, and files staged for a batch after a day. Files are removed before the checkpoint is written, since it omits what
was replaced long ago.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from bindings.background import Background
from bindings.private_files import sync_path
from router.logs import get_logger
from router.rendering.payloads import conform_rows, evolve_schema
from router.sinks.tables.head import (
    DRAFT,
    LEFT_TO_UPKEEP,
    TableHead,
    TableLog,
    hold_rewrite_lock,
    local_folder,
    make_checkpoint_durable,
)
from router.sinks.tables.staging import write_file

# Merging the small files of a table on disk, without ever losing or duplicating a row.
#
# The rows are written to new files first. Then one log entry replaces the old files, provided that all of them are
# still in the log: entries that others committed are read, and if they removed one of these files, the merge is
# abandoned. Writers that started before the entry conflict with it (:meth:`TableHead.replace_files`).

MERGED: Final = "part-"
"""The prefix of merged files' names, as with other engines."""
_ATTEMPTS: Final = 100
MOST: Final = 2_000
"""Approximate maximum of files that one entry replaces."""
_GROUP: Final = 32 * 2**20
"""Bytes of rows buffered before they are written."""
File = Mapping[str, Any]
"""An action ``add`` from the log."""


class MergeResult(NamedTuple):
    """The number of files before and after a merge; 0 if nothing was merged."""

    before: int = 0
    after: int = 0


def merge_small_files(uri: str, folder: Path, size: int) -> MergeResult:
    """Merge files smaller than *size* within each partition of a table, about :data:`MOST` at most.

    Raises:
        DeltaError, OSError: the table cannot be read or written now; it is unchanged.
    """
    table = DeltaTable(uri)
    head = TableHead(uri, table)
    if not head.can_append or not head.needs.can_merge:
        return MergeResult()
    parts = table.metadata().partition_columns
    columns = pa.schema([field for field in head.schema if field.name not in parts])
    removed: list[File] = []
    added: list[File] = []
    known: dict[bytes, bool] = {}
    try:
        for files in _group_small_files(TableLog(folder).find_files_below(head.version, size).values(), size):
            fitting = [file for file in files if _can_merge_file(folder / unquote(file["path"]), columns, known)]
            if len(fitting) > 1:
                added.append(_write_merged_file(folder, fitting, columns))
                removed += fitting
            if len(removed) >= MOST:
                break
        if not added or not _commit_replacement(head, folder, removed, added):
            _delete_files(folder, added)
            return MergeResult()
    except FileNotFoundError:
        # Another engine replaced and removed a file; the next run handles its files.
        _delete_files(folder, added)
        return MergeResult()
    except BaseException:
        _delete_files(folder, added)
        raise
    if not all(_is_unchanged(folder, file) for file in added):
        # Another engine removed the new files before they were in the log: the old files still exist, and are restored.
        _commit_replacement(head, folder, added, removed)
        return MergeResult()
    return MergeResult(len(removed), len(added))


def _group_small_files(files: Iterable[File], size: int) -> Iterator[list[File]]:
    """Yield groups of small files of one partition, each to be merged into one file."""
    partitions: dict[str, tuple[list[File], int]] = {}
    for file in sorted(files, key=lambda file: (file["modificationTime"], file["path"])):
        # Files with a deletion vector are left to engines that support them; a path outside the table belongs to a
        # clone.
        if file.get("deletionVector") or ":" in unquote(file["path"]).partition("/")[0]:
            continue
        partition = json.dumps(file["partitionValues"], sort_keys=True)
        gathered, taken = partitions.get(partition, ([], 0))
        if taken + file["size"] > size:
            yield gathered
            gathered, taken = [], 0
        gathered.append(file)
        partitions[partition] = (gathered, taken + file["size"])
    yield from (gathered for gathered, _ in partitions.values())


def _can_merge_file(path: Path, columns: pa.Schema, known: dict[bytes, bool]) -> bool:
    """Whether a file's rows can be written with these columns without loss; *known* caches results by schema."""
    schema = pq.read_schema(path)
    key = schema.remove_metadata().serialize().to_pybytes()
    if key not in known:
        given = _add_time_zones(schema.empty_table(), columns).schema
        whole = evolve_schema(columns, pa.schema([pa.field(field.name, field.type) for field in given]))
        known[key] = bool(whole.equals(columns))
    return known[key]


def _write_merged_file(folder: Path, files: Sequence[File], columns: pa.Schema) -> File:
    """Write the rows of files to a new file durably, in the folder of the first; return it as an action."""
    beside = files[0]["path"].rpartition("/")[0]
    name = f"{MERGED}{uuid4()}-merged.snappy.parquet"
    path = f"{beside}/{name}" if beside else name
    size, statistics = write_file(folder / unquote(path), columns, _iter_row_groups(folder, files, columns))
    sync_path((folder / unquote(path)).parent)
    now = time.time_ns() // 1_000_000
    added = {"path": path, "partitionValues": files[0]["partitionValues"], "size": size, "modificationTime": now}
    return added | {"stats": statistics}


def _iter_row_groups(folder: Path, files: Sequence[File], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, about :data:`_GROUP` at a time."""
    gathered: list[pa.Table] = []
    size = 0
    for file in files:
        with pq.ParquetFile(folder / unquote(file["path"]), coerce_int96_timestamp_unit="us") as source:
            for number in range(source.num_row_groups):
                rows = _add_time_zones(source.read_row_group(number), columns)
                gathered.append(rows if rows.schema.equals(columns) else conform_rows(rows, columns))
                size += gathered[-1].nbytes
                if size >= _GROUP:
                    yield pa.concat_tables(gathered)
                    gathered, size = [], 0
    if gathered:
        yield pa.concat_tables(gathered)


def _add_time_zones(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Add the time zone to times if the table has one: Parquet's legacy type for times has none."""
    for at, each in enumerate(rows.schema):
        wanted = columns.field(each.name).type if each.name in columns.names else each.type
        if pa.types.is_timestamp(each.type) and pa.types.is_timestamp(wanted) and not each.type.tz and wanted.tz:
            rows = rows.set_column(at, each.name, rows.column(at).cast(pa.timestamp("us")).cast(wanted))
    return rows


def _commit_replacement(head: TableHead, folder: Path, removed: Sequence[File], added: Sequence[File]) -> bool:
    """Commit the replacement of files; return False if one of them is no longer in the log."""
    gone = {file["path"] for file in removed}
    for _ in range(_ATTEMPTS):
        if not all(_is_unchanged(folder, file) for file in added):
            return False
        try:
            head.replace_files(removed, added)
        except CommitFailedError:
            actions = head.read_new_entries()
            if actions is None or any(each["remove"]["path"] in gone for each in actions if "remove" in each):
                return False
        else:
            return True
    return False


def _is_unchanged(folder: Path, file: File) -> bool:
    try:
        return bool((folder / unquote(file["path"])).stat().st_size == file["size"])
    except OSError:
        return False


def _delete_files(folder: Path, files: Iterable[File]) -> None:
    for file in files:
        with suppress(OSError):
            os.unlink(folder / unquote(file["path"]))


_EVERY: Final = 100
"""Versions of a table between two maintenance runs if files are not merged."""
_UPKEEP_ATTEMPTS: Final = 20
_STAGED: Final = re.compile(r"-\d{12}-[^/]*-[0-9a-f]{8}\.snappy\.parquet")
"""Pattern of the names of files that workers stage."""
_STAGED_FOR: Final = 86_400.0
"""Seconds after which a staged file is considered abandoned; if it was not, it is staged again."""
_UNNAMED_FOR: Final = 3_600.0
"""Seconds after which drafts of entries and files that are not in the log are considered abandoned."""
_log = get_logger()


@dataclass(eq=False)
class Upkeep:
    """Maintains the tables of one sink on a background thread, one at a time.

    They are maintained every ``after`` versions, with small files merged up to ``file_bytes``; if ``after`` is 0, files
    are not merged. Replaced files and log entries are kept for ``keep``, rounded down to hours for files.
    """

    sink: str
    after: int
    file_bytes: int
    keep: timedelta
    _rounds: dict[str, int] = field(default_factory=dict, init=False)
    _due: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue, init=False)
    _waiting: set[str] = field(default_factory=set, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _thread: Background | None = field(default=None, init=False)

    def record_commit(self, uri: str, version: int) -> None:
        """Record that a batch was committed as this version of the table at *uri*; does not block.

        A table is due whenever its version passes a multiple of the interval, regardless of restarts.
        """
        with self._lock:
            every = self.after or _EVERY
            known = self._rounds.get(uri, (version - 1) // every)
            self._rounds[uri] = version // every
            if version // every <= known or uri in self._waiting:
                return
            self._waiting.add(uri)
            if self._thread is None:
                # Each step is atomic, so nothing is lost if the process ends in between.
                self._thread = Background("upkeep", self._maintain_due_tables, name=f"upkeep-{self.sink}")
                self._thread.start()
        self._due.put(uri)

    def _maintain_due_tables(self) -> None:
        while True:
            uri = self._due.get()
            try:
                self.maintain(uri)
            except (DeltaError, OSError) as error:
                _log.warning("table maintenance failed; retrying", sink=self.sink, table=uri, error=str(error)[:300])
            finally:
                with self._lock:
                    self._waiting.discard(uri)

    def maintain(self, uri: str) -> MergeResult:
        """Do all maintenance of a table now; return the result of merging.

        Raises:
            DeltaError, OSError: the table cannot be read or written now; it is unchanged.
        """
        with hold_rewrite_lock(uri):
            return self._maintain_locked(uri)

    def _maintain_locked(self, uri: str) -> MergeResult:
        folder = local_folder(uri)
        self._set_retention(uri, folder)
        merged = self._merge_files(uri, folder) if self.after else MergeResult()
        table = DeltaTable(uri)
        hours = int(self.keep.total_seconds() // 3600)
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
        """Set the table's retention properties, which apply to our maintenance and that of other engines."""
        kept = f"interval {int(self.keep.total_seconds())} seconds"
        wanted = dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), kept)
        for _ in range(_UPKEEP_ATTEMPTS):
            table = DeltaTable(uri)
            if wanted.items() <= table.metadata().configuration.items():
                return
            head = TableHead(uri, table)
            if folder is None or not head.can_append:
                table.alter.set_table_properties(wanted, post_commithook_properties=LEFT_TO_UPKEEP)
                return
            with suppress(CommitFailedError):
                head.set_properties(wanted)

    def _merge_files(self, uri: str, folder: Path | None) -> MergeResult:
        if folder is None:
            metrics = DeltaTable(uri).optimize.compact(
                target_size=self.file_bytes, max_concurrent_tasks=1, post_commithook_properties=LEFT_TO_UPKEEP
            )
            merged = MergeResult(metrics["numFilesRemoved"], metrics["numFilesAdded"])
        else:
            merged = last = merge_small_files(uri, folder, self.file_bytes)
            while last.before >= MOST:
                last = merge_small_files(uri, folder, self.file_bytes)
                merged = MergeResult(merged.before + last.before, merged.after + last.after)
        if merged.before:
            _log.info("small files merged", sink=self.sink, table=uri, before=merged.before, after=merged.after)
        return merged


def _remove_replaced(table: DeltaTable, folder: Path, hours: int) -> None:
    """Remove files that were replaced long ago, and old files that are not in the log."""
    for path in table.vacuum(hours, enforce_retention_duration=False, full=False):
        _remove_old_file(folder / path, folder, 0.0)
    for path in table.vacuum(hours, enforce_retention_duration=False, full=True):
        name = path.rpartition("/")[2]
        if name.startswith(MERGED):
            _remove_old_file(folder / path, folder, _UNNAMED_FOR)
        elif _STAGED.search(name):
            _remove_old_file(folder / path, folder, _STAGED_FOR)
    for draft in (folder / "_delta_log").glob(DRAFT):
        _remove_old_file(draft, folder, _UNNAMED_FOR)


def _remove_old_file(file: Path, folder: Path, age: float) -> None:
    with suppress(OSError):
        if file.is_relative_to(folder) and time.time() - file.stat().st_mtime >= age:
            file.unlink()
