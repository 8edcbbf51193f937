"""The ids of schemas that bodies come with, by definition: a metric, and a line in the log for a second one by which
nothing decides (JUDGING.md#schema-ids).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from router.logs import get_logger
from router.watching.collectors import OTHER, Capped

SERIES: Final = 1000
"""Pairs of definition and id that have a series of their own."""
_log = get_logger()


class SchemaIdFigures:
    """Counts ids by definition, as batches are written. From any thread."""

    def __init__(self, registry: CollectorRegistry, cap: int = SERIES) -> None:
        self._pairs = Capped(cap)
        self._lock = threading.Lock()
        self._first: dict[str, str] = {}
        self._warned: set[str] = set()
        self._counter = Counter(
            "xrouter_schema_ids",
            "Routed records whose body begins with the id of a schema, by definition, id, and what decided by the id.",
            ("message", "schemaid", "by"),
            registry=registry,
        )

    def add(self, ids: Mapping[tuple[str, str, str], int]) -> None:
        """Count records by definition, id, and what decided."""
        for (message, schema_id, by), count in ids.items():
            pair = f"{message} {schema_id} {by}"
            known = self._pairs.of(pair) == pair
            self._counter.labels(message if known else OTHER, schema_id if known else OTHER, by).inc(count)
            if by == "nothing" and known:
                self._look(message, schema_id)

    def _look(self, message: str, schema_id: str) -> None:
        with self._lock:
            first = self._first.setdefault(message, schema_id)
            if first == schema_id or message in self._warned:
                return
            self._warned.add(message)
        _log.warning(
            "bodies of one definition begin with several schema ids, and nothing tells whether all are of its type",
            message=message,
            ids=f"{first}, {schema_id}",
            hint="name the schema registry of the source, or declare the ids of the definition's schema",
        )
