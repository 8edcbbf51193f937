"""Files of a Delta table that workers write before its log names them.

A file is named for the commit that it is meant for and for the try of the task that wrote it: ``APP-VERSION-TASK``. So
a try that died, or one of two that wrote the same rows, leaves files that are known by their names: those of a commit
that is in the log without them.
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

# How a table of typed payloads grows with its schema: columns come, none goes, and none changes its type.
#
# A definition's schema changes while its table lives on. What both know stays one column; a new member becomes a new
# column, null in older rows; one that is gone is null in newer rows. A member whose type changed keeps its column when
# each of its values fits there (``int32`` into ``int64``), else it gets a column beside it, named for the type
# (``level`` and ``level_string``): old rows keep their meaning, and no value is bent.

_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int64(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    pa.int32(): (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    pa.int16(): (pa.int8(), pa.uint8()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
}
"""Per type the ones whose every value it holds exactly."""


def evolve_schema(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema of a table that has the columns *known* and is to take rows of *new*.

    The columns of *known* come first and unchanged but for members added inside of them; then those that are new.
    Both are to have nullable fields only.
    """
    return pa.schema(_merge_fields(known, new))


def conform_rows(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Return the rows with the columns of *target*, which :func:`evolve_schema` made for them; nothing is lost."""
    rows = rows.combine_chunks()
    columns: dict[str, pa.Array] = {name: _combine_chunks(rows.column(name)) for name in rows.column_names}
    placed = _assign_arrays(columns, target)
    return pa.table([_get_or_nulls(placed, field, rows.num_rows) for field in target], schema=target)


def can_hold(known: pa.Schema, given: pa.Schema) -> bool:
    """Return whether rows of *given* fit *known* unchanged, with nulls for missing columns: no type differs."""
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
    """Return for each new member the column that its values go to, which may be there already or not.

    Names that differ in case alone are one column: many readers of tables tell them apart no more than that.
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
    """Return the type that holds both, equal to *known* but for added members; None when there is none."""
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
    """Return the columns by the names of their homes in *target*, in its types."""
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
    """Return offsets into the array's flattened values, whatever slice the array is; nulls are empty."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths.cast(pa.int32()))])


def _get_or_nulls(placed: Mapping[str, pa.Array], field: pa.Field, rows: int) -> pa.Array:
    member = placed.get(field.name)
    return pa.nulls(rows, field.type) if member is None else member


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


# Statistics of a Parquet file as Delta's log has them, so that readers leave out files that hold nothing for them.
#
# They come of the file's own footer. A bound that JSON cannot hold exactly is left out, which every reader allows: what
# is too long, decimals, infinite numbers, and instants outside of the years 1 to 9999.

COLUMNS: Final = 32
"""Leaves of the schema, from its first on, that have statistics: what Delta looks at unless a table says otherwise."""
LONGEST: Final = 64
"""Characters of a text that is a bound."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1)
FieldPath = tuple[str, ...]


def build_statistics(schema: pa.Schema, footer: pq.FileMetaData) -> str:
    """Return the statistics of a file whose columns are those of *schema*, as JSON."""
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
    """Yield number, place and type of each leaf that is one value of a row; those of lists and maps only count."""
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
    """Return the least and the greatest value as JSON has them; None for one that cannot be written."""
    if pa.types.is_temporal(kind):
        # Python has no date or time for each that Arrow has, so the numbers are looked at.
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


# Partition columns of tables: those a row has anyway, and the day or hour it was received.

_DERIVED: Final = {"day": pa.date32(), "hour": INSTANT}
"""Columns made from ``received``, in UTC; ``hour`` is the instant at which the hour begins."""
RECEIVED: Final = "received"


def add_partition_columns(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows with those of *columns* that they lack: ``day`` and ``hour``."""
    for name in columns:
        kind = _DERIVED.get(name)
        if kind is not None and name not in rows.column_names:
            begun = pc.floor_temporal(rows.column(RECEIVED), unit=name)
            rows = rows.append_column(pa.field(name, kind), begun.cast(kind))
    return rows


def add_partition_fields(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of :func:`add_partition_columns` rows."""
    for name in columns:
        if name in _DERIVED and name not in schema.names:
            schema = schema.append(pa.field(name, _DERIVED[name]))
    return schema


_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIX: Final = ".snappy.parquet"
LISTED: Final = 100
"""File names that are checked for each commit, on average, to find those that are no part of the table."""
REMEMBERED: Final = 600.0
"""Seconds after a commit in which files of tries that Spark gave up are looked for."""
MOST_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableFileStager:
    """Writes files into the folder of a Delta table on the local disk.

    *known* are the columns that the table has, serialized by Arrow, where rows may have others; empty where they have
    the table's own, or where there is none.
    """

    folder: str
    commit: Commit
    partition_by: tuple[str, ...] = ()
    known: bytes = b""
    umask: int = field(default_factory=current_umask)
    """The umask of the driver: workers make files for their owner alone, but these are for all readers of sinks."""

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write rows to one file for each value of the partition columns; see :class:`Staging`."""
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
                raise  # A name that a record gave.
            return [StagedFile(fault=(error.errno, error.strerror or str(error)))]
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove files that were never offered to the table's log."""
        for file in files:
            # What could not be written has no path: that is the table's folder then, or whatever is in its way.
            if file.path:
                with suppress(OSError):
                    Path(self.folder, file.path).unlink()


def make_file_prefix(app: str, version: int) -> str:
    """Return what the names of a commit's files begin with, and those of no other."""
    return f"{escape_value(app, '_')}-{version:012d}-"


class StagedFileSweeper:
    """Removes the files that failed tries left beside committed ones.

    A commit of a part says that the whole, and what else it is a part of, was not committed: their files go as well. To
    look means to list folders, so it is done the more seldom the more files they have. Each look is for the commits of
    the last ten minutes: a try that Spark gave up may end long after its commit.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._commits: dict[str, _CommittedFiles] = {}
        """By what names of their files begin with, the oldest first."""
        self._folders: dict[str, float] = {}
        """Folders that commits had files in, with the time of the last one."""
        self._wait = 0

    def record_commit(self, commit: Commit, files: Iterable[StagedFile]) -> None:
        """Record a commit that the log has with exactly these files, and sweep when due."""
        now = time.monotonic()
        paths = {os.path.join(self._folder, file.path) for file in files}
        for path in paths:
            self._folders[os.path.dirname(path)] = now
        for app in commit.apps:
            prefix = make_file_prefix(app, commit.version)
            earlier = self._commits.pop(prefix, None)
            self._commits[prefix] = _CommittedFiles(now, paths if earlier is None else paths | earlier.files)
        if self._wait:
            self._wait -= 1
            return
        self._wait = sum(map(self._sweep_folder, self._folders)) // LISTED
        self._forget_commits(now - REMEMBERED)

    def _sweep_folder(self, folder: str) -> int:
        """Remove the files of a folder that are of these commits and not in the log; return how many it has."""
        try:
            names = os.listdir(folder)
        except OSError:
            return 0
        lengths = {len(prefix) for prefix in self._commits}
        for name in names:
            commit = next((self._commits[name[:length]] for length in lengths if name[:length] in self._commits), None)
            if commit is not None and (path := os.path.join(folder, name)) not in commit.files:
                with suppress(OSError):
                    os.unlink(path)
        return len(names)

    def _forget_commits(self, before: float) -> None:
        """Forget commits from before a time, and all but the latest where there are too many."""
        surplus = len(self._commits) - MOST_REMEMBERED
        old = [
            prefix
            for number, (prefix, each) in enumerate(self._commits.items())
            if number < surplus or each.at < before
        ]
        for prefix in old:
            del self._commits[prefix]
        self._folders = {folder: at for folder, at in self._folders.items() if at >= before}


@dataclass(frozen=True, slots=True)
class _CommittedFiles:
    """When a commit was made, and its files in the log."""

    at: float
    files: set[str]


def _write_file(file: Path, rows: pa.Table) -> tuple[int, str]:
    """Write rows to a new file that is on the disk then; return its bytes and statistics."""
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
    """Yield the rows by the values of partition columns, as texts, each share in its order and without the columns."""
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
    """Return values of a partition column as Delta writes them; an empty text is none, since Delta knows no other."""
    if pa.types.is_timestamp(column.type):
        # Without its zone Arrow writes an instant as the log has it.
        column = pa.chunked_array([each.view(pa.int64()).view(pa.timestamp("us")) for each in column.chunks])
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
