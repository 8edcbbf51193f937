"""Readers of Delta tables that share no code with what wrote them: each says which ids a table has, and how often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from tests.support.delta_spark import DeltaSpark

DUCKDB: Final = ("duckdb==1.4.4", "duckdb-ext-delta==1.4.4.20260205")
"""DuckDB with its own reader of Delta, as packages: the version that the tests have has none that is installed so."""
_ASK: Final = """
import duckdb, glob, json, sys
home, table = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
[extension] = glob.glob(home + "/duckdb_ext/extensions/*/*/delta.duckdb_extension")
connection.execute(f"LOAD '{extension}'")
rows = connection.execute("select id, count(*) from delta_scan(?) group by id", [table]).fetchall()
print(json.dumps(rows))
"""


def by_deltalake(table: Path) -> Counter[str]:
    """Read with deltalake."""
    ids: pa.ChunkedArray = DeltaTable(table).to_pyarrow_table(columns=["id"])["id"]
    return Counter({each["values"]: each["counts"] for each in ids.value_counts().to_pylist()})


def by_spark(spark: DeltaSpark, table: Path) -> Counter[str]:
    """Read with Spark and its Delta connector."""
    return Counter(
        {str(row[0]): int(row[1]) for row in spark.sql(f"SELECT id, count(*) FROM delta.`{table}` GROUP BY id")}
    )


def by_duckdb_delta(table: Path) -> Counter[str]:
    """Read with DuckDB's own reader of Delta, fetched when it is first asked for."""
    home = _duckdb()
    environ = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(home), str(table)], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return Counter({str(row[0]): int(row[1]) for row in json.loads(done.stdout)})


def _duckdb() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "xrouter" / DUCKDB[0].replace("==", "-")
    if not (home / "duckdb_ext").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(home), *DUCKDB]
        subprocess.run(command, check=True, timeout=600)
    return home


# Two independent readers of Delta tables: DuckDB reads the files, deltalake the log; types in one spelling, as SQL.

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
    files = files_of(table)
    if not files:
        return Content({}, [])
    found = duckdb.connect().sql("select * from read_parquet(?, union_by_name=true)", params=[files])
    types = {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}
    return Content(types, _rows(found.to_arrow_table()))


def files_of(*tables: Path) -> list[str]:
    """Return the files of Delta tables, by their logs; none of what is no table yet."""
    there = [DeltaTable(table) for table in tables if DeltaTable.is_deltatable(str(table))]
    return [uri.removeprefix("file://") for table in there for uri in table.file_uris()]


def column_of(table: Path, column: str = "data") -> list[Any]:
    """Return the values of a column, read by DuckDB; none where there is no table yet."""
    files = files_of(table)
    asked = f"select {column} from read_parquet(?, union_by_name=true)"
    return [value for (value,) in duckdb.connect().execute(asked, [files]).fetchall()] if files else []


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
