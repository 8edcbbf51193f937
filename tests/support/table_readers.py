"""Two independent readers of Delta tables: DuckDB reads the files, deltalake the log; types in one spelling, as SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

_SQL: Final[Mapping[str, str]] = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a reader finds: the SQL type of each column, and the rows with values as the cases write them."""

    types: Mapping[str, str]
    rows: list[dict[str, Any]]


def by_duckdb(table: Path) -> Content:
    """Read the files that the table's log names with DuckDB, which knows nothing of Delta here."""
    files = [uri.removeprefix("file://") for uri in DeltaTable(table).file_uris()]
    if not files:
        return Content({}, [])
    found = duckdb.connect().sql("select * from read_parquet(?, union_by_name=true)", params=[files])
    types = {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}
    return Content(types, _rows(found.to_arrow_table()))


def unnamed_files(table: Path) -> set[str]:
    """Parquet files in and below a table that no entry of its log has added; those that were merged since have been."""
    entries = [
        json.loads(line) for log in table.glob("_delta_log/*.json") for line in log.read_text().split("\n") if line
    ]
    named = {unquote(each["add"]["path"]) for each in entries if "add" in each}
    files = (file.relative_to(table) for file in table.rglob("*.parquet"))
    # The log itself is in such files where it has checkpoints.
    return {str(file) for file in files if file.parts[0] != "_delta_log"} - named


def by_delta(table: Path) -> Content:
    """Read the table with deltalake; types are those of its log."""
    opened = DeltaTable(table)
    fields = json.loads(opened.schema().to_json())["fields"]
    types = {field["name"]: sql_type(_spelt(field["type"])) for field in fields}
    return Content(types, _rows(opened.to_pyarrow_table()))


@cache
def sql_type(text: str) -> str:
    """Return an SQL type as DuckDB spells it."""
    [(spelt,)] = duckdb.connect().execute(f"select typeof(cast(null as {text}))").fetchall()
    return str(spelt)


def shown(value: Any) -> Any:
    """Return a value as the cases write it: times as ISO 8601, instants in UTC, decimals as digits, bytes in hex."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.isoformat() if isinstance(value, date) else str(value) if isinstance(value, Decimal) else value


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = shown(table.to_pylist(maps_as_pydicts="strict"))
    return rows


def _spelt(kind: Any) -> str:
    if isinstance(kind, str):
        return _SQL.get(kind) or kind.upper()
    if kind["type"] == "struct":
        members = (f'"{field["name"]}" {_spelt(field["type"])}' for field in kind["fields"])
        return f"STRUCT({', '.join(members)})"
    if kind["type"] == "array":
        return f"{_spelt(kind['elementType'])}[]"
    return f"MAP({_spelt(kind['keyType'])}, {_spelt(kind['valueType'])})"
