"""Metrics of pairs of messages, in the registry of a router that pairs them; other routers have no such series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

OUTCOMES: Final = ("paired", "unanswered", "unasked")


class RelationMetrics:
    """The metrics of relations; ``written`` is called at each write to the sink of pairs."""

    def __init__(self, registry: CollectorRegistry, written: Callable[[str], None]) -> None:
        self._exchanges = Counter(
            "xrouter_relations",
            "Pairs of messages, and messages that none came for, by what became of them.",
            ("outcome",),
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._exchanges.labels(outcome)
        self._open = Gauge("xrouter_relations_open", "Messages that wait for another.", registry=registry)
        self._undelivered = Gauge(
            "xrouter_relations_undelivered", "Pairs that their sink does not have yet.", registry=registry
        )
        self._written = written

    def settled(self, counts: Mapping[str, int]) -> None:
        """Count what became of exchanges."""
        for outcome, count in counts.items():
            self._exchanges.labels(outcome).inc(count)

    def waiting(self, open: int, undelivered: int) -> None:
        """Set how many messages wait for another, and how many pairs for their sink."""
        self._open.set(open)
        self._undelivered.set(undelivered)

    def write(self, result: Literal["ok", "error"]) -> None:
        """Count a write to the sink."""
        self._written(result)
