"""Waiting with a limit."""

from __future__ import annotations

import asyncio


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but no longer than *seconds*; tell whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
