"""How long to wait before something is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from *first* to *most* seconds, each shortened by chance so that clients spread out."""

    def __init__(self, first: float = 0.25, most: float = 30.0) -> None:
        self._first, self._most = first, most
        self._next = first

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._next = self._first

    def pause(self) -> float:
        """Return the seconds to wait now; the next pause is twice as long."""
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause * random.uniform(0.5, 1.0)
