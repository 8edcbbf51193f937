"""A Delta table: one append per batch, exactly once."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from catalog.model import Catalog
from router.errors import SinkError
from router.rendering.payloads import can_hold, conform_rows, evolve_schema
from router.sinks.contract import (
    ArrowSink,
    Commit,
    RejectedRow,
    StagedCommit,
    StagedFile,
    WriteResult,
    to_sink_error,
)
from router.sinks.tables.head import (
    LEFT_TO_UPKEEP,
    TableHead,
    local_folder,
    make_changes_durable,
    make_durable,
)
from router.sinks.tables.requirements import FilesOfCommit, add_columns, find_missing_files, read_rows
from router.sinks.tables.staging import (
    TableFileStager,
    add_partition_columns,
    add_partition_fields,
    make_file_prefix,
)

if TYPE_CHECKING:
    from router.sinks.tables.upkeep import Upkeep

_ATTEMPTS: Final = 20
_Write: TypeAlias = Callable[[TableHead], TableHead]
"""Commits rows to a table in one durable entry of its log; returns the new head."""


@dataclass(eq=False)
class DeltaSink(ArrowSink):
    """Appends each batch in one commit of the table's log, which also records the batch's app and version.

    Both become visible atomically, in one log entry: a process killed before it has written nothing (except files that
    the log does not name), and one killed after it finds the version in the next attempt and skips the batch. delta-rs
    does not ignore a repeated transaction, so the log is checked before each write. As with every Delta transaction, a
    version not above the last one of its app counts as written. On local disk, files and log entry are synchronised
    before ``write`` returns, which delta-rs leaves to the operating system: a reported batch survives power loss, while
    power loss during ``write`` may leave an incomplete last log entry.

    If the table is on local disk, workers stage a batch and the driver commits their files; for a table in an object
    store, the driver appends the rows. Others may write to the table as well
    (OPERATIONS.md#tables-that-others-write-to). Rows that break a rule of the table are rejected.

    The table is created with the first batch. It has exactly the columns of *schema*, or with *grows* at least those:
    further columns of a batch are added (:mod:`router.sinks.tables.staging`). With *rejects*, a row that breaks a rule
    of the table may become a dead letter.
    """

    name: str
    uri: str
    schema: pa.Schema
    grows: bool = False
    partition_by: Sequence[str] = ()
    upkeep: Upkeep | None = None
    rejects: bool = True
    known: bytes = field(default=b"", init=False)
    """The table's columns for workers, serialized by Arrow; set after their files had different types."""
    may_reject: bool = field(default=False, init=False)
    """Whether rows broke a rule of the table: then outcomes include the original records, for dead letters."""
    _head: TableHead | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Queries share the sink: the version made durable must be that of the same write."""

    def __post_init__(self) -> None:
        self.schema = add_partition_fields(self.schema, self.partition_by)

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Append a batch once; see :class:`~router.sinks.contract.ArrowSink`.

        Raises:
            SinkError: the table cannot be written, or not now.
            OSError: the rows have a value that no name of a partition can have.
        """
        if rows.num_rows == 0:
            return WriteResult(0)
        rows = add_partition_columns(rows, self.partition_by)
        if not self.grows and not rows.schema.equals(self.schema):
            raise SinkError(self.name, f"batch has columns {rows.schema.names}, not the table's columns")
        with self._naming_errors(), self._lock:
            head = self._head or self._open_head()
        known = self.known if head is None else head.schema.serialize().to_pybytes()
        folder = local_folder(self.uri)
        # An object store has no folder for files: they are staged in a temporary one, and delta-rs appends their rows.
        with nullcontext(folder) if folder is not None else TemporaryDirectory(prefix="xrouter-") as place:
            stager = TableFileStager(str(place), commit, tuple(self.partition_by), known)
            files = tuple(stager.write(rows, f"driver-{os.getpid()}", Catalog()))
            staged = StagedCommit(files, may_reject=self.rejects)
            try:
                return self._commit(staged, commit, stager)
            finally:
                if not staged.offered:
                    stager.discard(files)

    def make_stager(self, commit: Commit) -> TableFileStager | None:
        """Return the writer of files into the table's folder; None if the table is in an object store."""
        folder = local_folder(self.uri)
        return None if folder is None else TableFileStager(str(folder), commit, tuple(self.partition_by), self.known)

    def commit_staged(self, staged: StagedCommit, commit: Commit) -> WriteResult:
        """Commit the files that workers staged, once; see :class:`~router.sinks.contract.ArrowSink`.

        Raises:
            SinkError: a worker could not write, or the table cannot accept the files (now).
        """
        if not staged.files:
            return WriteResult(0)
        stager = self.make_stager(commit)
        assert stager is not None
        return self._commit(staged, commit, stager)

    def _commit(self, staged: StagedCommit, commit: Commit, stager: TableFileStager) -> WriteResult:
        if staged.fault is not None:
            raise to_sink_error(self.name, self.uri, staged.fault) from staged.fault
        batch = FilesOfCommit(self.name, stager, staged)
        try:
            with self._naming_errors(), self._lock:
                schemas = _get_schemas(staged.files)
                schema = functools.reduce(evolve_schema, schemas)
                count = sum(file.rows for file in staged.files)
                result = self._append(schema, count, commit, partial(self._add_files, batch, schemas, commit))
                if result.repeated:
                    self._check_committed(batch, commit)
                return _add_rejected(result, batch.refused)
        finally:
            if not staged.offered:
                batch.discard_rewritten()

    def has_commit(self, commit: Commit) -> bool:
        """Whether the table's log has this version of the app, or a later one."""
        with self._naming_errors(), self._lock:
            head = self._open_head()
            return head is not None and head.has_commit(commit)

    def _append(self, schema: pa.Schema, count: int, commit: Commit, write: _Write) -> WriteResult:
        conflict: CommitFailedError | None = None
        for _ in range(_ATTEMPTS):
            # If the cached head misses an entry, writing the next one fails.
            known = self._head if self._head is not None and self._head.can_append else None
            head = known or self._open_head() or self._create_table(schema)
            self._head = None
            if head.has_commit(commit):
                self._head = head
                # Files of an earlier process may not be on disk yet. This is rare, so everything is synced.
                os.sync()
                return WriteResult(0, repeated=True, before=count)
            try:
                self._head = write(head)
            except CommitFailedError as error:
                # Another writer was first (upkeep, another engine, or this router before a crash): retry.
                conflict = error
                self._head = head if head.read_new_entries() is not None else None
                continue
            if self.upkeep is not None:
                self.upkeep.record_commit(self.uri, self._head.version)
            return WriteResult(count)
        hint = "let other writers of the table pause between their commits; the batch is retried"
        raise SinkError(self.name, f"{self.uri}: {_ATTEMPTS} consecutive commits failed", hint=hint) from conflict

    def _add_files(self, batch: FilesOfCommit, schemas: list[pa.Schema], commit: Commit, head: TableHead) -> TableHead:
        target = functools.reduce(evolve_schema, schemas, head.schema)
        if not all(can_hold(target, schema) for schema in schemas):
            self.known = target.serialize().to_pybytes()
            hint = "no action needed: the batch is staged again with these columns"
            raise SinkError(self.name, f"{self.uri} has columns of other types than its files", hint=hint)
        self._apply_rules(batch, head, target)
        if not batch.files:
            batch.discard_replaced()
            return head
        grows = not target.equals(head.schema)
        if not head.can_append:
            rows = pa.concat_tables([conform_rows(read_rows(batch.folder, file), target) for file in batch.files])
            batch.staged.offered = True
            head = self._append_with_delta_rs(head.table, rows, commit, "merge" if grows else None)
            batch.files = ()
            batch.discard_replaced()
            return head
        metadata = add_columns(head.metadata, target) if grows else None
        if (
            metadata is not None
            and "timestamp_ntz" in metadata["schemaString"]
            and "timestampNtz" not in head.needs.features
        ):
            # The table needs a feature for them, which delta-rs adds. After a crash here the columns exist, but are
            # empty.
            self._append_with_delta_rs(DeltaTable(self.uri), target.empty_table(), None, "merge")
            raise CommitFailedError("the table has other columns now")
        self._check_files(batch, head)
        batch.staged.offered = True
        head.append(batch.files, commit, metadata)
        batch.discard_replaced()
        if batch.find_missing():
            # Another engine has just removed them: the log must not name missing files.
            self._revert_commit(head, batch.files, commit)
        return head if metadata is None else TableHead(self.uri, DeltaTable(self.uri))

    def _apply_rules(self, batch: FilesOfCommit, head: TableHead, target: pa.Schema) -> None:
        """Remove rows that break a rule of the table from a batch.

        Raises:
            SinkError: rows break a rule, but cannot become dead letters in this attempt, only in the next one.
        """
        batch.apply_rules(head.needs, target)
        if not batch.refused:
            return
        self.may_reject = self.rejects
        if not batch.may_reject:
            reason = f"{self.uri}: {len(batch.refused)} rows cannot be written; {batch.refused[0].reason}"
            hint = "no action needed: they become dead letters when the batch is retried"
            raise SinkError(self.name, reason, hint=hint if self.rejects else "drop or correct the rule")

    def _check_files(self, batch: FilesOfCommit, head: TableHead) -> None:
        """Raise unless the files of a batch are unchanged since they were written.

        Raises:
            CommitFailedError: files changed and others committed, maybe this batch, whose other files were removed
            then. SinkError: files changed; the batch is staged again.
        """
        missing = batch.find_missing()
        if missing:
            if head.read_new_entries() is not None:
                raise CommitFailedError("another writer committed")
            files = f"{len(missing)} of {len(batch.files)} files"
            reason = f"{files} for {self.uri} are missing or truncated, such as {missing[0].path}"
            hint = "let VACUUM keep files younger than an hour; the batch is staged again"
            raise SinkError(self.name, reason, hint=hint)

    def _check_committed(self, batch: FilesOfCommit, commit: Commit) -> None:
        """Check a batch that is in the table's log already: its files must exist, and rejected rows are found again."""
        head = self._open_head()
        if head is None:
            return
        self._apply_rules(batch, head, functools.reduce(evolve_schema, _get_schemas(batch.staged.files), head.schema))
        if not head.can_append:
            return
        prefix = make_file_prefix(commit.app, commit.version)
        named = [file for file in list_table_files(head.table) if Path(file.path).name.startswith(prefix)]
        # A later version of the app implies that this one was complete.
        if head.get_last_version(commit.app) == commit.version and find_missing_files(batch.folder, named):
            self._revert_commit(head, named, commit)

    def _revert_commit(self, head: TableHead, files: Sequence[StagedFile], commit: Commit) -> None:
        """Remove a commit from the table, so that it is written again.

        Raises:
            SinkError: always, after the commit was removed.
        """
        self._head = None
        while True:
            try:
                head.revert_commit(files, commit)
                break
            except CommitFailedError:
                if head.read_new_entries() is None:
                    opened = self._open_head()
                    if opened is None:
                        break
                    head = opened
        hint = "let VACUUM keep files younger than an hour; the batch is staged again"
        raise SinkError(self.name, f"files of a commit to {self.uri} were removed by another writer", hint=hint)

    def _append_with_delta_rs(
        self, table: DeltaTable, rows: pa.Table, commit: Commit | None, schema_mode: Literal["merge"] | None
    ) -> TableHead:
        """Append rows with delta-rs, and return the new head."""
        before = table.version()
        transactions = None if commit is None else [Transaction(commit.app, commit.version)]
        write_deltalake(
            table,
            rows,
            mode="append",
            schema_mode=schema_mode,
            commit_properties=CommitProperties(app_transactions=transactions),
            post_commithook_properties=LEFT_TO_UPKEEP,
        )
        make_changes_durable(self.uri, table, before)
        return TableHead(self.uri, table)

    def _open_head(self) -> TableHead | None:
        """Read the table's log, and return its head; None if there is no table."""
        if not DeltaTable.is_deltatable(self.uri):
            return None
        table = DeltaTable(self.uri)
        names = [field.name for field in table.schema().fields]
        if not set(self.schema.names) <= set(names) or not (self.grows or names == self.schema.names):
            hint = "give the sink its own path, or move the table"
            raise SinkError(self.name, f"{self.uri} is a table of other columns ({', '.join(names)})", hint=hint)
        parts = table.metadata().partition_columns
        if parts != list(self.partition_by):
            hint = "set partition_by to the table's partition columns, or give the sink its own path"
            raise SinkError(self.name, f"{self.uri} is partitioned by {', '.join(parts) or 'nothing'}", hint=hint)
        head = TableHead(self.uri, table)
        if head.needs.refusal or not (head.can_append or head.needs.can_use_delta_rs):
            reason = head.needs.refusal or f"its features need a disk: {', '.join(head.needs.features)}"
            hint = "remove them (ALTER TABLE ... DROP FEATURE), or give the sink its own path"
            raise SinkError(self.name, f"{self.uri}: {reason}", hint=hint)
        return head

    def _create_table(self, schema: pa.Schema) -> TableHead:
        table = DeltaTable.create(self.uri, schema, mode="ignore", partition_by=list(self.partition_by) or None)
        make_durable(self.uri, table.version())
        return TableHead(self.uri, table)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Turn errors of delta-rs and the disk into :class:`SinkError`."""
        try:
            yield
        except DeltaError as error:
            hint = "check the path, its permissions and disk space; the batch is written again after a restart"
            raise SinkError(self.name, f"{self.uri}: {error}", hint=hint) from error
        except OSError as error:
            raise to_sink_error(self.name, self.uri, error) from error


def _get_schemas(files: Iterable[StagedFile]) -> list[pa.Schema]:
    """Return the distinct schemas of files."""
    return [pa.ipc.read_schema(pa.py_buffer(each)) for each in dict.fromkeys(file.schema for file in files)]


def list_table_files(table: DeltaTable) -> list[StagedFile]:
    """Return the files of a table, with path and size only."""
    adds = pa.table(table.get_add_actions())
    paths, sizes = adds["path"].to_pylist(), adds["size_bytes"].to_pylist()
    return [StagedFile(unquote(path), size=size) for path, size in zip(paths, sizes, strict=True)]


def _add_rejected(result: WriteResult, rejected: tuple[RejectedRow, ...]) -> WriteResult:
    if result.repeated:
        return replace(result, before=result.before - len(rejected), refused=rejected)
    return replace(result, rows=result.rows - len(rejected), refused=rejected)
