"""Waiting for a condition with a limit: the only way tests synchronise with another process.

Limits are in seconds of a machine that has a core for whoever wants one. Where many want the cores, time counts less,
so that a test beside a load fails for what it shows and not for the load.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
FIRST_PAUSE_SECONDS: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.25
SHARE: Final = 0.1
"""How much of a core asking takes, until the pauses are as long as they get: what is waited for needs it more."""
LONGEST_DEAR_SECONDS: Final = 1.0
"""The pause after a condition that costs most."""
LEAST_SHARE: Final = 0.4
"""How little of the time counts at least: what hangs ends, however busy the machine is."""
ENDING_SECONDS: Final = 240.0
"""The longest that one action takes which is done again and again."""
_LOAD: Final = Path("/proc/loadavg")
_CORES: Final = os.cpu_count() or 1


def wait_until(condition: Callable[[], T | None], limit: float, message: str | Callable[[], str]) -> T:
    """Return the first true value of *condition*, asking again and again for up to *limit* seconds of a free machine.

    The condition is asked at least once, and once more when the time is up. Whatever it raises goes through.
    *message* says what was waited for; as a function it is called only on failure, to tell the state of the world.

    Raises:
        TimeoutError: it stayed false.
    """
    counted, before = 0.0, time.monotonic()
    pause = FIRST_PAUSE_SECONDS
    while True:
        spent = time.process_time()
        late = counted >= limit
        if value := condition():
            return value
        if late:
            text = message if isinstance(message, str) else message()
            raise TimeoutError(f"after {limit:g} s still waiting for {text}")
        dear = min((time.process_time() - spent) / SHARE, LONGEST_DEAR_SECONDS)
        time.sleep(min(max(pause, dear), max(0.0, limit - counted)))
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        now = time.monotonic()
        counted, before = counted + (now - before) * share_of_a_core(), now


@contextmanager
def repeating(action: Callable[[int], object], pause: float) -> Iterator[None]:
    """Do something again and again while the block runs, on a thread of its own; the action gets its number from 0."""
    over = threading.Event()

    def run() -> None:
        for number in count():
            action(number)
            if over.wait(pause):
                return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(ENDING_SECONDS)


def share_of_a_core() -> float:
    """Tell how much of its time a process that wants to run does so now; 1 where nothing says how many want to."""
    with suppress(OSError, ValueError, IndexError):
        wanting = int(_LOAD.read_text("ascii").split()[3].partition("/")[0])
        return max(LEAST_SHARE, min(1.0, _CORES / max(wanting, 1)))
    return 1.0
