"""How long to wait before something is tried again."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses that double from *lowest* to *highest* seconds, each shortened by chance so that clients do not meet."""

    def __init__(self, lowest: float, highest: float) -> None:
        self._lowest = lowest
        self._highest = highest
        self._pause = lowest

    def next(self) -> float:
        """Return the seconds to wait now; the next pause is twice as long."""
        pause = self._pause
        self._pause = min(self._highest, 2 * pause)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._pause = self._lowest


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but no longer than *seconds*; tell whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
