"""Calls that a few threads make at a time; the caller waits for none of them beyond its deadline.

Nothing ends a thread from outside, and no timeout of a client ends a request whose answer comes byte by byte. So the
caller goes on at the deadline. The thread ends when its call does, and does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
_logger = logging.getLogger(__name__)


def within(seconds: float, calls: Sequence[Callable[[], T]], threads: int) -> list[T | None]:
    """Make calls, and return their results in order; each call may take *seconds*.

    When one takes longer, calls that have not ended by then have None as result, and calls that have not begun are
    never made. A call that raises is logged, and has None too.
    """
    waiting = deque(enumerate(calls))
    reports: SimpleQueue[tuple[int, bool, T | None]] = SimpleQueue()
    for _ in range(min(threads, len(calls))):
        threading.Thread(target=_work, args=(waiting, reports), name="delivery-call", daemon=True).start()
    results: list[T | None] = [None] * len(calls)
    begun: dict[int, float] = {}
    left = len(calls)
    while left:
        now = time.monotonic()
        try:
            place, ended, result = reports.get(timeout=max(min(begun.values(), default=now) + seconds - now, 0.0))
        except Empty:
            waiting.clear()
            break
        if ended:
            del begun[place]
            results[place] = result
            left -= 1
        else:
            begun[place] = time.monotonic()
    return results


def _work(waiting: deque[tuple[int, Callable[[], T]]], reports: SimpleQueue[tuple[int, bool, T | None]]) -> None:
    while True:
        try:
            place, call = waiting.popleft()
        except IndexError:
            return
        reports.put((place, False, None))
        result = None
        try:
            result = call()
        except Exception:
            _logger.exception("a call of delivery failed")
        reports.put((place, True, result))
