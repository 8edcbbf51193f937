"""Files of a Delta table that workers write before its log names them.

A file is named for its commit and for the attempt of the task that wrote it: ``APP-VERSION-TASK``. Files left by an
attempt that failed, or by one of two attempts that wrote the same rows, are removed by upkeep, after a day.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bindings.private_files import current_umask, use_umask
from catalog.model import Catalog
from catalog.values import YEAR_1, YEAR_10000
from router.rendering.payloads import conform_rows, evolve_schema
from router.rendering.texts import INSTANT
from router.settings.routes import escape_value
from router.sinks.contract import Commit, StagedFile

# Statistics of a Parquet file in the form of Delta's log, with which readers skip files.
#
# They are read from the file's footer. Bounds that JSON cannot represent exactly are omitted: long texts, decimals,
# infinite numbers, and times outside the years 1 to 9999.

COLUMNS: Final = 32
"""Number of leaf columns with statistics, from the first on: Delta's default."""
LONGEST: Final = 64
"""Maximum characters of a text that is a bound."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1)
FieldPath = tuple[str, ...]


def build_statistics(schema: pa.Schema, footer: pq.FileMetaData) -> str:
    """Return the statistics of a file with the columns of *schema*, as JSON."""
    statistics: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, place, kind in _iter_leaves(schema):
        if number >= COLUMNS:
            break
        columns = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in columns):
            continue
        nulls = sum(each.null_count for each in columns)
        _set_member(statistics["nullCount"], place, nulls)
        filled = [each for each in columns if each.num_values]
        if not filled or not _has_bounds(kind) or not all(each.has_min_max for each in filled):
            continue
        low, high = _find_bounds(kind, filled)
        if low is not None and high is not None:
            _set_member(statistics["minValues"], place, low)
            _set_member(statistics["maxValues"], place, high)
    return msgspec.json.encode(statistics).decode()


def _iter_leaves(schema: pa.Schema) -> Iterator[tuple[int, FieldPath, pa.DataType]]:
    """Yield number, path and type of each leaf with one value per row; leaves in lists and maps are only numbered."""
    number = 0

    def walk(place: FieldPath, kind: pa.DataType, *, single: bool) -> Iterator[tuple[int, FieldPath, pa.DataType]]:
        nonlocal number
        if pa.types.is_nested(kind):
            inside = single and pa.types.is_struct(kind)
            for at in range(kind.num_fields):
                member = kind.field(at)
                yield from walk((*place, member.name), member.type, single=inside)
            return
        if single:
            yield number, place, kind
        number += 1

    for each in schema:
        yield from walk((each.name,), each.type, single=True)


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    asked = (types.is_integer, types.is_floating, types.is_string, types.is_date32, types.is_timestamp)
    return any(each(kind) for each in asked)


def _find_bounds(kind: pa.DataType, columns: Sequence[pq.Statistics]) -> tuple[Any, Any]:
    """Return minimum and maximum as JSON values; None for a value that JSON cannot represent."""
    if pa.types.is_temporal(kind):
        # Arrow has dates and times that Python cannot represent, so numbers are compared.
        low, high = min(each.min_raw for each in columns), max(each.max_raw for each in columns)
        return _format_time(low, kind), _format_time(high, kind)
    return _to_json_bound(min(each.min for each in columns)), _to_json_bound(max(each.max for each in columns))


def _to_json_bound(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _format_time(number: int, kind: pa.DataType) -> str | None:
    days = pa.types.is_date32(kind)
    micros = number * _DAY if days else number
    if not (days or kind.unit == "us") or not YEAR_1 * 1000 <= micros < YEAR_10000 * 1000:
        return None
    moment = _EPOCH + timedelta(microseconds=micros)
    if days:
        return moment.date().isoformat()
    return moment.isoformat(timespec="microseconds") + ("Z" if kind.tz else "")


def _set_member(tree: dict[str, Any], place: FieldPath, value: Any) -> None:
    for name in place[:-1]:
        tree = tree.setdefault(name, {})
    tree[place[-1]] = value


# Partition columns of tables: existing columns, and the day or hour when a row was received.

_DERIVED: Final = {"day": pa.date32(), "hour": INSTANT}
"""Columns derived from ``received``, in UTC; ``hour`` is the time at which the hour starts."""
RECEIVED: Final = "received"


def add_partition_columns(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Add the partition columns ``day`` and ``hour`` to rows if *columns* has them."""
    for name in columns:
        kind = _DERIVED.get(name)
        if kind is not None and name not in rows.column_names:
            begun = pc.floor_temporal(rows.column(RECEIVED), unit=name)
            rows = rows.append_column(pa.field(name, kind), begun.cast(kind))
    return rows


