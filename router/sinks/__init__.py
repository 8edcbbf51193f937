"""Sinks for tables, files and message targets: whole batches as Arrow, tables and files idempotent by commit."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
_HOMES: Final = {
    "DeltaSink": "tables.delta",
    "JsonLinesFolder": "jsonlines",
    "ParquetSink": "tables.opening",
    "StandardOutputSink": "jsonlines",
    "close_publishers": "messages.sink",
}
"""The modules of the names that are not of the contract."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: typed columns need none of the sinks (:mod:`xrouter.spark`)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'contract')}"), name)
