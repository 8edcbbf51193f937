"""Connections of sinks, which are kept for reuse.

A plan makes its own sinks, and a new catalog a new plan. Connections outlive both: a sink of the same name, settings
and endpoint goes on with the one there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from bindings.sending import Outbound, Publisher, Refusal
from catalog.model import Endpoint
from router.settings.sinks.contract import RemoteSink

_publishers: dict[str, Publisher] = {}
_lock: Final = threading.Lock()


def kept(name: str, settings: RemoteSink, endpoint: Endpoint | None) -> Publisher:
    """Return the publisher of a sink: the existing one if nothing about its connection has changed."""
    reached = None if endpoint is None else (endpoint.uris, sorted(endpoint.options.items(), key=lambda item: item[0]))
    key = repr((name, settings, reached))
    with _lock:
        if key not in _publishers:
            _publishers[key] = _Shared(lambda: settings.publisher(name, settings.binding(endpoint), endpoint))
        return _publishers[key]


def close_targets() -> None:
    """Disconnect all targets; a sink that is used again connects again."""
    with _lock:
        for publisher in _publishers.values():
            publisher.close()


class _Shared:
    """A publisher that is connected at its first use, and used by one thread at a time."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        self._make = make
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()

    def send(self, messages: Sequence[Outbound]) -> list[Refusal | None]:
        with self._lock:
            if self._publisher is None:
                self._publisher = self._make()
            return self._publisher.send(messages)

    def close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # A batch that was cut off still sends. Its connection ends with the process, which does not wait.
        try:
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
        finally:
            self._lock.release()
