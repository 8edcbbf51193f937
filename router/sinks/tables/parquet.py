"""A folder of Parquet files, one for each batch, exactly once."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from router.sinks.batch_files import BatchFiles


class ParquetSink(BatchFiles):
    """Writes each batch as ``APP-VERSION.parquet``."""

    suffix = ".parquet"
    known = b""

    def fill(self, file: BinaryIO, rows: pa.Table) -> None:
        """Write the rows as one table."""
        pq.write_table(rows, file, compression="zstd")
