"""Threads that work beside the stream for as long as a router runs; a fault does not end them.

Nobody waits for these threads: one that died silently would leave tables unmerged or senders without an answer until
the next restart. So a fault is logged and counted, and the work begins again after a pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from bindings.backoff import Backoff

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
