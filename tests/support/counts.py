"""Counters for gateways under test."""

from __future__ import annotations

from collections import Counter


class Counts:
    """What a gateway counted, by endpoint."""

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()

    def received(self, endpoint: str) -> None:
        """Count a message that arrived."""
        self.arrived[endpoint] += 1

    def acknowledged(self, endpoint: str) -> None:
        """Count a message that was acknowledged."""
        self.stored[endpoint] += 1
