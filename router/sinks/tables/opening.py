"""Create table sinks from their settings: one Delta table, one per definition, or Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from catalog.model import Catalog
from catalog.schemas.columns import PayloadColumn, Undecoded
from router.errors import SinkError
from router.logs import get_logger
from router.matching.record_columns import SCHEMA_ID
from router.rendering.payloads import Framings, PayloadColumns, conform_rows, decode_payloads, evolve_schema
from router.settings.routes import TABLE_VARIABLES, make_event_values, parse_name
from router.settings.sinks.messages import TableSink
from router.settings.values import is_url
from router.sinks.contract import (
    ArrowSink,
    Commit,
    FileStager,
    RejectedRow,
    StagedCommit,
    StagedFile,
    UnfitValues,
    WriteResult,
)
from router.sinks.jsonlines import DEAD_LETTER, WIDE, BatchFileSink
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.staging import TableFileStager
from router.sinks.tables.upkeep import Upkeep

# A table per message definition: the wide table's columns, and the payload as typed columns.
#
# A batch is split by table, and each table gets its rows in one commit, several tables in parallel. Every table records
# the batches it has, so a batch that was interrupted between two tables is completed by writing it again.

PAYLOAD: Final = "payload"
"""The struct of typed columns; null if a body is absent or invalid. ``data`` has the body unchanged."""
WRITTEN_BY: Final = "schema_id"
"""The id of the schema that a body was written with; null if it has no frame."""
ColumnOf = Callable[[str], PayloadColumn | None]
"""Returns the payload column of a definition, or None."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How rows are split into tables: *template* names the tables, with levels separated by ``/``.

    Several definitions may share a table, which then has the members of all their payloads. *framings* are those of the
    sources.
    """

    template: str
    framings: Framings

    def get_location(self, message: str) -> str:
        """Return the path of a definition's table below the sink's path."""
        values = make_event_values(message, "", "", {})
        parts = (parse_name(part, TABLE_VARIABLES) for part in self.template.split("/"))
        return "/".join(part.expand(values, escape="_") for part in parts)

    def split_by_table(self, rows: pa.Table, column_of: ColumnOf) -> tuple[dict[str, pa.Table], list[UnfitValues]]:
        """Split rows by the path of their table, in order; also return the values that do not fit."""
        if SCHEMA_ID in rows.schema.names:
            rows = rows.rename_columns({SCHEMA_ID: WRITTEN_BY})
        messages = pc.dictionary_encode(rows.column("message").combine_chunks())
        codes = messages.indices.to_numpy(zero_copy_only=False)
        together: dict[tuple[str, PayloadColumn | None], list[int]] = {}
        for code, message in enumerate(messages.dictionary.to_pylist()):
            together.setdefault((self.get_location(message), column_of(message)), []).append(code)
        tables: dict[str, list[pa.Table]] = {}
        unfit: list[UnfitValues] = []
        for (path, column), members in together.items():
            part = rows.filter(pa.array(np.isin(codes, members)))
            tables.setdefault(path, []).append(part if column is None else self._decode(part, column, unfit))
        return {path: _concat_tables(parts) for path, parts in tables.items()}, unfit

    def _decode(self, rows: pa.Table, column: PayloadColumn, unfit: list[UnfitValues]) -> pa.Table:
        payload, undecoded = decode_payloads(column, rows, self.framings)
        messages = rows.column("message")
        faulty = {messages[row].as_py() for each in undecoded for row in each.rows or (each.row,)}
        for message in sorted(faulty):
            mine = rows.filter(pc.equal(messages, message))
            if mine.num_rows < rows.num_rows:
                _, undecoded = decode_payloads(column, mine, self.framings)
            unfit.extend(_count_unfit(message, mine, undecoded))
        return rows.append_column(PAYLOAD, payload)


def _count_unfit(message: str, rows: pa.Table, undecoded: Iterable[Undecoded]) -> Iterator[UnfitValues]:
    """Yield what does not fit of the rows of one definition, by column."""
    by_column: dict[str | None, list[Undecoded]] = {}
    for each in undecoded:
        by_column.setdefault(each.column, []).append(each)
    for name, found in by_column.items():
        values = sum(each.values for each in found)
        position = rows.column("position")[found[0].row].as_py()
        detail = f"{values} in {rows.num_rows} rows; {position}: {found[0].why}"[:400]
        yield UnfitValues(message, None if name is None else f"{PAYLOAD}.{name}".rstrip("."), values, detail)


def join_table_path(sink_path: str, path: str, *, url: bool) -> str:
    """Return the folder or URL of the table at *path* below a sink's path."""
    return f"{sink_path.rstrip('/')}/{path}" if url else str(Path(sink_path) / path)


