"""Background threads that restart after an error, until the router stops.

Nobody waits for these threads. One that died silently would leave tables unmerged or senders without an answer until
the next restart. So an error is logged and counted, and the work restarts after a pause.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

T = TypeVar("T")

# Pauses before a retry.


class Backoff:
    """Pauses that double from *first* to *most* seconds, each shortened at random so that clients spread out.

    *least* is the minimum share of a pause that remains; 0 is full jitter.
    """

    def __init__(self, first: float = 0.25, most: float = 30.0, least: float = 0.5) -> None:
        self._first, self._most, self._least = first, most, least
        self._next = first

    def reset(self) -> None:
        """Start again with the first pause."""
        self._next = self._first

    def next_pause(self) -> float:
        """Return the pause in seconds, and double the next one."""
        pause, self._next = self._next, min(self._next * 2, self._most)
        return pause * random.uniform(self._least, 1.0)


class Retries:
    """Decides when something that ended may be restarted: immediately, then after growing pauses."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[Backoff, float]] = {}

    def may_retry(self, name: str) -> bool:
        """Whether *name* may be retried now; if so, a longer pause begins."""
        backoff, at = self._next.get(name, (Backoff(1.0, 60.0), 0.0))
        now = time.monotonic()
        if now < at:
            return False
        self._next[name] = (backoff, now + backoff.next_pause())
        return True


def run_in_background(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread that the end of the process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # Whoever asks for the result gets the error.
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


STEADY_SECONDS: Final = 60.0
"""Work that ran this long before an error restarts after the shortest pause."""
_logger = logging.getLogger(__name__)
BACKGROUND_PARTS: Final = ("gateway", "inbox", "inbox-compactor", "kafka-inbox", "upkeep", "dead-letter-retention")
"""The background threads of every router; each count starts at 0, so that the first error shows up in a rate."""
_faults: Counter[str] = Counter(dict.fromkeys(BACKGROUND_PARTS, 0))
_lock = threading.Lock()


def count_fault(part: str) -> None:
    """Count an error of a part of this process that restarts."""
    with _lock:
        _faults[part] += 1


def fault_counts() -> Mapping[str, int]:
    """Return how often each part has restarted since this process started."""
    with _lock:
        return dict(_faults)


class Background:
    """A daemon thread that runs *work* until it returns, and restarts it after each error.

    ``part`` is its name in the counts, ``name`` in the list of threads. *work* must be safe to restart after any
    exception, and must return soon after :meth:`ask_to_end`.
    """

    def __init__(self, part: str, work: Callable[[], None], *, name: str = "") -> None:
        self._part = part
        self._work = work
        self._ending = threading.Event()
        self._backoff = Backoff(0.1, 30.0)
        # A daemon: the process does not wait at exit for work that is safe to cut off.
        self._thread = threading.Thread(target=self._run, name=name or part, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        with _lock:
            _faults.setdefault(self._part, 0)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Prevent further restarts, and cut a pause short."""
        self._ending.set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait at most *seconds* for the end; return whether the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self._work()
                return
            except Exception:
                count_fault(self._part)
                if self._ending.is_set():
                    _logger.exception("%s failed while stopping", self._thread.name)
                    return
                if time.monotonic() - began >= STEADY_SECONDS:
                    self._backoff.reset()
                pause = self._backoff.next_pause()
                _logger.exception("%s failed; restarting in %.1f s", self._thread.name, pause)
                self._ending.wait(pause)
