"""Readers of Delta tables that share no code with what wrote them: each says which ids a table has, and how often."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

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
