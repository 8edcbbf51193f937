"""Whether rows that a Delta table did not take would be taken by any: whose fault an error of delta-rs is.

Its errors do not say. A value that cannot be written and a disk that is full end in the same class, and texts of
errors may hold what a record says. So the rows are written once more, to a new table in a folder of their own: what
fails there as well, where a row of nulls passes, comes of the rows.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

_ROOM: Final = 64 << 20
"""Bytes that must be free besides those of the rows, lest the folder's disk be at fault."""


def fails_anywhere(rows: pa.Table, partition_by: Sequence[str]) -> bool:
    """Tell whether rows fail at a new table too. False when that cannot be tried here."""
    try:
        with tempfile.TemporaryDirectory(prefix="xrouter-") as folder:
            if shutil.disk_usage(folder).free < 2 * rows.nbytes + _ROOM:
                return False
            nulls = pa.table([pa.nulls(1, field.type) for field in rows.schema], names=rows.schema.names)
            return _takes(Path(folder, "nulls"), nulls, ()) and not _takes(Path(folder, "rows"), rows, partition_by)
    except OSError:
        return False


def _takes(folder: Path, rows: pa.Table, partition_by: Sequence[str]) -> bool:
    try:
        table = DeltaTable.create(str(folder), rows.schema, partition_by=list(partition_by) or None)
        write_deltalake(table, rows, mode="append")
    except DeltaError:
        return False
    return True
