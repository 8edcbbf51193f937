"""A folder of Parquet files, one for each batch, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bindings.private import sync_path
from router.sinks.contract import ArrowSink, Commit, WriteResult
from router.sinks.tables.files import batch_file, has_batch, refused, write_atomically


class ParquetSink(ArrowSink):
    """Writes each batch as ``APP-VERSION.parquet``.

    The file appears by a rename after its bytes are on disk, so that a batch survives power loss once ``write``
    returned, and no reader sees half of one. A repeated batch is known by the name of its file, so files must stay in
    the folder until the batch after them is written.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder

    def write(self, rows: pa.Table, commit: Commit) -> WriteResult:
        """Write a batch once; see :class:`~router.sinks.contract.ArrowSink`."""
        if rows.num_rows == 0:
            return WriteResult(0)
        target = batch_file(self._folder, commit, ".parquet")
        if self.already(commit):
            return WriteResult(0, repeated=True)

        def fill(file: BinaryIO) -> None:
            pq.write_table(rows, file, compression="zstd")

        try:
            write_atomically(target, fill)
        except OSError as error:
            raise refused(self._name, str(target), error) from error
        return WriteResult(rows.num_rows)

    def already(self, commit: Commit) -> bool:
        """Tell whether the batch's file is there, and make its name durable if it is."""
        try:
            found = has_batch(self._folder, commit, ".parquet")
            if found:
                sync_path(self._folder)
        except OSError as error:
            raise refused(self._name, str(self._folder), error) from error
        return found
