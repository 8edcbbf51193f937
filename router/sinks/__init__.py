"""Sinks for tables, files and message targets: whole batches as Arrow, tables and files idempotent by commit."""

from __future__ import annotations

from router.sinks.contract import ArrowSink, Commit, RejectedRow, WriteResult, check_endpoints, open_sink

__all__ = ["ArrowSink", "Commit", "RejectedRow", "WriteResult", "check_endpoints", "open_sink"]
