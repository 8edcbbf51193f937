"""Files of a Delta table that workers write before its log names them.

A file is named for the commit that it is meant for and for the try of the task that wrote it: ``APP-VERSION-TASK``. So
a try that died, or one of two that wrote the same rows, leaves files that are known by their names: those of a commit
that is in the log without them.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bindings.private import denying, umask
from catalog.model import Catalog
from router.settings.names import escape_value
from router.sinks.contract import Commit, StagedFile
from router.sinks.tables.evolving import conformed, evolved
from router.sinks.tables.partitions import partitioned
from router.sinks.tables.statistics import statistics_of

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIX: Final = ".snappy.parquet"
LISTED: Final = 1_000
"""File names that are checked for each commit, to find those that are no part of the table."""
REMEMBERED: Final = 600.0
"""Seconds after a commit in which files of tries that Spark gave up are looked for."""
MOST_REMEMBERED: Final = 1_000


@dataclass(frozen=True, slots=True)
class TableStaging:
    """Writes files into the folder of a Delta table on the local disk.

    *known* are the columns that the table has, serialized by Arrow, where rows may have others; empty where they have
    the table's own, or where there is none.
    """

    folder: str
    commit: Commit
    partition_by: tuple[str, ...] = ()
    known: bytes = b""
    umask: int = field(default_factory=umask)
    """The umask of the driver: workers make files for their owner alone, but these are for all readers of sinks."""

    def write(self, rows: pa.Table, task: str, catalog: Catalog) -> Sequence[StagedFile]:
        """Write rows to one file for each value of the partition columns; see :class:`Staging`."""
        rows = partitioned(rows, self.partition_by)
        if self.known:
            rows = conformed(rows, evolved(pa.ipc.read_schema(pa.py_buffer(self.known)), rows.schema))
        schema = rows.schema.serialize().to_pybytes()
        name = f"{prefix_of(self.commit.app, self.commit.version)}{task}-{uuid4().hex[:8]}{_SUFFIX}"
        staged: list[StagedFile] = []
        try:
            for values, share in _by_partition(rows, self.partition_by):
                folders = (f"{each}={_NULL if not text else quote(text, safe='')}" for each, text in values.items())
                path = "/".join((*folders, name))
                with denying(self.umask):
                    size, statistics = _write(Path(self.folder, path), share)
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


def prefix_of(app: str, version: int) -> str:
    """Return what the names of a commit's files begin with, and those of no other."""
    return f"{escape_value(app, '_')}-{version:012d}-"


class Sweeping:
    """Removes the files that failed tries left beside those of commits in a table's log.

    A commit of a part says that the whole, and what else it is a part of, was not committed: their files go as well. To
    look means to list folders, so it is done the more seldom the more files they have. Each look is for the commits of
    the last ten minutes: a try that Spark gave up may end long after its commit.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._commits: dict[str, _Committed] = {}
        """By what names of their files begin with, the oldest first."""
        self._wait = 0

    def committed(self, commit: Commit, files: Iterable[StagedFile]) -> None:
        """Note a commit that the log has with these files and no others, and sweep when it is time."""
        now = time.monotonic()
        paths = {Path(self._folder, file.path) for file in files}
        for app in commit.apps:
            prefix = prefix_of(app, commit.version)
            earlier = self._commits.pop(prefix, None)
            self._commits[prefix] = _Committed(now, paths if earlier is None else paths | earlier.files)
        if self._wait:
            self._wait -= 1
            return
        folders = {path.parent for committed in self._commits.values() for path in committed.files}
        self._wait = sum(map(self._sweep, folders)) // LISTED
        self._forget(now - REMEMBERED)

    def _sweep(self, folder: Path) -> int:
        """Remove the files of a folder that are of these commits and not in the log; return how many it has."""
        try:
            names = os.listdir(folder)
        except OSError:
            return 0
        lengths = {len(prefix) for prefix in self._commits}
        for name in names:
            commit = next((self._commits[name[:length]] for length in lengths if name[:length] in self._commits), None)
            if commit is not None and folder / name not in commit.files:
                with suppress(OSError):
                    Path(folder, name).unlink()
        return len(names)

    def _forget(self, before: float) -> None:
        """Forget commits from before a time, and all but the latest where there are too many."""
        surplus = len(self._commits) - MOST_REMEMBERED
        old = [
            prefix
            for number, (prefix, each) in enumerate(self._commits.items())
            if number < surplus or each.at < before
        ]
        for prefix in old:
            del self._commits[prefix]


@dataclass(frozen=True, slots=True)
class _Committed:
    """When a commit came, and the files that the log has of it."""

    at: float
    files: set[Path]


def _write(file: Path, rows: pa.Table) -> tuple[int, str]:
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
    return size, statistics_of(rows.schema, footers[0])


def _by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows by the values of partition columns, as texts, each share in its order and without the columns."""
    if not columns:
        yield {}, rows
        return
    texts = [_texts(rows.column(name)).dictionary_encode(null_encoding="encode") for name in columns]
    encoded = [each.combine_chunks() for each in texts]
    codes = np.stack([each.indices.to_numpy(zero_copy_only=False) for each in encoded], axis=1)
    distinct, owners = np.unique(codes, axis=0, return_inverse=True)
    rest = rows.drop_columns(list(columns))
    for number, value in enumerate(distinct.tolist()):
        values = {name: each.dictionary[code].as_py() for name, each, code in zip(columns, encoded, value, strict=True)}
        yield values, rest.take(pa.array(np.flatnonzero(owners.reshape(-1) == number)))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of a partition column as Delta writes them; an empty text is none, since Delta knows no other."""
    if pa.types.is_timestamp(column.type):
        # Without its zone Arrow writes an instant as the log has it.
        column = pa.chunked_array([each.view(pa.int64()).view(pa.timestamp("us")) for each in column.chunks])
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
