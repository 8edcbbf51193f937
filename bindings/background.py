"""Threads that work beside the stream for as long as a router runs; a fault does not end them.

Nobody waits for these threads: one that died silently would leave tables unmerged or senders without an answer until
the next restart. So a fault is logged and counted, and the work begins again after a pause.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

# How long to wait before something is tried again.


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


STEADY_SECONDS: Final = 60.0
"""Work that lasted this long before a fault begins again after the shortest pause."""
_logger = logging.getLogger(__name__)
PARTS: Final = ("gateway", "inbox", "inbox-compactor", "kafka-inbox", "upkeep", "dead-letter-retention")
"""The threads of this kind in every router; each count starts at 0, so that a first fault shows up in a rate."""
_faults: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
_lock = threading.Lock()


def count_fault(part: str) -> None:
    """Count a fault of a part of this process that begins again."""
    with _lock:
        _faults[part] += 1


def faults() -> Mapping[str, int]:
    """Return how often each part has begun again since this process started."""
    with _lock:
        return dict(_faults)


class Background:
    """A daemon thread that runs *work* until that returns, again after each fault.

    ``part`` names it in counts, which begin once it is started, ``name`` in the list of threads. *work* must be safe to
    begin again after any exception. It must return soon after :meth:`ask_to_end`, and notice that call itself.
    """

    def __init__(self, part: str, work: Callable[[], None], *, name: str = "") -> None:
        self._part = part
        self._work = work
        self._ending = threading.Event()
        self._backoff = Backoff(0.1, 30.0)
        # A daemon: the end of the process never waits for what is safe to cut off.
        self._thread = threading.Thread(target=self._run, name=name or part, daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        with _lock:
            _faults.setdefault(self._part, 0)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Let no fault begin the work again, and cut a pause short."""
        self._ending.set()

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the end, at most *seconds*; tell whether it came."""
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
                    _logger.exception("%s failed while ending", self._thread.name)
                    return
                if time.monotonic() - began >= STEADY_SECONDS:
                    self._backoff.reset()
                pause = self._backoff.pause()
                _logger.exception("%s failed; it begins again in %.1f s", self._thread.name, pause)
                self._ending.wait(pause)
