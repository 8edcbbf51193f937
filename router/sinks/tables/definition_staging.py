"""Files of the tables of definitions that workers write before the tables' logs name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from catalog.model import Catalog
from catalog.schemas.columns_of import PayloadColumn, payload_column
from router.sinks.contract import Commit, StagedFile
from router.sinks.tables.parting import Parting, table_path
from router.sinks.tables.staging import TableStaging


@dataclass(frozen=True, slots=True)
class DefinitionStaging:
    """Writes files into the folders of the tables below *path*.

    *known* are the columns of tables, by place, serialized by Arrow, where the driver knows better than workers.
    """

    path: str
    parting: Parting
    commit: Commit
    partition_by: tuple[str, ...]
    known: Mapping[str, bytes]

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write each table's rows to a file, or some; see :class:`Staging`. One that fails keeps no other from it."""
        tables, unfit = self.parting.parted(rows, partial(_column_of, catalog))
        files = [
            replace(file, table=place)
            for place, part in tables.items()
            for file in self._table(place).write(part, task, catalog)
        ]
        files[0] = replace(files[0], unfit=tuple(unfit))
        return files

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never offered to a log."""
        for file in files:
            TableStaging(table_path(self.path, file.table, url=False), self.commit).discard([file])

    def _table(self, place: str) -> TableStaging:
        folder = table_path(self.path, place, url=False)
        known = self.known.get(place) or _columns_at(folder)
        return TableStaging(folder, self.commit, self.partition_by, known)


@dataclass(slots=True)
class _Process:
    """What a worker remembers: payload columns of the definitions of one catalog, and columns of tables by folder."""

    epoch: str = ""
    payloads: dict[str, PayloadColumn | None] = field(default_factory=dict)
    tables: dict[str, bytes] = field(default_factory=dict)


_process = _Process()


def _column_of(catalog: Catalog, message: str) -> PayloadColumn | None:
    if _process.epoch != catalog.epoch:
        _process.epoch, _process.payloads = catalog.epoch, {}
    if message not in _process.payloads:
        known = message in catalog.definitions
        _process.payloads[message] = payload_column(catalog, message) if known else None
    return _process.payloads[message]


def _columns_at(folder: str) -> bytes:
    """Return the columns of a table as it was when first asked, empty for none that can be read.

    A table only grows, and the driver looks again before it takes a file over.
    """
    if folder not in _process.tables:
        try:
            if not DeltaTable.is_deltatable(folder):
                return b""
            schema = pa.schema(DeltaTable(folder).schema().to_arrow())
        except (DeltaError, OSError):
            return b""
        _process.tables[folder] = schema.serialize().to_pybytes()
    return _process.tables[folder]