def _concat_tables(parts: Sequence[pa.Table]) -> pa.Table:
    schema = reduce(evolve_schema, (part.schema for part in parts))
    return pa.concat_tables([conform_rows(part, schema) for part in parts])


# Files that workers stage for the tables of definitions.


@dataclass(frozen=True, slots=True)
class DefinitionStager:
    """Writes files into the folders of the tables below *path*.

    *known* are columns of tables by path, serialized by Arrow, if workers cannot know them.
    """

    path: str
    layout: TableLayout
    commit: Commit
    partition_by: tuple[str, ...]
    known: Mapping[str, bytes]

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write each table's rows to one or more files, even if another table fails; see :class:`FileStager`."""
        tables, unfit = self.layout.split_by_table(rows, _get_cached_columns(catalog).get)
        files = [
            replace(file, table=path)
            for path, part in tables.items()
            for file in self._make_stager(path).write(part, task, catalog)
        ]
        files[0] = replace(files[0], unfit=tuple(unfit))
        return files

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never added to a log."""
        for file in files:
            TableFileStager(join_table_path(self.path, file.table, url=False), self.commit).discard([file])

    def _make_stager(self, path: str) -> TableFileStager:
        folder = join_table_path(self.path, path, url=False)
        known = self.known.get(path) or _read_table_columns(folder)
        return TableFileStager(folder, self.commit, self.partition_by, known)


_payloads: dict[str, PayloadColumns] = {}
"""A worker's payload columns of the definitions of one catalog, by its epoch."""
_tables: dict[str, bytes] = {}
"""A worker's columns of tables, by folder."""


def _get_cached_columns(catalog: Catalog) -> PayloadColumns:
    columns = _payloads.get(catalog.epoch)
    if columns is None:
        _payloads.clear()
        columns = _payloads[catalog.epoch] = PayloadColumns(catalog)
    return columns


def _read_table_columns(folder: str) -> bytes:
    """Return the columns of a table, cached at the first call; empty if it cannot be read.

    Columns are only ever added, and the driver checks them again before it commits a file.
    """
    with suppress(DeltaError, OSError):
        if folder not in _tables and DeltaTable.is_deltatable(folder):
            _tables[folder] = pa.schema(DeltaTable(folder).schema().to_arrow()).serialize().to_pybytes()
    return _tables.get(folder, b"")


_AT_A_TIME: Final = 8
_log = get_logger()


class OpenedTable(ArrowSink, Protocol):
    """The sink of one table. ``known`` are its columns for workers, if they would otherwise stage different types."""

    known: bytes


OpenTable = Callable[[str], OpenedTable]
"""Creates the sink of one table from its path below the sink's path, such as ``Contoso.Sensors/Reading``."""


