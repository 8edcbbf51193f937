"""A Delta table, one append for each batch, exactly once."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from router.errors import SinkError
from router.sinks.contract import ArrowSink, Commit, Staged, StagedFile, Staging, WriteResult
from router.sinks.tables.evolving import conformed, contains, evolved
from router.sinks.tables.files import local_folder, make_changes_durable, make_durable, refused
from router.sinks.tables.head import LEFT_TO_UPKEEP, Head
from router.sinks.tables.partitions import partitioned, with_partitions
from router.sinks.tables.staging import Sweeping, TableStaging
from router.sinks.trial import fails_anywhere

if TYPE_CHECKING:
    from router.sinks.tables.upkeep import Upkeep

_ATTEMPTS: Final = 5
_Write: TypeAlias = Callable[[Head, CommitProperties], Head]
"""Commits rows to a table once, in one entry of its log that is on the disk then; returns the head that has it."""


class DeltaSink(ArrowSink):
    """Appends each batch in one commit of the table's log, which also records the batch's app and version.

    Both become visible together, by one atomic log entry, so that a process killed before it has written nothing
    (only files that the log does not name) and one killed after it finds the version on the next try and leaves the
    batch out. delta-rs does not ignore a repeated transaction by itself, hence the look before each write. As with
    every Delta transaction, a version not above the last of its app counts as written. On local disk, files and log
    entry are synchronised before ``write`` returns, since delta-rs leaves that to the operating system: a batch that
    was reported survives power loss, while power loss inside ``write`` may leave a torn last log entry.
    A :class:`DeltaError` that the rows cause is raised unchanged (:mod:`router.sinks.trial`): no wait would mend it.
    Where the table lies on the local disk, workers stage a batch and the driver commits their files, in an entry of the
    same form; a table in an object store takes it as rows of the driver.
    The table is created at the first batch. It has exactly the columns of *schema*, or with *grows* at least those:
    further columns of a batch are added to it (:mod:`router.sinks.tables.evolving`).
    """

    def __init__(
        self,
        name: str,
        uri: str,
        schema: pa.Schema,
        *,
        grows: bool = False,
        partition_by: Sequence[str] = (),
        upkeep: Upkeep | None = None,
    ) -> None:
        self._name = name
        self._uri = uri
        self._schema = with_partitions(schema, partition_by)
        self._grows = grows
        self._partition_by = list(partition_by)
        self._upkeep = upkeep
        self._head: Head | None = None
        self._sweeping = Sweeping(uri.removeprefix("file://"))
        self.known = b""
        """Columns for workers to stage, serialized by Arrow, once their files had other types under these names."""
        # Queries share the sink: the version made durable must be that of the very write.
        self._lock = threading.Lock()

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Append a batch once; see :class:`~router.sinks.contract.ArrowSink`.

        Raises:
            SinkError: the table cannot take anything, or not now.
            DeltaError: it cannot take these rows, nor could any table.
        """
        if rows.num_rows == 0:
            return WriteResult(0)
        rows = partitioned(rows, self._partition_by)
        if not self._grows and not rows.schema.equals(self._schema):
            raise SinkError(self._name, f"batch has columns {rows.schema.names}, not those of the table's form")
        try:
            with self._lock:
                # delta-rs writes behind the version that it has read.
                self._head = None
                return self._append(rows.schema, rows.num_rows, commit, partial(self._write, rows))
        except DeltaError as error:
            if fails_anywhere(rows, self._partition_by):
                raise
            raise self._refused(error) from error
        except OSError as error:
            raise refused(self._name, self._uri, error) from error

    def staging(self, commit: Commit) -> Staging | None:
        """Return what writes files into the table's folder; None where the table is in an object store."""
        folder = local_folder(self._uri)
        return None if folder is None else TableStaging(str(folder), commit, tuple(self._partition_by), self.known)

    def take(self, staged: Staged, commit: Commit) -> WriteResult:
        """Commit what workers staged, once; see :class:`~router.sinks.contract.ArrowSink`.

        Raises:
            SinkError: a worker could not write, or the table cannot take the files, or not now.
        """
        if staged.fault is not None:
            raise refused(self._name, self._uri, staged.fault) from staged.fault
        if not staged.files:
            return WriteResult(0)
        try:
            schemas = _schemas_of(staged.files)
            schema = functools.reduce(evolved, schemas)
            count = sum(file.rows for file in staged.files)
            with self._lock:
                return self._append(schema, count, commit, partial(self._add, staged, schemas, commit))
        except DeltaError as error:
            raise self._refused(error) from error
        except OSError as error:
            raise refused(self._name, self._uri, error) from error

    def already(self, commit: Commit) -> bool:
        """Tell whether the table's log has this version of the app, or a later one."""
        try:
            with self._lock:
                head = self._opened()
                return head is not None and head.has(commit)
        except DeltaError as error:
            raise self._refused(error) from error
        except OSError as error:
            raise refused(self._name, self._uri, error) from error

    def _append(self, schema: pa.Schema, count: int, commit: Commit, write: _Write) -> WriteResult:
        properties = CommitProperties(app_transactions=[Transaction(commit.app, commit.version)])
        conflict: CommitFailedError | None = None
        for _ in range(_ATTEMPTS):
            # An entry that an appending head does not know shows up when it writes its own.
            known = self._head if self._head is not None and self._head.appends else None
            head = known or self._opened() or self._created(schema)
            self._head = None
            if head.has(commit):
                self._head = head
                # Nobody knows which files of the last process reached the disk. This is rare: all are synced now.
                os.sync()
                return WriteResult(0, repeated=True, before=count)
            try:
                self._head = write(head, properties)
            except CommitFailedError as error:
                # Another writer was first (upkeep, or ourselves before a crash): look again and decide anew.
                conflict = error
                continue
            if self._upkeep is not None:
                self._upkeep.committed(self._uri, self._head.version)
            return WriteResult(count)
        hint = "stop other writers of the table; the batch is written again after a restart"
        raise SinkError(self._name, f"{self._uri}: {_ATTEMPTS} commits in a row were refused", hint=hint) from conflict

    def _add(
        self, staged: Staged, schemas: Sequence[pa.Schema], commit: Commit, head: Head, properties: CommitProperties
    ) -> Head:
        target = functools.reduce(evolved, schemas, head.schema)
        if not all(contains(target, schema) for schema in schemas):
            self.known = target.serialize().to_pybytes()
            hint = "none is needed: the batch is staged again with these columns"
            raise SinkError(self._name, f"{self._uri} has columns of other types than its files", hint=hint)
        if not target.equals(head.schema):
            # Columns come in an entry of their own, without rows: after a crash they are there and empty.
            head = self._by_delta(DeltaTable(self._uri), target.empty_table(), schema_mode="merge")
            if head.has(commit):
                raise CommitFailedError("another writer has the batch")
        staged.offered = True
        if head.appends:
            head.append(staged.files, commit)
        else:
            before = head.version
            actions = [_action(file) for file in staged.files]
            head.table.create_write_transaction(
                [*actions],
                "append",
                head.table.schema(),
                self._partition_by,
                commit_properties=properties,
                post_commithook_properties=LEFT_TO_UPKEEP,
            )
            head = self._moved(head.table, before)
        self._sweeping.committed(commit, staged.files)
        return head

    def _write(self, rows: pa.Table, head: Head, properties: CommitProperties) -> Head:
        if not self._grows:
            return self._by_delta(head.table, rows, commit_properties=properties)
        target = evolved(head.schema, rows.schema)
        mode: Literal["merge"] | None = None if target.equals(head.schema) else "merge"
        return self._by_delta(head.table, conformed(rows, target), schema_mode=mode, commit_properties=properties)

    def _by_delta(self, table: DeltaTable, rows: pa.Table, **how: Any) -> Head:
        """Let delta-rs append rows, and return the head that has them."""
        before = table.version()
        write_deltalake(table, rows, mode="append", post_commithook_properties=LEFT_TO_UPKEEP, **how)
        return self._moved(table, before)

    def _moved(self, table: DeltaTable, before: int) -> Head:
        """Return the head of a table that delta-rs wrote to, once what came behind *before* is on the disk."""
        make_changes_durable(self._uri, table, before)
        return Head(self._uri, table)

    def _opened(self) -> Head | None:
        """Read the table's log anew, and return its head; None where there is no table."""
        if not DeltaTable.is_deltatable(self._uri):
            return None
        table = DeltaTable(self._uri)
        names = [field.name for field in table.schema().fields]
        if not set(self._schema.names) <= set(names) or not (self._grows or names == self._schema.names):
            hint = "give the sink a path of its own, or move the table away"
            raise SinkError(self._name, f"{self._uri} is a table with other columns ({', '.join(names)})", hint=hint)
        parts = table.metadata().partition_columns
        if parts != self._partition_by:
            hint = "set partition_by to what the table has, or give the sink a path of its own"
            raise SinkError(self._name, f"{self._uri} is partitioned by {', '.join(parts) or 'nothing'}", hint=hint)
        return Head(self._uri, table)

    def _created(self, schema: pa.Schema) -> Head:
        table = DeltaTable.create(self._uri, schema, mode="ignore", partition_by=self._partition_by or None)
        make_durable(self._uri, table.version())
        return Head(self._uri, table)

    def _refused(self, error: DeltaError) -> SinkError:
        hint = "check the path, its permissions and disk space; the batch is written again after a restart"
        return SinkError(self._name, f"{self._uri}: {error}", hint=hint)


def _schemas_of(files: Iterable[StagedFile]) -> list[pa.Schema]:
    """Return the columns that files have, each set of columns once."""
    return [pa.ipc.read_schema(pa.py_buffer(each)) for each in dict.fromkeys(file.schema for file in files)]


def _action(file: StagedFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition, file.modified, True, file.statistics)
