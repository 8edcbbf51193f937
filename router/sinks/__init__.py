"""Sinks for tables, files and message targets: whole batches as Arrow, tables and files idempotent by commit."""

from __future__ import annotations

from router.sinks.contract import ArrowSink, Commit, Rejected, WriteResult
from router.sinks.jsonlines import JsonLinesSink, StandardOutputSink
from router.sinks.messages.connecting import close_targets
from router.sinks.opening import check_endpoints, open_sink
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.parquet import ParquetSink

__all__ = [
    "ArrowSink",
    "Commit",
    "DeltaSink",
    "JsonLinesSink",
    "ParquetSink",
    "Rejected",
    "StandardOutputSink",
    "WriteResult",
    "check_endpoints",
    "close_targets",
    "open_sink",
]