@dataclass(eq=False)
class DefinitionTablesSink(ArrowSink):
    """Writes each row to the table of its definition, exactly once.

    *name* is the sink's name, *path* the folder of its tables, *template* names them (see :class:`TableLayout`).
    *partition_by* is None for tables that workers do not stage.
    """

    name: str
    path: str
    template: str
    catalog: Catalog
    open: OpenTable
    framings: Framings | None = None
    partition_by: tuple[str, ...] | None = None
    _tables: dict[str, OpenedTable] = field(default_factory=dict, init=False)
    _logged: set[tuple[str, str | None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._layout = TableLayout(self.template, self.framings or {})
        self._payloads = PayloadColumns(self.catalog)

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`.

        If a table fails, the others have their rows; writing again completes the batch.
        """
        if rows.num_rows == 0:
            return WriteResult(0)
        tables, unfit = self._layout.split_by_table(rows, self._payloads.get)
        self._log_unfit(unfit)
        return self._run_all(
            {path: partial(self._get_table(path).write, part, commit) for path, part in tables.items()}, unfit
        )

    def make_stager(self, commit: Commit) -> FileStager | None:
        """Return the writer of files into the tables' folders; None for tables in an object store, and for Parquet."""
        if self.partition_by is None or is_url(self.path):
            return None
        tables = ((path, table.known) for path, table in self._tables.items())
        known = {path: columns for path, columns in tables if columns}
        return DefinitionStager(self.path, self._layout, commit, self.partition_by, known)

    def commit_staged(self, staged: StagedCommit, commit: Commit) -> WriteResult:
        """Commit the staged files, table by table; see :class:`~router.sinks.contract.ArrowSink`."""
        if not staged.files:
            return WriteResult(0)
        parts: dict[str, list[StagedFile]] = {}
        for file in staged.files:
            parts.setdefault(file.table, []).append(file)
        # From here on, the files of each table are committed or removed by this method.
        staged.offered = True
        unfit = [each for file in staged.files for each in file.unfit]
        self._log_unfit(unfit)
        shares = {path: StagedCommit(tuple(files), may_reject=staged.may_reject) for path, files in parts.items()}
        return self._run_all({path: partial(self._commit, path, part, commit) for path, part in shares.items()}, unfit)

    def _commit(self, path: str, staged: StagedCommit, commit: Commit) -> WriteResult:
        table = self._get_table(path)
        try:
            return table.commit_staged(staged, commit)
        finally:
            staging = table.make_stager(commit)
            if staging is not None and not staged.offered:
                staging.discard(staged.files)

    @property
    def may_reject(self) -> bool:  # type: ignore[override]
        """Whether rows broke a rule of one of the tables."""
        return any(table.may_reject for table in tuple(self._tables.values()))

    def has_commit(self, commit: Commit) -> bool:
        """Return False: only the rows of a batch show which tables they go to."""
        return False

    def iter_missing_rows(self, commit: Commit, share: Iterable[RejectedRow]) -> Iterator[RejectedRow]:
        """Yield the rows whose table does not have the batch, or cannot be read."""
        has: dict[str, bool] = {}
        for row in share:
            if row.message not in has:
                has[row.message] = False
                with suppress(SinkError):
                    has[row.message] = self._get_table(self._layout.get_location(row.message)).has_commit(commit)
            if not has[row.message]:
                yield row

    def _run_all(self, writes: Mapping[str, Callable[[], WriteResult]], unfit: Iterable[UnfitValues]) -> WriteResult:
        with ThreadPoolExecutor(_AT_A_TIME, f"tables-{self.name}") as pool:
            pending = {path: pool.submit(write) for path, write in writes.items()}
        results = {path: future.result() for path, future in pending.items()}
        return WriteResult(
            sum(result.rows for result in results.values()),
            all(result.repeated for result in results.values()),
            tuple(rejected for result in results.values() for rejected in result.refused),
            sum(result.before for result in results.values()),
            tuple(each for each in unfit if not results[self._layout.get_location(each.message)].repeated),
        )

    def _get_table(self, path: str) -> OpenedTable:
        if path not in self._tables:
            self._tables[path] = self.open(path)
        return self._tables[path]

    def _log_unfit(self, unfit: Iterable[UnfitValues]) -> None:
        """Log once per definition and column that values were replaced by null."""
        for each in unfit:
            if (each.message, each.column) in self._logged:
                continue
            self._logged.add((each.message, each.column))
            if each.column is None:
                text = "a body does not parse with its schema, so payload is null in that row"
                _log.warning(text, message=each.message, rows=each.detail)
            else:
                text = "a value does not fit its column, which is null in that row"
                _log.warning(text, message=each.message, column=each.column, rows=each.detail)


# A folder of Parquet files, one per batch, exactly once.


class ParquetSink(BatchFileSink):
    """Writes each batch as ``APP-VERSION.parquet``."""

    suffix = ".parquet"
    known = b""

    def write_rows(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the rows as one table."""
        pq.write_table(rows, file, compression="zstd")


def open_tables(name: str, settings: TableSink, kind: str, catalog: Catalog, framings: Framings | None) -> ArrowSink:
    """Create the table of events or dead letters, or the tables of definitions."""
    upkeep = Upkeep(name, settings.compact_after, settings.file_bytes, settings.keep_replaced)

    def open_one(path: str, *, grows: bool = False) -> OpenedTable:
        if settings.format == "parquet":
            return ParquetSink(name, Path(path))
        schema = WIDE if kind == "events" else DEAD_LETTER
        parts, events = settings.partition_by, kind == "events"
        return DeltaSink(name, path, schema, grows=grows, partition_by=parts, upkeep=upkeep, rejects=events)

    if settings.layout == "wide" or kind == "dead-letters":
        # The column ``ambiguous`` is added when a tie is first resolved.
        return open_one(settings.path, grows=kind == "events")
    return DefinitionTablesSink(
        name,
        settings.path,
        settings.table,
        catalog,
        lambda path: open_one(join_table_path(settings.path, path, url=is_url(settings.path)), grows=True),
        framings,
        settings.partition_by if settings.format == "delta" else None,
    )
