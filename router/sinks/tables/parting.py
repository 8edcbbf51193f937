"""Rows of the wide table by the table of their definition, with payloads as typed columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.schemas.columns.reading import Undecoded
from catalog.schemas.columns_of import PayloadColumn
from router.matching.facts import SCHEMA_ID
from router.settings.names import TABLE_VARIABLES, event_values, parse_name
from router.sinks.contract import Unfit
from router.sinks.tables.evolving import conformed, evolved
from router.sinks.tables.unwrapping import Framings, typed

PAYLOAD: Final = "payload"
"""The struct of typed columns; null where a body is absent or does not parse. ``data`` has it anyway."""
WRITTEN_BY: Final = "schema_id"
"""The id of the schema that a body was written with; null where it has no frame."""
ColumnOf = Callable[[str], PayloadColumn | None]
"""Gives the payload column of a definition; None where it has none."""


@dataclass(frozen=True, slots=True)
class Parting:
    """How rows are parted: *template* names the tables, its parts separated by ``/``; *framings* are the sources'.

    Several definitions may share a table, which then has the members of all their payloads.
    """

    template: str
    framings: Framings

    def place_of(self, message: str) -> str:
        """Return where the table of a definition is, below the sink's path."""
        values = event_values(message, "", "", {})
        parts = (parse_name(part, TABLE_VARIABLES) for part in self.template.split("/"))
        return "/".join(part.expand(values, escape="_") for part in parts)

    def parted(self, rows: pa.Table, column_of: ColumnOf) -> tuple[dict[str, pa.Table], list[Unfit]]:
        """Return the rows by the place of their table, each in the order they came, and what does not fit."""
        if SCHEMA_ID in rows.schema.names:
            rows = rows.rename_columns({SCHEMA_ID: WRITTEN_BY})
        tables: dict[str, pa.Table] = {}
        unfit: list[Unfit] = []
        messages = pc.dictionary_encode(rows.column("message").combine_chunks())
        codes = messages.indices.to_numpy(zero_copy_only=False)
        for code, message in enumerate(messages.dictionary.to_pylist()):
            place = self.place_of(message)
            part = self._typed(message, rows.take(pa.array(np.flatnonzero(codes == code))), column_of(message), unfit)
            tables[place] = _joined(tables[place], part) if place in tables else part
        return tables, unfit

    def _typed(self, message: str, rows: pa.Table, column: PayloadColumn | None, unfit: list[Unfit]) -> pa.Table:
        if column is None:
            return rows
        payload, undecoded = typed(column, rows, self.framings)
        by_column: dict[str | None, list[Undecoded]] = {}
        for each in undecoded:
            by_column.setdefault(each.column, []).append(each)
        for name, found in by_column.items():
            values = sum(each.values for each in found)
            position = rows.column("position")[found[0].row].as_py()
            detail = f"{values} in {rows.num_rows} rows; {position}: {found[0].why}"[:400]
            unfit.append(Unfit(message, None if name is None else f"{PAYLOAD}.{name}".rstrip("."), values, detail))
        return rows.append_column(PAYLOAD, payload)


def table_path(path: str, place: str, *, url: bool) -> str:
    """Return the folder or URL of the table at *place* below a sink's path."""
    return f"{path.rstrip('/')}/{place}" if url else str(Path(path) / place)


def _joined(known: pa.Table, more: pa.Table) -> pa.Table:
    schema = evolved(known.schema, more.schema)
    return pa.concat_tables([conformed(known, schema), conformed(more, schema)])
