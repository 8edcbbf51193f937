"""Sinks for tables and files: whole batches as Arrow, idempotent by app and version."""

from __future__ import annotations

from router.sinks.contract import ArrowSink, Commit, WriteResult
from router.sinks.delta import DeltaSink
from router.sinks.jsonlines import JsonLinesSink, StandardOutputSink
from router.sinks.opening import open_sink
from router.sinks.parquet import ParquetSink

__all__ = [
    "ArrowSink",
    "Commit",
    "DeltaSink",
    "JsonLinesSink",
    "ParquetSink",
    "StandardOutputSink",
    "WriteResult",
    "open_sink",
]
