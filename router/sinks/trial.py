"""Whether an error of delta-rs is the fault of the rows: then no Delta table would take them.

The errors do not say. A value that cannot be written and a full disk end in the same class, and the texts of errors may
quote a record. So the rows are written once more, to a new table in a folder of their own. If they fail there too, and
a row of nulls does not, the rows are at fault.
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
"""Bytes that must be free besides those of the rows, so that a full disk is not taken for a fault of the rows."""


def fails_anywhere(rows: pa.Table, partition_by: Sequence[str]) -> bool:
    """Return whether rows fail at a new table too; False when that cannot be tried here."""
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
