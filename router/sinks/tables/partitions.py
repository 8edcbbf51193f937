"""Partition columns of tables: those a row has anyway, and the day or hour it was received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from router.rendering.instants import INSTANT

_DERIVED: Final = {"day": pa.date32(), "hour": INSTANT}
"""Columns made from ``received``, in UTC; ``hour`` is the instant at which the hour begins."""
RECEIVED: Final = "received"


def partitioned(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows with those of *columns* that they lack: ``day`` and ``hour``."""
    for name in columns:
        kind = _DERIVED.get(name)
        if kind is not None and name not in rows.column_names:
            begun = pc.floor_temporal(rows.column(RECEIVED), unit=name)
            rows = rows.append_column(pa.field(name, kind), begun.cast(kind))
    return rows


def with_partitions(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of :func:`partitioned` rows."""
    for name in columns:
        if name in _DERIVED and name not in schema.names:
            schema = schema.append(pa.field(name, _DERIVED[name]))
    return schema
