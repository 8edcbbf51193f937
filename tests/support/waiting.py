"""Waiting for a condition with a limit: the only way tests synchronise with another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
FIRST_PAUSE_SECONDS: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.25
SHARE: Final = 0.1
"""How much of a core asking takes, until the pauses are as long as they get: what is waited for needs it more."""
LONGEST_DEAR_SECONDS: Final = 1.0
"""The pause after a condition that costs most."""


def wait_until(condition: Callable[[], T | None], limit: float, message: str | Callable[[], str]) -> T:
    """Return the first true value of *condition*, asking again and again for up to *limit* seconds.

    The condition is asked at least once, and once more when the time is up. Whatever it raises goes through.
    *message* says what was waited for; as a function it is called only on failure, to tell the state of the world.

    Raises:
        TimeoutError: it stayed false.
    """
    deadline = time.monotonic() + limit
    pause = FIRST_PAUSE_SECONDS
    while True:
        spent = time.process_time()
        late = time.monotonic() >= deadline
        if value := condition():
            return value
        if late:
            text = message if isinstance(message, str) else message()
            raise TimeoutError(f"after {limit:g} s still waiting for {text}")
        dear = min((time.process_time() - spent) / SHARE, LONGEST_DEAR_SECONDS)
        time.sleep(min(max(pause, dear), max(0.0, deadline - time.monotonic())))
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
