"""Merging the small files of a table on a disk, so that no row is ever there twice or not at all.

The rows are written to new files first. One entry of the log then replaces the old files by them, and only where each
old file is still in the log at the version before: what others committed meanwhile is read, and if it concerns these
files, the merge is given up. Those who began before the entry cannot commit behind it (:meth:`Head.rewrite`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from bindings.private import sync_path
from router.sinks.tables.evolving import conformed, evolved
from router.sinks.tables.head import Head
from router.sinks.tables.log import Log
from router.sinks.tables.statistics import statistics_of

MERGED: Final = "part-"
"""Begins the name of each file that replaces others, as it does with other engines."""
_ATTEMPTS: Final = 100
MOST: Final = 2_000
"""Files that one entry replaces, or a few more."""
_GROUP: Final = 32 * 2**20
"""Bytes of rows that are gathered before they are written."""
File = Mapping[str, Any]
"""An action ``add`` of the log."""


class Merge(NamedTuple):
    """How many files became how many; 0 where nothing was merged."""

    before: int = 0
    after: int = 0


def merge(uri: str, folder: Path, size: int) -> Merge:
    """Merge files of a table that are smaller than *size*, each partition for itself, at most about :data:`MOST`.

    Raises:
        DeltaError, OSError: the table cannot be read or written now; it has what it had.
    """
    table = DeltaTable(uri)
    head = Head(uri, table)
    if not head.appends or not head.form.merges:
        return Merge()
    parts = table.metadata().partition_columns
    columns = pa.schema([field for field in head.schema if field.name not in parts])
    removed: list[File] = []
    added: list[File] = []
    known: dict[bytes, bool] = {}
    try:
        for files in _bins(Log(folder).files(head.version, size).values(), size):
            fitting = [file for file in files if _fits(folder / unquote(file["path"]), columns, known)]
            if len(fitting) > 1:
                added.append(_written(folder, fitting, columns))
                removed += fitting
            if len(removed) >= MOST:
                break
        if not added or not _replace(head, folder, removed, added):
            _discard(folder, added)
            return Merge()
    except FileNotFoundError:
        # Another engine replaced a file and removed it: what it wrote is looked at next time.
        _discard(folder, added)
        return Merge()
    except BaseException:
        _discard(folder, added)
        raise
    if not all(_is_there(folder, file) for file in added):
        # Another engine removed what no log named yet: the old files are there still, and stand for it again.
        _replace(head, folder, added, removed)
        return Merge()
    return Merge(len(removed), len(added))


def _bins(files: Iterable[File], size: int) -> Iterator[list[File]]:
    """Yield groups of small files of one partition, to become a file each."""
    partitions: dict[str, tuple[list[File], int]] = {}
    for file in sorted(files, key=lambda file: (file["modificationTime"], file["path"])):
        # Rows of a file with a deletion vector are left to an engine that writes such; a path elsewhere is a clone's.
        if file.get("deletionVector") or ":" in unquote(file["path"]).partition("/")[0]:
            continue
        partition = json.dumps(file["partitionValues"], sort_keys=True)
        gathered, taken = partitions.get(partition, ([], 0))
        if taken + file["size"] > size:
            yield gathered
            gathered, taken = [], 0
        gathered.append(file)
        partitions[partition] = (gathered, taken + file["size"])
    yield from (gathered for gathered, _ in partitions.values())


def _fits(path: Path, columns: pa.Schema, known: dict[bytes, bool]) -> bool:
    """Whether the rows of a file can be written with these columns, without any loss; *known* is of files before."""
    schema = pq.read_schema(path)
    key = schema.remove_metadata().serialize().to_pybytes()
    if key not in known:
        known[key] = _fit(schema, columns)
    return known[key]


def _fit(schema: pa.Schema, columns: pa.Schema) -> bool:
    given = _instants(schema.empty_table(), columns).schema
    whole = evolved(columns, pa.schema([pa.field(field.name, field.type) for field in given]))
    return bool(whole.equals(columns))


def _written(folder: Path, files: Sequence[File], columns: pa.Schema) -> File:
    """Write the rows of files to a new one beside the first, which is on the disk then; return it as an action."""
    beside = files[0]["path"].rpartition("/")[0]
    name = f"{MERGED}{uuid4()}-merged.snappy.parquet"
    path = folder / unquote(beside) / name
    footers: list[pq.FileMetaData] = []
    try:
        with pq.ParquetWriter(path, columns, compression="snappy", metadata_collector=footers) as writer:
            gathered: list[pa.Table] = []
            size = 0
            for file in files:
                with pq.ParquetFile(folder / unquote(file["path"]), coerce_int96_timestamp_unit="us") as source:
                    for number in range(source.num_row_groups):
                        gathered.append(_as(source.read_row_group(number), columns))
                        size += gathered[-1].nbytes
                        if size >= _GROUP:
                            writer.write_table(pa.concat_tables(gathered))
                            gathered, size = [], 0
            if gathered:
                writer.write_table(pa.concat_tables(gathered))
        sync_path(path)
        sync_path(path.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    return {
        "path": f"{beside}/{name}" if beside else name,
        "partitionValues": files[0]["partitionValues"],
        "size": path.stat().st_size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": False,
        "stats": statistics_of(columns, footers[0]),
    }


def _as(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with the columns of the table; most files have these, and nothing is to be done."""
    rows = _instants(rows, columns)
    return rows if rows.schema.equals(columns) else conformed(rows, columns)


def _instants(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows whose instants have their zone, which Parquet's old type for them does not say."""
    for at, field in enumerate(rows.schema):
        wanted = columns.field(field.name).type if field.name in columns.names else field.type
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(wanted) and not field.type.tz and wanted.tz:
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.timestamp("us")).cast(wanted))
    return rows


def _replace(head: Head, folder: Path, removed: Sequence[File], added: Sequence[File]) -> bool:
    """Commit that files are replaced by others; False where the log no longer has one of them."""
    gone = {file["path"] for file in removed}
    for _ in range(_ATTEMPTS):
        if not all(_is_there(folder, file) for file in added):
            return False
        try:
            head.rewrite(removed, added)
        except CommitFailedError:
            actions = head.follow()
            if actions is None or any(each["remove"]["path"] in gone for each in actions if "remove" in each):
                return False
        else:
            return True
    return False


def _is_there(folder: Path, file: File) -> bool:
    try:
        return bool((folder / unquote(file["path"])).stat().st_size == file["size"])
    except OSError:
        return False


def _discard(folder: Path, files: Iterable[File]) -> None:
    for file in files:
        with suppress(OSError):
            os.unlink(folder / unquote(file["path"]))
