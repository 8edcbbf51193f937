"""Sinks for tables, files and message targets: whole batches as Arrow, tables and files idempotent by commit."""

from __future__ import annotations

from router.sinks.contract import ArrowSink, Commit, RejectedRow, WriteResult, check_endpoints, open_sink
from router.sinks.jsonlines import JsonLinesFolder, StandardOutputSink
from router.sinks.messages.sink import close_publishers
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.opening import ParquetSink

__all__ = [
    "ArrowSink",
    "Commit",
    "DeltaSink",
    "JsonLinesFolder",
    "ParquetSink",
    "RejectedRow",
    "StandardOutputSink",
    "WriteResult",
    "check_endpoints",
    "close_publishers",
    "open_sink",
]
