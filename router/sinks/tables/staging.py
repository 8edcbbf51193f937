"""Files of a Delta table that workers write before its log names them.

A file is named for its commit and for the attempt of the task that wrote it: ``APP-VERSION-TASK``. Files left by an
attempt that failed, or by one of two attempts that wrote the same rows, are removed by upkeep, after a day.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from router.rendering.texts import INSTANT
from router.settings.routes import escape_value
from router.sinks.contract import Commit, StagedFile

# Schema evolution of a table with typed payloads: columns are added, never removed, and their types do not change.
#
# If a definition's schema changes, a new member becomes a new column, null in older rows; a removed member is null in
# newer rows. A member whose type changed uses its old column if all its values fit there (``int32`` into ``int64``),
# else an additional column named for the type (``level`` and ``level_string``).

_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int64(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    pa.int32(): (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    pa.int16(): (pa.int8(), pa.uint8()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
}
"""Per type, the types whose values it can represent exactly."""


def evolve_schema(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema of a table with the columns *known* after adding what rows of schema *new* need.

    The columns of *known* come first, unchanged except for nested members that are added; new columns follow. Both
    schemas must have only nullable fields.
    """
    return pa.schema(_merge_fields(known, new))


def conform_rows(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Convert rows to the columns of *target*, a result of :func:`evolve_schema` for them; no value is lost."""
    rows = rows.combine_chunks()
    columns: dict[str, pa.Array] = {name: _combine_chunks(rows.column(name)) for name in rows.column_names}
    placed = _assign_arrays(columns, target)
    return pa.table([_get_or_nulls(placed, field, rows.num_rows) for field in target], schema=target)


def can_hold(known: pa.Schema, given: pa.Schema) -> bool:
    """Whether rows of schema *given* fit into *known* without any change of type; missing columns are null."""
    return _can_hold_members(list(known), list(given))


def _can_hold_members(known: Iterable[pa.Field], given: Iterable[pa.Field]) -> bool:
    types = {field.name: field.type for field in known}
    return all(field.name in types and _can_hold_type(types[field.name], field.type) for field in given)


def _can_hold_type(known: pa.DataType, given: pa.DataType) -> bool:
    if pa.types.is_struct(known) and pa.types.is_struct(given):
        return _can_hold_members(list(known), list(given))
    if pa.types.is_list(known) and pa.types.is_list(given):
        return _can_hold_type(known.value_type, given.value_type)
    if pa.types.is_map(known) and pa.types.is_map(given):
        return known.key_type.equals(given.key_type) and _can_hold_type(known.item_type, given.item_type)
    return bool(known.equals(given))


def _merge_fields(known: Iterable[pa.Field], new: Iterable[pa.Field]) -> list[pa.Field]:
    fields = {each.name: each.type for each in known}
    new = list(new)
    for each, home in zip(new, _assign_columns(fields, new), strict=True):
        joined = _merge_types(fields[home], each.type) if home in fields else each.type
        fields[home] = each.type if joined is None else joined
    return [pa.field(name, kind) for name, kind in fields.items()]


def _assign_columns(known: Mapping[str, pa.DataType], new: Sequence[pa.Field]) -> list[str]:
    """Return for each new member the column for its values, an existing or a new one.

    Names that differ only in case share a column, since many table readers ignore case.
    """
    spelt = {name.lower(): name for name in known}
    targets: dict[int, str] = {}
    for place, each in enumerate(new):
        name = spelt.get(each.name.lower(), each.name)
        if name not in known or _merge_types(known[name], each.type) is not None:
            targets[place] = name
    taken = set(targets.values())
    for place, each in enumerate(new):
        if place not in targets:
            beside = next(
                name
                for name in _iter_numbered_names(f"{spelt[each.name.lower()]}_{_get_type_label(each.type)}")
                if name not in taken and (name not in known or _merge_types(known[name], each.type) is not None)
            )
            targets[place] = beside
            taken.add(beside)
    return [targets[place] for place in range(len(new))]


def _iter_numbered_names(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}_{number}"


def _merge_types(known: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type for values of both types, equal to *known* except for added members; None if there is none."""
    if known.equals(new) or new in _WIDER.get(known, ()):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(_merge_fields(list(known), list(new)))
    if pa.types.is_list(known) and pa.types.is_list(new):
        inner = _merge_types(known.value_type, new.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(known) and pa.types.is_map(new) and known.key_type.equals(new.key_type):
        inner = _merge_types(known.item_type, new.item_type)
        return None if inner is None else pa.map_(known.key_type, inner)
    return None


def _get_type_label(kind: pa.DataType) -> str:
    for label in ("struct", "list", "map", "decimal", "timestamp"):
        if str(kind).startswith(label):
            return label
    return str(kind).replace("date32[day]", "date")


def _assign_arrays(columns: Mapping[str, pa.Array], target: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns by their names in *target*, cast to its types."""
    fields = {field.name: field.type for field in target}
    names = _assign_columns(fields, [pa.field(name, column.type) for name, column in columns.items()])
    return {name: _cast(column, fields[name]) for name, column in zip(names, columns.values(), strict=True)}


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(kind):
        members = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        placed = _assign_arrays(members, kind)
        columns = [_get_or_nulls(placed, field, len(column)) for field in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)
    if pa.types.is_list(kind):
        offsets = _find_offsets(column)
        return pa.ListArray.from_arrays(offsets, _cast(column.flatten(), kind.value_type), type=kind, mask=mask)
    if pa.types.is_map(kind):
        pairs = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", column.type.item_type)])))
        keys, items = pairs.flatten().flatten()
        return pa.MapArray.from_arrays(_find_offsets(pairs), keys, _cast(items, kind.item_type), type=kind, mask=mask)
    return column.cast(kind)


def _find_offsets(column: pa.Array) -> pa.Array:
    """Return offsets into the array's flattened values, also for a slice; nulls are empty lists."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])


def _get_or_nulls(placed: Mapping[str, pa.Array], field: pa.Field, rows: int) -> pa.Array:
    member = placed.get(field.name)
    return pa.nulls(rows, field.type) if member is None else member


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


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
                    size, statistics = _write_file(Path(self.folder, path), share)
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


def _write_file(file: Path, rows: pa.Table) -> tuple[int, str]:
    """Write rows to a new file durably; return its size and statistics."""
    file.parent.mkdir(parents=True, exist_ok=True)
    footers: list[pq.FileMetaData] = []
    try:
        with file.open("xb") as target:
            with pq.ParquetWriter(target, rows.schema, compression="snappy", metadata_collector=footers) as writer:
                writer.write_table(rows)
            target.flush()
            os.fsync(target.fileno())
            size = target.tell()
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise
    return size, build_statistics(rows.schema, footers[0])


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
