"""A table for each message definition: the wide table's columns, and the payload as typed columns.

A batch is parted by table first, and each table gets its rows in one commit, several tables at a time. Every table
knows the batches it has, so a batch that was cut off between two tables is completed by writing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

import pyarrow as pa

from catalog.model import Catalog
from catalog.schemas.columns_of import PayloadColumn, payload_column
from router.errors import SinkError
from router.logs import get_logger
from router.settings.places import is_url
from router.sinks.contract import ArrowSink, Commit, Rejected, Staged, StagedFile, Staging, Unfit, WriteResult
from router.sinks.tables.definition_staging import DefinitionStaging
from router.sinks.tables.parting import Parting
from router.sinks.tables.unwrapping import Framings

_AT_A_TIME: Final = 8
_log = get_logger()


class TableAt(ArrowSink, Protocol):
    """One of the tables. ``known`` are its columns, for workers that would otherwise stage others; mostly empty."""

    known: bytes


OpenTable = Callable[[str], TableAt]
"""Makes the sink of one table from its place below the path, such as ``Contoso.Sensors/Reading``."""


class DefinitionTablesSink(ArrowSink):
    """Writes each row to the table of its definition; exactly once, as its tables are.

    *name* is that of the sink, *path* where its tables are, *template* names them, its parts separated by ``/``.
    Several definitions may share a table, which then has the members of all their payloads. *framings* are those of the
    sources. *partition_by* is None for tables that workers do not stage.
    """

    def __init__(
        self,
        name: str,
        path: str,
        template: str,
        catalog: Catalog,
        open_table: OpenTable,
        framings: Framings | None = None,
        partition_by: tuple[str, ...] | None = None,
    ) -> None:
        self._name = name
        self._path = path
        self._parting = Parting(template, framings or {})
        self._catalog = catalog
        self._open = open_table
        self._partition_by = partition_by
        self._tables: dict[str, TableAt] = {}
        self._payloads: dict[str, PayloadColumn | None] = {}
        self._logged: set[tuple[str, str | None]] = set()

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`.

        When a table fails, the others have their rows; writing again completes the batch.
        """
        if rows.num_rows == 0:
            return WriteResult(0)
        tables, unfit = self._parting.parted(rows, self._column_of)
        self._log_unfit(unfit)
        return self._all(
            {place: partial(self._table(place).write, part, commit) for place, part in tables.items()}, unfit
        )

    def staging(self, commit: Commit) -> Staging | None:
        """Return what writes files into the tables' folders; None for tables in an object store, and for files."""
        if self._partition_by is None or is_url(self._path):
            return None
        tables = ((place, table.known) for place, table in self._tables.items())
        known = {place: columns for place, columns in tables if columns}
        return DefinitionStaging(self._path, self._parting, commit, self._partition_by, known)

    def take(self, staged: Staged, commit: Commit) -> WriteResult:
        """Commit what workers staged, table by table; see :class:`~router.sinks.contract.ArrowSink`."""
        if not staged.files:
            return WriteResult(0)
        parts: dict[str, list[StagedFile]] = {}
        for file in staged.files:
            parts.setdefault(file.table, []).append(file)
        # The files of each table are settled here, whether it is offered them or not.
        staged.offered = True
        unfit = [each for file in staged.files for each in file.unfit]
        self._log_unfit(unfit)
        parted = {place: Staged(tuple(files), may_reject=staged.may_reject) for place, files in parts.items()}
        return self._all({place: partial(self._take, place, part, commit) for place, part in parted.items()}, unfit)

    def _take(self, place: str, staged: Staged, commit: Commit) -> WriteResult:
        table = self._table(place)
        try:
            return table.take(staged, commit)
        finally:
            staging = table.staging(commit)
            if staging is not None and not staged.offered:
                staging.discard(staged.files)

    @property
    def may_reject(self) -> bool:  # type: ignore[override]
        """Whether one of the tables has rules that rows broke."""
        return any(table.may_reject for table in tuple(self._tables.values()))

    def already(self, commit: Commit) -> bool:
        """Return False always: only the rows of a batch show which tables it concerns."""
        return False

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield the rows whose table has no commit of the batch, or cannot be read: it may be the one in the way."""
        has: dict[str, bool] = {}
        for row in share:
            if row.message not in has:
                has[row.message] = self._has(row.message, commit)
            if not has[row.message]:
                yield row

    def _has(self, message: str, commit: Commit) -> bool:
        try:
            return self._table(self._parting.place_of(message)).already(commit)
        except SinkError:
            return False

    def _all(self, writes: Mapping[str, Callable[[], WriteResult]], unfit: Iterable[Unfit]) -> WriteResult:
        pending: dict[str, Future[WriteResult]] = {}
        with ThreadPoolExecutor(_AT_A_TIME, f"tables-{self._name}") as pool:
            pending.update((place, pool.submit(write)) for place, write in writes.items())
        results = {place: future.result() for place, future in pending.items()}
        return WriteResult(
            sum(result.rows for result in results.values()),
            all(result.repeated for result in results.values()),
            tuple(rejected for result in results.values() for rejected in result.refused),
            sum(result.before for result in results.values()),
            tuple(each for each in unfit if not results[self._parting.place_of(each.message)].repeated),
        )

    def _table(self, place: str) -> TableAt:
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = self._open(place)
        return table

    def _column_of(self, message: str) -> PayloadColumn | None:
        if message not in self._payloads:
            self._payloads[message] = payload_column(self._catalog, message)
        return self._payloads[message]

    def _log_unfit(self, unfit: Iterable[Unfit]) -> None:
        """Log, once for each definition and column, what is null although there is a value."""
        for each in unfit:
            if (each.message, each.column) in self._logged:
                continue
            self._logged.add((each.message, each.column))
            if each.column is None:
                said = "a body does not parse by its schema, so payload is null in that row"
                _log.warning(said, message=each.message, rows=each.detail)
            else:
                said = "a value does not fit its column, which is null in that row"
                _log.warning(said, message=each.message, column=each.column, rows=each.detail)
