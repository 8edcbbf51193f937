"""A table for each message definition: the wide table's columns, and the payload as typed columns.

A batch is parted by table first, and each table gets its rows in one commit, several tables at a time. Every table
knows the batches it has, so a batch that was cut off between two tables is completed by writing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.model import Catalog
from catalog.schemas.columns_of import PayloadColumn, payload_column
from router.errors import SinkError
from router.logs import get_logger
from router.settings.names import TABLE_VARIABLES, event_values, parse_name
from router.sinks.contract import ArrowSink, Commit, Rejected, WriteResult
from router.sinks.tables.evolving import conformed, evolved
from router.sinks.tables.unwrapping import Framings, typed

PAYLOAD: Final = "payload"
"""The struct of typed columns; null where a body is absent or does not fit the schema. ``data`` has it anyway."""
_AT_A_TIME: Final = 8
_log = get_logger()
OpenTable = Callable[[str], ArrowSink]
"""Makes the sink of one table from its place below the path, such as ``Contoso.Sensors/Reading``."""


class DefinitionTablesSink(ArrowSink):
    """Writes each row to the table of its definition; exactly once, as its tables are.

    *name* is that of the sink, *template* names the tables, its parts separated by ``/``. Several definitions may share
    a table, which then has the members of all their payloads. *framings* are those of the sources.
    """

    def __init__(
        self, name: str, template: str, catalog: Catalog, open_table: OpenTable, framings: Framings | None = None
    ) -> None:
        self._framings = framings or {}
        self._name = name
        self._parts = [parse_name(part, TABLE_VARIABLES) for part in template.split("/")]
        self._catalog = catalog
        self._open = open_table
        self._tables: dict[str, ArrowSink] = {}
        self._payloads: dict[str, PayloadColumn | None] = {}
        self._told: set[str] = set()

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`.

        When a table fails, the others have their rows; writing again completes the batch.
        """
        if rows.num_rows == 0:
            return WriteResult(0)
        pending: list[Future[WriteResult]] = []
        with ThreadPoolExecutor(_AT_A_TIME, f"tables-{self._name}") as pool:
            for place, part in self.parted(rows).items():
                table = self._table(place)
                pending.append(pool.submit(table.write, part, commit))
        results = [future.result() for future in pending]
        return WriteResult(sum(result.rows for result in results), all(result.repeated for result in results))

    def already(self, commit: Commit) -> bool:
        """Never True: which tables a batch concerns is known from its rows alone."""
        return False

    def lacking(self, commit: Commit, share: Iterable[Rejected]) -> Iterator[Rejected]:
        """Yield the rows whose table has no commit of the batch; one that cannot be read may be what is in the way."""
        has: dict[str, bool] = {}
        for row in share:
            if row.message not in has:
                has[row.message] = self._has(row.message, commit)
            if not has[row.message]:
                yield row

    def _has(self, message: str, commit: Commit) -> bool:
        try:
            return self._table(self.place_of(message)).already(commit)
        except SinkError:
            return False

    def parted(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Return the rows by the place of their table, with typed payloads, each in the order they came."""
        found: dict[str, pa.Table] = {}
        messages = pc.dictionary_encode(rows.column("message").combine_chunks())
        codes = messages.indices.to_numpy(zero_copy_only=False)
        for code, message in enumerate(messages.dictionary.to_pylist()):
            place = self.place_of(message)
            typed = self._typed(message, rows.take(pa.array(np.flatnonzero(codes == code))))
            found[place] = _joined(found[place], typed) if place in found else typed
        return found

    def place_of(self, message: str) -> str:
        """Return where the table of a definition is, below the sink's path."""
        values = event_values(message, "", "", {})
        return "/".join(part.expand(values, escape="_") for part in self._parts)

    def _table(self, place: str) -> ArrowSink:
        table = self._tables.get(place)
        if table is None:
            table = self._tables[place] = self._open(place)
        return table

    def _typed(self, message: str, rows: pa.Table) -> pa.Table:
        if message not in self._payloads:
            self._payloads[message] = payload_column(self._catalog, message)
        column = self._payloads[message]
        if column is None:
            return rows
        payload, undecoded = typed(column, rows, self._framings)
        if undecoded and message not in self._told:
            self._told.add(message)
            first = undecoded[0]
            position = rows.column("position")[first.row].as_py()
            why = f"{len(undecoded)} of {rows.num_rows}; {position}: {first.why}"[:400]
            _log.warning("payloads do not fit their schema, columns stay null", message=message, rows=why)
        return rows.append_column(PAYLOAD, payload)


def table_path(path: str, place: str, *, url: bool) -> str:
    """Return the folder or URL of the table at *place* below a sink's path."""
    return f"{path.rstrip('/')}/{place}" if url else str(Path(path) / place)


def _joined(known: pa.Table, more: pa.Table) -> pa.Table:
    schema = evolved(known.schema, more.schema)
    return pa.concat_tables([conformed(known, schema), conformed(more, schema)])