def add_partition_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Add the fields of :func:`add_partition_columns` to a schema."""
    for name in columns:
        if name in _DERIVED and name not in schema.names:
            schema = schema.append(pa.field(name, _DERIVED[name]))
    return schema


_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIX: Final = ".snappy.parquet"


@dataclass(frozen=True, slots=True)
class TableFileStager:
    """Writes files into the folder of a Delta table on the local disk.

    *known* are the table's columns, serialized by Arrow, if rows may have different types; else empty.
    """

    folder: str
    commit: Commit
    partition_by: tuple[str, ...] = ()
    known: bytes = b""
    umask: int = field(default_factory=current_umask)
    """The umask of the driver: files of workers are private by default, but these are for all readers."""

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write rows to one file per combination of partition values; see :class:`Staging`."""
        rows = add_partition_columns(rows, self.partition_by)
        if self.known:
            rows = conform_rows(rows, evolve_schema(pa.ipc.read_schema(pa.py_buffer(self.known)), rows.schema))
        schema = rows.schema.serialize().to_pybytes()
        name = f"{make_file_prefix(self.commit.app, self.commit.version)}{task}-{uuid4().hex[:8]}{_SUFFIX}"
        staged: list[StagedFile] = []
        try:
            for values, share in _split_by_partition(rows, self.partition_by):
                folders = (f"{each}={_NULL if not text else quote(text, safe='')}" for each, text in values.items())
                path = "/".join((*folders, name))
                with use_umask(self.umask):
                    size, statistics = write_file(Path(self.folder, path), share.schema, [share])
                now = time.time_ns() // 1_000_000
                staged.append(StagedFile(path, share.num_rows, size, now, values, statistics, schema))
        except OSError as error:
            self.discard(staged)
            if error.errno == errno.ENAMETOOLONG:
                raise  # The name comes from a record.
            return [StagedFile(fault=(error.errno, error.strerror or str(error)))]
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never added to the table's log."""
        for file in files:
            # A file that could not be written has no path, which would mean the table's folder.
            if file.path:
                with suppress(OSError):
                    Path(self.folder, file.path).unlink()


def make_file_prefix(app: str, version: int) -> str:
    """Return the prefix of the file names of a commit, which no other commit has."""
    return f"{escape_value(app, '_')}-{version:012d}-"


def write_file(file: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> tuple[int, str]:
    """Write rows to a new file durably; return its size and statistics."""
    file.parent.mkdir(parents=True, exist_ok=True)
    footers: list[pq.FileMetaData] = []
    try:
        with file.open("xb") as target:
            with pq.ParquetWriter(target, schema, compression="snappy", metadata_collector=footers) as writer:
                for rows in parts:
                    writer.write_table(rows)
            target.flush()
            os.fsync(target.fileno())
            size = target.tell()
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
    return size, build_statistics(schema, footers[0])


def _split_by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield partition values as texts, each with its rows in order, without the partition columns."""
    if not columns:
        yield {}, rows
        return
    texts = [_to_partition_texts(rows.column(name)).dictionary_encode(null_encoding="encode") for name in columns]
    encoded = [each.combine_chunks() for each in texts]
    codes = np.stack([each.indices.to_numpy(zero_copy_only=False) for each in encoded], axis=1)
    distinct, owners = np.unique(codes, axis=0, return_inverse=True)
    rest = rows.drop_columns(list(columns))
    for number, value in enumerate(distinct.tolist()):
        values = {name: each.dictionary[code].as_py() for name, each, code in zip(columns, encoded, value, strict=True)}
        yield values, rest.take(pa.array(np.flatnonzero(owners.reshape(-1) == number)))


def _to_partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of a partition column as Delta writes them; an empty text becomes null, as in Delta."""
    if pa.types.is_timestamp(column.type):
        # Without a time zone, Arrow formats a time as in the log.
        column = pa.chunked_array([each.view(pa.int64()).view(pa.timestamp("us")) for each in column.chunks])
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
