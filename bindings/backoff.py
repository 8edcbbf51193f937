"""How long to wait before something is tried again."""

from __future__ import annotations

import random
import time


class Backoff:
    """Pauses that double from *first* to *most* seconds, each shortened by chance so that clients spread out.

    What chance leaves of a pause is *least* of it or more; 0 is full jitter.
    """

    def __init__(self, first: float = 0.25, most: float = 30.0, least: float = 0.5) -> None:
        self._first, self._most, self._least = first, most, least
        self._next = first

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next = self._first

    def pause(self) -> float:
        """Return the seconds to wait now; the next pause is twice as long."""
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause * random.uniform(self._least, 1.0)


class Retries:
    """When things that ended by themselves may be tried again: at once, then after growing pauses, each by itself."""

    def __init__(self, first: float = 1.0, most: float = 60.0) -> None:
        self._first, self._most = first, most
        self._next: dict[str, tuple[Backoff, float]] = {}

    def due(self, name: str) -> bool:
        """Tell whether it is time to try *name*; if so, the pause before the next try begins."""
        backoff, at = self._next.get(name, (Backoff(self._first, self._most), 0.0))
        now = time.monotonic()
        if now < at:
            return False
        self._next[name] = (backoff, now + backoff.pause())
        return True
